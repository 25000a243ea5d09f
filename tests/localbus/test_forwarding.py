"""Forwarding corners that only the broker itself can show: sessions, and a queue that forwards to itself."""

from __future__ import annotations

from typing import Any

from pairbus.localbus.broker import MAX_HOPS, Broker
from pairbus.localbus.message import Draft, read_message
from pairbus.localbus.settings import QueueSettings

SESSIONS: dict[str, Any] = {"requires_session": True, "enable_partitioning": True}
"""A queue with sessions forwards only if it is partitioned."""


def draft(session: str) -> Draft:
    found = read_message(b"\x00\x53\x75\xa0\x01x")
    found.session_id = session
    return found


def test_a_queue_with_sessions_forwards_every_session() -> None:
    """What lies in different sessions is forwarded, each session in its order, and none is left behind."""
    broker = Broker("contoso")
    target = broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source", forward_to="target", **SESSIONS))
    broker.send(source, [draft(name) for name in "abab"], broker.clock())
    broker.turn(broker.clock())
    assert [m.session_id for m in target.messages.values()] == ["a", "a", "b", "b"]
    assert [m.enqueue_sequence for m in target.messages.values()] == [1, 3, 2, 4]
    assert len(source.messages) == 0


def test_a_session_of_expired_messages_holds_up_no_other() -> None:
    """The first session has nothing but messages that have outlived their time: the second one's are forwarded."""
    now = 1000.0
    broker = Broker("contoso", clock=lambda: now)
    target = broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source", **SESSIONS))
    old = draft("a")
    old.time_to_live = 1.0
    broker.send(source, [old, draft("b")], now)
    broker.update_queue(QueueSettings("source", forward_to="target", **SESSIONS))
    now += 5.0
    assert [m.session_id for m in source.acquire_any(now, 10)] == ["b"]
    source.put_back_unsent(next(m for m in source.messages.values()))
    broker.turn(now)
    assert [m.session_id for m in target.messages.values()] == ["b"]


def test_a_queue_that_forwards_to_itself_ends_in_transfer_dead_letters() -> None:
    """A circle ends after as many hops as the service allows, and the message is not lost."""
    broker = Broker("contoso")
    queue = broker.create_queue(QueueSettings("circle"))
    broker.update_queue(QueueSettings("circle", forward_to="circle"))
    broker.send(queue, [draft("a")], broker.clock())
    broker.turn(broker.clock())
    assert len(queue.messages) == 0
    assert queue.transfer_dead_letters is not None
    (stranded,) = queue.transfer_dead_letters.messages.values()
    assert stranded.hops == MAX_HOPS
