"""The sections of an encoded AMQP message: find, read, replace; nothing else is decoded.

A message is carried as the bytes it was sent as. These functions say where each section lies, read single
fields, and write a section anew with one field or entry changed, every other byte as it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .values import (
    AmqpDecodeError,
    Symbol,
    ULong,
    compound,
    decode,
    encode,
    encode_list,
    encode_map,
    skip,
)

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

# Fields of the properties section, by position.
MESSAGE_ID = 0
USER_ID = 1
TO = 2
SUBJECT = 3
REPLY_TO = 4
CORRELATION_ID = 5
CONTENT_TYPE = 6
CONTENT_ENCODING = 7
ABSOLUTE_EXPIRY_TIME = 8
CREATION_TIME = 9
GROUP_ID = 10
GROUP_SEQUENCE = 11
REPLY_TO_GROUP_ID = 12

_SYMBOLIC = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_LISTS = (0x45, 0xC0, 0xD0)
_MAPS = (0xC1, 0xD1)
_ALLOWED: dict[int, tuple[int, ...]] = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: (0xA0, 0xB0),
    SEQUENCE: _LISTS,
    FOOTER: _MAPS,
}


class Section(NamedTuple):
    """One section: its code, where it starts, where its value starts, where it ends."""

    code: int
    start: int
    value: int
    end: int


class Entry(NamedTuple):
    """One entry of an encoded map: its decoded key, and where key and value lie."""

    key: Any
    start: int
    value: int
    end: int


def split(message: bytes) -> list[Section]:
    """All sections as they lie; raises `AmqpDecodeError` where the bytes are no AMQP message.

    Their order is not enforced: Python's SDK writes delivery annotations behind the body.
    """
    sections: list[Section] = []
    pos, size, seen, body = 0, len(message), 0, 0
    while pos < size:
        if message[pos] != 0:
            raise AmqpDecodeError(f"a section must begin with a descriptor, not 0x{message[pos]:02x}")
        if pos + 2 < size and message[pos + 1] == 0x53:
            code, value = message[pos + 2], pos + 3
        else:
            code, value = _odd_descriptor(message, pos + 1)
        if not HEADER <= code <= FOOTER:
            raise AmqpDecodeError(f"0x{code:02x} at byte {pos} is no section of a message")
        bit = 1 << code - HEADER
        if seen & bit and code not in (DATA, SEQUENCE):
            raise AmqpDecodeError(f"section 0x{code:02x} at byte {pos} comes twice")
        if DATA <= code <= VALUE:
            if body not in (0, code):
                raise AmqpDecodeError("a message has bodies of two kinds")
            body = code
        end = skip(message, value)
        if code in _ALLOWED and message[value] not in _ALLOWED[code]:
            raise AmqpDecodeError(f"section 0x{code:02x} may not hold a 0x{message[value]:02x}")
        sections.append(Section(code, pos, value, end))
        pos, seen = end, seen | bit
    return sections


def _odd_descriptor(message: bytes, pos: int) -> tuple[int, int]:
    """A descriptor written long (8-byte ulong) or as its symbol: rare, but allowed."""
    descriptor, end = decode(message, pos)
    if isinstance(descriptor, Symbol):
        return _SYMBOLIC.get(str(descriptor), 0), end
    if isinstance(descriptor, ULong):
        return int(descriptor), end
    raise AmqpDecodeError(f"section descriptor {descriptor!r} is neither a ulong nor a symbol")


def fields(message: bytes, value: int) -> list[tuple[int, int]]:
    """Where each field of the list at `value` begins and ends."""
    count, pos, end = compound(message, value)
    spans = []
    for _ in range(count):
        after = skip(message, pos)
        spans.append((pos, after))
        pos = after
    if pos != end:
        raise AmqpDecodeError("a list's fields do not fill its size")
    return spans


def field(message: bytes, value: int, index: int) -> Any:
    """One field of the list at `value`; None where it is null or the list is shorter."""
    count, pos, _ = compound(message, value)
    if index >= count:
        return None
    for _ in range(index):
        pos = skip(message, pos)
    return decode(message, pos)[0]


def entries(message: bytes, value: int) -> list[Entry]:
    """The entries of the map at `value`, keys decoded, values left where they lie."""
    count, pos, end = compound(message, value)
    if count % 2:
        raise AmqpDecodeError("a map has an odd number of elements")
    found = []
    for _ in range(count // 2):
        key, at = decode(message, pos)
        after = skip(message, at)
        found.append(Entry(key, pos, at, after))
        pos = after
    if pos != end:
        raise AmqpDecodeError("a map's entries do not fill its size")
    return found


def check_map(message: bytes, value: int) -> None:
    """Refuse a map that `entries` could not walk; its values are not looked into."""
    count, pos, end = compound(message, value)
    if count % 2:
        raise AmqpDecodeError("a map has an odd number of elements")
    for _ in range(count // 2):
        if message[pos : pos + 1] == b"\xa1":  # nearly always: every message with properties comes by here
            after = skip(message, pos)
            if not message[pos + 2 : after].isascii():
                decode(message, pos)
            pos = skip(message, after)
        else:
            pos = skip(message, decode(message, pos)[1])
    if pos != end:
        raise AmqpDecodeError("a map's entries do not fill its size")


def section(code: int, value: bytes) -> bytes:
    """A section around an encoded value."""
    return bytes((0, 0x53, code)) + value


def with_fields(message: bytes, value: int | None, changes: dict[int, bytes]) -> bytes:
    """The list at `value` (None: an empty one) with some fields, by position, replaced by encoded ones."""
    parts = [] if value is None else [message[a:b] for a, b in fields(message, value)]
    for index, raw in changes.items():
        parts.extend([b"\x40"] * (index + 1 - len(parts)))
        parts[index] = raw
    return encode_list(parts)


def with_entries(message: bytes, value: int | None, changes: dict[str, bytes | None], key_type: type = str) -> bytes:
    """The map at `value` (None: an empty one) with entries set to encoded values, or removed by None.

    An entry that is there keeps its place and the encoding of its key; a new one goes to the end.
    """
    parts: list[bytes] = []
    seen: set[str] = set()
    if value is not None:
        for entry in entries(message, value):
            name = str(entry.key) if isinstance(entry.key, str) else None
            if name is None or name not in changes:
                parts += (message[entry.start : entry.value], message[entry.value : entry.end])
                continue
            seen.add(name)
            raw = changes[name]
            if raw is not None:
                parts += (message[entry.start : entry.value], raw)
    for name, raw in changes.items():
        if name not in seen and raw is not None:
            parts += (encode(key_type(name)), raw)
    return encode_map(parts)
