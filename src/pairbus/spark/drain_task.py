"""The code that runs on executors: a task drains one backlog queue and returns its summary. It never raises."""

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

from .signals import FolderProbe, KillSignal, StopSignal

log = logging.getLogger("pairbus.syphon")

#: A function with the parameters of `drain_queue`.
DrainFunction = Callable[..., QueueSummary]

#: One row per queue: the source's depth and tick, and the fields of its `QueueSummary`.
SUMMARY = (
    "queue_index int, depth bigint, tick bigint, received bigint, delivered bigint, dead_lettered bigint, "
    "held bigint, in_doubt bigint, bytes bigint, operations bigint, seconds double, empty boolean, "
    "held_for array<struct<destination: string, reason: string, count: bigint>>, error string"
)
#: `QueueSummary.held_for` as an Arrow type.
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
    """The function that Spark runs on the source's rows. It is pickled, so it holds references and no secrets."""

    config: SyphonConfig
    #: The folder of this run's journals.
    journals: str
    stop: StopSignal
    drain: DrainFunction = drain_queue
    #: Time (seconds since 1970) until which tasks of a run that was killed may have messages locked.
    locked_until: float = 0.0
    #: The same for tasks of this run.
    kills: KillSignal | None = None

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Drain the queue of each row, and yield its summary as a batch of one row."""
        for batch in batches:
            for row in batch.to_pylist():
                summary = self.summarise(row["queue_index"], row["depth"], row["tick"], row["busy"])
                fields = asdict(summary) | {"depth": row["depth"], "tick": row["tick"]}
                yield pa.RecordBatch.from_pylist([fields], schema=_SUMMARY)

    def summarise(self, queue_index: int, depth: int | None, tick: int, busy: int) -> QueueSummary:
        """Drain one queue in batch `tick`, while `busy` queues share the rate limit; errors are in the summary."""
        if depth == 0:
            return QueueSummary(queue_index, empty=True)
        started = time.monotonic()
        try:
            return self._drain(queue_index, tick, busy)
        except Exception as error:  # an error of one queue must not end the batch of the others
            log.warning("backlog queue %d could not be drained", queue_index, exc_info=True)
            text = f"{type(error).__name__}: {error}"
            return QueueSummary(queue_index, seconds=time.monotonic() - started, error=text)

    def _drain(self, queue_index: int, tick: int, busy: int) -> QueueSummary:
        config = self.config
        if self.stop.is_set():
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
                stop=self.stop.is_set,
            )
        finally:
            close_journal(journal, queue_index)

    def _is_after_a_kill(self, context: TaskContext | None) -> bool:
        if context is not None and context.attemptNumber() > 0:
            return True
        return time.time() < max(self.locked_until, 0.0 if self.kills is None else self.kills.until())


@dataclass(frozen=True, slots=True)
class ExecutorCheck:
    """A check of the executors. To unpickle it they import this module, and so pairbus and all that a drain needs."""

    probe: FolderProbe

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the executor's host if it does not share the journal folder with the driver."""
        for _ in batches:
            hosts = [] if self.probe.is_seen() else [socket.gethostname()]
            yield pa.RecordBatch.from_pydict({"host": hosts}, _HOST)


def pass_through(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


_HOST = pa.schema([("host", pa.string())])


def summary_of(row: Any) -> QueueSummary:
    fields = row.asDict(recursive=True)
    held = tuple(HeldCount(**each) for each in fields.pop("held_for") or ())
    del fields["depth"], fields["tick"]
    return QueueSummary(**fields, held_for=held)
