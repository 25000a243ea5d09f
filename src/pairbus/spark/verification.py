"""The check of a ledger: every message is delivered, dead-lettered, or still in the backlog.

The sequence numbers of a backlog queue have no gaps, so a number without a row is a message that was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from pairbus.domain.outcome import Outcome
from pairbus.errors import OptionError

from .ledger import Ledger

#: The most problems of each kind that are named; all are counted.
NAMED = 1000
_QUEUE = ["namespace", "queue_index"]
_NUMBER = [*_QUEUE, "sequence_number"]
#: Column -> condition on a sequence number, whose matches are counted per queue.
_CONDITIONS = {
    "delivered": "delivered > 0",
    "dead_lettered": "dead_lettered > 0 and delivered = 0",
    "repeated": "final > 1",
    "in_doubt": "final = 0 and in_doubt > 0",
    "in_backlog": "parked > 0",
    "accounted": "final > 0 or parked > 0",
}
_COUNTED = ("delivered", "dead_lettered", "in_backlog", "missing", "repeated", "in_doubt")


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """The counts of one backlog queue."""

    namespace: str
    queue_index: int
    #: The smallest and the largest sequence number, in the ledger or in the backlog.
    first: int
    last: int
    delivered: int
    dead_lettered: int
    #: Messages that were delivered or dead-lettered more than once.
    repeated: int
    #: Messages with no outcome but `in doubt`.
    in_doubt: int
    in_backlog: int
    missing: int

    @property
    def seen(self) -> int:
        """The number of sequence numbers from the first to the last."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Missing:
    """A range of sequence numbers that are neither in the ledger nor in the backlog."""

    namespace: str
    queue_index: int
    first: int
    last: int

    def __str__(self) -> str:
        numbers = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        return f"queue {self.queue_index} of {self.namespace}: {numbers} is neither in the ledger nor in the backlog"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A message that was delivered or dead-lettered more than once, with all its ids."""

    namespace: str
    queue_index: int
    sequence_number: int
    message_ids: tuple[str, ...]
    times: int

    def __str__(self) -> str:
        ids = ", ".join(each or "no id" for each in self.message_ids)
        return f"queue {self.queue_index} of {self.namespace}: {self.sequence_number} ({ids}) {self.times} times"


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A message with no outcome but `in doubt`."""

    namespace: str
    queue_index: int
    sequence_number: int
    message_id: str | None
    is_in_backlog: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`. It is `ok` if no message is missing and every repeat has one id."""

    queues: tuple[QueueCheck, ...]
    missing: tuple[Missing, ...]
    repeats: tuple[Repeat, ...]
    in_doubt: tuple[InDoubt, ...]

    @property
    def problems(self) -> list[str]:
        """The missing messages and the repeats under different ids, at most `NAMED` of each."""
        missing = [str(each) for each in self.missing]
        return missing + [f"{each} under different ids" for each in self.repeats if len(each.message_ids) > 1]

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    def __str__(self) -> str:
        columns = ("namespace", "queue_index", "seen", *_COUNTED)
        heads = [name.removesuffix("_index").replace("_", " ") for name in columns]
        table = [heads, *([str(getattr(queue, name)) for name in columns] for queue in self.queues)]
        widths = [max(len(row[column]) for row in table) for column in range(len(columns))]
        lines = ["  ".join(f"{value:>{width}}" for value, width in zip(row, widths, strict=True)) for row in table]
        if not self.queues:
            return "the ledger has no rows: no message was seen"
        verdict = "every message is accounted for" if self.ok else "NOT every message is accounted for:"
        return "\n".join([*lines, verdict, *(f"  {problem}" for problem in self.problems)])


def verify(
    spark: SparkSession,
    ledger: str,
    in_backlog: Mapping[int, Collection[int]] | None = None,
    *,
    namespace: str | None = None,
) -> Verification:
    """Check that every message is accounted for.

    In each queue, every sequence number from the smallest to the largest must be delivered, dead-lettered, or in the
    backlog.

    Parameters
    ----------
    spark
        A session with Delta.
    ledger
        The ledger's folder.
    in_backlog
        Queue index -> sequence numbers that are in the queue now, as `backlog_sequence_numbers` returns them. None: the
        queues are empty.
    namespace
        The primary's name, needed if the ledger has rows of more than one.

    Raises
    ------
    OptionError
        If there is no ledger in the folder; if it has rows, but none of that primary; or if `namespace` is needed and
        not given.
    """
    tables = Ledger(spark, ledger)
    if not tables.exists:
        raise OptionError(f"there is no ledger at {ledger}: give the folder that [ledger] path names")
    rows = tables.outcomes().select(*_NUMBER, "message_id", "outcome")
    if namespace is not None:
        namespace = namespace.lower()
        rows = _of_primary(rows, namespace)
    rows = rows.unionByName(_parked(spark, rows, in_backlog or {}, namespace))
    # Numbers only, so that Spark counts them in a hash table. The ids of the few problems are looked up later.
    numbers = rows.groupBy(*_NUMBER).agg(
        *(F.count_if(F.col("outcome") == each.value).alias(each.name.lower()) for each in Outcome),
        F.count_if(F.col("outcome").isNull()).alias("parked"),
    )
    numbers = numbers.withColumn("final", F.col("delivered") + F.col("dead_lettered")).cache()
    try:
        return _check(numbers, rows)
    finally:
        numbers.unpersist()


def _of_primary(rows: DataFrame, namespace: str) -> DataFrame:
    """Return the rows of one primary; raise if there are none, because its name may be misspelt."""
    found = rows.where(F.col("namespace") == namespace)
    if found.isEmpty() and (others := [row.namespace for row in rows.select("namespace").distinct().collect()]):
        known = ", ".join(sorted(others))
        raise OptionError(f"the ledger has no row of the primary {namespace!r}: it has rows of {known}")
    return found


def _parked(
    spark: SparkSession, rows: DataFrame, in_backlog: Mapping[int, Collection[int]], namespace: str | None
) -> DataFrame:
    """Return the messages in the backlog as rows without an outcome."""
    if namespace is None and in_backlog:
        known = [row.namespace for row in rows.select("namespace").distinct().limit(2).collect()]
        if len(known) > 1:
            raise OptionError("the ledger has rows of more than one primary: say which one (namespace=…)")
        namespace = known[0] if known else None
    found = [(namespace or "", index, int(number)) for index, numbers in in_backlog.items() for number in numbers]
    nothing = F.lit(None).cast("string")
    backlog = spark.createDataFrame(found, "namespace string, queue_index int, sequence_number bigint")
    return backlog.distinct().withColumns({"message_id": nothing, "outcome": nothing})


def _gaps(numbers: DataFrame) -> DataFrame:
    """Return the ranges of missing sequence numbers."""
    # A wall before the first number and one after the last show what is missing at either end.
    walls = numbers.groupBy(*_QUEUE).agg(
        F.array(F.min("sequence_number") - 1, F.max("sequence_number") + 1).alias("walls")
    )
    accounted = numbers.where(_CONDITIONS["accounted"]).select(*_NUMBER)
    solid = accounted.union(walls.select(*_QUEUE, F.explode("walls")))
    before = F.lag("sequence_number").over(Window.partitionBy(*_QUEUE).orderBy("sequence_number"))
    return (
        solid.withColumn("before", before)
        .where("sequence_number - before > 1")
        .select(*_QUEUE, (F.col("before") + 1).alias("first"), (F.col("sequence_number") - 1).alias("last"))
    )


def _with_ids(numbers: DataFrame, rows: DataFrame) -> list[Any]:
    """Return the first of these sequence numbers, each with all its ids in the ledger."""
    named = numbers.orderBy(*_NUMBER).limit(NAMED)
    ids = F.array_sort(F.collect_set(F.coalesce("message_id", F.lit("")))).alias("ids")
    matches = rows.where("outcome is not null").join(F.broadcast(named), _NUMBER)
    return matches.groupBy(*named.columns).agg(ids).orderBy(*_NUMBER).collect()


def _check(numbers: DataFrame, rows: DataFrame) -> Verification:
    counted = numbers.groupBy(*_QUEUE).agg(
        F.min("sequence_number").alias("first"),
        F.max("sequence_number").alias("last"),
        *(F.count_if(F.expr(condition)).alias(name) for name, condition in _CONDITIONS.items()),
    )
    missing = F.col("last") - F.col("first") + 1 - F.col("accounted")
    found = counted.withColumn("missing", missing).drop("accounted").orderBy(*_QUEUE).collect()
    queues = tuple(QueueCheck(**row.asDict()) for row in found)
    # Only counts that show a problem are worth the sorts that find its messages.
    gaps = _gaps(numbers).orderBy(*_QUEUE, "first").limit(NAMED).collect() if any(q.missing for q in queues) else []
    repeats = _with_ids(numbers.where(_CONDITIONS["repeated"]), rows) if any(q.repeated for q in queues) else []
    doubtful = _with_ids(numbers.where(_CONDITIONS["in_doubt"]), rows) if any(q.in_doubt for q in queues) else []
    return Verification(
        queues,
        tuple(Missing(**row.asDict()) for row in gaps),
        tuple(
            Repeat(row.namespace, row.queue_index, row.sequence_number, tuple(row.ids), row.final) for row in repeats
        ),
        tuple(
            InDoubt(row.namespace, row.queue_index, row.sequence_number, row.ids[0] or None, row.parked > 0)
            for row in doubtful
        ),
    )
