"""The HTTP protocol of the management port: valid clients, and the limits for others."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.localbus.rest.http import HttpProtocol, Request, Response, read_target
from tests.support.protocol_server import serving

Handler = Callable[[Request], Awaitable[Response]]


async def echo(request: Request) -> Response:
    if request.path == "boom":
        raise RuntimeError("a secret detail")
    if request.path == "slow":
        await asyncio.sleep(0.2)
    if request.path == "rude":
        return Response(200, headers={"X": "a\r\nb"})
    return Response(200, f"{request.method} {request.path} {request.query} ".encode() + request.body)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(lambda: HttpProtocol(echo, idle_timeout=1.0, request_timeout=0.4, linger=0.3)) as port:
        yield port


class HttpClient:
    """A raw socket that collects the response bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.seen = b""

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> HttpClient:
        self.socket.sendall(data)
        return self

    def until(self, end: bytes) -> bytes:
        while end not in self.seen:
            data = self.socket.recv(65536)
            assert data, f"closed before {end!r}: {self.seen[-300:]!r}"
            self.seen += data
        return self.seen

    def rest(self) -> bytes:
        while data := self.socket.recv(65536):
            self.seen += data
        return self.seen


def test_a_connection_is_kept_for_further_requests(port: int) -> None:
    """Two requests, one after the other, get responses on one connection."""
    with HttpClient(port) as wire:
        wire.send(b"GET /a?X=1 HTTP/1.1\r\nHost: h\r\n\r\n").until(b"GET a {'x': '1'}")
        wire.send(b"PUT /b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi").until(b"PUT b {} hi")


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    """A slow first request holds the second back."""
    with HttpClient(port) as wire:
        wire.send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        seen = wire.until(b"GET b {}")
        assert seen.index(b"GET slow {}") < seen.index(b"GET b {}")


def test_a_chunked_body_is_put_together(port: int) -> None:
    """The handler gets one body, however it was sent."""
    with HttpClient(port) as wire:
        wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")
        wire.until(b"PUT a {} hello")


def test_expect_100_continue_is_answered(port: int) -> None:
    """A client that expects it gets 100 before it sends its body."""
    with HttpClient(port) as wire:
        wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        wire.until(b"100 Continue\r\n\r\n")
        wire.send(b"hi").until(b"PUT a {} hi")


def test_expect_100_continue_is_refused_when_too_large(port: int) -> None:
    """A body above the limit is refused before it is sent."""
    with HttpClient(port) as wire:
        wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999\r\nExpect: 100-continue\r\n\r\n")
        seen = wire.rest()
        assert seen.startswith(b"HTTP/1.1 413 ")
        assert b"100 Continue" not in seen


def test_a_body_of_exactly_the_limit_is_taken(port: int) -> None:
    """1 MB is allowed, one byte more is not."""
    body = b"z" * 1024 * 1024
    with HttpClient(port) as wire:
        wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)).send(body)
        wire.until(b"PUT a {} zzz")


def test_a_larger_body_gets_413_and_the_response_is_readable(port: int) -> None:
    """The response is not lost in a reset while the client is still sending."""
    with HttpClient(port) as wire:
        wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(24):
            wire.send(b"10000\r\n" + b"z" * 0x10000 + b"\r\n")
        seen = wire.rest()
        assert seen.startswith(b"HTTP/1.1 413 ")
        assert b"<Code>413</Code>" in seen


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/3.0\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nHost: g\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nBad Header: x\r\n\r\n",
        b"GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /?a=%ff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /?" + b"a&" * 500 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 70_000,
    ],
)
def test_an_invalid_request_is_refused_and_the_connection_closed(port: int, request_bytes: bytes) -> None:
    """Invalid bytes get a status of 400 to 499 and a closed connection."""
    with HttpClient(port) as wire:
        seen = wire.send(request_bytes).rest()
        assert seen.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505"))
        assert b"Connection: close" in seen


def test_an_incomplete_request_times_out(port: int) -> None:
    """A client that stalls within a request gets 408 after the request's time limit."""
    with HttpClient(port) as wire:
        assert (
            wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhi").rest().startswith(b"HTTP/1.1 408 ")
        )


def test_single_bytes_do_not_extend_the_time_limit(port: int) -> None:
    """The time limit is for the whole request: a byte at a time does not extend it."""
    begun = time.monotonic()
    with HttpClient(port) as wire:
        wire.socket.settimeout(0.05)
        for byte in b"GET /a HTTP/1.1\r\nHost: " + b"h" * 200:
            try:
                wire.send(bytes([byte]))
                if wire.socket.recv(10):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - begun < 8


def test_an_idle_connection_is_closed(port: int) -> None:
    """A connection without a request is closed after the idle time limit."""
    with HttpClient(port) as wire:
        assert wire.rest() == b""


def test_a_failing_handler_is_a_500_with_an_id_that_is_in_the_log(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """The response has an id, the log the exception, and the connection stays open."""
    with caplog.at_level(logging.ERROR, "pairbus.localbus.http"), HttpClient(port) as wire:
        seen = wire.send(b"GET /boom HTTP/1.1\r\nHost: h\r\n\r\n").until(b"</Error>")
        assert seen.startswith(b"HTTP/1.1 500 ")
        assert b"secret" not in seen
        incident = seen.partition(b"TrackingId:")[2][:32].decode()
        assert incident in caplog.text
        wire.send(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n").until(b"GET a {}")


def test_an_invalid_response_closes_only_its_connection(port: int, caplog: pytest.LogCaptureFixture) -> None:
    """A handler's header with a line break is not sent."""
    with HttpClient(port) as wire, suppress(ConnectionResetError):
        assert wire.send(b"GET /rude HTTP/1.1\r\nHost: h\r\n\r\n").rest() == b""
    with HttpClient(port) as wire:
        wire.send(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n").until(b"GET a {}")


def test_http_1_0_and_connection_close_end_the_connection(port: int) -> None:
    """A client that asks for one response gets one, and the connection is closed."""
    for head in (b"GET /a HTTP/1.0\r\n\r\n", b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"):
        with HttpClient(port) as wire:
            assert b"GET a {}" in wire.send(head).rest()


def test_head_has_no_body(port: int) -> None:
    """The response to HEAD has the length alone, and the next response begins after it."""
    with HttpClient(port) as wire:
        wire.send(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        seen = wire.until(b"GET b {}")
        assert b"HEAD a" not in seen


def test_a_client_that_does_not_read_is_disconnected() -> None:
    """Its next request is not started; responses do not accumulate, and the connection is aborted in time."""
    started, lost = [], threading.Event()

    async def generous(request: Request) -> Response:
        started.append(request.path)
        return Response(200, b"x" * 16_000_000)

    class Watched(HttpProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    with serving(lambda: Watched(generous, idle_timeout=0.3)) as port, HttpClient(port) as wire:
        wire.send(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" * 5)
        assert lost.wait(5)
    assert started == ["large"]


def test_a_request_is_finished_after_its_client_disconnects() -> None:
    """A request that has reached its handler is finished."""
    finished = []

    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.2)
        finished.append(request.path)
        return Response(200)

    with serving(lambda: HttpProtocol(slow)) as port:
        with HttpClient(port) as wire:
            wire.send(b"PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
            time.sleep(0.05)
        deadline = time.monotonic() + 5
        while not finished and time.monotonic() < deadline:
            time.sleep(0.01)
    assert finished == ["a"]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "", {}),
        ("/a/b/?API-Version=2021-05&$Skip=1", "a/b/", {"api-version": "2021-05", "$skip": "1"}),
        ("/a%2Fb%20c?x", "a/b c", {"x": ""}),
        ("https://h:1/a?b=c%26d", "a", {"b": "c&d"}),
        ("https://h", "", {}),
        ("/$Resources/queues?&$top=2#f", "$Resources/queues", {"$top": "2"}),
    ],
)
def test_request_targets_are_decoded(target: str, path: str, query: dict[str, str]) -> None:
    """Paths are decoded and have no first slash, query keys are in lower case."""
    assert read_target(target) == (path, query)


class _Transport(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.out += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


_PIECES = st.sampled_from(
    [
        b"GET /a HTTP/1.1\r\n",
        b"PUT /b HTTP/1.1\r\n",
        b"Host: h\r\n",
        b"Content-Length: 3\r\n",
        b"\r\n",
        b"abc",
        b"0",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"3\r\n",
        b"Connection: close\r\n",
        b"\x00",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PIECES | st.binary(max_size=30), max_size=20))
def test_no_bytes_raise_into_the_event_loop(pieces: list[bytes]) -> None:
    """For any bytes, in any pieces, the protocol responds, waits or closes."""

    async def run() -> None:
        protocol, transport = HttpProtocol(echo), _Transport()
        protocol.connection_made(transport)
        for piece in pieces:
            protocol.data_received(piece)
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        assert transport.out == b"" or transport.out.startswith(b"HTTP/1.1 ")

    asyncio.run(run())
