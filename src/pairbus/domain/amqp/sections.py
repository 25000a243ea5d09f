"""The sections of an encoded AMQP message: finding them, reading fields, and replacing fields and entries.

Replacing a field or an entry rewrites its section; every other byte stays as it was sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from .codec import AmqpDecodeError, Symbol, ULong, compound, decode, encode, encode_list, encode_map, skip

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

# The position of the delivery count in the header, and of fields in the properties section.
DELIVERY_COUNT = 4
MESSAGE_ID, TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE = 0, 2, 3, 4, 5, 6
ABSOLUTE_EXPIRY_TIME, CREATION_TIME, GROUP_ID, REPLY_TO_GROUP_ID = 8, 9, 10, 12

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
_U32X2 = struct.Struct(">II")
_SHORT_VALUES = (0xC0, 0xC1, 0xA0)
_SHORT_TEXT = (0xA1, 0xA3)
#: The size of a fixed-width value with its format code; 0 for any other code.
_SIZES = bytes({0x4: 1, 0x5: 2, 0x6: 3, 0x7: 5, 0x8: 9, 0x9: 17}.get(code >> 4, 0) for code in range(256))
_LISTS = (0x45, 0xC0, 0xD0)
_MAPS = (0xC1, 0xD1)
_ALLOWED: dict[int, Container[int]] = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: (0xA0, 0xB0),
    SEQUENCE: _LISTS,
    VALUE: range(256),
    FOOTER: _MAPS,
}


class Section(NamedTuple):
    """One section: its code, and the positions of its start, of its value, and of its end."""

    code: int
    start: int
    value: int
    end: int


#: `Section(...)` without a Python call: this runs for every section of every message.
_new_section: Callable[[tuple[int, int, int, int]], Section] = partial(tuple.__new__, Section)


class Entry(NamedTuple):
    """One entry of an encoded map: its decoded key, and the positions of key, value and end."""

    key: Any
    start: int
    value: int
    end: int


def split(message: bytes, start: int = 0, seen: int = 0) -> list[Section]:
    """Return the sections from byte `start` on, in any order; `seen` has a bit for each one before `start`.

    Raises `AmqpDecodeError` if the bytes are no AMQP message.
    """
    sections: list[Section] = []
    pos, size, body = start, len(message), 0
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
        if value + 1 < size and message[value] in _SHORT_VALUES:  # nearly always
            end = value + 2 + message[value + 1]
            if end > size:
                raise AmqpDecodeError(f"the value at byte {value} is cut off")
        else:
            end = skip(message, value)
        if message[value] not in _ALLOWED[code]:
            raise AmqpDecodeError(f"section 0x{code:02x} may not hold a 0x{message[value]:02x}")
        sections.append(_new_section((code, pos, value, end)))
        pos, seen = end, seen | bit
    return sections


def layout(message: bytes, start: int = 0, seen: int = 0) -> tuple[dict[int, Section], bytes, list[int]]:
    """Return the sections by code, the bytes from the body on, and all codes if they are out of order; see `split`."""
    found = split(message, start, seen)
    where: dict[int, Section] = {}
    last, body, ordered = HEADER + seen.bit_length() - 1 if seen else 0, len(message), True
    for each in found:
        code = each[0]
        where[code] = each
        if code < last:
            ordered = False
        elif code > APPLICATION_PROPERTIES >= last:
            body = each[1]
        last = code
    if ordered:
        return where, message[body:], []
    behind = sorted((each for each in found if each.code > APPLICATION_PROPERTIES), key=lambda each: each.code)
    return where, b"".join(message[each.start : each.end] for each in behind), [each.code for each in found]


def _odd_descriptor(message: bytes, pos: int) -> tuple[int, int]:
    """Return the code of a descriptor that is an 8-byte ulong or a symbol, which is rare, and the position after it."""
    descriptor, end = decode(message, pos)
    if isinstance(descriptor, Symbol):
        return _SYMBOLIC.get(str(descriptor), 0), end
    if isinstance(descriptor, ULong):
        return int(descriptor), end
    raise AmqpDecodeError(f"the section descriptor at byte {pos} is neither a ulong nor a symbol")


def bounds(message: bytes, value: int) -> list[int]:
    """Return the start of each field of the list at `value`, and the end of the last one."""
    count, pos, end = compound(message, value)
    found = [pos]
    try:
        for _ in range(count):
            code = message[pos]
            if code == 0x40:  # most fields are null
                pos += 1
            elif code == 0xA1:
                pos += 2 + message[pos + 1]
            else:
                pos = skip(message, pos)
            found.append(pos)
    except IndexError:
        raise AmqpDecodeError("a list's fields are cut off") from None
    if pos != end:
        raise AmqpDecodeError("a list's fields do not fill its size")
    return found


def fields(message: bytes, value: int) -> list[tuple[int, int]]:
    """Return the start and the end of each field of the list at `value`."""
    return list(pairwise(bounds(message, value)))


def field(message: bytes, value: int, index: int) -> Any:
    """Return one field of the list at `value`; None if it is null or the list is shorter."""
    count, pos, _ = compound(message, value)
    if index >= count:
        return None
    for _ in range(index):
        pos = skip(message, pos)
    return decode(message, pos)[0]


def entries(message: bytes, value: int) -> list[Entry]:
    """Return the entries of the map at `value` with decoded keys."""
    return [Entry(decode(message, start)[0], start, at, end) for start, at, end in pairs(message, value)]


def pairs(message: bytes, value: int) -> list[tuple[int, int, int]]:
    """Return the start of the key, the start of the value and the end of each entry of the encoded map at `value`."""
    count, pos, end = compound(message, value)
    if count % 2:
        raise AmqpDecodeError("a map has an odd number of elements")
    spans = []
    try:
        for _ in range(count // 2):
            at = pos + 2 + message[pos + 1] if message[pos] in _SHORT_TEXT else skip(message, pos)
            code = message[at]
            after = at + (_SIZES[code] or (message[at + 1] + 2 if code in _SHORT_TEXT else skip(message, at) - at))
            spans.append((pos, at, after))
            pos = after
    except IndexError:
        raise AmqpDecodeError("a map's entries are cut off") from None
    if pos != end:
        raise AmqpDecodeError("a map's entries do not fill its size")
    return spans


def check_map(message: bytes, value: int) -> None:
    """Raise `AmqpDecodeError` for a map that `entries` could not read; values are not decoded."""
    for start, at, _ in pairs(message, value):
        # Nearly every key is short ASCII, and needs no decoding.
        if message[start] not in _SHORT_TEXT or not message[start + 2 : at].isascii():
            decode(message, start)


def section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def fits_short(size: int, count: int) -> bool:
    """Return True if so many elements, of `size` bytes together, fit a list or map with 8-bit sizes."""
    return size < 255 and count < 256


def list_section(descriptor: bytes, parts: list[bytes], count: int, wide: bool = False) -> bytes:
    """Return a section with a list of encoded parts after its descriptor; 32-bit sizes if `wide` or needed."""
    raw = b"".join(parts)
    if not wide and len(raw) < 255 and count < 256:
        return b"".join((descriptor, bytes((0xC0, len(raw) + 1, count)), raw))
    return b"".join((descriptor, b"\xd0", _U32X2.pack(len(raw) + 4, count), raw))


def map_section(descriptor: bytes, parts: list[bytes], count: int, wide: bool = False) -> bytes:
    """Return a section with a map, likewise; `count` is the number of keys and values."""
    raw = b"".join(parts)
    if not wide and len(raw) < 255 and count < 256:
        return b"".join((descriptor, bytes((0xC1, len(raw) + 1, count)), raw))
    return b"".join((descriptor, b"\xd1", _U32X2.pack(len(raw) + 4, count), raw))


def replace_fields(message: bytes, found: Section, at: list[int], changes: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a list's section with fields replaced in ascending order; its descriptor and 32-bit sizes are kept."""
    _, start, value, end = found
    parts: list[bytes] = []
    here = count = len(at) - 1
    pos = at[0]
    for index, raw in changes:
        if index < here:
            parts += (message[pos : at[index]], raw)
            pos = at[index + 1]
        else:
            parts += (message[pos:end], b"\x40" * (index - count), raw)
            pos, count = end, index + 1
    parts.append(message[pos:end])
    return list_section(message[start:value], parts, count, message[value] == 0xD0)


def with_fields(message: bytes, value: int | None, changes: dict[int, bytes]) -> bytes:
    """Return the list at `value` (None: an empty one) with some fields, by position, replaced by encoded ones."""
    parts = [] if value is None else [message[a:b] for a, b in fields(message, value)]
    for index, raw in changes.items():
        parts.extend([b"\x40"] * (index + 1 - len(parts)))
        parts[index] = raw
    return encode_list(parts)


def with_entries(message: bytes, value: int | None, changes: dict[str, bytes | None], key_type: type = str) -> bytes:
    """Return the map at `value` (None: an empty one) with entries set, in place or at the end, or removed by None."""
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
