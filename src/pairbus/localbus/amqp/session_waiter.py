"""A receiver that has asked for a session: its link is opened with one, or refused when its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import Described, Symbol, ULong
from pairbus.localbus import bus_errors
from pairbus.localbus.auth import LISTEN
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session

from . import engine
from .consumers import Consumer
from .engine import lib
from .links import LinkHandler, copy_termini, refuse_attach

if TYPE_CHECKING:
    from .connection import AmqpConnection

SESSION_FILTER = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_LOCKED_UNTIL = "com.microsoft:locked-until-utc"
_DEFAULT_TIMEOUT_SECONDS = 60.0
#: Milliseconds from the first moment of .NET's calendar to 1970.
DOTNET_EPOCH_MS = 62_135_596_800_000


def attach_session_receiver(
    connection: AmqpConnection, link: Any, path: str, queue: Queue, session_filter: Any
) -> None:
    """Open a link with the session that its filter names, or any free one; let it wait if there is none."""
    if isinstance(session_filter, Described) and not isinstance(session_filter.descriptor, (Symbol, ULong)):
        raise BusError(bus_errors.INVALID_FIELD, "The session filter's descriptor is neither a symbol nor a ulong.")
    name = session_filter.value if isinstance(session_filter, Described) else session_filter
    if name is not None and not isinstance(name, str):
        raise BusError(bus_errors.INVALID_FIELD, "The session filter is neither a string nor null.")
    waiter = SessionWaiter(connection, link, path, queue, None if name is None else str(name))
    if waiter.offer(connection.server.now()):
        return
    connection.server.dispatcher.add_waiter(queue, waiter)
    connection.server.schedule()
    connection.add_handler(_WaitingLink(connection, link, path, waiter))


class SessionWaiter:
    """A receiver's request for a session, which is refused at its `deadline`."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, queue: Queue, name: str | None) -> None:
        self._connection = connection
        self._link = link
        self._path = path
        self.queue = queue
        self._name = name
        properties = engine.read(lib.pn_link_remote_properties(link))
        timeout = properties.get(_TIMEOUT) if isinstance(properties, dict) else None
        seconds = timeout / 1000 if isinstance(timeout, int) and timeout > 0 else _DEFAULT_TIMEOUT_SECONDS
        self.deadline = connection.server.now() + seconds
        self._has_waited = self._cancelled = False

    def offer(self, now: float) -> bool:
        """Try to accept a session; return True if the request is done, with a session or an error."""
        server = self._connection.server
        if self._cancelled or not self._connection.alive:
            return True
        if server.faults.is_black_hole(self._path):
            return False
        try:
            server.broker.check_receive(self.queue)
            # A link that is opened after a wait meets the faults on attaches, too.
            fault = server.faults.on_attach(self._path) if self._has_waited and self.queue.has_free_session() else None
            if fault is not None:
                raise fault
            session = self.queue.accept_session(self._name, object(), now)
        except BusError as error:
            self.refuse(error)
            return True
        if session is None:
            self._has_waited = True
            return False
        self._open(session)
        return True

    def _open(self, session: Session) -> None:
        """Open the link, with the session's id as its filter."""
        link = self._link
        copy_termini(link)
        filters = engine.read(lib.pn_terminus_filter(lib.pn_link_remote_source(link)))
        requested = filters[SESSION_FILTER]
        accepted: Any = session.id
        if isinstance(requested, Described):
            accepted = engine.Described(_proton_descriptor(requested.descriptor), session.id)
        data = lib.pn_terminus_filter(lib.pn_link_source(link))
        engine.write(data, {engine.symbol(SESSION_FILTER): accepted})
        ticks = (int(session.until * 1000) + DOTNET_EPOCH_MS) * 10_000
        engine.write(lib.pn_link_properties(link), {engine.symbol(_LOCKED_UNTIL): ticks})
        consumer = Consumer(self._connection, link, self._path, self.queue, session)
        lib.pn_link_open(link)
        self._connection.add_handler(consumer)
        self._connection.wants_output()

    def refuse(self, error: BusError) -> None:
        """Refuse the attach, unless a black hole (a fault) swallows the answer."""
        if self._cancelled or not self._connection.alive:
            return
        self._cancelled = True
        if self._connection.server.faults.is_black_hole(self._path):
            self._connection.unanswered_links[self._link] = self._path
        else:
            refuse_attach(self._link, error)
            self._connection.wants_output()

    def cancel(self) -> None:
        """Withdraw the request: the client has closed its link."""
        self._cancelled = True
        self._connection.server.dispatcher.remove_waiter(self.queue, self)


class _WaitingLink(LinkHandler):
    """The handler of a link that waits for a session; it notices when the client closes the link."""

    right = LISTEN

    def __init__(self, connection: AmqpConnection, link: Any, path: str, waiter: SessionWaiter) -> None:
        super().__init__(connection, link, path)
        self._waiter = waiter

    def detach(self, error: BusError) -> None:
        if self.open and self.connection.alive:
            self._waiter.refuse(error)
            self.connection.remove_handler(self)

    def on_flow(self) -> None:
        """Offer the queue's sessions again: a black hole may have ended."""
        self.connection.server.broker.ready(self._waiter.queue)

    def on_closed(self) -> None:
        self._waiter.cancel()


def _proton_descriptor(descriptor: Any) -> Any:
    return engine.symbol(descriptor) if isinstance(descriptor, Symbol) else engine.ulong(int(descriptor))
