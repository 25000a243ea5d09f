"""The outcomes of messages that a syphon receives: rows for the ledger, and one summary for each queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Outcome(str, Enum):
    """The outcome of one message, as in the ledger."""

    #: The destination has accepted the message.
    DELIVERED = "delivered"
    #: The message is in the backlog queue's own dead-letter queue, for the row's reason.
    DEAD_LETTERED = "dead-lettered"
    #: An answer or the message's lock was lost. The message is still in the backlog, or returns to it, and may arrive
    #: twice, with the same id.
    IN_DOUBT = "in doubt"


@dataclass(frozen=True, slots=True)
class Head:
    """The header of a journal: the values that all its rows share."""

    #: The name of the primary namespace, which is part of the backlog queues' paths.
    namespace: str
    queue_index: int
    #: The micro-batch, or the pass of a syphon without Spark.
    batch: int = 0
    #: The attempt of that batch's task; unique within a run.
    attempt: int = 0


#: One row of `Rows`, in the order of its columns.
Row = tuple[int, "str | None", "str | None", "str | None", str, "str | None", "int | None", int, int, int]


@dataclass(slots=True)
class Rows:
    """Rows of the ledger, as columns; times in milliseconds since 1970, UTC."""

    sequence_number: list[int] = field(default_factory=list)
    message_id: list[str | None] = field(default_factory=list)
    session_id: list[str | None] = field(default_factory=list)
    destination: list[str | None] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    reason: list[str | None] = field(default_factory=list)
    parked_at: list[int | None] = field(default_factory=list)
    settled_at: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    delivery_count: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, rows: list[Row]) -> Rows:
        return cls(*map(list, zip(*rows, strict=True)))

    def __len__(self) -> int:
        return len(self.sequence_number)


@dataclass(frozen=True, slots=True)
class HeldCount:
    """The number of messages that stay in the backlog because their destination does not take them now."""

    destination: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The result of one drain of one backlog queue."""

    queue_index: int
    received: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    #: The number of different messages that were returned to the queue, since their destination did not accept them.
    held: int = 0
    in_doubt: int = 0
    #: Bytes of the delivered messages.
    bytes: int = 0
    #: Billable operations: receives, sends, settlements, further 64 KB.
    operations: int = 0
    seconds: float = 0.0
    #: True if the queue, or the goal of the drain, held nothing at the end but held messages.
    empty: bool = False
    held_for: tuple[HeldCount, ...] = ()
    #: The error that ended the drain, if there was one.
    error: str | None = None


def held_over(queues: Iterable[QueueSummary]) -> tuple[HeldCount, ...]:
    """Return the held messages of several queues, counted by destination and reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for held in (held for each in queues for held in each.held_for):
        counts[held.destination, held.reason] += held.count
    return tuple(HeldCount(destination, reason, count) for (destination, reason), count in sorted(counts.items()))


def out_of_reach(depth: int, held: int) -> str | None:
    """Return a text about the messages of a queue beyond those held; None if there are none."""
    if depth <= held:
        return None
    return f"{depth - held} of {depth} messages are out of reach; another receiver may have locked them"
