"""One destination, as all senders of a pairing see it: its health, what happened to it, and the task that pings it."""

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
from .connections import Lane, Lanes
from .sdk.classification import is_shortage, is_unnamed, means
from .status import EntityStatus, Operations

#: What is to be told: the kind of event, and when and how the error was that it came from.
_News = tuple[()] | tuple[str, tuple[datetime, str | None] | None]
PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"


def entity_name(path: str, event_hubs: str | None) -> str:
    """What an entity is called in status and events: its path, or the address of an event hub. No path has a colon."""
    return path if event_hubs is None else f"sb://{event_hubs}/{path}"


class Entity:
    """A queue or topic of the primary, an event hub, or one partition of it."""

    def __init__(
        self,
        path: str,
        lanes: Lanes,
        options: PairingOptions,
        operations: Operations,
        tell: Callable[..., None],
        closing: threading.Event,
        event_hubs: str | None = None,
    ) -> None:
        self.path = path
        #: The host of the event hubs namespace, for what is not in the primary.
        self.event_hubs = event_hubs
        self.name = entity_name(path, event_hubs)
        self.lanes = lanes
        #: Replaced as a whole under the lock, read without it.
        self.health = Health(since=time.monotonic())
        #: The last success since then, which its health is told before anything else: nearly every send is one.
        self._well_at: float | None = None
        self.refusal: Exception | None = None
        self._users = 0
        self.sent = self.parked = self.billed = 0
        self._options = options
        self._operations = operations
        self._tell = tell
        self._closing = closing
        self._lock = threading.Lock()
        self._since = datetime.now(timezone.utc)
        self._last_error: tuple[datetime, str] | None = None
        self._last_ping: tuple[datetime, str | None] | None = None
        self._pinging: Lane | None = None

    # --- senders ---------------------------------------------------------------------------------------

    def join(self) -> None:
        """A sender uses this entity's connections."""
        with self._lock:
            self._users += 1
            self.lanes.wanted = True

    def part(self) -> list[threading.Thread]:
        """A sender has closed; with the last one the connections go, those in use when they are given back."""
        with self._lock:
            self._users -= 1
            self.lanes.wanted = self._users > 0
            return [] if self._users else self.lanes.close_idle()

    # --- what senders report -----------------------------------------------------------------------------

    def accepted(self, messages: int, operations: int) -> None:
        """The primary has accepted a send."""
        with self._lock:
            self.sent += messages
            self.billed += operations
            if self.health.state is State.AVAILABLE:  # nearly always
                self._well_at = time.monotonic()
                return
            news = self._change(self.health.succeeded(time.monotonic()))
        self._announce(news)

    def was_parked(self, messages: int) -> None:
        with self._lock:
            self.parked += messages

    def failed(self, error: Exception, sent_at: float) -> Health:
        """A send that was begun then has failed in a way that counts; the health after it."""
        interval = self._options.seconds("failover_interval")
        with self._lock:
            self._last_error = datetime.now(timezone.utc), describe_error(error)
            before = self.health if self._well_at is None else self.health.succeeded(self._well_at)
            self._well_at = None
            news = self._change(before.failed(time.monotonic(), interval, sent_at))
            health = self.health
        self._announce(news)
        return health

    def _change(self, after: Health) -> _News:
        """Adopt a new state, under the lock; what is to be told about it when the lock is free again."""
        before = self.health
        if before.state is after.state:
            self.health = after
            return ()
        if after.state is State.FAILED_OVER and before.state is not State.UNUSABLE:
            # First: without a task that pings, nobody would ever find it back.
            threading.Thread(target=self._ping_until_back, name=f"pairbus-ping {self.name}", daemon=True).start()
            self.lanes.drop_idle()  # they lead to where nobody answers, and would be taken up again after the failback
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

    def _announce(self, news: _News) -> None:
        if news:
            kind, why = news
            self._tell(kind, entity=self.name, **({"error": why[1]} if why else {}))

    # --- pings -------------------------------------------------------------------------------------------

    def _ping_until_back(self) -> None:
        interval = self._options.seconds("ping_primary_interval")
        due = time.monotonic() + interval
        while not self._closing.wait(max(due - time.monotonic(), 0.0)):
            # From start to start, however long one takes. Those that were due while it was under way are one: the next.
            due += interval
            error: Exception | None = None
            try:
                self._ping()
            except Exception as failure:
                error = failure
            if self._closing.is_set():
                return
            with self._lock:
                now = time.monotonic()
                self._last_ping = datetime.now(timezone.utc), None if error is None else describe_error(error)
                news: _News = ()
                if error is None:
                    news = self._change(self.health.ping_answered(now))
                elif is_shortage(error) or means(error) is Meaning.BUSY:
                    pass  # not of the entity: one that is refused stays so, and nothing is parked for it
                elif means(error) is Meaning.CONFIGURATION and not is_unnamed(error):
                    self.refusal = error
                    news = self._change(self.health.ping_refused(now))
                else:
                    news = self._change(self.health.ping_failed(now))
                back = self.health.goes_to_primary
            self._announce(news)
            if back:
                return  # whatever its health is by now: the next failover has a task of its own
            if error is not None and not news:
                self._tell(events.PING_FAILED, entity=self.name, error=describe_error(error))
            due = max(due, time.monotonic())

    def _ping(self) -> None:
        """One ping, on a connection of its own."""
        lane = self.lanes.take_new()
        self._pinging = lane
        if self._closing.is_set():  # it may have looked for a ping to stop before there was one
            lane.cut()
        timeout = self._options.seconds("ping_timeout")
        try:
            # Event Hubs would deliver a message like any other.
            if self._options.ping == "attach" or self.event_hubs is not None:
                lane.open(timeout)
            else:
                lane.send(ping_message(), timeout)
                self._operations.add("ping", operations_of(0))
        finally:
            self._pinging = None
            self.lanes.drop(lane)

    def stop_pings(self) -> None:
        """The pairing closes: whatever ping is under way ends now."""
        lane = self._pinging
        if lane is not None:
            lane.cut()

    # --- what is known -----------------------------------------------------------------------------------

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
    """A message that Service Bus takes, of any session, and never delivers."""
    return ServiceBusMessage(
        b"", content_type=PING_CONTENT_TYPE, time_to_live=timedelta(seconds=1), session_id=str(uuid.uuid4())
    )


__all__ = ["PING_CONTENT_TYPE", "Entity", "entity_name", "ping_message"]
