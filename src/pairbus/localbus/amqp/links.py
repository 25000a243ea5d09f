"""The links of a connection, whatever they carry: a client's sender, and a client's receiver.

A link handler reads Proton's pointers. What the messages mean is said in `producers`, `consumers` and `nodes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.localbus.broker.broker import size_exceeded
from pairbus.localbus.bus_errors import BusError

from . import engine
from .engine import lib

if TYPE_CHECKING:
    from .connection import AmqpConnection

CREDIT = 1000
#: Bytes that one client may have sent of messages that are not whole yet.
_UNFINISHED = 32 * 1024 * 1024
#: So many of the first bytes are kept of a message that is too large: they may say whom to tell.
_HEAD = 16 * 1024


class LinkHandler:
    """What every link has: its connection, its Proton pointer, the path that faults and grants know it by."""

    #: The claim a token must hold for this link; None where none is asked for.
    right: str | None = None

    def __init__(self, connection: AmqpConnection, link: Any, path: str) -> None:
        self.connection = connection
        self.link = link
        self.path = path
        self.name = engine.text(lib.pn_link_name(link)) or ""
        self.open = True
        #: Whether a black hole has taken something that now never gets an answer.
        self.swallowed = False

    def on_delivery(self, delivery: Any) -> None: ...

    def on_flow(self) -> None: ...

    def on_closed(self) -> None:
        """The link is gone, by either side's doing or with its connection."""

    def refuse(self, error: BusError) -> None:
        """Close the link from our side."""
        if self.open and self.connection.alive:
            engine.set_condition(lib.pn_link_condition(self.link), error)
            lib.pn_link_close(self.link)
            self.connection.forget(self)
            self.connection.wants_output()


class Incoming(LinkHandler):
    """A client's sender: collects each delivery's bytes and passes whole messages on."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, limit: int) -> None:
        super().__init__(connection, link, path)
        self.limit = limit
        self._partial = bytearray()
        self._oversize = 0
        self._head = b""

    def on_closed(self) -> None:
        self._drop_partial()

    def start(self) -> None:
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
        number = 0
        formats = self.connection.formats
        if formats:
            number = formats.pop((self.name.encode(), engine.tag(delivery)), 0)
        lib.pn_link_advance(link)
        if lib.pn_link_credit(link) < CREDIT // 2:
            self.renew_credit()
        if size or len(raw) > self.limit:
            head, self._head = self._head or raw[:_HEAD], b""
            self.on_oversize(delivery, size_exceeded(self.path, size or len(raw), self.limit), head)
        else:
            self.on_message(delivery, raw, number)

    def renew_credit(self) -> None:
        if self.open:
            # A client's odd flow can make Proton's count absurd: no more than fits its int.
            lib.pn_link_flow(self.link, min(CREDIT - lib.pn_link_credit(self.link), 0x7FFFFFFF))
            self.connection.wants_output()

    def _collect(self, piece: bytes) -> None:
        if self._oversize or len(self._partial) + len(piece) > self.limit:
            if not self._oversize:
                self._head = bytes(self._partial[:_HEAD])
            self._oversize = (self._oversize or len(self._partial)) + len(piece)
            self._drop_partial()
            return
        self._partial += piece
        self.connection.unfinished += len(piece)
        if self.connection.unfinished > max(_UNFINISHED, 2 * self.limit):
            self.connection.give_up("Too many messages are half sent on this connection.")

    def _drop_partial(self) -> None:
        self.connection.unfinished -= len(self._partial)
        self._partial = bytearray()

    def on_message(self, delivery: Any, raw: bytes, number: int) -> None:
        raise NotImplementedError

    def on_oversize(self, delivery: Any, error: BusError, head: bytes) -> None:
        """A message was too large; nothing but its first bytes was kept."""
        self.answer(delivery, error)

    def answer(self, delivery: Any, error: BusError | None = None) -> None:
        """Accept or reject a delivery, now; one that was sent settled gets no answer."""
        if lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)
        else:
            engine.settle(delivery, engine.ACCEPTED if error is None else engine.REJECTED, error)
        self.connection.wants_output()


class Outgoing(LinkHandler):
    """A client's receiver: something pushes encoded messages to it while it has credit."""

    def credit(self) -> int:
        return int(lib.pn_link_credit(self.link))

    def buffered(self) -> int:
        """Bytes that Proton holds for the client's session because its window is closed."""
        return int(lib.pn_session_outgoing_bytes(lib.pn_link_session(self.link)))

    def finish_drain(self) -> None:
        """A client that asked for what is there, and no more, is told that this was all."""
        if lib.pn_link_get_drain(self.link):
            lib.pn_link_drained(self.link)
            self.connection.wants_output()
