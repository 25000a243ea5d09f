"""What runs on executors: one task drains one backlog queue and returns one summary. Nothing makes it raise."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import Head, HeldCount, QueueSummary
from pairbus.syphon.drain.drain import DrainOptions, drain_queue
from pairbus.syphon.journal.journal import close_journal, open_journal

from .signals import KillMark, SharedSample, StopMark

log = logging.getLogger("pairbus.syphon")

Drain = Callable[..., QueueSummary]

#: One row per queue: what the source said of it, and its `QueueSummary`.
SUMMARY = (
    "queue_index int, depth bigint, tick bigint, received bigint, delivered bigint, dead_lettered bigint, "
    "held bigint, in_doubt bigint, bytes bigint, operations bigint, seconds double, empty boolean, "
    "held_for array<struct<destination: string, reason: string, count: bigint>>, error string"
)
#: What is held back for whom, as Arrow has it.
HELD = pa.list_(pa.struct([("destination", pa.string()), ("reason", pa.string()), ("count", pa.int64())]))
_SUMMARY = pa.schema(
    [
        ("queue_index", pa.int32()),
        *((name, pa.int64()) for name in ("depth", "tick", "received", "delivered", "dead_lettered")),
        *((name, pa.int64()) for name in ("held", "in_doubt", "bytes", "operations")),
        ("seconds", pa.float64()),
        ("empty", pa.bool_()),
        ("held_for", HELD),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class DrainTask:
    """The function that Spark runs on the source's rows. It travels to executors, with references and no secret."""

    config: SyphonConfig
    #: The folder of this run's journals.
    journals: str
    mark: StopMark
    drain: Drain = drain_queue
    #: Until then (wall time) messages may be locked by tasks of a run that was killed.
    wary_until: float = 0.0
    kills: KillMark | None = None

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for row in batch.to_pylist():
                summary = self.summarise(row["queue_index"], row["depth"], row["tick"], row["busy"])
                told = asdict(summary) | {"depth": row["depth"], "tick": row["tick"]}
                yield pa.RecordBatch.from_pylist([told], schema=_SUMMARY)

    def summarise(self, queue_index: int, depth: int | None, tick: int, busy: int) -> QueueSummary:
        """Drain one queue; an empty one is not even connected to."""
        if depth == 0:
            return QueueSummary(queue_index, empty=True)
        began = time.monotonic()
        try:
            return self._drained(queue_index, tick, busy)
        except Exception as error:  # one queue's trouble must not end the batch of the others
            log.warning("queue %d could not be drained", queue_index, exc_info=True)
            told = f"{type(error).__name__}: {error}"
            return QueueSummary(queue_index, seconds=time.monotonic() - began, error=told)

    def _drained(self, queue_index: int, tick: int, busy: int) -> QueueSummary:
        config = self.config
        if self.mark.is_set():
            return QueueSummary(queue_index)
        primary, secondary, event_hubs = config.resolve()
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        journal = open_journal(self.journals, Head(primary.name, queue_index, batch=tick, attempt=attempt))
        try:
            return self.drain(
                primary=primary,
                secondary=secondary,
                event_hubs=event_hubs,
                queue_index=queue_index,
                journal=journal,
                options=DrainOptions.of(
                    config,
                    budget=config.task_budget,
                    after_a_kill=self._is_after_a_kill(context),
                    max_rate=config.max_rate / max(busy, 1) if config.max_rate else None,
                ),
                stop=self.mark.is_set,
            )
        finally:
            close_journal(journal, queue_index)

    def _is_after_a_kill(self, context: TaskContext | None) -> bool:
        if context is not None and context.attemptNumber() > 0:
            return True
        return time.time() < max(self.wary_until, 0.0 if self.kills is None else self.kills.until())


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried on executors before a message moves. Who can run it has pairbus and all that it needs, because this
    module could be imported."""

    sample: SharedSample

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The machine's name if it does not see what the driver has put into the journals' folder."""
        for _ in batches:
            blind = [] if self.sample.is_seen() else [socket.gethostname()]
            yield pa.RecordBatch.from_pydict({"blind": blind}, _BLIND)


def passed_on(batches: Iterator[Any]) -> Iterator[Any]:
    """What came, as it came."""
    return batches


_BLIND = pa.schema([("blind", pa.string())])


def summary_of(row: Any) -> QueueSummary:
    """A row of the summary frame, as it was before it travelled."""
    told = row.asDict(recursive=True)
    held = tuple(HeldCount(**each) for each in told.pop("held_for") or ())
    del told["depth"], told["tick"]
    return QueueSummary(**told, held_for=held)
