"""The answer to a client's detach, and no other frame for the link after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.domain.amqp.codec import UInt
from pairbus.localbus import LocalBus
from tests.support import amqp_frames as amqp
from tests.support.amqp_frames import Peer
from tests.support.raw_client import RawClient, sas_token

ENTITIES = '[[queues]]\nname = "orders"\n'


@pytest.fixture
def peer(bus: LocalBus) -> Iterator[Peer]:
    """Return a client with a token for `orders`, and `$cbs` on handles 0 and 1."""
    audience = f"sb://{bus.host}:{bus.port}/orders"
    links, token = amqp.authorized(audience, sas_token(bus, audience))
    with Peer(bus.port) as opened:
        opened.send(links)
        opened.expect(amqp.FLOW)
        opened.send(token)
        opened.expect(amqp.TRANSFER)
        yield opened


def test_no_disposition_follows_a_detach(bus: LocalBus, peer: Peer) -> None:
    """Four messages are received and one is settled: the detach is answered without a disposition for the others."""
    with RawClient(bus) as sender:
        sender.put_token("orders")
        link = sender.sender("orders")
        for _ in range(4):
            sender.send(link, amqp.message())
    peer.send(amqp.attach("in", 2, "orders", receiver=True) + amqp.flow(2, 4))
    for _ in range(4):
        peer.expect(amqp.TRANSFER)
    peer.send(amqp.disposition(1) + amqp.performative(amqp.DETACH, UInt(2), True))
    # The second link's attach is answered after all that there is to say of the first.
    peer.send(amqp.attach("again", 3, "orders", receiver=True))
    heard = []
    for code, _, _, _ in peer.frames():
        heard.append(code)
        if code == amqp.ATTACH:
            break
    peer.send(amqp.performative(amqp.CLOSE))
    heard += [code for code, _, _, _ in peer.frames()]
    assert heard == [amqp.DETACH, amqp.ATTACH, amqp.CLOSE]
