"""The parser of SQL filters and actions, and the explanations of their syntax errors."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Final, Literal

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

MAX_LENGTH: Final = 1024
"""The most characters of a filter or an action: Service Bus's own limit."""

Language = Literal["filter", "action"]

_RESERVED: Final = frozenset(
    ["AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "REMOVE", "SET", "TRUE"]
)
# Readable words for the grammar's terminals. The terminals that can begin a condition, an expression or a name are
# summarised as one.
_NAME: Final = frozenset(["IDENTIFIER", "DELIMITED", "QUOTED"])
_CONSTANT: Final = frozenset(["NUMBER", "STRING", "PARAMETER", "_TRUE", "_FALSE", "_NULL"])
_EXPRESSION: Final = _NAME | _CONSTANT | {"SIGN", "LPAR"}
_CONDITION: Final = _EXPRESSION | {"_EXISTS", "_NOT"}
_GROUPS: Final = {"a condition": _CONDITION, "an expression": _EXPRESSION, "a property name": _NAME}
_WORDS: Final = {
    "EQUAL": "'='",
    "UNEQUAL": "a comparison",
    "SIGN": "an operator",
    "FACTOR": "an operator",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "SEMICOLON": "';'",
    "DOT": "'.'",
    "$END": "the end",
}
_UNCLOSED: Final = {
    "'": "the string that begins here has no end; a ' inside it is written twice",
    '"': 'the name that begins here is empty or has no end; a " inside it is written twice',
    "[": "the name that begins here is empty or has no end; a ] inside it is written twice",
}


class SqlSyntaxError(ValueError):
    """A syntax error in a SQL filter or action: its place, what was found there, and what was expected."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(problem, line, column)
        self.problem = problem
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.problem}"


def parse(text: str, language: Language) -> Tree[Token]:
    """Return the tree of a text; SqlSyntaxError if it is not of that language."""
    if len(text) > MAX_LENGTH:
        problem = f"the text has {len(text)} characters, {MAX_LENGTH} are allowed"
        raise SqlSyntaxError(problem, *_end(text[:MAX_LENGTH]))
    try:
        return _parser().parse(text, start=language)
    except UnexpectedInput as error:
        raise _explained(error, text, _expected(text, language)) from None


@cache
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text("utf-8")
    languages = ["filter", "action"]
    return Lark(grammar, start=languages, parser="lalr", lexer="contextual", propagate_positions=True)


def _expected(text: str, language: Language) -> set[str]:
    """Return the terminals that could follow where the text is wrong; the error itself lists more than those."""
    session = _parser().parse_interactive(text, start=language)
    with suppress(UnexpectedInput):
        session.exhaust_lexer()
    return set(session.accepts())  # type: ignore[no-untyped-call]  # lark leaves it unannotated


def _explained(error: UnexpectedInput, text: str, expected: set[str]) -> SqlSyntaxError:
    wanted = _one_of(expected)
    if isinstance(error, UnexpectedToken):
        found = str(error.token)
        if error.token.type == "$END":
            return SqlSyntaxError(f"the text ends where {wanted} should come", *_end(text))
        problem = f"found {found!r}, expected {wanted}"
        if found.upper() in _RESERVED and expected >= _NAME:
            problem += f"; {found} is a reserved word, a property of that name is written [{found}]"
    else:
        assert isinstance(error, UnexpectedCharacters)  # an LALR parser raises no others
        problem = _UNCLOSED.get(error.char, f"found {error.char!r}, expected {wanted}")
    return SqlSyntaxError(problem, error.line, error.column)


def _one_of(terminals: set[str]) -> str:
    words = set()
    for word, group in _GROUPS.items():
        if terminals >= group:
            words.add(word)
            terminals = terminals - group
    words.update(_WORDS.get(name, name.lstrip("_")) for name in terminals)
    *others, last = sorted(words)
    return f"{', '.join(others)} or {last}" if others else last


def _end(text: str) -> tuple[int, int]:
    return text.count("\n") + 1, len(text) - text.rfind("\n")
