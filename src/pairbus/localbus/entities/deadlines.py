"""A heap of deadlines that drops stale entries before they outnumber the current ones."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

_MIN_LIMIT = 1024


class Deadlines:
    """Deadlines with a key each, in order of time; `is_current` tells a stale entry when its time comes."""

    __slots__ = ("_heap", "_is_current", "_limit")

    def __init__(self, is_current: Callable[[float, Any], bool]) -> None:
        self._heap: list[tuple[float, Any]] = []
        self._is_current = is_current
        self._limit = _MIN_LIMIT

    def add(self, when: float, key: Any) -> None:
        heapq.heappush(self._heap, (when, key))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if self._is_current(*entry)]
            heapq.heapify(self._heap)
            self._limit = max(_MIN_LIMIT, 2 * len(self._heap))

    def due(self, now: float) -> Iterator[Any]:
        """Remove and yield, in order of time, the keys whose deadline has passed and is still current."""
        while self._heap and self._heap[0][0] <= now:
            when, key = heapq.heappop(self._heap)
            if self._is_current(when, key):
                yield key

    def next(self) -> float:
        """Return the earliest deadline, infinity if there is none; the entry may be stale."""
        return self._heap[0][0] if self._heap else float("inf")

    def __len__(self) -> int:
        return len(self._heap)
