"""The streaming source `pairbus-backlog`: it queries the backlog's depth and offers one partition per queue index.

Spark runs the reader in a process of its own beside the driver. Its offsets are ticks, which only count micro-batches:
the state is the backlog itself.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pairbus.runtime.backoff import Backoff
from pairbus.runtime.redaction import describe_error
from pairbus.syphon.backlog_monitor import BacklogMonitor, PollSchedule

from .signals import ReaderNote

if TYPE_CHECKING:
    from pairbus.config.syphon_config import SyphonConfig

FORMAT = "pairbus-backlog"
log = logging.getLogger("pairbus.syphon")

#: One row per queue: its index, its depth (null: unknown), the tick, and the number of queues with messages.
SCHEMA = "queue_index int, depth bigint, tick bigint, busy int"
#: The longest pause after depth queries that failed, or batches that moved nothing.
LONGEST_PAUSE = 120.0
#: Age up to which the depths of a note are used instead of a query.
_FRESH_SECONDS = 15.0


@dataclass(slots=True)
class BacklogPoller:
    """Decides when to query the secondary and when to offer a batch, from the driver's notes and the schedule."""

    monitor: BacklogMonitor
    schedule: PollSchedule
    #: Wall time, which the notes' times are compared to.
    clock: Callable[[], float] = time.time
    _serial: int = 0

    def poll(self, note: ReaderNote) -> Mapping[int, int | None] | None:
        """Return the depths if a batch is to be offered, else None; never raises, as that would end the query."""
        now = self.clock()
        if note.stopping or now < note.pause_until <= now + LONGEST_PAUSE:
            return None
        if note.serial > self._serial:
            self._serial = note.serial
            self.schedule.make_due()
            if note.depths is not None and 0 <= now - note.queried_at <= _FRESH_SECONDS:
                return note.depths if self.schedule.answered(note.depths, note.queried_at) else None
        if not self.schedule.is_due(now):
            return None
        depths = self.monitor.query_or_warn(f"next attempt in {self.schedule.pause_after_failure():.0f} s")
        if depths is None:
            self.schedule.failed(self.clock())
            return None
        return depths.by_index if self.schedule.answered(depths.by_index, now) else None


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """One backlog queue in one micro-batch."""

    queue_index: int
    depth: int | None
    tick: int
    busy: int


class BacklogReader(DataSourceStreamReader):
    """The reader: Spark calls `latestOffset` and `partitions` beside the driver, and `read` on executors."""

    def __init__(
        self, config: SyphonConfig | str, note_file: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._given = config
        self._note_file = note_file
        self._clock = clock
        self._tick: int | None = None
        #: The tick that was offered last -> the depths at that time.
        self._depths: dict[int, Mapping[int, int | None]] = {}

    @cached_property
    def config(self) -> SyphonConfig:
        """The syphon's configuration, parsed on first use: Spark makes readers in processes that never query."""
        from pairbus.config.syphon_config import SyphonConfig

        given = self._given
        return SyphonConfig.from_mapping(json.loads(given)) if isinstance(given, str) else given

    @cached_property
    def poller(self) -> BacklogPoller:
        """The decision when to query and when to offer a batch; imports the SDK."""
        from pairbus.syphon.depths import DepthQuery

        config = self.config
        query = DepthQuery(config.primary.name or config.primary.resolve().name, config.queues)
        schedule = PollSchedule(config.idle_poll_interval, Backoff(config.retry_interval, LONGEST_PAUSE))
        return BacklogPoller(BacklogMonitor(query, config.secondary.resolve), schedule, self._clock)

    def initialOffset(self) -> dict[str, int]:
        self._tick = 0
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        """Return a new tick if a queue has messages; else the old one, for which Spark runs no job."""
        if start is not None:
            self._tick = int(start["tick"])
        depths = self._depths_to_drain()
        if depths is None:
            return {"tick": self._tick or 0}
        # Before Spark 4.2 a restarted reader is given no start: the time is larger than any earlier tick.
        tick = self._tick + 1 if self._tick is not None else int(self._clock() * 1000)
        self._tick = tick
        self._depths = {tick: depths}
        return {"tick": tick}

    def _depths_to_drain(self) -> Mapping[int, int | None] | None:
        _ = self.config  # a configuration that cannot be read ends the query
        try:
            poller = self.poller
        except Exception as error:  # a secret that cannot be read now may be there at the next trigger
            log.warning("[primary] cannot be resolved: %s; next attempt at the next trigger", describe_error(error))
            return None
        return poller.poll(ReaderNote.read(self._note_file))

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one partition per queue; none for the empty batch with which Spark begins a new checkpoint."""
        tick = int(end["tick"])
        if tick == int(start["tick"]):
            return []
        known = self._depths.get(tick)  # none if an earlier process offered the batch: tasks look into every queue
        depths = {index: None if known is None else known.get(index) or 0 for index in self.config.queues}
        busy = sum(depth != 0 for depth in depths.values())
        return [QueuePartition(index, depth, tick, busy) for index, depth in depths.items()]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return _read(partition)

    def __reduce__(self) -> tuple[Any, ...]:
        # An executor only calls `read`, and a secret that was resolved here must not travel.
        return _ExecutorReader, ()


class _ExecutorReader:
    """The part of a reader that executors need."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return _read(partition)


def _read(partition: InputPartition) -> Iterator[tuple[Any, ...]]:
    assert isinstance(partition, QueuePartition)
    yield partition.queue_index, partition.depth, partition.tick, partition.busy


def _ignore_interrupts_in_sparks_processes() -> None:
    """Ignore Ctrl-C in a process of Spark's: a terminal sends it to all, and only the driver may stop the query."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class BacklogSource(DataSource):
    """The data source `pairbus-backlog`; the option `config` is a `SyphonConfig` as JSON, `note` the driver's file."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> BacklogReader:
        _ignore_interrupts_in_sparks_processes()
        note_file = self.options.get("note")
        return BacklogReader(self.options["config"], Path(note_file) if note_file else None)
