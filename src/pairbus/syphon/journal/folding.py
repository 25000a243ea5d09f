"""Folding journals into a ledger, each row exactly once, whatever is killed when.

`<root>/<run>/` holds the journals of one run, the life of one driver process, and the memory of what was folded (see
`runs`). A round of folding is::

    for fold in folder.plan():
        …write the rows of fold.parts to the ledger, unless it has (fold.run, fold.version) already…
        folder.folded(fold)

The write must be idempotent by run and version, as Delta's txnAppId and txnVersion make it; versions of a run only
grow. A kill between the two makes the next `plan` return the same fold again. Any number of syphons may share a root:
each folds its own run and those it came after at once; those of others when they are done, were killed on this
machine, or were silent for an hour. On a disk their plans exclude one another by what the file system promises, and
whoever is first folds what is done. On an object store plans cannot exclude one another: there, and for what was
killed or is silent, only one of the running syphons that fold (the one whose run has the smallest id) clears up after
others. A service that has no ledger never does.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from .journal import SCHEMA, read_rows
from .run_state import ALIVE, DONE, FOLDS, Manifest, Run, Unreadable, list_run, previous_run, start_version
from .storage import join, place_at, split

_logger = logging.getLogger("pairbus.syphon.folding")

#: A run, or a journal, in which nothing has changed for this long is taken for dead.
SILENCE_SECONDS = 3600.0
#: A drain begins with a write, lasts a minute unless it goes on writing, and a lock ends a minute after that.
_RECENT = 150.0
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_BATCH_ROWS = 65536
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Fold:
    """What goes into the ledger in one write: stretches of one run's journals, for `read_parts`."""

    run: str
    version: int
    parts: tuple[tuple[str, int, int], ...]


def read_parts(parts: Iterable[tuple[str, int, int]]) -> Iterator[Any]:
    """The rows of some parts of a fold, as record batches with `SCHEMA`; to be called anywhere, an executor included.

    A journal that is gone is an OSError, never nothing: its rows may be nowhere else. If it is gone because another
    syphon has folded it in under the same version, the ledger skips the fold when it is written again.
    """
    for path, start, end in parts:
        folder, name = split(path)
        table = pa.Table.from_batches(read_rows(place_at(folder), name, start, end), SCHEMA)
        yield from table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


class JournalFolder:
    """The journals of one ledger, as one run sees them. Used by one thread at a time."""

    def __init__(self, root: str, clock: Callable[[], float] = time.time, *, folds: bool = True) -> None:
        self._root = root
        self._folds = folds
        self._place = place_at(root)
        self._clock = clock
        self._run: str | None = None
        self._before: list[str] = []
        #: Journals that were told of: damaged, and gone.
        self._damaged: set[str] = set()
        self._missed: set[str] = set()
        #: Whether the run before this one, or one of this machine a moment ago, did not come to an end in order:
        #: messages may be locked that nobody will settle.
        self.after_a_kill = False

    @property
    def where(self) -> str:
        """The folder, for people to read."""
        return self._place.where("").rstrip("/")

    def begin(self, run: str, previous: str | None) -> None:
        """Begin a run; `previous` is the one that the same checkpoint knew before, so it is dead.

        The checkpoint is to be told of this run when this has returned, not before: else a driver that dies here cuts
        the thread to the run before it, whose rows are then not folded until the hour is over.
        """
        if not _RUN_NAME.fullmatch(run):
            raise ValueError(f"a run's name is letters, digits, - and _, not {run!r}")
        previous = None if previous == run else previous
        self._run = run
        self._place.delete(f"{run}/{DONE}")
        start_version(self._place, run, self._clock, previous)
        if self._folds:
            self._place.put(f"{run}/{FOLDS}", b"folds\n")
        self._beat(run)
        self.after_a_kill = self._is_after_a_kill(run, previous)
        # A run that died young may not have come to fold the one before it.
        self._before = []
        while previous and previous != run and previous not in self._before and _RUN_NAME.fullmatch(previous):
            self._before.append(previous)
            previous = previous_run(self._place, previous)

    def _is_after_a_kill(self, own: str, previous: str | None) -> bool:
        runs = {name: list_run(self._place, name) for name in self._place.folders() if _RUN_NAME.fullmatch(name)}
        now = self._now(runs.pop(own, None))
        open_ones = [run for run in runs.values() if run.files and not run.has(DONE)]
        return any(
            run.name == previous or (not _is_silent(run.changed, now, _RECENT) and self._is_dead(run))
            for run in open_ones
        )

    def _is_dead(self, run: Run) -> bool:
        """Whether it was a process of this machine, and is no more. Of others nobody knows. Whether another process
        has its number by now is told from when it was born, as far as both say so."""
        try:
            host, pid, *told = self._place.read(run.path(ALIVE)).decode().split()
            if host != socket.gethostname():
                return False
            born = _born(int(pid))
            if told and born is not None and told[0] != born:
                return True
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError):  # gone, half written, or another user's
            return False
        return False

    def plan(self) -> list[Fold]:
        """What is to be written to the ledger now, at most one fold a run; nothing if there is nothing new.

        A fold that was planned and not yet `folded` comes first and unchanged.
        """
        own = self._begun()
        self._beat(own)
        runs = {name: list_run(self._place, name) for name in self._place.folders() if _RUN_NAME.fullmatch(name)}
        now = self._now(runs.get(own))
        pending: list[Fold] = []
        planned: list[Fold] = []
        for name in self._in_reach(runs, own, now):
            try:
                runs[name].recall()
                fold, is_new = self._plan_run(runs[name], own, now)
            except FileNotFoundError:
                continue  # another is at it, and it comes again
            except Unreadable as error:
                if name == own:
                    raise
                _logger.error("the journals of run %s are left alone: %s", name, error)
                continue
            if fold is not None:
                (planned if is_new else pending).append(fold)
        return pending + planned

    def folded(self, fold: Fold) -> None:
        """The ledger has it: remember that, and remove what is not needed any more."""
        self._begun()
        run = list_run(self._place, fold.run)
        try:
            run.recall()
            self._conclude(run, fold)
        except FileNotFoundError:
            # Another is at it, and has cleared up already; should it not come so far, the fold comes again.
            _logger.info("fold %d of run %s is being concluded by another", fold.version, fold.run)

    def _conclude(self, run: Run, fold: Fold) -> None:
        manifest = run.pending
        if manifest is None or manifest.version != fold.version:
            return  # done already, by us or by another
        if self._fold(run, manifest) != fold:
            _logger.warning("fold %d of run %s was planned twice; it is left as it is", fold.version, fold.run)
            return
        run.publish_folded(manifest)
        for journal, _, _, finished in manifest.parts:
            if finished and journal in run.journals:
                run.delete_journal(journal)
        run.forget_superseded()

    def finish(self) -> None:
        """End the run in order: what is not in the ledger yet is any other syphon's to fold, and to clear up after."""
        if self._run is not None:
            self._place.put(f"{self._run}/{DONE}", b"done\n")
            if not self._folds:  # nobody may ever come to clear up after one that has moved nothing
                own = list_run(self._place, self._run)
                if not own.journals:
                    own.clear()
            self._run = None

    def _begun(self) -> str:
        if self._run is None:
            raise RuntimeError("no run has begun")
        return self._run

    def _beat(self, run: str) -> None:
        told = f"{socket.gethostname()} {os.getpid()} {_born(os.getpid()) or ''}"
        self._place.put(f"{run}/{ALIVE}", f"{told.rstrip()}\n".encode())

    def _now(self, own: Run | None) -> int:
        """The time by the clock that the files' times are by: that of the store, not ours."""
        beat = [each.changed for each in own.files if each.name == ALIVE] if own else []
        return beat[0] if beat and beat[0] is not None else int(self._clock() * _NANOSECONDS)

    def _in_reach(self, runs: dict[str, Run], own: str, now: int) -> list[str]:
        """The runs that are ours to fold."""
        near = [name for name in (own, *self._before) if name in runs]
        others = [name for name in runs if name not in near]
        done = [name for name in others if runs[name].has(DONE)]
        # Where plans do not exclude one another, who only seems dead must not be folded: containers may share a name.
        over = [
            name
            for name in others
            if name in done
            or _is_silent(runs[name].changed, now)
            or (self._place.excludes and self._is_dead(runs[name]))
        ]
        empty = [name for name in others if not runs[name].files]
        for name in empty:
            self._place.delete_empty_folder(name)
        alive = [own, *(name for name in others if name not in over and runs[name].has(FOLDS))]
        if own == min(alive):
            return near + over
        return near + done if self._place.excludes else near

    def _fold(self, run: Run, manifest: Manifest) -> Fold:
        """A planned fold. A journal that somebody has removed since must not keep the others out for ever."""
        folder = join(self._root, run.name)
        for name, *_ in manifest.parts:
            if name not in run.journals and name not in self._missed:
                self._missed.add(name)
                where = run.place.where(run.path(name))
                _logger.error("%s was removed before it is known to be in the ledger: its rows may be lost", where)
        parts = ((join(folder, name), start, end) for name, start, end, _ in manifest.parts if name in run.journals)
        return Fold(run.name, manifest.version, tuple(parts))

    def _plan_run(self, run: Run, own: str, now: int) -> tuple[Fold | None, bool]:
        """The fold of a run that is to be written now, and whether it is new."""
        if run.pending is not None:
            return self._fold(run, run.pending), False
        run.forget_superseded()
        parts = []
        for journal in sorted(run.journals):
            part = self._plan_journal(run, journal, now)
            if part is not None:
                parts.append(part)
        if parts:
            manifest = run.publish_plan(parts, self._clock)
            return (self._fold(run, manifest), True) if manifest else (None, False)
        if not run.journals and run.name != own:
            run.clear()
        return None, False

    def _plan_journal(self, run: Run, journal: str, now: int) -> tuple[str, int, int, bool] | None:
        """What is new in a journal; one in which nothing is, nor will be, is removed."""
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
            where = run.place.where(run.path(journal))
            _logger.error("%s is damaged: what follows byte %d is not read, and the file is kept", where, extent.end)
        if extent.rows:
            return journal, position.end if position else 0, extent.end, extent.finished
        if extent.finished or (not extent.damaged and _is_silent(run.changed_journal(journal), now)):
            run.delete_journal(journal)
        return None


def _is_silent(changed: int | None, now: int, seconds: float = SILENCE_SECONDS) -> bool:
    return changed is not None and now - changed > seconds * _NANOSECONDS


def _born(pid: int) -> str | None:
    """When a process began, in a word that no other process has that was ever given its number; None where that cannot
    be told. In containers numbers repeat: the one process of each is the first."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name before them is in parentheses, and may hold any.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot}/{int(fields[19])}"
    except (OSError, ValueError, IndexError):
        return None
