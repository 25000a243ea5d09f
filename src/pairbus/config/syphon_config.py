"""The configuration of a syphon: references to two namespaces, the options of a drain, and the folders of the ledger.

The TOML file is checked as a whole: one `ConfigError` names every mistake, and what would be right. A configuration can
be pickled, written as JSON (`to_mapping`) and logged: secrets are references, which each process resolves for itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from pairbus.domain.backlog import format_indexes
from pairbus.errors import ConfigError, OptionError
from pairbus.options import Namespace

from . import checks
from .checks import LATE, Problems, Range
from .references import NamespaceReference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LedgerPlaces", "NamespaceReference", "Namespaces", "SyphonConfig"]

_MIB = 1024 * 1024
_DURATIONS = {
    "retry_interval": Range(1.0, 120.0, "1 s … 2 min"),
    "idle_poll_interval": Range(1.0, 3600.0, "1 s … 1 h"),
    "task_budget": Range(1.0, 3600.0, "1 s … 1 h"),
}
_NUMBERS = {"window_messages": (1, 100_000), "window_bytes": (_MIB, 1024 * _MIB)}
_NAMESPACES = ("primary", "secondary", "event_hubs")
_SYPHON = ("queues", "late", *_DURATIONS, *_NUMBERS, "max_rate")
#: Key of `[ledger]` → the field that holds it.
_LEDGER = {"path": "ledger", "checkpoint": "checkpoint", "journal": "journal"}
_TABLES = (*_NAMESPACES, "syphon", "ledger")
#: The tables of a ledger, folders below its path.
TABLES = ("outcomes", "batches")


class Namespaces(NamedTuple):
    """The resolved namespaces of a configuration; they hold secrets."""

    primary: Namespace
    secondary: Namespace
    event_hubs: Namespace | None


class LedgerPlaces(NamedTuple):
    """The folders or URIs in which a Spark job keeps its state."""

    ledger: str
    checkpoint: str
    journal: str


@dataclass(frozen=True, kw_only=True)
class SyphonConfig:
    """The options of a syphon, checked when they are made, without secrets.

    A value that is not as described raises `ConfigError`, whose `problems` name each.
    """

    primary: NamespaceReference
    secondary: NamespaceReference
    #: The namespace of the event hubs for which messages were parked, if any.
    event_hubs: NamespaceReference | None = None
    #: Indexes of the backlog queues.
    queues: tuple[int, ...] = tuple(range(10))
    #: The treatment of a message whose time to live ended in the backlog: `deliver` or `dead-letter`.
    late: str = "deliver"
    #: Seconds between two passes over one backlog queue.
    retry_interval: float = 1.0
    #: Seconds between two queries of the backlog's depth while it is empty.
    idle_poll_interval: float = 120.0
    #: Seconds that a task may drain one queue before the task of another queue takes its place.
    task_budget: float = 30.0
    #: The messages, and their bytes, that one queue may have in flight.
    window_messages: int = 32_000
    window_bytes: int = 32 * _MIB
    #: Messages a second for the whole syphon; None: no limit.
    max_rate: float | None = None
    #: The folder or URI of the Delta tables, of the query's checkpoint and of the journals. Only Spark needs the first
    #: two.
    ledger: str | None = None
    checkpoint: str | None = None
    journal: str | None = None

    def __post_init__(self) -> None:
        problems: Problems = []
        for name in _NAMESPACES:
            given: Any = getattr(self, name)
            if not isinstance(given, NamespaceReference) and (given is not None or name != "event_hubs"):
                problems.append(f"{name} must be a NamespaceReference, not a {type(given).__name__}")
        values = _checked({field.name: getattr(self, field.name) for field in fields(self)}, problems)
        if problems:
            raise ConfigError(problems)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SyphonConfig:
        """Return the configuration in a TOML file; `ConfigError` names the file and every mistake."""
        try:
            return cls.from_mapping(_read(path))
        except ConfigError as error:
            raise ConfigError(error.problems, str(path)) from None

    @classmethod
    def for_command(
        cls,
        path: str | os.PathLike[str],
        *,
        queues: str | None = None,
        max_rate: float | None = None,
        needs: Mapping[str, str],
    ) -> SyphonConfig:
        """Return the configuration in a TOML file with the overrides of a command line.

        `needs` has the required keys of `[ledger]`, each with the reason to append where it is missing. `ConfigError`
        names everything that is wrong, references that cannot be resolved here included.
        """
        data = _read(path)
        problems: Problems = []
        config = None
        try:
            config = cls.from_mapping(data)
        except ConfigError as error:
            problems += error.problems
        if queues is not None:
            checks.queues(queues, "--queues", problems)
        if max_rate is not None:
            checks.rate(max_rate, "--max-rate", problems)
        given = data.get("ledger")
        for key, why in needs.items():
            of_path = key == "journal" and isinstance(given, dict) and "path" in given
            if not of_path and not (isinstance(given, dict) and key in given):
                problems.append(f"[ledger] {key} is missing{why}")
        for name in _NAMESPACES:  # malformed references are among the problems already
            _resolve(name, NamespaceReference.read(data[name], f"[{name}]", []) if name in data else None, problems)
        if config is None or problems:
            raise ConfigError(problems, str(path))
        return config.with_overrides(queues=queues, max_rate=max_rate)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> SyphonConfig:
        """Return the configuration in a mapping of the TOML file's form; `ConfigError` names every mistake."""
        problems: Problems = []
        tables = checks.table(mapping, _TABLES, "the configuration", problems)
        values: dict[str, Any] = {}
        for name in _NAMESPACES:
            if name in tables:
                values[name] = NamespaceReference.read(tables[name], f"[{name}]", problems)
            elif name != "event_hubs":
                problems.append(f'[{name}] is missing; it needs connection = "env:NAME", or host and credential')
        values |= checks.table(tables.get("syphon", {}), _SYPHON, "[syphon]", problems)
        ledger = checks.table(tables.get("ledger", {}), tuple(_LEDGER), "[ledger]", problems)
        values |= {_LEDGER[key]: value for key, value in ledger.items()}
        values = _checked(values, problems)
        if problems:
            raise ConfigError(problems)
        return cls(**values)

    def to_mapping(self) -> dict[str, dict[str, Any]]:
        """Return the configuration as a mapping that `from_mapping` takes and JSON can hold."""
        namespaces = {name: getattr(self, name) for name in _NAMESPACES}
        syphon: dict[str, Any] = {key: getattr(self, key) for key in _SYPHON}
        syphon["queues"] = format_indexes(self.queues)
        syphon["max_rate"] = self.max_rate or 0
        ledger = {key: getattr(self, field) for key, field in _LEDGER.items()}
        return {
            **{name: each.to_mapping() for name, each in namespaces.items() if each is not None},
            "syphon": syphon,
            "ledger": {key: value for key, value in ledger.items() if value is not None},
        }

    def with_overrides(self, *, queues: str | int | None = None, max_rate: float | None = None) -> SyphonConfig:
        """Return a copy with the values of a command line; None keeps a value, a rate of 0 removes the limit."""
        given: dict[str, Any] = {"queues": queues, "max_rate": max_rate}
        return replace(self, **{key: value for key, value in given.items() if value is not None})

    def resolve(self) -> Namespaces:
        """Return all namespaces, resolved in this process; one `ConfigError` names each that cannot be."""
        problems: Problems = []
        primary, secondary, event_hubs = (_resolve(name, getattr(self, name), problems) for name in _NAMESPACES)
        if problems:
            raise ConfigError(problems)
        assert primary is not None
        assert secondary is not None
        return Namespaces(primary, secondary, event_hubs)

    def require_ledger(self) -> LedgerPlaces:
        """Return the three folders that a Spark job needs; `ConfigError` names those that are missing."""
        if self.ledger is None or self.checkpoint is None or self.journal is None:
            missing = [key for key, field in _LEDGER.items() if getattr(self, field) is None]
            raise ConfigError([f"[ledger] {key} is missing{JOB_NEEDS[key]}" for key in missing])
        return LedgerPlaces(self.ledger, self.checkpoint, self.journal)


#: The keys of `[ledger]` that a Spark job needs, each with the text for an error where it is missing.
JOB_NEEDS = dict.fromkeys(_LEDGER, "; a Spark job needs it")


def _resolve(name: str, reference: NamespaceReference | None, problems: Problems) -> Namespace | None:
    try:
        return None if reference is None else reference.resolve()
    except OptionError as error:
        problems.append(f"[{name}] {error}")
        return None


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"it cannot be read: {error.strerror or error}"], str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError(["it is not TOML: TOML is UTF-8"], str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"it is not TOML: {error}"], str(path)) from None
    return found


def _checked(values: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the values in their final form; problems name the file's keys."""
    final = dict(values)
    if "queues" in final:
        final["queues"] = checks.queues(final["queues"], "[syphon] queues", problems)
    if "late" in final:
        final["late"] = checks.choice(final["late"], LATE, "[syphon] late", problems)
    for key, allowed in _DURATIONS.items():
        if key in final:
            final[key] = checks.duration(final[key], allowed, f"[syphon] {key}", problems, accepts_text=True)
    for key, (least, most) in _NUMBERS.items():
        if key in final:
            final[key] = checks.whole(final[key], least, most, f"[syphon] {key}", problems)
    if "max_rate" in final:
        final["max_rate"] = checks.rate(final["max_rate"], "[syphon] max_rate", problems)
    _check_ledger(final, problems)
    _check_pair(final.get("primary"), final.get("secondary"), problems)
    return final


def _check_ledger(final: dict[str, Any], problems: Problems) -> None:
    given = {key for key, field in _LEDGER.items() if final.get(field) is not None}
    for key, field in _LEDGER.items():
        final[field] = checks.place(final.get(field), f"[ledger] {key}", problems)
        if final[field] is not None and (wrong := checks.wrong_authority(final[field])) is not None:
            problems.append(f"[ledger] {key} {wrong}")
    if "checkpoint" in given and "path" not in given:
        problems.append("[ledger] has a checkpoint and no path: only a Spark job has a checkpoint, and it needs both")
    if "journal" not in given and final["ledger"] is not None:
        final["journal"] = f"{final['ledger'].rstrip('/')}/_journal"
    _check_apart(final["ledger"], final["checkpoint"], final["journal"], problems)
    if final["journal"] is not None and (scheme := checks.unknown_scheme(final["journal"])) is not None:
        problems.append(
            f"[ledger] journal: no journal can be kept on {scheme}:// (by default it is _journal below path); it must "
            f"be an absolute path or a URI of {', '.join(checks.JOURNAL_SCHEMES)}"
        )


def _check_apart(path: str | None, checkpoint: str | None, journal: str | None, problems: Problems) -> None:
    """Check that checkpoint and journal have folders of their own; those may be in the ledger's, not in a table's."""
    folders = {"path": path, "checkpoint": checkpoint, "journal": journal}
    for (one, first), (other, second) in combinations(folders.items(), 2):
        if first is not None and first == second:
            problems.append(f"[ledger] {one} and {other} must be two folders, not both {checks.shown(first)}")
            return
    tables = [(f"{(path or '').rstrip('/')}/{name}", f"the table {name}") for name in TABLES if path is not None]
    for key, inner, others in (
        ("checkpoint", checkpoint, [*tables, (journal, "the journal")]),
        ("journal", journal, [*tables, (checkpoint, "the checkpoint")]),
    ):
        for outer, text in others:
            if inner is not None and outer is not None and f"{inner}/".startswith(f"{outer}/"):
                problems.append(
                    f"[ledger] {key} must be a folder of its own, not in {text} as {checks.shown(inner)} is"
                )


def _check_pair(primary: Any, secondary: Any, problems: Problems) -> None:
    if not isinstance(primary, NamespaceReference) or not isinstance(secondary, NamespaceReference):
        return
    for key, same in (("connection", str), ("host", str.lower)):
        shared, other = getattr(primary, key), getattr(secondary, key)
        if shared is not None and other is not None and same(shared) == same(other):
            problems.append(f"[primary] and [secondary] must be two namespaces; both have {key} {shared!r}")
