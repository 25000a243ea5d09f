"""What happened to a pairing: each event goes to the log, and to a callback on a thread of its own."""

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
#: So many events wait for a callback that does not keep up; more are only logged.
_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: to which entity or backlog queue, when, and what is known about it."""

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
    """Tells events to the log and to the caller's callback, which can neither block nor break a send."""

    def __init__(self, callback: Callable[[Event], object] | None) -> None:
        self._callback = callback
        self._queue: queue.Queue[Event | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        #: Whether it was told that the callback misses events.
        self._is_behind = False
        if callback is not None:
            self._thread = threading.Thread(target=self._run, name="pairbus-events", daemon=True)
            self._thread.start()

    def tell(self, event: Event) -> None:
        # A log handler that is broken must not break a send or a ping; and where could it be told?
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
                    log.warning("on_event does not keep up: %d events wait for it, more are only logged", _WAITING)

    def close(self, timeout: float) -> None:
        """Let the callback hear what is left, for a while."""
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
            except BaseException:  # sys.exit() in it, too: it is still to hear what comes after
                log.exception("the callback for events failed on %r", event.kind)
            if self._ending.is_set() and self._queue.empty():
                return
