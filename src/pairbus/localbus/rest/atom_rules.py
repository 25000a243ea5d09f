"""A subscription's rules in the service's XML: filters, actions and their typed values."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

from pairbus.localbus.entities.topics import Rule
from pairbus.localbus.settings import (
    CORRELATION_TEXTS,
    DEFAULT_RULE,
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    RuleSettings,
    Spelling,
    SqlExpression,
    TrueFilter,
)

from .xml_values import (
    child,
    element,
    escape_text,
    invalid_request,
    read_typed,
    text_of,
    type_of,
    write_time,
    write_typed,
)

#: Tag, such as `ReplyTo` -> the field of a correlation filter.
_CORRELATION = {name.title().replace("_", ""): name for name in CORRELATION_TEXTS}
#: Types whose text is kept beside the value: Python has one width of integer, and six decimals of a second.
_TYPES_KEPT_AS_TEXT = frozenset(("int", "long", "dateTime"))
#: The compatibility level that the service reports for every SQL expression.
_LEVEL = element("CompatibilityLevel", "20")


def read_rule(description: Element, name: str = "") -> RuleSettings:
    """Return a description's rule, under the given name or its own; a rule without a filter matches all messages."""
    own = child(description, "Name")
    name = name or (text_of(own) if own is not None else "") or DEFAULT_RULE
    condition = child(description, "Filter")
    return RuleSettings(
        name, TrueFilter() if condition is None else _read_filter(condition), _read_action(child(description, "Action"))
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
            raise invalid_request(f"The filter type '{other}' is not known.")


def _read_action(action: Element | None) -> SqlExpression | None:
    match "EmptyRuleAction" if action is None else type_of(action):
        case "EmptyRuleAction" | "":
            return None
        case "SqlRuleAction" if action is not None:
            return _read_sql(action, "action")
        case other:
            raise invalid_request(f"The action type '{other}' is not known.")


def _read_sql(expression: Element, what: str) -> SqlExpression:
    text = child(expression, "SqlExpression")
    if text is None or not text_of(text).strip():
        raise invalid_request(f"The SqlExpression of the {what} is empty.")
    return SqlExpression(text_of(text), *_read_pairs(child(expression, "Parameters")))


def _read_pairs(pairs: Element | None) -> tuple[dict[str, Any], Spelling]:
    """Return values by name, and the type and text of those that would be written differently."""
    found: dict[str, Any] = {}
    spelling: Spelling = {}
    for pair in () if pairs is None else pairs.findall("KeyValueOfstringanyType"):
        key, value = child(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise invalid_request("A property of a rule lacks its Key or its Value.")
        try:
            found[text_of(key)] = read_typed(value)
        except (ValueError, OverflowError) as error:
            raise invalid_request(f"The value of the property '{text_of(key)}' is not valid: {error}.") from None
        if (kind := type_of(value)) in _TYPES_KEPT_AS_TEXT:
            spelling[text_of(key)] = (kind, text_of(value).strip())
    return found, spelling


def write_rule(rule: Rule) -> str:
    """Return a rule's XML, with an empty action if it has none: the Go client expects the element."""
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
        + element("Name", escape_text(settings.name))
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
            content = "".join(f"<{tag}>{escape_text(text)}</{tag}>" for tag, text in texts if text is not None)
            if condition.properties:
                content += element("Properties", _write_pairs(condition.properties, condition.spelling))
            return element("Filter", content, ' i:type="CorrelationFilter"')


def _write_sql(expression: SqlExpression) -> str:
    parameters = element("Parameters", _write_pairs(expression.parameters, expression.spelling))
    return element("SqlExpression", escape_text(expression.text)) + _LEVEL + parameters


def _write_pairs(pairs: dict[str, Any], spelling: Spelling) -> str:
    return "".join(
        element("KeyValueOfstringanyType", element("Key", escape_text(key)) + write_typed(value, spelling.get(key)))
        for key, value in pairs.items()
    )
