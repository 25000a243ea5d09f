"""Folding journals into a ledger: each row exactly once, whichever process is killed at whichever moment.

`<root>/<run>/` holds the journals of one run, which is the life of one driver process, and the run's state (see
`run_state`). A round of folding is::

    for fold in journals.plan():
        …write the rows of fold.parts to the ledger, unless it has (fold.run, fold.version) already…
        journals.mark_folded(fold)

The write must be idempotent by run and version, as Delta's txnAppId and txnVersion make it; the versions of a run only
grow. After a kill between the two steps, the next `plan` returns the same fold again.

Any number of syphons may share a root. Each folds its own run at once, and the runs before it on the same checkpoint.
It folds other runs when they are done, were killed on this machine, or have not changed for an hour. On a disk the
file system makes plans exclusive, so the first syphon to come folds a run that is done. On an object store plans are
not exclusive. There only one of the running syphons that fold (the one whose run has the smallest id) folds and deletes
the runs of others; on a disk the same holds for runs that were killed or stopped changing. A service without a ledger
never folds.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .journal import find_journal
from .process_mark import ProcessMark
from .row_format import SCHEMA, decode_rows
from .run_state import (
    ALIVE,
    DONE,
    FOLDS,
    FoldPlan,
    RunState,
    Stretch,
    UnreadableRunStateError,
    list_run,
    previous_run,
    start_version,
)
from .storage import join, split, storage_at

log = logging.getLogger("pairbus.syphon.folding")

#: Seconds without a change after which a run, or a journal, is taken for dead.
STALE_SECONDS = 3600.0
#: Seconds without a change after which a killed run has no message locked any more: a drain begins with a write, lasts
#: a minute unless it goes on writing, and its locks end a minute later.
_LOCKED_SECONDS = 150.0
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_BATCH_ROWS = 65536
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Fold:
    """The rows of one run that go into the ledger with one write."""

    run: str
    version: int
    #: Path, start and end of each part of a journal, for `read_parts`.
    parts: tuple[tuple[str, int, int], ...]


def read_parts(parts: Iterable[tuple[str, int, int]]) -> Iterator[Any]:
    """Yield the rows of some parts of a fold, as record batches with `SCHEMA`, on a driver or an executor."""
    # If another syphon has removed a journal because it has folded the same version, the ledger skips the repetition.
    for path, start, end in parts:
        folder, name = split(path)
        payloads = find_journal(storage_at(folder), name).payloads(start, end)
        table = pa.Table.from_batches(decode_rows(payloads), SCHEMA)
        yield from table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run of another process, as `runs_to_fold` needs to know it."""

    name: str
    is_done: bool
    #: True if the run is done, or its process is taken for dead.
    is_over: bool
    folds: bool


def runs_to_fold(own: str, earlier: Sequence[str], others: Sequence[OtherRun], *, exclusive: bool) -> list[str]:
    """Return the names of the runs that `own` may fold now; `exclusive` if only one of two equal plans takes effect."""
    over = [run.name for run in others if run.is_over]
    rivals = [run.name for run in others if run.folds and not run.is_over]
    if own == min([own, *rivals]):
        return [own, *earlier, *over]
    return [own, *earlier, *(run.name for run in others if run.is_done and exclusive)]


class JournalFolder:
    """The journals below one root, and the run that writes and folds them. Used by one thread at a time."""

    def __init__(self, root: str, clock: Callable[[], float] = time.time, *, folds: bool = True) -> None:
        self._root = root
        #: False for a service that has no ledger: other processes fold its journals.
        self._folds = folds
        self._storage = storage_at(root)
        self._clock = clock
        self._run: str | None = None
        #: The runs before this one on the same checkpoint.
        self._earlier: list[str] = []
        #: Journals that the log has already called damaged, and missing.
        self._damaged: set[str] = set()
        self._missing: set[str] = set()
        #: True if the run before this one was killed, or a run of this machine a moment ago: messages may be locked
        #: that no process will settle.
        self.follows_killed_run = False

    @property
    def location(self) -> str:
        return self._storage.location("").rstrip("/")

    def begin(self, run: str, previous: str | None) -> None:
        """Begin a run; `previous` is the run that the same checkpoint named before, so its process is dead."""
        # The caller writes the run to the checkpoint after this. A driver that dies in between, the other way round,
        # would leave no way back to the previous run, whose rows would wait for an hour.
        if not _RUN_NAME.fullmatch(run):
            raise ValueError(f"a run's name is letters, digits, - and _, not {run!r}")
        previous = None if previous == run else previous
        self._run = run
        self._storage.delete(f"{run}/{DONE}")
        start_version(self._storage, run, self._clock, previous)
        if self._folds:
            self._storage.put(f"{run}/{FOLDS}", b"folds\n")
        self._write_process_mark(run)
        self.follows_killed_run = self._find_killed_run(run, previous)
        # A run that died early may not have folded the one before it.
        self._earlier = []
        while previous and previous != run and previous not in self._earlier and _RUN_NAME.fullmatch(previous):
            self._earlier.append(previous)
            previous = previous_run(self._storage, previous)

    def _find_killed_run(self, own: str, previous: str | None) -> bool:
        runs = self._list_runs()
        now = self._storage_time(runs.pop(own, None))
        unfinished = [run for run in runs.values() if run.files and not run.has(DONE)]
        return any(
            run.name == previous or (not _is_stale(run.changed_at, now, _LOCKED_SECONDS) and self._is_dead(run))
            for run in unfinished
        )

    def plan(self) -> list[Fold]:
        """Return the folds to write to the ledger now, at most one for each run; a fold not yet marked comes again."""
        own = self._begun()
        self._write_process_mark(own)
        runs = self._list_runs()
        now = self._storage_time(runs.get(own))
        pending: list[Fold] = []
        planned: list[Fold] = []
        for name in self._foldable(runs, own, now):
            try:
                runs[name].load()
                fold, is_new = self._plan_run(runs[name], own, now)
            except FileNotFoundError:
                continue  # another process is folding it; what it leaves comes with the next plan
            except UnreadableRunStateError as error:
                if name == own:
                    raise
                log.error("journals of run %s not folded: %s", name, error)
                continue
            if fold is not None:
                (planned if is_new else pending).append(fold)
        return pending + planned

    def mark_folded(self, fold: Fold) -> None:
        """Record that a fold is in the ledger, and remove the journals and files that are not needed any more."""
        self._begun()
        run = list_run(self._storage, fold.run)
        try:
            run.load()
            self._conclude(run, fold)
        except FileNotFoundError:
            # Another process is concluding the fold. If it dies, the next plan returns the fold again.
            log.info("fold %d of run %s is being concluded by another process", fold.version, fold.run)

    def _conclude(self, run: RunState, fold: Fold) -> None:
        plan = run.pending
        if plan is None or plan.version != fold.version:
            return  # concluded before, here or by another process
        if self._fold(run, plan) != fold:
            log.warning("fold %d of run %s was planned twice; it is left as it is", fold.version, fold.run)
            return
        run.publish_folded(plan)
        for stretch in plan.stretches:
            if stretch.finished and stretch.journal in run.journals:
                run.delete_journal(stretch.journal)
        run.delete_superseded()

    def finish(self) -> None:
        """End the run in order. Other syphons fold the rows that are not in the ledger yet, and delete the run."""
        if self._run is not None:
            self._storage.put(f"{self._run}/{DONE}", b"done\n")
            if not self._folds:  # without a ledger there may be no other process that deletes an empty run
                own = list_run(self._storage, self._run)
                if not own.journals:
                    own.delete()
            self._run = None

    def _begun(self) -> str:
        if self._run is None:
            raise RuntimeError("no run has begun")
        return self._run

    def _list_runs(self) -> dict[str, RunState]:
        names = [name for name in self._storage.folders() if _RUN_NAME.fullmatch(name)]
        return {name: list_run(self._storage, name) for name in names}

    def _write_process_mark(self, run: str) -> None:
        self._storage.put(f"{run}/{ALIVE}", ProcessMark.own().encode())

    def _is_dead(self, run: RunState) -> bool:
        try:
            return ProcessMark.decode(self._storage.read(run.path(ALIVE))).is_dead()
        except (OSError, ValueError):  # removed, or half written
            return False

    def _storage_time(self, own: RunState | None) -> int:
        """Return the time by the storage's clock, in nanoseconds. The times of files are by that clock too."""
        marks = [each.changed_at for each in own.files if each.name == ALIVE] if own else []
        return marks[0] if marks and marks[0] is not None else int(self._clock() * _NANOSECONDS)

    def _foldable(self, runs: dict[str, RunState], own: str, now: int) -> list[str]:
        """Return the runs that this one may fold, and remove the empty folders of others."""
        earlier = [name for name in self._earlier if name in runs]
        others = [run for name, run in runs.items() if name != own and name not in earlier]
        statuses = [
            OtherRun(run.name, run.has(DONE), run.has(DONE) or self._is_over(run, now), run.has(FOLDS))
            for run in others
        ]
        for run in others:
            if not run.files:
                self._storage.delete_empty_folder(run.name)
        wanted = runs_to_fold(own, earlier, statuses, exclusive=self._storage.publishes_exclusively)
        return [name for name in wanted if name in runs]

    def _is_over(self, run: RunState, now: int) -> bool:
        if _is_stale(run.changed_at, now):
            return True
        # Two containers may share a host name. A run wrongly taken for dead is harmless only where plans are exclusive.
        return self._storage.publishes_exclusively and self._is_dead(run)

    def _fold(self, run: RunState, plan: FoldPlan) -> Fold:
        """Return the fold of a plan, without journals that were removed by hand: they must not block the others."""
        folder = join(self._root, run.name)
        for name, *_ in plan.stretches:
            if name not in run.journals and name not in self._missing:
                self._missing.add(name)
                path = self._storage.location(run.path(name))
                log.error("%s was removed before it is known to be in the ledger: its rows may be lost", path)
        parts = ((join(folder, name), start, end) for name, start, end, _ in plan.stretches if name in run.journals)
        return Fold(run.name, plan.version, tuple(parts))

    def _plan_run(self, run: RunState, own: str, now: int) -> tuple[Fold | None, bool]:
        """Return the fold of a run to write now, and True if it was not planned before."""
        if run.pending is not None:
            return self._fold(run, run.pending), False
        run.delete_superseded()
        stretches = []
        for journal in sorted(run.journals):
            stretch = self._plan_journal(run, journal, now)
            if stretch is not None:
                stretches.append(stretch)
        if stretches:
            plan = run.publish_plan(stretches, self._clock)
            return (self._fold(run, plan), True) if plan else (None, False)
        if not run.journals and run.name != own:
            run.delete()
        return None, False

    def _plan_journal(self, run: RunState, journal: str, now: int) -> Stretch | None:
        """Return the new part of a journal. Remove a journal that has none and will get none."""
        position = run.positions.get(journal)
        if position is not None and position.finished:
            run.delete_journal(journal)
            return None
        try:
            extent = run.measure(journal)
        except FileNotFoundError:
            return None
        if extent.damaged and journal not in self._damaged:
            self._damaged.add(journal)
            path = self._storage.location(run.path(journal))
            log.error("%s is damaged: frames behind byte %d are not read, and the file is kept", path, extent.end)
        if extent.has_rows:
            return Stretch(journal, position.end if position else 0, extent.end, extent.finished)
        if extent.finished or (not extent.damaged and _is_stale(run.journal_changed_at(journal), now)):
            run.delete_journal(journal)
        return None


def _is_stale(changed_at: int | None, now: int, seconds: float = STALE_SECONDS) -> bool:
    return changed_at is not None and now - changed_at > seconds * _NANOSECONDS
