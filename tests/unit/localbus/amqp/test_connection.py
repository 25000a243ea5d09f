"""A connection without a socket: its time limits, its memory limit, and the frames that it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pairbus.domain.amqp.codec import Long, UInt
from pairbus.localbus.amqp.connection import AmqpConnection
from pairbus.localbus.entities.message import read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.settings import QueueSettings
from tests.support import amqp_frames as amqp
from tests.support.fuzz_frames import FuzzServer, MemoryTransport


class Client:
    """A client's side of a connection, in memory."""

    def __init__(self, server: FuzzServer) -> None:
        self._server = server
        self.transport = MemoryTransport()
        self.connection = AmqpConnection(server.server)
        self.connection.connection_made(self.transport)

    async def send(self, *frames: bytes) -> None:
        for each in frames:
            self.connection.data_received(each)
            await self._server.turn()

    async def tick(self, count: int) -> None:
        for _ in range(count):
            self.connection.tick(1)
            await self._server.turn()

    def performatives(self, code: int) -> list[list[object]]:
        """Return the fields of the server's performatives of a kind so far."""
        frames = [raw for raw in amqp.split_frames(bytes(self.transport.written)) if raw[:4] != b"AMQP" and raw[5] == 0]
        return [fields for found, _, fields, _ in map(amqp.read_performative, frames) if found == code]


def queue_of(server: FuzzServer, path: str) -> Queue:
    queue = server.broker.queue(path)
    assert queue is not None
    return queue


@pytest.fixture
async def server() -> AsyncIterator[FuzzServer]:
    """Yield a server; assert at the end that it has logged no error."""
    found = FuzzServer()
    yield found
    assert found.error_log.messages == []
    await found.close()


async def test_a_client_without_an_open_is_cut_after_a_minute(server: FuzzServer) -> None:
    """Proton's own time-out begins with the open."""
    silent, opened = Client(server), Client(server)
    await silent.send(amqp.SASL_HEADER + amqp.sasl_init() + amqp.AMQP_HEADER)
    await opened.send(amqp.hello())
    for client in (silent, opened):
        await client.tick(60)
        assert not client.transport.closed
        await client.tick(1)
    assert silent.transport.closed
    assert not opened.transport.closed


async def test_a_client_that_does_not_read_its_close_is_cut_after_ten_seconds(server: FuzzServer) -> None:
    """The socket of a client that reads is closed after the close was written."""
    stalled, reading = Client(server), Client(server)
    for client in (stalled, reading):
        await client.send(amqp.hello())
    stalled.connection.pause_writing()
    for client in (stalled, reading):
        client.connection.close()
        assert client.connection.closing
        await client.tick(10)
    assert reading.performatives(amqp.CLOSE)
    assert reading.transport.closed
    assert not stalled.performatives(amqp.CLOSE)
    assert not stalled.transport.closed
    await stalled.tick(1)
    assert stalled.transport.closed


async def test_incomplete_messages_of_closed_links_are_not_counted(server: FuzzServer) -> None:
    """The limit of 32 MB of incomplete messages is for those that a client can still complete."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    for number in range(200):
        await client.send(
            amqp.attach(f"link-{number}", 2, "orders"),
            *(amqp.transfer(2, None if n else number + 1, b"x" * 50_000, more=True) for n in range(4)),
            amqp.performative(amqp.DETACH, UInt(2), True),
        )
    assert client.connection.partial_bytes == 0
    assert not client.connection.closing
    await client.send(amqp.attach("link", 2, "orders"), amqp.transfer(2, 201, amqp.message(b"whole")))
    assert client.performatives(amqp.DISPOSITION)


async def test_incomplete_messages_of_open_links_are_limited(server: FuzzServer) -> None:
    """Above 32 MB the connection is closed with an error."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    number = 0
    while not client.connection.closing and number < 250:
        number += 1
        await client.send(
            amqp.attach(f"link-{number}", number + 1, "orders"),
            *(amqp.transfer(number + 1, None if n else number, b"x" * 50_000, more=True) for n in range(4)),
        )
    assert client.connection.closing
    assert 32 * 1024 * 1024 // 200_000 <= number <= 32 * 1024 * 1024 // 200_000 + 1
    assert b"amqp:resource-limit-exceeded" in bytes(client.transport.written)
    assert client.transport.closed


async def test_a_detach_is_answered_with_the_client_s_closed(server: FuzzServer) -> None:
    """A link that the client does not close may be attached again: `closed` is the client's."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    for closed in (True, False):
        await client.send(amqp.attach(f"link {closed}", 2, "orders"), amqp.performative(amqp.DETACH, UInt(2), closed))
    assert [fields[1] for fields in client.performatives(amqp.DETACH)] == [True, None]


async def test_a_lost_connection_is_removed_from_the_server(server: FuzzServer) -> None:
    """It has no links any more, and a second end of it changes nothing."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    await client.send(amqp.attach("link", 2, "orders", receiver=True))
    assert client.connection.handlers()
    client.connection.connection_lost(None)
    client.connection.connection_lost(None)
    assert client.connection not in server.server.connections
    assert client.connection.handlers() == []
    assert not client.connection.alive
    assert server.server.ended_connections == 1


async def test_an_aborted_message_above_the_limit_does_not_affect_the_next(server: FuzzServer) -> None:
    """The next message is accepted; one above the limit that is completed is rejected."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"), amqp.attach("link", 2, "orders"))
    large = [amqp.transfer(2, None if n else 1, b"x" * 60_000, more=True) for n in range(5)]
    await client.send(*large, amqp.transfer(2, None, b"", aborted=True), amqp.transfer(2, 2, amqp.message(b"small")))
    accepted = client.performatives(amqp.DISPOSITION)[-1]
    assert (accepted[1], accepted[4].descriptor) == (2, 0x24)  # type: ignore[attr-defined]
    assert client.connection.partial_bytes == 0
    large = [amqp.transfer(2, None if n else 3, b"x" * 60_000, more=True) for n in range(5)]
    await client.send(*large, amqp.transfer(2, None, b"end"))
    rejected = client.performatives(amqp.DISPOSITION)[-1]
    assert (rejected[1], rejected[4].descriptor) == (3, 0x25)  # type: ignore[attr-defined]
    assert client.connection.partial_bytes == 0


async def test_credit_is_renewed_before_it_is_used_up(server: FuzzServer) -> None:
    """A sender starts with a credit of 1000; below half of it, it gets all of it again."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"), amqp.attach("link", 2, "orders"))
    before = len(client.performatives(amqp.FLOW))
    payload = amqp.message(b"x")
    await client.send(*(amqp.transfer(2, n, payload, settled=True) for n in range(1, 501)))
    assert len(client.performatives(amqp.FLOW)) == before
    await client.send(amqp.transfer(2, 501, payload, settled=True))
    flow = client.performatives(amqp.FLOW)[before:]
    assert [(fields[5], fields[6]) for fields in flow] == [(501, 1000)]


async def test_a_reply_finds_its_link_by_address_or_name(server: FuzzServer) -> None:
    """The reply-to of a request is the address of the client's end, or the name of its link."""
    for address, reply_to in (("here", "here"), ("", "replies")):
        client = Client(server)
        await client.send(
            amqp.hello() + amqp.begin() + amqp.attach("requests", 0, "$cbs"),
            amqp.attach("replies", 1, "$cbs", receiver=True, reply=address) + amqp.flow(1, 10),
            amqp.attach("others", 2, "$cbs", receiver=True, reply="others") + amqp.flow(2, 10),
        )
        properties = amqp.described(0x73, "id", None, None, None, reply_to)
        await client.send(amqp.transfer(0, 0, properties + b"\x00\x53\x77\x40"))
        assert [fields[0] for fields in client.performatives(amqp.TRANSFER)] == [1], reply_to


def hub_reader(name: str, handle: int, group: str, owner_level: int | None) -> bytes:
    """Return an attach of a consumer of a partition, exclusive if it has an owner level."""
    source = amqp.described(0x28, f"hub/ConsumerGroups/{group}/Partitions/0")
    properties = None if owner_level is None else {amqp.Symbol("com.microsoft:epoch"): Long(owner_level)}
    ends = (amqp.Raw(source), amqp.Raw(amqp.described(0x29, "here")))
    return amqp.performative(
        amqp.ATTACH, name, UInt(handle), True, None, None, *ends, *[None] * 6, properties
    )  # fmt: skip


@pytest.mark.parametrize(
    ("group", "owner_level", "detached"),
    [("G", 5, 2), ("g", 5, 2), ("g", 6, 2), ("g", 4, 3), ("g", None, 3), ("other", 4, None), ("other", None, None)],
)
async def test_an_exclusive_consumer_of_a_partition_is_replaced_by_an_equal_or_higher_one(
    server: FuzzServer, group: str, owner_level: int | None, detached: int | None
) -> None:
    """A lower level, or none, is refused; other consumer groups are not affected. Groups ignore case."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    await client.send(hub_reader("first", 2, "G", 5), hub_reader("second", 3, group, owner_level))
    handles = {fields[0]: fields[1] for fields in client.performatives(amqp.ATTACH)}
    assert [fields[0] for fields in client.performatives(amqp.DETACH)] == (
        [] if detached is None else [handles["first" if detached == 2 else "second"]]
    )
    assert (b"amqp:link:stolen" in bytes(client.transport.written)) == (detached is not None)


async def test_a_shared_consumer_is_replaced_by_an_exclusive_one(server: FuzzServer) -> None:
    """Consumers without an owner level share a partition until one with a level attaches."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    await client.send(hub_reader("first", 2, "g", None), hub_reader("second", 3, "g", None))
    assert client.performatives(amqp.DETACH) == []
    await client.send(hub_reader("third", 4, "g", 0))
    handles = {fields[0]: fields[1] for fields in client.performatives(amqp.ATTACH)}
    detached = {fields[0] for fields in client.performatives(amqp.DETACH)}
    assert detached == {handles["first"], handles["second"]}


def session_reader(name: str | None, milliseconds: int | None = None) -> bytes:
    """Return an attach on handle 2 for a session, or for any session, with a time-out."""
    session_filter = {amqp.Symbol("com.microsoft:session-filter"): name}
    source = amqp.described(0x28, "sessions", *[None] * 6, session_filter)
    properties = None if milliseconds is None else {amqp.Symbol("com.microsoft:timeout"): UInt(milliseconds)}
    ends = (amqp.Raw(source), amqp.Raw(amqp.described(0x29, "here")))
    return amqp.performative(amqp.ATTACH, "reader", UInt(2), True, None, None, *ends, *[None] * 6, properties)


def session_message() -> bytes:
    return amqp.described(0x73, "m", *[None] * 9, "s") + b"\x00\x53\x77\x41"


@pytest.mark.parametrize(("milliseconds", "seconds"), [(5_000, 5), (None, 60), (0, 60)])
async def test_a_receiver_waits_for_a_session_for_its_time_out(
    server: FuzzServer, milliseconds: int | None, seconds: int
) -> None:
    """The default is a minute, as in the service. Its attach is answered when a session is free, or with an error."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"), session_reader(None, milliseconds))
    before = len(client.performatives(amqp.ATTACH))
    for step, refused in ((seconds - 0.5, False), (1.0, True)):
        server.clock.time += step
        server.server.schedule()
        await server.turn()
        assert (b"com.microsoft:timeout" in bytes(client.transport.written)) == refused
        assert len(client.performatives(amqp.ATTACH)) == before + refused


async def test_a_waiting_receiver_is_refused_by_a_fault_when_a_session_comes(server: FuzzServer) -> None:
    """A fault on attaches applies to a link that is opened after a wait."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"), session_reader(None))
    faults = server.server.faults
    faults.add(faults.read({"kind": "unavailable", "entity": "sessions"}))
    server.broker.send(queue_of(server, "sessions"), [read_message(session_message())], server.clock())
    await server.turn()
    assert client.performatives(amqp.DETACH)
    assert b"com.microsoft:session-filter" not in bytes(client.transport.written)


async def test_an_opened_session_link_has_the_session_s_id_and_the_end_of_its_lock(server: FuzzServer) -> None:
    """The SDKs read the id from the filter, and the end in .NET's ticks from a property."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"), session_reader("s"))
    attached = client.performatives(amqp.ATTACH)[-1]
    assert attached[5].value[7] == {"com.microsoft:session-filter": "s"}  # type: ignore[attr-defined]
    lock_end = server.clock() + 5
    assert attached[13] == {"com.microsoft:locked-until-utc": (int(lock_end * 1000) + 62_135_596_800_000) * 10_000}


async def test_links_continue_after_a_black_hole(server: FuzzServer) -> None:
    """Messages are delivered to an open link; an attach that was swallowed is refused."""
    client = Client(server)
    await client.send(
        *amqp.authorized("sb://localhost/", "token"), amqp.attach("in", 2, "orders", receiver=True), amqp.flow(2, 10)
    )
    faults, before = server.server.faults, len(client.performatives(amqp.TRANSFER))
    faults.add(faults.read({"kind": "black-hole", "entity": "orders"}))
    await client.send(amqp.attach("late", 3, "orders", receiver=True))
    server.broker.send(queue_of(server, "orders"), [read_message(amqp.message(b"x"))], server.clock())
    await server.turn()
    assert len(client.performatives(amqp.TRANSFER)) == before
    faults.clear()
    client.connection.recover()
    await server.turn()
    assert len(client.performatives(amqp.TRANSFER)) == before + 1
    assert b"amqp:link:detach-forced" in bytes(client.transport.written)
    assert client.connection.unanswered_links == {}


async def test_a_swallowed_attach_is_forgotten_with_its_session(server: FuzzServer) -> None:
    """Its link is freed with the session: it cannot be answered after the black hole."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    faults = server.server.faults
    faults.add(faults.read({"kind": "black-hole", "entity": "orders"}))
    for end in (amqp.performative(amqp.DETACH, UInt(2), True), amqp.performative(amqp.END)):
        await client.send(amqp.attach("late", 2, "orders", receiver=True))
        assert list(client.connection.unanswered_links.values()) == ["orders"]
        await client.send(end)
        assert client.connection.unanswered_links == {}


async def test_a_receiver_continues_when_its_session_has_room(server: FuzzServer) -> None:
    """Only some megabytes are buffered beyond the session's window; a wider window lets all of them through."""
    client = Client(server)
    links, token = amqp.authorized("sb://localhost/", "token")
    await client.send(links.replace(amqp.begin(), amqp.begin(incoming_window=60)), token)
    queue = queue_of(server, "orders")
    for _ in range(40):
        server.broker.send(queue, [read_message(amqp.message(b"x" * 200_000))], server.clock())
    await client.send(amqp.attach("in", 2, "orders", receiver=True), amqp.flow(2, 100, window=59))
    for _ in range(20):
        await server.turn()
    transfers = len(client.performatives(amqp.TRANSFER))
    assert transfers <= 60
    wider = amqp.performative(amqp.FLOW, UInt(transfers), UInt(5000), UInt(1), UInt(5000))
    await client.send(wider)
    for _ in range(20):
        await server.turn()
    tags = {fields[2] for fields in client.performatives(amqp.TRANSFER)}
    assert len(tags) == 1 + 40  # the reply of `$cbs`, and the messages


@pytest.mark.parametrize("messages", [0, 1])
async def test_a_drain_uses_up_the_credit(server: FuzzServer, messages: int) -> None:
    """The messages that there are come first; then the server advances the delivery-count to the end of the credit."""
    client = Client(server)
    await client.send(*amqp.authorized("sb://localhost/", "token"), amqp.attach("in", 2, "orders", receiver=True))
    for _ in range(messages):
        server.broker.send(queue_of(server, "orders"), [read_message(amqp.message(b"x"))], server.clock())
    before = len(client.performatives(amqp.TRANSFER))
    handle = client.performatives(amqp.ATTACH)[-1][1]
    fields = (UInt(before), UInt(5000), UInt(1), UInt(5000), UInt(2), UInt(0), UInt(10), None, True)
    await client.send(amqp.performative(amqp.FLOW, *fields))
    await server.turn()
    assert len(client.performatives(amqp.TRANSFER)) == before + messages
    drained = [found for found in client.performatives(amqp.FLOW) if found[4] == handle][-1]
    assert (drained[5], drained[6]) == (10, 0)


async def test_a_sender_link_has_the_limits_of_a_message_and_of_a_batch(server: FuzzServer) -> None:
    """A batch is limited to a megabyte, however large one message may be."""
    client = Client(server)
    server.broker.create_queue(QueueSettings("large", max_message_size_in_kilobytes=2048))
    await client.send(*amqp.authorized("sb://localhost/", "token"))
    for handle, queue, message, batch in ((2, "orders", 256, 256), (3, "large", 2048, 1024)):
        await client.send(amqp.attach(queue, handle, queue))
        attached = client.performatives(amqp.ATTACH)[-1]
        assert attached[10] == message * 1024
        assert attached[13] == {"com.microsoft:max-message-batch-size": batch * 1024}
