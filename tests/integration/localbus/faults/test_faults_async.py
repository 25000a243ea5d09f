"""Every fault through the async SDK: its errors, the state of the queue, and no effect on others.

The scenarios run side by side, each on its own queues, so that a fault that affects other entities would show.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)

from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.faults.faults import KINDS
from tests.support.expected_errors import NOT_RETRIED, RAISED
from tests.support.process_fixtures import FORGETS_SOCKETS, collected, is_retryable  # noqa: F401
from tests.support.scenarios import scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients, bodies, soon

pytestmark = FORGETS_SOCKETS

#: The four ways to settle a message.
SETTLEMENTS = ("complete", "abandon", "defer", "dead_letter")


async def set_fault(at: SdkClients, fault: str, *given: Any, **limits: Any) -> int:
    """Set a fault by the name of its method; return its id."""
    return int(await asyncio.to_thread(getattr(at.bus.faults, fault), *given, **limits))


@asynccontextmanager
async def during(at: SdkClients, fault: str, *given: Any, **limits: Any) -> AsyncIterator[None]:
    """Set a fault for the length of a block."""
    id = await set_fault(at, fault, *given, **limits)
    try:
        yield
    finally:
        await asyncio.to_thread(at.bus.faults.clear, id)


async def unharmed(at: SdkClients, other: str) -> None:
    """Check that another queue accepts a message, delivers it and completes it."""
    await at.send(other, "elsewhere")
    receiver = at.receiver(other)
    message = await at.take_one(receiver)
    assert str(message) == "elsewhere"
    await receiver.complete_message(message)
    await at.settled(other)


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun >= seconds


def impatient(at: SdkClients, queue: str, **options: Any) -> AsyncFacade:
    """Return a receiver that waits 0.7 s for the answer to a settlement instead of a minute."""
    return at.keep(at.new_client(**options).get_queue_receiver(queue, timeout=0.7))


def settling(receiver: AsyncFacade, how: str) -> Any:
    return getattr(receiver, f"{how}_message")


# --- unavailable, black hole, drop ---------------------------------------------------------------------------


@scenario("async")
async def test_an_unavailable_entity_refuses_new_links_and_detaches_open_ones(at: SdkClients) -> None:
    """Open sender, new sender and new receiver fail, and nothing is enqueued; afterwards the same sender works."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "before")
    async with during(at, "unavailable", queue):
        with pytest.raises(ServiceBusError) as refused:
            await at.send(queue, "open")
        assert is_retryable(refused.value)
        with pytest.raises(ServiceBusError, match="unavailable"):
            await at.keep(at.client.get_queue_sender(queue)).send_messages(ServiceBusMessage("new"))
        with pytest.raises(ServiceBusError, match="unavailable"):
            await at.receiver(queue).receive_messages(1, max_wait_time=20)
        await unharmed(at, other)
        await at.settled(queue, active=1)
    await at.send(queue, "after")
    assert bodies(await at.take(at.receiver(queue), 2)) == ["before", "after"]


UNAVAILABLE = {
    conditions.SERVER_BUSY: ServiceBusServerBusyError,
    conditions.ENTITY_DISABLED: MessagingEntityDisabledError,
}


@scenario("async", cases=UNAVAILABLE)
async def test_the_condition_of_unavailability_can_be_set(at: SdkClients, case: str) -> None:
    """A refused attach has the given condition, for senders and receivers."""
    queue = await at.queue()
    async with during(at, "unavailable", queue, condition=case):
        with pytest.raises(UNAVAILABLE[case]):
            await at.send(queue, "x")
        with pytest.raises(UNAVAILABLE[case]):
            await at.receiver(queue).receive_messages(1, max_wait_time=20)
    await at.settled(queue)


@scenario("async")
async def test_an_unavailable_subscription_gets_its_messages(at: SdkClients) -> None:
    """Its receivers are refused, the topic and other subscriptions work; messages sent meanwhile are in it."""
    topic = await at.topic()
    for name in ("struck", "sister"):
        await at.subscription(topic, name)
    async with during(at, "unavailable", f"{topic}/Subscriptions/struck"):
        with pytest.raises(ServiceBusError, match="unavailable"):
            await at.receiver(topic, "struck").receive_messages(1, max_wait_time=20)
        await at.send(topic, "x", topic=True)
        assert bodies(await at.take(at.receiver(topic, "sister"), 1)) == ["x"]
    assert bodies(await at.take(at.receiver(topic, "struck"), 1)) == ["x"]


@scenario("async")
async def test_a_black_hole_does_not_answer(at: SdkClients) -> None:
    """Open and new senders time out, a receiver gets nothing, nothing is enqueued; afterwards a receiver is served."""
    queue, other = await at.queue(), await at.queue()
    receiver = at.receiver(queue)
    await at.send(queue, "before")
    await receiver.complete_message(await at.take_one(receiver))
    async with during(at, "black_hole", queue):
        with at_least(0.8), pytest.raises(OperationTimeoutError):
            await at.sender(queue).send_messages(ServiceBusMessage("lost"), timeout=1)
        with pytest.raises(OperationTimeoutError):
            await at.keep(at.client.get_queue_sender(queue)).send_messages(ServiceBusMessage("lost"), timeout=1)
        assert await receiver.receive_messages(1, max_wait_time=1) == []
        await unharmed(at, other)
        await at.settled(queue)
    await at.keep(at.new_client(retry_total=3).get_queue_sender(queue)).send_messages(ServiceBusMessage("found"))
    assert bodies(await at.take(receiver, 1)) == ["found"]
    await at.settled(queue, active=1)


@scenario("async")
async def test_connections_can_be_dropped_now(at: SdkClients) -> None:
    """The next send fails and is not kept, the one after uses a new connection; other connections stay."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "before")
    await at.send(other, "before")
    await set_fault(at, "drop", queue)
    with pytest.raises(ServiceBusConnectionError):
        await at.send(queue, "lost")
    await at.send(other, "same connection")  # the connection does not retry
    await at.send(queue, "after")
    assert bodies(await at.take(at.receiver(queue), 2)) == ["before", "after"]
    await at.settled(queue, active=2)
    await at.settled(other, active=2)


@scenario("async")
async def test_a_sender_is_dropped_after_a_number_of_messages(at: SdkClients) -> None:
    """The sender of the last message loses its connection; the message is kept."""
    queue, other = await at.queue(), await at.queue()
    await set_fault(at, "drop", queue, after=3, count=1)
    await at.send(queue, "1", "2")
    with pytest.raises(ServiceBusConnectionError):
        await at.send(queue, "3")
    await at.settled(queue, active=3)
    await at.send(queue, "4", "5", "6")
    await at.settled(queue, active=6)
    await unharmed(at, other)


@scenario("async")
async def test_a_receiver_that_is_dropped_loses_no_message(at: SdkClients) -> None:
    """Its connection is cut with messages locked; after their locks another receiver gets them, counted."""
    queue = await at.queue(lock_duration=timedelta(seconds=1))
    await at.send(queue, "1", "2")
    await set_fault(at, "drop", queue, after=2, count=1)
    dropped = at.receiver(queue, prefetch_count=2)

    with pytest.raises(ServiceBusConnectionError):  # noqa: PT012
        for _ in range(2):  # the messages may have arrived before the cut
            await dropped.receive_messages(2, max_wait_time=20)
    await at.settled(queue, active=2)
    again = await at.take(at.receiver(queue), 2)
    assert sorted(bodies(again)) == ["1", "2"]
    assert [message.delivery_count for message in again] == [1, 1]


# --- sends refused -------------------------------------------------------------------------------------------


@scenario("async", cases=RAISED)
async def test_a_rejected_send_raises_the_class_of_its_condition(at: SdkClients, case: str) -> None:
    """The error has the rejection's condition and text and its class; nothing was enqueued, and then sends work."""
    queue, other = await at.queue(), await at.queue()
    async with during(at, "reject", case, queue, description="Because of a test."):
        with pytest.raises(ServiceBusError) as refused:
            await at.send(queue, "x")
        await at.send(other, "y")
    assert type(refused.value) is RAISED[case]
    assert "Because of a test." in str(refused.value)
    assert case in str(refused.value)
    if case != conditions.TIMEOUT:  # the SDK replaces this one by a new error without it
        assert is_retryable(refused.value) is (case not in NOT_RETRIED)
    await at.settled(queue)
    await at.settled(other, active=1)
    await at.send(queue, "z")
    await at.settled(queue, active=1)


@scenario("async")
async def test_the_sdk_retries_rejected_sends(at: SdkClients) -> None:
    """A client with retries sends through two rejections, and the message is there once."""
    queue = await at.queue()
    client = at.new_client(retry_total=3, retry_backoff_factor=0.05)
    await set_fault(at, "reject", conditions.SERVER_BUSY, queue, count=2)
    await at.keep(client.get_queue_sender(queue)).send_messages(ServiceBusMessage("x"))
    await at.settled(queue, active=1)
    assert queue not in [fault["entity"] for fault in await asyncio.to_thread(at.bus.faults.list)]


@scenario("async")
async def test_a_busy_service_recovers(at: SdkClients) -> None:
    """Sends, new links and requests are refused with server-busy, nothing is enqueued; then the same sender works."""
    queue, other = await at.queue(), await at.queue()
    sender = at.sender(queue)
    await sender.cancel_scheduled_messages(await sender.schedule_messages(ServiceBusMessage("opens"), soon(3600)))
    async with during(at, "busy", queue):
        with pytest.raises(ServiceBusServerBusyError, match="10 seconds"):
            await at.send(queue, "x")
        with pytest.raises(ServiceBusServerBusyError):
            await at.receiver(queue).receive_messages(1, max_wait_time=20)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.schedule_messages(ServiceBusMessage("x"), soon(3600))
        await unharmed(at, other)
    await at.settled(queue)
    await at.send(queue, "y")
    await at.settled(queue, active=1)


@scenario("async")
async def test_an_internal_error(at: SdkClients) -> None:
    """Sends and requests fail with a retryable ServiceBusError; nothing is enqueued, nothing is lost."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "before")
    receiver = at.receiver(queue)
    async with during(at, "internal_error", queue):
        with pytest.raises(ServiceBusError, match="amqp:internal-error") as refused:
            await at.send(queue, "x")
        assert type(refused.value) is ServiceBusError
        with pytest.raises(ServiceBusError, match="internal-error"):
            await receiver.peek_messages()
        await unharmed(at, other)
    assert bodies(await receiver.peek_messages(5)) == ["before"]


@scenario("async")
async def test_a_full_entity_can_still_be_emptied(at: SdkClients) -> None:
    """Sending and scheduling raise quota exceeded and add nothing; receiving goes on."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "before")
    async with during(at, "quota_exceeded", queue):
        with pytest.raises(ServiceBusQuotaExceededError, match="maximum entity size"):
            await at.send(queue, "x")
        with pytest.raises(ServiceBusQuotaExceededError):
            await at.sender(queue).schedule_messages(ServiceBusMessage("x"), soon(3600))
        await unharmed(at, other)
        receiver = at.receiver(queue)
        await receiver.complete_message(await at.take_one(receiver))
    await at.settled(queue)


@scenario("async")
async def test_a_size_limit(at: SdkClients) -> None:
    """Links that attach under it carry only smaller messages, batches included; other queues carry the large one."""
    queue, other = await at.queue(), await at.queue()
    large = ServiceBusMessage("x" * 3000)
    await set_fault(at, "size_limit", 2000, queue)
    await at.send(queue, "x" * 1000)
    with pytest.raises(MessageSizeExceededError):
        await at.send(queue, large)
    batch = await at.sender(queue).create_message_batch()
    assert batch.max_size_in_bytes == 2000
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(large)
    await at.send(other, large)
    await at.settled(queue, active=1)
    await at.settled(other, active=1)


@scenario("async")
async def test_a_lost_acceptance(at: SdkClients) -> None:
    """Sending and scheduling time out, and both messages are in the queue; the next send is answered."""
    queue, other = await at.queue(), await at.queue()
    sender = at.sender(queue)
    await at.send(queue, "0")
    await sender.schedule_messages(ServiceBusMessage("opens the management link"), soon(3600))
    await set_fault(at, "lost_accept", queue, count=2)
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(ServiceBusMessage("1"), timeout=6)
    await at.settled(queue, active=2, scheduled=1)
    with pytest.raises(OperationTimeoutError):
        await sender.schedule_messages(ServiceBusMessage("2"), soon(3600), timeout=6)
    await at.settled(queue, active=2, scheduled=2)
    await unharmed(at, other)
    await at.send(queue, "3")
    assert bodies(await at.take(at.receiver(queue), 3)) == ["0", "1", "3"]


@scenario("async")
async def test_a_retry_after_a_lost_acceptance_sends_twice(at: SdkClients) -> None:
    """The SDK sends again: the queue has two messages, or one with duplicate detection."""

    async def unheard(detecting: bool, expected: int) -> None:
        queue = await at.queue(requires_duplicate_detection=detecting)
        await set_fault(at, "lost_accept", queue, count=1)
        client = at.new_client(retry_total=2, retry_backoff_factor=0.05, try_timeout=12)
        await at.keep(client.get_queue_sender(queue)).send_messages(ServiceBusMessage("x", message_id="m"))
        await at.settled(queue, active=expected)

    await asyncio.gather(unheard(False, 2), unheard(True, 1))


# --- settling ------------------------------------------------------------------------------------------------


@scenario("async", cases=SETTLEMENTS)
async def test_a_lost_message_lock(at: SdkClients, case: str) -> None:
    """Every settlement raises lock lost and changes nothing: the message is delivered again, counted."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    async with during(at, "lock_lost", queue):
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(message)
        with pytest.raises(MessageLockLostError):
            await settling(receiver, case)(message)
        await unharmed(at, other)
    await at.settled(queue, active=1)
    again = await at.take_one(receiver)
    assert (str(again), again.delivery_count) == ("x", 1)
    await receiver.complete_message(again)
    await at.settled(queue)


@scenario("async")
async def test_a_lost_session_lock(at: SdkClients) -> None:
    """On a session's receiver the session lock is lost; its message is kept."""
    queue, other = await at.queue(requires_session=True), await at.queue()
    await at.send(queue, ServiceBusMessage("x", session_id="a"))
    receiver = at.receiver(queue, session_id="a")
    message = await at.take_one(receiver)
    async with during(at, "lock_lost", queue):
        with pytest.raises(SessionLockLostError):
            await receiver.session.renew_lock()
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(message)
        await unharmed(at, other)
    await at.settled(queue, active=1)


#: Settlement -> the counts of a queue after its only message was settled.
AFTER: dict[str, dict[str, int]] = {
    "complete": {},
    "abandon": {"active": 1},
    "defer": {"active": 1},
    "dead_letter": {"dead_letter": 1},
}


#: Settlement -> state and delivery count of the messages that peek then returns.
PEEKED: dict[str, list[tuple[str, int]]] = {
    "complete": [],
    "abandon": [("ACTIVE", 1)],
    "defer": [("DEFERRED", 1)],
    "dead_letter": [],
}


@scenario("async", cases=SETTLEMENTS)
async def test_a_late_settlement(at: SdkClients, case: str) -> None:
    """It is applied at once, visible to others, and answered later; other queues are not delayed."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "x")
    await at.send(other, "y")
    receiver, elsewhere, onlooker = at.receiver(queue), at.receiver(other), at.receiver(queue)
    message, another = await at.take_one(receiver), await at.take_one(elsewhere)
    await onlooker.peek_messages()  # opens its connection
    await set_fault(at, "late_settle", 15, queue)
    with at_least(15):
        answer = asyncio.create_task(settling(receiver, case)(message))
        await elsewhere.complete_message(another)
        await at.settled(queue, None, **AFTER[case])

        async def applied() -> bool:
            peeked = await onlooker.peek_messages(5, sequence_number=1)
            return [(each.state.name, each.delivery_count) for each in peeked] == PEEKED[case]

        await at.wait_until(applied, f"what {case} does")
        assert not answer.done()
        await answer
    await at.settled(other)


@scenario("async", cases=SETTLEMENTS)
async def test_a_lost_settlement(at: SdkClients, case: str) -> None:
    """It is applied; the SDK repeats it over the management link and gets lock lost."""
    queue, other = await at.queue(), await at.queue()
    await at.send(queue, "x")
    receiver = impatient(at, queue)
    message = await at.take_one(receiver)
    await set_fault(at, "lost_settle", queue, count=1)
    with at_least(0.6), pytest.raises(MessageLockLostError):
        await settling(receiver, case)(message)
    await at.settled(queue, None, **AFTER[case])
    await unharmed(at, other)


@scenario("async")
async def test_a_settlement_that_is_never_answered(at: SdkClients) -> None:
    """If the second answer is lost too, the SDK times out, and the message is removed all the same."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = impatient(at, queue)
    message = await at.take_one(receiver)
    receiver.real._config.try_timeout = 4  # the answer that follows never comes
    await set_fault(at, "lost_settle", queue)
    with pytest.raises(OperationTimeoutError):
        await receiver.complete_message(message)
    await at.settled(queue)


# --- latency -------------------------------------------------------------------------------------------------


@scenario("async")
async def test_latency_is_added_in_both_directions(at: SdkClients) -> None:
    """A send, a request and a settlement each take the delay twice and succeed; another queue is not delayed."""
    queue, other = await at.queue(), await at.queue()
    await at.send(other, "opens its link")
    sender, receiver = at.sender(queue), at.receiver(queue)
    await sender.send_messages(ServiceBusMessage("w"))
    await receiver.complete_message(await at.take_one(receiver))
    async with during(at, "latency", 4, queue):
        with at_least(8):
            sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
            await at.send(other, "overtakes")
            assert not sending.done()
            await sending
    async with during(at, "latency", 1, queue):
        message = await at.take_one(receiver)
        with at_least(2):
            await receiver.renew_message_lock(message)
        with at_least(2):
            await receiver.complete_message(message)
    await at.settled(queue)
    await at.settled(other, active=2)


@scenario("async")
async def test_concurrent_sends_share_the_latency(at: SdkClients) -> None:
    """Ten senders at once take the delay once, not ten times, and lose nothing."""
    queue = await at.queue()
    senders = [at.keep(at.new_client().get_queue_sender(queue)) for _ in range(10)]
    await asyncio.gather(*(sender.send_messages(ServiceBusMessage("opens")) for sender in senders))
    async with during(at, "latency", 1, queue):
        begun = time.monotonic()
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
        assert 2 <= time.monotonic() - begun < 18
    deleting = at.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert sorted(bodies(await at.take(deleting, 20))) == ["opens"] * 10 + ["x"] * 10


# --- all of them ---------------------------------------------------------------------------------------------


def test_every_kind_of_fault_is_tested() -> None:
    """Every kind of fault is set somewhere in this module."""
    from pathlib import Path

    text = Path(__file__).read_text(encoding="utf-8")
    methods = {"quota_exceeded" if kind == "quota" else kind.replace("-", "_") for kind in KINDS}
    assert {method for method in methods if f'(at, "{method}", ' not in text} == set()
