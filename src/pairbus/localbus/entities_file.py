"""Entities from a TOML file: queues, topics with subscriptions and rules, event hubs. Every mistake is named."""

from __future__ import annotations

import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import isodate

from .broker import Broker
from .conditions import BusError
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
    """The file cannot be used; the text says where and why."""


_TOP = ("queues", "topics", "event_hubs")
_RULE_KEYS = ("name", "sql", "correlation", "true", "false", "action")


def load_entities(path: Path, broker: Broker) -> int:
    """Create what the file names and the broker lacks; how many entities the file has."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EntitiesFileError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EntitiesFileError(f"{path}: no TOML: {error}") from None
    try:
        return _create(data, broker)
    except (BusError, EntitiesFileError) as error:
        raise EntitiesFileError(f"{path}: {error}") from None


def _create(data: dict[str, Any], broker: Broker) -> int:
    _only(data, _TOP, "the file")
    count = 0
    # Targets of forwarding must exist first: queues that forward are made last.
    queues = [_settings(QueueSettings, each, "queues") for each in _tables(data, "queues")]
    for table in _tables(data, "topics"):
        count += _topic(table, broker)
    for queue in sorted(queues, key=lambda q: bool(q.forward_to or q.forward_dead_lettered_messages_to)):
        count += 1
        if broker.queue(queue.name) is None:
            broker.create_queue(queue)
    for table in _tables(data, "event_hubs"):
        count += 1
        hub = _settings(HubSettings, table, "event_hubs")
        if broker.hub(hub.name) is None:
            broker.create_hub(hub)
    return count


def _topic(table: dict[str, Any], broker: Broker) -> int:
    subscriptions = _tables(table, "subscriptions")
    topic = _settings(TopicSettings, {k: v for k, v in table.items() if k != "subscriptions"}, "topics")
    if broker.topic(topic.name) is None:
        broker.create_topic(topic)
    for each in subscriptions:
        where = f"subscriptions of topic '{topic.name}'"
        rules = [_rule(rule, where) for rule in _tables(each, "rules")]
        settings = _settings(QueueSettings, {k: v for k, v in each.items() if k != "rules"}, where)
        if broker.subscription(topic.name, settings.name) is None:
            broker.create_subscription(topic.name, settings, rules[0] if rules else None)
            for rule in rules[1:]:
                broker.create_rule(topic.name, settings.name, rule)
    return 1 + len(subscriptions)


def _rule(table: dict[str, Any], where: str) -> RuleSettings:
    name = table.get("name", DEFAULT_RULE)
    where = f"rule '{name}' in {where}"
    _only(table, _RULE_KEYS, where)
    kinds = [key for key in ("sql", "correlation", "true", "false") if key in table]
    if len(kinds) > 1:
        raise EntitiesFileError(f"{where} has {' and '.join(kinds)}; one filter is right")
    chosen: RuleFilter = TrueFilter()
    if "sql" in table:
        chosen = SqlExpression(_text(table["sql"], "sql", where))
    elif "correlation" in table:
        given = table["correlation"]
        if not isinstance(given, dict):
            raise EntitiesFileError(f"correlation of {where} must be a table")
        _only(given, [f.name for f in fields(CorrelationFilter)], f"correlation of {where}")
        chosen = CorrelationFilter(**given)
    elif table.get("false"):
        chosen = FalseFilter()
    action = table.get("action")
    return RuleSettings(name, chosen, None if action is None else SqlExpression(_text(action, "action", where)))


def _settings(kind: type[Any], table: dict[str, Any], where: str) -> Any:
    if not isinstance(table.get("name"), str):
        raise EntitiesFileError(f"an entry of {where} has no name")
    place = f"'{table['name']}' of {where}"
    known = {f.name: f for f in fields(kind) if f.name != "authorization_rules"}
    _only(table, known, place)
    values: dict[str, Any] = {}
    for key, value in table.items():
        default = known[key].default
        if isinstance(default, timedelta):
            values[key] = _duration(value, key, place)
        else:
            expected = str if default is None or key == "name" else type(default)
            if type(value) is not expected:
                raise EntitiesFileError(f"{key} of {place} must be {expected.__name__}, not {value!r}")
            values[key] = value
    return kind(**values)


def _duration(value: Any, key: str, place: str) -> timedelta:
    """Seconds as a number, or ISO 8601 text such as "PT30S"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return min(timedelta(seconds=value), FOREVER)
    try:
        found = isodate.parse_duration(value) if isinstance(value, str) else None
    except (isodate.ISO8601Error, OverflowError):
        found = None
    if not isinstance(found, timedelta):
        raise EntitiesFileError(f"{key} of {place} must be seconds or ISO 8601 such as 'PT30S', not {value!r}")
    return min(found, FOREVER)


def _tables(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise EntitiesFileError(f"{key} must be a list of tables ([[{key}]])")
    return found


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise EntitiesFileError(f"{key} of {where} must be text, not {value!r}")
    return value


def _only(table: Any, known: Any, where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise EntitiesFileError(f"unknown key '{unknown[0]}' in {where}; known are: {', '.join(known)}")
