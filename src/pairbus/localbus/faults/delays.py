"""Calls that are held up by added latency: one timer for all that wait equally long, not one for each."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger("pairbus.localbus.delays")

#: So many are called before others have a turn of the loop.
_AT_ONCE = 100


class Delays:
    """Calls after a while; those with the same delay keep their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[float, deque[tuple[float, Callable[[], None]]]] = {}

    def call(self, seconds: float, callback: Callable[[], None]) -> None:
        waiting = self._waiting.get(seconds)
        due = self._loop.time() + seconds
        if waiting is None:
            waiting = self._waiting[seconds] = deque()
            self._loop.call_at(due, self._run, seconds)
        waiting.append((due, callback))

    def _run(self, seconds: float) -> None:
        waiting = self._waiting[seconds]
        now, left = self._loop.time(), _AT_ONCE
        while waiting and waiting[0][0] <= now and left:
            left -= 1
            try:
                waiting.popleft()[1]()
            except Exception:
                log.exception("what was held up could not be done")  # the others are
        if waiting:
            self._loop.call_at(waiting[0][0], self._run, seconds)
        else:
            del self._waiting[seconds]
