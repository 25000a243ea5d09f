"""The ledger: Delta tables with the outcome of every message (`outcomes`) and the result of every batch (`batches`).

Outcomes come from the journals, which have a row before its message leaves the backlog. Each fold of journals names its
run and a version in the commit (`txnAppId`, `txnVersion`). After a kill the next run plans the same fold again, and
Delta skips it if it was committed.
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pairbus.domain.outcome import QueueSummary
from pairbus.runtime.backoff import Backoff
from pairbus.syphon.journal.folding import Fold, JournalFolder, read_parts
from pairbus.syphon.journal.storage import join

from .drain_task import HELD
from .java_errors import root_cause

log = logging.getLogger("pairbus.syphon")

#: The columns of the journals, and the day (UTC) of settled_at, by which the table is partitioned.
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
#: The same as an Arrow schema: Spark would start a Python worker to read rows that are plain Python.
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
#: Attempts at a commit, and the pauses between them: constant, as a conflict is over once the other commit is made.
_ATTEMPTS, _RETRY = 3, Backoff(first=1.0, longest=1.0)
#: Folds at the end of a run: one that failed before, the rows after it, and one that finds nothing.
_FOLDS = 3
#: Every batch is a commit. Delta's own interval, 10, would write checkpoints of its log too often.
_PROPERTIES = {"delta.checkpointInterval": "50"}
#: Statistics of all 14 columns take a quarter of a commit's time, and only growing columns let queries skip files.
_STATISTICS, _STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns", "sequence_number,settled_at"


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of `batches`: one queue in one batch."""

    summary: QueueSummary
    depth_before: int | None
    depth_after: int | None


class Ledger:
    """The two tables of a ledger, below one folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._outcomes = join(folder, "outcomes")
        self._batches = join(folder, "batches")

    @property
    def exists(self) -> bool:
        """True if there is a ledger in the folder. Its tables are created before any message moves."""
        return DeltaTable.isDeltaTable(self._spark, self._outcomes)

    def outcomes(self) -> DataFrame:
        """Return the outcomes: a row for each outcome of a message, so two if it was delivered twice."""
        return self._read(self._outcomes, OUTCOMES)

    def batches(self) -> DataFrame:
        """Return the batches: a row per batch and queue."""
        return self._read(self._batches, BATCHES)

    def create(self) -> None:
        """Create the tables that do not exist, and read their state, which the first fold would wait for."""
        self._retry(partial(self._create, self._outcomes, OUTCOMES, ["day"], {_STATISTICS: _STATISTICS_COLUMNS}))
        self._retry(partial(self._create, self._batches, BATCHES, [], {}))
        DeltaTable.forPath(self._spark, self._outcomes).detail().collect()

    def _create(self, path: str, columns: str, partitions: list[str], properties: Mapping[str, str]) -> None:
        table = DeltaTable.createIfNotExists(self._spark).location(path)
        table = table.addColumns(cast(StructType, StructType.fromDDL(columns))).partitionedBy(*partitions)
        for name, value in {**_PROPERTIES, **properties}.items():
            table = table.property(name, value)
        table.execute()

    def fold(self, journals: JournalFolder) -> int:
        """Append all rows of the journals that no fold has yet, and return the number of parts of journals."""
        parts = 0
        for fold in journals.plan():
            if fold.parts:
                self._retry(partial(self._fold, fold))
            journals.mark_folded(fold)
            parts += len(fold.parts)
        return parts

    def fold_all(self, journals: JournalFolder) -> None:
        """Fold until no row is left. A fold that failed before is repeated by itself, so later rows need another."""
        for _ in range(_FOLDS):
            if not self.fold(journals):
                return

    def append_batch(self, namespace: str, run: str, batch: int, at: datetime, rows: Iterable[BatchRow]) -> None:
        """Append a batch's rows, once: a run must not append the same batch again."""
        values = [_batch_row(namespace, run, batch, at, row) for row in rows]
        frame = self._spark.createDataFrame(pa.Table.from_pylist(values, schema=_BATCHES)).coalesce(1)
        attempts = 0

        def write() -> None:
            nonlocal attempts
            attempts += 1
            # An attempt that failed may have been committed.
            if attempts == 1 or self.batches().where((F.col("run") == run) & (F.col("batch") == batch)).isEmpty():
                frame.write.format("delta").mode("append").save(self._batches)

        self._retry(write)

    def _fold(self, fold: Fold) -> None:
        parts = _Parts(tuple(fold.parts))
        tasks = min(len(fold.parts), self._spark.sparkContext.defaultParallelism)
        numbers = self._spark.range(0, len(fold.parts), 1, tasks)
        rows = numbers.mapInArrow(parts.read, OUTCOMES)
        once = {"txnAppId": f"pairbus-outcomes-{fold.run}", "txnVersion": str(fold.version)}
        rows.write.format("delta").mode("append").partitionBy("day").options(**once).save(self._outcomes)

    def _retry(self, write: Callable[[], None]) -> None:
        """Write, and again if that fails: another syphon may have committed at the same time."""
        for failures in range(_ATTEMPTS):
            try:
                write()
                return
            except Exception as error:  # Delta's conflicts share no class
                if failures + 1 == _ATTEMPTS:
                    raise
                pause = _RETRY.pause(failures)
                log.warning("ledger not written: %s; next attempt in %.0f s", root_cause(error), pause)
                time.sleep(pause)

    def _read(self, path: str, schema: str) -> DataFrame:
        if DeltaTable.isDeltaTable(self._spark, path):
            return self._spark.read.format("delta").load(path)
        return self._spark.createDataFrame([], schema)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of journals, to be read on executors."""

    parts: Sequence[tuple[str, int, int]]

    def read(self, numbers: Iterator[Any]) -> Iterator[Any]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in read_parts([self.parts[number]]):
                    yield _with_day(rows)


def _with_day(rows: Any) -> Any:
    # Without a day the row would be in a partition folder of another kind of name.
    days = pc.fill_null(rows.column("settled_at").cast(pa.date32()), date(1970, 1, 1))
    return pa.RecordBatch.from_arrays([*rows.columns, days], names=[*rows.schema.names, "day"])


def _batch_row(namespace: str, run: str, batch: int, at: datetime, row: BatchRow) -> dict[str, Any]:
    fields = asdict(row.summary) | {"depth_before": row.depth_before, "depth_after": row.depth_after}
    return fields | {"namespace": namespace, "run": run, "batch": batch, "at": at}
