"""Hostile and defective clients of a real localbus process.

After each test the process is alive, has not grown, and serves the Azure SDK on another connection.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.domain.amqp.codec import Symbol, UInt, ULong, encode, encode_map
from pairbus.localbus import LocalBus
from tests.support import amqp_frames as amqp
from tests.support.amqp_frames import Peer
from tests.support.process_fixtures import active

MEGABYTE = 1024 * 1024
TOKEN = "any.jwt.token"
ENTITIES = """
[[queues]]
name = "witness"

[[queues]]
name = "target"

[[queues]]
name = "full"

[[topics]]
name = "news"

[[topics.subscriptions]]
name = "some"

[[topics.subscriptions.rules]]
name = "r"
sql = "a > 1 AND b LIKE '%x%'"
action = "SET c = a + 1; REMOVE b"
"""


class Witness:
    """The Azure SDK on connections of its own, which must not be affected."""

    def __init__(self, bus: LocalBus) -> None:
        self._client = ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0)
        self._sender = self._client.get_queue_sender("witness")
        self._receiver = self._client.get_queue_receiver("witness")
        self._number = 0

    def is_served(self) -> None:
        self._number += 1
        text = f"still here {self._number}"
        self._sender.send_messages(ServiceBusMessage(text), timeout=10)
        got = self._receiver.receive_messages(1, max_wait_time=60)
        assert [str(each) for each in got] == [text]
        self._receiver.complete_message(got[0])

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
        self._client.close()


def resident_bytes(bus: LocalBus) -> int:
    """Return the resident memory of the process."""
    status = Path(f"/proc/{bus.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def open_files(bus: LocalBus) -> int:
    return len(os.listdir(f"/proc/{bus.pid}/fd"))


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBus]:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is measured through /proc")
    entities = tmp_path_factory.mktemp("hostile") / "entities.toml"
    entities.write_text(ENTITIES)
    with LocalBus(entities=entities, accept_any_jwt=True) as started:
        yield started


@pytest.fixture(scope="module")
def witness(bus: LocalBus) -> Iterator[Witness]:
    started = Witness(bus)
    started.is_served()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def unharmed(bus: LocalBus, witness: Witness) -> Iterator[None]:
    """Assert after every test that the process is alive and serves the SDK."""
    pid, before, files = bus.pid, resident_bytes(bus), open_files(bus)
    yield
    assert Path(f"/proc/{pid}").exists(), "the process died"
    witness.is_served()
    grown = resident_bytes(bus) - before
    assert grown < 80 * MEGABYTE, f"the process grew by {grown / MEGABYTE:.0f} MB"
    deadline = time.monotonic() + 60
    while open_files(bus) > files + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert open_files(bus) <= files + 2, "connections were left open"


def connected(bus: LocalBus, **options: Any) -> Peer:
    """Return a raw client with a token for everything; `$cbs` is on handles 0 and 1."""
    peer = Peer(bus.port, **options)
    links, token = amqp.authorized(f"sb://127.0.0.1:{bus.port}/", TOKEN)
    peer.send(links)
    peer.expect(amqp.FLOW)
    peer.send(token)
    peer.expect(amqp.TRANSFER)
    return peer


def fill(bus: LocalBus, queue: str, count: int, size: int) -> None:
    """Send messages that the test will not read."""
    client = ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        for _ in range(count):
            sender.send_messages(ServiceBusMessage(b"x" * size), timeout=10)


def drain(bus: LocalBus, queue: str) -> None:
    with connected(bus) as peer:
        peer.send(amqp.attach("drain", 2, queue, receiver=True, settled=True) + amqp.flow(2, 100_000, window=100_000))
        until = time.monotonic() + 60
        while active(bus, queue) and time.monotonic() < until:
            with suppress(TimeoutError):
                for _ in peer.frames(0.2):
                    pass


# --- clients that do not read -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full_queue(bus: LocalBus) -> str:
    fill(bus, "full", 320, 200_000)
    return "full"


@pytest.mark.parametrize("window", [0, 1, 2**31 - 1], ids=["window of 0", "window of 1", "endless window"])
def test_a_client_that_does_not_read_uses_little_memory(
    bus: LocalBus, witness: Witness, full_queue: str, window: int
) -> None:
    """Of 64 MB for a client with unlimited credit that never reads, only a few MB are buffered."""
    with connected(bus, receive_buffer=4096) as peer:
        before = resident_bytes(bus)
        peer.send(amqp.attach("in", 2, full_queue, receiver=True, settled=False))
        peer.send(amqp.flow(2, 2**32 - 1, window=window))
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            assert resident_bytes(bus) - before < 40 * MEGABYTE
            time.sleep(0.05)
        witness.is_served()


def test_a_flood_with_added_latency_uses_little_memory(bus: LocalBus) -> None:
    """With seconds of latency a limited number of bytes is in transit; the client has to wait with the others."""
    peer = connected(bus)
    empty_frame = b"\0\0\0\x08\x02\0\0\0"
    before, sent = resident_bytes(bus), 0
    with bus.faults.during("latency", delay=15):
        peer.socket.settimeout(5.0)
        with suppress(TimeoutError):
            while sent < 200 * MEGABYTE:
                sent += peer.socket.send(empty_frame * 8192)
        assert resident_bytes(bus) - before < 64 * MEGABYTE
    assert 8 * MEGABYTE < sent < 100 * MEGABYTE
    peer.socket.close()


def test_requests_whose_replies_are_not_read_are_limited(bus: LocalBus, full_queue: str) -> None:
    """A client that peeks at thousands of large messages and reads no reply uses limited memory."""
    request = {"from-sequence-number": ULong(0), "message-count": 200}
    properties = {"operation": "com.microsoft:peek-message", "type": "entity-mgmt"}
    raw = (
        amqp.described(0x73, "1", None, None, None, "m")
        + b"\x00\x53\x74" + encode(properties) + b"\x00\x53\x77" + encode(request)
    )  # fmt: skip
    for credit in (1_000_000, 0):
        with connected(bus, receive_buffer=4096) as peer:
            peer.socket.settimeout(1)
            before = resident_bytes(bus)
            peer.send(
                amqp.attach("m-out", 2, f"{full_queue}/$management")
                + amqp.attach("m-in", 3, f"{full_queue}/$management", receiver=True, reply="m")
                + amqp.flow(3, credit, window=2**31 - 1)
            )
            started = time.monotonic()
            for n in range(1, 2_000):
                if not peer.send(amqp.transfer(2, n, raw)) or time.monotonic() - started > 3:
                    break
            time.sleep(0.3)
            assert resident_bytes(bus) - before < 80 * MEGABYTE  # replies of a gigabyte are waiting


def test_waiting_requests_are_limited(bus: LocalBus, full_queue: str) -> None:
    """Requests wait until replies are read; after some megabytes of them the connection is closed."""
    request = {"from-sequence-number": ULong(0), "message-count": 200}
    properties = {"operation": "com.microsoft:peek-message", "padding": b"x" * 60_000}
    raw = (
        amqp.described(0x73, "1", None, None, None, "m")
        + b"\x00\x53\x74" + encode(properties) + b"\x00\x53\x77" + encode(request)
    )  # fmt: skip
    with connected(bus) as peer:
        before = resident_bytes(bus)
        peer.send(
            amqp.attach("m-out", 2, f"{full_queue}/$management")
            + amqp.attach("m-in", 3, f"{full_queue}/$management", receiver=True, reply="m")
        )
        for n in range(1, 900):
            if not peer.send(amqp.transfer(2, n, raw)):
                break
        assert final_error(peer) == "amqp:resource-limit-exceeded"
        assert resident_bytes(bus) - before < 80 * MEGABYTE


def test_an_incomplete_frame_blocks_no_other_client(bus: LocalBus, witness: Witness) -> None:
    """Clients that stop at any place in a frame wait without effect on the others."""
    whole = b"".join(amqp.authorized("sb://x/", TOKEN))
    peers = [Peer(bus.port) for _ in range(40)]
    for n, peer in enumerate(peers):
        peer.send(whole[: 1 + n * 10])
    witness.is_served()
    for peer in peers:
        peer.socket.close()


# --- bytes that are no AMQP ---------------------------------------------------------------------------------------


def final_error(peer: Peer, seconds: float = 30.0) -> str | None:
    """Return the error of the server's close; assert that it closes the connection."""
    try:
        return peer.last_error(seconds)
    except TimeoutError:
        raise AssertionError("the server neither answered nor hung up") from None


def test_a_frame_of_4_gigabytes_is_refused(bus: LocalBus) -> None:
    """Before or after the open, such a frame is a framing error that ends the connection."""
    with Peer(bus.port) as peer:
        peer.send(amqp.SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00" + b"x" * 100)
        final_error(peer)
    with connected(bus) as peer:
        peer.send(b"\xff\xff\xff\xff\x02\x00\x00\x00" + b"x" * 100)
        assert final_error(peer) == "amqp:connection:framing-error"


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(bus: LocalBus, seed: int) -> None:
    """Random bytes at the start or in the middle of a connection."""
    rng = random.Random(seed)
    for _ in range(30):
        with Peer(bus.port) as peer:
            peer.send(rng.randbytes(rng.randrange(1, 500)))
    for start in (amqp.SASL_HEADER, amqp.AMQP_HEADER, amqp.hello()):
        with Peer(bus.port) as peer:
            peer.send(start + b"\xde\xad" + rng.randbytes(500))
            final_error(peer)


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x00\x09\x09\x01", b"AMQP\x00\x02\x00\x00", b"AMQP\x05\x01\x00\x00", b"AMQPxxxx",
     b"\x00\x00\x00\x00\x00\x00\x00\x00", b"\x7fELF\x02\x01\x01\x00"],
)  # fmt: skip
def test_a_wrong_header_is_answered_and_closed(bus: LocalBus, header: bytes) -> None:
    """A wrong protocol header is answered with the right one, as AMQP requires, and the connection is closed."""
    with Peer(bus.port) as peer:
        peer.send(header + b"\x00" * 20)
        seen = b""
        peer.socket.settimeout(30)
        try:
            while data := peer.socket.recv(4096):
                seen += data
        except ConnectionError:
            pass
        assert seen[:4] == b"AMQP"


def encrypted(bus: LocalBus) -> ssl.SSLSocket:
    """Return a TLS connection after its handshake."""
    context = ssl.create_default_context(cafile=bus.ca_file)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", bus.port), 5), server_hostname="127.0.0.1")


def test_random_bytes_inside_tls(bus: LocalBus) -> None:
    """Random bytes after a handshake, an invalid handshake, and one that stops half-way."""
    for content in (os.urandom(300), b"AMQP\x00\x01\x00\x00" + os.urandom(300), b"GET " + os.urandom(300)):
        with encrypted(bus) as secure:
            secure.sendall(content)
            secure.settimeout(0.5)
            with suppress(OSError):
                while secure.recv(4096):
                    pass
    for start in (b"\x16\x03\x01" + os.urandom(200), b"\x16", b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection(("127.0.0.1", bus.port), 5) as plain:
            plain.sendall(start)


def test_http_abuse(bus: LocalBus) -> None:
    """Endless headers, huge bodies, wrong methods and odd paths get an error status or a closed connection."""
    context = ssl.create_default_context(cafile=bus.ca_file)

    def ask(raw: bytes) -> bytes:
        seen = b""
        with encrypted(bus) as secure, suppress(OSError):
            secure.sendall(raw)
            while b"\r\n\r\n" not in seen and (data := secure.recv(65_536)):
                seen += data
        return seen

    assert b" 431 " in ask(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 200_000)
    assert b" 413 " in ask(b"PUT /q HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
    assert b" 400 " in ask(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")
    for path in ("/%ff%fe", "/" + "a/" * 5_000, "/../../etc/passwd", "/$Resources/queues?$skip=-1&$top=abc"):
        connection = http.client.HTTPSConnection("127.0.0.1", bus.port, timeout=5, context=context)
        connection.request("GET", path)
        assert connection.getresponse().status in (400, 401, 414, 431)
        connection.close()


# --- frames in a wrong order, or of a wrong kind --------------------------------------------------------------------

ORDER: dict[str, bytes] = {
    "begin before open": amqp.SASL_HEADER + amqp.sasl_init() + amqp.AMQP_HEADER + amqp.begin(),
    "attach before begin": amqp.hello() + amqp.attach("x", 0, "target"),
    "transfer before attach": amqp.hello() + amqp.begin() + amqp.transfer(0, 0, b"x"),
    "transfer before begin": amqp.hello() + amqp.transfer(0, 0, b"x"),
    "flow before begin": amqp.hello() + amqp.flow(0, 10),
    "flow on no link": amqp.hello() + amqp.begin() + amqp.flow(7, 10),
    "detach of no link": amqp.hello() + amqp.begin() + amqp.performative(amqp.DETACH, UInt(5), True),
    "end of no session": amqp.hello() + amqp.performative(amqp.END, channel=9),
    "disposition before begin": amqp.hello() + amqp.disposition(0),
    "SASL twice": amqp.SASL_HEADER + amqp.sasl_init() + amqp.sasl_init() + amqp.AMQP_HEADER,
    "SASL in the middle": amqp.hello() + amqp.sasl_init(),
    "another header in the middle": amqp.hello() + amqp.AMQP_HEADER + amqp.SASL_HEADER,
    "a mechanism that is not there": amqp.SASL_HEADER + amqp.sasl_init("SCRAM-SHA-256") + amqp.AMQP_HEADER,
    "a frame of an unknown kind": amqp.hello() + amqp.frame(amqp.described(0x10, "x"), kind=7),
    "a channel beyond the limit": amqp.hello() + amqp.begin(60_000),
    "a handle beyond the limit": amqp.hello() + amqp.begin() + amqp.attach("x", 2**32 - 1, "target"),
}


@pytest.mark.parametrize("stream", ORDER.values(), ids=ORDER.keys())
def test_frames_in_a_wrong_order_end_the_connection(bus: LocalBus, stream: bytes) -> None:
    """A frame that is too early, or repeated, gets an error or a closed connection."""
    with Peer(bus.port) as peer:
        peer.send(stream)
        final_error(peer)


def test_a_second_open_or_begin_does_no_harm(bus: LocalBus) -> None:
    """A second open, or a second begin on a channel, affects no other client."""
    for stream in (
        amqp.hello() + amqp.open_(),
        amqp.hello() + amqp.begin() + amqp.begin() + amqp.attach("x", 0, "$cbs"),
    ):
        with Peer(bus.port) as peer:
            peer.send(stream)
            peer.send(amqp.performative(amqp.CLOSE))
            final_error(peer)


def test_deep_nesting_in_performatives(bus: LocalBus) -> None:
    """Deep values in an open, attach, flow, disposition or close are refused before a recursive decoder reads them."""
    for kind in (0xD0, 0xD1, 0xF0, 0):
        deep = amqp.Raw(amqp.nested(4_000, kind))
        with Peer(bus.port) as peer:
            peer.send(amqp.SASL_HEADER + amqp.sasl_init() + amqp.AMQP_HEADER + amqp.performative(amqp.OPEN, "x", deep))
            final_error(peer)
        for bad in (
            amqp.performative(amqp.ATTACH, "x", UInt(2), True, None, None, deep),
            amqp.performative(amqp.FLOW, *[None] * 10, deep),
            amqp.performative(amqp.DISPOSITION, True, UInt(0), None, True, deep),
            amqp.performative(amqp.CLOSE, deep),
        ):
            with connected(bus) as peer:
                peer.send(bad)
                assert final_error(peer) == "amqp:connection:framing-error"


def sender(bus: LocalBus, entity: str) -> Peer:
    """Return a raw client with a sender to an entity on handle 2."""
    peer = connected(bus)
    peer.send(amqp.attach("out", 2, entity))
    peer.expect(amqp.FLOW)
    return peer


def outcome(peer: Peer) -> tuple[int, str | None]:
    """Return the outcome of a transfer: the state's code, and the condition of a rejection."""
    state = peer.expect(amqp.DISPOSITION)[2][4]
    return int(state.descriptor), str(state.value[0].value[0]) if state.value else None


def test_deep_nesting_in_messages(bus: LocalBus) -> None:
    """A deep body is carried unread; a deep property that the broker reads is rejected; the link stays open."""
    deep = amqp.nested(3_000)
    head = amqp.described(0x73, "m")
    messages: list[tuple[bytes, int]] = [
        (head + b"\x00\x53\x77" + deep, 0x24),
        (head + b"\x00\x53\x74" + encode_map([encode("a"), deep]) + b"\x00\x53\x77\x40", 0x24),
        (head + b"\x00\x53\x74" + encode_map([deep, encode("a")]) + b"\x00\x53\x77\x40", 0x25),
        (amqp.described(0x73, amqp.Raw(deep)) + b"\x00\x53\x77\x40", 0x25),
        (b"\x00\x53\x72" + encode_map([deep, encode(1)]) + head + b"\x00\x53\x77\x40", 0x25),
        (b"\x00" * 3_000 + b"\x53\x77\x40", 0x25),
    ]
    for entity in ("target", "news"):
        with sender(bus, entity) as peer:
            for number, (raw, code) in enumerate(messages):
                peer.send(amqp.transfer(2, number + 1, raw))
                assert outcome(peer)[0] == code, number


def _hostile_map() -> bytes:
    """Return a megabyte of keys with one hash, which take quadratic time in an unprotected dictionary."""
    step = 2**61 - 1
    return encode_map([part for n in range(50_000) for part in (b"\x98" + (n * step).to_bytes(16, "big"), b"\x40")])


def test_huge_maps(bus: LocalBus, witness: Witness) -> None:
    """In an open, an attach, a message with rules and a request, huge maps are accepted or refused quickly."""
    many = amqp.Raw(encode({Symbol(f"k{n}"): n for n in range(5_000)}))
    started = time.monotonic()
    with Peer(bus.port) as peer:
        fields = ["x", "h", UInt(65_536), None, None, None, None, None, None, many]
        peer.send(amqp.SASL_HEADER + amqp.sasl_init() + amqp.AMQP_HEADER + amqp.performative(amqp.OPEN, *fields))
        peer.expect(amqp.OPEN)
    with sender(bus, "news") as peer:
        peer.send(amqp.performative(amqp.ATTACH, "x", UInt(3), True, *[None] * 10, many))
        properties = encode({f"k{n}": n for n in range(10_000)})
        raw = amqp.described(0x73, "m") + b"\x00\x53\x74" + properties + b"\x00\x53\x77\x40"
        for at in range(0, len(raw), 60_000):
            last = at + 60_000 >= len(raw)
            peer.send(amqp.transfer(2, 1 if at == 0 else None, raw[at : at + 60_000], more=not last))
        assert outcome(peer) == (0x24, None)
    with connected(bus) as peer:
        peer.send(amqp.attach("m-out", 2, "target/$management"))
        peer.expect(amqp.FLOW)
        raw = amqp.described(0x73, "1") + b"\x00\x53\x77" + _hostile_map()
        for at in range(0, len(raw), 60_000):
            last = at + 60_000 >= len(raw)
            peer.send(amqp.transfer(2, 1 if at == 0 else None, raw[at : at + 60_000], more=not last))
        peer.expect(amqp.DETACH)
    witness.is_served()
    assert time.monotonic() - started < 25


# --- too much of it -----------------------------------------------------------------------------------------------


def test_a_hundred_thousand_tiny_frames(bus: LocalBus, witness: Witness) -> None:
    """Empty frames, flows and dispositions without a delivery are processed while other clients are served."""
    with connected(bus) as peer:
        peer.send(amqp.frame(b"") * 60_000)
        witness.is_served()
        peer.send(amqp.flow(None, 0) * 20_000)
        peer.send(amqp.disposition(5_000, 6_000) * 20_000)
        witness.is_served()
        peer.send(amqp.performative(amqp.CLOSE))
        assert final_error(peer, 20) is None


def test_ten_thousand_links_on_one_connection(bus: LocalBus, witness: Witness) -> None:
    """The number of links is limited with an error; below the limit a link takes a few kilobytes."""
    with connected(bus) as peer:
        peer.socket.settimeout(20)
        kinds: list[Callable[[int], bytes]] = [
            lambda n: amqp.attach(f"l{n}", n, "target"),
            lambda n: amqp.attach(f"l{n}", n, "target", receiver=True),
            lambda n: amqp.attach(f"l{n}", n, "nowhere"),
        ]
        stream = b"".join(kinds[n % 3](n) for n in range(2, 10_000))
        for at in range(0, len(stream), 65_536):
            if not peer.send(stream[at : at + 65_536]):
                break
        assert final_error(peer, 20) == "amqp:connection:framing-error"


def test_the_number_of_sessions_is_limited(bus: LocalBus) -> None:
    """All sessions up to the agreed limit can be used; one above it ends the connection."""
    with Peer(bus.port) as peer:
        peer.send(amqp.hello() + b"".join(amqp.begin(n) for n in range(256)))
        for _ in range(256):
            peer.expect(amqp.BEGIN)
        peer.send(b"".join(amqp.begin(n) for n in range(256, 65_536)))
        assert final_error(peer) == "amqp:connection:framing-error"


def test_the_largest_credit_is_not_negative(bus: LocalBus) -> None:
    """A credit of 2^32 - 1 delivers messages."""
    with sender(bus, "target") as peer:
        peer.send(amqp.transfer(2, 1, amqp.message(b"for endless credit")))
        peer.expect(amqp.DISPOSITION)
        peer.send(amqp.attach("in", 3, "target", receiver=True, settled=True) + amqp.flow(3, 2**32 - 1))
        while b"for endless credit" not in peer.expect(amqp.TRANSFER)[3]:
            pass


def test_more_transfers_than_credit(bus: LocalBus) -> None:
    """A client that sends five times its credit is served or disconnected; accepted messages are kept."""
    with sender(bus, "target") as peer:
        stream = b"".join(amqp.transfer(2, n, amqp.message()) for n in range(1, 5_001))
        peer.send(stream)
        accepted = 0
        try:
            while accepted < 5_000:
                _, _, fields, _ = peer.expect(amqp.DISPOSITION)
                accepted += (fields[1] if fields[2] is None else fields[2]) - fields[1] + 1
        except (AssertionError, TimeoutError):
            pass
        assert accepted >= 1_000
    drain(bus, "target")


def test_a_message_beyond_the_limit_is_rejected_and_not_kept(bus: LocalBus) -> None:
    """A message of 50 MB for a queue with a limit of 256 KB is discarded as it arrives and rejected."""
    with sender(bus, "target") as peer:
        before = resident_bytes(bus)
        piece = b"x" * 60_000
        peer.send(amqp.transfer(2, 1, amqp.message(), more=True))
        for _ in range(800):
            peer.send(amqp.transfer(2, None, piece, more=True))
        assert resident_bytes(bus) - before < 16 * MEGABYTE
        peer.send(amqp.transfer(2, None, piece))
        assert outcome(peer) == (0x25, "amqp:link:message-size-exceeded")
        peer.send(amqp.transfer(2, 2, amqp.message()))
        assert outcome(peer) == (0x24, None)


def test_incomplete_messages_on_many_links_are_limited(bus: LocalBus) -> None:
    """A thousand links with incomplete messages of 256 KB each: the limit is per connection."""
    with connected(bus) as peer:
        before = resident_bytes(bus)
        piece = b"x" * 60_000
        for n in range(1_000):
            sent = peer.send(
                amqp.attach(f"l{n}", n + 2, "target")
                + amqp.transfer(n + 2, n + 1, piece, more=True)
                + amqp.transfer(n + 2, None, piece, more=True) * 3
            )
            if not sent:
                break
            assert resident_bytes(bus) - before < 96 * MEGABYTE
        assert final_error(peer) == "amqp:resource-limit-exceeded"


def test_aborted_deliveries(bus: LocalBus) -> None:
    """An aborted delivery leaves nothing in the queue or on the link."""
    drain(bus, "target")
    with sender(bus, "target") as peer:
        for n in range(1, 400, 2):
            peer.send(
                amqp.transfer(2, n, b"x" * 30_000, more=True)
                + amqp.transfer(2, None, b"", aborted=True)
                + amqp.transfer(2, n + 1, b"not a message", aborted=True)
            )
        peer.send(amqp.transfer(2, 401, amqp.message(b"whole")))
        while peer.expect(amqp.DISPOSITION)[2][1] != 401:
            pass
        peer.send(amqp.attach("in", 3, "target", receiver=True, settled=True) + amqp.flow(3, 10))
        assert b"whole" in peer.expect(amqp.TRANSFER)[3]


@pytest.mark.parametrize(
    "raw", [b"\xa1\x02\xff\xfe", b"\xa1\x04a\x00b\xff", b"\xa1\x01\x00", b"\xb1\x00\x00\x00\x03\xed\xa0\x80"]
)
def test_invalid_text(bus: LocalBus, raw: bytes) -> None:
    """Addresses and link names that are not UTF-8, or contain NUL, are refused by the link or the connection."""
    for bad in (
        amqp.performative(
            amqp.ATTACH, amqp.Raw(raw), UInt(2), False, None, None, None, amqp.Raw(amqp.described(0x29, "target"))
        ),
        amqp.performative(
            amqp.ATTACH, "x", UInt(2), False, None, None, None, amqp.Raw(amqp.described(0x29, amqp.Raw(raw)))
        ),
    ):
        with connected(bus) as peer:
            peer.send(bad + amqp.performative(amqp.CLOSE))
            final_error(peer)


def test_the_same_link_name_or_handle_twice(bus: LocalBus) -> None:
    """A name or handle in use cannot be used again: the server sends an error or closes the connection."""
    for second in (amqp.attach("out", 5, "target"), amqp.attach("other", 2, "target"), amqp.attach("out", 2, "target")):
        with sender(bus, "target") as peer:
            peer.send(second + amqp.transfer(2, 1, amqp.message()) + amqp.performative(amqp.DETACH, UInt(2), True))
            peer.send(amqp.performative(amqp.DETACH, UInt(2), True) + amqp.performative(amqp.CLOSE))
            final_error(peer)


def test_thousands_of_attaches_and_detaches(bus: LocalBus) -> None:
    """Thousands of attaches, detaches, begins and ends at once, and closes after the close."""
    with connected(bus) as peer:
        peer.socket.settimeout(20)
        for n in range(30):
            peer.send(
                b"".join(
                    amqp.attach(f"{n}-{m}", 2, "target", receiver=m % 2 == 0)
                    + amqp.performative(amqp.DETACH, UInt(2), m % 3 == 0)
                    for m in range(50)
                )
            )
            peer.send(b"".join(amqp.begin(9) + amqp.performative(amqp.END, channel=9) for _ in range(50)))
        peer.send(amqp.performative(amqp.CLOSE) * 50)
        final_error(peer, 20)
    for _ in range(100):
        with Peer(bus.port) as peer:
            peer.send(amqp.hello() + amqp.performative(amqp.CLOSE))


def test_clients_that_reset_in_the_middle_of_a_transfer(bus: LocalBus) -> None:
    """Incomplete messages and resets, many times: nothing stays in the queue or in memory."""
    drain(bus, "target")
    for n in range(60):
        with connected(bus) as peer:
            peer.send(
                amqp.attach("out", 2, "target")
                + amqp.attach("in", 3, "target", receiver=True)
                + amqp.flow(3, 10)
                + amqp.transfer(2, 1, amqp.message(b"half") + b"\x00\x53\x78", more=True)
                + amqp.transfer(2, None, b"y" * 50_000, more=True)[: 1_000 * (n % 60)]
            )
            if n % 2:
                linger = struct.pack("ii", 1, 0)
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    with connected(bus) as peer:
        peer.send(amqp.attach("in", 2, "target", receiver=True, settled=True) + amqp.flow(2, 10))
        with pytest.raises(TimeoutError):
            peer.expect(amqp.TRANSFER, 0.3)
