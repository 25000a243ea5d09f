"""What is known of the journals of one run: how far each was folded in, and which fold may be under way.

The memory of a run is files beside its journals, each published whole and never changed:

- `start.json`: the version that its folds count from;
- `fold-<version>.json`: a fold that was planned, and may or may not be in the ledger;
- `folded-<version>.json`: that fold is in the ledger; how far every journal is folded in since.

So at most one fold is under way: the next version is planned when the one before is `folded`, and whoever plans it a
second time finds the first plan, or the ledger has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .journal import SUFFIX, Extent, measure_journal
from .storage import TEMPORARY, Entry, Place

ALIVE = "alive"
DONE = "done"
#: A run that folds, its own journals and those of others that are over.
FOLDS = "folds"
START = "start.json"
_FOLD = re.compile(r"fold-(\d+)\.json")
_FOLDED = re.compile(r"folded-(\d+)\.json")


class Unreadable(ValueError):
    """A file of a run's memory that does not hold what it should."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a journal was folded in, and whether that was all there will be of it."""

    end: int
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """A planned fold: which stretch of which journal, and whether the journal ends there."""

    version: int
    parts: tuple[tuple[str, int, int, bool], ...]

    def encoded(self) -> bytes:
        return json.dumps({"version": self.version, "parts": self.parts}).encode()


@dataclass(slots=True)
class Run:
    """One run as a listing has it, and what its memory says."""

    place: Place
    name: str
    files: list[Entry]
    #: The last fold that is known to be in the ledger.
    version: int = 0
    positions: dict[str, Position] = field(default_factory=dict)
    #: Planned after that, and perhaps in the ledger.
    pending: Manifest | None = None
    #: Journals by name, and the files in each that is a folder.
    journals: dict[str, list[str]] = field(default_factory=dict)
    #: Versions whose plan was cut short before anybody could act on it.
    _spoilt: set[int] = field(default_factory=set)

    @property
    def changed(self) -> int | None:
        """When anything in it changed last; None if that cannot be told, or if there is nothing."""
        times = [each.changed for each in self.files]
        return None if None in times else max((time for time in times if time is not None), default=None)

    def has(self, name: str) -> bool:
        return any(each.name == name for each in self.files)

    def path(self, name: str) -> str:
        return f"{self.name}/{name}"

    def changed_journal(self, journal: str) -> int | None:
        """When a journal changed last."""
        own = [each.changed for each in self.files if each.name.partition("/")[0] == journal]
        return None if None in own else max((time for time in own if time is not None), default=None)

    def recall(self) -> None:
        """Read its memory. FileNotFoundError if another is just changing it, `Unreadable` if it is damaged."""
        plans = self._versions(_FOLD)
        for version in reversed(self._versions(_FOLDED)):
            name = self.path(f"folded-{version:013d}.json")
            try:
                self.positions = _positions(self.place.read(name))
                self.version = version
                break
            except Unreadable as error:
                # Cut short by a kill: then its plan is still there, and comes again.
                if version not in plans:
                    raise Unreadable(f"{self.place.where(name)}: {error}") from None
        for version in plans:
            if version > self.version:
                try:
                    self.pending = _manifest(self.place.read(self.path(f"fold-{version:013d}.json")), version)
                    break
                except Unreadable:
                    # Cut short by a kill, so nobody has acted on it; nor is its number used for anything else.
                    self._spoilt.add(version)

    def _versions(self, pattern: re.Pattern[str]) -> list[int]:
        return sorted(int(found[1]) for each in self.files if (found := pattern.fullmatch(each.name)))

    def measure(self, journal: str) -> Extent:
        """How far a journal can be read from where it was last folded in."""
        start = self.positions[journal].end if journal in self.positions else 0
        return measure_journal(self.place, self.path(journal), start, self.journals[journal])

    def publish_plan(self, parts: list[tuple[str, int, int, bool]], now: Callable[[], float]) -> Manifest | None:
        """Plan the next version; if another has planned it already, that is the plan. None if it cannot be read."""
        version = max(self.version, start_version(self.place, self.name, now)) + 1
        while version in self._spoilt:
            version += 1
        wanted = Manifest(version, tuple(parts))
        held = self.place.publish(self.path(f"fold-{version:013d}.json"), wanted.encoded())
        try:
            return _manifest(held, version)
        except Unreadable:
            return None

    def publish_folded(self, manifest: Manifest) -> None:
        """Remember that a fold is in the ledger."""
        positions = {name: each for name, each in self.positions.items() if name in self.journals}
        positions |= {name: Position(end, finished) for name, _, end, finished in manifest.parts}
        data = json.dumps({"positions": {name: [each.end, each.finished] for name, each in positions.items()}}).encode()
        name = self.path(f"folded-{manifest.version:013d}.json")
        held = self.place.publish(name, data)
        try:
            held_positions = _positions(held)
        except Unreadable:  # cut short by a kill, where files are not published whole
            self.place.delete(name)
            held_positions = _positions(self.place.publish(name, data))
        self.version, self.positions, self.pending = manifest.version, held_positions, None

    def forget_superseded(self) -> None:
        """Remove what the last `folded` has made superfluous; a kill on the way leaves the rest for the next time."""
        for each in self.files:
            plan, folded = _FOLD.fullmatch(each.name), _FOLDED.fullmatch(each.name)
            if (plan and int(plan[1]) <= self.version) or (folded and int(folded[1]) < self.version):
                self.place.delete(self.path(each.name))

    def delete_journal(self, journal: str) -> None:
        """Remove a journal that is wholly folded in."""
        if not self.journals.pop(journal):
            self.place.delete(self.path(journal))
        elif journal in self.positions and self.positions[journal].finished:
            self.place.delete_folder(self.path(journal))
        else:
            # One by one: what may yet be written to it must stay.
            for each in self.files:
                if each.name.startswith(f"{journal}/"):
                    self.place.delete(self.path(each.name))
            self.place.delete_empty_folder(self.path(journal))
        self.files = [each for each in self.files if each.name.partition("/")[0] != journal]

    def clear(self) -> None:
        """Remove a run that holds no journal any more, unless there is something in it that we did not make."""
        # `start` goes first: on what it says alone, versions would count from where they once began.
        memory = [START, *(each.name for each in self.files if each.name != START)]
        if all(_is_ours(name) for name in memory):
            for name in memory:
                self.place.delete(self.path(name))
            self.place.delete_empty_folder(self.name, is_over=self.has(DONE))


def list_run(place: Place, name: str) -> Run:
    """A run as it lies there; `recall` tells the rest."""
    run = Run(place, name, place.files(name))
    for each in run.files:
        journal, _, below = each.name.partition("/")
        if journal.endswith(SUFFIX):
            run.journals.setdefault(journal, []).extend([below] if below else [])
    return run


def start_version(place: Place, run: str, now: Callable[[], float], previous: str | None = None) -> int:
    """The version that a run's folds count from, decided once.

    The ledger takes a version only if it is higher than any before. Should a run lose its memory, because somebody has
    removed its folder, it goes on from the time of day, which is higher than what it counted to.
    """
    wanted = json.dumps({"version": int(now() * 1000), "previous": previous}).encode()
    held = place.publish(f"{run}/{START}", wanted)
    try:
        return int(json.loads(held)["version"])
    except (ValueError, KeyError, TypeError):
        place.delete(f"{run}/{START}")
        return int(json.loads(place.publish(f"{run}/{START}", wanted))["version"])


def previous_run(place: Place, run: str) -> str | None:
    """The run that a run came after, if it is known."""
    try:
        previous = json.loads(place.read(f"{run}/{START}"))["previous"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return previous if isinstance(previous, str) else None


def _is_ours(name: str) -> bool:
    known = name in (ALIVE, DONE, FOLDS, START) or name.endswith(TEMPORARY)
    return known or bool(_FOLD.fullmatch(name) or _FOLDED.fullmatch(name))


def _manifest(data: bytes, version: int) -> Manifest:
    try:
        found = json.loads(data)
        parts = tuple((str(name), int(start), int(end), bool(last)) for name, start, end, last in found["parts"])
        if found["version"] != version:
            raise ValueError(f"it is of version {found['version']}")
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"not a plan: {error}") from None
    return Manifest(version, parts)


def _positions(data: bytes) -> dict[str, Position]:
    try:
        found = json.loads(data)["positions"]
        return {str(name): Position(int(end), bool(finished)) for name, (end, finished) in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"not a memory of folds: {error}") from None
