"""Delayed calls for added latency: one timer for all calls with the same delay."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger("pairbus.localbus.delays")

#: Calls made in one go before the event loop continues.
_MAX_CALLS = 100


class Delays:
    """Calls that wait for their delay; those with the same delay keep their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[float, deque[tuple[float, Callable[[], None]]]] = {}

    def call(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after that many seconds; an exception of the callback is logged."""
        waiting = self._waiting.get(seconds)
        due = self._loop.time() + seconds
        if waiting is None:
            waiting = self._waiting[seconds] = deque()
            self._loop.call_at(due, self._run, seconds)
        waiting.append((due, callback))

    def _run(self, seconds: float) -> None:
        waiting = self._waiting[seconds]
        now, remaining = self._loop.time(), _MAX_CALLS
        while waiting and waiting[0][0] <= now and remaining:
            remaining -= 1
            try:
                waiting.popleft()[1]()
            except Exception:
                log.exception("a call delayed by added latency failed; the other calls go on")
        if waiting:
            self._loop.call_at(waiting[0][0], self._run, seconds)
        else:
            del self._waiting[seconds]
