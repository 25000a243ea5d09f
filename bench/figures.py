"""Figures and their goals, as a table and in `build/bench.json`, with the keys P1 … P8.

A figure is a ratio of two sides. Both sides are measured several times in alternation, so that other load on the
machine affects both. The result is the median; `spread` is the difference between the largest and the smallest run,
relative to the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "bench.json"


@dataclass(frozen=True, slots=True)
class Side:
    """Medians of one side of a ratio over all runs."""

    messages_per_second: float
    #: CPU µs per message: of the processes that moved the messages, and of each broker.
    cpu_us: float | None = None
    primary_cpu_us: float | None = None
    secondary_cpu_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. With `at_most`, the goal is an upper limit, otherwise a lower one."""

    key: str
    what: str
    goal: float
    runs: Sequence[float]
    note: str
    at_most: bool = False
    sides: Mapping[str, Side] = field(default_factory=dict)
    #: The same ratio by CPU time of the moving process, without the broker's share.
    cpu_ratio: float | None = None
    #: Further results.
    more: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False

    @property
    def ratio(self) -> float:
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        return (max(self.runs) - min(self.runs)) / self.ratio if self.ratio else 0.0

    @property
    def met(self) -> bool:
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal

    def told(self) -> dict[str, Any]:
        """Return the figure as it is stored."""
        return {
            "what": self.what,
            "ratio": round(self.ratio, 4),
            "goal": self.goal,
            "goal_is": "at most" if self.at_most else "at least",
            "met": self.met,
            "runs": [round(run, 4) for run in self.runs],
            "spread": round(self.spread, 4),
            "cpu_ratio": None if self.cpu_ratio is None else round(self.cpu_ratio, 4),
            "sides": {name: asdict(side) for name, side in self.sides.items()},
            "note": self.note,
            **({"more": dict(self.more)} if self.more else {}),
            "quick": self.quick,
            "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }


def keep(figures: Iterable[Figure], path: Path) -> None:
    """Store figures in the file and keep those of other benchmarks. The file is replaced atomically."""
    held = kept(path)
    held |= {figure.key: figure.told() for figure in figures}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(dict(sorted(held.items())), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(new, path)


def kept(path: Path) -> dict[str, Any]:
    """Return the figures stored in the file; none if it does not exist."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def table(held: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures as a table of text."""
    lines = [f"{'':4}{'figure':64} {'ratio':>7} {'goal':>7}  {'':6} {'runs':>13} {'by CPU':>7}"]
    for key, figure in sorted(held.items()):
        sign = "≤" if figure["goal_is"] == "at most" else "≥"
        verdict = "met" if figure["met"] else "MISSED"
        runs = f"{min(figure['runs']):.2f} … {max(figure['runs']):.2f}"
        cpu = "" if figure["cpu_ratio"] is None else f"{figure['cpu_ratio']:.2f}"
        ratio = f"{figure['ratio']:7.2f} {sign}{figure['goal']:6g}  {verdict:6}"
        lines.append(f"{key:4}{figure['what']:64} {ratio} {runs:>13} {cpu:>7}".rstrip())
        lines += [f"{'':6}{name}: {_side(side)}" for name, side in figure["sides"].items()]
        lines.append(f"{'':6}{figure['note']}")
    return "\n".join(lines)


def _side(side: Mapping[str, Any]) -> str:
    said = f"{side['messages_per_second']:,.0f} messages/s"
    if side["cpu_us"] is not None:
        said += f", {side['cpu_us']:.1f} CPU µs per message"
    if side["primary_cpu_us"] is not None and side["secondary_cpu_us"] is not None:
        said += f" (brokers: primary {side['primary_cpu_us']:.1f}, secondary {side['secondary_cpu_us']:.1f})"
    return said


# --- shared by the benchmarks --------------------------------------------------------------------------------------


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark that stores figures."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="few messages and rounds: a check that it works")
    made.add_argument("--only", metavar="P1,P2", help="measure only these figures")
    made.add_argument("--rounds", type=int, metavar="N", help="number of runs of each figure")
    made.add_argument("--messages", type=int, metavar="N", help="number of messages that a side moves per run")
    made.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="default: build/bench.json")
    return made


def chosen(only: str | None, keys: Iterable[str]) -> list[str]:
    """Return the keys to measure, in their own order."""
    wanted = None if only is None else {key.strip().upper() for key in only.split(",")}
    return [key for key in keys if wanted is None or key in wanted]


def publish(figures: Sequence[Figure], path: Path) -> None:
    """Store the figures and print them."""
    keep(figures, path)
    held = kept(path)
    print(table({figure.key: held[figure.key] for figure in figures}), flush=True)
