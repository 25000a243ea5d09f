"""The property `x-pairbus-form`: the encoding of the original message where the parked one does not show it.

A broker rewrites a message's header and annotations when it delivers, and the aliases may widen the map of application
properties. Every value survives that; its encoding does not. `Form` holds what differed from the most usual encoding,
that of the SDK for Python. As a property it is words separated by semicolons, and left out if there are none.

    header=HEX       the header section, without its time to live
    ttl=70           the format code of the time to live, longer than need be
    delivery=HEX     delivery annotations: descriptor and format code of the map
    annotations=HEX  message annotations: the same
    place=1          the scheduled time's index among them, if it was not the last
    key=a1           the format code of its key, if that was no short symbol
    properties=d1    application properties: the format code of the map
    expiry           an absolute expiry time came with the time to live, and is computed again
    expiry=HEX       an absolute expiry time without a time to live
    order=0 3 5x2 1  the codes of the sections, less 0x70, in their order; here two of code 0x75 in a row
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from pairbus.domain.amqp.codec import encode, skip
from pairbus.domain.amqp.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    fields,
    section,
    split,
)
from pairbus.domain.amqp.types import Symbol

from .property_names import SCHEDULED_ANNOTATION, spellings

USUAL_SCHEDULED_KEY = encode(Symbol(SCHEDULED_ANNOTATION))
#: A header that contained only a time to live, without it: five fields, as the SDK for Python writes them.
USUAL_HEADER = section(HEADER, b"\xc0\x06\x05" + 5 * b"\x40")
#: The descriptor of each section in its shortest encoding.
USUAL_DESCRIPTORS = {code: section(code, b"") for code in range(HEADER, APPLICATION_PROPERTIES + 1)}
#: The time to live's position in the header.
TTL = 2
#: Ticks of 100 ns in a millisecond: .NET encodes a time to live as a timespan in ticks.
TICKS = 10_000
TIMESPAN = "com.microsoft:timespan"
TIMESPAN_PREFIX = b"\x00" + encode(Symbol(TIMESPAN)) + b"\x81"


class Form(NamedTuple):
    """The differences from the usual encoding; each default stands for the usual one."""

    header: bytes = b""
    ttl: int = 0
    delivery: bytes | None = None
    annotations: bytes | None = None
    place: int | None = None
    key: bytes = USUAL_SCHEDULED_KEY
    properties: int = 0
    expiry: bytes | None = None
    order: tuple[tuple[int, int], ...] | None = None


USUAL = Form()


def read_form(text: str) -> Form:
    """Return the form that the words describe; ValueError for words that describe none."""
    return _read_cached(text) if len(text) < 200 else _read(text)


def _read(text: str) -> Form:
    read: dict[str, Any] = {}
    for each in text.split(";"):
        name, _, value = each.partition("=")
        reader = _READERS.get(name)
        if reader is None:
            raise ValueError(f"{name!r} is not known")
        try:
            read[name] = reader(value)
        except LookupError:
            raise ValueError(f"{value!r} is no {name}") from None
    return Form(**read)


#: The messages of one sender have the same form.
_read_cached = lru_cache(256)(_read)


def _header(value: str) -> bytes:
    raw = bytes.fromhex(value)
    (found,) = split(raw)
    fields(raw, found.value)
    if found.code != HEADER:
        raise ValueError("another section")
    return raw


def _map_prefix(value: str, code: int) -> bytes:
    raw = bytes.fromhex(value)
    (found,) = split(raw + (b"\x01\x00" if raw[-1] == 0xC1 else b"\x00\x00\x00\x04\x00\x00\x00\x00"))
    if found.code != code or found.value != len(raw) - 1:
        raise ValueError("another section")
    return raw


def _expiry(value: str) -> bytes:
    raw = bytes.fromhex(value)
    if raw and skip(raw, 0) != len(raw):
        raise ValueError("more than one value")
    return raw


_KEYS = {f"{key[0]:x}": key for key in spellings(SCHEDULED_ANNOTATION)}
_READERS: dict[str, Callable[[str], Any]] = {
    "header": _header,
    "ttl": {"52": 0x52, "70": 0x70}.__getitem__,
    "delivery": lambda value: _map_prefix(value, DELIVERY_ANNOTATIONS),
    "annotations": lambda value: _map_prefix(value, MESSAGE_ANNOTATIONS),
    "place": lambda value: min(abs(int(value)), 2**31),  # a list's index must be
    "key": _KEYS.__getitem__,
    "properties": {"c1": 0xC1, "d1": 0xD1}.__getitem__,
    "expiry": _expiry,
    "order": lambda value: tuple((HEADER + int(run[0]), int(run[2:] or 1)) for run in value.split(" ")),
}


def order_of(codes: list[int]) -> str:
    """Return the word for the order of sections with these codes."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and runs[-1][0] == code:
            runs[-1][1] += 1
        else:
            runs.append([code, 1])
    return "order=" + " ".join(f"{code - HEADER}" + (f"x{length}" if length > 1 else "") for code, length in runs)


def in_order(parts: tuple[bytes, ...], order: tuple[tuple[int, int], ...]) -> bytes:
    """Return the sections in the order in which they were sent; a section that was not sent, in its usual place."""
    waiting: dict[int, list[bytes]] = {}
    for part in parts:
        for each in split(part):
            waiting.setdefault(each.code, []).append(part[each.start : each.end])
    placed: list[tuple[int, bytes]] = []
    for code, length in order:
        some = waiting.get(code, [])
        placed += ((code, raw) for raw in some[:length])
        del some[:length]
    for code, left in sorted(waiting.items()):
        at = next((index for index, (other, _) in enumerate(placed) if other > code), len(placed))
        placed[at:at] = ((code, raw) for raw in left)
    return b"".join(raw for _, raw in placed)
