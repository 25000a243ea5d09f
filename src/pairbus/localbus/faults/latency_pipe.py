"""A pipe with latency: one direction of a connection whose bytes are delivered late and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LatencyPipe:
    """Data on its way in one direction, delivered in order; at once if there is no latency and nothing on its way."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        #: Bytes on their way.
        self.size = 0

    def send(self, seconds: float, size: int, deliver: Callable[[], None]) -> None:
        """Call `deliver` after that many seconds; it holds `size` bytes until then."""
        if not seconds and not self._waiting:
            deliver()
            return
        due = self._loop.time() + seconds
        if self._waiting:
            due = max(due, self._waiting[-1][0])  # the latency was reduced: data must not overtake earlier data
        self._waiting.append((due, size, deliver))
        self.size += size
        self._set_timer()

    def flush(self) -> None:
        """Deliver everything on its way now, because no more data will come."""
        while self._waiting:
            self._deliver_one()

    def discard(self) -> None:
        self._waiting.clear()
        self.size = 0

    def _set_timer(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._deliver_due)

    def _deliver_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._waiting and self._waiting[0][0] <= now:
                self._deliver_one()
        finally:
            self._set_timer()

    def _deliver_one(self) -> None:
        _, size, deliver = self._waiting.popleft()
        self.size -= size
        deliver()
