"""The streaming source `pairbus-backlog`: asks how deep the backlog is, and offers one partition per queue index.

Spark runs the reader in a process of its own beside the driver. Its offsets are ticks: they count micro-batches and
mean nothing else, because the backlog itself is the state. The job in the driver leaves the reader notes in a file
(`note`): the depths it saw after a batch, so that nobody asks twice, and until when to leave the backlog alone.

    spark.dataSource.register(BacklogSource)
    spark.readStream.format("pairbus-backlog").option("config", json.dumps(config.to_mapping())).load()
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pairbus.runtime.redaction import describe_error

if TYPE_CHECKING:
    from pairbus.config.syphon_config import SyphonConfig
    from pairbus.options import Namespace
    from pairbus.syphon.depths import Depths

log = logging.getLogger("pairbus.syphon")

FORMAT = "pairbus-backlog"
#: One row per queue: its index, how deep it was (null: nobody asked), the tick, and how many queues have messages.
SCHEMA = "queue_index int, depth bigint, tick bigint, busy int"
#: The longest pause after a try that brought nothing.
LONGEST_PAUSE = 120.0
#: For so long what the driver saw after a batch need not be asked again.
_FRESH = 15.0


@dataclass(frozen=True, slots=True)
class Note:
    """What the driver tells the reader. Times are seconds since 1970: the two are different processes."""

    #: Grows with each note, so that one is acted upon once.
    serial: int = 0
    #: Depth by queue index after a batch, and when they were asked for.
    depths: Mapping[int, int | None] | None = None
    asked_at: float = 0.0
    #: No new batch before this.
    pause_until: float = 0.0
    #: No new batch at all.
    stopping: bool = False

    def write(self, path: Path) -> None:
        """Replace the note in the file; a reader sees the old one or this one."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path | None) -> Note:
        """The note in the file; an empty one while there is none."""
        try:
            said = json.loads(path.read_text()) if path is not None else None
        except FileNotFoundError:
            said = None
        if said is None:
            return cls()
        depths = said.pop("depths")
        return cls(depths=depths and {int(index): depth for index, depth in depths.items()}, **said)


@dataclass(slots=True)
class DepthWatch:
    """Decides when the secondary is asked, and whether there is something to do. Its clock is wall time."""

    ask: Callable[[], Depths]
    idle_poll_interval: float
    retry_interval: float
    clock: Callable[[], float] = time.time
    _serial: int = 0
    _next: float = 0.0
    _failures: int = 0

    def look(self, note: Note) -> Mapping[int, int | None] | None:
        """The depths if some queue has messages; nothing if none has, or if this is not the time to ask."""
        now = self.clock()
        if note.stopping or now < note.pause_until <= now + LONGEST_PAUSE:
            return None
        if note.serial > self._serial:
            self._serial = note.serial
            self._next = 0.0
            if note.depths is not None and 0 <= now - note.asked_at <= _FRESH:
                return self._judge(note.depths, note.asked_at)
        if now < self._next <= now + max(self.idle_poll_interval, LONGEST_PAUSE):  # else the clock was set back
            return None
        try:
            answer = self.ask()
        except Exception as error:  # whatever it is: raising would end the query, and the backlog would stay
            self._failures += 1
            pause = min(self.retry_interval * 2 ** (self._failures - 1), LONGEST_PAUSE)
            self._next = self.clock() + pause
            said = describe_error(error)
            log.warning("the secondary does not say how deep the backlog is; asking again in %.0f s (%s)", pause, said)
            return None
        self._failures = 0
        return self._judge(answer.by_index, now)

    def _judge(self, depths: Mapping[int, int | None], asked_at: float) -> Mapping[int, int | None] | None:
        if any(depths.values()):
            self._next = 0.0
            return depths
        self._next = asked_at + self.idle_poll_interval
        return None


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """One backlog queue in one micro-batch."""

    queue_index: int
    depth: int | None
    tick: int
    busy: int


class BacklogReader(DataSourceStreamReader):
    """The reader: `latestOffset` and `partitions` run beside the driver, `read` on an executor.

    Spark makes one in each of several processes, and most of them never ask anything: the configuration may be given as
    JSON, and is read, with all that must be imported for it, where it is needed.
    """

    def __init__(
        self, config: SyphonConfig | str, note: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._given = config
        self._note = note
        self._clock = clock
        self._tick: int | None = None
        self._depths: dict[int, Mapping[int, int | None]] = {}
        self._secondary: Namespace | None = None

    @cached_property
    def config(self) -> SyphonConfig:
        from pairbus.config.syphon_config import SyphonConfig

        given = self._given
        return SyphonConfig.from_mapping(json.loads(given)) if isinstance(given, str) else given

    @cached_property
    def _watch(self) -> DepthWatch:
        return DepthWatch(self._ask, self.config.idle_poll_interval, self.config.retry_interval, clock=self._clock)

    def initialOffset(self) -> dict[str, int]:
        self._tick = 0
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:
        """A new tick if some queue has messages, else the old one, and then Spark runs no job.

        Before Spark 4.2 no start is given, so after a restart the last tick is not known. A point in time is then
        larger than any tick there was; and "nothing to do" costs one batch that does nothing.
        """
        if start is not None:
            self._tick = int(start["tick"])
        depths = self._watch.look(Note.read(self._note))
        if depths is None:
            return {"tick": self._tick or 0}
        tick = self._tick + 1 if self._tick is not None else int(self._clock() * 1000)
        self._tick = tick
        self._depths = {tick: depths}
        return {"tick": tick}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One partition per queue; none for the batch without work with which Spark begins a new checkpoint.

        Of a batch that an earlier process has planned the depths are not known: all queues are looked at then.
        """
        tick = int(end["tick"])
        if tick == int(start["tick"]):
            return []
        known = self._depths.get(tick)
        depths = {index: None if known is None else known.get(index) or 0 for index in self.config.queues}
        busy = sum(depth != 0 for depth in depths.values())
        return [QueuePartition(index, depth, tick, busy) for index, depth in depths.items()]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return _read(partition)

    def _ask(self) -> Depths:
        from pairbus.syphon.depths import backlog_depths

        secondary = self._secondary or self.config.secondary.resolve()
        self._secondary = None  # a key may have been renewed: what fails is resolved anew
        name = self.config.primary.name or self.config.primary.resolve().name
        depths = backlog_depths(secondary, name, self.config.queues)
        self._secondary = secondary
        return depths

    def __reduce__(self) -> tuple[Any, ...]:
        # Only reading is done elsewhere; and a secret that was resolved here stays here.
        return _Reading, ()


class _Reading:
    """What is left of a reader on an executor."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return _read(partition)


def _read(partition: InputPartition) -> Iterator[tuple[Any, ...]]:
    assert isinstance(partition, QueuePartition)
    yield partition.queue_index, partition.depth, partition.tick, partition.busy


def _leave_interrupts_to_the_driver() -> None:
    """Ctrl-C goes to every process of a terminal. The driver comes to an end in order; a reader that did so by itself,
    in a process of Spark's, would end the query with an error before that."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("pyspark."):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class BacklogSource(DataSource):
    """`pairbus-backlog`, for readStream. Options: `config`, a syphon's configuration as JSON (references, never
    secrets), and `note`, a file of the driver's."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> BacklogReader:
        _leave_interrupts_to_the_driver()
        note = self.options.get("note")
        return BacklogReader(self.options["config"], Path(note) if note else None)
