"""AMQP frames written by hand, valid and invalid, for tests that use no client library."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from pairbus.domain.amqp.codec import Described, Symbol, UByte, UInt, ULong, UShort, decode, encode

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"


def frame(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body


def performative(code: int, *fields: Any, channel: int = 0, payload: bytes = b"") -> bytes:
    """Return one frame; a field given as `Raw` is used as it is."""
    return frame(described(code, *fields) + payload, channel)


class Raw(bytes):
    """A value that is encoded already."""


def described(code: int, *fields: Any) -> bytes:
    parts = [each if isinstance(each, Raw) else encode(each) for each in fields]
    raw = b"".join(parts)
    return bytes((0, 0x53, code, 0xD0)) + struct.pack(">II", len(raw) + 4, len(parts)) + raw


def sasl_init(mechanism: str = "ANONYMOUS") -> bytes:
    return frame(described(0x41, Symbol(mechanism), b"", None), kind=1)


def open_(container: str = "test", max_frame: int = 65_536, channel_max: int = 65_535, **more: Any) -> bytes:
    return performative(OPEN, container, "localhost", UInt(max_frame), UShort(channel_max), *more.values())


def hello(**options: Any) -> bytes:
    """Return the bytes of a client from the protocol header to the open."""
    return SASL_HEADER + sasl_init() + AMQP_HEADER + open_(**options)


def begin(channel: int = 0, incoming_window: int = 5000) -> bytes:
    return performative(BEGIN, None, UInt(0), UInt(incoming_window), UInt(5000), UInt(65_535), channel=channel)


def attach(
    name: str, handle: int, address: str | None, *, receiver: bool = False, channel: int = 0, **options: Any
) -> bytes:
    """Return a client's attach; `reply` is the address of its own end, `settled` asks for settled transfers."""
    theirs = Raw(described(0x28 if receiver else 0x29, address))
    ours = Raw(described(0x29 if receiver else 0x28, options.get("reply", "client")))
    return performative(
        ATTACH,
        name,
        UInt(handle),
        receiver,
        UByte(1) if options.get("settled") else None,
        None,
        theirs if receiver else ours,
        ours if receiver else theirs,
        None,
        None,
        None if receiver else UInt(0),
        channel=channel,
    )


def flow(handle: int | None, credit: int, *, channel: int = 0, window: int = 5000) -> bytes:
    link = None if handle is None else UInt(handle)
    count = None if handle is None else UInt(0)
    return performative(FLOW, UInt(0), UInt(window), UInt(0), UInt(5000), link, count, UInt(credit), channel=channel)


def transfer(handle: int, id: int | None, payload: bytes, *, channel: int = 0, **options: Any) -> bytes:
    return performative(
        TRANSFER,
        UInt(handle),
        None if id is None else UInt(id),
        options.get("tag", None if id is None else struct.pack(">I", id)),
        UInt(options.get("format", 0)),
        options.get("settled", False),
        options.get("more", False),
        None,
        options.get("state"),
        None,
        options.get("aborted", False),
        channel=channel,
        payload=payload,
    )


def disposition(
    first: int, last: int | None = None, state: int = 0x24, *, role: bool = True, channel: int = 0
) -> bytes:
    outcome = Raw(described(state))
    return performative(
        DISPOSITION, role, UInt(first), None if last is None else UInt(last), True, outcome, channel=channel
    )


def message(body: bytes = b"body", **properties: Any) -> bytes:
    """Return an encoded message with a data body and application properties."""
    named = described(0x73, "m")
    mapped = b"\x00\x53\x74" + encode(properties) if properties else b""
    return named + mapped + b"\x00\x53\x75" + encode(body)


def put_token(audience: str, token: str) -> bytes:
    """Return a request to `$cbs`."""
    properties = {"operation": "put-token", "type": "jwt", "name": audience}
    return (
        described(0x73, "1", None, None, None, "cbs")
        + b"\x00\x53\x74"
        + encode(properties)
        + (b"\x00\x53\x77" + encode(token))
    )


def authorized(path: str, token: str, channel: int = 0) -> list[bytes]:
    """Return the frames from the protocol header to a token for a path (`$cbs` on handles 0 and 1).

    They are separate: a client has to wait for the answer to its begin before it transfers.
    """
    links = (
        hello()
        + begin(channel)
        + attach("cbs-out", 0, "$cbs", channel=channel)
        + attach("cbs-in", 1, "$cbs", receiver=True, channel=channel, reply="cbs")
        + flow(1, 10, channel=channel)
    )
    return [links, transfer(0, 0, put_token(path, token), channel=channel)]


def nested(depth: int, kind: int = 0xD0) -> bytes:
    """Return nested lists or, with 0xD1, maps, with 0xF0, arrays, with 0, descriptors."""
    if kind == 0:
        return b"\x00" * depth + b"\x40"
    raw = b"\x40"
    for _ in range(depth):
        if kind == 0xD0:
            raw = b"\xd0" + struct.pack(">II", len(raw) + 4, 1) + raw
        elif kind == 0xD1:
            raw = b"\xd1" + struct.pack(">II", len(raw) + 5, 2) + b"\x43" + raw
        else:
            raw = b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + raw
    return raw


def split_frames(data: bytes) -> Iterator[bytes]:
    """Return the frames and protocol headers of a stream, with an incomplete frame last."""
    pos = 0
    while len(data) - pos >= 8:
        size = 8 if data[pos : pos + 4] == b"AMQP" else struct.unpack_from(">I", data, pos)[0]
        if size < 8 or pos + size > len(data):
            break
        yield data[pos : pos + size]
        pos += size
    if pos < len(data):
        yield data[pos:]


def read_performative(raw: bytes) -> tuple[int, int, list[Any], bytes]:
    """Return code, channel, fields and payload of one AMQP frame."""
    size, offset, _, channel = struct.unpack_from(">IBBH", raw)
    value, end = decode(raw, offset * 4)
    assert isinstance(value, Described)
    assert isinstance(value.descriptor, ULong)
    return int(value.descriptor), channel, value.value, raw[end:size]


class Peer:
    """A raw client on a socket."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self._seen = b""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Send bytes; return False if the server has closed the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def frames(self, seconds: float = 30.0) -> Iterator[tuple[int, int, list[Any], bytes]]:
        """Yield the server's performatives until the connection is closed."""
        deadline = time.monotonic() + seconds
        while True:
            while len(self._seen) >= 8:
                header = self._seen[:4] == b"AMQP"
                size = 8 if header else struct.unpack_from(">I", self._seen)[0]
                if len(self._seen) < size:
                    break
                raw, self._seen = self._seen[:size], self._seen[size:]
                if not header and raw[5] == 0 and size > 8:
                    yield read_performative(raw)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the server said nothing more, and did not close")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                return
            if not data:
                return
            self._seen += data

    def expect(self, code: int, seconds: float = 30.0) -> tuple[int, int, list[Any], bytes]:
        """Return the next performative of a kind."""
        for found in self.frames(seconds):
            if found[0] == code:
                return found
        raise AssertionError(f"the connection ended without a 0x{code:02x}")

    def last_error(self, seconds: float = 30.0) -> str | None:
        """Return the condition of the server's close, end or detach, None if it closed the socket without one."""
        condition: str | None = None
        for code, _, fields, _ in self.frames(seconds):
            if code in (DETACH, END, CLOSE):
                error = fields[-1] if fields else None
                if isinstance(error, Described):
                    condition = str(error.value[0])
        return condition
