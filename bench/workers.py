"""The processes that `bench.spark` measures: a Spark job, a bare drain, one task of the job.

    python -m bench.workers job|warm-job|drain|task CONFIG.json

A worker prints a line of JSON when it is ready, waits for a line on standard input, works, and prints its result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.figures import ROOT
from bench.localbus import cpu_seconds
from pairbus.config.syphon_config import SyphonConfig

_CORES = 2


class Worker:
    """A handle of a worker process."""

    def __init__(self, kind: str, config: Mapping[str, Any], folder: Path) -> None:
        file = folder / f"{kind}-{time.monotonic_ns()}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.workers", kind, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> dict[str, Any]:
        """Return the worker's next line of JSON."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Spark prints lines of its own
                said: dict[str, Any] = json.loads(line)
                return said
        raise RuntimeError(f"a worker ended with {self._process.wait()} and printed no result")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


def tree_cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, including those that have ended."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended in the meantime
            continue
        parents.setdefault(parent, []).append(int(stat.parent.name))
    total, family = 0.0, [pid]
    while family:
        member = family.pop()
        family += parents.get(member, [])
        try:
            total += cpu_seconds(member, with_children=True)
        except OSError:
            continue
    return total


# --- inside the worker ---------------------------------------------------------------------------------------------


def ready(**facts: Any) -> None:
    """Report that this worker is ready, and wait for the start."""
    print(json.dumps(facts), flush=True)
    sys.stdin.readline()


def run_job(config: SyphonConfig, rehearse: bool = False) -> dict[str, Any]:
    """Run `jobs/drain.py --once` on two cores; with `rehearse`, drain the backlog into another ledger first."""
    from jobs.drain import run
    from pairbus.spark import spark_session, syphon

    begun = time.time()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = spark_session("pairbus-bench", **{"spark.master": f"local[{_CORES}]", **quiet})
    spark.sparkContext.setLogLevel("ERROR")
    if rehearse:
        folder = Path(str(config.ledger)).parent / "rehearsal"
        ledger, checkpoint, journal = (str(folder / name) for name in ("ledger", "checkpoint", "journal"))
        other = replace(config, ledger=ledger, checkpoint=checkpoint, journal=journal)
        if run(syphon(spark, other), once=True, stop=threading.Event()):
            raise RuntimeError("the rehearsal failed")
    job = syphon(spark, config)
    ready(start_seconds=time.time() - begun)
    begun = time.time()
    code = run(job, once=True, stop=threading.Event())
    commits = Path(str(config.ledger)).glob("*/_delta_log/*.json")
    return {"code": code, "seconds": max(commit.stat().st_mtime for commit in commits) - begun}


def run_drain(config: SyphonConfig) -> dict[str, Any]:
    """Run `pairbus drain`."""
    from pairbus.syphon.drain.relaxed_gc import seldom_collected
    from pairbus.syphon.service import service_for

    service = service_for(config)
    ready()
    begun = time.time()
    with seldom_collected():
        done = service.once()
    return {"code": int(not done.is_empty or bool(done.errors)), "seconds": time.time() - begun}


def run_task(config: SyphonConfig) -> dict[str, Any]:
    """Run one task of the Spark job, by the function that Spark's worker calls."""
    from pairbus.spark.drain_task import DrainTask
    from pairbus.spark.signals import StopMark

    task = DrainTask(config, f"{config.journal}/run", StopMark(str(config.journal), "run"))
    before = peak_kilobytes()
    ready()
    summary = task.summarise(0, None, 0, 1)
    return {"delivered": summary.delivered, "error": summary.error, "before": before, "peak": peak_kilobytes()}


_KINDS: dict[str, Callable[[SyphonConfig], dict[str, Any]]] = {
    "job": run_job,
    "warm-job": partial(run_job, rehearse=True),
    "drain": run_drain,
    "task": run_task,
}


def peak_kilobytes() -> int:
    """Return the peak memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def main() -> None:
    kind, file = sys.argv[1:]
    config = SyphonConfig.from_mapping(json.loads(Path(file).read_text(encoding="utf-8")))
    print(json.dumps(_KINDS[kind](config)), flush=True)
    sys.stdin.readline()  # the parent reads this process's CPU time before it ends


if __name__ == "__main__":
    main()
