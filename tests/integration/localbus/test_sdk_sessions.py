"""Sessions through Microsoft's Python clients, sync and async."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.support.scenarios import scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients, bodies, soon


def of(session: str, *texts: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(text, session_id=session) for text in texts]


def accept(
    at: SdkClients, queue: str, session: Any = NEXT_AVAILABLE_SESSION, wait: float = 10.0, **more: Any
) -> AsyncFacade:
    return at.receiver(queue, session_id=session, max_wait_time=wait, **more)


async def opened(receiver: AsyncFacade) -> str:
    """Open a session receiver; return the session that it got."""
    await receiver.__aenter__()
    return str(receiver.session.session_id)


async def listed(at: SdkClients, queue: str, **options: Any) -> list[str]:
    found = at.client.real.list_queue_sessions(queue, **options)
    if at.kind == "sync":
        return await asyncio.to_thread(list, found)
    return [each async for each in found]


# --- accepting -----------------------------------------------------------------------------------------------


@scenario()
async def test_a_named_session_gives_its_own_messages_in_order(at: SdkClients) -> None:
    """Accepting a session by name delivers its messages alone, in the order in which they were sent."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("a", "a1"), *of("b", "b1"), *of("a", "a2"), *of("b", "b2"))
    receiver = accept(at, queue, "b")
    got = await at.take(receiver, 2)
    assert bodies(got) == ["b1", "b2"]
    assert {m.session_id for m in got} == {"b"} == {receiver.session.session_id}
    for message in got:
        await receiver.complete_message(message)
    await at.settled(queue, active=2)


@scenario()
async def test_two_receivers_get_different_sessions(at: SdkClients) -> None:
    """The next available session has messages and no holder."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("a", "a1"), *of("b", "b1"))
    one, two = accept(at, queue), accept(at, queue)
    assert await opened(one) == "a"
    assert await opened(two) == "b"
    assert bodies(await at.take(one, 1)) == ["a1"]
    assert bodies(await at.take(two, 1)) == ["b1"]


@scenario()
async def test_waiting_for_a_session_times_out(at: SdkClients) -> None:
    """Asking for the next session times out if no session has messages, or all are held."""
    queue = await at.queue(requires_session=True)
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        await opened(accept(at, queue, wait=1))
    assert time.monotonic() - began >= 1
    await at.send(queue, *of("a", "a1"))
    assert await opened(accept(at, queue)) == "a"
    with pytest.raises(OperationTimeoutError):
        await opened(accept(at, queue, wait=1))


@scenario("async")
async def test_a_waiting_receiver_gets_a_new_session(at: SdkClients) -> None:
    """A receiver that waits gets a session as soon as a message creates one."""
    queue = await at.queue(requires_session=True)
    waiting = asyncio.ensure_future(opened(accept(at, queue, wait=30)))
    await asyncio.sleep(0.5)  # long enough for it to be waiting; if it is not yet, it is served all the same
    assert not waiting.done()
    began = time.monotonic()
    await at.send(queue, *of("new", "x"))
    assert await waiting == "new"
    assert time.monotonic() - began < 5


@scenario()
async def test_a_held_session_cannot_be_accepted_by_name(at: SdkClients) -> None:
    """A session has one holder; another receiver that names it is refused."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("a", "a1"))
    await opened(accept(at, queue, "a"))
    with pytest.raises(SessionCannotBeLockedError):
        await opened(accept(at, queue, "a"))


@scenario()
async def test_an_empty_session_can_be_held(at: SdkClients) -> None:
    """A session without messages can be accepted by name; its holder gets new messages."""
    queue = await at.queue(requires_session=True)
    receiver = accept(at, queue, "nobody")
    assert await opened(receiver) == "nobody"
    await at.send(queue, *of("nobody", "hello"))
    assert bodies(await at.take(receiver, 1)) == ["hello"]


@scenario()
async def test_a_session_is_named_by_a_string(at: SdkClients) -> None:
    """A number as a session's name is refused, not converted to a string."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("1", "a"))
    with pytest.raises(ServiceBusError, match="session filter"):
        await opened(accept(at, queue, 1))


@scenario()
async def test_session_queues_require_sessions(at: SdkClients) -> None:
    """A message without a session id and a receiver without a session are refused, and the reverse on other queues."""
    sessions, plain = await at.queue(requires_session=True), await at.queue()
    with pytest.raises(ServiceBusError):
        await at.send(sessions, "no session id")
    await at.settled(sessions)
    with pytest.raises(ServiceBusError):
        await at.receiver(sessions).receive_messages(1, max_wait_time=1)
    with pytest.raises(ServiceBusError):
        await opened(accept(at, plain, "a"))


# --- order and settling --------------------------------------------------------------------------------------


@scenario()
async def test_order_survives_an_abandoned_message(at: SdkClients) -> None:
    """An abandoned message is the session's next one again."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("s", "1", "2", "3"))
    receiver = accept(at, queue, "s")
    first = await at.take_one(receiver)
    await receiver.abandon_message(first)
    seen = []
    for _ in range(3):
        message = await at.take_one(receiver)
        seen.append((str(message), message.delivery_count))
        await receiver.complete_message(message)
    assert seen == [("1", 1), ("2", 0), ("3", 0)]


@scenario()
async def test_the_last_delivery_of_a_session_s_message(at: SdkClients) -> None:
    """At the maximum delivery count it is dead-lettered; the session continues with the next message."""
    queue = await at.queue(requires_session=True, max_delivery_count=1)
    await at.send(queue, *of("s", "bad", "good"))
    receiver = accept(at, queue, "s")
    await receiver.abandon_message(await at.take_one(receiver))
    good = await at.take_one(receiver)
    assert str(good) == "good"
    await receiver.complete_message(good)
    await at.settled(queue, dead_letter=1)
    dead = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (str(dead), dead.session_id) == ("bad", "s")


@scenario()
async def test_deferred_peeked_and_deleted_within_a_session(at: SdkClients) -> None:
    """A session's holder defers, receives by number and peeks within its own session alone."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("s", "1", "2"), *of("other", "x"))
    receiver = accept(at, queue, "s")
    first = await at.take_one(receiver)
    await receiver.defer_message(first)
    assert bodies(await receiver.peek_messages(10, sequence_number=1)) == ["1", "2"]
    (again,) = await receiver.receive_deferred_messages([first.sequence_number])
    await receiver.complete_message(again)
    await receiver.close()
    deleting = accept(at, queue, "s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(await at.take(deleting, 1)) == ["2"]
    await at.settled(queue, active=1)


@scenario()
async def test_a_scheduled_message_creates_its_session_at_its_time(at: SdkClients) -> None:
    """A session whose only message is scheduled is not available before that time."""
    queue = await at.queue(requires_session=True)
    when = soon(1.5)
    await at.sender(queue).schedule_messages(of("s", "later"), when)
    receiver = accept(at, queue)
    assert await opened(receiver) == "s"
    assert datetime.now(timezone.utc) >= when
    assert bodies(await at.take(receiver, 1)) == ["later"]


# --- locks ---------------------------------------------------------------------------------------------------


@scenario()
async def test_a_renewed_session_lasts(at: SdkClients) -> None:
    """Renewing moves the end of the session's lock: it is held beyond its first end."""
    queue = await at.queue(requires_session=True, lock_duration=timedelta(seconds=10))
    await at.send(queue, *of("s", "1"))
    receiver = accept(at, queue, "s")
    message = await at.take_one(receiver)
    session = receiver.session
    first_end = session.locked_until_utc
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))

    async def past_first_end() -> bool:
        assert await session.renew_lock() > first_end
        return bool(datetime.now(timezone.utc) > first_end + timedelta(seconds=0.5))

    await at.wait_until(past_first_end, "the first end of the session's lock")
    with pytest.raises(SessionCannotBeLockedError):
        await opened(accept(at, queue, "s"))
    await receiver.complete_message(message)
    await at.settled(queue)


@scenario()
async def test_an_expired_session_lock_frees_the_session(at: SdkClients) -> None:
    """Another receiver can accept it, deliveries are counted, and the old holder has lost it."""
    queue = await at.queue(requires_session=True, lock_duration=timedelta(seconds=6))
    await at.send(queue, *of("s", "1", "2"))
    loser = accept(at, queue, "s")
    lost = await at.take_one(loser)
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))
    winner = accept(at, queue, wait=60)
    assert await opened(winner) == "s"
    await winner.session.renew_lock()
    again = await at.take_one(winner)
    assert (str(again), again.delivery_count) == ("1", 1)
    with pytest.raises(SessionLockLostError):
        await loser.complete_message(lost)
    with pytest.raises(SessionLockLostError):
        await loser.session.renew_lock()


@scenario()
async def test_closing_a_receiver_frees_its_session(at: SdkClients) -> None:
    """Unsettled messages are delivered again, uncounted."""
    queue = await at.queue(requires_session=True, lock_duration=timedelta(minutes=5))
    await at.send(queue, *of("s", "1", "2"))
    first = accept(at, queue, "s")
    assert bodies(await at.take(first, 2)) == ["1", "2"]
    await first.close()
    second = accept(at, queue, wait=5)
    assert await opened(second) == "s"
    assert [(str(m), m.delivery_count) for m in await at.take(second, 2)] == [("1", 0), ("2", 0)]


# --- state and lists -----------------------------------------------------------------------------------------


@scenario()
async def test_a_session_s_state(at: SdkClients) -> None:
    """The state is bytes that outlive receivers and messages; None removes it."""
    queue = await at.queue(requires_session=True)
    first = accept(at, queue, "s")
    await opened(first)
    assert await first.session.get_state() is None
    await first.session.set_state(b"\x00state\xff")
    assert await first.session.get_state() == b"\x00state\xff"
    await first.close()
    second = accept(at, queue, "s")
    await opened(second)
    assert await second.session.get_state() == b"\x00state\xff"
    await second.session.set_state("text")
    assert await second.session.get_state() == b"text"
    await second.session.set_state(None)
    assert await second.session.get_state() is None


@scenario()
async def test_a_session_s_state_has_a_maximum_size(at: SdkClients) -> None:
    """256 KB are accepted; a byte more is refused, and the earlier state stays."""
    queue = await at.queue(requires_session=True)
    receiver = accept(at, queue, "s")
    await opened(receiver)
    largest = b"x" * 256 * 1024
    await receiver.session.set_state(largest)
    with pytest.raises(ServiceBusError, match="262145 bytes"):
        await receiver.session.set_state(largest + b"x")
    assert await receiver.session.get_state() == largest


@scenario()
async def test_listing_sessions(at: SdkClients) -> None:
    """Sessions with messages or a state are listed; with a time, those whose state was set since then."""
    queue = await at.queue(requires_session=True)
    await at.send(queue, *of("messages", "1"), *of("both", "2"), *of("emptied", "3"))
    emptied = accept(at, queue, "emptied")
    await emptied.complete_message(await at.take_one(emptied))
    await emptied.close()
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    for name in ("state", "both"):
        holder = accept(at, queue, name)
        await opened(holder)
        await holder.session.set_state(b"x")
        await holder.close()
    assert sorted(await listed(at, queue)) == ["both", "messages", "state"]
    assert sorted(await listed(at, queue, state_updated_after=before)) == ["both", "state"]
    assert await listed(at, queue, state_updated_after=soon(600)) == []


@scenario("sync")
async def test_listing_a_subscription_s_sessions(at: SdkClients) -> None:
    """A subscription's sessions are listed like a queue's, also if they fill the last page."""
    topic = await at.topic()
    await at.subscription(topic, "all", requires_session=True)
    names = [f"s{n:04}" for n in range(100)]
    await at.sender(topic, topic=True).send_messages([ServiceBusMessage("x", session_id=name) for name in names])
    await at.settled(topic, "all", active=100)
    found = at.client.real.list_subscription_sessions(topic, "all")
    assert sorted(await asyncio.to_thread(list, found)) == names


@scenario("sync")
async def test_listing_more_sessions_than_a_page_holds(at: SdkClients) -> None:
    """Every session is listed once, over several pages."""
    queue = await at.queue(requires_session=True)
    names = [f"s{n:04}" for n in range(250)]
    sender = at.sender(queue)
    await sender.send_messages([ServiceBusMessage("x", session_id=name) for name in names])
    assert sorted(await listed(at, queue)) == names
