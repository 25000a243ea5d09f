"""Poison messages, at which a service ends the link instead of refusing them: they are found and dead-lettered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from proton import Delivery, Endpoint, Message

from pairbus import Namespace
from tests.support.backlog import Backlog, encoded
from tests.support.counting import park_many
from tests.support.pairing import Pair
from tests.support.scripted_peer import KEY, Peer

CONDITION = "amqp:link:message-size-exceeded"


class Touchy:
    """A primary that takes messages, and ends the link at each poison message."""

    def __init__(self, pair: Pair, on_message: Callable[[Peer, Any, bytes], None] | None = None) -> None:
        self.taken: Counter[str] = Counter()
        self.ended = 0
        self._peer = Peer(on_message or self._on_message, credit=1000)
        self.primary = Namespace(
            self._peer.namespace.host, credential=AzureNamedKeyCredential("key", KEY), name=pair.name, use_tls=False
        )

    def __enter__(self) -> Touchy:
        self._peer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._peer.__exit__(*error)

    def _on_message(self, peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        if link.state & Endpoint.LOCAL_CLOSED:
            return  # what was under way when it ended
        if b"poison" in payload:
            self.ended += 1
            peer.close(link, CONDITION, "too large")
            return
        self.taken.update(_ids(payload))
        peer.settle(delivery, Delivery.ACCEPTED)


def _ids(payload: bytes) -> list[str]:
    message = Message()
    message.decode(payload)
    if message.id is not None:
        return [str(message.id)]
    # A batch: each of its data sections is a message, and the tests' ids are all of the same length.
    return [payload[at + 2 : at + 6].decode() for at in _all(payload, b"\xa1\x04m")]


def _all(payload: bytes, sought: bytes) -> list[int]:
    found, at = [], payload.find(sought)
    while at >= 0:
        found.append(at)
        at = payload.find(sought, at + 1)
    return found


@pytest.mark.parametrize("session", [None, "one"])
@pytest.mark.parametrize("poison", [{0}, {29}, {7, 8, 20}, set(range(30))])
def test_the_message_that_ends_the_link_is_found(
    pair: Pair, backlog: Backlog, poison: set[int], session: str | None
) -> None:
    """Messages are sent in batches, then singly until it is found. Those in flight beside it arrive too."""
    names = [f"m{number:03}" for number in range(30)]
    parked = [
        encoded("poison" if number in poison else "x", id=name, session=session) for number, name in enumerate(names)
    ]
    park_many(backlog, "orders", parked)
    with Touchy(pair) as service:
        summary = backlog.drain(primary=service.primary, budget=60.0)
    bad = [names[number] for number in sorted(poison)]
    assert (summary.delivered, summary.dead_lettered, summary.empty) == (30 - len(bad), len(bad), True), summary
    assert sorted(service.taken) == sorted(set(names) - set(bad))
    assert backlog.depth() == 0
    found = backlog.dead_letters()
    assert sorted(str(each.message_id) for each in found) == bad
    assert {each.dead_letter_reason for each in found} == {CONDITION}
    assert all("orders" in (each.dead_letter_error_description or "") for each in found)
    assert service.ended <= 2 * len(bad)


def test_a_message_that_was_refused_before_the_end_is_to_blame(pair: Pair, backlog: Backlog) -> None:
    """The service refuses a message and then ends the link: messages sent in between are not to blame."""
    names = [f"m{number:03}" for number in range(30)]
    bad = ["m003", "m007"]
    park_many(backlog, "orders", [encoded("poison" if name in bad else "x", id=name) for name in names])

    def refuse_and_end(peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        if link.state & Endpoint.LOCAL_CLOSED:
            return
        if b"poison" in payload:
            peer.settle(delivery, Delivery.REJECTED, (CONDITION, "too large"))
            peer.close(link, CONDITION, "too large")
        else:
            peer.settle(delivery, Delivery.ACCEPTED)

    with Touchy(pair, refuse_and_end) as service:
        backlog.drain(primary=service.primary)
    assert sorted(str(each.message_id) for each in backlog.dead_letters()) == bad
    assert backlog.depth() == 0


def test_a_link_that_ends_with_an_unknown_condition(pair: Pair, backlog: Backlog) -> None:
    """The message is found, and dead-lettered after ten deliveries, as one that is refused."""
    park_many(backlog, "orders", [encoded("poison" if not n else "x", id=f"m{n:03}", session="s") for n in range(5)])

    def end(peer: Peer, delivery: Any, payload: bytes) -> None:
        if b"poison" in payload:
            peer.close(delivery.link, "com.example:odd", "so")
        else:
            peer.settle(delivery, Delivery.ACCEPTED)

    with Touchy(pair, end) as service:
        for _ in range(14):
            backlog.drain(primary=service.primary)
            if found := backlog.dead_letters():
                break
    assert [str(each.message_id) for each in found] == ["m000"]


def test_one_ended_link_is_no_verdict(pair: Pair, backlog: Backlog) -> None:
    """A message that was alone when the link ended may have been unlucky: it is sent again, and arrives."""
    ends = 0

    def once(peer: Peer, delivery: Any, payload: bytes) -> None:
        nonlocal ends
        ends += 1
        if ends == 1:
            peer.close(delivery.link, CONDITION, "so")
        elif not delivery.link.state & Endpoint.LOCAL_CLOSED:
            peer.settle(delivery, Delivery.ACCEPTED)

    park_many(backlog, "orders", [encoded("x", id="m000")])
    with Touchy(pair, once) as service:
        summary = backlog.drain(primary=service.primary)
    assert (summary.delivered, summary.dead_lettered, summary.in_doubt) == (1, 0, 1), summary
