"""Dead-letter queues through Microsoft's Python clients, sync and async: queues but for how they fill."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from tests.support.scenarios import scenario
from tests.support.sdk_clients import Face, Place, bodies, text_properties


def grave(at: Place, queue: str, subscription: str | None = None, **options: Any) -> Face:
    return at.receiver(queue, subscription, sub_queue=ServiceBusSubQueue.DEAD_LETTER, **options)


async def bury(at: Place, queue: str, *messages: ServiceBusMessage | str) -> list[Any]:
    """Send messages and dead-letter each; as they were received."""
    await at.send(queue, *messages)
    receiver = at.receiver(queue)
    got = await at.take(receiver, len(messages))
    for message in got:
        await receiver.dead_letter_message(message, reason="r", error_description="d")
    return got


@scenario()
async def test_dead_letters_are_received_and_completed(at: Place) -> None:
    """They come in order, with their own numbers, ids and enqueue times, and are gone once completed."""
    queue = await at.queue()
    buried = await bury(at, queue, ServiceBusMessage("a", message_id="m"), "b")
    receiver = grave(at, queue)
    got = await at.take(receiver, 2)
    assert bodies(got) == ["a", "b"]
    assert got[0].message_id == "m"
    assert [m.sequence_number for m in got] == [m.sequence_number for m in buried]
    assert [m.enqueued_time_utc for m in got] == [m.enqueued_time_utc for m in buried]
    for message in got:
        await receiver.complete_message(message)
    await at.settled(queue)


@scenario()
async def test_a_dead_letter_says_where_it_comes_from(at: Place) -> None:
    """Reason and description are application properties; the source is the entity that it died in."""
    queue, topic = await at.queue(), await at.topic()
    await at.subscription(topic, "sub")
    await bury(at, queue, ServiceBusMessage("x", application_properties={"mine": 1}))
    dead = await at.take_one(grave(at, queue))
    assert text_properties(dead) == {"mine": 1, "DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    assert dead.dead_letter_source == queue
    await at.send(topic, "y", topic=True)
    receiver = at.receiver(topic, "sub")
    await receiver.dead_letter_message(await at.take_one(receiver))
    dead = await at.take_one(grave(at, topic, "sub"))
    assert dead.dead_letter_source == f"{topic}/Subscriptions/sub"
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (None, None)


@scenario()
async def test_dead_letters_are_peeked(at: Place) -> None:
    """Peek lists them and locks none."""
    queue = await at.queue()
    await bury(at, queue, "a", "b")
    receiver = grave(at, queue)
    assert bodies(await receiver.peek_messages(5)) == ["a", "b"]
    assert bodies(await receiver.peek_messages(5, sequence_number=2)) == ["b"]
    assert bodies(await at.take(receiver, 2)) == ["a", "b"]


@scenario()
async def test_dead_letters_are_abandoned_and_deferred_like_any_message(at: Place) -> None:
    """Abandoned they come again, beyond any delivery count; deferred they come by their number."""
    queue = await at.queue(max_delivery_count=1)
    await bury(at, queue, "a")
    receiver = grave(at, queue)
    counts = set()
    for _ in range(3):
        message = await at.take_one(receiver)
        counts.add(message.delivery_count)
        await receiver.abandon_message(message)
    assert len(counts) == 1, "the service does not count the deliveries of a dead letter"
    message = await at.take_one(receiver)
    await receiver.defer_message(message)
    (again,) = await receiver.receive_deferred_messages(message.sequence_number)
    await receiver.complete_message(again)
    await at.settled(queue)


@scenario()
async def test_dead_letters_deleted_as_they_are_received(at: Place) -> None:
    """Receive-and-delete empties a dead-letter queue."""
    queue = await at.queue()
    await bury(at, queue, "a", "b")
    receiver = grave(at, queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(await at.take(receiver, 2)) == ["a", "b"]
    await at.settled(queue)


@scenario()
async def test_a_dead_letter_s_lock_ends_and_is_renewed(at: Place) -> None:
    """Its lock lasts as long as its queue's locks do."""
    queue = await at.queue()
    await bury(at, queue, "a")
    await at.update_queue(queue, lock_duration=timedelta(seconds=3))
    receiver = grave(at, queue)
    first = await at.take_one(receiver)
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))
    second = await at.take_one(receiver)
    assert second.delivery_count == first.delivery_count, "nothing is counted here"
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(first)
    await receiver.renew_message_lock(second)
    await receiver.complete_message(second)
    await at.settled(queue)


@scenario()
async def test_a_dead_letter_does_not_die_again(at: Place) -> None:
    """It has no time to live any more, and dead-lettering it is refused: it stays as it is, locked."""
    queue = await at.queue(default_message_time_to_live=timedelta(seconds=1), dead_lettering_on_message_expiration=True)
    await at.send(queue, "expires")
    await at.settled(queue, dead_letter=1)
    receiver = grave(at, queue)
    message = await at.take_one(receiver)
    with pytest.raises(ServiceBusError):
        await receiver.dead_letter_message(message, reason="again")
    await at.settled(queue, dead_letter=1)
    (peeked,) = await receiver.peek_messages(1, sequence_number=1)
    assert peeked.dead_letter_reason == "TTLExpiredException"


@scenario()
async def test_nothing_is_sent_to_a_dead_letter_queue(at: Place) -> None:
    """Only the broker fills it."""
    queue = await at.queue()
    with pytest.raises(ServiceBusError):
        await at.send(f"{queue}/$DeadLetterQueue", "x")
    await at.settled(queue)
