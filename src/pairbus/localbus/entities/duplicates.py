"""Duplicate detection: the message ids that a queue has seen within its time window."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView


class DuplicateHistory:
    """Message ids with the time at which each was first enqueued, oldest first."""

    def __init__(self) -> None:
        self._enqueued_at: OrderedDict[str, float] = OrderedDict()

    def contains(self, message_id: str, now: float, window: float) -> bool:
        """Return True if the id was recorded less than `window` seconds ago; drop the ids that are older."""
        history = self._enqueued_at
        while history:
            oldest = next(iter(history))
            if history[oldest] + window > now:
                break
            del history[oldest]
        return history.get(message_id, float("-inf")) + window > now

    def record(self, message_id: str, at: float) -> None:
        """Add an id as the newest one."""
        # After the clock was set back, an expired id can lie behind newer ones: it must not keep its old place.
        self._enqueued_at.pop(message_id, None)
        self._enqueued_at[message_id] = at

    def items(self) -> ItemsView[str, float]:
        return self._enqueued_at.items()

    def __len__(self) -> int:
        return len(self._enqueued_at)
