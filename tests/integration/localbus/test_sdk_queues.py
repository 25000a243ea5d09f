"""Queues with Microsoft's Python clients, sync and async, and pings."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from tests.support.raw_client import RawClient, uuids
from tests.support.scenarios import scenario
from tests.support.sdk_clients import SdkClients, bodies, soon, text_properties, unique

PING = "application/vnd.ms-servicebus-ping"
SECOND = timedelta(seconds=1)


# --- sending and receiving -----------------------------------------------------------------------------------


@scenario()
async def test_a_message_is_sent_received_and_completed(at: SdkClients) -> None:
    """A message has its number, times and count, and is removed when completed."""
    queue = await at.queue()
    before = datetime.now(timezone.utc) - SECOND
    await at.send(queue, ServiceBusMessage(b"one", message_id="id-1"))
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    assert (str(message), message.message_id) == ("one", "id-1")
    assert (message.sequence_number, message.delivery_count) == (1, 0)
    assert message.state == ServiceBusMessageState.ACTIVE
    assert before < message.enqueued_time_utc < message.locked_until_utc
    await receiver.complete_message(message)
    await at.settled(queue)


@scenario()
async def test_every_field_of_a_message_arrives(at: SdkClients) -> None:
    """Broker properties and application properties arrive as they were set."""
    queue = await at.queue()
    sent = ServiceBusMessage(
        b"\x00body\xff",
        message_id="m",
        correlation_id="c",
        subject="subject",
        content_type="text/plain",
        to="to",
        reply_to="reply",
        reply_to_session_id="rs",
        session_id="s",
        partition_key="s",
        time_to_live=timedelta(minutes=5),
        application_properties={"text": "ä", "number": 7, "yes": True, "half": 0.5},
    )
    await at.send(queue, sent)
    receiver = at.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    got = await at.take_one(receiver)
    assert b"".join(got.body) == b"\x00body\xff"
    for field in (
        "message_id", "correlation_id", "subject", "content_type", "to", "reply_to", "reply_to_session_id",
        "session_id", "partition_key", "time_to_live",
    ):  # fmt: skip
        assert getattr(got, field) == getattr(sent, field), field
    assert text_properties(got) == {"text": "ä", "number": 7, "yes": True, "half": 0.5}


@scenario()
async def test_every_kind_of_body_arrives(at: SdkClients) -> None:
    """Bodies of several data sections, of sequences and of a value keep their kind."""
    queue = await at.queue()
    sender, receiver = at.sender(queue), at.receiver(queue)
    await sender.send_messages(AmqpAnnotatedMessage(data_body=[b"a", b"b"]))
    await sender.send_messages(AmqpAnnotatedMessage(sequence_body=[[1, 2], [3]]))
    await sender.send_messages(AmqpAnnotatedMessage(value_body={"k": [1, None]}))
    data, sequence, value = await at.take(receiver, 3)
    assert (data.body_type, list(data.body)) == (AmqpMessageBodyType.DATA, [b"a", b"b"])
    assert (sequence.body_type, list(sequence.body)) == (AmqpMessageBodyType.SEQUENCE, [[1, 2], [3]])
    assert (value.body_type, value.body) == (AmqpMessageBodyType.VALUE, {b"k": [1, None]})


@scenario()
async def test_a_batch_becomes_messages_in_order(at: SdkClients) -> None:
    """Each message of a batch is a message of its own, in the order of the batch."""
    queue = await at.queue()
    sender = at.sender(queue)
    batch = await sender.create_message_batch()
    for n in range(10):
        batch.add_message(ServiceBusMessage(f"b{n}", application_properties={"n": n}))
    await sender.send_messages(batch)
    await sender.send_messages([ServiceBusMessage(f"l{n}") for n in range(3)])
    receiver = at.receiver(queue)
    got = await at.take(receiver, 13)
    assert bodies(got) == [f"b{n}" for n in range(10)] + [f"l{n}" for n in range(3)]
    assert [m.sequence_number for m in got] == list(range(1, 14))
    assert [text_properties(m)["n"] for m in got[:10]] == list(range(10))
    for message in got:
        await receiver.complete_message(message)
    await at.settled(queue)


@scenario()
async def test_iterating_a_receiver(at: SdkClients) -> None:
    """The loop over a receiver ends when no message has arrived for `max_wait_time`."""
    queue = await at.queue()
    await at.send(queue, "a", "b", "c")
    receiver = at.receiver(queue, max_wait_time=10, prefetch_count=2)
    seen = []
    async for message in receiver:
        seen.append(str(message))
        await receiver.complete_message(message)
    assert seen == ["a", "b", "c"]
    await at.settled(queue)


@scenario()
async def test_receive_and_delete(at: SdkClients) -> None:
    """In that mode a message is removed when it is delivered."""
    queue = await at.queue()
    await at.send(queue, "a", "b")
    receiver = at.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(await at.take(receiver, 2)) == ["a", "b"]
    await at.settled(queue)


@scenario()
async def test_a_lock_hides_a_message_from_others(at: SdkClients) -> None:
    """Another receiver gets the next message, not the locked one."""
    queue = await at.queue()
    await at.send(queue, "first", "second")
    one, two = at.receiver(queue), at.receiver(queue)
    assert str(await at.take_one(one)) == "first"
    assert str(await at.take_one(two)) == "second"
    await at.settled(queue, active=2)


@scenario()
async def test_a_missing_queue(at: SdkClients) -> None:
    """The service refuses the token for an unknown queue (404); this SDK raises an authentication error."""
    with pytest.raises(ServiceBusAuthenticationError):
        await at.send("no-such-queue", "x")
    with pytest.raises(ServiceBusAuthenticationError):
        await at.receiver("no-such-queue").receive_messages(1, max_wait_time=20)


@scenario()
async def test_deleting_a_queue_closes_its_links(at: SdkClients) -> None:
    """Open links are closed with not-found when their queue is deleted."""
    queue = await at.queue()
    receiver = at.receiver(queue)
    await at.send(queue, "x")
    await at.take_one(receiver)
    await asyncio.to_thread(at.admin.delete_queue, queue)
    at.queues.remove(queue)
    with pytest.raises(ServiceBusError):
        await at.send(queue, "y")
    with pytest.raises(MessagingEntityNotFoundError):
        await receiver.receive_messages(1, max_wait_time=60)


# --- settling ------------------------------------------------------------------------------------------------


@scenario()
async def test_an_abandoned_message_is_available_at_once(at: SdkClients) -> None:
    """It is the first message again, its delivery count one higher, its number the same."""
    queue = await at.queue()
    await at.send(queue, "a", "b")
    receiver = at.receiver(queue)
    first = await at.take_one(receiver)
    await receiver.abandon_message(first)
    again = await at.take_one(receiver)
    assert (str(again), again.delivery_count, again.sequence_number) == ("a", 1, first.sequence_number)
    assert again.lock_token != first.lock_token


@scenario()
async def test_abandon_with_properties(at: SdkClients) -> None:
    """Properties given with abandon are set on the message; the others stay."""
    queue = await at.queue()
    await at.send(queue, ServiceBusMessage("a", application_properties={"kept": "yes", "changed": "old"}))
    receiver = at.receiver(queue)
    first = await at.take_one(receiver)

    def abandon() -> int:
        with RawClient(at.bus) as raw:
            raw.put_token(queue)
            body = {
                "lock-tokens": uuids(first.lock_token),
                "disposition-status": "abandoned",
                "properties-to-modify": {"changed": "new", "added": 5},
            }
            return raw.request(queue, "com.microsoft:update-disposition", body)[0]

    assert await asyncio.to_thread(abandon) == 200
    again = await at.take_one(receiver)
    assert text_properties(again) == {"kept": "yes", "changed": "new", "added": 5}
    assert (again.delivery_count, str(again)) == (1, "a")


@scenario()
async def test_a_deferred_message_is_received_by_its_number(at: SdkClients) -> None:
    """Receivers skip it, peeking lists it; it is received by its sequence number and settled as usual."""
    queue = await at.queue()
    await at.send(queue, "later", "now")
    receiver = at.receiver(queue)
    later = await at.take_one(receiver)
    await receiver.defer_message(later)
    now = await at.take_one(receiver)
    assert str(now) == "now"
    await receiver.complete_message(now)
    (peeked,) = await receiver.peek_messages(5, sequence_number=1)
    assert (str(peeked), peeked.state) == ("later", ServiceBusMessageState.DEFERRED)
    (again,) = await receiver.receive_deferred_messages([later.sequence_number])
    assert (str(again), again.sequence_number) == ("later", later.sequence_number)
    assert again.delivery_count == 1
    await receiver.complete_message(again)
    await at.settled(queue)


@scenario()
async def test_a_deferred_message_can_be_deferred_abandoned_and_dead_lettered(at: SdkClients) -> None:
    """Abandoning a deferred message leaves it deferred, with a higher delivery count; it can be dead-lettered."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    number = message.sequence_number
    await receiver.defer_message(message)
    (first,) = await receiver.receive_deferred_messages(number)
    await receiver.abandon_message(first)
    (second,) = await receiver.receive_deferred_messages(number)
    assert second.delivery_count == first.delivery_count + 1
    await receiver.defer_message(second)
    (third,) = await receiver.receive_deferred_messages(number)
    assert third.delivery_count == 3
    await receiver.dead_letter_message(third, reason="done with it")
    await at.settled(queue, dead_letter=1)
    dead = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert dead.delivery_count == 3


@scenario()
async def test_a_deferral_counts_as_a_delivery(at: SdkClients) -> None:
    """At MaxDeliveryCount a message that is deferred, or abandoned after a deferral, is dead-lettered."""
    queue = await at.queue(max_delivery_count=1)
    other = await at.queue(max_delivery_count=2)
    for each in (queue, other):
        await at.send(each, "x")
        receiver = at.receiver(each)
        message = await at.take_one(receiver)
        await receiver.defer_message(message)
    await at.settled(queue, dead_letter=1)
    await at.settled(other, active=1)
    (again,) = await receiver.receive_deferred_messages(message.sequence_number)
    await receiver.abandon_message(again)
    await at.settled(other, dead_letter=1)
    for each, count in ((queue, 1), (other, 2)):
        dead = await at.take_one(at.receiver(each, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
        assert (dead.dead_letter_reason, dead.delivery_count) == ("MaxDeliveryCountExceeded", count)


@scenario()
async def test_deferred_receive_and_delete(at: SdkClients) -> None:
    """In receive-and-delete mode a deferred message is removed when it is delivered."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    await receiver.defer_message(message)
    deleting = at.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    (got,) = await deleting.receive_deferred_messages(message.sequence_number)
    assert str(got) == "x"
    await at.settled(queue)


@scenario()
async def test_an_unknown_deferred_number(at: SdkClients) -> None:
    """A number that is not deferred raises not-found, and no other message of the request is locked."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    await receiver.defer_message(message)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages([message.sequence_number, 4711])
    (got,) = await receiver.receive_deferred_messages([message.sequence_number])
    assert str(got) == "x"


@scenario()
async def test_dead_letter_with_reason_and_description(at: SdkClients) -> None:
    """The message is in the dead-letter queue with its reason and description."""
    queue = await at.queue()
    await at.send(queue, ServiceBusMessage("x", application_properties={"kept": 1}))
    receiver = at.receiver(queue)
    await receiver.dead_letter_message(await at.take_one(receiver), reason="broken", error_description="cannot be read")
    await at.settled(queue, dead_letter=1)
    grave = at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    dead = await at.take_one(grave)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("broken", "cannot be read")
    assert dead.delivery_count == 0
    assert text_properties(dead)["kept"] == 1


@scenario()
async def test_the_last_delivery_dead_letters_the_message(at: SdkClients) -> None:
    """At the maximum delivery count the message is dead-lettered with the service's reason."""
    queue = await at.queue(max_delivery_count=2)
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    for count in range(2):
        message = await at.take_one(receiver)
        assert message.delivery_count == count
        await receiver.abandon_message(message)
    await at.settled(queue, dead_letter=1)
    dead = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description == "Message could not be consumed after 2 delivery attempts."
    assert dead.delivery_count == 2


# --- locks ---------------------------------------------------------------------------------------------------


@scenario()
async def test_an_expired_lock_makes_the_message_available(at: SdkClients) -> None:
    """The message is delivered again, counted; the old lock cannot settle it."""
    queue = await at.queue(lock_duration=timedelta(seconds=3))
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    first = await at.take_one(receiver)
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))
    again = await at.take_one(receiver)
    assert datetime.now(timezone.utc) >= first.locked_until_utc
    assert (again.delivery_count, again.sequence_number) == (1, first.sequence_number)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(first)
    await receiver.renew_message_lock(again)
    await receiver.complete_message(again)
    await at.settled(queue)


@scenario("sync")
async def test_the_broker_refuses_a_lost_lock(at: SdkClients) -> None:
    """The SDK checks a lock's end by its own clock; a request without the SDK is refused in the same way."""
    queue = await at.queue(lock_duration=timedelta(seconds=3))
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    first = await at.take_one(receiver)
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))
    second = await at.take_one(receiver)

    def ask(token: UUID, operation: str, **body: object) -> tuple[int, str | None]:
        with RawClient(at.bus) as raw:
            raw.put_token(queue)
            status, _, condition = raw.request(queue, operation, {"lock-tokens": uuids(token), **body})
            return status, condition

    lost = (410, "com.microsoft:message-lock-lost")
    assert await asyncio.to_thread(ask, first.lock_token, "com.microsoft:renew-lock") == lost
    status = {"disposition-status": "completed"}
    update = "com.microsoft:update-disposition"
    assert await asyncio.to_thread(ask, first.lock_token, update, **status) == lost
    assert (await asyncio.to_thread(ask, second.lock_token, "com.microsoft:renew-lock"))[0] == 200
    assert (await asyncio.to_thread(ask, second.lock_token, update, **status))[0] == 200
    await at.settled(queue)


@scenario()
async def test_a_renewed_lock_lasts(at: SdkClients) -> None:
    """Renewing moves a lock's end; no other receiver gets the message meanwhile."""
    queue = await at.queue(lock_duration=timedelta(seconds=10))
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    first_end = message.locked_until_utc

    async def past_first_end() -> bool:
        until = await receiver.renew_message_lock(message)
        assert until == message.locked_until_utc > first_end
        return bool(datetime.now(timezone.utc) > first_end + timedelta(seconds=0.5))

    await at.wait_until(past_first_end, "the lock's first end")
    (peeked,) = await receiver.peek_messages(1, sequence_number=1)
    assert peeked.delivery_count == 0
    await receiver.complete_message(message)
    await at.settled(queue)


# --- looking -------------------------------------------------------------------------------------------------


@scenario()
async def test_peek_shows_everything_and_changes_nothing(at: SdkClients) -> None:
    """Peeking lists active, locked, deferred and scheduled messages by number, and locks none."""
    queue = await at.queue()
    await at.send(queue, "deferred", "locked", "active")
    sender, receiver = at.sender(queue), at.receiver(queue)
    await sender.schedule_messages(ServiceBusMessage("scheduled"), soon(600))
    await receiver.defer_message(await at.take_one(receiver))
    await at.take_one(receiver)
    seen = await receiver.peek_messages(10, sequence_number=1)
    assert [(str(m), m.sequence_number, m.state) for m in seen] == [
        ("deferred", 1, ServiceBusMessageState.DEFERRED),
        ("locked", 2, ServiceBusMessageState.ACTIVE),
        ("active", 3, ServiceBusMessageState.ACTIVE),
        ("scheduled", 4, ServiceBusMessageState.SCHEDULED),
    ]
    assert bodies(await receiver.peek_messages(1, sequence_number=3)) == ["active"]
    assert await receiver.peek_messages(1, sequence_number=99) == []
    assert str(await at.take_one(receiver)) == "active"


# --- scheduling ----------------------------------------------------------------------------------------------


@scenario()
async def test_a_scheduled_message_is_available_at_its_time(at: SdkClients) -> None:
    """At that time it is added to the end of the queue, with a new number."""
    queue = await at.queue()
    sender, receiver = at.sender(queue), at.receiver(queue)
    await sender.__aenter__()
    await receiver.__aenter__()
    when = soon(12)
    (number,) = await sender.schedule_messages(ServiceBusMessage("later", message_id="m"), when)
    await at.settled(queue, scheduled=1)
    await at.send(queue, "now")
    assert str(await at.take_one(receiver)) == "now"
    message = await at.take_one(receiver)
    assert (str(message), message.message_id) == ("later", "m")
    assert datetime.now(timezone.utc) >= when
    assert abs(message.scheduled_enqueue_time_utc - when) < timedelta(milliseconds=2)
    assert message.enqueued_time_utc >= when - timedelta(milliseconds=2)
    assert message.sequence_number > number
    assert message.state == ServiceBusMessageState.ACTIVE


@scenario()
async def test_a_message_with_a_scheduled_time_is_scheduled(at: SdkClients) -> None:
    """The property on a sent message schedules it, too; a time in the past means now."""
    queue = await at.queue()
    late = ServiceBusMessage("late", scheduled_enqueue_time_utc=soon(600))
    past = ServiceBusMessage("past", scheduled_enqueue_time_utc=soon(-600))
    await at.send(queue, late, past)
    assert str(await at.take_one(at.receiver(queue))) == "past"
    await at.settled(queue, scheduled=1, active=1)


@scenario()
async def test_cancelling_scheduled_messages(at: SdkClients) -> None:
    """A cancelled message is not delivered; a number that is not scheduled raises not-found."""
    queue = await at.queue()
    sender = at.sender(queue)
    numbers = await sender.schedule_messages([ServiceBusMessage(n) for n in "abc"], soon(600))
    assert len(set(numbers)) == 3
    await sender.cancel_scheduled_messages(numbers[:2])
    await at.settled(queue, scheduled=1)
    (left,) = await at.receiver(queue).peek_messages(5)
    assert (str(left), left.sequence_number) == ("c", numbers[2])
    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages(numbers[0])
    await sender.cancel_scheduled_messages(numbers[2])
    await at.settled(queue)


# --- time to live --------------------------------------------------------------------------------------------


@scenario()
async def test_an_expired_message_is_dropped(at: SdkClients) -> None:
    """The shorter time to live of message and entity applies; by default an expired message is dropped."""
    own = await at.queue()
    entity = await at.queue(default_message_time_to_live=SECOND)
    await at.send(own, ServiceBusMessage("short", time_to_live=SECOND), "for ever")
    await at.send(entity, "default", ServiceBusMessage("longer", time_to_live=timedelta(hours=1)))
    await at.settled(own, active=1)
    await at.settled(entity)
    assert str(await at.take_one(at.receiver(own))) == "for ever"


@scenario()
async def test_an_expired_message_is_dead_lettered_if_configured(at: SdkClients) -> None:
    """It is dead-lettered with the service's reason, and does not expire there."""
    queue = await at.queue(default_message_time_to_live=timedelta(hours=1), dead_lettering_on_message_expiration=True)
    await at.send(queue, ServiceBusMessage("x", time_to_live=SECOND))
    await at.settled(queue, dead_letter=1)
    dead = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert dead.dead_letter_reason == "TTLExpiredException"
    assert dead.dead_letter_error_description == "The message expired and was dead lettered."


@scenario()
async def test_a_locked_message_does_not_expire(at: SdkClients) -> None:
    """It can be completed after its time to live; if it is abandoned, it expires."""
    queue = await at.queue(dead_lettering_on_message_expiration=True)
    receiver = at.receiver(queue)
    await receiver.__aenter__()  # both are open before the messages' short lives begin
    await at.send(queue, ServiceBusMessage(b"", content_type=PING))
    short = timedelta(seconds=10)
    await at.send(queue, *(ServiceBusMessage(text, time_to_live=short) for text in "ab"))
    a, b = await at.take(receiver, 2)

    async def expired() -> bool:
        return bool(datetime.now(timezone.utc) > b.expires_at_utc + timedelta(seconds=0.2))

    await at.wait_until(expired, "the end of both lives")
    await at.settled(queue, active=2)
    await receiver.complete_message(a)
    await receiver.abandon_message(b)
    await at.settled(queue, dead_letter=1)


# --- duplicates ----------------------------------------------------------------------------------------------


@scenario()
async def test_a_duplicate_is_accepted_and_dropped(at: SdkClients) -> None:
    """Within the window a known message id is dropped, also in a batch and after the first was completed."""
    queue = await at.queue(requires_duplicate_detection=True)
    receiver = at.receiver(queue)
    await at.send(queue, ServiceBusMessage("1", message_id="a"))
    await receiver.complete_message(await at.take_one(receiver))
    again = [ServiceBusMessage(n, message_id=id) for n, id in (("2", "a"), ("3", "b"), ("4", "b"))]
    await at.sender(queue).send_messages(again)
    await at.settled(queue, active=1)
    assert str(await at.take_one(receiver)) == "3"


@scenario()
async def test_a_scheduled_duplicate_has_a_number(at: SdkClients) -> None:
    """Each scheduled message gets a number; a duplicate's number belongs to no message."""
    queue = await at.queue(requires_duplicate_detection=True)
    sender = at.sender(queue)
    messages = [ServiceBusMessage("x", message_id=id) for id in ("a", "a", "b")]
    first, spent, last = await sender.schedule_messages(messages, soon(600))
    (late,) = await sender.schedule_messages(ServiceBusMessage("x", message_id="a"), soon(600))
    assert len({first, spent, last, late}) == 4
    await at.settled(queue, scheduled=2)
    with pytest.raises(MessageNotFoundError):
        await sender.cancel_scheduled_messages(spent)
    await sender.cancel_scheduled_messages([first, last])
    await at.settled(queue)


@scenario()
async def test_the_duplicate_window_ends(at: SdkClients) -> None:
    """After the window the same message id is a new message."""
    queue = await at.queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(seconds=10)
    )

    async def two_are_in() -> bool:
        await at.send(queue, ServiceBusMessage("x", message_id="same"))
        return bool((await at.counts(queue)).active_message_count == 2)

    await at.send(queue, ServiceBusMessage("x", message_id="same"))
    await at.send(queue, ServiceBusMessage("x", message_id="same"))
    assert (await at.counts(queue)).active_message_count == 1
    await at.wait_until(two_are_in, "the second message of that id")


# --- limits --------------------------------------------------------------------------------------------------


@scenario()
async def test_a_message_may_not_be_larger_than_the_queue_allows(at: SdkClients) -> None:
    """A message above MaxMessageSizeInKilobytes raises the size error; the sender can send afterwards."""
    queue = await at.queue(max_message_size_in_kilobytes=2)
    with pytest.raises(MessageSizeExceededError):
        await at.send(queue, ServiceBusMessage(b"x" * 4000))
    await at.send(queue, ServiceBusMessage(b"x" * 1500))
    await at.settled(queue, active=1)


@scenario()
async def test_ids_have_a_maximum_length(at: SdkClients) -> None:
    """Ids have up to 128 characters; a longer one, or a partition key that differs from the session, is refused."""
    queue = await at.queue()

    def sent(pk: str | None = None, **properties: Any) -> AmqpAnnotatedMessage:
        notes = {} if pk is None else {"x-opt-partition-key": pk}
        return AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(**properties), annotations=notes)

    sender = at.sender(queue)
    longest, longer = "ä" * 128, "ä" * 129
    for good in (sent(message_id=longest, group_id=longest), sent("s", group_id="s"), sent("p", message_id="m")):
        await sender.send_messages(good)
    for bad, said in (
        (sent(message_id=longer), "MessageId of a message has 129 characters"),
        (sent(group_id=longer), "SessionId of a message has 129 characters"),
        (sent("p", group_id="s"), "PartitionKey 'p' of a message is not its SessionId 's'"),
    ):
        with pytest.raises(ServiceBusError, match=said):
            await sender.send_messages(bad)
        with pytest.raises(ServiceBusError, match=said):
            await sender.send_messages([sent(message_id="good"), bad])
        with pytest.raises(ServiceBusError, match=said):
            await sender.schedule_messages(bad, soon(600))
    await at.settled(queue, active=3)


@scenario()
async def test_a_batch_knows_the_queue_s_limit(at: SdkClients) -> None:
    """The link has the largest size of a batch, so the SDK can refuse a message that does not fit."""
    queue = await at.queue(max_message_size_in_kilobytes=2)
    batch = await at.sender(queue).create_message_batch()
    assert batch.max_size_in_bytes == 2048
    batch.add_message(ServiceBusMessage(b"x" * 1500))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 1500))


@scenario()
async def test_a_full_queue_refuses_until_there_is_room(at: SdkClients) -> None:
    """At MaxSizeInMegabytes a send raises the quota error and keeps nothing, until messages are removed."""
    queue = await at.queue(max_size_in_megabytes=1)
    big = ServiceBusMessage(b"x" * 200_000)
    await at.send(queue, *[big] * 5)
    with pytest.raises(ServiceBusQuotaExceededError):
        await at.send(queue, big)
    await at.settled(queue, active=5)
    receiver = at.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    await at.take_one(receiver)
    await at.send(queue, big)


@scenario()
async def test_dead_letters_count_against_the_quota(at: SdkClients) -> None:
    """A message that is dead-lettered does not make room."""
    queue = await at.queue(max_size_in_megabytes=1)
    big = ServiceBusMessage(b"x" * 250_000)
    await at.send(queue, *[big] * 4)
    receiver = at.receiver(queue)
    await receiver.dead_letter_message(await at.take_one(receiver))
    with pytest.raises(ServiceBusQuotaExceededError):
        await at.send(queue, big)


# --- forwarding ----------------------------------------------------------------------------------------------


@scenario()
async def test_forwarding_along_a_chain(at: SdkClients) -> None:
    """A message sent to the first queue is received from the last; the queues between keep none."""
    last = await at.queue()
    middle = await at.queue(forward_to=last)
    first = await at.queue(forward_to=middle)
    await at.send(last, "direct")
    await at.send(first, ServiceBusMessage("a", message_id="m", application_properties={"p": 1}), "b")
    direct, a, b = await at.take(at.receiver(last), 3)
    assert bodies([direct, a, b]) == ["direct", "a", "b"]
    assert (a.message_id, text_properties(a), a.delivery_count) == ("m", {"p": 1}, 0)
    assert (a.sequence_number, a.enqueued_sequence_number) == (2, 1)
    await at.settled(first)
    await at.settled(middle)
    with pytest.raises(ServiceBusError):
        await at.receiver(first).receive_messages(1, max_wait_time=1)


@scenario()
async def test_forwarding_begins_when_it_is_switched_on(at: SdkClients) -> None:
    """Messages that a queue has when forwarding is set are forwarded, until it is removed."""
    target, source = await at.queue(), await at.queue()
    await at.send(source, "waiting")
    await at.update_queue(source, forward_to=target)
    receiver = at.receiver(target)
    await receiver.complete_message(await at.take_one(receiver))
    await at.update_queue(source, forward_to=None)
    await at.send(source, "stays")
    assert str(await at.take_one(at.receiver(source))) == "stays"


@scenario()
async def test_dead_letters_can_be_forwarded(at: SdkClients) -> None:
    """Dead letters are sent to ForwardDeadLetteredMessagesTo, with reason and source."""
    target = await at.queue()
    source = await at.queue(forward_dead_lettered_messages_to=target)
    await at.send(source, "x")
    receiver = at.receiver(source)
    await receiver.dead_letter_message(await at.take_one(receiver), reason="r", error_description="d")
    got = await at.take_one(at.receiver(target))
    assert (got.dead_letter_reason, got.dead_letter_error_description) == ("r", "d")
    assert got.dead_letter_source == source
    await at.settled(source)


@scenario()
async def test_a_message_that_cannot_be_forwarded_is_a_transfer_dead_letter(at: SdkClients) -> None:
    """With a disabled, full or missing target the source keeps it as a transfer dead letter."""
    disabled, full, gone = await at.queue(), await at.queue(max_size_in_megabytes=1), await at.queue()
    await at.send(full, *[ServiceBusMessage(b"x" * 250_000)] * 4)
    sources = [await at.queue(forward_to=target) for target in (disabled, full, gone)]
    await at.update_queue(disabled, status="Disabled")
    await asyncio.to_thread(at.admin.delete_queue, gone)
    at.queues.remove(gone)
    for source in sources:
        await at.send(source, ServiceBusMessage(b"y" * 100_000))
        await at.settled(source, transfer_dead_letter=1)
    stranded = at.receiver(sources[0], sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER)
    message = await at.take_one(stranded)
    assert message.dead_letter_reason
    assert disabled in message.dead_letter_error_description
    await stranded.complete_message(message)
    await at.settled(sources[0])


@scenario()
async def test_a_message_is_forwarded_four_times_at_most(at: SdkClients) -> None:
    """The fifth forward makes a transfer dead letter where the message is, with the service's reason."""
    chain = [await at.queue()]
    for _ in range(5):
        chain.append(await at.queue(forward_to=chain[-1]))
    await at.send(chain[4], "four hops")
    assert str(await at.take_one(at.receiver(chain[0]))) == "four hops"
    await at.send(chain[5], "five hops")
    await at.settled(chain[1], transfer_dead_letter=1)
    stranded = at.receiver(chain[1], sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER)
    assert (await at.take_one(stranded)).dead_letter_reason == "MaxTransferHopCountExceeded"


# --- names ---------------------------------------------------------------------------------------------------


@scenario("sync")
async def test_an_entity_may_be_named_as_a_part_of_an_event_hub_is(at: SdkClients) -> None:
    """`jobs/partitions/1` is a queue if one has that name: to send, receive, peek and dead-letter."""
    for end in ("partitions/1", "consumergroups/b", "ConsumerGroups/b/Partitions/0"):
        name = f"{unique('jobs')}/{end}"
        await asyncio.to_thread(at.admin.create_queue, name)
        await at.send(name, "a", "b")
        receiver = at.receiver(name)
        first, second = await at.take(receiver, 2)
        await receiver.complete_message(first)
        await receiver.dead_letter_message(second)
        dead = at.receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        assert bodies(await dead.peek_messages()) == ["b"]
        await at.settled(name, dead_letter=1)
    topic = f"{unique('news')}/partitions/1"
    await asyncio.to_thread(at.admin.create_topic, topic)
    await at.subscription(topic)
    await at.send(topic, "x", topic=True)
    assert str(await at.take_one(at.receiver(topic, "all"))) == "x"


@scenario("sync")
async def test_a_partition_of_a_queue_does_not_exist(at: SdkClients) -> None:
    """A receiver of `orders/partitions/1` gets none of the messages of the queue `orders`."""
    queue = await at.queue()
    await at.send(queue, "x")
    with pytest.raises(ServiceBusAuthenticationError):  # the SDK raises this for a missing entity
        await at.receiver(f"{queue}/partitions/1").receive_messages(1, max_wait_time=1)
    await at.settled(queue, active=1)


# --- status --------------------------------------------------------------------------------------------------


async def _can_send(at: SdkClients, queue: str, *, fresh: bool) -> bool:
    sender = at.keep(at.client.get_queue_sender(queue)) if fresh else at.sender(queue)
    try:
        await sender.send_messages(ServiceBusMessage("x"))
    except MessagingEntityDisabledError:
        return False
    return True


async def _can_receive(at: SdkClients, receiver: object) -> bool:
    try:
        await at.take_one(receiver)  # type: ignore[arg-type]
    except MessagingEntityDisabledError:
        return False
    return True


@scenario()
async def test_a_queue_s_status_applies_to_new_links(at: SdkClients) -> None:
    """Active, Disabled, SendDisabled and ReceiveDisabled allow new links as their names say."""
    for status, sends, receives in (
        ("Active", True, True),
        ("SendDisabled", False, True),
        ("ReceiveDisabled", True, False),
        ("Disabled", False, False),
    ):
        queue = await at.queue()
        await at.send(queue, "there")
        await at.update_queue(queue, status=status)
        can = tuple(await asyncio.gather(_can_send(at, queue, fresh=True), _can_receive(at, at.receiver(queue))))
        assert can == (sends, receives), status


@scenario()
async def test_a_queue_s_status_applies_to_open_links(at: SdkClients) -> None:
    """An open link can do no more than a new one, and works again once the queue is active."""
    queue = await at.queue()
    receiver = at.receiver(queue)
    await at.send(queue, "a")
    await receiver.complete_message(await at.take_one(receiver))
    await at.update_queue(queue, status="ReceiveDisabled")
    assert await _can_send(at, queue, fresh=False)
    assert not await _can_receive(at, receiver)
    await at.update_queue(queue, status="Disabled")
    assert not await _can_send(at, queue, fresh=False)
    await at.update_queue(queue, status="Active")
    assert await _can_send(at, queue, fresh=False)
    assert await _can_receive(at, receiver)


# --- pings ---------------------------------------------------------------------------------------------------


@scenario()
async def test_pings_are_accepted_and_never_delivered(at: SdkClients) -> None:
    """A ping, alone or in a batch, to any entity, makes no message and uses no sequence number."""
    queue = await at.queue(requires_duplicate_detection=True)
    sessions = await at.queue(requires_session=True)
    ping = ServiceBusMessage(b"", content_type=PING, time_to_live=SECOND, session_id="random")
    plain = ServiceBusMessage(b"", content_type=PING, time_to_live=SECOND)
    await at.send(queue, ping, plain)
    await at.send(sessions, ping)
    await at.sender(queue).send_messages([plain, ServiceBusMessage("real"), plain])
    await at.settled(queue, active=1)
    await at.settled(sessions)
    message = await at.take_one(at.receiver(queue))
    assert (str(message), message.sequence_number) == ("real", 1)


@scenario()
async def test_a_ping_to_a_disabled_queue_is_refused(at: SdkClients) -> None:
    """A ping is refused if a message would be."""
    queue = await at.queue()
    await at.update_queue(queue, status="SendDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        await at.send(queue, ServiceBusMessage(b"", content_type=PING))
