"""`make demo` does what it says, from start to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_demo_ends_well_and_shows_every_step() -> None:
    """The demo exits with 0 only if each of its steps came out as it prints."""
    run = subprocess.run([sys.executable, str(ROOT / "jobs" / "demo.py")], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    for step in ("a queue", "a session", "a topic with filters", "a dead letter", "a fault", "100 of 100 still there"):
        assert step in run.stdout
    assert run.stderr == ""
