"""A connection without a socket: its time limits, its memory limit, and the frames that it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pairbus.domain.amqp.codec import UInt
from pairbus.localbus.amqp.connection import AmqpConnection
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
