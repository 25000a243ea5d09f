"""AMQP over WebSockets: what stands between a socket that HTTP has upgraded and the AMQP protocol.

The frames are wsproto's. They carry AMQP's stream of bytes, cut anywhere: a frame means nothing by itself and is passed
on as it comes, so that one which announces gigabytes fills no memory. What AMQP bounds is bounded there, as it is
without WebSockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong
from wsproto.events import Request as Asked
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError

from .http import Request

PATH = "$servicebus/websocket"
#: The service's name for it, and that of the standard, which Go's SDK uses.
_SUBPROTOCOLS = ("AMQPWSB10", "amqp")
#: aiohttp takes no message beyond 4 MB, and AMQP may have as much to say at once.
_FRAME_BYTES = 64 * 1024
_FIRST_BYTE_SECONDS = 60.0

ProtocolFactory = Callable[[], asyncio.Protocol]


def upgrade(request: Request, amqp: ProtocolFactory) -> WebSocket | None:
    """The WebSocket that a request asks for, None if it asks for none; ValueError if it asks wrongly."""
    if (request.method, request.path.rstrip("/").lower()) != ("GET", PATH) or "upgrade" not in request.headers:
        return None
    frames = WSConnection(ConnectionType.SERVER)
    try:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        frames.initiate_upgrade_connection(headers, request.target)
        asked = next(frames.events())
    except (ProtocolError, h11.ProtocolError) as mistake:
        raise ValueError(str(mistake)) from None
    offered = cast(Asked, asked).subprotocols
    chosen = next((name for name in _SUBPROTOCOLS if name in offered), None)
    if chosen is None:
        raise ValueError(f"AMQP is spoken here: offer {_SUBPROTOCOLS[0]} as Sec-WebSocket-Protocol")
    return WebSocket(frames, chosen, amqp())


class Framed(asyncio.Transport):
    """A socket as AMQP sees it: what is written goes out in binary frames, and the end is a frame as well."""

    def __init__(self, transport: asyncio.Transport, frames: WSConnection) -> None:
        super().__init__()
        self._transport = transport
        self._frames = frames

    def say(self, *events: Event) -> None:
        """Send what a WebSocket that is still open may say; what comes too late is dropped."""
        if self._frames.state is ConnectionState.OPEN:
            self._transport.write(b"".join(self._frames.send(event) for event in events))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pieces = (bytes(data[at : at + _FRAME_BYTES]) for at in range(0, len(data), _FRAME_BYTES))
        self.say(*(BytesMessage(data=piece) for piece in pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes; the socket is closed when the client has answered."""
        self.say(CloseConnection(code=CloseReason.NORMAL_CLOSURE))

    def close(self) -> None:
        self.write_eof()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)


class WebSocket(asyncio.Protocol):
    """One WebSocket, from the answer to its handshake on: AMQP gets what its frames hold."""

    def __init__(self, frames: WSConnection, subprotocol: str, amqp: asyncio.Protocol) -> None:
        self._frames = frames
        self._subprotocol = subprotocol
        self._amqp = amqp
        self._transport: asyncio.Transport | None = None
        self._framed: Framed | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._framed = Framed(self._transport, self._frames)
        self._transport.write(self._frames.send(AcceptConnection(subprotocol=self._subprotocol)))
        # One who has nothing to say need not be listened to for ever; AMQP has its own limits once it has begun.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_FIRST_BYTE_SECONDS, self._transport.abort)
        self._amqp.connection_made(self._framed)

    def data_received(self, data: bytes) -> None:
        assert self._framed is not None
        if self._frames.state not in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            return
        self._frames.receive_data(data)
        pieces: list[bytes] = []
        last: CloseConnection | None = None
        for event in self._frames.events():
            if isinstance(event, BytesMessage):
                pieces.append(bytes(event.data))
            elif isinstance(event, Ping):
                self._framed.say(event.response())
            elif not isinstance(event, Pong):
                wrong = CloseConnection(code=CloseReason.UNSUPPORTED_DATA, reason="AMQP is binary")
                last = event if isinstance(event, CloseConnection) else wrong
                break
        if any(pieces):
            self._stop_timer()
            self._amqp.data_received(b"".join(pieces))
        if last is not None:
            self._end(last)

    def _end(self, last: CloseConnection) -> None:
        """The client has said its last word, or one that is wrong: it is answered, and AMQP told that no more comes."""
        assert self._transport is not None
        if self._frames.state is ConnectionState.REMOTE_CLOSING:
            self._transport.write(self._frames.send(last.response()))
        elif self._framed is not None:
            self._framed.say(last)
        self._amqp.eof_received()
        self._transport.close()

    def eof_received(self) -> bool:
        self._amqp.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._amqp.connection_lost(exc)

    def pause_writing(self) -> None:
        self._amqp.pause_writing()

    def resume_writing(self) -> None:
        self._amqp.resume_writing()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
