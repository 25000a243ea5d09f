"""The links of a connection: one base for a client's senders, one for its receivers, and the answers to an attach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.localbus.bus_errors import BusError, size_exceeded

from . import engine
from .engine import lib

if TYPE_CHECKING:
    from .connection import AmqpConnection

CREDIT = 1000
#: Bytes of incomplete messages that one client may have sent.
_MAX_PARTIAL_BYTES = 32 * 1024 * 1024
#: Bytes kept of a message that is too large: they may hold the address for a reply.
_HEAD_BYTES = 16 * 1024


class LinkHandler:
    """A link: its connection, Proton's pointer, and the path that faults and grants apply to."""

    #: The claim that a token must hold for this link; None if it needs no token.
    right: str | None = None

    def __init__(self, connection: AmqpConnection, link: Any, path: str) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self.name = engine.text(lib.pn_link_name(link)) or ""
        self.open = True
        #: True once a black hole (a fault) has swallowed a message, which will never be answered.
        self.swallowed = False

    def on_delivery(self, delivery: Any) -> None:
        """Handle a delivery that the client has sent or updated."""

    def on_flow(self) -> None:
        """Continue: the client has sent a flow, or its connection is writable again."""

    def on_closed(self) -> None:
        """Release resources: either side has closed the link, or the connection is lost."""

    def detach(self, error: BusError) -> None:
        if self.open and self.connection.alive:
            engine.set_condition(lib.pn_link_condition(self.link), error)
            lib.pn_link_close(self.link)
            self.connection.remove_handler(self)
            self.connection.wants_output()


class IncomingLink(LinkHandler):
    """A client's sender: collects the frames of each delivery and handles complete messages."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, limit: int) -> None:
        super().__init__(connection, link, path)
        self.limit = limit
        self._partial = bytearray()
        #: Size so far of a message that is too large, 0 if there is none.
        self._oversize = 0
        self._head = b""

    def on_closed(self) -> None:
        self._drop_partial()

    def start(self) -> None:
        """Open the link and give the client credit."""
        lib.pn_link_set_max_message_size(self.link, self.limit)
        lib.pn_link_open(self.link)
        lib.pn_link_flow(self.link, CREDIT)

    def on_delivery(self, delivery: Any) -> None:
        link = self.link
        if lib.pn_link_current(link) != delivery:
            return  # only its settlement changed
        if lib.pn_delivery_aborted(delivery):
            self._drop_partial()
            self._oversize = 0
            lib.pn_delivery_settle(delivery)
            return
        pending = lib.pn_delivery_pending(delivery)
        if lib.pn_delivery_partial(delivery):
            if pending:
                self._collect(engine.receive(link, pending))
            return
        raw = engine.receive(link, pending) if pending else b""
        if self._partial or self._oversize:
            self._collect(raw)
            raw = bytes(self._partial)
            self._drop_partial()
        size, self._oversize = self._oversize, 0
        message_format = 0
        formats = self.connection.message_formats
        if formats:
            message_format = formats.pop((self.name.encode(), engine.tag(delivery)), 0)
        lib.pn_link_advance(link)
        if lib.pn_link_credit(link) < CREDIT // 2:
            self.renew_credit()
        if size or len(raw) > self.limit:
            head, self._head = self._head or raw[:_HEAD_BYTES], b""
            self.on_oversize(delivery, size_exceeded(self.path, size or len(raw), self.limit), head)
        else:
            self.on_message(delivery, raw, message_format)

    def renew_credit(self) -> None:
        """Give the client its full credit again."""
        if self.open:
            # A client's invalid flow can make Proton's credit very negative; the sum must fit a C int.
            lib.pn_link_flow(self.link, min(CREDIT - lib.pn_link_credit(self.link), 0x7FFFFFFF))
            self.connection.wants_output()

    def _collect(self, piece: bytes) -> None:
        if self._oversize or len(self._partial) + len(piece) > self.limit:
            if not self._oversize:
                self._head = bytes(self._partial[:_HEAD_BYTES])
            self._oversize = (self._oversize or len(self._partial)) + len(piece)
            self._drop_partial()
            return
        self._partial += piece
        self.connection.partial_bytes += len(piece)
        if self.connection.partial_bytes > max(_MAX_PARTIAL_BYTES, 2 * self.limit):
            self.connection.close_over_limit("Too many messages are half sent on this connection.")

    def _drop_partial(self) -> None:
        self.connection.partial_bytes -= len(self._partial)
        self._partial = bytearray()

    def on_message(self, delivery: Any, raw: bytes, message_format: int) -> None:
        """Handle a complete message."""
        raise NotImplementedError

    def on_oversize(self, delivery: Any, error: BusError, head: bytes) -> None:
        """Handle a message that is too large; only its first bytes were kept."""
        self.settle(delivery, error)

    def settle(self, delivery: Any, error: BusError | None = None) -> None:
        """Accept a delivery, or reject it with an error; a delivery that was sent settled gets no outcome."""
        if lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)
        else:
            engine.settle(delivery, engine.ACCEPTED if error is None else engine.REJECTED, error)
        self.connection.wants_output()


class OutgoingLink(LinkHandler):
    """A client's receiver: encoded messages are sent to it while it has credit."""

    def credit(self) -> int:
        return int(lib.pn_link_credit(self.link))

    def buffered_bytes(self) -> int:
        """Return the bytes that Proton holds for the client's session because its window is closed."""
        return int(lib.pn_session_outgoing_bytes(lib.pn_link_session(self.link)))

    def finish_drain(self) -> None:
        """Use up the credit of a client that has asked to drain it: no message is left."""
        if lib.pn_link_get_drain(self.link):
            lib.pn_link_drained(self.link)
            self.connection.wants_output()


def copy_termini(link: Any) -> None:
    """Answer an attach with the client's own termini and settle modes, in their exact types."""
    lib.pn_terminus_copy(lib.pn_link_source(link), lib.pn_link_remote_source(link))
    lib.pn_terminus_copy(lib.pn_link_target(link), lib.pn_link_remote_target(link))
    lib.pn_link_set_snd_settle_mode(link, lib.pn_link_remote_snd_settle_mode(link))
    lib.pn_link_set_rcv_settle_mode(link, lib.pn_link_remote_rcv_settle_mode(link))


def refuse_attach(link: Any, error: BusError) -> None:
    """Answer an attach with null termini, then close the link with the error: the form that the SDKs understand."""
    engine.set_condition(lib.pn_link_condition(link), error)
    for terminus in (lib.pn_link_source(link), lib.pn_link_target(link)):
        lib.pn_terminus_set_type(terminus, lib.PN_UNSPECIFIED)  # null: an empty terminus would mean "attached"
    lib.pn_link_open(link)
    lib.pn_link_close(link)
