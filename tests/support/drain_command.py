"""`pairbus drain` as a process of its own, its configuration, and the journals that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.journal_rows import read_journal
from tests.support.pairing import Pair


def journal_rows(root: Path) -> list[dict[str, Any]]:
    """All rows of all journals below a folder."""
    return [row for path in sorted(root.glob("*/*.journal")) for row in read_journal(str(path)).table.to_pylist()]


def write_config(pair: Pair, folder: Path, queues: int = 3, more: str = "") -> Path:
    """Write a configuration for a pair, with lines to add to `[syphon]`; the secrets are in the environment."""
    path = folder / "pairbus.toml"
    path.write_text(
        f"""
        [primary]
        connection = "env:PAIRBUS_TEST_PRIMARY"
        name = "{pair.name}"
        ca_file = "{pair.primary.ca_file}"
        [secondary]
        connection = "env:PAIRBUS_TEST_SECONDARY"
        name = "backup"
        ca_file = "{pair.secondary.ca_file}"
        [syphon]
        queues = {queues}
        {more}
        [ledger]
        journal = "{folder / "journal"}"
        """
    )
    return path


class DrainProcess:
    """A process that runs `pairbus drain`."""

    def __init__(self, pair: Pair, *arguments: str) -> None:
        secrets = {
            "PAIRBUS_TEST_PRIMARY": pair.primary.connection_string,
            "PAIRBUS_TEST_SECONDARY": pair.secondary.connection_string,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pairbus.cli", "drain", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **secrets},
        )

    def result(self) -> tuple[int, str, str]:
        """Wait for its end; return the exit code, the output and the error output."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextmanager
def draining(pair: Pair, *arguments: str) -> Iterator[DrainProcess]:
    """Run `pairbus drain`, and end it with the block."""
    command = DrainProcess(pair, *arguments)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()


def drain(pair: Pair, *arguments: str) -> tuple[int, str, str]:
    """Run `pairbus drain` to its end; return the exit code, the output and the error output."""
    with draining(pair, *arguments) as command:
        return command.result()
