"""A subscription's rules in the service's XML: filters, actions and their typed values."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from pairbus.localbus.settings import (
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    RuleSettings,
    Spelling,
    SqlExpression,
    TrueFilter,
)

from .ports import Rule
from .xml_values import bad, child, clean, element, read_typed, text_of, type_of, write_time, write_typed

_CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
#: Types of which a value alone does not say all: how wide a number is, and .NET's seventh decimal of a second.
_LOSSY = frozenset(("int", "long", "dateTime"))
#: What the service says of every SQL expression: the language level of 2012.
_LEVEL = element("CompatibilityLevel", "20")


def read_rule(description: Element, name: str = "") -> RuleSettings:
    """A rule by the name it was addressed by, or by its own; without a filter it takes every message."""
    own = child(description, "Name")
    name = name or (text_of(own) if own is not None else "") or DEFAULT_RULE
    condition = child(description, "Filter")
    return RuleSettings(
        name,
        TrueFilter() if condition is None else _read_filter(condition),
        _read_action(child(description, "Action")),
    )


def _read_filter(condition: Element) -> RuleFilter:
    match type_of(condition):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return _read_sql(condition, "filter")
        case "CorrelationFilter":
            fields = {field: child(condition, tag) for tag, field in _CORRELATION.items()}
            texts = {field: text_of(found) for field, found in fields.items() if found is not None}
            properties, spelling = _read_pairs(child(condition, "Properties"))
            return CorrelationFilter(**texts, properties=properties, spelling=spelling)
        case other:
            raise bad(f"The filter type '{other}' is not known.")


def _read_action(action: Element | None) -> SqlExpression | None:
    match "EmptyRuleAction" if action is None else type_of(action):
        case "EmptyRuleAction" | "":
            return None
        case "SqlRuleAction" if action is not None:
            return _read_sql(action, "action")
        case other:
            raise bad(f"The action type '{other}' is not known.")


def _read_sql(expression: Element, what: str) -> SqlExpression:
    text = child(expression, "SqlExpression")
    if text is None or not text_of(text).strip():
        raise bad(f"The SqlExpression of the {what} is empty.")
    return SqlExpression(text_of(text), *_read_pairs(child(expression, "Parameters")))


def _read_pairs(pairs: Element | None) -> tuple[dict[str, Any], Spelling]:
    """Values by name, and how those are spelt that would not be written so again."""
    found: dict[str, Any] = {}
    spelling: Spelling = {}
    for pair in () if pairs is None else pairs.findall("KeyValueOfstringanyType"):
        key, value = child(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise bad("A property of a rule lacks its Key or its Value.")
        try:
            found[text_of(key)] = read_typed(value)
        except (ValueError, OverflowError) as mistake:
            raise bad(f"The value of the property '{text_of(key)}' is not valid: {mistake}.") from None
        if (kind := type_of(value)) in _LOSSY:
            spelling[text_of(key)] = (kind, text_of(value).strip())
    return found, spelling


def write_rule(rule: Rule) -> str:
    """An action is always written, an empty one too: the Go client does not look before it reads."""
    settings = rule.settings
    action = settings.action
    return (
        _write_filter(settings.filter)
        + (
            element("Action", "", ' i:type="EmptyRuleAction"')
            if action is None
            else element("Action", _write_sql(action), ' i:type="SqlRuleAction"')
        )
        + element("CreatedAt", write_time(rule.created_at))
        + element("Name", clean(settings.name))
    )


def _write_filter(condition: RuleFilter) -> str:
    match condition:
        case TrueFilter():
            return element("Filter", element("SqlExpression", "1=1") + _LEVEL, ' i:type="TrueFilter"')
        case FalseFilter():
            return element("Filter", element("SqlExpression", "1=0") + _LEVEL, ' i:type="FalseFilter"')
        case SqlExpression():
            return element("Filter", _write_sql(condition), ' i:type="SqlFilter"')
        case CorrelationFilter():
            texts = ((tag, getattr(condition, field)) for tag, field in _CORRELATION.items())
            content = "".join(f"<{tag}>{clean(text)}</{tag}>" for tag, text in texts if text is not None)
            if condition.properties:
                content += element("Properties", _write_pairs(condition.properties, condition.spelling))
            return element("Filter", content, ' i:type="CorrelationFilter"')


def _write_sql(expression: SqlExpression) -> str:
    parameters = element("Parameters", _write_pairs(expression.parameters, expression.spelling))
    return element("SqlExpression", clean(expression.text)) + _LEVEL + parameters


def _write_pairs(pairs: dict[str, Any], spelling: Spelling) -> str:
    return "".join(
        element("KeyValueOfstringanyType", element("Key", clean(key)) + write_typed(value, spelling.get(key)))
        for key, value in pairs.items()
    )
