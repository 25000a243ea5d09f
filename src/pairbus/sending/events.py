"""Events of a pairing: each goes to the log, and to a callback on a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

log = logging.getLogger("pairbus")

FAILED_OVER = "failed over"
FAILED_BACK = "failed back"
SUSPECTED = "entity suspected"
RECOVERED = "entity recovered"
UNUSABLE = "entity unusable"
PING_FAILED = "ping failed"
QUEUE_LEFT = "queue left rotation"
QUEUE_BACK = "queue back in rotation"
QUEUE_MISSING = "queue missing"
QUEUE_DIFFERS = "queue differs"
HALF_FAULTED = "half faulted"
BROUGHT_HOME = "messages brought home"
SYPHON_ENDED = "syphon ended"
CLOSED = "pairing closed"

_LEVELS = {
    FAILED_OVER: logging.WARNING,
    SUSPECTED: logging.WARNING,
    UNUSABLE: logging.ERROR,
    QUEUE_LEFT: logging.WARNING,
    QUEUE_MISSING: logging.WARNING,
    QUEUE_DIFFERS: logging.WARNING,
    HALF_FAULTED: logging.ERROR,
    SYPHON_ENDED: logging.ERROR,
}
#: Events that may wait for a slow callback; more are only logged.
_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a pairing: its kind, the entity or backlog queue, the time, and details."""

    kind: str
    primary: str
    entity: str | None = None
    queue: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def __str__(self) -> str:
        about = self.entity or self.queue or self.primary
        facts = ", ".join(f"{name}={value}" for name, value in self.details.items())
        return f"{self.kind}: {about}" + (f" ({facts})" if facts else "")


class Announcer:
    """The log and the caller's callback, as receivers of events; neither can block or break a send."""

    def __init__(self, callback: Callable[[Event], object] | None) -> None:
        self._callback = callback
        self._queue: queue.Queue[Event | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        #: True once a warning was logged that the callback misses events.
        self._is_behind = False
        if callback is not None:
            self._thread = threading.Thread(target=self._run, name="pairbus-events", daemon=True)
            self._thread.start()

    def announce(self, event: Event) -> None:
        # A broken log handler must not break a send or a ping.
        with contextlib.suppress(Exception):
            log.log(_LEVELS.get(event.kind, logging.INFO), "%s", event, extra={"pairbus": asdict(event)})
        if self._thread is None:
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            if not self._is_behind:
                self._is_behind = True
                with contextlib.suppress(Exception):
                    log.warning("on_event is slow: %d events wait for it; further ones are only logged", _WAITING)

    def close(self, timeout: float) -> None:
        """Wait until the callback has had all events, or the time is up."""
        if self._thread is None:
            return
        self._ending.set()
        with contextlib.suppress(queue.Full):  # if it is, the thread is not waiting for anything
            self._queue.put_nowait(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        assert self._callback is not None
        while (event := self._queue.get()) is not None:
            try:
                self._callback(event)
            except BaseException:  # sys.exit() in it, too
                log.exception("on_event failed for %r; it is called again for the next event", event.kind)
            if self._ending.is_set() and self._queue.empty():
                return
