"""Settings as JSON text for the store; values of types that JSON lacks are tagged with their type."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from pairbus.localbus.settings import (
    CorrelationFilter,
    FalseFilter,
    QueueSettings,
    RuleSettings,
    SqlExpression,
    TrueFilter,
)

_SETTINGS = TypeVar("_SETTINGS")
_FILTERS: dict[str, type] = {
    "true": TrueFilter,
    "false": FalseFilter,
    "sql": SqlExpression,
    "correlation": CorrelationFilter,
}


def dump_settings(settings: Any) -> str:
    return json.dumps(_plain(settings))


def load_settings(kind: type[_SETTINGS], text: str) -> _SETTINGS:
    """Return the settings object of a JSON text; fields that this version does not know are skipped."""
    return _build(kind, json.loads(text))


def dump_subscription(topic: str, settings: QueueSettings, rules: Sequence[tuple[RuleSettings, float]]) -> str:
    """Return a subscription as JSON text: topic, settings, and rules with their creation times."""
    kept = [{"rule": _plain_rule(rule), "created": created} for rule, created in rules]
    return json.dumps({"topic": topic, "settings": _plain(settings), "rules": kept})


def load_subscription(text: str) -> tuple[str, QueueSettings, list[tuple[RuleSettings, float]]]:
    """Return the topic, settings and rules that `dump_subscription` has written."""
    data = json.loads(text)
    rules = [(_build_rule(each["rule"]), float(each["created"])) for each in data["rules"]]
    return data["topic"], _build(QueueSettings, data["settings"]), rules


def _plain(settings: Any) -> dict[str, Any]:
    return {f.name: _typed(getattr(settings, f.name)) for f in fields(settings)}


def _build(kind: type[_SETTINGS], data: dict[str, Any]) -> _SETTINGS:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    values = {name: _untyped(value) for name, value in data.items() if name in known}
    if "authorization_rules" in values:
        values["authorization_rules"] = tuple(values["authorization_rules"])
    return kind(**values)


def _plain_rule(rule: RuleSettings) -> dict[str, Any]:
    kind = next(name for name, cls in _FILTERS.items() if isinstance(rule.filter, cls))
    action = None if rule.action is None else _plain(rule.action)
    return {"name": rule.name, "kind": kind, "filter": _plain(rule.filter), "action": action}


def _build_rule(data: dict[str, Any]) -> RuleSettings:
    chosen: Any = _build(_FILTERS[data["kind"]], data["filter"])
    action = None if data["action"] is None else _build(SqlExpression, data["action"])
    return RuleSettings(data["name"], chosen, action)


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {"map": {key: _typed(each) for key, each in value.items()}}
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, timedelta):
        return {"microseconds": value // timedelta(microseconds=1)}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (UUID, Decimal)):
        return {type(value).__name__.lower(): str(value)}
    if isinstance(value, (list, tuple)):
        return [_typed(each) for each in value]
    return value


def _untyped(value: Any) -> Any:
    if isinstance(value, list):
        return [_untyped(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind, inner = next(iter(value.items()))
    if kind == "map":
        return {key: _untyped(each) for key, each in inner.items()}
    return _READERS[kind](inner)


_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "microseconds": lambda number: timedelta(microseconds=number),
    "bytes": bytes.fromhex,
    "uuid": UUID,
    "decimal": Decimal,
}
