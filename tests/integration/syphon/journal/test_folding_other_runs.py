"""Folding the journals of other runs: those that are finished, were killed, or have not changed for an hour."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pairbus.syphon.journal import process_mark
from pairbus.syphon.journal import storage as storage_module
from pairbus.syphon.journal.folding import STALE_SECONDS, JournalFolder
from pairbus.syphon.journal.storage import storage_at
from tests.support.folding import MemoryLedger, age, begun, ended_process, fold_all, kill, new_journal
from tests.support.journal_rows import mock_root, rows


def names(root: str, run: str) -> list[str]:
    """Return the files below a run."""
    return [each.name for each in storage_at(root).files(run)]


def test_the_earlier_runs_of_a_checkpoint_are_folded_at_once(root: str) -> None:
    """The checkpoint names the run before, and that run names the one before it."""
    ledger = MemoryLedger()
    for number, (run, previous) in enumerate([("c", None), ("b", "c"), ("a", "b")]):
        folder = begun(root, run, previous)
        new_journal(root, run).write(rows(number))
    fold_all(folder, ledger)
    assert sorted(ledger.numbers) == [0, 1, 2]


def test_an_unknown_run_is_left_alone_until_it_is_done(root: str) -> None:
    """Its driver may be running. Once it has finished, another run folds its rows and deletes it."""
    ledger = MemoryLedger()
    other = begun(root, "b")
    journal = new_journal(root, "b")
    journal.write(rows(1))
    folder = begun(root, "a")
    assert folder.plan() == []
    journal.close()
    other.finish()
    other.finish()
    assert "done" in names(root, "b")
    fold_all(folder, ledger)
    assert names(root, "b") == []
    assert ledger.numbers == [1]


def test_a_finished_run_without_new_rows_is_deleted(root: str) -> None:
    """Another run deletes its folder and folds nothing."""
    ledger = MemoryLedger()
    other = begun(root, "b")
    journal = new_journal(root, "b")
    journal.write(rows(1))
    journal.close()
    fold_all(other, ledger)
    other.finish()
    folder = begun(root, "a")
    assert folder.plan() == []
    assert names(root, "b") == []
    assert ledger.numbers == [1]


def test_a_run_without_a_change_for_an_hour_is_folded_and_deleted(tmp_path: Path) -> None:
    """Its rows are folded first; its open journals and its folder go an hour later."""
    root, ledger = str(tmp_path), MemoryLedger()
    begun(root, "b")
    new_journal(root, "b").write(rows(1))
    folder = begun(root, "a")
    assert folder.plan() == []
    age(tmp_path / "b", STALE_SECONDS - 60)
    assert folder.plan() == []
    age(tmp_path / "b", 120)
    assert fold_all(folder, ledger) == 1
    assert (tmp_path / "b").exists()
    age(tmp_path / "b")
    assert folder.plan() == []
    assert folder.plan() == []
    assert not (tmp_path / "b").exists()
    assert ledger.numbers == [1]


def test_one_of_several_runs_folds_a_dead_one(tmp_path: Path) -> None:
    """The one with the smallest id. On a store without exclusive plans two would fold its rows twice."""
    root = str(tmp_path)
    begun(root, "dead")
    new_journal(root, "dead").write(rows(1))
    age(tmp_path / "dead")
    first, second = begun(root, "a"), begun(root, "b")
    assert second.plan() == []
    (fold,) = first.plan()
    assert fold.run == "dead"


def test_a_run_that_began_again_is_not_taken_for_finished(tmp_path: Path) -> None:
    """A second start with the same name removes the mark of the end."""
    root = str(tmp_path)
    begun(root, "b").finish()
    begun(root, "b")
    new_journal(root, "b").write(rows(1))
    assert begun(root, "a").plan() == []


def test_a_clock_that_is_ahead_takes_no_run_for_dead(tmp_path: Path) -> None:
    """The times of files are compared with the time of a file that was just written, not with this machine's clock."""
    root = str(tmp_path)
    begun(root, "b")
    new_journal(root, "b").write(rows(1))
    journals = JournalFolder(root, clock=lambda: time.time() + 10 * STALE_SECONDS)
    journals.begin("a", None)
    assert journals.plan() == []


@pytest.mark.parametrize("killed", ["a", "z"])
def test_a_run_that_was_killed_on_this_machine_is_folded_at_once(killed: str, tmp_path: Path) -> None:
    """Its process is known to have ended, so no run waits an hour for it, nor leaves folding to it."""
    root, ledger = str(tmp_path), MemoryLedger()
    begun(root, killed)
    new_journal(root, killed).write(rows(1))
    begun(root, "lives")
    new_journal(root, "lives").write(rows(2))
    kill(tmp_path, killed)
    folder = begun(root, "k")  # the smallest id of the runs that go on
    fold_all(folder, ledger)
    assert ledger.numbers == [1]
    assert folder.plan() == []


def test_where_plans_are_not_exclusive_a_killed_run_is_folded_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may share a host name and process ids, so the process mark is no proof there."""
    monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    root = str(tmp_path)
    begun(root, "z")
    new_journal(root, "z").write(rows(1))
    kill(tmp_path, "z")
    folder = begun(root, "k")
    assert folder.plan() == []
    for path in [*(tmp_path / "z").rglob("*"), tmp_path / "z"]:
        os.utime(path, (path.stat().st_mtime - STALE_SECONDS - 60,) * 2)
    assert [fold.run for fold in folder.plan()] == ["z"]


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_a_finished_run_is_folded_by_the_first_run_that_looks(kind: str, tmp_path: Path) -> None:
    """On a disk. On a store it waits for the run with the smallest id, for plans are not exclusive there."""
    root = mock_root() if kind == "store" else str(tmp_path)
    begun(root, "a")
    done = begun(root, "done")
    journal = new_journal(root, "done")
    journal.write(rows(1))
    journal.close()
    done.finish()
    assert [fold.run for fold in begun(root, "b").plan()] == (["done"] if kind == "disk" else [])


@pytest.mark.parametrize("root_of", [lambda path: str(path), lambda path: mock_root()], ids=["disk", "store"])
def test_a_finished_and_folded_run_leaves_no_folder(root_of: Callable[[Path], str], tmp_path: Path) -> None:
    """Nor on a store with real folders: every later listing would contain it."""
    root, ledger = root_of(tmp_path), MemoryLedger()
    done = begun(root, "a")
    journal = new_journal(root, "a")
    journal.write(rows(1))
    journal.close()
    fold_all(done, ledger)
    done.finish()
    fold_all(begun(root, "b", "a"), ledger)
    assert ledger.numbers == [1]
    assert storage_at(root).folders() == ["b"]


def test_an_empty_folder_of_another_run_is_removed(tmp_path: Path) -> None:
    """Folders and files whose names no run can have are not touched."""
    for name in ("b", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    folder = begun(str(tmp_path), "a")
    assert folder.plan() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a", "notes.txt"]


def test_a_run_with_a_foreign_file_is_not_deleted(tmp_path: Path) -> None:
    """A file that pairbus did not write may be worth something."""
    begun(str(tmp_path), "b")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    assert begun(str(tmp_path), "a", "b").plan() == []
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("alive", "age_of_it", "expected"),
    [
        ("{host} {dead}", 0.0, True),
        ("{host} {dead}", 600.0, False),
        ("{host} {own}", 0.0, False),
        ("elsewhere {dead}", 0.0, False),
        ("alive", 0.0, False),
        ("{host} {own} {birth}", 0.0, False),
        ("{host} {own} {boot}/1", 0.0, True),
        ("{host} {own} 00000000-0000-0000-0000-000000000000/{start}", 0.0, True),
        ("{host} {dead} {boot}/1", 0.0, True),
        ("elsewhere {own} {boot}/1", 0.0, False),
    ],
    ids=[
        "killed",
        "long ago",
        "running",
        "on another machine",
        "no mark",
        "running, with its birth",
        "its process id is in use again",
        "before the machine was started",
        "killed, with its birth",
        "on another machine, with its birth",
    ],
)
def test_a_run_that_follows_a_killed_one_knows_it(alive: str, age_of_it: float, expected: bool, tmp_path: Path) -> None:
    """The killed run may have left messages locked. A run that goes on has not, nor one that cannot be judged."""
    begun(str(tmp_path), "other")
    birth = (tmp_path / "other" / "alive").read_text().split()[2]
    boot, start = birth.split("/")
    names = {"host": socket.gethostname(), "dead": ended_process(), "own": os.getpid(), "boot": boot, "start": start}
    (tmp_path / "other" / "alive").write_text(alive.format(birth=birth, **names))
    age(tmp_path / "other", age_of_it)
    assert begun(str(tmp_path), "new").follows_killed_run is expected
    begun(str(tmp_path), "other").finish()
    assert begun(str(tmp_path), "newer").follows_killed_run is False


def test_a_killed_run_is_known_though_its_process_id_is_in_use_again(tmp_path: Path) -> None:
    """As in a container that starts again with the same host name, where the first process has the same id."""
    program = f"""
from pairbus.syphon.journal.folding import JournalFolder

JournalFolder({str(tmp_path)!r}).begin("killed", None)
"""
    killed = subprocess.Popen([sys.executable, "-c", program])
    assert killed.wait(60) == 0
    mark = tmp_path / "killed" / "alive"
    host, pid, birth = mark.read_text().split()
    assert pid == str(killed.pid)
    mark.write_text(f"{host} {os.getpid()} {birth}\n")
    assert begun(str(tmp_path), "new").follows_killed_run


def test_without_proc_a_running_process_is_not_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark has no birth, and its process id alone decides."""
    monkeypatch.setattr(process_mark, "process_birth", lambda pid: None)
    begun(str(tmp_path), "other")
    assert (tmp_path / "other" / "alive").read_text() == f"{socket.gethostname()} {os.getpid()}\n"
    assert not begun(str(tmp_path), "new").follows_killed_run
