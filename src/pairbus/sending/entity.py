"""One destination of a pairing, shared by its senders: its health, its counts, and the thread that pings it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus.domain.conditions import Meaning
from pairbus.domain.cost import operations_of
from pairbus.domain.health import Health, State
from pairbus.options import PairingOptions
from pairbus.runtime.redaction import describe_error

from . import events
from .connections import ConnectionPool, SenderConnection
from .sdk.classification import is_shortage, is_unnamed, meaning_of
from .status import EntityStatus, Operations

#: An event to emit: its kind, and the time and text of the error behind it. Empty for no event.
_Change = tuple[()] | tuple[str, tuple[datetime, str | None] | None]
#: The content type of a ping, as in the original .NET library.
PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def entity_name(path: str, event_hubs: str | None) -> str:
    """Return an entity's name in status and events: its path, or the address of an event hub. No path has a colon."""
    return path if event_hubs is None else f"sb://{event_hubs}/{path}"


class Entity:
    """A queue or topic of the primary, an event hub, or one partition of it."""

    def __init__(
        self,
        path: str,
        pool: ConnectionPool,
        options: PairingOptions,
        operations: Operations,
        emit: Callable[..., None],
        closing: threading.Event,
        event_hubs: str | None = None,
    ) -> None:
        self.path = path
        #: The host of the event hubs namespace; None for an entity of the primary.
        self.event_hubs = event_hubs
        self.name = entity_name(path, event_hubs)
        self.pool = pool
        #: Replaced as a whole under the lock, read without it.
        self.health = Health(since=time.monotonic())
        #: The last success while available; `health` adopts it before the next failure, so that a send need not.
        self._well_at: float | None = None
        self.refusal: Exception | None = None
        self._users = 0
        self.sent = self.parked = self.billed = 0
        self._options = options
        self._operations = operations
        self._emit = emit
        self._closing = closing
        self._lock = threading.Lock()
        self._since = datetime.now(timezone.utc)
        self._last_error: tuple[datetime, str] | None = None
        self._last_ping: tuple[datetime, str | None] | None = None
        self._ping_connection: SenderConnection | None = None

    def join(self) -> None:
        """Count a sender that uses this entity's connections."""
        with self._lock:
            self._users += 1
            self.pool.wanted = True

    def leave(self) -> list[threading.Thread]:
        """Count a sender that was closed; close the connections with the last one, on threads that are returned."""
        with self._lock:
            self._users -= 1
            self.pool.wanted = self._users > 0
            return [] if self._users else self.pool.close_idle()

    def accepted(self, messages: int, operations: int) -> None:
        """Count a send that the primary has accepted."""
        with self._lock:
            self.sent += messages
            self.billed += operations
            if self.health.state is State.AVAILABLE:
                self._well_at = time.monotonic()
                return
            change = self._change(self.health.succeeded(time.monotonic()))
        self._announce(change)

    def was_parked(self, messages: int) -> None:
        """Count messages that a backlog queue has accepted."""
        with self._lock:
            self.parked += messages

    def failed(self, error: Exception, sent_at: float) -> Health:
        """Count a failure of a send that began at `sent_at`; return the health after it."""
        interval = self._options.seconds("failover_interval")
        with self._lock:
            self._last_error = datetime.now(timezone.utc), describe_error(error)
            before = self.health if self._well_at is None else self.health.succeeded(self._well_at)
            self._well_at = None
            change = self._change(before.failed(time.monotonic(), interval, sent_at))
            health = self.health
        self._announce(change)
        return health

    def _change(self, after: Health) -> _Change:
        """Adopt a new state, under the lock; return the event to emit when the lock is free again."""
        before = self.health
        if before.state is after.state:
            self.health = after
            return ()
        if after.state is State.FAILED_OVER and before.state is not State.UNUSABLE:
            # First: if no thread can be started to ping it, it would never fail back.
            threading.Thread(target=self._ping_until_back, name=f"pairbus-ping {self.name}", daemon=True).start()
            self.pool.drop_idle()  # they would be used again after the failback
        self.health = after
        self._since = datetime.now(timezone.utc)
        if after.state is State.SUSPECT:
            return events.SUSPECTED, self._last_error
        if after.state is State.FAILED_OVER:
            if before.state is State.UNUSABLE:
                return ()
            return events.FAILED_OVER, self._last_error
        if after.state is State.UNUSABLE:
            return events.UNUSABLE, self._last_ping
        self.refusal = None
        return (events.RECOVERED if before.state is State.SUSPECT else events.FAILED_BACK), None

    def _announce(self, change: _Change) -> None:
        if change:
            kind, why = change
            self._emit(kind, entity=self.name, **({"error": why[1]} if why else {}))

    def _ping_until_back(self) -> None:
        """Ping at every interval until the entity takes sends again, or the pairing closes."""
        interval = self._options.seconds("ping_primary_interval")
        due = time.monotonic() + interval
        while not self._closing.wait(max(due - time.monotonic(), 0.0)):
            # From start to start, however long one takes. Those that were due while it ran are one: the next.
            due += interval
            error: Exception | None = None
            try:
                self._ping()
            except Exception as failure:
                error = failure
            if self._closing.is_set():
                return  # a ping that the pairing's end has cut says nothing
            if self._adopt_ping(error):
                return  # whatever its health is by now: the next failover starts a thread of its own
            due = max(due, time.monotonic())

    def _adopt_ping(self, error: Exception | None) -> bool:
        """Adopt the outcome of a ping; return True if the entity takes sends again."""
        with self._lock:
            self._last_ping = datetime.now(timezone.utc), None if error is None else describe_error(error)
            change = self._change(self._health_after_ping(error, time.monotonic()))
            is_back = self.health.goes_to_primary
        self._announce(change)
        if error is not None and not change and not is_back:
            self._emit(events.PING_FAILED, entity=self.name, error=describe_error(error))
        return is_back

    def _health_after_ping(self, error: Exception | None, now: float) -> Health:
        if error is None:
            return self.health.ping_answered(now)
        if is_shortage(error) or meaning_of(error) is Meaning.BUSY:
            return self.health  # not the entity's fault; an unusable one stays so, and nothing is parked for it
        if meaning_of(error) is Meaning.CONFIGURATION and not is_unnamed(error):
            self.refusal = error
            return self.health.ping_refused(now)
        return self.health.ping_failed(now)

    def _ping(self) -> None:
        connection = self.pool.take_new()
        self._ping_connection = connection
        if self._closing.is_set():  # `stop_pings` may have come before there was a connection
            connection.cut()
        timeout = self._options.seconds("ping_timeout")
        try:
            # Event Hubs would deliver a ping message like any other.
            if self._options.ping == "attach" or self.event_hubs is not None:
                connection.open(timeout)
            else:
                connection.send(ping_message(), timeout)
                self._operations.add("ping", operations_of(0))
        finally:
            self._ping_connection = None
            self.pool.drop(connection)

    def stop_pings(self) -> None:
        """Cut the ping that runs; the pairing is closing."""
        connection = self._ping_connection
        if connection is not None:
            connection.cut()

    def status(self) -> EntityStatus:
        with self._lock:
            return EntityStatus(
                path=self.path,
                event_hubs=self.event_hubs,
                state=self.health.state.value,
                since=self._since,
                last_error=self._last_error[1] if self._last_error else None,
                last_error_at=self._last_error[0] if self._last_error else None,
                last_ping_at=self._last_ping[0] if self._last_ping else None,
                last_ping_error=self._last_ping[1] if self._last_ping else None,
                sent=self.sent,
                parked=self.parked,
            )


def ping_message() -> Any:
    """Return a message that Service Bus accepts in any entity and drops after a second."""
    return ServiceBusMessage(
        b"", content_type=PING_CONTENT_TYPE, time_to_live=timedelta(seconds=1), session_id=str(uuid.uuid4())
    )
