"""AMQP over WebSockets: an adapter between a socket that HTTP has upgraded and the AMQP protocol.

The bytes of a frame are passed on as they arrive, so that a frame of gigabytes does not fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong
from wsproto.events import Request as UpgradeRequest
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError

from .http import Request

PATH = "$servicebus/websocket"
#: The service's own name of the subprotocol, and the standard's, which Go's SDK uses.
_SUBPROTOCOLS = ("AMQPWSB10", "amqp")
#: Bytes per frame: aiohttp takes no message above 4 MB, which one write of AMQP can exceed.
_FRAME_BYTES = 64 * 1024
_FIRST_BYTE_SECONDS = 60.0

ProtocolFactory = Callable[[], asyncio.Protocol]


def upgrade(request: Request, amqp: ProtocolFactory) -> WebSocket | None:
    """Return the WebSocket that a request asks for, None if it asks for none; raise ValueError if it is invalid."""
    if (request.method, request.path.rstrip("/").lower()) != ("GET", PATH) or "upgrade" not in request.headers:
        return None
    frames = WSConnection(ConnectionType.SERVER)
    try:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        frames.initiate_upgrade_connection(headers, request.target)
        event = next(frames.events())
    except (ProtocolError, h11.ProtocolError) as error:
        raise ValueError(str(error)) from None
    offered = cast(UpgradeRequest, event).subprotocols
    chosen = next((name for name in _SUBPROTOCOLS if name in offered), None)
    if chosen is None:
        raise ValueError(f"This is AMQP: offer {_SUBPROTOCOLS[0]} as Sec-WebSocket-Protocol")
    return WebSocket(frames, chosen, amqp())


class WebSocketTransport(asyncio.Transport):
    """The transport that AMQP writes to: bytes become binary frames, and the end of the stream a close frame."""

    def __init__(self, transport: asyncio.Transport, frames: WSConnection) -> None:
        super().__init__()
        self._transport = transport
        self._frames = frames

    def send(self, *events: Event) -> None:
        """Send frames; after the WebSocket's close they are dropped."""
        if self._frames.state is ConnectionState.OPEN:
            self._transport.write(b"".join(self._frames.send(event) for event in events))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pieces = (bytes(data[at : at + _FRAME_BYTES]) for at in range(0, len(data), _FRAME_BYTES))
        self.send(*(BytesMessage(data=piece) for piece in pieces))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Send a close frame; the socket is closed when the client has answered it."""
        self.send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))

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
    """One WebSocket, from the response to its handshake on; AMQP gets the bytes in its frames."""

    def __init__(self, frames: WSConnection, subprotocol: str, amqp: asyncio.Protocol) -> None:
        self._frames = frames
        self._subprotocol = subprotocol
        self._amqp = amqp
        self._transport: asyncio.Transport | None = None
        self._stream: WebSocketTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._stream = WebSocketTransport(self._transport, self._frames)
        self._transport.write(self._frames.send(AcceptConnection(subprotocol=self._subprotocol)))
        # AMQP has its own time limits, from the first byte on.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_FIRST_BYTE_SECONDS, self._transport.abort)
        self._amqp.connection_made(self._stream)

    def data_received(self, data: bytes) -> None:
        assert self._stream is not None
        if self._frames.state not in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            return
        self._frames.receive_data(data)
        pieces: list[bytes] = []
        last: CloseConnection | None = None
        for event in self._frames.events():
            if isinstance(event, BytesMessage):
                pieces.append(bytes(event.data))
            elif isinstance(event, Ping):
                self._stream.send(event.response())
            elif not isinstance(event, Pong):
                unsupported = CloseConnection(code=CloseReason.UNSUPPORTED_DATA, reason="AMQP is binary")
                last = event if isinstance(event, CloseConnection) else unsupported
                break
        if any(pieces):
            self._stop_timer()
            self._amqp.data_received(b"".join(pieces))
        if last is not None:
            self._close(last)

    def _close(self, last: CloseConnection) -> None:
        """Answer the client's close, or close for an invalid frame; end AMQP's stream."""
        assert self._transport is not None
        if self._frames.state is ConnectionState.REMOTE_CLOSING:
            self._transport.write(self._frames.send(last.response()))
        elif self._stream is not None:
            self._stream.send(last)
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
