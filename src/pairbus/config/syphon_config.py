"""What a syphon is told: two namespaces as references, how to drain, and where the ledger is. No secret is in here.

The TOML file is checked as a whole: one `ConfigError` names every mistake, and what would be right. A configuration can
be pickled, written as JSON (`to_mapping`) and logged: it says where secrets are, and each process looks them up itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from pairbus.domain.backlog import told_queues
from pairbus.errors import ConfigError, OptionError
from pairbus.options import Namespace

from . import checks as checking
from .checks import Problems
from .references import NamespaceReference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LedgerPlaces", "NamespaceReference", "Namespaces", "SyphonConfig", "parse_queues"]

_MIB = 1024 * 1024
_LATE = ("deliver", "dead-letter")
#: Duration → the least and the most it may be, in seconds, and how that is said.
_DURATIONS = {
    "retry_interval": (1.0, 120.0, "1 s … 2 min"),
    "idle_poll_interval": (1.0, 3600.0, "1 s … 1 h"),
    "task_budget": (1.0, 3600.0, "1 s … 1 h"),
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
    """The namespaces that a configuration refers to, looked up: these hold secrets."""

    primary: Namespace
    secondary: Namespace
    event_hubs: Namespace | None


class LedgerPlaces(NamedTuple):
    """Where a Spark job keeps what it must not lose."""

    ledger: str
    checkpoint: str
    journal: str


@dataclass(frozen=True, kw_only=True)
class SyphonConfig:
    """How a syphon drains a backlog; checked, in its final form, and without secrets."""

    primary: NamespaceReference
    secondary: NamespaceReference
    #: The namespace of the event hubs that messages were parked for, if there is one.
    event_hubs: NamespaceReference | None = None
    #: Indexes of the backlog queues.
    queues: tuple[int, ...] = tuple(range(10))
    #: What becomes of a message whose life ended in the backlog: `deliver` or `dead-letter`.
    late: str = "deliver"
    #: Seconds between two passes over one backlog queue.
    retry_interval: float = 1.0
    #: Seconds between two questions to the secondary while the backlog is empty.
    idle_poll_interval: float = 120.0
    #: Seconds that a task may drain before it makes room for another queue's.
    task_budget: float = 30.0
    #: How many messages, and how many bytes of them, one queue may have in flight.
    window_messages: int = 32_000
    window_bytes: int = 32 * _MIB
    #: Messages a second for the whole syphon; None: no limit.
    max_rate: float | None = None
    #: Folder or URI of the Delta tables, of the query's checkpoint and of the journals; only Spark needs the first two.
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
        """The configuration in a TOML file."""
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
        """The configuration in a TOML file but for what a command line says, ready for use: one `ConfigError` names all
        that is wrong with either, the keys of `[ledger]` that are missing (and why they are needed), and the references
        that cannot be resolved here."""
        data = _read(path)
        problems: Problems = []
        config = None
        try:
            config = cls.from_mapping(data)
        except ConfigError as error:
            problems += error.problems
        if queues is not None:
            checking.queues(queues, "--queues", problems)
        if max_rate is not None:
            checking.rate(max_rate, "--max-rate", problems)
        given = data.get("ledger")
        for key, why in needs.items():
            of_path = key == "journal" and isinstance(given, dict) and "path" in given
            if not of_path and not (isinstance(given, dict) and key in given):
                problems.append(f"[ledger] {key} is missing{why}")
        for name in _NAMESPACES:  # those that are wrong in themselves are told by now
            reference = NamespaceReference.read(data[name], f"[{name}]", []) if name in data else None
            try:
                if isinstance(reference, NamespaceReference):
                    reference.resolve()
            except OptionError as error:
                problems.append(f"[{name}] {error}")
        if config is None or problems:
            raise ConfigError(problems, str(path))
        return config.with_overrides(queues=queues, max_rate=max_rate)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> SyphonConfig:
        """The configuration in a mapping of the TOML file's form."""
        problems: Problems = []
        tables = checking.table(mapping, _TABLES, "the configuration", problems)
        values: dict[str, Any] = {}
        for name in _NAMESPACES:
            if name in tables:
                values[name] = NamespaceReference.read(tables[name], f"[{name}]", problems)
            elif name != "event_hubs":
                problems.append(f'[{name}] is missing; it needs connection = "env:NAME", or host and credential')
        values |= checking.table(tables.get("syphon", {}), _SYPHON, "[syphon]", problems)
        ledger = checking.table(tables.get("ledger", {}), tuple(_LEDGER), "[ledger]", problems)
        values |= {_LEDGER[key]: value for key, value in ledger.items()}
        values = _checked(values, problems)
        if problems:
            raise ConfigError(problems)
        return cls(**values)

    def to_mapping(self) -> dict[str, dict[str, Any]]:
        """The same as a mapping that `from_mapping` takes and JSON can hold."""
        namespaces = {name: getattr(self, name) for name in _NAMESPACES}
        syphon: dict[str, Any] = {key: getattr(self, key) for key in _SYPHON}
        syphon["queues"] = told_queues(self.queues)
        syphon["max_rate"] = self.max_rate or 0
        ledger = {key: getattr(self, field) for key, field in _LEDGER.items()}
        return {
            **{name: each.to_mapping() for name, each in namespaces.items() if each is not None},
            "syphon": syphon,
            "ledger": {key: value for key, value in ledger.items() if value is not None},
        }

    def with_overrides(self, *, queues: str | int | None = None, max_rate: float | None = None) -> SyphonConfig:
        """The same but for what a command line says; None leaves a value as it is, a rate of 0 lifts the limit."""
        changes: dict[str, Any] = {}
        if queues is not None:
            changes["queues"] = parse_queues(queues, "--queues") if isinstance(queues, str) else queues
        if max_rate is not None:
            changes["max_rate"] = max_rate
        return replace(self, **changes)

    def resolve(self) -> Namespaces:
        """All namespaces, looked up by this process; one `ConfigError` names each that cannot be."""
        problems: Problems = []
        found: list[Namespace | None] = []
        for name in _NAMESPACES:
            reference: NamespaceReference | None = getattr(self, name)
            try:
                found.append(None if reference is None else reference.resolve())
            except OptionError as error:
                problems.append(f"[{name}] {error}")
        if problems:
            raise ConfigError(problems)
        primary, secondary, event_hubs = found
        assert primary is not None
        assert secondary is not None
        return Namespaces(primary, secondary, event_hubs)

    def require_ledger(self) -> LedgerPlaces:
        """The three places that a Spark job needs; a `ConfigError` names those that are missing."""
        missing = [f"[ledger] {key} is missing; a Spark job needs it" for key in _LEDGER if self._place(key) is None]
        if self.ledger is None or self.checkpoint is None or self.journal is None:
            raise ConfigError(missing)
        return LedgerPlaces(self.ledger, self.checkpoint, self.journal)

    def _place(self, key: str) -> Any:
        return getattr(self, _LEDGER[key])


#: What a Spark job needs of `[ledger]`, and what is said of a key that is missing.
OF_A_JOB = dict.fromkeys(_LEDGER, "; a Spark job needs it")


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a TOML file holds."""
    try:
        found: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"it cannot be read: {error.strerror or error}"], str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError(["it is not TOML: TOML is UTF-8"], str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"it is not TOML: {error}"], str(path)) from None
    return found


def parse_queues(text: str, name: str = "queues") -> tuple[int, ...]:
    """Indexes from text such as "0-4,7"; a `ConfigError` says what is wrong with it."""
    problems: Problems = []
    found = checking.queues(text, name, problems)
    if problems:
        raise ConfigError(problems)
    return found


def _checked(values: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """The same values in their final form; what is wrong is told by the key of the file."""
    final = dict(values)
    if "queues" in final:
        final["queues"] = checking.queues(final["queues"], "[syphon] queues", problems)
    if "late" in final:
        final["late"] = checking.choice(final["late"], _LATE, "[syphon] late", problems)
    for key, limits in _DURATIONS.items():
        if key in final:
            final[key] = checking.duration(final[key], *limits, f"[syphon] {key}", problems)
    for key, (least, most) in _NUMBERS.items():
        if key in final:
            final[key] = checking.whole(final[key], least, most, f"[syphon] {key}", problems)
    if "max_rate" in final:
        final["max_rate"] = checking.rate(final["max_rate"], "[syphon] max_rate", problems)
    _check_ledger(final, problems)
    _check_pair(final.get("primary"), final.get("secondary"), problems)
    return final


def _check_ledger(final: dict[str, Any], problems: Problems) -> None:
    given = {key for key, field in _LEDGER.items() if final.get(field) is not None}
    for key, field in _LEDGER.items():
        final[field] = checking.place(final.get(field), f"[ledger] {key}", problems)
        if final[field] is not None and (wrong := checking.strange_host(final[field])) is not None:
            problems.append(f"[ledger] {key} {wrong}")
    if "checkpoint" in given and "path" not in given:
        problems.append("[ledger] has a checkpoint and no path: only a Spark job has a checkpoint, and it needs both")
    if "journal" not in given and final["ledger"] is not None:
        final["journal"] = f"{final['ledger'].rstrip('/')}/_journal"
    _check_apart(final["ledger"], final["checkpoint"], final["journal"], problems)
    if final["journal"] is not None and (scheme := checking.strange_scheme(final["journal"])) is not None:
        problems.append(
            f"[ledger] journal: no journal can be kept on {scheme}:// (by default it is _journal below path); it must "
            f"be an absolute path or a URI of {', '.join(checking.JOURNAL_SCHEMES)}"
        )


def _check_apart(path: str | None, checkpoint: str | None, journal: str | None, problems: Problems) -> None:
    """Checkpoint and journal each have a folder of their own; they may be in the ledger's, but not in a table's."""
    for one, other, shared, held in (
        ("path", "checkpoint", path, checkpoint),
        ("path", "journal", path, journal),
        ("checkpoint", "journal", checkpoint, journal),
    ):
        if shared is not None and shared == held:
            problems.append(f"[ledger] {one} and {other} must be two folders, not both {checking.shown(shared)}")
            return
    tables = [(f"{(path or '').rstrip('/')}/{name}", f"the table {name}") for name in TABLES if path is not None]
    for key, inner, others in (
        ("checkpoint", checkpoint, [*tables, (journal, "the journal")]),
        ("journal", journal, [*tables, (checkpoint, "the checkpoint")]),
    ):
        for outer, said in others:
            if inner is not None and outer is not None and f"{inner}/".startswith(f"{outer}/"):
                problems.append(
                    f"[ledger] {key} must be a folder of its own, not in {said} as {checking.shown(inner)} is"
                )


def _check_pair(primary: Any, secondary: Any, problems: Problems) -> None:
    if not isinstance(primary, NamespaceReference) or not isinstance(secondary, NamespaceReference):
        return
    for key, same in (("connection", str), ("host", str.lower)):
        shared, other = getattr(primary, key), getattr(secondary, key)
        if shared is not None and other is not None and same(shared) == same(other):
            problems.append(f"[primary] and [secondary] must be two namespaces; both have {key} {shared!r}")
