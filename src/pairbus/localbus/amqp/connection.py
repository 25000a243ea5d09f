"""One client's AMQP connection: Proton's events in, link handlers and answers out.

The transport gives bytes; the wire filter bounds and notes them; Proton makes events; each link has a handler. What
must not be answered before it is durable goes through `after_commit`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.auth import Grant, unauthorized
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.faults.latency_pipe import Way

from . import engine
from .attach import attach
from .engine import Engine, lib
from .fairness import PASSES, PIECE_BYTES, SHARE_SECONDS
from .links import LinkHandler
from .request_throttle import Answering
from .wire import PROTON_FRAME, FramingError, Inbound, Outbound

if TYPE_CHECKING:
    from pairbus.localbus.server import Server

log = logging.getLogger("pairbus.localbus.connection")

_WRITE_HIGH = 4 * 1024 * 1024
#: So many bytes may be on their way here from a client that is far away, by a fault.
_COMING_HIGH = 16 * 1024 * 1024
#: How long a client may take over our goodbye.
_LINGER_SECONDS = 5.0
_CLOSING_TICKS = 10
#: How many seconds a client may take to say its open; Proton watches it only from then on.
_OPENING_TICKS = 60


class AmqpConnection(asyncio.Protocol):
    """An AMQP client, from its first byte to its last."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.alive = False
        self.writable = True
        self.grants: dict[str, Grant] = {}
        self.replies: list[Any] = []
        #: Links whose attach a black hole has taken, and whether it has taken bytes.
        self.unanswered: dict[Any, str] = {}
        self._deaf = False
        self._inbound = Inbound(lambda name, key: server.authorizer.log_in(self.grants, name, key))
        self._outbound = Outbound(self._inbound)
        self.formats, self.curious = self._inbound.formats, self._inbound.curious
        self._engine = Engine(server.broker.name, PROTON_FRAME)
        self._handlers: dict[Any, LinkHandler] = {}
        self._transport: asyncio.Transport | None = None
        self._unread = b""
        #: What added latency holds up; and whether the socket takes nothing more.
        self._coming, self._going = Way(server.loop), Way(server.loop)
        self._full = False
        #: It says so much that it is worked for in shares: its answers come every few milliseconds.
        self.patient = False
        self._closing = False
        self._closing_ticks = 0
        self._opened = False
        self._opening_ticks = 0
        self._hang_up = False
        self._ended = False
        self._linger: asyncio.TimerHandle | None = None
        #: Who waits until less is buffered; and the bytes of messages that are not whole yet.
        self.stalled: set[LinkHandler | Answering] = set()
        self.unfinished = 0
        self.answering = Answering(self)

    # --- asyncio ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self.alive = True
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.alive or self._closing:
            return
        if self.server.faults.is_silent(""):
            self._deaf = True
            return
        self._coming.go(self.server.faults.distance, len(data), lambda: self._hear(data))
        if self._coming.size > _COMING_HIGH:
            self._listen()

    def _hear(self, data: bytes) -> None:
        if not self.alive or self._closing:
            return
        shared = self.server.talkers.heard(self)
        if self._unread:
            self._unread += data
        elif shared and len(data) > PIECE_BYTES:
            self._unread = data
            self._take_share()
        else:
            self.patient = False
            self._take(data)

    def _take_share(self) -> None:
        """Work on what has come for a moment, then let the others have theirs."""
        if not self.alive or self._transport is None:
            return
        data, at = self._unread, 0
        self.patient = True
        with self.server.patience():
            until = self.server.loop.time() + SHARE_SECONDS
            while at < len(data) and not self._closing:
                self._take(data[at : at + PIECE_BYTES])
                at += PIECE_BYTES
                if self.server.loop.time() >= until:
                    break
        self._unread = b"" if self._closing else data[at:]
        if self._unread:
            self._let_others(PASSES)
        self._listen()

    def _listen(self) -> None:
        """Read from the client; not while it does not read itself, part of its share is left, or much is on its way."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.writable and not self._unread and self._coming.size <= _COMING_HIGH:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _let_others(self, passes: int) -> None:
        """What the others said meanwhile is heard, and answered, before this client's next share."""
        if passes > 0 or (passes > -PASSES and self.server.is_turn_due):
            self.server.loop.call_soon(self._let_others, passes - 1)
        else:
            self._take_share()

    def _take_rest(self) -> None:
        self._coming.hurry()
        data, self._unread = self._unread, b""
        if data and not self._closing:
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            self._engine.push(self._inbound.feed(data))
        except FramingError as error:
            # Proton has seen the start of the stream: it says goodbye properly where it can.
            self._engine.push(error.before)
            self._process()
            self._engine.close(BusError(conditions.FRAMING_ERROR, str(error)))
            self._closing = self._hang_up = True
        self._process()
        self.wants_output()

    def eof_received(self) -> bool:
        self._take_rest()
        self._engine.end_input()
        self._process()
        self.wants_output()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.alive:
            return
        if exc is not None:
            self._take_rest()  # the client is gone, not what it sent; where we cut it off ourselves, both are
        self.alive = False
        self._coming.lose()
        self._going.lose()
        if self._linger is not None:
            self._linger.cancel()
        self.server.connections.discard(self)
        self.server.departed += 1
        self.server.talkers.gone(self)
        for handler in list(self._handlers.values()):
            self._gone(handler)
        self._handlers.clear()
        # Callbacks that wait for a commit may still hold pointers; they look at `alive` first.
        self.after_commit(self._engine.free)

    def pause_writing(self) -> None:
        self._full = True
        self._hold()

    def resume_writing(self) -> None:
        self._full = False
        self._go_on()

    def _hold(self) -> None:
        self.writable = False
        self._listen()

    def _go_on(self) -> None:
        if self.writable or self._full or self._going.size > _WRITE_HIGH:
            return
        self.writable = True
        self._listen()
        for handler in list(self._handlers.values()):
            handler.on_flow()
        self.wants_output()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call when everything applied so far is durable, after what was asked for this client before."""
        self.server.after_commit(callback, self)

    # --- output ----------------------------------------------------------------------------------------

    def wants_output(self) -> None:
        """Something was done to Proton that may have to be written at the end of this turn."""
        self.server.unwritten.add(self)
        self.server.schedule()

    def flush(self) -> None:
        """Write what Proton has, unless the client does not read."""
        if not self.alive or not self.writable or self._ended or self._transport is None:
            return
        self._process()
        raw = self._engine.output()
        if raw and self.server.faults.is_silent(""):
            self._deaf = True
        elif raw:
            try:
                self._write(self._outbound.feed(raw))
            except Exception:
                # Must not happen; if it does, the others' turn goes on.
                log.exception("what a client was to get could not be written")
                self.drop()
                return
        if self._engine.finished() or self._hang_up:
            self._end(self._transport)
        if self.stalled:
            stalled, self.stalled = self.stalled, set()
            for each in stalled:
                each.on_flow()

    def _end(self, transport: asyncio.Transport) -> None:
        """Nothing more is written. What was may still be read; who does not read it is cut off.

        Where it can be, only our direction is closed: a socket that is closed while its client still writes
        resets the connection, and our last word is lost.
        """
        self._ended = self._closing = True
        self._going.go(self.server.faults.distance, 0, lambda: self._say_goodbye(transport))

    def _say_goodbye(self, transport: asyncio.Transport) -> None:
        try:
            transport.write_eof() if transport.can_write_eof() else transport.close()
        except OSError:
            transport.abort()  # the client was quicker: it is gone
        self._linger = self.server.loop.call_later(_LINGER_SECONDS, self.drop)

    def _write(self, data: bytes) -> None:
        distance = self.server.faults.distance
        if not distance and not self._going.size:
            self._put(data)
            return
        self._going.go(distance, len(data), lambda: self._put(data))
        if self._going.size > _WRITE_HIGH:
            self._hold()

    def _put(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
        self._go_on()

    def tick(self, milliseconds: int) -> None:
        if self._closing:
            self._closing_ticks += 1
            if self._closing_ticks > _CLOSING_TICKS:
                self.drop()
        elif not self._opened and not self.server.faults.is_silent(""):
            self._opening_ticks += 1
            if self._opening_ticks > _OPENING_TICKS:
                self.drop()
        if self.alive:
            self._engine.tick(milliseconds)
            self.wants_output()

    def close(self, error: BusError | None = None) -> None:
        """Say goodbye: the connection ends when the client has read it."""
        if self.alive and not self._closing:
            self._closing = True
            self._engine.close(error)
            self.wants_output()

    def give_up(self, why: str) -> None:
        """A client asks for more memory than one may have: it is told, and let go."""
        self._hang_up = True
        self.close(BusError(conditions.RESOURCE_LIMIT_EXCEEDED, why))

    @property
    def closing(self) -> bool:
        return self._closing

    def recover(self) -> None:
        """A fault has ended: what it left without an answer is told so, everything else goes on."""
        faults = self.server.faults
        if self._deaf and not faults.is_silent(""):
            self.drop()  # bytes are missing from the stream: nothing sensible can follow
            return
        error = BusError(conditions.DETACH_FORCED, "The link is closed: it was in a black hole (a fault of localbus).")
        for link in [each for each, path in self.unanswered.items() if not faults.is_silent(path)]:
            del self.unanswered[link]
            refuse_attach(link, error)
            self.wants_output()
        for handler in self.handlers():
            if handler.swallowed and not faults.is_silent(handler.path):
                handler.refuse(error)
            else:
                handler.on_flow()

    def drop(self) -> None:
        """Cut the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    # --- events ----------------------------------------------------------------------------------------

    def _process(self) -> None:
        if not self.alive:
            return
        for kind, event in self._engine.events():
            try:
                self._on_event(kind, event)
            except Exception:
                # One client's odd input must not end the server; this client is told and let go.
                log.exception("an event of a client's connection could not be handled")
                self._engine.close(BusError(conditions.INTERNAL_ERROR, "localbus failed on this connection."))
                self._closing = True

    def _on_event(self, kind: int, event: Any) -> None:
        if kind == lib.PN_DELIVERY:
            delivery = lib.pn_event_delivery(event)
            handler = self._handlers.get(lib.pn_delivery_link(delivery))
            if handler is not None:
                handler.on_delivery(delivery)
        elif kind == lib.PN_LINK_FLOW:
            handler = self._handlers.get(lib.pn_event_link(event))
            if handler is not None:
                handler.on_flow()
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            self._on_attach(lib.pn_event_link(event))
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            self._on_detach(lib.pn_event_link(event), kind == lib.PN_LINK_REMOTE_DETACH)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            lib.pn_session_open(lib.pn_event_session(event))
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            self._on_end(lib.pn_event_session(event))
        elif kind == lib.PN_CONNECTION_REMOTE_OPEN:
            self._opened = True
            lib.pn_connection_open(self._engine.connection)
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            self._closing = True
            lib.pn_connection_close(self._engine.connection)
        elif kind == lib.PN_TRANSPORT_ERROR:
            self._closing = True

    def _on_attach(self, link: Any) -> None:
        try:
            handler = attach(self, link)
        except BusError as error:
            refuse_attach(link, error)
            return
        except AmqpDecodeError as error:
            refuse_attach(link, BusError(conditions.INVALID_FIELD, f"The attach cannot be read: {error}."))
            return
        if handler is not None:
            self._handlers[link] = handler

    def adopt(self, handler: LinkHandler) -> None:
        """A link that had to wait is open now."""
        self._handlers[handler.link] = handler

    def _on_detach(self, link: Any, detached: bool) -> None:
        handler = self._handlers.pop(link, None)
        if handler is not None:
            self._gone(handler)
        self.unanswered.pop(link, None)
        if detached:
            lib.pn_link_detach(link)
        else:
            lib.pn_link_close(link)
        self.after_commit(lambda: self._free(lib.pn_link_free, link))

    def _on_end(self, session: Any) -> None:
        for link in [each for each in self.unanswered if lib.pn_link_session(each) == session]:
            del self.unanswered[link]
        for link, handler in list(self._handlers.items()):
            if lib.pn_link_session(link) == session:
                del self._handlers[link]
                self._gone(handler)
        lib.pn_session_close(session)
        self.after_commit(lambda: self._free(lib.pn_session_free, session))

    def _free(self, function: Any, pointer: Any) -> None:
        if self.alive:
            function(pointer)
            self.wants_output()

    def forget(self, handler: LinkHandler) -> None:
        """We closed a link ourselves; its last word comes with the client's detach."""
        if self._handlers.pop(handler.link, None) is not None:
            self._gone(handler)

    def _gone(self, handler: LinkHandler) -> None:
        if handler.open:
            handler.open = False
            handler.on_closed()

    # --- grants ----------------------------------------------------------------------------------------

    def authorize(self, path: str, right: str | None) -> None:
        """Refuse what no token of this connection covers."""
        now = self.server.now()
        for grant in self.grants.values():
            if grant.expires_at > now and grant.covers(path, right):
                return
        needed = "A token is" if right is None else f"'{right}' claim(s) are"
        raise unauthorized(f"{needed} required to perform this operation. Resource: '{path}'.")

    def close_expired(self, now: float) -> None:
        """Close the links whose token has run out and was not renewed."""
        if not any(grant.expires_at <= now for grant in self.grants.values()):
            return
        self.grants = {key: grant for key, grant in self.grants.items() if grant.expires_at > now}
        for handler in list(self._handlers.values()):
            if handler.right is None:
                continue
            try:
                self.authorize(handler.path, handler.right)
            except BusError:
                handler.refuse(unauthorized("ExpiredToken: The token is expired."))

    def handlers(self) -> list[LinkHandler]:
        return list(self._handlers.values())


def refuse_attach(link: Any, error: BusError) -> None:
    """Answer an attach with null termini, then close with the error: the form the SDKs understand."""
    engine.set_condition(lib.pn_link_condition(link), error)
    for terminus in (lib.pn_link_source(link), lib.pn_link_target(link)):
        lib.pn_terminus_set_type(terminus, lib.PN_UNSPECIFIED)  # null: an empty one would mean "attached"
    lib.pn_link_open(link)
    lib.pn_link_close(link)
