"""One direction of a connection that is far away: what is on its way arrives in its order, and none before its time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LatencyPipe:
    """What goes one way. Without a distance it arrives at once, unless something is on its way still."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        #: How many bytes are on their way.
        self.size = 0

    def send(self, seconds: float, size: int, arrive: Callable[[], None]) -> None:
        """Call `arrive` after so many seconds; `size` is how many bytes it holds meanwhile."""
        if not seconds and not self._waiting:
            arrive()
            return
        due = self._loop.time() + seconds
        if self._waiting:
            due = max(due, self._waiting[-1][0])  # the distance has become shorter: nothing is overtaken
        self._waiting.append((due, size, arrive))
        self.size += size
        self._set_timer()

    def flush(self) -> None:
        """Nothing more comes: what is on its way arrives now."""
        while self._waiting:
            self._arrive_one()

    def discard(self) -> None:
        """What is on its way never arrives."""
        self._waiting.clear()
        self.size = 0

    def _set_timer(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            while self._waiting and self._waiting[0][0] <= now:
                self._arrive_one()
        finally:
            self._set_timer()

    def _arrive_one(self) -> None:
        _, size, arrive = self._waiting.popleft()
        self.size -= size
        arrive()
