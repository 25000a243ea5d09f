"""AMQP over WebSockets, with Microsoft's clients and with clients that break the rules."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from hypothesis import given
from hypothesis import strategies as st
from websocket import ABNF, WebSocket, WebSocketBadStatusException, create_connection
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Ping, Request, TextMessage

from pairbus.localbus import LocalBus
from pairbus.localbus.rest import http, websocket
from tests.support import amqp_frames as amqp
from tests.support.process_fixtures import is_running
from tests.support.scenarios import scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients, bodies

#: What the SDK's async client asks aiohttp for.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")
ENTITIES = "[[event_hubs]]\nname = 'telemetry'\npartition_count = 1\n"
AMQP = b"AMQP\x03\x01\x00\x00"
BIG = 5_000_000


def over_websockets(bus: LocalBus, case: str) -> tuple[str, dict[str, Any]]:
    """Return the connection string and options for a client that uses `ws` or `wss` on localbus's port."""
    options = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://{bus.host}:{bus.port}",
        "retry_total": 0,
    }
    if case == "ws":
        return bus.connection_string, options
    return bus.tls_connection_string, {**options, "connection_verify": bus.ca_file}


@scenario(cases=("ws", "wss"))
async def test_the_sdk_sends_and_receives(at: SdkClients, case: str) -> None:
    """A message larger than a frame, and a batch, are sent, received and settled, plain and with TLS."""
    queue = await at.queue(max_message_size_in_kilobytes=10_240)
    cls = ServiceBusClient if at.kind == "sync" else AsyncServiceBusClient
    connection_string, options = over_websockets(at.bus, case)
    async with AsyncFacade(cls.from_connection_string(connection_string, **options)) as client:
        # The sync client gives a WebSocket one second for each step.
        patience = {"socket_timeout": 10} if at.kind == "sync" else {}
        async with client.get_queue_sender(queue, **patience) as sender:
            await sender.send_messages(ServiceBusMessage(b"x" * BIG))
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        async with client.get_queue_receiver(queue, **patience) as receiver:
            big, *small = await at.take(receiver, 3)
            assert (len(str(big)), bodies(small)) == (BIG, ["a", "b"])
            for message in (big, *small):
                await receiver.complete_message(message)
    await at.settled(queue)


def test_the_event_hubs_sdk_sends(bus: LocalBus) -> None:
    """Event Hubs' producer uses the same path."""
    connection_string, options = over_websockets(bus, "ws")
    with EventHubProducerClient.from_connection_string(
        connection_string, eventhub_name="telemetry", socket_timeout=10, **options
    ) as producer:
        producer.send_event(EventData("hello"))
        assert producer.get_partition_properties("0")["last_enqueued_sequence_number"] == 0


# --- clients that keep to no rule ------------------------------------------------------------------------------------


def dial(bus: LocalBus, path: str = "$servicebus/websocket", *subprotocols: str) -> WebSocket:
    return create_connection(
        f"ws://{bus.host}:{bus.port}/{path}", subprotocols=list(subprotocols) or ["AMQPWSB10"], timeout=30
    )


def received(connection: WebSocket) -> bytes:
    found = connection.recv()
    assert isinstance(found, bytes)
    return found


@pytest.fixture
def connected(bus: LocalBus) -> Iterator[WebSocket]:
    """Open a WebSocket; assert at the end that the server serves the next one."""
    found = dial(bus)
    yield found
    found.shutdown()
    again = dial(bus)
    again.send_binary(AMQP)
    assert received(again).startswith(AMQP)
    again.shutdown()


@pytest.mark.parametrize(
    ("path", "offered", "chosen"),
    [
        ("$servicebus/websocket", ["AMQPWSB10"], "AMQPWSB10"),
        ("$servicebus/websocket/", ["amqp"], "amqp"),
        ("%24servicebus/WebSocket?x=1", ["mqtt", "amqp", "AMQPWSB10"], "AMQPWSB10"),
    ],
)
def test_a_valid_handshake(bus: LocalBus, path: str, offered: list[str], chosen: str) -> None:
    """With and without a trailing slash, and with both names of the subprotocol."""
    found = dial(bus, path, *offered)
    assert found.getsubprotocol() == chosen.lower()  # it is this client that lowers it
    found.shutdown()


def test_an_invalid_handshake(bus: LocalBus) -> None:
    """Another subprotocol, another path, or a missing header gets an HTTP error and no WebSocket."""
    for path, subprotocol, status in (("$servicebus/websocket", "mqtt", 400), ("$servicebus/other", "AMQPWSB10", 401)):
        with pytest.raises(WebSocketBadStatusException) as refused:
            dial(bus, path, subprotocol)
        assert refused.value.status_code == status
    asked = b" /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for method, code, said in ((b"GET", b"400", b"Sec-WebSocket-Version"), (b"POST", b"401", b"")):
        with socket.create_connection((bus.host, bus.port), timeout=30) as plain:
            plain.sendall(method + asked)
            answer = plain.recv(4096)
        assert answer.startswith(b"HTTP/1.1 " + code)
        assert said in answer


def test_amqp_is_independent_of_frame_boundaries(connected: WebSocket) -> None:
    """AMQP's bytes may be cut anywhere, also in a frame of 8 GB: those that have arrived are handled."""
    for byte in AMQP[:-1]:
        connected.send_binary(bytes((byte,)))
    connected.ping(b"still there?")
    assert connected.recv_frame().opcode == ABNF.OPCODE_PONG
    connected.sock.sendall(struct.pack(">BBQ", 0x82, 0xFF, 8 << 30) + b"\x00" * 4 + AMQP[-1:])
    assert received(connected).startswith(AMQP)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\x82\x00\x00\x00\x00hi", 1003),  # text
        (b"\x82\x02hi", 1002),  # not masked
        (b"\x83\x80\x00\x00\x00\x00", 1002),  # of no kind there is
        (b"\x89\xfe\x01\x00", 1002),  # a ping too long
        (b"\xc2\x80\x00\x00\x00\x00", 1002),  # of an extension
        (b"\x88\x82\x00\x00\x00\x00\x03\xe8", 1000),  # a normal close
    ],
)
def test_an_invalid_frame_closes_the_websocket(connected: WebSocket, sent: bytes, code: int) -> None:
    """The close frame names the error, and the socket is closed."""
    connected.sock.sendall(sent)
    last = connected.recv_frame()
    assert (last.opcode, struct.unpack(">H", last.data[:2])[0]) == (ABNF.OPCODE_CLOSE, code)
    assert connected.sock.recv(1) == b""


def test_pings_whose_pongs_are_not_read_fill_no_memory(bus: LocalBus, connected: WebSocket) -> None:
    """The server stops reading while its output is not read."""
    connected.sock.settimeout(0.5)
    connected.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    flood = (b"\x89\xfd" + b"\x00" * 4 + b"x" * 125) * 1000
    sent = 0
    with suppress(TimeoutError):
        while sent < 48 << 20:
            sent += connected.sock.send(flood[sent % len(flood) :])
    assert sent < 48 << 20
    assert is_running(bus.pid)


def test_a_stopping_bus_closes_every_layer_in_order() -> None:
    """AMQP's close is sent before the WebSocket's, and that before the socket is closed."""
    with LocalBus() as bus:
        client = dial(bus)
        client.send_binary(amqp.hello())
        said = b""
        while b"\x00\x53\x10" not in said:
            said += client.recv()
        stopping = threading.Thread(target=bus.stop)
        stopping.start()
        said = b""
        while (frame := client.recv_frame()).opcode == ABNF.OPCODE_BINARY:
            said += frame.data
        assert b"amqp:connection:forced" in said
        assert frame.opcode == ABNF.OPCODE_CLOSE
        with suppress(ConnectionError):  # it waits for this answer for a second
            client.send_close()
            assert client.sock.recv(1) == b""
        stopping.join()
        client.shutdown()


# --- without sockets -------------------------------------------------------------------------------------------------


class Amqp(asyncio.Protocol):
    """A protocol that records its input."""

    def __init__(self) -> None:
        self.got = b""
        self.ended = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool:
        self.ended = True
        return False


class RecordingTransport(asyncio.Transport):
    """A transport that records its output."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close


def opened() -> tuple[websocket.WebSocket, Amqp, RecordingTransport, WSConnection]:
    """Return a WebSocket without a socket, and its client."""
    client = WSConnection(ConnectionType.CLIENT)
    asked = client.send(Request(host="x", target="/$servicebus/websocket", subprotocols=["AMQPWSB10"])).decode()
    lines = [line.split(": ") for line in asked.strip().split("\r\n")[1:]]
    headers = {name.lower(): value for name, value in lines}
    peer, wire = Amqp(), RecordingTransport()
    made = websocket.upgrade(http.Request("GET", websocket.PATH, {}, headers, b"", f"/{websocket.PATH}"), lambda: peer)
    assert made is not None
    made.connection_made(wire)
    client.receive_data(wire.written)
    assert [type(event) for event in client.events()] == [AcceptConnection]
    wire.written = b""
    return made, peer, wire, client


PIECES = st.lists(st.binary(max_size=70) | st.just("ping"), max_size=8)


@given(PIECES, st.integers(1, 40), st.sampled_from(("", "close", "text", "garbage")), st.binary(max_size=30))
async def test_payloads_arrive_once_and_in_order(
    pieces: list[bytes | str], step: int, end: str, garbage: bytes
) -> None:
    """For any frames and reads, pings are answered and AMQP gets the bytes and one end of the stream."""
    made, peer, wire, client = opened()
    sent = b"".join(
        client.send(Ping(payload=b"p")) if isinstance(piece, str) else client.send(BytesMessage(data=piece))
        for piece in pieces
    )
    sent += client.send(TextMessage(data="text")) if end == "text" else b""
    sent += b"\x88\x80\x00\x00\x00\x00" if end == "close" else garbage if end == "garbage" else b""
    for at in range(0, len(sent), step):
        made.data_received(sent[at : at + step])
    whole = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    assert peer.got == whole if end != "garbage" else peer.got.startswith(whole)
    assert peer.ended == wire.closed
    assert wire.closed or end in ("", "garbage")
    assert wire.written.count(b"\x8a\x01p") >= pieces.count("ping") or wire.closed
    made.data_received(b"more")  # bytes after the end are ignored
    made.connection_lost(None)


async def test_output_is_cut_into_frames() -> None:
    """Four megabytes become many frames, in order; nothing is written after the end."""
    made, peer, wire, client = opened()
    assert peer.transport is not None
    data = bytes(range(256)) * 16 * 1024
    peer.transport.write(data)
    peer.transport.write_eof()
    peer.transport.write(b"late")
    client.receive_data(wire.written)
    *frames, _ = client.events()
    pieces = [frame.data for frame in frames if isinstance(frame, BytesMessage)]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 1 << 20
    made.connection_lost(None)


async def test_a_websocket_without_amqp_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time limit, unless AMQP's bytes have begun; AMQP has time limits of its own."""
    monkeypatch.setattr(websocket, "_FIRST_BYTE_SECONDS", 0.02)
    (silent, _, first, pinging), (used, peer, second, client) = opened(), opened()
    silent.data_received(pinging.send(Ping()) + pinging.send(BytesMessage(data=b"")))
    used.data_received(client.send(BytesMessage(data=b"AMQP")))
    await asyncio.sleep(0.1)
    assert (first.closed, second.closed) == (True, False)
    assert peer.got == b"AMQP"
    for each in (silent, used):
        each.connection_lost(None)
