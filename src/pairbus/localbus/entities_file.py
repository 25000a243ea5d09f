"""Entities from a TOML file: queues, topics with subscriptions and rules, event hubs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import isodate

from .broker.broker import Broker
from .bus_errors import BusError
from .rest.descriptions import HUB, QUEUE, SUBSCRIPTION, TOPIC, ElementTable, SettingElement
from .settings import (
    DEFAULT_RULE,
    FOREVER,
    CorrelationFilter,
    FalseFilter,
    HubSettings,
    QueueSettings,
    RuleFilter,
    RuleSettings,
    SqlExpression,
    TopicSettings,
    TrueFilter,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class EntitiesFileError(ValueError):
    """The file cannot be used; the text says where the mistake is, and what would be right."""


#: More than any real file has; the limit stops the reading of a device.
_MAX_BYTES = 16 * 1024 * 1024
_NAMES = {str: "text", int: "a whole number", bool: "true or false"}
_TOP = ("queues", "topics", "event_hubs")
_RULE_KEYS = ("name", "sql", "correlation", "true", "false", "action")


def load_entities(path: Path, broker: Broker) -> int:
    """Create the file's entities that the broker lacks; if the file has a mistake of form, create none and raise."""
    try:
        with path.open("rb") as file:
            given = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise EntitiesFileError(f"{path}: {error.strerror or error}") from None
    if len(given) > _MAX_BYTES:
        raise EntitiesFileError(f"{path}: the file has more than {_MAX_BYTES:,} bytes; name a smaller TOML file")
    try:
        data = tomllib.loads(given.decode())
    except (ValueError, RecursionError) as error:  # the parser raises others than its own error too
        raise EntitiesFileError(f"{path}: not valid TOML: {error}") from None
    try:
        planned = _read(data)
        _create(planned, broker)
    except (BusError, EntitiesFileError) as error:
        raise EntitiesFileError(f"{path}: {error}") from None
    return len(planned)


@dataclass(frozen=True)
class _PlannedEntity:
    """An entity of the file: its path, the paths that must exist before it, and the function that creates it."""

    path: str
    requires: tuple[str, ...]
    make: Callable[[Broker], object]


def _read(data: dict[str, Any]) -> list[_PlannedEntity]:
    """Return the entities of the whole file, before any of them is created."""
    _check_keys(data, _TOP, "the file")
    planned = [_queue(table) for table in _tables(data, "queues", "the file")]
    for table in _tables(data, "topics", "the file"):
        planned += _topic(table)
    planned += [_hub(table) for table in _tables(data, "event_hubs", "the file")]
    seen: set[str] = set()
    for each in planned:
        if each.path.lower() in seen:
            raise EntitiesFileError(f"'{each.path}' is defined twice")
        seen.add(each.path.lower())
    return planned


def _create(planned: list[_PlannedEntity], broker: Broker) -> None:
    """Create the entities, each one after those that it requires."""
    waiting = list(planned)
    while waiting:
        paths = {each.path.lower() for each in waiting}
        possible = [each for each in waiting if not paths & {path.lower() for path in each.requires}]
        # In a cycle the first one is tried: the broker's error says what is wrong.
        for each in possible or waiting[:1]:
            each.make(broker)
            waiting.remove(each)


def _queue(table: dict[str, Any]) -> _PlannedEntity:
    settings: QueueSettings = _settings(QueueSettings, QUEUE, table, "queues")

    def make(broker: Broker) -> object:
        return broker.queue(settings.name) or broker.create_queue(settings)

    return _PlannedEntity(settings.name, _targets(settings), make)


def _hub(table: dict[str, Any]) -> _PlannedEntity:
    settings: HubSettings = _settings(HubSettings, HUB, table, "event_hubs")

    def make(broker: Broker) -> object:
        return broker.hub(settings.name) or broker.create_hub(settings)

    return _PlannedEntity(settings.name, (), make)


def _topic(table: dict[str, Any]) -> list[_PlannedEntity]:
    settings: TopicSettings = _settings(
        TopicSettings, TOPIC, {k: v for k, v in table.items() if k != "subscriptions"}, "topics", ("subscriptions",)
    )

    def make(broker: Broker) -> object:
        return broker.topic(settings.name) or broker.create_topic(settings)

    where = f"topic '{settings.name}'"
    below = [_subscription(settings.name, each) for each in _tables(table, "subscriptions", where)]
    return [_PlannedEntity(settings.name, (), make), *below]


def _subscription(topic: str, table: dict[str, Any]) -> _PlannedEntity:
    where = f"subscriptions of topic '{topic}'"
    settings: QueueSettings = _settings(
        QueueSettings, SUBSCRIPTION, {k: v for k, v in table.items() if k != "rules"}, where, ("rules",)
    )
    here = f"'{settings.name}' of {where}"
    rules = [_rule(rule, here) for rule in _tables(table, "rules", here)]
    if len({rule.name.lower() for rule in rules}) != len(rules):
        raise EntitiesFileError(f"two rules of {here} have the same name")

    def make(broker: Broker) -> None:
        if broker.subscription(topic, settings.name) is None:
            broker.create_subscription(topic, settings, rules[0] if rules else None)
            for rule in rules[1:]:
                broker.create_rule(topic, settings.name, rule)

    return _PlannedEntity(f"{topic}/Subscriptions/{settings.name}", (topic, *_targets(settings)), make)


def _targets(settings: QueueSettings) -> tuple[str, ...]:
    named = (settings.forward_to, settings.forward_dead_lettered_messages_to)
    return tuple(target for target in named if target is not None)


def _rule(table: dict[str, Any], where: str) -> RuleSettings:
    name = _text(table.get("name", DEFAULT_RULE), "name", f"a rule of {where}")
    where = f"rule '{name}' of {where}"
    _check_keys(table, _RULE_KEYS, where)
    kinds = [key for key in ("sql", "correlation", "true", "false") if key in table]
    if len(kinds) > 1:
        raise EntitiesFileError(f"{where} has {' and '.join(kinds)}; give one filter")
    for key in ("true", "false"):
        if table.get(key, True) is not True:
            raise EntitiesFileError(f"{key} of {where} can only be true, not {table[key]!r}")
    chosen: RuleFilter = TrueFilter()
    if "sql" in table:
        chosen = SqlExpression(_text(table["sql"], "sql", where))
    elif "correlation" in table:
        chosen = _correlation(table["correlation"], f"correlation of {where}")
    elif "false" in table:
        chosen = FalseFilter()
    action = table.get("action")
    return RuleSettings(name, chosen, None if action is None else SqlExpression(_text(action, "action", where)))


def _correlation(given: Any, where: str) -> CorrelationFilter:
    if not isinstance(given, dict):
        raise EntitiesFileError(f"{where} must be a table")
    _check_keys(given, [f.name for f in fields(CorrelationFilter) if f.compare], where)
    for key, value in given.items():
        if key != "properties":
            _text(value, key, where)
        elif not isinstance(value, dict) or not all(isinstance(v, (str, int, float, bool)) for v in value.values()):
            raise EntitiesFileError(f"properties of {where} must be a table of texts, numbers and booleans")
    return CorrelationFilter(**given)


def _settings(
    kind: type[Any], described: ElementTable, table: dict[str, Any], where: str, more: tuple[str, ...] = ()
) -> Any:
    """Read an entity's settings; only those that the service's description of its kind has are allowed."""
    if not isinstance(table.get("name"), str):
        raise EntitiesFileError(f"an entry of {where} has no name")
    place = f"'{table['name']}' of {where}"
    settable = {each.field for each in described if isinstance(each, SettingElement)} - {"authorization_rules"}
    known = {f.name: f for f in fields(kind) if f.name in settable or f.name == "name"}
    _check_keys(table, (*known, *more), place)
    values: dict[str, Any] = {}
    for key, value in table.items():
        default = known[key].default
        if isinstance(default, timedelta):
            values[key] = _duration(value, key, place)
        else:
            expected = str if default is None or key == "name" else type(default)
            if type(value) is not expected:
                raise EntitiesFileError(f"{key} of {place} must be {_NAMES[expected]}, not {value!r}")
            values[key] = value
    try:
        return kind(**values)
    except BusError as error:
        raise EntitiesFileError(f"{place}: {error}") from None


def _duration(value: Any, key: str, place: str) -> timedelta:
    """Read a duration: seconds as a number, or ISO 8601 text such as "PT30S"."""
    found: Any = None
    with contextlib.suppress(isodate.ISO8601Error, ValueError, OverflowError):
        if isinstance(value, str):
            found = isodate.parse_duration(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found = timedelta(seconds=value)
    if not isinstance(found, timedelta):
        raise EntitiesFileError(f"{key} of {place} must be seconds or ISO 8601 such as 'PT30S', not {value!r}")
    return min(found, FOREVER)


def _tables(data: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise EntitiesFileError(f"{key} of {where} must be a list of tables ([[{key}]])")
    return found


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise EntitiesFileError(f"{key} of {where} must be text, not {value!r}")
    return value


def _check_keys(table: Any, known: Any, where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise EntitiesFileError(f"unknown key '{unknown[0]}' in {where}; known are: {', '.join(known)}")
