"""Folding without Spark: a ledger in memory, runs with journals, and helpers that age and kill them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pairbus.domain.outcome import Head
from pairbus.syphon.journal.folding import STALE_SECONDS, Fold, JournalFolder, read_parts
from pairbus.syphon.journal.journal import Journal, open_journal
from pairbus.syphon.journal.storage import join


class MemoryLedger:
    """A ledger with Delta's rules: it takes a version of a run once, and never after a higher one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.versions: dict[str, int] = {}

    def commit(self, fold: Fold, on_step: Callable[[], object] = lambda: None) -> bool:
        """Write a fold. False if another commit of the run came first, as Delta finds at the end of a write."""
        before = self.versions.get(fold.run, -1)
        if fold.version <= before:
            return True
        try:
            read = [
                number for batch in read_parts(fold.parts) for number in batch.column("sequence_number").to_pylist()
            ]
        except FileNotFoundError:
            return False  # the next round writes it again
        on_step()
        if self.versions.get(fold.run, -1) != before:
            return False
        self.numbers += read
        self.versions[fold.run] = fold.version
        on_step()
        return True


def fold_all(journals: JournalFolder, ledger: MemoryLedger, on_step: Callable[[], object] = lambda: None) -> int:
    """Fold until no rows are left; return the number of folds."""
    count = 0
    while folds := journals.plan():
        for fold in folds:
            assert count < 20, "folding does not come to an end"
            count += 1
            if ledger.commit(fold, on_step):
                journals.mark_folded(fold)
    return count


def new_journal(root: str, run: str, index: int = 0) -> Journal:
    """Open a journal of a run."""
    return open_journal(join(root, run), Head("contoso", index))


def begun(root: str, run: str, previous: str | None = None) -> JournalFolder:
    """Begin a run."""
    journals = JournalFolder(root)
    journals.begin(run, previous)
    return journals


def age(folder: Path, seconds: float = 2 * STALE_SECONDS) -> None:
    """Make every file in a folder older."""
    for path in folder.rglob("*"):
        changed = path.stat().st_mtime - seconds
        os.utime(path, (changed, changed))


def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def kill(root: Path, run: str) -> None:
    """Leave a run as if its process had been killed."""
    (root / run / "alive").write_text(f"{socket.gethostname()} {ended_process()}\n")
