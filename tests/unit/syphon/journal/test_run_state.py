"""The state of a run: its files are read as they were written, and a file that a kill cut short is recognised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.journal.journal import open_journal
from pairbus.syphon.journal.run_state import (
    FoldPlan,
    Position,
    RunState,
    Stretch,
    UnreadableRunStateError,
    decode_positions,
    encode_positions,
    list_run,
    previous_run,
    start_version,
)
from pairbus.syphon.journal.storage import storage_at
from pairbus.syphon.journal.storage_port import FileEntry, Storage
from tests.support.journal_rows import HEAD, rows

PLAN = FoldPlan(8, (Stretch("a.journal", 0, 10, False), Stretch("b.journal", 5, 7, True)))
NAMES = st.text(max_size=8)
SIZES = st.integers(0, 2**63)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return storage_at(str(tmp_path))


def loaded(storage: Storage) -> RunState:
    """Return the state of the run `r` as a process that comes later finds it."""
    run = list_run(storage, "r")
    run.load()
    return run


def test_the_files_of_a_run_have_a_fixed_form() -> None:
    """Another version of pairbus may read them."""
    assert json.loads(PLAN.encode()) == {
        "version": 8,
        "parts": [["a.journal", 0, 10, False], ["b.journal", 5, 7, True]],
    }
    assert json.loads(encode_positions({"a.journal": Position(10), "b.journal": Position(7, True)})) == {
        "positions": {"a.journal": [10, False], "b.journal": [7, True]}
    }


@given(version=SIZES, stretches=st.lists(st.tuples(NAMES, SIZES, SIZES, st.booleans())))
def test_a_plan_is_read_as_it_was_written(version: int, stretches: list[tuple[str, int, int, bool]]) -> None:
    """And one of another version is refused."""
    plan = FoldPlan(version, tuple(Stretch(*each) for each in stretches))
    assert FoldPlan.decode(plan.encode(), version) == plan
    with pytest.raises(UnreadableRunStateError, match=f"it has version {version}, not {version + 1}"):
        FoldPlan.decode(plan.encode(), version + 1)


@given(positions=st.dictionaries(NAMES, st.builds(Position, SIZES, st.booleans())))
def test_positions_are_read_as_they_were_written(positions: dict[str, Position]) -> None:
    """Each journal with its end, and if it was finished there."""
    assert decode_positions(encode_positions(positions)) == positions


def test_a_file_that_was_cut_short_is_unreadable() -> None:
    """Wherever a kill has cut it."""
    plan, positions = PLAN.encode(), encode_positions({"a.journal": Position(10)})
    for length in range(len(plan)):
        with pytest.raises(UnreadableRunStateError, match="not a plan"):
            FoldPlan.decode(plan[:length], 8)
    for length in range(len(positions)):
        with pytest.raises(UnreadableRunStateError, match="not the positions"):
            decode_positions(positions[:length])


def test_versions_count_from_the_first_start(storage: Storage) -> None:
    """The first call decides, in milliseconds of its clock; the previous run is recorded with it."""
    assert start_version(storage, "r", lambda: 17.0, "before") == 17_000
    assert start_version(storage, "r", lambda: 99.0, "other") == 17_000
    assert previous_run(storage, "r") == "before"
    assert previous_run(storage, "unknown") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": null}'])
def test_a_start_that_was_cut_short_is_decided_anew(storage: Storage, content: bytes) -> None:
    """A kill while it was written: no fold has counted from it yet."""
    storage.put("r/start.json", content)
    assert previous_run(storage, "r") is None
    assert start_version(storage, "r", lambda: 18.0) == 18_000
    assert start_version(storage, "r", lambda: 19.0) == 18_000


def test_a_plan_is_pending_until_it_is_folded(storage: Storage) -> None:
    """A second process that plans finds the first plan; after the fold the positions behind it are known."""
    start_version(storage, "r", lambda: 0.007)
    first = loaded(storage).publish_plan(PLAN.stretches, lambda: 0.0)
    assert first == PLAN
    assert loaded(storage).publish_plan([Stretch("c.journal", 0, 1, True)], lambda: 0.0) == PLAN
    run = loaded(storage)
    assert run.pending == PLAN
    run.publish_folded(PLAN)
    run = loaded(storage)
    assert (run.pending, run.version) == (None, 8)
    assert run.positions == {"a.journal": Position(10), "b.journal": Position(7, True)}
    following = run.publish_plan([Stretch("a.journal", 10, 20, True)], lambda: 0.0)
    assert following is not None
    assert following.version == 9


def test_positions_of_journals_that_are_gone_are_dropped(storage: Storage) -> None:
    """The state does not grow with every journal that a run ever had."""
    journal = open_journal(storage.location("r"), HEAD)
    journal.write(rows(1))
    (name,) = list_run(storage, "r").journals
    storage.put("r/folded-0000000000007.json", encode_positions({"gone.journal": Position(1), name: Position(2)}))
    run = loaded(storage)
    run.publish_folded(FoldPlan(8, (Stretch("new.journal", 0, 3, False),)))
    assert loaded(storage).positions == {name: Position(2), "new.journal": Position(3)}


def test_the_last_whole_record_counts(storage: Storage) -> None:
    """A newer one that was cut short is folded again from its plan; without its plan the state is damaged."""
    storage.put("r/folded-0000000000007.json", encode_positions({"a.journal": Position(5)}))
    storage.put("r/folded-0000000000008.json", b"{")
    storage.put("r/fold-0000000000008.json", PLAN.encode())
    run = loaded(storage)
    assert (run.version, run.positions, run.pending) == (7, {"a.journal": Position(5)}, PLAN)
    storage.delete("r/fold-0000000000008.json")
    with pytest.raises(UnreadableRunStateError, match=r"folded-0000000000008\.json"):
        loaded(storage)


def test_the_version_of_a_plan_that_was_cut_short_is_not_used_again(storage: Storage) -> None:
    """Nothing has been done with it, but its name is taken."""
    start_version(storage, "r", lambda: 0.007)
    storage.put("r/fold-0000000000008.json", b"{")
    run = loaded(storage)
    assert run.pending is None
    plan = run.publish_plan(PLAN.stretches, lambda: 0.0)
    assert plan == FoldPlan(9, PLAN.stretches)


def test_a_plan_that_another_process_has_cut_short_is_none(storage: Storage) -> None:
    """It appeared after the listing: the next round sees it, and skips its version."""
    start_version(storage, "r", lambda: 0.007)
    run = loaded(storage)
    storage.put("r/fold-0000000000008.json", b"{")
    assert run.publish_plan(PLAN.stretches, lambda: 0.0) is None


def test_superseded_files_are_deleted_and_no_others(storage: Storage) -> None:
    """The last record stays, and what comes behind it."""
    for version in (6, 7, 8):
        storage.put(f"r/folded-{version:013d}.json", encode_positions({}))
        storage.put(f"r/fold-{version:013d}.json", b"{}")
    storage.put("r/fold-0000000000009.json", b"{}")
    storage.put("r/alive", b"")
    loaded(storage).delete_superseded()
    assert [each.name for each in storage.files("r")] == [
        "alive",
        "fold-0000000000009.json",
        "folded-0000000000008.json",
    ]


def test_a_run_with_a_foreign_file_is_not_deleted(storage: Storage) -> None:
    """Only files that pairbus writes are known to be worthless."""
    for name in ("start.json", "alive", "folds", "done", "fold-1.json", "folded-1.json", "x.tmp", "notes.txt"):
        storage.put(f"r/{name}", b"")
    list_run(storage, "r").delete()
    assert len(storage.files("r")) == 8
    storage.delete("r/notes.txt")
    list_run(storage, "r").delete()
    assert storage.folders() == []


def test_the_start_of_a_run_is_deleted_first(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill in between, a start without the last record would give a version that the ledger already has."""
    for name in ("alive", "done", "folded-0000000000007.json", "start.json"):
        storage.put(f"r/{name}", b"")
    run = list_run(storage, "r")
    deleted: list[str] = []
    monkeypatch.setattr(storage, "delete", deleted.append)
    run.delete()
    assert deleted[0] == "r/start.json"
    assert sorted(deleted) == ["r/alive", "r/done", "r/folded-0000000000007.json", "r/start.json"]


def test_the_last_change_of_a_run_and_of_its_journals(storage: Storage) -> None:
    """The newest file counts. Where the storage keeps no time for one of them, none is known."""
    files = [FileEntry("alive", 5), FileEntry("a.journal/1.seg", 7), FileEntry("a.journal/2.seg", 9)]
    run = RunState(storage, "r", files)
    assert (run.changed_at, run.journal_changed_at("a.journal"), run.journal_changed_at("b.journal")) == (9, 9, None)
    files.append(FileEntry("b.journal", None))
    assert (run.changed_at, run.journal_changed_at("a.journal"), run.journal_changed_at("b.journal")) == (None, 9, None)
    assert RunState(storage, "r", []).changed_at is None
