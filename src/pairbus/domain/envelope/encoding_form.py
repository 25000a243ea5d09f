"""What `x-pairbus-form` says: how a message was encoded, where the parked one cannot tell.

A broker writes a message's header and annotations anew when it delivers, and the aliases may have widened the map of
application properties. Every value survives that; the encoding does not. `Form` is what of it was not the most usual
(that of the SDK for Python): words separated by semicolons, most often none, which then is no property at all.

    header=HEX       the header section, without its time to live
    ttl=70           the format code of the time to live, longer than need be
    delivery=HEX     delivery annotations: descriptor and format code of the map
    annotations=HEX  message annotations: the same
    place=1          the scheduled time's index among them, if it was not the last
    key=a1           the format code of its key, if that was no short symbol
    properties=d1    application properties: the format code of the map
    expiry           there was an absolute expiry time beside the time to live: to be set anew
    expiry=HEX       there was one without a time to live: this
    order=0 3 5x2 1  the sections' codes, less 0x70, as they lay; two of code 0x75 in a row
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
#: A header that said nothing but a time to live, without it: five fields, as the SDK for Python writes them.
USUAL_HEADER = section(HEADER, b"\xc0\x06\x05" + 5 * b"\x40")
#: A section's descriptor as everybody writes it.
USUAL_HEADS = {code: section(code, b"") for code in range(HEADER, APPLICATION_PROPERTIES + 1)}
#: The time to live's position in the header, and how .NET writes it: so many ticks of 100 ns.
TTL = 2
TICKS = 10_000  # in a millisecond
TIMESPAN = "com.microsoft:timespan"
TICKS_OF = b"\x00" + encode(Symbol(TIMESPAN)) + b"\x81"


class Form(NamedTuple):
    """What was not as usual; each default is what is."""

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
    """The form that the words tell; raises ValueError for words that tell none."""
    return _read_again(text) if len(text) < 200 else _read(text)


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


#: Senders have their ways: the same few forms come again and again.
_read_again = lru_cache(256)(_read)


def _header(value: str) -> bytes:
    raw = bytes.fromhex(value)
    (found,) = split(raw)
    fields(raw, found.value)
    if found.code != HEADER:
        raise ValueError("another section")
    return raw


def _map_head(value: str, code: int) -> bytes:
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
    "delivery": lambda value: _map_head(value, DELIVERY_ANNOTATIONS),
    "annotations": lambda value: _map_head(value, MESSAGE_ANNOTATIONS),
    "place": lambda value: min(abs(int(value)), 2**31),  # a list's index must be
    "key": _KEYS.__getitem__,
    "properties": {"c1": 0xC1, "d1": 0xD1}.__getitem__,
    "expiry": _expiry,
    "order": lambda value: tuple((HEADER + int(run[0]), int(run[2:] or 1)) for run in value.split(" ")),
}


def order_of(codes: list[int]) -> str:
    """The word that says in which order sections of these codes lie."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and runs[-1][0] == code:
            runs[-1][1] += 1
        else:
            runs.append([code, 1])
    return "order=" + " ".join(f"{code - HEADER}" + (f"x{length}" if length > 1 else "") for code, length in runs)


def in_order(parts: tuple[bytes, ...], order: tuple[tuple[int, int], ...]) -> bytes:
    """The sections in the order that they were sent in; one that had not been there, in its usual place."""
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
