"""Summaries of batches, and the end of a run-once syphon."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pairbus.domain.outcome import HeldCount, QueueSummary, held_over
from pairbus.errors import PairbusError
from pairbus.syphon.drain.completion import CompletionTracker

#: Counts that are summed up over the queues, in the log and in `query.lastProgress.observedMetrics["pairbus"]`.
COUNTS = ("received", "delivered", "dead_lettered", "held", "in_doubt", "bytes", "operations")
#: Counts that a summary's text begins with.
_SHOWN = ("delivered", "dead_lettered", "held", "in_doubt")


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
    """The batches of a run-once syphon, judged by a `CompletionTracker`, and the result or the error of the run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._completion = CompletionTracker(clock)
        self._last: BatchSummary | None = None
        self._obstacles: list[str] = []
        #: True if no further batch is needed, or none can make progress.
        self.is_over = False

    def is_done(self, summary: BatchSummary) -> bool:
        """Record a batch; return True if no further batch is needed, or none can make progress."""
        self._last = summary
        self.is_over = self._completion.observe(summary.queues, summary.before, summary.after)
        if self._completion.has_given_up:
            self._obstacles = [f"queue {index}: {reason}" for index, reason in self._completion.unfinished.items()]
        return self.is_over

    def found_empty(self) -> None:
        """End the run: the backlog is empty, because another syphon has drained it."""
        self._last, self.is_over = None, True

    def give_up(self, obstacle: str) -> None:
        self._obstacles = [obstacle]

    def result(self) -> tuple[HeldCount, ...]:
        """Return the held messages by destination and reason; raise `SyphonError` if more than those are left."""
        if self._obstacles:
            raise SyphonError("the backlog could not be emptied: " + "; ".join(self._obstacles))
        return held_over(self._last.queues if self._last is not None else ())
