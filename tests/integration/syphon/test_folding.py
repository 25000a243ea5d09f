"""Folding: every row that a journal holds reaches the ledger exactly once, whatever is killed when."""

from __future__ import annotations

import errno
import json
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.domain.outcome import Head
from pairbus.syphon.journal import folding
from pairbus.syphon.journal import storage as places
from pairbus.syphon.journal.folding import SILENCE_SECONDS, Fold, JournalFolder, read_parts
from pairbus.syphon.journal.journal import SCHEMA, Journal, open_journal
from pairbus.syphon.journal.storage import join, place_at, split
from tests.support.journal_rows import mock_root, numbers, rows
from tests.support.pairing import wait_until


class Killed(BaseException):
    """The process is gone from here on."""


class Steps:
    """Counts what is done to the files, and does something at one of these steps."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0
        self.act: Callable[[], None] | None = None
        self._dead = False

    def kill(self) -> None:
        self._dead = True

    def take(self) -> bool:
        """One step; True if it is to be cut short in the middle."""
        if self._dead:
            raise Killed
        self.count += 1
        if self.count == self.at and self.act is not None:
            act, self.act = self.act, None
            act()
        return self._dead


class WatchedOs:
    """The module `os` as `places` sees it: what reads or changes files is a step."""

    WATCHED = frozenset({"link", "unlink", "rmdir", "makedirs", "rename", "scandir", "open", "write"})

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def fsync(self, descriptor: int) -> None:
        """Nothing: a kill does not empty the page cache, and the tests are quicker."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.WATCHED:
            return real

        def step(*arguments: Any, **more: Any) -> Any:
            if self._steps.take():
                if name == "write":
                    os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise Killed
            return real(*arguments, **more)

        return step


class WatchedFilesystem:
    """A file system of Arrow's, each call a step; a killed write leaves half a file."""

    def __init__(self, real: Any, steps: Steps) -> None:
        self._real = real
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def step(*arguments: Any, **more: Any) -> Any:
            if self._steps.take():
                if name == "open_output_stream":
                    with real(*arguments) as stream:
                        stream.write(b'{"version": 1, "par')
                raise Killed
            return real(*arguments, **more)

        return step


class Ledger:
    """A ledger as Delta is one: a version of a run is taken once, and never after a higher one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.versions: dict[str, int] = {}

    def commit(self, fold: Fold, steps: Steps | None = None) -> bool:
        """False if another commit of the same run came first, which Delta finds out at the end."""
        before = self.versions.get(fold.run, -1)
        if fold.version <= before:
            return True
        try:
            read = [
                number for batch in read_parts(fold.parts) for number in batch.column("sequence_number").to_pylist()
            ]
        except FileNotFoundError:
            return False  # written again
        if steps is not None:
            steps.take()
        if self.versions.get(fold.run, -1) != before:
            return False
        self.numbers += read
        self.versions[fold.run] = fold.version
        if steps is not None:
            steps.take()
        return True


def fold_all(folder: JournalFolder, ledger: Ledger, steps: Steps | None = None) -> int:
    """Rounds of folding until nothing is left; how many folds it took."""
    count = 0
    while folds := folder.plan():
        for fold in folds:
            assert count < 20, "it does not come to an end"
            count += 1
            if ledger.commit(fold, steps):
                folder.folded(fold)
    return count


def new_journal(root: str, run: str, index: int = 0) -> Journal:
    return open_journal(join(root, run), Head("contoso", index))


def begun(root: str, run: str, previous: str | None = None) -> JournalFolder:
    folder = JournalFolder(root)
    folder.begin(run, previous)
    return folder


def names(root: str, run: str = "") -> list[str]:
    return [each.name for each in place_at(root).files(run)]


def age(folder: Path, seconds: float = 2 * SILENCE_SECONDS) -> None:
    """Make everything in a folder older."""
    for path in folder.rglob("*"):
        changed = path.stat().st_mtime - seconds
        os.utime(path, (changed, changed))


@pytest.fixture(params=["disk", "mount", "store", "object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A disk, a mount that cannot append or link, a store that cannot append, one that has no renames either."""
    if request.param == "object store":
        monkeypatch.setattr(places, "_ATOMIC_SCHEMES", {"mock"})
    if "store" in request.param:
        return mock_root()
    if request.param == "mount":
        monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
        monkeypatch.setattr(os, "link", no_links)
    return str(tmp_path / "ledger" / "_journal")


def no_links(*_: Any) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_journal_is_folded_as_it_grows_and_removed_when_it_is_finished(root: str) -> None:
    """Each round takes what is new; versions grow; nothing stays of a finished journal but the memory of its run."""
    folder, ledger = begun(root, "a"), Ledger()
    assert folder.plan() == []
    journal = new_journal(root, "a")
    journal.write(rows(1, 2))
    (first,) = folder.plan()
    assert folder.plan() == [first]
    assert ledger.commit(first)
    folder.folded(first)
    assert folder.plan() == []
    journal.write(rows(3))
    journal.close()
    (second,) = folder.plan()
    assert (second.run, second.version) == ("a", first.version + 1)
    assert ledger.commit(second)
    folder.folded(second)
    folder.folded(second)
    assert ledger.numbers == [1, 2, 3]
    assert folder.plan() == []
    assert [name for name in names(root, "a") if ".journal" in name] == []
    folder.finish()
    assert "done" in names(root, "a")


def test_a_journal_whose_end_alone_is_new_needs_no_fold(root: str) -> None:
    """All its rows are in the ledger already: it is removed at once."""
    folder, ledger = begun(root, "a"), Ledger()
    journal = new_journal(root, "a")
    journal.write(rows(1))
    assert fold_all(folder, ledger) == 1
    journal.close()
    assert folder.plan() == []
    assert not any(".journal" in name for name in names(root, "a"))


def test_parts_are_read_as_batches_of_the_schema_wherever_they_are_sent(root: str) -> None:
    """What an executor gets is plain values; what it yields fits the ledger."""
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


def test_a_journal_that_cannot_be_found_is_an_error(root: str) -> None:
    """Not a journal without rows: a folder that an executor does not see would empty the ledger without a word."""
    folder = begun(root, "a")
    journal = new_journal(root, "a")
    journal.write(rows(1))
    journal.close()
    (fold,) = folder.plan()
    gone = "".join((fold.parts[0][0][:-16], "00000000.journal")), 0, 100
    with pytest.raises(FileNotFoundError):
        list(read_parts([*fold.parts, gone]))


def test_a_journal_that_somebody_removed_keeps_no_other_out(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """A planned fold of which a journal was deleted by hand goes on with the rest, and says what is missing."""
    folder, ledger = begun(root, "a"), Ledger()
    for index in (0, 1):
        journal = new_journal(root, "a", index)
        journal.write(rows(index))
        journal.close()
    (planned,) = folder.plan()
    place, name = split(planned.parts[0][0])
    if place_at(place).is_file(name):
        place_at(place).delete(name)
    else:
        place_at(place).delete_folder(name)
    fold_all(folder, ledger)
    assert ledger.numbers == [1]
    assert caplog.text.count("was removed before it is known to be in the ledger") == 1


def test_the_run_before_is_folded_at_once_and_the_ones_before_it(root: str) -> None:
    """A driver that died is followed by one that knows it; two that died in a row are found through each other."""
    ledger = Ledger()
    for number, (run, previous) in enumerate([("c", None), ("b", "c"), ("a", "b")]):
        folder = begun(root, run, previous)
        new_journal(root, run).write(rows(number))
    fold_all(folder, ledger)
    assert sorted(ledger.numbers) == [0, 1, 2]


def test_an_unknown_run_is_left_alone_until_it_is_done(root: str) -> None:
    """Its driver may be at work; the mark it leaves lets another clear up after it."""
    ledger = Ledger()
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


def test_a_run_that_has_folded_all_leaves_nothing_to_do(root: str) -> None:
    """Another syphon only clears up after it."""
    ledger = Ledger()
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


def test_a_silent_run_is_folded_and_cleared(tmp_path: Path) -> None:
    """After an hour without a change: its rows are folded, unfinished journals removed, its folder too."""
    root, ledger = str(tmp_path), Ledger()
    begun(root, "b")
    new_journal(root, "b").write(rows(1))
    folder = begun(root, "a")
    assert folder.plan() == []
    age(tmp_path / "b", SILENCE_SECONDS - 60)
    assert folder.plan() == []
    age(tmp_path / "b", 120)
    assert fold_all(folder, ledger) == 1
    assert (tmp_path / "b").exists()
    age(tmp_path / "b")
    assert folder.plan() == []
    assert folder.plan() == []
    assert not (tmp_path / "b").exists()
    assert ledger.numbers == [1]


def test_only_one_of_the_living_clears_up_after_the_dead(tmp_path: Path) -> None:
    """Stores that cannot say "only if it is new" must not see two at it."""
    root = str(tmp_path)
    begun(root, "dead")
    new_journal(root, "dead").write(rows(1))
    age(tmp_path / "dead")
    first, second = begun(root, "a"), begun(root, "b")
    assert second.plan() == []
    (fold,) = first.plan()
    assert fold.run == "dead"


def kill(root: Path, run: str) -> None:
    """As if the process that a run was had been killed."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (root / run / "alive").write_text(f"{socket.gethostname()} {process.pid}\n")


@pytest.mark.parametrize("killed", ["a", "z"])
def test_a_run_that_was_killed_on_this_machine_is_folded_at_once(killed: str, tmp_path: Path) -> None:
    """Nobody waits for an hour for a process that is no more, nor does it keep anybody from clearing up."""
    root, ledger = str(tmp_path), Ledger()
    begun(root, killed)
    new_journal(root, killed).write(rows(1))
    begun(root, "lives")
    new_journal(root, "lives").write(rows(2))
    kill(tmp_path, killed)
    folder = begun(root, "k")  # the smallest of the living
    fold_all(folder, ledger)
    assert ledger.numbers == [1]
    assert folder.plan() == []


def test_who_only_seems_killed_is_not_folded_where_plans_do_not_exclude(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may have one name, and each its own numbers of processes: there it is the hour that tells."""
    monkeypatch.setattr(places, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
    root = str(tmp_path)
    begun(root, "z")
    new_journal(root, "z").write(rows(1))
    kill(tmp_path, "z")
    folder = begun(root, "k")
    assert folder.plan() == []
    for path in [*(tmp_path / "z").rglob("*"), tmp_path / "z"]:
        os.utime(path, (path.stat().st_mtime - SILENCE_SECONDS - 60,) * 2)
    assert [fold.run for fold in folder.plan()] == ["z"]


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_what_is_done_is_folded_by_whoever_comes(kind: str, tmp_path: Path) -> None:
    """Another that idles, and would be the one to clear up, is not waited for; where plans do not exclude one another
    it is."""
    root = mock_root() if kind == "store" else str(tmp_path)
    begun(root, "a")
    done = begun(root, "done")
    journal = new_journal(root, "done")
    journal.write(rows(1))
    journal.close()
    done.finish()
    assert [fold.run for fold in begun(root, "b").plan()] == (["done"] if kind == "disk" else [])


@pytest.mark.parametrize("root_of", [lambda path: str(path), lambda path: mock_root()], ids=["disk", "store"])
def test_nothing_is_left_of_a_run_that_ended_in_order(root_of: Callable[[Path], str], tmp_path: Path) -> None:
    """Not even its folder, also where a store has real ones: everybody who looks for journals would look into it."""
    root, ledger = root_of(tmp_path), Ledger()
    done = begun(root, "a")
    journal = new_journal(root, "a")
    journal.write(rows(1))
    journal.close()
    fold_all(done, ledger)
    done.finish()
    fold_all(begun(root, "b", "a"), ledger)
    assert ledger.numbers == [1]
    assert place_at(root).folders() == ["b"]


def test_an_unfinished_journal_is_removed_when_it_was_silent_for_an_hour(tmp_path: Path) -> None:
    """A task that was killed leaves one in a run that lives on; if it was not dead, it goes on in a new file."""
    root, ledger = str(tmp_path), Ledger()
    folder = begun(root, "a")
    journal = new_journal(root, "a")
    journal.write(rows(1))
    fold_all(folder, ledger)
    age(tmp_path / "a", SILENCE_SECONDS - 60)
    assert folder.plan() == []
    assert len(list((tmp_path / "a").glob("*.journal"))) == 1
    age(tmp_path / "a", 120)
    assert folder.plan() == []
    assert list((tmp_path / "a").glob("*.journal")) == []
    journal.write(rows(2))
    journal.close()
    fold_all(folder, ledger)
    assert ledger.numbers == [1, 2]


def test_a_torn_journal_is_folded_as_far_as_it_goes(tmp_path: Path) -> None:
    """A kill in the middle of a write: that write is left out, and what is there is folded once."""
    root, ledger = str(tmp_path), Ledger()
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
    """No kill leaves whole frames behind a broken one: what was durable is not thrown away, and it is said once."""
    root, ledger = str(tmp_path), Ledger()
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


def test_a_removed_root_begins_anew(root: str) -> None:
    """No error, and the ledger takes what comes then: versions go on, they do not begin again."""
    folder, ledger = begun(root, "a"), Ledger()
    new_journal(root, "a").write(rows(1))
    (fold,) = folder.plan()
    assert ledger.commit(fold)
    place_at(root).delete_folder("a")
    folder.folded(fold)
    wait_until(lambda: time.time() * 1000 >= fold.version + 1)  # a fold takes longer than this store in memory
    assert folder.plan() == []
    new_journal(root, "a").write(rows(2))
    fold_all(folder, ledger)
    assert ledger.numbers == [1, 2]
    folder.finish()


def test_a_moved_root_is_read_where_it_is(tmp_path: Path) -> None:
    """What is remembered names no folder; a fold under way is the same one elsewhere."""
    ledger = Ledger()
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


def test_an_empty_folder_of_another_run_is_removed(tmp_path: Path) -> None:
    """Unless it is ours; what does not look like a run's is not touched."""
    for name in ("b", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    folder = begun(str(tmp_path), "a")
    assert folder.plan() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a", "notes.txt"]


def test_what_is_not_ours_in_a_run_keeps_its_folder(tmp_path: Path) -> None:
    """A dead run with a stranger's file in it is not cleared."""
    begun(str(tmp_path), "b")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    assert begun(str(tmp_path), "a", "b").plan() == []
    assert (tmp_path / "b" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b'{"version": 17', b"[]", b'{"version": 1, "parts": []}', b"\xff"])
def test_a_plan_that_is_not_whole_is_no_plan(content: bytes, tmp_path: Path) -> None:
    """A kill while it was written: nobody has acted on it, and its number is not used for another."""
    root, ledger = str(tmp_path), Ledger()
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


def test_a_memory_that_is_not_whole_is_made_again(tmp_path: Path) -> None:
    """A kill while it was written: its plan is still there, the ledger has it already, and it is remembered anew."""
    root, ledger = str(tmp_path), Ledger()
    folder = begun(root, "a")
    new_journal(root, "a").write(rows(1))
    (fold,) = folder.plan()
    assert ledger.commit(fold)
    (tmp_path / "a" / f"folded-{fold.version:013d}.json").write_bytes(b'{"posi')
    assert folder.plan() == [fold]
    assert fold_all(folder, ledger) == 1
    assert folder.plan() == []
    assert ledger.numbers == [1]


def test_a_damaged_memory_stops_its_own_run_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows would be folded twice on a guess: its own driver says so, others leave that run alone."""
    root, ledger = str(tmp_path), Ledger()
    other = begun(root, "b")
    new_journal(root, "b").write(rows(1))
    fold_all(other, ledger)
    (memory,) = (tmp_path / "b").glob("folded-*.json")
    memory.write_bytes(b'{"positions": 3}')
    with pytest.raises(ValueError, match=r"folded-\d+\.json"):
        other.plan()
    folder = begun(root, "a", "b")
    new_journal(root, "a").write(rows(2))
    fold_all(folder, ledger)
    assert ledger.numbers == [1, 2]
    assert "run b are left alone" in caplog.text


def test_a_run_must_have_begun_and_have_a_name(tmp_path: Path) -> None:
    """Neither a path in place of a name, nor folding without one."""
    folder = JournalFolder(str(tmp_path))
    with pytest.raises(RuntimeError, match="begun"):
        folder.plan()
    for name in ("", "../x", "a/b", ".x"):
        with pytest.raises(ValueError, match="name"):
            folder.begin(name, None)
    folder.finish()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Steps], None]:
    """Makes the file operations below a root steps."""

    filesystem, prefix = places._filesystem("mock", "", "")

    def begin(root: str, steps: Steps) -> None:
        if root.startswith("mock:"):
            monkeypatch.setattr(places, "_filesystem", lambda *_: (WatchedFilesystem(filesystem, steps), prefix))
            return
        watched = WatchedOs(steps)
        monkeypatch.setattr(places, "os", watched)
        monkeypatch.setattr(places, "write_all", watched.write)

    return begin


def life(root: str, run: str, checkpoint: list[str], base: int, ledger: Ledger, steps: Steps) -> set[int]:
    """A driver's life: three batches, with journals that are finished and unfinished. What its tasks made durable."""
    durable: set[int] = set()
    # Tasks are not the driver: they write while nothing is watched.
    journals = [new_journal(root, run, index) for index in range(3)]
    try:
        folder = begun(root, run, checkpoint[-1] if checkpoint else None)
        checkpoint.append(run)
        for batch in range(3):
            for index, journal in enumerate(journals):
                number = base + batch * 10 + index
                if index == 0 or batch < 2:
                    unwatched(lambda journal=journal, number=number: journal.write(rows(number)), steps)
                    durable.add(number)
            if batch == 1:
                unwatched(journals[1].close, steps)
                journals[1] = new_journal(root, run, 1)
            fold_all(folder, ledger, steps)
        unwatched(lambda: [journal.close() for journal in journals], steps)
        fold_all(folder, ledger, steps)
        folder.finish()
    except Killed:
        for journal in journals:
            unwatched(lambda journal=journal: release(journal), steps)
    return durable


def release(journal: Journal) -> None:
    """What is left of a killed task's journal: its file, and no open handle."""
    file = getattr(journal._keep, "_file", None)
    if file is not None:
        file.close()


def unwatched(act: Callable[[], Any], steps: Steps) -> None:
    """Do something that is no step and is not killed."""
    count, dead, steps._dead, acting, steps.act = steps.count, steps._dead, False, steps.act, None
    try:
        act()
    finally:
        steps.count, steps._dead, steps.act = count, dead, acting


def lives(root: str, watch: Callable[[str, Steps], None], *kills: int) -> int:
    """Driver after driver, each killed at its step; the last one lives. How many steps the first took."""
    ledger = Ledger()
    durable: set[int] = set()
    first = 0
    checkpoint: list[str] = []
    for number in range(len(kills) + 1):
        steps = Steps()
        if number < len(kills):
            steps.at, steps.act = kills[number], steps.kill
        watch(root, steps)
        durable |= life(root, secrets.token_hex(16), checkpoint, number * 1000, ledger, steps)
        first = first or steps.count
    assert sorted(ledger.numbers) == sorted(durable)
    return first


@pytest.mark.parametrize("kind", ["disk", "store", "object store"])
def test_killed_at_any_step_every_row_is_in_the_ledger_once(
    kind: str, tmp_path: Path, watch: Callable[[str, Steps], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, between and in the middle of any two operations, the commit included; an object store that shows half of
    what it was given is worse than any that is."""
    if kind == "object store":
        monkeypatch.setattr(places, "_ATOMIC_SCHEMES", {"mock"})
    number = 0
    while True:
        number += 1
        root = mock_root() if "store" in kind else str(tmp_path / str(number))
        if lives(root, watch, number) < number:
            break
    assert number > 80


@pytest.mark.parametrize("kind", ["disk", "store", "object store"])
def test_killed_twice_every_row_is_in_the_ledger_once(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    watch: Callable[[str, Steps], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second driver dies as well, while it puts in order what the first has left."""
    if kind == "object store":
        monkeypatch.setattr(places, "_ATOMIC_SCHEMES", {"mock"})

    @given(first=st.integers(1, 200), second=st.integers(1, 300))
    @settings(max_examples=100, deadline=None)
    def check(first: int, second: int) -> None:
        root = mock_root() if "store" in kind else str(tmp_path_factory.mktemp("twice"))
        lives(root, watch, first, second)

    check()


@pytest.mark.parametrize("growing", [False, True])
def test_two_syphons_at_one_run_fold_every_row_once(
    growing: bool, tmp_path: Path, watch: Callable[[str, Steps], None]
) -> None:
    """At any step of one, the other does a whole round on the same run, which may even grow meanwhile."""
    number = 0
    while True:
        number += 1
        root, ledger, steps = str(tmp_path / str(number)), Ledger(), Steps()
        watch(root, steps)
        begun(root, "dead")
        journals = [new_journal(root, "dead", index) for index in range(2)]
        for index, journal in enumerate(journals):
            journal.write(rows(index))
        journals[0].close()
        a, b = begun(root, "a", "dead"), begun(root, "b", "dead")
        expected = [0, 1]

        def other(root: str = root, ledger: Ledger = ledger, journal: Journal = journals[1], b: Any = b) -> None:
            if growing:
                journal.write(rows(2))
                journal.close()
            fold_all(b, ledger)

        steps.count, steps.at, steps.act = 0, number, other
        fold_all(a, ledger, steps)
        over = steps.act is not None
        if over:
            steps.act = None
            other()
        fold_all(a, ledger)
        fold_all(b, ledger)
        journals[1].close()
        assert sorted(ledger.numbers) == expected + [2] * growing, number
        if over:
            break
    assert number > 20


def test_a_listing_of_journals_that_vanish_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and the reading another has removed one: it is left out."""
    root, ledger = str(tmp_path), Ledger()
    folder = begun(root, "a")
    for index in (0, 1):
        new_journal(root, "a", index).write(rows(index))
    real = places.LocalPlace.read

    def read(self: places.LocalPlace, name: str, start: int = 0, end: int | None = None) -> bytes:
        if name.startswith("a/0-"):
            self.delete(name)
        return real(self, name, start, end)

    monkeypatch.setattr(places.LocalPlace, "read", read)
    fold_all(folder, ledger)
    assert ledger.numbers == [1]


def test_what_is_remembered_does_not_grow(tmp_path: Path) -> None:
    """After many rounds there is one memory file, which knows of the journals that are still there."""
    root, ledger = str(tmp_path), Ledger()
    folder = begun(root, "a")
    for number in range(20):
        journal = new_journal(root, "a")
        journal.write(rows(number))
        journal.close()
        fold_all(folder, ledger)
    assert ledger.numbers == list(range(20))
    (memory,) = (tmp_path / "a").glob("folded-*.json")
    assert len(json.loads(memory.read_text())["positions"]) <= 1
    assert sorted(names(root, "a")) == ["alive", memory.name, "folds", "start.json"]


@pytest.mark.parametrize(
    ("alive", "age_of_it", "expected"),
    [
        ("{host} {dead}", 0.0, True),
        ("{host} {dead}", 600.0, False),
        ("{host} {own}", 0.0, False),
        ("elsewhere {dead}", 0.0, False),
        ("alive", 0.0, False),
        ("{host} {own} {born}", 0.0, False),
        ("{host} {own} {boot}/1", 0.0, True),
        ("{host} {own} 00000000-0000-0000-0000-000000000000/{start}", 0.0, True),
        ("{host} {dead} {boot}/1", 0.0, True),
        ("elsewhere {own} {boot}/1", 0.0, False),
    ],
    ids=[
        "killed",
        "long ago",
        "it goes on",
        "on another machine",
        "not told",
        "it goes on, and says since when",
        "its number was given again",
        "before this machine was started",
        "killed, and says since when",
        "on another machine, and says since when",
    ],
)
def test_a_run_of_this_machine_that_was_killed_a_moment_ago(
    alive: str, age_of_it: float, expected: bool, tmp_path: Path
) -> None:
    """It has left messages locked, whoever comes after it; one that goes on, or that nobody knows of, has not."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    begun(str(tmp_path), "other")
    born = (tmp_path / "other" / "alive").read_text().split()[2]
    boot, start = born.split("/")
    told = alive.format(host=socket.gethostname(), dead=process.pid, own=os.getpid(), born=born, boot=boot, start=start)
    (tmp_path / "other" / "alive").write_text(told)
    age(tmp_path / "other", age_of_it)
    assert begun(str(tmp_path), "new").after_a_kill is expected
    begun(str(tmp_path), "other").finish()
    assert begun(str(tmp_path), "newer").after_a_kill is False


def test_a_killed_run_is_noticed_though_its_process_number_is_given_again(tmp_path: Path) -> None:
    """As in a container that is started anew: the machine has the same name, and the first process the same number."""
    begun_by = (
        f"from pairbus.syphon.journal.folding import JournalFolder; JournalFolder({str(tmp_path)!r}).begin('killed', None)"
    )
    killed = subprocess.Popen([sys.executable, "-c", begun_by])
    assert killed.wait(60) == 0
    mark = tmp_path / "killed" / "alive"
    host, number, born = mark.read_text().split()
    assert number == str(killed.pid)
    mark.write_text(f"{host} {os.getpid()} {born}\n")
    assert begun(str(tmp_path), "new").after_a_kill


def test_where_nobody_says_when_a_process_began_its_number_is_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a system without /proc: one that goes on is not taken for dead."""
    monkeypatch.setattr(folding, "_born", lambda pid: None)
    begun(str(tmp_path), "other")
    assert (tmp_path / "other" / "alive").read_text() == f"{socket.gethostname()} {os.getpid()}\n"
    assert not begun(str(tmp_path), "new").after_a_kill
