"""The syphon on Spark: its rate relative to the bare drain, and the memory of a worker.

    python -m bench.spark [--quick] [--only P4,P5] [--rounds N] [--messages N]

P4: the job of `jobs/drain.py` on two cores, from the query's start to the ledger's last commit, ÷ two processes that
drain half of the queues each, on the same cores. The job runs in a JVM that has drained a few messages before, so that
loading and compiling classes do not count. The JVM's start, and the first query of a new JVM, are reported separately.
P5: the peak memory of a worker with a deep backlog ÷ with a shallow one.
The workers are processes of their own (`bench.workers`); the brokers share the machine with them.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.figures import Figure, chosen, parser, publish
from bench.ground import Ground, Run, by_turns, cpu_ratio, limit, ratios, settings, side
from bench.workers import Worker, tree_cpu

PROCESSES = 2
#: Messages that are drained first, to warm up a JVM.
_REHEARSAL = 1_000


# --- P4: Spark against bare processes ------------------------------------------------------------------------------


def on_spark(queues: int, count: int, rounds: int) -> Figure:
    """Run both sides in alternation, each with a new JVM or new processes, and a new ledger."""
    starts: list[float] = []
    with Ground(queues=queues) as ground:

        def job(kind: str) -> Callable[[dict[str, dict[str, Any]], Path], list[Worker]]:
            return lambda mapping, folder: [Worker(kind, mapping, folder)]

        def processes(mapping: dict[str, dict[str, Any]], folder: Path) -> list[Worker]:
            shares = [range(first, queues, PROCESSES) for first in range(min(PROCESSES, queues))]
            told = [mapping | {"syphon": {"queues": ",".join(map(str, share))}} for share in shares]
            return [Worker("drain", each, folder) for each in told]

        def park(count: int) -> int:
            for index in range(queues):
                ground.park(count // queues, index)
            return count // queues * queues

        def turn(start: Callable[[dict[str, dict[str, Any]], Path], list[Worker]], before: int = 0) -> Run:
            rehearsal = park(before) if before else 0
            with tempfile.TemporaryDirectory(dir=ground.folder) as folder, ExitStack() as stack:
                mapping = settings(ground.primary, ground.secondary, queues, Path(folder))
                workers = [stack.enter_context(worker) for worker in start(mapping, Path(folder))]
                said = [worker.hear() for worker in workers]
                starts.extend(each["start_seconds"] for each in said if "start_seconds" in each)
                _expect(ground, rehearsal)
                run = _together(ground, workers, park(count))
            _expect(ground, run.messages)
            return run

        sides = lambda: turn(job("warm-job"), _REHEARSAL), lambda: turn(processes)
        spark, bare = by_turns(sides, rounds)
        first = turn(job("job"))
    told = {"Spark": side(spark), "bare": side(bare), "Spark, first query of a JVM": side([first])}
    seconds = [statistics.median(run.seconds for run in runs) for runs in (spark, bare, [first])]
    start = statistics.median(starts)
    cold = seconds[1] / seconds[2]
    return Figure(
        key="P4",
        what=f"Spark job, {count:,} messages in {queues} queues ÷ {PROCESSES} bare processes",
        goal=0.85,
        runs=ratios(spark, bare),
        sides=told,
        cpu_ratio=cpu_ratio(spark, bare),
        more={
            "jvm_start_seconds": start,
            "seconds": dict(zip(told, seconds, strict=True)),
            "ratio_of_the_first_query": cold,
        },
        note=f"{seconds[0]:.1f} s against {seconds[1]:.1f} s; the first query of a JVM: {seconds[2]:.1f} s "
        f"({cold:.2f}), and {start:.1f} s for the JVM's start; bare: " + limit(told["bare"]),
    )


def _expect(ground: Ground, count: int) -> None:
    if (found := ground.arrived()) != count:
        raise RuntimeError(f"{found} of {count} messages arrived")


def _together(ground: Ground, workers: list[Worker], count: int) -> Run:
    """Start all workers at once; the time is that of the slowest."""
    brokers, cpu = ground.broker_cpu(), sum(tree_cpu(worker.pid) for worker in workers)
    for worker in workers:
        worker.go()
    said = [worker.hear() for worker in workers]
    cpu = sum(tree_cpu(worker.pid) for worker in workers) - cpu
    primary, secondary = (now - then for now, then in zip(ground.broker_cpu(), brokers, strict=True))
    if any(each["code"] for each in said):
        raise RuntimeError(f"the backlog was not emptied: {said}")
    for worker in workers:
        worker.go()
    return Run(count, max(each["seconds"] for each in said), cpu, primary, secondary)


# --- P5: memory ----------------------------------------------------------------------------------------------------


def memory(shallow: int, deep: int, rounds: int) -> Figure:
    """Measure the peak memory of one task of the job, with a shallow and with a deep queue."""
    with Ground(store=True, sink=True) as ground:
        little = [_peak(ground, shallow) for _ in range(rounds)]
        much = _peak(ground, deep)
    before = statistics.median(before for before, _ in (*little, much))
    return Figure(
        key="P5",
        what=f"peak memory of a worker: backlog of {deep:,} ÷ {shallow:,}",
        goal=1.1,
        at_most=True,
        runs=[much[1] / each[1] for each in little],
        more={"peak_mb": {f"{shallow:,}": [each[1] / 1e3 for each in little], f"{deep:,}": much[1] / 1e3}},
        note=f"{much[1] / 1e3:.0f} MB against {statistics.median(each[1] for each in little) / 1e3:.0f} MB, of which "
        f"{before / 1e3:.0f} MB before the first message",
    )


def _peak(ground: Ground, count: int) -> tuple[int, int]:
    """Return the kilobytes before the first message, and at the peak."""
    ground.park(count)
    with tempfile.TemporaryDirectory(dir=ground.folder) as folder:
        mapping = settings(ground.primary, ground.secondary, 1, Path(folder))
        mapping["syphon"]["task_budget"] = "1h"
        with Worker("task", mapping, Path(folder)) as worker:
            worker.hear()
            worker.go()
            said = worker.hear()
            worker.go()
    if said["delivered"] != count or said["error"]:
        raise RuntimeError(f"{said['delivered']} of {count} messages were drained: {said['error']}")
    return said["before"], said["peak"]


def main() -> None:
    options = parser(__doc__).parse_args()
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    queues, count, shallow, deep, rounds = (4, 20_000, 5_000, 20_000, 1) if options.quick else (
        10, 300_000, 10_000, 1_000_000, 3
    )  # fmt: skip
    if options.messages:
        count, shallow, deep = options.messages, max(options.messages // 100, 1), options.messages
    rounds = options.rounds or rounds
    figures = []
    for key in chosen(options.only, ("P4", "P5")):
        figures.append(on_spark(queues, count, rounds) if key == "P4" else memory(shallow, deep, rounds))
    publish([replace(figure, quick=options.quick) for figure in figures], options.json)


if __name__ == "__main__":
    main()
