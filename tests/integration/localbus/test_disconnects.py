"""Disconnects lose no message: locks outlive links, sessions do not, and a restart ends both, as on the service.

The clients are raw ones: they can stop between any two bytes, which no SDK does on demand.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.domain.amqp import sections
from pairbus.localbus import LocalBus
from tests.support.raw_client import RawClient, RawError, Received, longs, session_filter, uuids
from tests.support.scenarios import scenario
from tests.support.sdk_clients import SdkClients, bodies

# The SDK does not close the sockets of connections that were cut.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

BODY = b"\x00\x53\x75\xa0\x01x"
UPDATE = "com.microsoft:update-disposition"


def client(bus: LocalBus, queue: str) -> RawClient:
    made = RawClient(bus)
    made.put_token(queue)
    return made


def facts(message: bytes) -> tuple[int, int]:
    """Return a message's sequence number and delivery count."""
    found = {s.code: s for s in sections.split(message)}
    notes = sections.entries(message, found[sections.MESSAGE_ANNOTATIONS].value)
    (at,) = [e.value for e in notes if e.key == "x-opt-sequence-number"]
    count = sections.field(message, found[sections.HEADER].value, 4)
    return struct.unpack(">q", message[at + 1 : at + 9])[0], int(count)


async def receive_and_leave(
    at: SdkClients, queue: str, count: int, leave: Callable[[RawClient, Any], None], **options: Any
) -> list[Received]:
    """Receive messages on a link that is then lost without settling them."""

    def run() -> list[Received]:
        with client(at.bus, queue) as raw:
            link = raw.receiver(queue, count, **options)
            got = [raw.receive(link) for _ in range(count)]
            leave(raw, link)
            return got

    return await asyncio.to_thread(run)


def close_link(raw: RawClient, link: Any) -> None:
    raw.close_link(link)


def cut(raw: RawClient, link: Any) -> None:
    """Do nothing: leaving the block cuts the connection without a close."""


async def request(at: SdkClients, queue: str, operation: str, **body: Any) -> tuple[int, Any, str | None]:
    """Send a management request on a connection of its own."""

    def run() -> tuple[int, Any, str | None]:
        with client(at.bus, queue) as raw:
            return raw.request(queue, operation, {name.replace("_", "-"): v for name, v in body.items()})

    return await asyncio.to_thread(run)


# --- locks outlive what got them -----------------------------------------------------------------------------


@scenario()
async def test_a_message_is_settled_by_lock_token_after_its_link_is_closed(at: SdkClients) -> None:
    """The lock remains when its link is closed or its connection cut; any connection can settle by the token."""
    for leave in (close_link, cut):
        queue = await at.queue(lock_duration=timedelta(minutes=5))
        await at.send(queue, "kept", "next")
        (held,) = await receive_and_leave(at, queue, 1, leave)
        receiver = at.receiver(queue)
        assert str(await at.take_one(receiver)) == "next"  # "kept" is still locked
        status, reply, _ = await request(at, queue, "com.microsoft:renew-lock", lock_tokens=uuids(held.token))
        assert (status, len(reply["expirations"].elements)) == (200, 1)
        completed = {"lock_tokens": uuids(held.token), "disposition_status": "completed"}
        assert (await request(at, queue, UPDATE, **completed))[0] == 200
        await at.settled(queue, active=1)
        status, _, condition = await request(at, queue, UPDATE, **completed)
        assert (status, condition) == (410, "com.microsoft:message-lock-lost")


@scenario()
async def test_every_disposition_works_by_lock_token(at: SdkClients) -> None:
    """Abandon, defer and dead-letter work by lock token, as complete does."""
    queue = await at.queue(lock_duration=timedelta(minutes=5))
    await at.send(queue, "abandoned", "deferred", "dead")
    held = await receive_and_leave(at, queue, 3, cut)
    statuses = ("abandoned", "defered", "suspended")
    for received, status in zip(held, statuses, strict=True):
        extra = {"deadletter_reason": "r", "deadletter_description": "d"} if status == "suspended" else {}
        token = uuids(received.token)
        assert (await request(at, queue, UPDATE, lock_tokens=token, disposition_status=status, **extra))[0] == 200
    receiver = at.receiver(queue)
    again = await at.take_one(receiver)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    (deferred,) = await receiver.receive_deferred_messages(2)
    assert str(deferred) == "deferred"
    dead = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == ("dead", "r", "d")


@scenario()
async def test_locks_of_a_cut_connection_expire(at: SdkClients) -> None:
    """Its messages are delivered again after their locks, in order, with the delivery counted."""
    queue = await at.queue(lock_duration=timedelta(seconds=12))
    texts = [f"m{n}" for n in range(8)]
    await at.sender(queue).send_messages([ServiceBusMessage(text) for text in texts])
    began = time.monotonic()
    held = await receive_and_leave(at, queue, 5, cut)
    await at.update_queue(queue, lock_duration=timedelta(minutes=1))
    assert [facts(each.payload) for each in held] == [(n, 0) for n in range(1, 6)]
    receiver = at.receiver(queue)
    fresh = await at.take(receiver, 3)
    assert [(str(m), m.delivery_count) for m in fresh] == [(text, 0) for text in texts[5:]]
    for message in fresh:
        await receiver.complete_message(message)
    again = await at.take(receiver, 5)
    assert time.monotonic() - began >= 12
    assert [(str(m), m.delivery_count) for m in again] == [(text, 1) for text in texts[:5]]


@scenario("async")
async def test_expired_locks_count_as_deliveries(at: SdkClients) -> None:
    """At the maximum delivery count a message is dead-lettered by the expiry of its lock, without any client."""
    queue = await at.queue(lock_duration=timedelta(seconds=1), max_delivery_count=2)
    await at.send(queue, "x")
    await receive_and_leave(at, queue, 1, cut)
    await receive_and_leave(at, queue, 1, close_link)
    await at.settled(queue, dead_letter=1)


@scenario("async")
async def test_the_lock_of_a_deferred_message_expires(at: SdkClients) -> None:
    """Received by number on a connection that is cut, the message is deferred again after its lock."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    await receiver.defer_message(await at.take_one(receiver))
    await at.update_queue(queue, lock_duration=timedelta(seconds=10))

    async def receive() -> int:
        get = {"sequence_numbers": longs(1), "receiver_settle_mode": 1}
        return (await request(at, queue, "com.microsoft:receive-by-sequence-number", **get))[0]

    async def again() -> bool:
        return await receive() == 200

    assert await receive() == 200
    assert await receive() == 404
    await at.wait_until(again, "the end of the deferred message's lock")


# --- sessions end with their link ----------------------------------------------------------------------------


@scenario()
async def test_a_session_is_free_as_soon_as_its_link_is_closed(at: SdkClients) -> None:
    """After a close or a cut the session can be accepted at once; its messages are in order and not counted."""
    for leave in (close_link, cut):
        queue = await at.queue(requires_session=True, lock_duration=timedelta(minutes=5))
        await at.send(queue, *(ServiceBusMessage(text, session_id="s") for text in ("1", "2")))
        await receive_and_leave(at, queue, 2, leave, filters=session_filter("s"))
        receiver = at.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=60)
        got = await at.take(receiver, 2)
        assert [(str(m), m.delivery_count) for m in got] == [("1", 0), ("2", 0)]


@scenario("async")
async def test_lock_tokens_of_a_session_end_with_its_link(at: SdkClients) -> None:
    """A message of a session cannot be settled by token once the session is not held."""
    queue = await at.queue(requires_session=True, lock_duration=timedelta(minutes=5))
    await at.send(queue, ServiceBusMessage("x", session_id="s"))
    (held,) = await receive_and_leave(at, queue, 1, cut, filters=session_filter("s"))

    async def lost() -> bool:
        completed = {"lock_tokens": uuids(held.token), "disposition_status": "completed"}
        status, _, condition = await request(at, queue, UPDATE, session_id="s", **completed)
        return (status, condition) == (410, "com.microsoft:session-lock-lost")

    await at.wait_until(lost, "the loss of the session's lock")
    await at.settled(queue, active=1)


@scenario("async")
async def test_a_waiting_receiver_gets_the_session_of_a_cut_connection(at: SdkClients) -> None:
    """A receiver that waits for a session is given one when its holder disconnects."""
    queue = await at.queue(requires_session=True, lock_duration=timedelta(minutes=5))
    await at.send(queue, ServiceBusMessage("x", session_id="s"))
    holder = await asyncio.to_thread(client, at.bus, queue)
    link = await asyncio.to_thread(holder.receiver, queue, 1, filters=session_filter(None))
    await asyncio.to_thread(holder.receive, link)
    waiting = at.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    taking = asyncio.ensure_future(at.take_one(waiting, 30))
    await asyncio.wait([taking], timeout=1)
    assert not taking.done()
    await asyncio.to_thread(holder.drop)
    assert str(await taking) == "x"


# --- senders -------------------------------------------------------------------------------------------------


@scenario("async")
async def test_a_complete_message_is_kept_and_an_incomplete_one_is_not(at: SdkClients) -> None:
    """A message that was complete before the cut is kept, though its sender got no outcome; a part of one is not."""
    queue = await at.queue()

    def send_and_cut(whole: bool) -> None:
        with client(at.bus, queue) as raw:
            link = raw.sender(queue)
            link.delivery("tag")
            link.stream(BODY if whole else BODY[:-1])
            if whole:
                link.advance()
            raw.flush()
            if not whole:  # more than a frame, so that a part of it is really sent
                link.stream(b"y" * 200_000)
                raw.flush()

    await asyncio.to_thread(send_and_cut, False)
    await asyncio.to_thread(send_and_cut, True)
    await at.settled(queue, active=1)
    assert bodies(await at.take(at.receiver(queue), 1)) == ["x"]


@scenario("async")
async def test_receive_and_delete_loses_only_what_was_sent_to_the_client(at: SdkClients) -> None:
    """Messages on their way to a client that is cut are lost; those beyond its credit are not."""
    queue = await at.queue()
    await at.send(queue, "a", "b", "c")
    await receive_and_leave(at, queue, 1, cut, delete=True)
    await at.settled(queue, active=2)
    assert bodies(await at.take(at.receiver(queue), 2)) == ["b", "c"]


# --- the SDK's own way back ----------------------------------------------------------------------------------


@scenario()
async def test_the_sdk_settles_messages_received_before_a_cut(at: SdkClients) -> None:
    """The SDK settles by lock token after a cut, and continues to receive."""
    queue = await at.queue(lock_duration=timedelta(minutes=5))
    await at.send(queue, "a", "b")
    receiver = at.keep(at.new_client(retry_total=3, retry_backoff_factor=0.1).get_queue_receiver(queue))
    first = await at.take_one(receiver)
    await asyncio.to_thread(at.bus.faults.drop, queue)
    await receiver.complete_message(first)
    second = await at.take_one(receiver)
    assert (str(second), second.delivery_count) == ("b", 0)
    await receiver.complete_message(second)
    await at.settled(queue)


# --- restarts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_restart_ends_all_locks(tmp_path: Path, how: str) -> None:
    """After a restart all messages are available: locked ones are counted, sessions free, deferred ones deferred."""
    with LocalBus(store=tmp_path / "bus.db") as bus:
        with ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        ) as admin:
            minutes = timedelta(minutes=5)
            admin.create_queue("plain", lock_duration=minutes)
            admin.create_queue("sessions", lock_duration=minutes, requires_session=True)
            admin.create_queue("once", lock_duration=minutes, max_delivery_count=1)
        in_session = b"\x00\x53\x73\xc0\x0e\x0b" + b"\x40" * 10 + b"\xa1\x01s" + BODY
        with RawClient(bus) as raw:
            for queue, message, count in (("plain", BODY, 3), ("sessions", in_session, 2), ("once", BODY, 1)):
                raw.put_token(queue)
                link = raw.sender(queue)
                for _ in range(count):
                    raw.send(link, message)
            plain = raw.receiver("plain")
            token = raw.receive(plain).token
            deferred = raw.receive(plain).token
            body = {"lock-tokens": uuids(deferred), "disposition-status": "defered"}
            assert raw.request("plain", UPDATE, body)[0] == 200
            holder = raw.receiver("sessions", filters=session_filter("s"))
            raw.receive(holder)
            raw.receive(raw.receiver("once"))
            # A delivery's count is written behind it, with the next commit; any answer comes after that.
            raw.request("once", "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 1})
            if how == "killed":
                bus.kill()
        bus.restart()
        with RawClient(bus) as raw:
            for queue in ("plain", "sessions", "once"):
                raw.put_token(queue)
            body = {"lock-tokens": uuids(token), "disposition-status": "completed"}
            assert raw.request("plain", UPDATE, body)[2] == "com.microsoft:message-lock-lost"
            plain = raw.receiver("plain", 10)
            assert [facts(raw.receive(plain).payload) for _ in range(2)] == [(1, 1), (3, 0)]
            by_number = {"sequence-numbers": longs(2), "receiver-settle-mode": 1}
            assert raw.request("plain", "com.microsoft:receive-by-sequence-number", by_number)[0] == 200
            holder = raw.receiver("sessions", 10, filters=session_filter(None))
            assert [facts(raw.receive(holder).payload)[0] for _ in range(2)] == [1, 2]
            dead = raw.receive(raw.receiver("once/$DeadLetterQueue"))
            assert facts(dead.payload) == (1, 1)
            with pytest.raises(RawError) as refused:
                raw.receiver("sessions", filters=session_filter("s"))
            assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
