"""Service Bus's SQL filter and SQL action languages: a text is parsed once, and evaluated for each message.

    wanted = parse_filter("sys.Label LIKE 'order-%' AND quantity > @least", {"@least": 10})
    wanted.matches(message)
    parse_action("SET quantity = quantity / 2; REMOVE priority").edits(message)

A text's mistakes raise SqlSyntaxError when it is parsed (`syntax`, `grammar.lark`); this module compiles its tree to
nested functions. Evaluated for a message, a filter raises only SqlEvaluationError, for a division by zero.

Names of properties are case-insensitive; of user properties an exact match is preferred. A missing user property is
unknown, a system property that Service Bus does not have is an error, and a filter matches only if it is true.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, cast

from lark import Token, Tree

from . import values
from .properties import SYSTEM_PROPERTIES, Draft, Edit, MessageView, SystemProperty, UserProperty, user_value
from .syntax import SqlSyntaxError, parse
from .values import UNKNOWN, SqlEvaluationError, Truth

MAX_DEPTH: Final = 64
"""The deepest nesting of operators. A chain (`a OR b OR …`, `1 + 2 + …`) is one operator, parentheses are none."""

_NO_PARAMETERS: Final[Mapping[str, object]] = MappingProxyType({})

_Node = Tree[Token]
_Value = Callable[[MessageView], object]
_Predicate = Callable[[MessageView], Truth]
_Statement = Callable[[Draft], Edit | None]


@dataclass(frozen=True)
class SqlFilter:
    """A compiled SQL filter; `parse_filter` makes one."""

    text: str
    _parameters: Mapping[str, object] = field(repr=False, hash=False)
    _predicate: _Predicate = field(repr=False, compare=False)

    def matches(self, message: MessageView) -> bool:
        """Return True if the filter is true, not unknown; raise SqlEvaluationError if it divides by zero."""
        return self._predicate(message) is True


@dataclass(frozen=True)
class SqlAction:
    """A compiled SQL action; `parse_action` makes one."""

    text: str
    _parameters: Mapping[str, object] = field(repr=False, hash=False)
    _statements: Sequence[_Statement] = field(repr=False, compare=False)

    def edits(self, message: MessageView) -> tuple[Edit, ...]:
        """Return the changes in order, without applying them; each statement sees those before it.

        A user property keeps its spelling, and its type where the new value can be converted. A statement without
        effect gives no edit: SET to an unknown or impossible value, and REMOVE of a missing property.
        """
        draft = Draft(dict(message.system), dict(message.user))
        edits = []
        for statement in self._statements:
            edit = statement(draft)
            if edit is not None:
                draft.apply(edit)
                edits.append(edit)
        return tuple(edits)


def parse_filter(text: str, parameters: Mapping[str, object] = _NO_PARAMETERS) -> SqlFilter:
    """Return the compiled filter; `parameters` are the values of `@name`, with or without the `@`, in any case."""
    (condition,) = _branches(parse(text, "filter"))
    return SqlFilter(text, dict(parameters), _Compiler(parameters).predicate(condition, 0))


def parse_action(text: str, parameters: Mapping[str, object] = _NO_PARAMETERS) -> SqlAction:
    """Return the compiled action; SqlSyntaxError if the text is not one. `parameters` are those of `parse_filter`."""
    compiler = _Compiler(parameters)
    statements = [compiler.statement(statement) for statement in _branches(parse(text, "action"))]
    return SqlAction(text, dict(parameters), statements)


@dataclass(frozen=True)
class _Constant:
    """The value of an expression that is the same for every message."""

    value: object

    def __call__(self, message: MessageView) -> object:
        return self.value


class _Compiler:
    """A compiler from the nodes of a tree to functions; `depth` counts the operators around a node."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        self._parameters = {name.removeprefix("@").lower(): value for name, value in parameters.items()}

    def predicate(self, node: _Node, depth: int) -> _Predicate:
        _check_depth(node, depth)
        match node.data:
            case "disjunction" | "conjunction":
                parts = [self.predicate(child, depth + 1) for child in _branches(node)]
                return _decided_by(node.data == "disjunction", parts)
            case "not":
                return _not(self.predicate(_branches(node)[0], depth + 1))
            case "comparison":
                return self._comparison(node, depth)
            case "is_null":
                return _is_null(_property(_branches(node)[0]))
            case "is_not_null":
                return _not(_is_null(_property(_branches(node)[0])))
            case "exists":
                read = _property(_branches(node)[0]).reader()
                return lambda message: read(message) is not UNKNOWN
            case "among":
                return self._among(node, depth)
            case "not_among":
                return _not(self._among(node, depth))
            case "like":
                return self._like(node, depth)
            case "not_like":
                return _not(self._like(node, depth))
            case _:
                return self._bare(node)

    def _bare(self, node: _Node) -> _Predicate:
        constant = _branches(node)[0].data
        if constant not in ("true", "false"):
            raise _mistake(node, "found a value where a condition is needed; compare it, as in flag = TRUE")
        truth = constant == "true"
        return lambda message: truth

    def _comparison(self, node: _Node, depth: int) -> _Predicate:
        compare = values.comparison(str(node.children[1]))
        left, right = (self._value(child, depth + 1) for child in _branches(node))
        if isinstance(right, _Constant):
            constant = right.value
            return lambda message: compare(left(message), constant)
        return lambda message: compare(left(message), right(message))

    def _among(self, node: _Node, depth: int) -> _Predicate:
        """Compile IN. As documented, only its left side makes it unknown; an unknown candidate is just not equal."""
        subject, *candidates = (self._value(child, depth + 1) for child in _branches(node))
        equal = values.comparison("=")
        strings: set[str] = set()
        others: list[_Value] = []
        for candidate in candidates:
            if isinstance(candidate, _Constant) and isinstance(candidate.value, str):
                strings.add(candidate.value)
            else:
                others.append(candidate)

        def is_among(message: MessageView) -> Truth:
            value = subject(message)
            if value is UNKNOWN or value is None:
                return None
            if isinstance(value, str) and value in strings:
                return True
            return any(equal(value, other(message)) for other in others)

        return is_among

    def _like(self, node: _Node, depth: int) -> _Predicate:
        subject, pattern, *rest = (self._value(child, depth + 1) for child in _branches(node))
        escape = rest[0] if rest else None
        if isinstance(escape, _Constant) and not (isinstance(escape.value, str) and len(escape.value) == 1):
            raise _mistake(_branches(node)[2], f"ESCAPE needs a string of one character, found {escape.value!r}")
        if isinstance(pattern, _Constant):
            if not isinstance(pattern.value, str):
                raise _mistake(_branches(node)[1], f"LIKE needs a string as its pattern, found {pattern.value!r}")
            if escape is None or isinstance(escape, _Constant):
                character = None if escape is None else cast(str, escape.value)
                try:
                    matches = values.LikePattern(pattern.value, character).matches
                except ValueError as error:
                    raise _mistake(_branches(node)[1], str(error)) from None
                return lambda message: matches(value) if isinstance(value := subject(message), str) else None
        if escape is None:
            return lambda message: values.like(subject(message), pattern(message))
        return lambda message: values.like(subject(message), pattern(message), escape(message))

    def _value(self, node: _Node, depth: int) -> _Value:
        _check_depth(node, depth)
        match node.data:
            case "property":
                return _property(node).reader()
            case "sum" | "product":
                return self._chain(node, depth)
            case "sign":
                return self._signed(node, depth)
            case "function":
                return self._function(node, depth)
            case "parameter":
                return self._parameter(_leaf(node))
            case "number":
                return _Constant(_number(_leaf(node)))
            case "string":
                return _Constant(_unquoted(_leaf(node)))
            case constant:
                return _Constant({"true": True, "false": False, "null": None}[constant])

    def _chain(self, node: _Node, depth: int) -> _Value:
        first, *others = (self._value(child, depth + 1) for child in _branches(node))
        operations = [values.arithmetic(str(symbol)) for symbol in node.children[1::2]]
        steps = list(zip(operations, others, strict=True))

        def calculate(message: MessageView) -> object:
            result = first(message)
            for combine, operand in steps:
                result = combine(result, operand(message))
            return result

        return calculate

    def _signed(self, node: _Node, depth: int) -> _Value:
        operand = self._value(_branches(node)[0], depth + 1)
        apply = values.negated if _leaf(node) == "-" else values.unsigned
        if isinstance(operand, _Constant):
            return _Constant(apply(operand.value))
        return lambda message: apply(operand(message))

    def _function(self, node: _Node, depth: int) -> _Value:
        name = _leaf(node)
        arguments = [self._value(child, depth + 1) for child in _branches(node)]
        match name.lower(), arguments:
            case "newid", []:
                return lambda message: uuid.uuid4()
            case "newid", _:
                raise _mistake(name, f"{name}() takes no argument")
            case (("property" | "p"), [argument]):

                def read(message: MessageView) -> object:
                    key = argument(message)
                    return user_value(message, key) if isinstance(key, str) else UNKNOWN

                return read
            case (("property" | "p"), _):
                raise _mistake(name, f"{name}(name) takes one argument, found {len(arguments)}")
            case _:
                raise _mistake(name, f"there is no function {name}; there are newid(), property(name) and p(name)")

    def _parameter(self, token: Token) -> _Value:
        try:
            value = self._parameters[token[1:].lower()]
        except KeyError:
            given = ", ".join(f"@{name}" for name in sorted(self._parameters)) or "none"
            raise _mistake(token, f"no value was given for {token}; given: {given}") from None
        if value is not None and values.kind_of(value) is None:
            raise _mistake(token, f"{token} is a {type(value).__name__}, which is no type of a property")
        return _Constant(value)

    def statement(self, node: _Node) -> _Statement:
        target = _property(_branches(node)[0])
        if node.data == "remove":
            if isinstance(target, SystemProperty):
                raise _mistake(node, f"REMOVE cannot take the system property sys.{target.name}")
            return target.removed
        if isinstance(target, SystemProperty) and SYSTEM_PROPERTIES[target.name] is None:
            settable = ", ".join(f"sys.{name}" for name, kind in SYSTEM_PROPERTIES.items() if kind)
            raise _mistake(node, f"sys.{target.name} is read-only; SET may change {settable}")
        value = self._value(_branches(node)[1], 0)

        def assign(draft: Draft) -> Edit | None:
            try:
                return target.assigned(draft, value(draft))
            except SqlEvaluationError:
                return None

        return assign


def _not(predicate: _Predicate) -> _Predicate:
    return lambda message: None if (truth := predicate(message)) is None else not truth


def _is_null(target: SystemProperty | UserProperty) -> _Predicate:
    read = target.reader()
    return lambda message: (value := read(message)) is None or value is UNKNOWN


def _decided_by(decisive: bool, parts: Sequence[_Predicate]) -> _Predicate:
    """Compile OR, decided by the first True, or AND, decided by the first False; else one unknown makes all unknown."""

    def decide(message: MessageView) -> Truth:
        result: Truth = not decisive
        for part in parts:
            truth = part(message)
            if truth is decisive:
                return decisive
            if truth is None:
                result = None
        return result

    return decide


def _branches(node: _Node) -> list[_Node]:
    return [child for child in node.children if isinstance(child, Tree)]


def _leaf(node: _Node) -> Token:
    return cast(Token, node.children[0])


def _property(node: _Node) -> SystemProperty | UserProperty:
    *scopes, name = (_unquoted(token) for token in node.children if isinstance(token, Token))
    match [scope.lower() for scope in scopes]:
        case [] | ["user"]:
            return UserProperty(name)
        case ["sys"]:
            target = SystemProperty.named(name)
            if target is None:
                known = ", ".join(SYSTEM_PROPERTIES)
                raise _mistake(node, f"there is no system property sys.{name}; there are {known}")
            return target
        case _:
            (scope,) = scopes
            hint = f"a property whose name has a dot is written [{scope}.{name}]"
            raise _mistake(node, f"there is no scope {scope}, only sys and user; {hint}")


def _unquoted(token: Token) -> str:
    """Return the text of a name or a string, inside which the closing mark is written twice."""
    end = {"DELIMITED": "]", "QUOTED": '"', "STRING": "'"}.get(token.type)
    return str(token) if end is None else token[1:-1].replace(end * 2, end)


def _number(token: Token) -> int | float:
    if token.isdecimal():
        if (integer := int(token)) > values.INT64_MAX:
            raise _mistake(token, f"{token} is too large for a 64-bit integer")
        return integer
    if (number := float(token)) == float("inf"):
        raise _mistake(token, f"{token} is too large for a double")
    return number


def _check_depth(node: _Node, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _mistake(node, f"operators are nested more than {MAX_DEPTH} deep")


def _mistake(place: _Node | Token, problem: str) -> SqlSyntaxError:
    where = place if isinstance(place, Token) else place.meta
    return SqlSyntaxError(problem, where.line or 1, where.column or 1)
