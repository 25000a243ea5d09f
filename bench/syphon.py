"""The drain of one backlog queue, compared with the SDK, with bare Proton, over a distance and without a journal.

    python -m bench.syphon [--quick] [--only P1,P8] [--rounds N] [--messages N]

P1 drain ÷ SDK, P2 drain ÷ bare Proton, P3 at 50 ms ÷ at 0 ms, P7 operations when idle, P8 with journal ÷ without.
The two brokers are processes of their own; the side being measured is this process. On a machine with few cores, the
brokers may be the limit: rely on the CPU figures then.
"""

from __future__ import annotations

import http.client
import logging
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from bench.figures import Figure, chosen, parser, publish
from bench.ground import (
    PRIMARY,
    SECONDARY,
    Ground,
    Run,
    administration,
    by_turns,
    cpu_ratio,
    limit,
    ratios,
    settings,
    side,
)
from bench.sides import NoJournal, TimedJournal, bare, drain, with_sdk
from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.backlog import queue_path
from pairbus.domain.outcome import Head
from pairbus.localbus import LocalBus
from pairbus.spark.source import BacklogReader
from pairbus.syphon.journal.journal import open_journal
from pairbus.syphon.service import Service

#: Seconds: half of the round trip of 50 ms.
ONE_WAY = 0.025
#: Over a distance, windows grow for about a second; this share of the messages counts as the start.
STARTING = 0.25


def compare(
    key: str, what: str, goal: float, names: tuple[str, str], sides: tuple[Callable[[], Run], ...], rounds: int
) -> Figure:
    """Run both sides in alternation and return their figure; the first side is ours."""
    ours, theirs = by_turns(sides, rounds)
    told = {name: side(runs) for name, runs in zip(names, (ours, theirs), strict=True)}
    return Figure(
        key=key,
        what=what,
        goal=goal,
        runs=ratios(ours, theirs),
        sides=told,
        cpu_ratio=cpu_ratio(ours, theirs),
        note=f"{names[0]}: {limit(told[names[0]])}",
    )


def against_sdk(ground: Ground, count: int, rounds: int) -> Figure:
    drained = lambda: ground.turn(count, lambda: drain(ground, count))  # noqa: E731
    by_sdk = lambda: ground.turn(count, lambda: with_sdk(ground, count))  # noqa: E731
    return compare(
        "P1", "drain ÷ SDK (receive 100, send batch, complete)", 5, ("drain", "SDK"), (drained, by_sdk), rounds
    )


def against_bare(ground: Ground, count: int, rounds: int) -> Figure:
    drained = lambda: ground.turn(count, lambda: drain(ground, count))  # noqa: E731
    passed = lambda: ground.turn(count, lambda: bare(ground, count))  # noqa: E731
    what = "drain ÷ bare Proton (no restore, no journal)"
    return compare("P2", what, 0.8, ("drain", "bare"), (drained, passed), rounds)


def journal_or_none(ground: Ground, count: int, rounds: int) -> Figure:
    kept = lambda: ground.turn(count, lambda: drain(ground, count))  # noqa: E731
    forgotten = lambda: ground.turn(count, lambda: drain(ground, count, NoJournal()))  # noqa: E731
    what = "drain with the journal (local disk, fsync) ÷ without"
    return compare("P8", what, 0.9, ("with", "without"), (kept, forgotten), rounds)


def far_away(ground: Ground, count: int, rounds: int) -> Figure:
    """Compare whole drains over a distance; the note has the start and the rate after it."""
    starts: dict[bool, list[float]] = {True: [], False: []}
    paces: dict[bool, list[float]] = {True: [], False: []}

    def moved(far: bool) -> Callable[[], Run]:
        def drained() -> float:
            journal = open_journal(str(ground.folder / f"run-{uuid.uuid4().hex[:8]}"), Head(PRIMARY, 0))
            timed = TimedJournal(journal)
            with _distance(ground, far):
                begun = time.perf_counter()
                drain(ground, count, timed)
                seconds = time.perf_counter() - begun
            journal.close()
            pace, started = timed.pace_behind(STARTING)
            starts[far].append(started - begun)
            paces[far].append(pace)
            return seconds

        return lambda: ground.turn(count, drained)

    what = f"drain at {2000 * ONE_WAY:.0f} ms round trip ÷ at 0 ms, {count:,} messages"
    found = compare("P3", what, 0.9, ("50 ms", "0 ms"), (moved(True), moved(False)), rounds)
    far, near = (statistics.median(starts[each]) for each in (True, False))
    flowing = statistics.median(one / other for one, other in zip(paces[True], paces[False], strict=True))
    said = f"after the first {STARTING:.0%}, which took {far:.2f} s against {near:.2f} s, {flowing:.2f}; {found.note}"
    more = {"start_seconds": {"50 ms": far, "0 ms": near}, "ratio_once_it_flows": flowing}
    return replace(found, note=said, more=more)


@contextmanager
def _distance(ground: Ground, far: bool) -> Iterator[None]:
    buses = (ground.primary, ground.secondary)
    if far:
        for bus in buses:
            bus.faults.latency(ONE_WAY)
    try:
        yield
    finally:
        for bus in buses:
            bus.faults.clear()


# --- an idle syphon ------------------------------------------------------------------------------------------------


def idle(queue_counts: tuple[int, ...] = (1, 10, 100)) -> Figure:
    """Count the management requests of an idle hour, of the streaming source and of the service."""
    runs, more = [], {}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalBus(PRIMARY) as primary,
        LocalBus(SECONDARY) as secondary,
    ):
        made = 0
        for count in queue_counts:
            with administration(secondary) as admin:
                for index in range(made, count):
                    admin.create_queue(queue_path(PRIMARY, index))
            made = count
            config = SyphonConfig.from_mapping(settings(primary, secondary, count, Path(folder)))
            spark, service = _source_hour(config), _service_hour(config)
            runs.append(float(max(spark, service)))
            more[f"{count} queues"] = {"streaming source": spark, "service": service}
    return Figure(
        key="P7",
        what="billable operations an hour, idle, with 1, 10 and 100 queues",
        goal=30,
        at_most=True,
        runs=runs,
        more=more,
        note="one page of the list of queues every 2 minutes, counted as HTTP requests",
    )


def _source_hour(config: SyphonConfig) -> int:
    """Count the requests of the streaming source, called once per simulated second as Spark does."""
    now = time.time()
    reader = BacklogReader(config, clock=lambda: now)
    reader.initialOffset()
    with _counted() as requests:
        for _ in range(3600):
            if reader.latestOffset() != {"tick": 0}:
                raise RuntimeError("the backlog is not empty")
            now += 1
    return len(requests)


def _service_hour(config: SyphonConfig) -> int:
    """Count the requests of the service over as many pauses as an hour has, shortened."""
    pauses = int(3600 / config.idle_poll_interval)
    enough = threading.Event()
    asked: list[int] = []

    def count(operations: int) -> None:
        asked.append(operations)
        if len(asked) == pauses:
            enough.set()
            service.stop()

    service = Service(
        config.primary.resolve(),
        config.secondary.resolve(),
        config.queues,
        str(config.journal),
        idle_poll_interval=0.001,
        on_asked=count,
    )
    with _counted() as requests:
        service.forever()
    if not enough.is_set():
        raise RuntimeError("the service stopped before the last pause")
    return len(requests)


@contextmanager
def _counted() -> Iterator[list[str]]:
    """Collect every HTTP request that leaves this process."""
    found: list[str] = []
    put = http.client.HTTPConnection.putrequest

    def counted(self: http.client.HTTPConnection, method: str, url: str, *more: bool, **others: bool) -> None:
        found.append(f"{method} {url}")
        put(self, method, url, *more, **others)

    with patch.object(http.client.HTTPConnection, "putrequest", counted):
        yield found


def main() -> None:
    options = parser(__doc__).parse_args()
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    rounds = options.rounds or (1 if options.quick else 5)
    # The SDK is slow, so it gets few. The others need enough that the start does not count: over a distance it takes a
    # second, so they get as many there as a task moves in half of its budget.
    few, count, many = (1_000, 2_000, 20_000) if options.quick else (20_000, 60_000, 600_000)
    if options.messages:
        few = count = many = options.messages
    measures: dict[str, Callable[[Ground], Figure]] = {
        "P1": lambda ground: against_sdk(ground, few, rounds),
        "P2": lambda ground: against_bare(ground, count, rounds),
        "P3": lambda ground: far_away(ground, many, min(rounds, 3)),
        "P8": lambda ground: journal_or_none(ground, count, rounds),
    }
    wanted = chosen(options.only, (*measures, "P7"))
    figures = []
    if set(wanted) & set(measures):
        with Ground() as ground:
            ground.turn(max(count // 10, 1), lambda: drain(ground, max(count // 10, 1)))  # a warm-up
            for key in wanted:
                if key in measures:
                    figures.append(measures[key](ground))
    if "P7" in wanted:
        figures.append(idle())
    publish([replace(figure, quick=options.quick) for figure in figures], options.json)


if __name__ == "__main__":
    main()
