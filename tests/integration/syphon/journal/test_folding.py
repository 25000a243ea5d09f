"""Folding journals: every row reaches the ledger once, on each kind of storage, and from damaged files as well."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pairbus.syphon.journal.folding import STALE_SECONDS, JournalFolder, read_parts
from pairbus.syphon.journal.local_storage import LocalStorage
from pairbus.syphon.journal.row_format import SCHEMA
from pairbus.syphon.journal.storage import split, storage_at
from tests.support.folding import MemoryLedger, age, begun, fold_all, new_journal
from tests.support.journal_rows import numbers, rows
from tests.support.waiting import wait_until


def names(root: str, run: str = "") -> list[str]:
    """Return the files below a run."""
    return [each.name for each in storage_at(root).files(run)]


def test_a_journal_is_folded_as_it_grows_and_removed_when_it_is_finished(root: str) -> None:
    """Each round folds the new rows under a higher version. A finished journal is deleted."""
    folder, ledger = begun(root, "a"), MemoryLedger()
    assert folder.plan() == []
    journal = new_journal(root, "a")
    journal.write(rows(1, 2))
    (first,) = folder.plan()
    assert folder.plan() == [first]
    assert ledger.commit(first)
    folder.mark_folded(first)
    assert folder.plan() == []
    journal.write(rows(3))
    journal.close()
    (second,) = folder.plan()
    assert (second.run, second.version) == ("a", first.version + 1)
    assert ledger.commit(second)
    folder.mark_folded(second)
    folder.mark_folded(second)
    assert ledger.numbers == [1, 2, 3]
    assert folder.plan() == []
    assert [name for name in names(root, "a") if ".journal" in name] == []
    folder.finish()
    assert "done" in names(root, "a")


def test_a_journal_whose_end_alone_is_new_needs_no_fold(root: str) -> None:
    """All rows are in the ledger already: closing it lets the next round delete it."""
    folder, ledger = begun(root, "a"), MemoryLedger()
    journal = new_journal(root, "a")
    journal.write(rows(1))
    assert fold_all(folder, ledger) == 1
    journal.close()
    assert folder.plan() == []
    assert not any(".journal" in name for name in names(root, "a"))


def test_parts_of_a_fold_are_read_on_an_executor(root: str) -> None:
    """They are plain values that can be pickled, and are read as batches with the ledger's columns."""
    folder = begun(root, "a")
    for index in (0, 1):
        journal = new_journal(root, "a", index)
        journal.write(rows(index * 10 + 1))
        journal.write(rows(index * 10 + 2))
        journal.close()
    (fold,) = pickle.loads(pickle.dumps(folder.plan()))
    table = pa.Table.from_batches(pickle.loads(pickle.dumps(read_parts))(fold.parts), SCHEMA)
    assert sorted(numbers(table)) == [1, 2, 11, 12]
    assert sorted(table.column("queue_index").to_pylist()) == [0, 0, 1, 1]
    assert list(read_parts([])) == []


def test_a_part_of_a_missing_journal_is_an_error(root: str) -> None:
    """If it were read as empty, an executor that does not see the folder would lose rows without an error."""
    folder = begun(root, "a")
    journal = new_journal(root, "a")
    journal.write(rows(1))
    journal.close()
    (fold,) = folder.plan()
    gone = "".join((fold.parts[0][0][:-16], "00000000.journal")), 0, 100
    with pytest.raises(FileNotFoundError):
        list(read_parts([*fold.parts, gone]))


def test_a_journal_that_was_deleted_by_hand_does_not_block_the_others(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The planned fold goes on with the other journals, and the log names the missing one once."""
    folder, ledger = begun(root, "a"), MemoryLedger()
    for index in (0, 1):
        journal = new_journal(root, "a", index)
        journal.write(rows(index))
        journal.close()
    (planned,) = folder.plan()
    run, name = split(planned.parts[0][0])
    storage = storage_at(run)
    if storage.is_file(name):
        storage.delete(name)
    else:
        storage.delete_folder(name)
    fold_all(folder, ledger)
    assert ledger.numbers == [1]
    assert caplog.text.count("was removed before it is known to be in the ledger") == 1


def test_an_open_journal_is_deleted_after_an_hour_without_a_change(tmp_path: Path) -> None:
    """A killed task leaves one in a run that goes on. If the task was alive, its journal continues in a new file."""
    root, ledger = str(tmp_path), MemoryLedger()
    folder = begun(root, "a")
    journal = new_journal(root, "a")
    journal.write(rows(1))
    fold_all(folder, ledger)
    age(tmp_path / "a", STALE_SECONDS - 60)
    assert folder.plan() == []
    assert len(list((tmp_path / "a").glob("*.journal"))) == 1
    age(tmp_path / "a", 120)
    assert folder.plan() == []
    assert list((tmp_path / "a").glob("*.journal")) == []
    journal.write(rows(2))
    journal.close()
    fold_all(folder, ledger)
    assert ledger.numbers == [1, 2]


def test_a_torn_journal_is_folded_to_its_last_whole_write(tmp_path: Path) -> None:
    """The write that a kill interrupted is left out, and the rows before it are folded once."""
    root, ledger = str(tmp_path), MemoryLedger()
    folder = begun(root, "a")
    new_journal(root, "a").write(rows(1))
    (path,) = (tmp_path / "a").glob("*.journal")
    path.write_bytes(path.read_bytes() + path.read_bytes()[:-5])
    assert fold_all(folder, ledger) == 1
    age(tmp_path / "a")
    assert folder.plan() == []
    assert not path.exists()
    assert ledger.numbers == [1]


def test_a_damaged_journal_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whole frames behind a broken one were durable once: the file is not deleted, and the log names it once."""
    root, ledger = str(tmp_path), MemoryLedger()
    begun(root, "b")
    journal = new_journal(root, "b")
    for number in (1, 2, 3):
        journal.write(rows(number))
    journal.close()
    (path,) = (tmp_path / "b").glob("*.journal")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    folder = begun(root, "a", "b")
    fold_all(folder, ledger)
    assert ledger.numbers == [1]
    age(tmp_path / "b")
    assert folder.plan() == []
    assert path.read_bytes() == data
    assert caplog.text.count("is damaged") == 1


def test_a_run_whose_folder_was_removed_goes_on(root: str) -> None:
    """Without an error, and with higher versions, so that the ledger takes the rows that follow."""
    folder, ledger = begun(root, "a"), MemoryLedger()
    new_journal(root, "a").write(rows(1))
    (fold,) = folder.plan()
    assert ledger.commit(fold)
    storage_at(root).delete_folder("a")
    folder.mark_folded(fold)
    wait_until(lambda: time.time() * 1000 >= fold.version + 1)  # a fold takes longer than this store in memory
    assert folder.plan() == []
    new_journal(root, "a").write(rows(2))
    fold_all(folder, ledger)
    assert ledger.numbers == [1, 2]
    folder.finish()


def test_journals_can_be_moved_to_another_folder(tmp_path: Path) -> None:
    """The state of a run names no folder, and a fold that is under way keeps its version."""
    ledger = MemoryLedger()
    folder = begun(str(tmp_path / "old"), "a")
    journal = new_journal(str(tmp_path / "old"), "a")
    journal.write(rows(1))
    fold_all(folder, ledger)
    journal.write(rows(2))
    (before,) = folder.plan()
    assert ledger.commit(before)
    shutil.move(tmp_path / "old", tmp_path / "new")
    fold_all(begun(str(tmp_path / "new"), "b", "a"), ledger)
    assert ledger.numbers == [1, 2]


@pytest.mark.parametrize("content", [b"", b'{"version": 17', b"[]", b'{"version": 1, "parts": []}', b"\xff"])
def test_a_plan_that_a_kill_cut_short_is_made_again(content: bytes, tmp_path: Path) -> None:
    """Under the next version: no fold has begun with it, and its own version is not used again."""
    root, ledger = str(tmp_path), MemoryLedger()
    folder = begun(root, "a")
    new_journal(root, "a").write(rows(1))
    (fold,) = folder.plan()
    (plan,) = (tmp_path / "a").glob("fold-*.json")
    plan.write_bytes(content)
    (other,) = folder.plan()
    assert (other.version, other.parts) == (fold.version + 1, fold.parts)
    fold_all(folder, ledger)
    assert ledger.numbers == [1]
    assert list((tmp_path / "a").glob("fold-*.json")) == []


def test_a_record_of_a_fold_that_a_kill_cut_short_is_made_again(tmp_path: Path) -> None:
    """Its plan still exists and comes again; the ledger has the fold already and skips it."""
    root, ledger = str(tmp_path), MemoryLedger()
    folder = begun(root, "a")
    new_journal(root, "a").write(rows(1))
    (fold,) = folder.plan()
    assert ledger.commit(fold)
    (tmp_path / "a" / f"folded-{fold.version:013d}.json").write_bytes(b'{"posi')
    assert folder.plan() == [fold]
    assert fold_all(folder, ledger) == 1
    assert folder.plan() == []
    assert ledger.numbers == [1]


def test_a_damaged_state_stops_its_own_run_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A guess could fold rows twice: the run itself raises, and other runs log it and leave its journals alone."""
    root, ledger = str(tmp_path), MemoryLedger()
    other = begun(root, "b")
    new_journal(root, "b").write(rows(1))
    fold_all(other, ledger)
    (record,) = (tmp_path / "b").glob("folded-*.json")
    record.write_bytes(b'{"positions": 3}')
    with pytest.raises(ValueError, match=r"folded-\d+\.json"):
        other.plan()
    folder = begun(root, "a", "b")
    new_journal(root, "a").write(rows(2))
    fold_all(folder, ledger)
    assert ledger.numbers == [1, 2]
    assert "run b not folded" in caplog.text


def test_a_run_must_have_begun_and_its_name_is_checked(tmp_path: Path) -> None:
    """A path is no name, and without a run there is nothing to plan for."""
    folder = JournalFolder(str(tmp_path))
    with pytest.raises(RuntimeError, match="begun"):
        folder.plan()
    for name in ("", "../x", "a/b", ".x"):
        with pytest.raises(ValueError, match="name"):
            folder.begin(name, None)
    folder.finish()


def test_a_journal_that_is_removed_after_the_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has folded it between the listing and the reading."""
    root, ledger = str(tmp_path), MemoryLedger()
    folder = begun(root, "a")
    for index in (0, 1):
        new_journal(root, "a", index).write(rows(index))
    real = LocalStorage.read

    def read(self: LocalStorage, name: str, start: int = 0, end: int | None = None) -> bytes:
        if name.startswith("a/0-"):
            self.delete(name)
        return real(self, name, start, end)

    monkeypatch.setattr(LocalStorage, "read", read)
    fold_all(folder, ledger)
    assert ledger.numbers == [1]


def test_a_fold_that_differs_from_the_plan_changes_nothing(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another process may have planned the same version with other parts: its rows are not marked as folded."""
    folder = begun(root, "a")
    new_journal(root, "a").write(rows(1))
    (fold,) = folder.plan()
    folder.mark_folded(replace(fold, parts=()))
    assert "was planned twice" in caplog.text
    folder.mark_folded(replace(fold, version=fold.version + 1))
    assert folder.plan() == [fold]


def test_the_state_of_a_run_does_not_grow(tmp_path: Path) -> None:
    """After many rounds one record is left, with the positions of journals that still exist."""
    root, ledger = str(tmp_path), MemoryLedger()
    folder = begun(root, "a")
    for number in range(20):
        journal = new_journal(root, "a")
        journal.write(rows(number))
        journal.close()
        fold_all(folder, ledger)
    assert ledger.numbers == list(range(20))
    (record,) = (tmp_path / "a").glob("folded-*.json")
    assert len(json.loads(record.read_text())["positions"]) <= 1
    assert sorted(names(root, "a")) == ["alive", record.name, "folds", "start.json"]
