"""Folding with kills and rivals: each row reaches the ledger once, whichever operation is the last of a process."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.syphon.journal import local_storage
from pairbus.syphon.journal import storage as storage_module
from pairbus.syphon.journal.journal import Journal
from tests.support.folding import MemoryLedger, begun, fold_all, new_journal
from tests.support.journal_rows import mock_root, rows


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """A count of operations on files, with an action at one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0
        self.act: Callable[[], None] | None = None
        self._is_dead = False
        self._is_paused = False

    def kill(self) -> None:
        """Let this operation, and every one after it, raise `Killed`."""
        self._is_dead = True

    def take(self) -> bool:
        """Count an operation; return True if it is to be interrupted in the middle."""
        if self._is_paused:
            return False
        if self._is_dead:
            raise Killed
        self.count += 1
        if self.count == self.at and self.act is not None:
            act, self.act = self.act, None
            act()
        return self._is_dead

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no operations, and interrupt none: they are of another process."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False


class WatchedOs:
    """The module `os` for the storage: each call that reads or changes files is a step."""

    WATCHED = frozenset({"link", "unlink", "rmdir", "makedirs", "rename", "scandir", "open", "write"})

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def fsync(self, descriptor: int) -> None:
        """Do nothing: a kill does not empty the page cache, and the tests are faster."""

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
    """A file system of Arrow. Each call is a step, and a killed write leaves half a file."""

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


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Steps], None]:
    """Return a function that makes the operations on files below a root steps."""
    filesystem, prefix = storage_module._filesystem("mock", "", "")

    def begin(root: str, steps: Steps) -> None:
        if root.startswith("mock:"):
            watched = WatchedFilesystem(filesystem, steps), prefix
            monkeypatch.setattr(storage_module, "_filesystem", lambda *_: watched)
            return
        watched_os = WatchedOs(steps)
        monkeypatch.setattr(local_storage, "os", watched_os)
        monkeypatch.setattr(local_storage, "write_all", watched_os.write)

    return begin


def life(root: str, run: str, checkpoint: list[str], base: int, ledger: MemoryLedger, steps: Steps) -> set[int]:
    """Run a driver for three batches, with journals that are closed and some that are not.

    Returns the numbers of the rows that its tasks have made durable.
    """
    durable: set[int] = set()
    # Tasks are other processes: they write while no step is counted.
    journals = [new_journal(root, run, index) for index in range(3)]
    with contextlib.suppress(Killed):
        folder = begun(root, run, checkpoint[-1] if checkpoint else None)
        checkpoint.append(run)
        for batch in range(3):
            with steps.paused():
                for index, journal in enumerate(journals):
                    number = base + batch * 10 + index
                    if index == 0 or batch < 2:
                        journal.write(rows(number))
                        durable.add(number)
                if batch == 1:
                    journals[1].close()
                    journals[1] = new_journal(root, run, 1)
            fold_all(folder, ledger, steps.take)
        with steps.paused():
            for journal in journals:
                journal.close()
        fold_all(folder, ledger, steps.take)
        folder.finish()
    return durable


def lives(root: str, watch: Callable[[str, Steps], None], *kills: int) -> int:
    """Run driver after driver, each killed at its step but the last. Return the number of steps of the first."""
    ledger = MemoryLedger()
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
    """Before, between and in the middle of any two operations, the commit included. The object store here is worse than
    any real one: it shows half an object."""
    if kind == "object store":
        monkeypatch.setattr(storage_module, "_ATOMIC_SCHEMES", {"mock"})
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
    """The second driver is killed as well, while it folds the journals of the first."""
    if kind == "object store":
        monkeypatch.setattr(storage_module, "_ATOMIC_SCHEMES", {"mock"})

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
    """At any step of one, the other folds the same run completely; the run may grow meanwhile."""
    number = 0
    while True:
        number += 1
        root, ledger, steps = str(tmp_path / str(number)), MemoryLedger(), Steps()
        watch(root, steps)
        begun(root, "dead")
        journals = [new_journal(root, "dead", index) for index in range(2)]
        for index, journal in enumerate(journals):
            journal.write(rows(index))
        journals[0].close()
        a, b = begun(root, "a", "dead"), begun(root, "b", "dead")
        expected = [0, 1]

        def other(root: str = root, ledger: MemoryLedger = ledger, journal: Journal = journals[1], b: Any = b) -> None:
            if growing:
                journal.write(rows(2))
                journal.close()
            fold_all(b, ledger)

        steps.count, steps.at, steps.act = 0, number, other
        fold_all(a, ledger, steps.take)
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
