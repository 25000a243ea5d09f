"""Service Bus's SQL filter language: filters and actions, parsed and evaluated."""

from .filter import (
    MAX_DEPTH,
    MAX_LENGTH,
    Edit,
    MessageView,
    SqlAction,
    SqlEvaluationError,
    SqlFilter,
    SqlSyntaxError,
    parse_action,
    parse_filter,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_LENGTH",
    "Edit",
    "MessageView",
    "SqlAction",
    "SqlEvaluationError",
    "SqlFilter",
    "SqlSyntaxError",
    "parse_action",
    "parse_filter",
]
