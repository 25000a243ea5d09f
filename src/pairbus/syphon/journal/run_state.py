"""The journals of one run, with how far each was folded into the ledger, and the fold that may be under way.

The state of a run is in files beside its journals. Each is published as a whole and never changed:

- `start.json`: the version that the run's folds count from, and the run before it;
- `fold-<version>.json`: a planned fold, which may or may not be in the ledger;
- `folded-<version>.json`: the fold is in the ledger; the position of every journal behind it.

So at most one fold of a run is under way. The next version is planned once the one before is `folded`, and a second
process that plans it finds the plan of the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .journal import SUFFIX, stored_journal
from .storage_port import TEMPORARY, Extent, FileEntry, Storage, StoredJournal

#: The mark of the process that the run is, written again at each round of folding.
ALIVE = "alive"
#: The run has ended in order.
DONE = "done"
#: The run folds journals: its own, and those of other runs that have ended.
FOLDS = "folds"
START = "start.json"
_PLAN = re.compile(r"fold-(\d+)\.json")
_FOLDED = re.compile(r"folded-(\d+)\.json")


class UnreadableRunStateError(ValueError):
    """A file of a run's state does not hold what it should."""


@dataclass(frozen=True, slots=True)
class Position:
    """The end of the folded part of a journal."""

    #: See `Extent.end`.
    end: int
    finished: bool = False


class Stretch(NamedTuple):
    """A part of a journal that goes into the ledger with one fold."""

    journal: str
    start: int
    end: int
    finished: bool


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The content of a file `fold-<version>.json`."""

    version: int
    stretches: tuple[Stretch, ...]

    def encode(self) -> bytes:
        return json.dumps({"version": self.version, "parts": self.stretches}).encode()

    @classmethod
    def decode(cls, data: bytes, version: int) -> FoldPlan:
        """Return the plan in a file; raises `UnreadableRunStateError` if it is not a plan of that version."""
        try:
            found = json.loads(data)
            stretches = tuple(
                Stretch(str(name), int(start), int(end), bool(finished))
                for name, start, end, finished in found["parts"]
            )
            if found["version"] != version:
                raise ValueError(f"it has version {found['version']}, not {version}")
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableRunStateError(f"not a plan of a fold: {error}") from None
        return cls(version, stretches)


def encode_positions(positions: dict[str, Position]) -> bytes:
    return json.dumps({"positions": {name: [each.end, each.finished] for name, each in positions.items()}}).encode()


def decode_positions(data: bytes) -> dict[str, Position]:
    """Return the positions in a file `folded-<version>.json`; raises `UnreadableRunStateError` if there are none."""
    try:
        found = json.loads(data)["positions"]
        return {str(name): Position(int(end), bool(finished)) for name, (end, finished) in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableRunStateError(f"not the positions of journals: {error}") from None


@dataclass(slots=True)
class RunState:
    """One run: its files as a listing found them, and its state, once `load` has read it."""

    storage: Storage
    name: str
    files: list[FileEntry]
    #: The last fold that is known to be in the ledger.
    version: int = 0
    positions: dict[str, Position] = field(default_factory=dict)
    #: The fold that was planned after it, and may be in the ledger.
    pending: FoldPlan | None = None
    journals: dict[str, StoredJournal] = field(default_factory=dict)
    #: Versions whose plan was cut short by a kill, before anything was done with it.
    _unreadable_versions: set[int] = field(default_factory=set)

    @property
    def changed_at(self) -> int | None:
        """The last change of any file in nanoseconds; None if there is none, or the storage does not keep it."""
        return _latest(self.files)

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self.files)

    def path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def journal_changed_at(self, journal: str) -> int | None:
        """Return the last change of a journal in nanoseconds; None if the storage does not keep it."""
        return _latest(each for each in self.files if each.name.partition("/")[0] == journal)

    def load(self) -> None:
        """Read the state; FileNotFoundError if another process changes it, `UnreadableRunStateError` if damaged."""
        plans = self._versions(_PLAN)
        for version in reversed(self._versions(_FOLDED)):
            name = self.path(_folded_name(version))
            try:
                self.positions = decode_positions(self.storage.read(name))
                self.version = version
                break
            except UnreadableRunStateError as error:
                # A kill may have cut it short. Then its plan still exists, and is folded again.
                if version not in plans:
                    raise UnreadableRunStateError(f"{self.storage.location(name)}: {error}") from None
        for version in plans:
            if version > self.version:
                try:
                    self.pending = FoldPlan.decode(self.storage.read(self.path(_plan_name(version))), version)
                    break
                except UnreadableRunStateError:
                    self._unreadable_versions.add(version)  # its number is not used for another plan

    def _versions(self, pattern: re.Pattern[str]) -> list[int]:
        return sorted(int(found[1]) for each in self.files if (found := pattern.fullmatch(each.name)))

    def measure(self, journal: str) -> Extent:
        """Return the extent of a journal behind the part that was folded."""
        start = self.positions[journal].end if journal in self.positions else 0
        return self.journals[journal].measure(start)

    def publish_plan(self, stretches: Iterable[Stretch], clock: Callable[[], float]) -> FoldPlan | None:
        """Plan the next version; return the plan that was published first, None if a kill has cut it short."""
        version = max(self.version, start_version(self.storage, self.name, clock)) + 1
        while version in self._unreadable_versions:
            version += 1
        plan = FoldPlan(version, tuple(stretches))
        stored = self.storage.publish(self.path(_plan_name(version)), plan.encode())
        try:
            return FoldPlan.decode(stored, version)
        except UnreadableRunStateError:
            return None

    def publish_folded(self, plan: FoldPlan) -> None:
        positions = {name: each for name, each in self.positions.items() if name in self.journals}
        positions |= {each.journal: Position(each.end, each.finished) for each in plan.stretches}
        data = encode_positions(positions)
        name = self.path(_folded_name(plan.version))
        stored = self.storage.publish(name, data)
        try:
            stored_positions = decode_positions(stored)
        except UnreadableRunStateError:  # cut short by a kill, on storage that does not publish files as a whole
            self.storage.delete(name)
            stored_positions = decode_positions(self.storage.publish(name, data))
        self.version, self.positions, self.pending = plan.version, stored_positions, None

    def delete_superseded(self) -> None:
        """Remove the files that the last `folded` replaces. After a kill the next call removes the rest."""
        for each in self.files:
            plan, folded = _PLAN.fullmatch(each.name), _FOLDED.fullmatch(each.name)
            if (plan and int(plan[1]) <= self.version) or (folded and int(folded[1]) < self.version):
                self.storage.delete(self.path(each.name))

    def delete_journal(self, journal: str) -> None:
        """Remove a journal that was folded to its end."""
        position = self.positions.get(journal)
        self.journals.pop(journal).delete(finished=position is not None and position.finished)
        self.files = [each for each in self.files if each.name.partition("/")[0] != journal]

    def delete(self) -> None:
        """Remove a run that holds no journal any more, unless it contains a file that pairbus did not write."""
        # `start` goes first: without the rest of the state, its version is lower than versions already in the ledger.
        names = [START, *(each.name for each in self.files if each.name != START)]
        if all(_is_state_file(name) for name in names):
            for name in names:
                self.storage.delete(self.path(name))
            self.storage.delete_empty_folder(self.name, unused=self.has(DONE))


def list_run(storage: Storage, name: str) -> RunState:
    """Return a run with its files. Its state is not read yet, see `RunState.load`."""
    run = RunState(storage, name, storage.files(name))
    segments: dict[str, list[str]] = {}
    for each in run.files:
        journal, _, segment = each.name.partition("/")
        if journal.endswith(SUFFIX):
            segments.setdefault(journal, []).extend([segment] if segment else [])
    run.journals = {journal: stored_journal(storage, run.path(journal), found) for journal, found in segments.items()}
    return run


def start_version(storage: Storage, run: str, clock: Callable[[], float], previous: str | None = None) -> int:
    """Return the version that a run's folds count from; the first call decides it, and records the run before."""
    # The ledger accepts only rising versions: if the folder was removed, the time of day is higher than any before.
    content = json.dumps({"version": int(clock() * 1000), "previous": previous}).encode()
    stored = storage.publish(f"{run}/{START}", content)
    try:
        return int(json.loads(stored)["version"])
    except (ValueError, KeyError, TypeError):
        storage.delete(f"{run}/{START}")
        return int(json.loads(storage.publish(f"{run}/{START}", content))["version"])


def previous_run(storage: Storage, run: str) -> str | None:
    """Return the run that came before a run, or None if it is not known."""
    try:
        previous = json.loads(storage.read(f"{run}/{START}"))["previous"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return previous if isinstance(previous, str) else None


def _latest(files: Iterable[FileEntry]) -> int | None:
    times = [each.changed_at for each in files]
    return None if None in times else max((time for time in times if time is not None), default=None)


def _plan_name(version: int) -> str:
    return f"fold-{version:013d}.json"


def _folded_name(version: int) -> str:
    return f"folded-{version:013d}.json"


def _is_state_file(name: str) -> bool:
    known = name in (ALIVE, DONE, FOLDS, START) or name.endswith(TEMPORARY)
    return known or bool(_PLAN.fullmatch(name) or _FOLDED.fullmatch(name))
