"""What is due when: a heap whose stale entries are thrown out before they outnumber the live ones."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

_LEAST = 1024


class Deadlines:
    """Times and keys. A key that was settled, renewed or removed is not looked for here: `is_current` says so."""

    __slots__ = ("_heap", "_is_current", "_limit")

    def __init__(self, is_current: Callable[[float, Any], bool]) -> None:
        self._heap: list[tuple[float, Any]] = []
        self._is_current = is_current
        self._limit = _LEAST

    def add(self, when: float, key: Any) -> None:
        heapq.heappush(self._heap, (when, key))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if self._is_current(*entry)]
            heapq.heapify(self._heap)
            self._limit = max(_LEAST, 2 * len(self._heap))

    def due(self, now: float) -> Iterator[Any]:
        """Take out, in order, the keys whose time has come and that still count."""
        while self._heap and self._heap[0][0] <= now:
            when, key = heapq.heappop(self._heap)
            if self._is_current(when, key):
                yield key

    def next(self) -> float:
        """When `due` may have something next; never later than when it has."""
        return self._heap[0][0] if self._heap else float("inf")

    def __len__(self) -> int:
        return len(self._heap)
