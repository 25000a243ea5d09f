"""One client's AMQP connection: bytes to Proton, Proton's events to link handlers, output to the socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors
from pairbus.localbus.auth import Grant, unauthorized
from pairbus.localbus.bus_errors import BusError

from .attach import attach
from .client_socket import ClientSocket
from .engine import Engine, lib
from .links import LinkHandler, refuse_attach
from .request_throttle import RequestThrottle
from .wire.frames import PROTON_MAX_FRAME, FramingError
from .wire.inbound import InboundFilter
from .wire.outbound import OutboundFilter

if TYPE_CHECKING:
    from pairbus.localbus.server import Server

    from .request_nodes import ReplyLink

log = logging.getLogger("pairbus.localbus.connection")

#: Ticks (seconds) until a closing connection is cut if its client does not read the close.
_CLOSING_TICKS = 10
#: Ticks (seconds) until a client that has not sent its open is cut; Proton's own time-out begins with the open.
_OPENING_TICKS = 60


class AmqpConnection(asyncio.Protocol):
    """An AMQP client, from the first byte of its connection to the last."""

    def __init__(self, server: Server) -> None:
        self.server = server
        #: True from `connection_made` to `connection_lost`: Proton's pointers are valid as long as it is.
        self.alive = False
        #: Path -> grant of each token that the client has put.
        self.grants: dict[str, Grant] = {}
        self.reply_links: list[ReplyLink] = []
        #: Link -> path of each attach that a black hole (a fault) has swallowed.
        self.unanswered_links: dict[Any, str] = {}
        self._inbound = InboundFilter(lambda name, key: server.authorizer.log_in(self.grants, name, key))
        self._outbound = OutboundFilter(self._inbound)
        self.message_formats = self._inbound.message_formats
        self.runtime_metric_links = self._inbound.runtime_metric_links
        self._engine = Engine(server.broker.name, PROTON_MAX_FRAME)
        self._handlers: dict[Any, LinkHandler] = {}
        self._socket = ClientSocket(self)
        #: A black hole has swallowed bytes of the stream, which is of no use without them.
        self._bytes_lost = False
        self._opened = False
        self._opening_ticks = 0
        #: True once either side has closed the connection: nothing more is accepted from the client.
        self.closing = False
        self._closing_ticks = 0
        self._end_after_flush = False
        self._output_ended = False
        #: Handlers and throttles that wait until less output is buffered.
        self.stalled: set[LinkHandler | RequestThrottle] = set()
        #: True while the client sends so much that it is served in shares: its replies wait for a group commit.
        self.served_in_shares = False
        self.partial_bytes = 0
        self.request_throttle = RequestThrottle(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket.open(transport)
        self.alive = True
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self.alive or self.closing:
            return
        if self.server.faults.is_black_hole(""):
            self._bytes_lost = True
            return
        self._socket.receive(data)

    def process(self, data: bytes) -> None:
        """Give received bytes to Proton and handle its events."""
        try:
            self._engine.push(self._inbound.feed(data))
        except FramingError as error:
            # With the valid bytes Proton may know the client's open, and can send it a close with the error.
            self._engine.push(error.valid_bytes)
            self._handle_events()
            self._engine.close(BusError(bus_errors.FRAMING_ERROR, str(error)))
            self.closing = self._end_after_flush = True
        self._handle_events()
        self.wants_output()

    def eof_received(self) -> bool:
        self._socket.process_rest()
        self._engine.close_input()
        self._handle_events()
        self.wants_output()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.alive:
            return
        if exc is not None:
            self._socket.process_rest()  # the client has disconnected: the messages it sent before still count
        self.alive = False
        self._socket.lost()
        self.server.connections.discard(self)
        self.server.ended_connections += 1
        self.server.active_clients.remove(self)
        for handler in list(self._handlers.values()):
            self._close_handler(handler)
        self._handlers.clear()
        # Callbacks that wait for a commit may still hold pointers; they check `alive` first.
        self.after_commit(self._engine.free)

    def pause_writing(self) -> None:
        self._socket.pause()

    def resume_writing(self) -> None:
        self._socket.resume()

    @property
    def writable(self) -> bool:
        """False while too much output to the client is buffered."""
        return self._socket.writable

    def on_writable(self) -> None:
        """Continue on every link: the client has read enough of the output."""
        for handler in list(self._handlers.values()):
            handler.on_flow()
        self.wants_output()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call back when everything applied so far is durable, in the order of the calls for this connection."""
        self.server.after_commit(callback, self)

    def wants_output(self) -> None:
        """Have Proton's output written at the end of this turn."""
        self.server.unwritten.add(self)
        self.server.schedule()

    def flush(self) -> None:
        """Write Proton's output, unless the client does not read."""
        if not self.alive or not self._socket.writable or self._output_ended:
            return
        self._handle_events()
        raw = self._engine.output()
        if raw and self.server.faults.is_black_hole(""):
            self._bytes_lost = True
        elif raw:
            try:
                self._socket.write(self._outbound.feed(raw))
            except Exception:
                # A defect; the turn must go on for the other clients.
                log.exception("output to a client could not be written; its connection is dropped")
                self.drop()
                return
        if self._engine.is_finished() or self._end_after_flush:
            self._output_ended = self.closing = True
            self._socket.end_output()
        if self.stalled:
            stalled, self.stalled = self.stalled, set()
            for each in stalled:
                each.on_flow()

    def tick(self, milliseconds: int) -> None:
        """Enforce time limits; called every second."""
        if self.closing:
            self._closing_ticks += 1
            if self._closing_ticks > _CLOSING_TICKS:
                self.drop()
        elif not self._opened and not self.server.faults.is_black_hole(""):
            self._opening_ticks += 1
            if self._opening_ticks > _OPENING_TICKS:
                self.drop()
        if self.alive:
            self._engine.tick(milliseconds)
            self.wants_output()

    def close(self, error: BusError | None = None) -> None:
        """Send a close, then end the output; later input is discarded."""
        if self.alive and not self.closing:
            self.closing = True
            self._engine.close(error)
            self.wants_output()

    def close_over_limit(self, description: str) -> None:
        """Close the connection of a client that needs more memory than it may have."""
        self._end_after_flush = True
        self.close(BusError(bus_errors.RESOURCE_LIMIT_EXCEEDED, description))

    def drop(self) -> None:
        self._socket.abort()

    def recover(self) -> None:
        """Continue after a fault has ended; links on which a request or attach was swallowed are detached."""
        faults = self.server.faults
        if self._bytes_lost and not faults.is_black_hole(""):
            self.drop()
            return
        error = BusError(bus_errors.DETACH_FORCED, "The link is closed: it was in a black hole (a fault of localbus).")
        for link in [each for each, path in self.unanswered_links.items() if not faults.is_black_hole(path)]:
            del self.unanswered_links[link]
            refuse_attach(link, error)
            self.wants_output()
        for handler in self.handlers():
            if handler.swallowed and not faults.is_black_hole(handler.path):
                handler.detach(error)
            else:
                handler.on_flow()

    def _handle_events(self) -> None:
        if not self.alive:
            return
        for kind, event in self._engine.events():
            try:
                self._on_event(kind, event)
            except Exception:
                # Unexpected input of one client must not end the server.
                log.exception("an event of a client's connection could not be handled; the connection is closed")
                self._engine.close(BusError(bus_errors.INTERNAL_ERROR, "localbus failed on this connection."))
                self.closing = True

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
            self._on_detach(lib.pn_event_link(event), kind == lib.PN_LINK_REMOTE_CLOSE)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            lib.pn_session_open(lib.pn_event_session(event))
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            self._on_session_end(lib.pn_event_session(event))
        elif kind == lib.PN_CONNECTION_REMOTE_OPEN:
            self._opened = True
            lib.pn_connection_open(self._engine.connection)
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            self.closing = True
            lib.pn_connection_close(self._engine.connection)
        elif kind == lib.PN_TRANSPORT_ERROR:
            self.closing = True

    def _on_attach(self, link: Any) -> None:
        try:
            handler = attach(self, link)
        except BusError as error:
            refuse_attach(link, error)
            return
        except AmqpDecodeError as error:
            refuse_attach(link, BusError(bus_errors.INVALID_FIELD, f"The attach cannot be read: {error}."))
            return
        if handler is not None:
            self._handlers[link] = handler

    def _on_detach(self, link: Any, closed: bool) -> None:
        handler = self._handlers.pop(link, None)
        if handler is not None:
            self._close_handler(handler)
        self.unanswered_links.pop(link, None)
        if closed:
            lib.pn_link_close(link)
        else:
            lib.pn_link_detach(link)
        self.after_commit(lambda: self._free(lib.pn_link_free, link))

    def _on_session_end(self, session: Any) -> None:
        for link in [each for each in self.unanswered_links if lib.pn_link_session(each) == session]:
            del self.unanswered_links[link]
        for link, handler in list(self._handlers.items()):
            if lib.pn_link_session(link) == session:
                del self._handlers[link]
                self._close_handler(handler)
        lib.pn_session_close(session)
        self.after_commit(lambda: self._free(lib.pn_session_free, session))

    def _free(self, function: Any, pointer: Any) -> None:
        if self.alive:
            function(pointer)
            self.wants_output()

    def handlers(self) -> list[LinkHandler]:
        return list(self._handlers.values())

    def add_handler(self, handler: LinkHandler) -> None:
        """Set the handler of a link, in place of the one that it has."""
        self._handlers[handler.link] = handler

    def remove_handler(self, handler: LinkHandler) -> None:
        """Remove the handler of a link that localbus has closed; the link is freed after the client's detach."""
        if self._handlers.pop(handler.link, None) is not None:
            self._close_handler(handler)

    def _close_handler(self, handler: LinkHandler) -> None:
        if handler.open:
            handler.open = False
            handler.on_closed()

    def authorize(self, path: str, right: str | None) -> None:
        """Raise a BusError unless a token of this connection grants the right on the path."""
        now = self.server.now()
        for grant in self.grants.values():
            if grant.expires_at > now and grant.covers(path, right):
                return
        needed = "A token is" if right is None else f"'{right}' claim(s) are"
        raise unauthorized(f"{needed} required to perform this operation. Resource: '{path}'.")

    def close_expired(self, now: float) -> None:
        """Detach the links whose token has expired and was not renewed."""
        if not any(grant.expires_at <= now for grant in self.grants.values()):
            return
        self.grants = {key: grant for key, grant in self.grants.items() if grant.expires_at > now}
        for handler in list(self._handlers.values()):
            if handler.right is None:
                continue
            try:
                self.authorize(handler.path, handler.right)
            except BusError:
                handler.detach(unauthorized("ExpiredToken: The token is expired."))
