"""Links: refusals, closing with a condition, and batches on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.syphon.amqp.link import ACCEPTED, ConnectionLost, LinkError
from pairbus.syphon.amqp.message_format import batch_head
from tests.support.amqp_connections import LinkEvents, connected, until
from tests.support.scripted_peer import Peer


async def test_a_link_that_the_peer_refuses() -> None:
    """Opening it raises the condition of the peer."""
    with Peer(refuse=("amqp:not-found", "no such thing")) as peer:
        async with connected(peer.namespace) as connection:
            with pytest.raises(LinkError, match="no such thing") as raised:
                await connection.sender("q", LinkEvents(), timeout=30.0)
    assert raised.value.condition == "amqp:not-found"


@pytest.mark.parametrize("closed", ["link", "session", "connection"])
async def test_a_peer_that_closes_with_a_condition(closed: str) -> None:
    """The sender gets one callback with the condition. The end of a session is the end of its connection."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        peer.close({"link": link, "session": link.session, "connection": link.connection}[closed], "amqp:oh:no", "so")

    events = LinkEvents()
    with Peer(close) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await until(lambda: sender.credit)
            sender.send(b"\x00\x53\x75\xa0\x00", "it")
            await until(lambda: events.closed)
            assert sender.abandon_unanswered() == ["it"]
            assert sender.credit == 0
            assert (connection.lost is None) == (closed == "link")
            if closed != "link":
                with pytest.raises(ConnectionLost):
                    await connection.sender("q", LinkEvents(), timeout=30.0)
    (error,) = events.closed
    assert error.condition == "amqp:oh:no"
    assert "so" in (error.description or "")
    assert events.outcomes == []


async def test_each_frame_of_a_batch_has_its_message_format() -> None:
    """Through a window of two small frames, between other messages: no frame of another message has it, and every byte
    arrives unchanged."""
    events = LinkEvents()
    singles = [bytes((65 + number,)) * 3000 for number in range(4)]
    messages = [bytes((97 + number % 26,)) * 2000 for number in range(40)]
    with Peer(max_frame=4096, capacity=8192) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await until(lambda: sender.credit)
            for number in range(2):
                sender.send(singles[2 * number], "one")
                sender.send_batch(batch_head("s"), messages, "batch")
                sender.send(singles[2 * number + 1], "one")
            await until(lambda: len(events.outcomes) == 6)
        assert {state for _, state, _ in events.outcomes} == {ACCEPTED}
        batch = batch_head("s") + b"".join(b"\x00\x53\x75\xb0" + len(m).to_bytes(4, "big") + m for m in messages)
        assert peer.payloads == [singles[0], batch, singles[1], singles[2], batch, singles[3]]
        formats: dict[bytes, set[int]] = {}
        for tag, number in peer.transfers:
            if tag:
                formats.setdefault(tag, set()).add(number)
        assert sorted(map(sorted, formats.values())) == [[0]] * 4 + [[0x80013700]] * 2
        assert len(peer.transfers) > 40
