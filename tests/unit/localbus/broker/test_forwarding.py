"""Forwarding in the broker: sessions, cycles, and the counting of hops."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.broker.forwarding import MAX_HOPS
from pairbus.localbus.entities.message import COPIED, Draft, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic
from pairbus.localbus.settings import Counts, QueueSettings, RuleSettings, SqlExpression, TopicSettings

SESSIONS: dict[str, Any] = {"requires_session": True, "enable_partitioning": True}
"""A queue with sessions forwards only if it is partitioned."""


def draft(session: str) -> Draft:
    found = read_message(b"\x00\x53\x75\xa0\x01x")
    found.session_id = session
    return found


def test_a_queue_with_sessions_forwards_every_session() -> None:
    """All sessions are forwarded, each in its order, and no message stays behind."""
    broker = Broker("contoso")
    target = broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source", forward_to="target", **SESSIONS))
    broker.send(source, [draft(name) for name in "abab"], broker.clock())
    broker.turn(broker.clock())
    assert [m.session_id for m in target.messages.values()] == ["a", "a", "b", "b"]
    assert [m.enqueue_sequence for m in target.messages.values()] == [1, 3, 2, 4]
    assert len(source.messages) == 0


def test_a_session_of_expired_messages_does_not_block_another() -> None:
    """The first session has only expired messages: the second one's are forwarded."""
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
    source.undo_acquire(next(m for m in source.messages.values()))
    broker.turn(now)
    assert [m.session_id for m in target.messages.values()] == ["b"]


def test_a_forwarding_cycle_ends_in_transfer_dead_letters() -> None:
    """A cycle ends after the service's number of hops, and the message is not lost."""
    broker = Broker("contoso")
    queue = broker.create_queue(QueueSettings("circle"))
    broker.update_queue(QueueSettings("circle", forward_to="circle"))
    broker.send(queue, [draft("a")], broker.clock())
    broker.turn(broker.clock())
    assert len(queue.messages) == 0
    assert queue.transfer_dead_letters is not None
    (stranded,) = queue.transfer_dead_letters.messages.values()
    assert stranded.hops == MAX_HOPS


def chain_of_topics(broker: Broker, length: int) -> tuple[Topic, Queue]:
    """Return the first of a chain of topics, each with a subscription that forwards to the next, and the last queue."""
    end = broker.create_queue(QueueSettings("end"))
    following = "end"
    for number in range(length, 0, -1):
        first = broker.create_topic(TopicSettings(f"t{number}"))
        broker.create_subscription(first.settings.name, QueueSettings("s", forward_to=following), None)
        following = first.settings.name
    return first, end


def settle_down(broker: Broker) -> None:
    """Run enough turns for everything here."""
    for _ in range(20):
        broker.turn(broker.clock())


def test_a_copy_to_a_subscription_is_no_hop() -> None:
    """Four topics in a row forward four times: the copies to their subscriptions do not count."""
    broker = Broker("contoso")
    first, end = chain_of_topics(broker, 4)
    broker.send(first, [draft("a")], broker.clock())
    settle_down(broker)
    (arrived,) = end.messages.values()
    assert arrived.hops % COPIED == 4


def test_the_fifth_hop_through_topics_is_refused() -> None:
    """A chain of five topics ends in the last subscription's transfer dead letters, as a chain of queues does."""
    broker = Broker("contoso")
    first, end = chain_of_topics(broker, 5)
    broker.send(first, [draft("a")], broker.clock())
    settle_down(broker)
    assert len(end.messages) == 0
    last = broker.subscription("t5", "s")
    assert last is not None
    assert last.counts().transfer_dead_letter == 1


@pytest.mark.parametrize("action", [None, "SET sys.ScheduledEnqueueTimeUtc = '2000-01-01T00:00:00Z'", "SET x = 1"])
def test_a_cycle_through_a_topic_ends(action: str | None) -> None:
    """A copy keeps the hops of its message, also when a rule's action has changed it."""
    broker = Broker("contoso")
    topic = broker.create_topic(TopicSettings("t"))
    rule = RuleSettings("r", action=None if action is None else SqlExpression(action))
    circle = broker.create_subscription("t", QueueSettings("s", forward_to="t"), rule)
    broker.send(topic, [draft("a")], broker.clock())
    settle_down(broker)
    assert circle.counts() == Counts(transfer_dead_letter=1)


def test_a_scheduled_copy_keeps_its_hops() -> None:
    """A cycle whose messages are scheduled in between ends like any other."""
    now = 1000.0
    broker = Broker("contoso", clock=lambda: now)
    topic = broker.create_topic(TopicSettings("t"))
    later = SqlExpression("SET sys.ScheduledEnqueueTimeUtc = '1970-01-01T01:00:00Z'")
    circle = broker.create_subscription("t", QueueSettings("s", forward_to="t"), RuleSettings("r", action=later))
    broker.send(topic, [draft("a")], now)
    broker.turn(now)
    (waiting,) = circle.queue.messages.values()
    waiting.hops += MAX_HOPS
    now = 4000.0
    settle_down(broker)
    assert circle.counts() == Counts(transfer_dead_letter=1)
    assert topic.inbox.next_sequence == 2, "it was forwarded once more"


def test_a_copy_has_the_sequence_number_of_its_topic() -> None:
    """A subscription's message has its number in the topic as an annotation, also if its own number is the same."""
    broker = Broker("contoso")
    topic = broker.create_topic(TopicSettings("t"))
    queue = broker.create_subscription("t", QueueSettings("s"), None).queue
    broker.send(topic, [draft("a")], broker.clock())
    broker.turn(broker.clock())
    (copy,) = queue.messages.values()
    assert b"x-opt-enqueue-sequence-number" in copy.delivered(broker.payloads([copy])[0])


def test_a_forwarded_message_keeps_its_expiry() -> None:
    """The time that it has spent in the source counts."""
    now = 1000.0
    broker = Broker("contoso", clock=lambda: now)
    target = broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source"))
    sent = read_message(b"\x00\x53\x75\xa0\x01x")
    sent.time_to_live = 10.0
    broker.send(source, [sent], now)
    now += 4.0
    broker.update_queue(QueueSettings("source", forward_to="target"))
    broker.turn(now)
    assert [message.expires_at for message in target.messages.values()] == [1010.0]


def test_a_forwarded_dead_letter_keeps_its_source() -> None:
    """The queue that it was dead-lettered in is known in the destination."""
    broker = Broker("contoso")
    target = broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source", forward_dead_lettered_messages_to="target"))
    broker.send(source, [draft("a")], broker.clock())
    (message,) = source.acquire(broker.clock(), 1)
    source.dead_letter(message.lock.tag, broker.clock(), "reason")
    broker.turn(broker.clock())
    assert [message.source for message in target.messages.values()] == ["source"]


def test_a_message_without_a_session_is_not_forwarded_to_sessions() -> None:
    """It is in the source's transfer dead letters."""
    broker = Broker("contoso")
    target = broker.create_queue(QueueSettings("target", requires_session=True))
    source = broker.create_queue(QueueSettings("source", forward_to="target"))
    broker.send(source, [read_message(b"\x00\x53\x75\xa0\x01x"), draft("a")], broker.clock())
    broker.turn(broker.clock())
    assert [message.session_id for message in target.messages.values()] == ["a"]
    assert source.counts() == Counts(transfer_dead_letter=1)


def test_a_dead_letter_that_cannot_be_forwarded_is_tried_again_later() -> None:
    """It stays in the dead-letter queue, does not keep the turn busy, and is forwarded once the target exists."""
    now = 1000.0
    broker = Broker("contoso", clock=lambda: now)
    broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source", forward_dead_lettered_messages_to="target"))
    broker.send(source, [draft("a")], now)
    broker.delete_queue("target")
    (message,) = source.acquire(now, 1)
    source.dead_letter(message.lock.tag, now, "reason")
    requested: list[None] = []
    broker.turn(now)
    broker.on_work = lambda: requested.append(None)
    broker.turn(now)
    assert (source.counts().dead_letter, requested) == (1, [])
    assert now < broker.next_due() <= now + 1.0
    target = broker.create_queue(QueueSettings("target"))
    now = broker.next_due()
    broker.turn(now)
    assert (source.counts().dead_letter, len(target.messages)) == (0, 1)
