"""Dead-letter queues with Microsoft's Python clients, sync and async."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from tests.support.scenarios import scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients, bodies, text_properties


def dead_letter_receiver(at: SdkClients, queue: str, subscription: str | None = None, **options: Any) -> AsyncFacade:
    return at.receiver(queue, subscription, sub_queue=ServiceBusSubQueue.DEAD_LETTER, **options)


async def dead_letter(at: SdkClients, queue: str, *messages: ServiceBusMessage | str) -> list[Any]:
    """Send messages and dead-letter each; return them as they were received."""
    await at.send(queue, *messages)
    receiver = at.receiver(queue)
    got = await at.take(receiver, len(messages))
    for message in got:
        await receiver.dead_letter_message(message, reason="r", error_description="d")
    return got


@scenario()
async def test_dead_letters_are_received_and_completed(at: SdkClients) -> None:
    """They arrive in order with their own numbers, ids and enqueue times, and are removed when completed."""
    queue = await at.queue()
    buried = await dead_letter(at, queue, ServiceBusMessage("a", message_id="m"), "b")
    receiver = dead_letter_receiver(at, queue)
    got = await at.take(receiver, 2)
    assert bodies(got) == ["a", "b"]
    assert got[0].message_id == "m"
    assert [m.sequence_number for m in got] == [m.sequence_number for m in buried]
    assert [m.enqueued_time_utc for m in got] == [m.enqueued_time_utc for m in buried]
    for message in got:
        await receiver.complete_message(message)
    await at.settled(queue)


@scenario()
async def test_a_dead_letter_has_reason_and_source(at: SdkClients) -> None:
    """Reason and description are application properties; the source is the entity in which it was dead-lettered."""
    queue, topic = await at.queue(), await at.topic()
    await at.subscription(topic, "sub")
    await dead_letter(at, queue, ServiceBusMessage("x", application_properties={"mine": 1}))
    dead = await at.take_one(dead_letter_receiver(at, queue))
    assert text_properties(dead) == {"mine": 1, "DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    assert dead.dead_letter_source == queue
    await at.send(topic, "y", topic=True)
    receiver = at.receiver(topic, "sub")
    await receiver.dead_letter_message(await at.take_one(receiver))
    dead = await at.take_one(dead_letter_receiver(at, topic, "sub"))
    assert dead.dead_letter_source == f"{topic}/Subscriptions/sub"
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == (None, None)


@scenario()
async def test_dead_letters_are_peeked(at: SdkClients) -> None:
    """Peeking lists them and locks none."""
    queue = await at.queue()
    await dead_letter(at, queue, "a", "b")
    receiver = dead_letter_receiver(at, queue)
    assert bodies(await receiver.peek_messages(5)) == ["a", "b"]
    assert bodies(await receiver.peek_messages(5, sequence_number=2)) == ["b"]
    assert bodies(await at.take(receiver, 2)) == ["a", "b"]


@scenario()
async def test_dead_letters_are_abandoned_and_deferred(at: SdkClients) -> None:
    """An abandoned one returns at any delivery count; a deferred one is received by number."""
    queue = await at.queue(max_delivery_count=1)
    await dead_letter(at, queue, "a")
    receiver = dead_letter_receiver(at, queue)
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
async def test_dead_letters_in_receive_and_delete(at: SdkClients) -> None:
    """Receive-and-delete empties a dead-letter queue."""
    queue = await at.queue()
    await dead_letter(at, queue, "a", "b")
    receiver = dead_letter_receiver(at, queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(await at.take(receiver, 2)) == ["a", "b"]
    await at.settled(queue)


@scenario()
async def test_a_dead_letter_s_lock_ends_and_is_renewed(at: SdkClients) -> None:
    """Its lock has the duration of its queue's locks."""
    queue = await at.queue()
    await dead_letter(at, queue, "a")
    await at.update_queue(queue, lock_duration=timedelta(seconds=3))
    receiver = dead_letter_receiver(at, queue)
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
async def test_a_dead_letter_does_not_expire_and_cannot_be_dead_lettered(at: SdkClients) -> None:
    """It has no time to live, and dead-lettering it is refused: it stays locked."""
    queue = await at.queue(default_message_time_to_live=timedelta(seconds=1), dead_lettering_on_message_expiration=True)
    await at.send(queue, "expires")
    await at.settled(queue, dead_letter=1)
    receiver = dead_letter_receiver(at, queue)
    message = await at.take_one(receiver)
    with pytest.raises(ServiceBusError):
        await receiver.dead_letter_message(message, reason="again")
    await at.settled(queue, dead_letter=1)
    (peeked,) = await receiver.peek_messages(1, sequence_number=1)
    assert peeked.dead_letter_reason == "TTLExpiredException"


@scenario()
async def test_a_client_cannot_send_to_a_dead_letter_queue(at: SdkClients) -> None:
    """Only the broker adds messages to it."""
    queue = await at.queue()
    with pytest.raises(ServiceBusError):
        await at.send(f"{queue}/$DeadLetterQueue", "x")
    await at.settled(queue)
