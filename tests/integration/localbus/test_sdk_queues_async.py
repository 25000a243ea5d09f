"""Concurrent operations of the async client, on a localbus with a store."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import AutoLockRenewer as SyncAutoLockRenewer
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusQuotaExceededError

from tests.support.scenarios import scenario
from tests.support.sdk_clients import SdkClients, soon, text_properties

#: The same broker, but every answer waits for a commit.
ON_A_STORE = True


@scenario("async")
async def test_competing_receivers_share_a_queue_without_loss(at: SdkClients) -> None:
    """Several receivers together complete every message exactly once."""
    queue = await at.queue()
    texts = [str(n) for n in range(300)]
    sender = at.sender(queue)
    for start in range(0, 300, 100):
        await sender.send_messages([ServiceBusMessage(text) for text in texts[start : start + 100]])
    seen: list[list[str]] = [[] for _ in range(4)]

    async def drain(mine: list[str]) -> None:
        receiver = at.receiver(queue, prefetch_count=20, max_wait_time=10)
        async for message in receiver:
            await receiver.complete_message(message)
            mine.append(str(message))

    await asyncio.gather(*(drain(mine) for mine in seen))
    assert Counter(text for mine in seen for text in mine) == Counter(texts)
    assert sum(1 for mine in seen if mine) > 1
    await at.settled(queue)


@scenario("async")
async def test_concurrent_senders_lose_no_message(at: SdkClients) -> None:
    """Senders on connections of their own: every message is there, each sender's in order."""
    queue = await at.queue()

    async def send(name: int) -> None:
        sender = at.keep(at.new_client().get_queue_sender(queue))
        for n in range(20):
            await sender.send_messages(ServiceBusMessage(f"{name}:{n}"))

    await asyncio.gather(*(send(name) for name in range(5)))
    receiver = at.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    got = [str(message) for message in await at.take(receiver, 100)]
    for name in range(5):
        assert [text for text in got if text.startswith(f"{name}:")] == [f"{name}:{n}" for n in range(20)]


@scenario("async")
async def test_concurrent_settlements(at: SdkClients) -> None:
    """Completing, abandoning, deferring and dead-lettering in parallel on one link each take effect."""
    queue = await at.queue()
    await at.sender(queue).send_messages([ServiceBusMessage(str(n)) for n in range(40)])
    receiver = at.receiver(queue, prefetch_count=40)
    got = await at.take(receiver, 40)
    actions = (receiver.complete_message, receiver.defer_message, receiver.dead_letter_message)
    await asyncio.gather(*(actions[n % 3](message) for n, message in enumerate(got)))
    await at.settled(queue, active=13, dead_letter=13)  # the deferred count as active
    numbers = [message.sequence_number for n, message in enumerate(got) if n % 3 == 1]
    deferred = await receiver.receive_deferred_messages(numbers)
    assert [str(message) for message in deferred] == [str(n) for n in range(40) if n % 3 == 1]


#: The outcome on the wire of each way to settle. The clients for .NET and Java send properties with it; the Python
#: client's methods do not take any, so its link is used below them.
OUTCOMES: dict[str, dict[str, Any]] = {
    "abandon": {"outcome": "modified", "delivery_failed": True, "undeliverable_here": False},
    "defer": {"outcome": "modified", "delivery_failed": True, "undeliverable_here": True},
    "dead-letter": {"outcome": "rejected"},
}


@scenario("async", cases=OUTCOMES)
async def test_settling_with_properties_changes_the_message(at: SdkClients, case: str) -> None:
    """Properties given with abandon, defer or dead-letter are set on the message; the others stay."""
    queue = await at.queue()
    before: dict[str | bytes, Any] = {"kept": "yes", "changed": "old"}
    await at.send(queue, ServiceBusMessage("x", message_id="m", application_properties=before))
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    changes = {b"changed": "new", b"added": 5}
    options = dict(OUTCOMES[case])
    if case == "dead-letter":
        info = {b"DeadLetterReason": "why", b"DeadLetterErrorDescription": "how", **changes}
        options["error"] = AMQPError(condition=b"com.microsoft:dead-letter", description="how", info=info)
    else:
        options["message_annotations"] = changes
    await receiver.real._handler.settle_messages_async(
        message._delivery_id, message._delivery_tag, await_outcome=True, outcome_timeout=10, **options
    )
    expected = {"kept": "yes", "changed": "new", "added": 5}
    if case == "abandon":
        again = await at.take_one(receiver)
        assert again.delivery_count == 1
    elif case == "defer":
        assert await receiver.receive_messages(1, max_wait_time=1) == []
        (again,) = await receiver.receive_deferred_messages(message.sequence_number)
    else:
        await at.settled(queue, dead_letter=1)
        again = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
        assert (again.dead_letter_reason, again.dead_letter_error_description) == ("why", "how")
        expected |= {"DeadLetterReason": "why", "DeadLetterErrorDescription": "how"}
    assert text_properties(again) == expected
    assert (str(again), again.message_id, again.sequence_number) == ("x", "m", message.sequence_number)


@scenario()
async def test_the_sdk_s_own_renewer_keeps_a_lock(at: SdkClients) -> None:
    """AutoLockRenewer keeps a message and a session locked beyond their lock duration."""
    queue = await at.queue(lock_duration=timedelta(seconds=12))
    sessions = await at.queue(lock_duration=timedelta(seconds=12), requires_session=True)
    await at.send(queue, "x")
    await at.send(sessions, ServiceBusMessage("y", session_id="s"))
    renewer: Any = SyncAutoLockRenewer() if at.kind == "sync" else AutoLockRenewer()
    try:
        receiver, holder = at.receiver(queue), at.receiver(sessions, session_id="s")
        message = await at.take_one(receiver)
        renewer.register(receiver.real, message, max_lock_renewal_duration=60)
        held = await at.take_one(holder)
        first_end = holder.session.locked_until_utc
        renewer.register(holder.real, holder.real.session, max_lock_renewal_duration=60)

        async def long_after() -> bool:
            return bool(datetime.now(timezone.utc) > first_end + timedelta(seconds=1))

        await at.wait_until(long_after, "more than the lock's time")
        assert message.delivery_count == 0
        await receiver.complete_message(message)
        await holder.complete_message(held)
    finally:
        await asyncio.to_thread(renewer.close) if at.kind == "sync" else await renewer.close()
    await at.settled(queue)
    await at.settled(sessions)


@scenario("async")
async def test_the_client_as_in_its_documentation(at: SdkClients) -> None:
    """Nested `async with` blocks and `async for`, without any helper of the tests."""
    queue = await at.queue()
    async with ServiceBusClient.from_connection_string(at.bus.connection_string) as client:
        async with client.get_queue_sender(queue) as sender:
            batch = await sender.create_message_batch()
            batch.add_message(ServiceBusMessage("hello"))
            await sender.send_messages(batch)
        async with client.get_queue_receiver(queue, max_wait_time=60) as receiver:
            async for message in receiver:
                assert str(message) == "hello"
                await receiver.complete_message(message)
                break
    await at.settled(queue)


@scenario()
async def test_a_store_does_not_change_behaviour(at: SdkClients) -> None:
    """Schedules, deferral, duplicates, quota, expiry and lost locks are the same on a localbus with a store."""
    queue = await at.queue(requires_duplicate_detection=True, lock_duration=timedelta(seconds=3))
    sender, receiver = at.sender(queue), at.receiver(queue)
    (number,) = await sender.schedule_messages(ServiceBusMessage("s", message_id="s"), soon(600))
    await sender.cancel_scheduled_messages(number)
    for _ in range(2):
        await at.send(queue, ServiceBusMessage("a", message_id="a"))
    await at.settled(queue, active=1)
    first = await at.take_one(receiver)
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))
    again = await at.take_one(receiver)
    assert again.delivery_count == 1
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(first)
    await receiver.renew_message_lock(again)
    await receiver.defer_message(again)
    (deferred,) = await receiver.receive_deferred_messages(again.sequence_number)
    await receiver.complete_message(deferred)
    await at.send(queue, ServiceBusMessage("short", message_id="b", time_to_live=timedelta(seconds=1)))
    await at.settled(queue)
    small = await at.queue(max_size_in_megabytes=1)
    big = ServiceBusMessage(b"x" * 250_000)
    await at.send(small, *[big] * 4)
    with pytest.raises(ServiceBusQuotaExceededError):
        await at.send(small, big)
    deleting = at.receiver(small, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert [len(b"".join(m.body)) for m in await at.take(deleting, 4)] == [250_000] * 4
