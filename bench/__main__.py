"""All benchmarks in turn, and a table of their figures, which are stored in `build/bench.json` as P1 … P8.

    python -m bench [--quick] [--json FILE]

Each benchmark runs in a process of its own, so that no run affects the next. If one fails, the others still run, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import RESULTS, ROOT, kept, table

#: Benchmarks that store figures, and those that only print results.
WITH_FIGURES = ("bench.sender", "bench.syphon", "bench.spark")
OTHERS = ("bench.localbus", "bench.neighbour")


def run(module: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Run one benchmark, echo its output, and return its exit code and output."""
    print(f"--- {module}", flush=True)
    begun = time.monotonic()
    said = []
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line)
    print(f"--- {module}: {time.monotonic() - begun:.0f} s", flush=True)
    return process.returncode, said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="few messages and rounds: a check that it works, not a measurement"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="default: build/bench.json")
    options = parser.parse_args()
    options.json.unlink(missing_ok=True)
    quick = ["--quick"] if options.quick else []
    failed, others = [], []
    for module in (*OTHERS, *WITH_FIGURES):
        code, said = run(module, quick + (["--json", str(options.json)] if module in WITH_FIGURES else []))
        if code:
            failed.append(module)
        if module in OTHERS:
            others += said
    print("\n" + "".join(others) + "\n" + table(kept(options.json)))
    print(f"\nstored in {options.json}")
    for module in failed:
        print(f"{module} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
