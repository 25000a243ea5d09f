"""What a batch came to, and when a syphon that is to run once is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pairbus.domain.outcome import Held, QueueSummary, held_over, out_of_reach
from pairbus.errors import PairbusError
from pairbus.syphon.drain.lock_tracking import OUT_OF_REACH_SECONDS

#: What is summed up over the queues, in a log's line and in `query.lastProgress.observedMetrics["pairbus"]`.
COUNTS = ("received", "delivered", "dead_lettered", "held", "in_doubt", "bytes", "operations")
#: How many batches in a row may bring nothing home and end with errors.
_FRUITLESS = 2


class SyphonError(PairbusError):
    """A syphon could not empty the backlog; the text says what is in the way."""


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """What one batch came to."""

    batch: int
    queues: tuple[QueueSummary, ...]
    #: Depth by queue index before and after; None where nobody knows.
    before: Mapping[int, int | None]
    after: Mapping[int, int | None]
    seconds: float
    #: Billable operations besides those of the queues: management calls.
    management: int

    def total(self, count: str) -> int:
        """One of the counts, over all queues."""
        return sum(getattr(queue, count) for queue in self.queues)

    @property
    def moved(self) -> int:
        """How many messages left the backlog."""
        return self.total("delivered") + self.total("dead_lettered")

    @property
    def errors(self) -> dict[int, str]:
        return {queue.queue_index: queue.error for queue in self.queues if queue.error is not None}

    def __str__(self) -> str:
        depths = self.after.values()
        left = "an unknown number" if None in depths else sum(depth or 0 for depth in depths)
        told = ", ".join(f"{self.total(count)} {count.replace('_', '-')}" for count in COUNTS[1:5])
        errors = "".join(f"; queue {index}: {error}" for index, error in self.errors.items())
        operations = self.total("operations") + self.management
        return (
            f"batch {self.batch}: {told}; {left} left in the backlog; {self.total('bytes')} bytes, "
            f"{operations} billable operations, {self.seconds:.1f} s{errors}"
        )


class Once:
    """Watches batch after batch until what was there has left the backlog, or until it is plain that it cannot be
    emptied. A queue is done with when it was seen empty but for what is held back, or twice empty before more came, or
    when as many messages have left it as were there at first."""

    def __init__(self, queues: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._queues = queues
        self._clock = clock
        self._moved_at = clock()
        self._fruitless = 0
        #: How often a queue was emptied, how many messages were there first, and how many have left it since: somebody
        #: may be filling it all the time.
        self._emptied: Counter[int] = Counter()
        self._there: dict[int, int] = {}
        self._moved: Counter[int] = Counter()
        self._last: BatchSummary | None = None
        #: Whether no further batch is needed, or would help.
        self.is_over = False
        self._trouble: list[str] = []

    def is_done(self, summary: BatchSummary) -> bool:
        """Whether no further batch is needed, or would help."""
        self.is_over = self._is_done(summary)
        return self.is_over

    def _is_done(self, summary: BatchSummary) -> bool:
        self._last = summary
        if summary.moved:
            self._moved_at = self._clock()
        self._fruitless = self._fruitless + 1 if summary.errors and not summary.moved else 0
        for queue in summary.queues:
            if (before := summary.before.get(queue.queue_index)) is not None:
                self._there.setdefault(queue.queue_index, before)
            self._moved[queue.queue_index] += queue.delivered + queue.dead_lettered
            if queue.empty and queue.received and queue.error is None:
                self._emptied[queue.queue_index] += 1
        errors = summary.errors
        left = {queue.queue_index: self._left(queue, summary) for queue in summary.queues}
        left = {index: why for index, why in left.items() if why is not None}
        if not left:
            return True
        if self._fruitless >= _FRUITLESS or (not errors and self._clock() - self._moved_at > OUT_OF_REACH_SECONDS):
            self._trouble = [f"queue {index}: {why}" for index, why in left.items()]
            return True
        return False

    def _left(self, queue: QueueSummary, summary: BatchSummary) -> str | None:
        """Why a queue is not done with; nothing if it is."""
        if queue.error is not None:
            return queue.error
        if queue.queue_index not in summary.after:
            return None
        depth = summary.after[queue.queue_index]
        there = self._there.get(queue.queue_index)
        if there is not None and 0 < there <= self._moved[queue.queue_index]:
            return None
        if queue.empty and ((depth is not None and depth <= queue.held) or self._emptied[queue.queue_index] > 1):
            return None
        if depth is None:
            return "nobody could say how many messages are left" if not queue.empty else None
        return out_of_reach(depth, queue.held) or "it was not seen empty"

    def found_empty(self) -> None:
        """Nothing is there any more, not even what was held back: another syphon was quicker."""
        self._last, self.is_over = None, True

    def give_up(self, why: str) -> None:
        """It cannot be done."""
        self._trouble = [why]

    def result(self) -> tuple[Held, ...]:
        """What is held back in the backlog, by destination and reason; raises if more than that is left."""
        if self._trouble:
            raise SyphonError("the backlog could not be emptied: " + "; ".join(self._trouble))
        return held_over(self._last.queues if self._last is not None else ())
