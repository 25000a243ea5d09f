"""Disconnects lose nothing and follow the service: locks outlive links, sessions do not, a restart ends both.

The clients that disconnect are raw ones: they can stop between any two bytes, which no SDK does on demand.
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
from tests.support.sdk_clients import Place, bodies

# The SDK does not close the sockets of connections that were cut.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

BODY = b"\x00\x53\x75\xa0\x01x"
UPDATE = "com.microsoft:update-disposition"


def client(bus: LocalBus, queue: str) -> RawClient:
    made = RawClient(bus)
    made.put_token(queue)
    return made


def facts(message: bytes) -> tuple[int, int]:
    """Sequence number and delivery count."""
    found = {s.code: s for s in sections.split(message)}
    notes = sections.entries(message, found[sections.MESSAGE_ANNOTATIONS].value)
    (at,) = [e.value for e in notes if e.key == "x-opt-sequence-number"]
    count = sections.field(message, found[sections.HEADER].value, 4)
    return struct.unpack(">q", message[at + 1 : at + 9])[0], int(count)


async def take_and_leave(
    at: Place, queue: str, count: int, leave: Callable[[RawClient, Any], None], **options: Any
) -> list[Received]:
    """Receive so many messages over a link that then goes away, unsettled."""

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
    """Nothing to do: leaving the block cuts the connection without a word."""


async def ask(at: Place, queue: str, operation: str, **body: Any) -> tuple[int, Any, str | None]:
    """A management request over a connection of its own."""

    def run() -> tuple[int, Any, str | None]:
        with client(at.bus, queue) as raw:
            return raw.request(queue, operation, {name.replace("_", "-"): v for name, v in body.items()})

    return await asyncio.to_thread(run)


# --- locks outlive what got them -----------------------------------------------------------------------------


@scenario()
async def test_a_message_is_settled_by_its_token_after_its_link_is_gone(at: Place) -> None:
    """The lock holds when the link is closed or its connection cut; its token settles from anywhere."""
    for leave in (close_link, cut):
        queue = await at.queue(lock_duration=timedelta(minutes=5))
        await at.send(queue, "kept", "next")
        (held,) = await take_and_leave(at, queue, 1, leave)
        receiver = at.receiver(queue)
        assert str(await at.take_one(receiver)) == "next"  # "kept" is still locked
        status, reply, _ = await ask(at, queue, "com.microsoft:renew-lock", lock_tokens=uuids(held.token))
        assert (status, len(reply["expirations"].elements)) == (200, 1)
        completed = {"lock_tokens": uuids(held.token), "disposition_status": "completed"}
        assert (await ask(at, queue, UPDATE, **completed))[0] == 200
        await at.settled(queue, active=1)
        status, _, condition = await ask(at, queue, UPDATE, **completed)
        assert (status, condition) == (410, "com.microsoft:message-lock-lost")


@scenario()
async def test_every_outcome_can_be_given_by_token(at: Place) -> None:
    """Abandon, defer and dead-letter work by token as complete does."""
    queue = await at.queue(lock_duration=timedelta(minutes=5))
    await at.send(queue, "abandoned", "deferred", "dead")
    held = await take_and_leave(at, queue, 3, cut)
    statuses = ("abandoned", "defered", "suspended")
    for received, status in zip(held, statuses, strict=True):
        extra = {"deadletter_reason": "r", "deadletter_description": "d"} if status == "suspended" else {}
        token = uuids(received.token)
        assert (await ask(at, queue, UPDATE, lock_tokens=token, disposition_status=status, **extra))[0] == 200
    receiver = at.receiver(queue)
    again = await at.take_one(receiver)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    (deferred,) = await receiver.receive_deferred_messages(2)
    assert str(deferred) == "deferred"
    dead = await at.take_one(at.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (str(dead), dead.dead_letter_reason, dead.dead_letter_error_description) == ("dead", "r", "d")


@scenario()
async def test_locks_of_a_cut_connection_end_at_their_time(at: Place) -> None:
    """Everything that was delivered to it comes again, in order, counted once more; nothing is lost."""
    queue = await at.queue(lock_duration=timedelta(seconds=12))
    texts = [f"m{n}" for n in range(8)]
    await at.sender(queue).send_messages([ServiceBusMessage(text) for text in texts])
    began = time.monotonic()
    held = await take_and_leave(at, queue, 5, cut)
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
async def test_deliveries_that_nobody_settles_end_in_the_dead_letter_queue(at: Place) -> None:
    """Locks that run out count: at the maximum the message is dead-lettered, though no client is there."""
    queue = await at.queue(lock_duration=timedelta(seconds=1), max_delivery_count=2)
    await at.send(queue, "x")
    await take_and_leave(at, queue, 1, cut)
    await take_and_leave(at, queue, 1, close_link)
    await at.settled(queue, dead_letter=1)


@scenario("async")
async def test_a_deferred_message_s_lock_ends_too(at: Place) -> None:
    """Received by number over a connection that is cut, it is deferred again when its lock ends."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    await receiver.defer_message(await at.take_one(receiver))
    await at.update_queue(queue, lock_duration=timedelta(seconds=10))

    async def receive() -> int:
        get = {"sequence_numbers": longs(1), "receiver_settle_mode": 1}
        return (await ask(at, queue, "com.microsoft:receive-by-sequence-number", **get))[0]

    async def again() -> bool:
        return await receive() == 200

    assert await receive() == 200
    assert await receive() == 404
    await at.wait_until(again, "the end of the deferred message's lock")


# --- sessions end with their link ----------------------------------------------------------------------------


@scenario()
async def test_a_session_is_free_as_soon_as_its_link_is_gone(at: Place) -> None:
    """Closed or cut, the session can be had at once, its messages in order, as if never delivered."""
    for leave in (close_link, cut):
        queue = await at.queue(requires_session=True, lock_duration=timedelta(minutes=5))
        await at.send(queue, *(ServiceBusMessage(text, session_id="s") for text in ("1", "2")))
        await take_and_leave(at, queue, 2, leave, filters=session_filter("s"))
        receiver = at.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=60)
        got = await at.take(receiver, 2)
        assert [(str(m), m.delivery_count) for m in got] == [("1", 0), ("2", 0)]


@scenario("async")
async def test_a_session_s_tokens_end_with_its_link(at: Place) -> None:
    """A message of a session cannot be settled by token once the session is not held."""
    queue = await at.queue(requires_session=True, lock_duration=timedelta(minutes=5))
    await at.send(queue, ServiceBusMessage("x", session_id="s"))
    (held,) = await take_and_leave(at, queue, 1, cut, filters=session_filter("s"))

    async def lost() -> bool:
        completed = {"lock_tokens": uuids(held.token), "disposition_status": "completed"}
        status, _, condition = await ask(at, queue, UPDATE, session_id="s", **completed)
        return (status, condition) == (410, "com.microsoft:session-lock-lost")

    await at.wait_until(lost, "the loss of the session's lock")
    await at.settled(queue, active=1)


@scenario("async")
async def test_who_waits_for_a_session_gets_the_one_that_was_cut_off(at: Place) -> None:
    """A receiver that waits is given a session when its holder disappears."""
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
async def test_a_whole_message_counts_and_half_a_message_does_not(at: Place) -> None:
    """What arrived complete before the cut is kept, though its sender never heard so; a part is not a message."""
    queue = await at.queue()

    def send_and_cut(whole: bool) -> None:
        with client(at.bus, queue) as raw:
            link = raw.sender(queue)
            link.delivery("tag")
            link.stream(BODY if whole else BODY[:-1])
            if whole:
                link.advance()
            raw._write()
            if not whole:  # more than a frame, so that a part of it is really sent
                link.stream(b"y" * 200_000)
                raw._write()

    await asyncio.to_thread(send_and_cut, False)
    await asyncio.to_thread(send_and_cut, True)
    await at.settled(queue, active=1)
    assert bodies(await at.take(at.receiver(queue), 1)) == ["x"]


@scenario("async")
async def test_a_receiver_that_deletes_loses_only_what_it_was_given(at: Place) -> None:
    """Receive-and-delete: what was on its way to a cut client is gone, what it had no credit for is not."""
    queue = await at.queue()
    await at.send(queue, "a", "b", "c")
    await take_and_leave(at, queue, 1, cut, delete=True)
    await at.settled(queue, active=2)
    assert bodies(await at.take(at.receiver(queue), 2)) == ["b", "c"]


# --- the SDK's own way back ----------------------------------------------------------------------------------


@scenario()
async def test_the_sdk_settles_what_it_received_before_its_connection_was_cut(at: Place) -> None:
    """The SDK falls back to the token after a cut, and goes on receiving with what follows."""
    queue = await at.queue(lock_duration=timedelta(minutes=5))
    await at.send(queue, "a", "b")
    receiver = at._keep(at.new_client(retry_total=3, retry_backoff_factor=0.1).get_queue_receiver(queue))
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
    """After a restart every message is there at once: locked ones counted, sessions free, deferred ones deferred."""
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
