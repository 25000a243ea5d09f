"""The ledger: Delta tables of what became of every message (`outcomes`), and of every batch (`batches`).

Rows come from the journals, which hold them before a message leaves the backlog. Folding a journal in is told apart by
the run that wrote it and a version of that run (`txnAppId`, `txnVersion`): whatever was killed between two steps, the
next run folds what is left, and Delta skips what was folded before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pairbus.domain.outcome import QueueSummary
from pairbus.syphon.journal.folding import Fold, JournalFolder, read_parts
from pairbus.syphon.journal.storage import join

from .drain_task import HELD

log = logging.getLogger("pairbus.syphon")

#: As the journals have it, and the day (UTC) of settled_at, by which the table is partitioned.
OUTCOMES = (
    "namespace string, queue_index int, sequence_number bigint, message_id string, session_id string, "
    "destination string, outcome string, reason string, parked_at timestamp, settled_at timestamp, size bigint, "
    "delivery_count bigint, attempt bigint, batch bigint, day date"
)
BATCHES = (
    "namespace string, run string, batch bigint, at timestamp, queue_index int, depth_before bigint, "
    "depth_after bigint, received bigint, delivered bigint, dead_lettered bigint, held bigint, in_doubt bigint, "
    "bytes bigint, operations bigint, seconds double, error string, "
    "held_for array<struct<destination: string, reason: string, count: bigint>>"
)
#: The same for Arrow: rows that are plain Python would take a Python worker of their own to get into the JVM.
_BATCHES = pa.schema(
    [
        ("namespace", pa.string()),
        ("run", pa.string()),
        ("batch", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("queue_index", pa.int32()),
        *((name, pa.int64()) for name in ("depth_before", "depth_after", "received", "delivered", "dead_lettered")),
        *((name, pa.int64()) for name in ("held", "in_doubt", "bytes", "operations")),
        ("seconds", pa.float64()),
        ("error", pa.string()),
        ("held_for", HELD),
    ]
)
_TRIES = 3
#: How many folds an end may take: one that failed before, what came after it, and the proof that it was all.
_FOLDS = 3
#: There is a commit for every batch: Delta's ten between two checkpoints of its log are soon made.
_PROPERTIES = {"delta.checkpointInterval": "50"}
#: Statistics of all fourteen columns cost a quarter of what writing them does, and only what grows tells files apart.
_STATISTICS, _SOUGHT_BY = "delta.dataSkippingStatsColumns", "sequence_number,settled_at"


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One queue in one batch."""

    summary: QueueSummary
    depth_before: int | None
    depth_after: int | None


class Ledger:
    """The tables below one folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._outcomes = join(folder, "outcomes")
        self._batches = join(folder, "batches")

    @property
    def exists(self) -> bool:
        """Whether there is one; its tables are made before a message moves."""
        return DeltaTable.isDeltaTable(self._spark, self._outcomes)

    def outcomes(self) -> DataFrame:
        """One row for every fate of a message: two for one that was delivered twice."""
        return self._read(self._outcomes, OUTCOMES)

    def batches(self) -> DataFrame:
        """One row per batch and queue."""
        return self._read(self._batches, BATCHES)

    def create(self) -> None:
        """Make the tables that are not there, and see that they can be read: the first fold needs their state too."""
        self._again(partial(self._create, self._outcomes, OUTCOMES, ["day"], {_STATISTICS: _SOUGHT_BY}))
        self._again(partial(self._create, self._batches, BATCHES, [], {}))
        DeltaTable.forPath(self._spark, self._outcomes).detail().collect()

    def _create(self, path: str, columns: str, partitions: list[str], properties: Mapping[str, str]) -> None:
        table = DeltaTable.createIfNotExists(self._spark).location(path)
        table = table.addColumns(cast(StructType, StructType.fromDDL(columns))).partitionedBy(*partitions)
        for name, value in {**_PROPERTIES, **properties}.items():
            table = table.property(name, value)
        table.execute()

    def fold(self, journals: JournalFolder) -> int:
        """Take into `outcomes` what the journals hold and nobody has folded yet; how many parts of journals it was."""
        parts = 0
        for fold in journals.plan():
            if fold.parts:
                self._again(partial(self._fold, fold))
            journals.mark_folded(fold)
            parts += len(fold.parts)
        return parts

    def fold_all(self, journals: JournalFolder) -> None:
        """Fold until nothing is left: one that failed before comes by itself, and what has come since after it."""
        for _ in range(_FOLDS):
            if not self.fold(journals):
                return

    def append_batch(self, namespace: str, run: str, batch: int, at: datetime, rows: Iterable[BatchRow]) -> None:
        """Tell what a batch came to. A run tells each of its batches once: there is nothing to be told apart."""
        told = [_batch_row(namespace, run, batch, at, row) for row in rows]
        frame = self._spark.createDataFrame(pa.Table.from_pylist(told, schema=_BATCHES)).coalesce(1)
        tries = 0

        def write() -> None:
            nonlocal tries
            tries += 1
            # What failed may have been written nevertheless.
            if tries == 1 or self.batches().where((F.col("run") == run) & (F.col("batch") == batch)).isEmpty():
                frame.write.format("delta").mode("append").save(self._batches)

        self._again(write)

    def _fold(self, fold: Fold) -> None:
        parts = _Parts(tuple(fold.parts))
        tasks = min(len(fold.parts), self._spark.sparkContext.defaultParallelism)
        numbers = self._spark.range(0, len(fold.parts), 1, tasks)
        rows = numbers.mapInArrow(parts.read, OUTCOMES)
        once = {"txnAppId": f"pairbus-outcomes-{fold.run}", "txnVersion": str(fold.version)}
        rows.write.format("delta").mode("append").partitionBy("day").options(**once).save(self._outcomes)

    def _again(self, write: Callable[[], None]) -> None:
        """Write, and try again if it fails: another syphon may have made the table at the same moment."""
        for left in reversed(range(_TRIES)):
            try:
                write()
                return
            except Exception as error:  # Delta's conflicts share no class
                if not left:
                    raise
                log.warning("the ledger could not be written; trying again (%s)", cause_of(error))
                time.sleep(1.0)

    def _read(self, path: str, schema: str) -> DataFrame:
        if DeltaTable.isDeltaTable(self._spark, path):
            return self._spark.read.format("delta").load(path)
        return self._spark.createDataFrame([], schema)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Reads parts of journals on an executor."""

    parts: Sequence[tuple[str, int, int]]

    def read(self, numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in read_parts([self.parts[number]]):
                    yield _with_day(rows)


def _with_day(rows: Any) -> Any:
    # A row whose time cannot be told is one of 1970, not one of no day: that would be a folder of another name.
    days = pc.fill_null(rows.column("settled_at").cast(pa.date32()), date(1970, 1, 1))
    return pa.RecordBatch.from_arrays([*rows.columns, days], names=[*rows.schema.names, "day"])


def _batch_row(namespace: str, run: str, batch: int, at: datetime, row: BatchRow) -> dict[str, Any]:
    told = asdict(row.summary) | {"depth_before": row.depth_before, "depth_after": row.depth_after}
    return told | {"namespace": namespace, "run": run, "batch": batch, "at": at}


def cause_of(error: BaseException) -> str:
    """What is at the bottom of an error, in one line; of one of Java's, not its stack."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while (deeper := cause.getCause()) is not None:
            cause = deeper
        return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}".partition("\n")[0]
    return f"{type(error).__name__}: {error}".partition("\n")[0]
