"""Service Bus's SQL filter language: filters and actions, parsed and evaluated."""

from .filter import MAX_DEPTH, SqlAction, SqlFilter, parse_action, parse_filter
from .properties import Edit, MessageView
from .syntax import MAX_LENGTH, SqlSyntaxError
from .values import SqlEvaluationError

__all__ = [
    "MAX_DEPTH", "MAX_LENGTH", "Edit", "MessageView", "SqlAction", "SqlEvaluationError", "SqlFilter", "SqlSyntaxError",
    "parse_action", "parse_filter",
]  # fmt: skip
