"""Rules in `$management` requests: a map when a rule is added, a described list when rules are listed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pairbus.domain.amqp.codec import AmqpDecodeError, Described, Long, Timestamp, ULong, decode
from pairbus.domain.sqlfilter.values import kind_of
from pairbus.localbus.entities.payload import encode_plain, plain
from pairbus.localbus.settings import (
    CORRELATION_TEXTS,
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    RuleSettings,
    SqlExpression,
    TrueFilter,
)

# Descriptors of the described lists.
_RULE, _NO_ACTION, _SQL_ACTION = ULong(0x13700000004), ULong(0x13700000005), ULong(0x13700000006)
_SQL, _TRUE, _FALSE = ULong(0x1370000006), ULong(0x1370000007), ULong(0x1370000008)
_CORRELATION = ULong(0x1370000009)


def read_rule(name: str, description: dict[Any, Any]) -> RuleSettings:
    """Return the rule of an `add-rule` request; raise AmqpDecodeError if it cannot be read."""
    found = {str(key): value for key, value in description.items()}
    chosen: RuleFilter = TrueFilter()
    if (sql := _map(found, "sql-filter")) is not None:
        text = str(sql.get("expression"))
        chosen = TrueFilter() if text.replace(" ", "") == "1=1" else SqlExpression(text)
    elif (parts := _map(found, "correlation-filter")) is not None:
        texts = {
            name: str(parts[key]) for name in CORRELATION_TEXTS if parts.get(key := name.replace("_", "-")) is not None
        }
        given = _map(parts, "properties") or {}
        properties = {k: _simple(v) for k, v in given.items()}
        spelling = {k: ("long", str(int(v))) for k, v in given.items() if isinstance(v, Long)}
        chosen = CorrelationFilter(**texts, properties=properties, spelling=spelling)
    elif "false-filter" in found:
        chosen = FalseFilter()
    expression = (_map(found, "sql-rule-action") or {}).get("expression")
    return RuleSettings(name, chosen, None if expression is None else SqlExpression(str(expression)))


def _map(description: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return a map within a description; refuse another value: a rule without a filter would match every message."""
    found = description.get(name)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise AmqpDecodeError(f"the '{name}' of a rule must be a map")
    return {str(key): value for key, value in found.items()}


def _simple(value: Any) -> Any:
    found = plain(value)
    if found is not None and kind_of(found) is None:
        raise AmqpDecodeError("a correlation filter compares with simple values only")
    return found


def write_rule(rule: RuleSettings, created_at: float) -> Described:
    chosen, filter = rule.filter, Described(_TRUE, [])
    if isinstance(chosen, FalseFilter):
        filter = Described(_FALSE, [])
    elif isinstance(chosen, SqlExpression):
        filter = Described(_SQL, [chosen.text, 20])
    elif isinstance(chosen, CorrelationFilter):
        properties = {k: _amqp(v, chosen.spelling.get(k)) for k, v in chosen.properties.items()}
        fields = [*(getattr(chosen, name) for name in CORRELATION_TEXTS), properties]
        filter = Described(_CORRELATION, fields)
    action = Described(_NO_ACTION, [])
    if rule.action is not None:
        action = Described(_SQL_ACTION, [rule.action.text, 20])
    created = Timestamp(int(created_at * 1000))
    return Described(_RULE, [filter, action, rule.name, created])


def _amqp(value: Any, spelling: tuple[str, str] | None) -> Any:
    """Return a value of a rule with its AMQP type; one without a type becomes text."""
    if spelling is not None and spelling[0] == "long":
        value = Long(value)
    elif isinstance(value, Decimal):
        value = float(value)  # the codec cannot write decimals
    return decode(encode_plain(value))[0]
