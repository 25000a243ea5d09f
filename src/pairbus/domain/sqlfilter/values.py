"""The operators of Service Bus's SQL language on values: comparison, arithmetic, LIKE and conversion.

`None` is SQL's NULL: a property that exists and is null. `UNKNOWN` is the result for a missing property, an impossible
operation (`'a' * 2`), and any operation on one of the two. Truth is `True`, `False`, or `None` for unknown.

According to Microsoft's page operators follow C#: integers divide towards zero, a remainder has the sign of the
dividend, 64 bits can overflow. It does not mention operands of different types (`1 = '1'`): unknown here.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

Truth = bool | None


class _Unknown(Enum):
    UNKNOWN = "unknown"


UNKNOWN: Final = _Unknown.UNKNOWN


class SqlEvaluationError(Exception):
    """An expression that has no value for a message, not even an unknown one."""


VALUE_TYPES: Final = (bool, int, float, Decimal, str, bytes, UUID, datetime, timedelta)
INT64_MAX: Final = 2**63 - 1
MAX_PATTERN: Final = 1024
#: The most characters of a computed text: the service limits a property to 32 KB.
MAX_TEXT: Final = 32 * 1024

# AMQP's decimal128 has 34 digits. Not the thread's own context, which may trap or round differently.
_DECIMALS: Final = Context(prec=34, traps=[DivisionByZero, InvalidOperation, Overflow])


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def comparison(symbol: str) -> Callable[[object, object], Truth]:
    """Return the comparison for a symbol; it gives unknown for values that cannot be compared."""
    test = _COMPARISONS[symbol]
    ordering = symbol not in ("=", "<>", "!=")

    def compare(left: object, right: object) -> Truth:
        kind = type(left)
        if kind is type(right) and (kind is str or kind is int):  # nearly every comparison
            return test(left, right)
        try:
            pair = _comparable(left, right, ordering)
            return None if pair is None else bool(test(*pair))
        except (ArithmeticError, ValueError):  # a signalling NaN among decimals
            return None

    return compare


def _comparable(left: object, right: object, ordering: bool) -> tuple[object, object] | None:
    """Return both values converted to one type; None if there is no such type."""
    if _is_number(left) and _is_number(right):
        # For the author of a filter, Decimal('0.1') and the double 0.1 are the same number.
        if isinstance(left, float) or isinstance(right, float):
            return _float_of_decimal(left), _float_of_decimal(right)
        return left, right
    if isinstance(left, datetime) and isinstance(right, datetime):
        return _utc(left), _utc(right)
    for kind in (str, timedelta) if ordering else (str, timedelta, bool, UUID, bytes):
        if isinstance(left, kind) and isinstance(right, kind):
            return left, right
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _float_of_decimal(number: object) -> object:
    return float(number) if isinstance(number, Decimal) else number


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.utcoffset() is None else moment


def _integer_quotient(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


_ON_INTEGERS: Final[dict[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _integer_quotient,
    "%": lambda left, right: left - right * _integer_quotient(left, right),
}
_ON_FLOATS: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
}
_ON_DECIMALS: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": _DECIMALS.add,
    "-": _DECIMALS.subtract,
    "*": _DECIMALS.multiply,
    "/": _DECIMALS.divide,
    "%": _DECIMALS.remainder,
}


def arithmetic(symbol: str) -> Callable[[object, object], object]:
    """Return the operation for a symbol: UNKNOWN where there is no result, SqlEvaluationError for a division by 0."""
    divides = symbol in ("/", "%")

    def calculate(left: object, right: object) -> object:
        if divides and _is_number(left) and _is_number(right) and not right:
            raise SqlEvaluationError(f"a number cannot be divided by zero (operator '{symbol}')")
        try:
            if _is_number(left) and _is_number(right):
                return _calculated(symbol, left, right)
            if symbol == "+":
                return _added(left, right)
            if symbol == "-":
                return _subtracted(left, right)
        except (ArithmeticError, ValueError):  # overflow, a date out of range, a NaN
            pass
        return UNKNOWN

    return calculate


def _calculated(symbol: str, left: Any, right: Any) -> object:
    if isinstance(left, float) or isinstance(right, float):
        number = _ON_FLOATS[symbol](float(left), float(right))
        return number if math.isfinite(number) else UNKNOWN
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        exact = _ON_DECIMALS[symbol](Decimal(left), Decimal(right))
        return exact if exact.is_finite() else UNKNOWN
    integer = _ON_INTEGERS[symbol](left, right)
    # Signed or unsigned 64 bits: AMQP's ulong is a type of property, too.
    return integer if -(2**63) <= integer < 2**64 else UNKNOWN


def _added(left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        # Without a limit, a few SETs that double a property would fill the memory.
        return left + right if len(left) + len(right) <= MAX_TEXT else UNKNOWN
    if isinstance(left, timedelta) and isinstance(right, datetime):
        left, right = right, left
    if isinstance(left, datetime | timedelta) and isinstance(right, timedelta):
        return left + right
    return UNKNOWN


def _subtracted(left: object, right: object) -> object:
    if isinstance(left, datetime) and isinstance(right, datetime):
        return _utc(left) - _utc(right)
    if isinstance(left, datetime | timedelta) and isinstance(right, timedelta):
        return left - right
    return UNKNOWN


_subtract = arithmetic("-")


def negated(value: object) -> object:
    """Return `-value` for a number or a time span, else UNKNOWN."""
    return _subtract(timedelta(0) if isinstance(value, timedelta) else 0, value)


def unsigned(value: object) -> object:
    """Return `+value`: the value itself for a number or a time span, else UNKNOWN."""
    return value if _is_number(value) or isinstance(value, timedelta) else UNKNOWN


class LikePattern:
    """A LIKE pattern, split at its `%`; each piece is searched once, from the end of the one before.

    There is no backtracking: the first match is always good enough, and the time is at most length times pattern.
    """

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        """Compile a pattern; ValueError if it ends in the escape character."""
        pieces: list[list[str]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                literal = next(characters, None)
                if literal is None:
                    raise ValueError(f"the pattern ends in its escape character {escape!r}")
                pieces[-1].append(re.escape(literal))
            elif character == "%":
                pieces.append([])
            else:
                pieces[-1].append("." if character == "_" else re.escape(character))
        self._pieces = [re.compile("".join(piece), re.DOTALL) for piece in pieces]
        self._tail = len(pieces[-1])

    def matches(self, text: str) -> bool:
        first, *others = self._pieces
        if not others:
            return first.fullmatch(text) is not None
        found = first.match(text)
        for piece in others[:-1]:
            if found is None:
                return False
            found = piece.search(text, found.end())
        tail = len(text) - self._tail
        return found is not None and found.end() <= tail and others[-1].match(text, tail) is not None


_like_pattern = lru_cache(maxsize=256)(LikePattern)


def like(value: object, pattern: object, escape: object = None) -> Truth:
    """Return the truth of `value LIKE pattern`; unknown for a bad escape and for a pattern that is too long."""
    if not isinstance(value, str) or not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        return None
    if escape is not None and not (isinstance(escape, str) and len(escape) == 1):
        return None
    try:
        return _like_pattern(pattern, escape).matches(value)
    except ValueError:
        return None


# The text of .NET's TimeSpan: [-][days.]hours:minutes:seconds[.fraction]
_TIME_SPAN = re.compile(r"(-)?(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2})(?::(\d{1,2}(?:\.\d{1,7})?))?", re.ASCII)


def kind_of(value: object) -> type | None:
    """Return the one of VALUE_TYPES that a value has; None if it has another type."""
    return next((kind for kind in VALUE_TYPES if isinstance(value, kind)), None)


def converted(value: object, kind: type) -> object:
    """Return a value converted to a type; UNKNOWN if that is impossible. NULL stays NULL."""
    if value is None or kind_of(value) is kind:
        return value
    try:
        if isinstance(value, str):
            return _parsed(value, kind)
        if kind is str and isinstance(value, bool | int | float | Decimal | UUID):
            return str(value)
        if kind in (float, Decimal) and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
    except (ArithmeticError, ValueError):
        pass
    return UNKNOWN


def _parsed(text: str, kind: type) -> object:
    if kind is bool:
        return {"true": True, "false": False}.get(text.strip().lower(), UNKNOWN)
    if kind is datetime:
        # Python 3.10 knows neither Z nor fractions of other than 3 or 6 digits; .NET writes 7.
        iso = re.sub(r"[zZ]$", "+00:00", text.strip())
        return _utc(datetime.fromisoformat(re.sub(r"\.(\d+)", lambda found: f".{found[1]:0<6.6}", iso)))
    if kind is timedelta:
        span = _TIME_SPAN.fullmatch(text.strip())
        if span is None:
            return UNKNOWN
        minus, days, hours, minutes, seconds = span.groups(default="0")
        length = timedelta(int(days), float(seconds), hours=int(hours), minutes=int(minutes))
        return -length if minus == "-" else length
    if kind in (int, float, Decimal, UUID):
        return kind(text.strip())
    return UNKNOWN
