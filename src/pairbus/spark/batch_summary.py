"""Summaries of batches, and the rule that ends a run-once syphon."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pairbus.domain.outcome import Held, QueueSummary, held_over, out_of_reach
from pairbus.errors import PairbusError
from pairbus.syphon.drain.lock_tracking import OUT_OF_REACH_SECONDS

#: Counts that are summed up over the queues, in the log and in `query.lastProgress.observedMetrics["pairbus"]`.
COUNTS = ("received", "delivered", "dead_lettered", "held", "in_doubt", "bytes", "operations")
#: Counts that a summary's text begins with.
_SHOWN = ("delivered", "dead_lettered", "held", "in_doubt")
#: Batches in a row with errors and without progress after which a run-once syphon gives up.
_FRUITLESS_LIMIT = 2


class SyphonError(PairbusError):
    """A syphon that cannot run, or could not empty the backlog; the text names the obstacle."""


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The result of one batch."""

    batch: int
    queues: tuple[QueueSummary, ...]
    #: Queue index -> depth before and after the batch; None if it is unknown.
    before: Mapping[int, int | None]
    after: Mapping[int, int | None]
    seconds: float
    #: Billable operations of depth queries, which the queues' own do not include.
    management: int

    def total(self, count: str) -> int:
        """Return one of the counts, summed up over all queues."""
        return sum(getattr(queue, count) for queue in self.queues)

    @property
    def moved(self) -> int:
        """The number of messages that left the backlog."""
        return self.total("delivered") + self.total("dead_lettered")

    @property
    def errors(self) -> dict[int, str]:
        """Queue index -> error of the queues that have one."""
        return {queue.queue_index: queue.error for queue in self.queues if queue.error is not None}

    def __str__(self) -> str:
        depths = self.after.values()
        left = "an unknown number" if None in depths else sum(depth or 0 for depth in depths)
        counts = ", ".join(f"{self.total(count)} {count.replace('_', '-')}" for count in _SHOWN)
        errors = "".join(f"; queue {index}: {error}" for index, error in self.errors.items())
        operations = self.total("operations") + self.management
        return (
            f"batch {self.batch}: {counts}; {left} left in the backlog; {self.total('bytes')} bytes, "
            f"{operations} billable operations, {self.seconds:.1f} s{errors}"
        )


class RunOnceTracker:
    """Decides after each batch whether a run-once syphon has drained what it found, or cannot.

    A queue is drained when it is empty but for held messages, when it was emptied twice while more were parked, or when
    as many messages have left it as it held at first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at = clock()
        self._fruitless = 0  # batches in a row
        # By queue index: how often it was emptied, its first depth, and the messages that have left it since.
        self._emptied: Counter[int] = Counter()
        self._first_depth: dict[int, int] = {}
        self._moved: Counter[int] = Counter()
        self._last: BatchSummary | None = None
        self._obstacles: list[str] = []
        #: True if no further batch is needed, or none can make progress.
        self.is_over = False

    def is_done(self, summary: BatchSummary) -> bool:
        """Record a batch; return True if no further batch is needed, or none can make progress."""
        self._record(summary)
        obstacles = {queue.queue_index: self._obstacle(queue, summary) for queue in summary.queues}
        obstacles = {index: text for index, text in obstacles.items() if text is not None}
        gives_up = self._fruitless >= _FRUITLESS_LIMIT or (
            not summary.errors and self._clock() - self._moved_at > OUT_OF_REACH_SECONDS
        )
        if obstacles and gives_up:
            self._obstacles = [f"queue {index}: {text}" for index, text in obstacles.items()]
        self.is_over = not obstacles or gives_up
        return self.is_over

    def _record(self, summary: BatchSummary) -> None:
        self._last = summary
        if summary.moved:
            self._moved_at = self._clock()
        self._fruitless = self._fruitless + 1 if summary.errors and not summary.moved else 0
        for queue in summary.queues:
            if (before := summary.before.get(queue.queue_index)) is not None:
                self._first_depth.setdefault(queue.queue_index, before)
            self._moved[queue.queue_index] += queue.delivered + queue.dead_lettered
            if queue.empty and queue.received and queue.error is None:
                self._emptied[queue.queue_index] += 1

    def _obstacle(self, queue: QueueSummary, summary: BatchSummary) -> str | None:
        """Return why a queue is not drained yet; None if it is."""
        index = queue.queue_index
        if queue.error is not None:
            return queue.error
        if index not in summary.after:
            return None
        if 0 < self._first_depth.get(index, 0) <= self._moved[index]:
            return None
        depth = summary.after[index]
        if queue.empty and ((depth is not None and depth <= queue.held) or self._emptied[index] > 1):
            return None
        if depth is None:
            return None if queue.empty else "its depth is unknown"
        return out_of_reach(depth, queue.held) or "it was not seen empty"

    def found_empty(self) -> None:
        """End the run: the backlog is empty, because another syphon has drained it."""
        self._last, self.is_over = None, True

    def give_up(self, obstacle: str) -> None:
        """End the run with an error."""
        self._obstacles = [obstacle]

    def result(self) -> tuple[Held, ...]:
        """Return the held messages by destination and reason; raise `SyphonError` if more than those are left."""
        if self._obstacles:
            raise SyphonError("the backlog could not be emptied: " + "; ".join(self._obstacles))
        return held_over(self._last.queues if self._last is not None else ())
