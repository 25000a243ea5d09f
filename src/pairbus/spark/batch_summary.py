"""What a batch came to, and when a syphon that is to run once is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pairbus.domain.outcome import HeldCount, QueueSummary, held_over
from pairbus.errors import PairbusError
from pairbus.syphon.drain.completion import CompletionTracker

#: What is summed up over the queues, in a log's line and in `query.lastProgress.observedMetrics["pairbus"]`.
COUNTS = ("received", "delivered", "dead_lettered", "held", "in_doubt", "bytes", "operations")


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
    """The batches of a run-once syphon, judged by a `CompletionTracker`, and the error or the result they end in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._tracker = CompletionTracker(clock)
        self._last: BatchSummary | None = None
        #: True once no further batch is needed, or none would help.
        self.is_over = False
        self._trouble: list[str] = []

    def is_done(self, summary: BatchSummary) -> bool:
        """Take in a batch; return True if no further batch is needed, or none would help."""
        self._last = summary
        self.is_over = self._tracker.observe(summary.queues, summary.before, summary.after)
        if self._tracker.has_given_up:
            self._trouble = [f"queue {index}: {why}" for index, why in self._tracker.unfinished.items()]
        return self.is_over

    def found_empty(self) -> None:
        """Note that the backlog holds nothing, not even held messages: another syphon has drained it."""
        self._last, self.is_over = None, True

    def give_up(self, why: str) -> None:
        """Note a reason for which the backlog cannot be emptied."""
        self._trouble = [why]

    def result(self) -> tuple[HeldCount, ...]:
        """Return the held messages, counted by destination and reason.

        Raises `SyphonError` if the run has given up.
        """
        if self._trouble:
            raise SyphonError("the backlog could not be emptied: " + "; ".join(self._trouble))
        return held_over(self._last.queues if self._last is not None else ())
