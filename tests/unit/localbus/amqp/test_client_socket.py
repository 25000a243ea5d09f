"""A client's socket: shares of the loop, added latency, backpressure, and the end of the output."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.localbus.amqp import client_socket
from pairbus.localbus.amqp.client_socket import ClientSocket
from pairbus.localbus.amqp.fairness import PIECE_BYTES, ActiveClients
from tests.support.waiting import wait_until_async


class Transport(asyncio.Transport):
    """A transport in memory."""

    def __init__(self, *, eof: bool = True) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.eof = eof
        self.ended = self.closed = self.aborted = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def can_write_eof(self) -> bool:
        return self.eof

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Server:
    """The parts of the server that a socket uses."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.faults = SimpleNamespace(connection_latency=0.0)
        self.active_clients = ActiveClients(self.loop.time)
        self.is_turn_due = False

    @contextlib.contextmanager
    def group_commit(self) -> Iterator[None]:
        yield


class Connection:
    """A connection that records its input."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.alive, self.closing = True, False
        self.served_in_shares = False
        self.pieces: list[bytes] = []
        self.writable_calls = 0
        self.close_after = 10**9

    def process(self, data: bytes) -> None:
        self.pieces.append(data)
        self.closing = len(self.pieces) >= self.close_after

    def on_writable(self) -> None:
        self.writable_calls += 1


def opened(*, eof: bool = True) -> tuple[ClientSocket, Connection, Transport]:
    connection: Any = Connection(Server())
    socket, transport = ClientSocket(connection), Transport(eof=eof)
    socket.open(transport)
    return socket, connection, transport


async def test_input_of_a_client_that_is_alone_is_processed_at_once() -> None:
    """However much it is."""
    socket, connection, _ = opened()
    data = b"x" * 10 * PIECE_BYTES
    socket.receive(data)
    assert connection.pieces == [data]
    assert not connection.served_in_shares


async def test_small_input_is_processed_at_once_beside_other_clients() -> None:
    """A piece is no more than a share."""
    socket, connection, _ = opened()
    connection.server.active_clients.record(object())
    socket.receive(b"x" * PIECE_BYTES)
    assert connection.pieces == [b"x" * PIECE_BYTES]
    assert not connection.served_in_shares


async def test_large_input_is_processed_in_shares_beside_other_clients() -> None:
    """In pieces and in order, with reading paused, and with later input behind it; then the client is as before."""
    socket, connection, transport = opened()
    connection.server.active_clients.record(object())
    data = bytes(range(256)) * (200 * PIECE_BYTES // 256)
    socket.receive(data)
    assert connection.served_in_shares
    assert not transport.reading
    assert len(connection.pieces) < 200
    socket.receive(b"later")
    await wait_until_async(lambda: transport.reading)
    assert b"".join(connection.pieces) == data + b"later"
    assert max(map(len, connection.pieces)) == PIECE_BYTES
    assert connection.served_in_shares
    socket.receive(b"small")
    assert connection.pieces[-1] == b"small"
    assert not connection.served_in_shares


async def test_no_input_is_processed_once_the_connection_is_closing() -> None:
    """The rest of a share is discarded, and so is later input."""
    socket, connection, _ = opened()
    connection.close_after = 2
    connection.server.active_clients.record(object())
    socket.receive(b"x" * 10 * PIECE_BYTES)
    await wait_until_async(lambda: connection.closing)
    socket.receive(b"later")
    socket.process_rest()
    await asyncio.sleep(0.01)
    assert len(connection.pieces) == 2


async def test_the_rest_is_processed_at_the_end_of_the_input() -> None:
    """Neither shares nor latency hold it back."""
    socket, connection, _ = opened()
    connection.server.active_clients.record(object())
    data = b"x" * 200 * PIECE_BYTES
    socket.receive(data)
    socket.process_rest()
    assert b"".join(connection.pieces) == data
    connection.server.faults.connection_latency = 60.0
    socket.receive(b"delayed")
    assert b"".join(connection.pieces) == data
    socket.process_rest()
    assert b"".join(connection.pieces) == data + b"delayed"


async def test_a_full_transport_stops_reading_until_it_has_room() -> None:
    """A client that does not read is not read from."""
    socket, connection, transport = opened()
    socket.pause()
    assert (socket.writable, transport.reading) == (False, False)
    socket.resume()
    assert (socket.writable, transport.reading, connection.writable_calls) == (True, True, 1)
    socket.resume()
    assert connection.writable_calls == 1


async def test_latency_delays_input_and_output_in_order() -> None:
    """Bytes that follow after the fault has ended do not overtake delayed ones."""
    socket, connection, transport = opened()
    connection.server.faults.connection_latency = 0.05
    socket.receive(b"1")
    socket.write(b"a")
    connection.server.faults.connection_latency = 0.0
    socket.receive(b"2")
    socket.write(b"b")
    assert (connection.pieces, transport.written) == ([], b"")
    await wait_until_async(lambda: len(connection.pieces) == 2 and transport.written == b"ab")
    assert connection.pieces == [b"1", b"2"]
    socket.write(b"c")
    assert transport.written == b"abc"


async def test_delayed_input_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit nothing is read until some of it has arrived."""
    monkeypatch.setattr(client_socket, "_MAX_DELAYED_INPUT_BYTES", 10)
    socket, connection, transport = opened()
    connection.server.faults.connection_latency = 0.02
    socket.receive(b"x" * 10)
    assert transport.reading
    socket.receive(b"y")
    assert not transport.reading
    await wait_until_async(lambda: transport.reading)
    assert connection.pieces[0] == b"x" * 10


async def test_delayed_output_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the connection is not writable until some of it has been sent."""
    monkeypatch.setattr(client_socket, "_MAX_OUTPUT_BYTES", 10)
    socket, connection, transport = opened()
    connection.server.faults.connection_latency = 0.02
    socket.write(b"x" * 10)
    assert socket.writable
    socket.write(b"y")
    assert not socket.writable
    await wait_until_async(lambda: socket.writable)
    assert connection.writable_calls == 1
    assert transport.written.startswith(b"x" * 10)


@pytest.mark.parametrize("eof", [True, False])
async def test_the_end_of_the_output_closes_one_direction_if_it_can(eof: bool) -> None:
    """Closing both directions would reset the socket, and the client could lose the last bytes."""
    socket, _, transport = opened(eof=eof)
    socket.end_output()
    assert (transport.ended, transport.closed, transport.aborted) == (eof, not eof, False)
    socket.lost()


async def test_a_client_that_does_not_read_the_last_bytes_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time limit, unless the socket is closed by then."""
    monkeypatch.setattr(client_socket, "_LINGER_SECONDS", 0.02)
    (lingering, _, first), (lost, _, second) = opened(), opened()
    lingering.end_output()
    lost.end_output()
    lost.lost()
    await wait_until_async(lambda: first.aborted)
    await asyncio.sleep(0.02)
    assert not second.aborted


async def test_delayed_bytes_of_a_lost_socket_are_discarded() -> None:
    """They neither reach the connection nor the transport."""
    socket, connection, transport = opened()
    connection.server.faults.connection_latency = 0.02
    socket.receive(b"1")
    socket.write(b"a")
    socket.lost()
    await asyncio.sleep(0.05)
    assert (connection.pieces, transport.written) == ([], b"")
