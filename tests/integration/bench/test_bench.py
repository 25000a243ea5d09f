"""The benchmarks run, and leave their figures where people and programs look for them. How fast is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.figures import Figure, Side, keep, kept, table

ROOT = Path(__file__).resolve().parents[3]
GOALS = {"P1": 5, "P2": 0.8, "P3": 0.9, "P8": 0.9}


def measured(folder: Path, module: str, *arguments: str) -> dict[str, Any]:
    """What a program has left in its file."""
    file = folder / "bench.json"
    done = subprocess.run(
        [sys.executable, "-m", module, "--quick", "--json", str(file), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert all(key in done.stdout for key in found)
    return found


def figure(key: str, *runs: float, goal: float = 0.9, at_most: bool = False) -> Figure:
    sides = {"ours": Side(14_000.0, 40.0, 30.0, 20.0), "theirs": Side(15_000.0)}
    return Figure(key=key, what="ours ÷ theirs", goal=goal, runs=runs, note="the broker", at_most=at_most, sides=sides)


def test_the_drain_is_measured(tmp_path: Path) -> None:
    """A tiny run has every figure of the drain, with its goal, its runs, both sides, and what limits it."""
    found = measured(tmp_path, "bench.syphon", "--only", ",".join(GOALS), "--messages", "200", "--rounds", "2")
    assert {key: each["goal"] for key, each in found.items()} == GOALS
    for each in found.values():
        assert each["ratio"] > 0
        assert each["spread"] == pytest.approx((max(each["runs"]) - min(each["runs"])) / each["ratio"], abs=1e-3)
        assert len(each["runs"]) == 2
        assert each["note"]
        assert each["quick"] is True
        assert len(each["sides"]) == 2
        assert all(side["messages_per_second"] > 0 and side["cpu_us"] > 0 for side in each["sides"].values())


def test_an_idle_syphon_stays_below_thirty_operations(tmp_path: Path) -> None:
    """Requests are counted, not forecast, and their number does not depend on how many queues there are."""
    found = measured(tmp_path, "bench.syphon", "--only", "P7")["P7"]
    assert found["met"]
    assert found["goal"] == 30
    assert found["runs"] == [30.0, 30.0, 30.0]


def test_a_workers_memory_is_measured(tmp_path: Path) -> None:
    """By the function that a task of the Spark job calls, in a process of its own."""
    found = measured(tmp_path, "bench.spark", "--only", "P5", "--messages", "400", "--rounds", "1")
    assert found["P5"]["goal"] == 1.1
    assert found["P5"]["goal_is"] == "at most"
    assert found["P5"]["ratio"] > 0.5


def test_figures_are_kept_beside_those_of_others(tmp_path: Path) -> None:
    """Whoever measures one figure again leaves the others as they were; the median counts."""
    file = tmp_path / "build" / "bench.json"
    keep([figure("P2", 0.7, 0.8, 1.2), figure("P1", 1.0)], file)
    keep([figure("P2", 0.9, 1.0, 1.1)], file)
    found = kept(file)
    assert list(found) == ["P1", "P2"]
    assert found["P2"]["ratio"] == 1.0
    assert found["P2"]["spread"] == pytest.approx(0.2)
    assert found["P2"]["runs"] == [0.9, 1.0, 1.1]


@pytest.mark.parametrize(
    ("runs", "at_most", "verdict"),
    [((0.9,), False, " met"), ((0.8,), False, "MISSED"), ((0.8,), True, " met"), ((1.0,), True, "MISSED")],
)
def test_the_table_says_whether_a_goal_was_met(
    runs: tuple[float, ...], at_most: bool, verdict: str, tmp_path: Path
) -> None:
    """Floors and ceilings alike."""
    file = tmp_path / "bench.json"
    keep([figure("P3", *runs, at_most=at_most)], file)
    assert verdict in table(kept(file))
