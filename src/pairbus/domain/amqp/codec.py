"""The codec for single AMQP 1.0 values: decode and skip, and `encode` from the module beside it.

A decoded value is plain Python where its type is unambiguous (None, bool, str, bytes, UUID, list, dict, `int` for AMQP
int, `float` for AMQP double), and else of a small subclass, so that `encode(decode(x))` has the type of `x`.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from .encoder import ARRAY_CODES, F32, F64, I16, I32, I64, U16, U32, U32X2, U64, encode, encode_list, encode_map
from .types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

MAX_DEPTH = 32

# A few bytes could otherwise encode a huge array (of elements without bytes), or a map whose keys have equal hashes,
# which makes a dictionary quadratic.
_MAX_EMPTY_ELEMENTS = 32
_MAX_ODD_KEYS = 64


class AmqpDecodeError(ValueError):
    """Bytes that AMQP 1.0 does not allow at this place."""


#: The number of bytes after a fixed-width format code, by its high nibble.
_FIXED = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def skip(buf: bytes, pos: int, depth: int = 0) -> int:
    """Return the position after the value at `pos`, without decoding it."""
    try:
        code = buf[pos]
        if code == 0:
            if depth >= MAX_DEPTH:
                raise AmqpDecodeError("descriptors are nested too deeply")
            return skip(buf, skip(buf, pos + 1, depth + 1), depth + 1)
        kind = code >> 4
        if kind in _FIXED:
            end = pos + 1 + _FIXED[kind]
        elif kind in (0xA, 0xC, 0xE):
            end = pos + 2 + buf[pos + 1]
        elif kind in (0xB, 0xD, 0xF):
            end = pos + 5 + U32.unpack_from(buf, pos + 1)[0]
        else:
            raise AmqpDecodeError(f"0x{code:02x} at byte {pos} is no AMQP format code")
    except (IndexError, struct.error):
        raise AmqpDecodeError(f"the value at byte {pos} is cut off") from None
    if end > len(buf):
        raise AmqpDecodeError(f"the value at byte {pos} is cut off")
    return end


def compound(buf: bytes, pos: int) -> tuple[int, int, int]:
    """Return the number of elements of the list or map at `pos`, the start of the first, and the end of the value."""
    try:
        code = buf[pos]
        if code == 0x45:
            return 0, pos + 1, pos + 1
        if code in (0xC0, 0xC1):
            end, count, first = pos + 2 + buf[pos + 1], buf[pos + 2], pos + 3
        elif code in (0xD0, 0xD1):
            size, count = U32X2.unpack_from(buf, pos + 1)
            end, first = pos + 5 + size, pos + 9
        else:
            raise AmqpDecodeError(f"0x{code:02x} at byte {pos} is neither a list nor a map")
    except (IndexError, struct.error):
        raise AmqpDecodeError(f"the list or map at byte {pos} is cut off") from None
    if end > len(buf) or first > end or count > end - first:
        raise AmqpDecodeError(f"the list or map at byte {pos} does not fit its size")
    return count, first, end


def decode(buf: bytes, pos: int = 0, depth: int = 0) -> tuple[Any, int]:
    """Return the value at `pos`, and the position after it; `AmqpDecodeError` if there is none."""
    if depth > MAX_DEPTH:
        raise AmqpDecodeError("values are nested too deeply")
    if pos >= len(buf):
        raise AmqpDecodeError(f"a value is missing at byte {pos}")
    code = buf[pos]
    if code == 0:
        descriptor, pos = decode(buf, pos + 1, depth + 1)
        value, pos = decode(buf, pos, depth + 1)
        return Described(descriptor, value), pos
    if code in (0x45, 0xC0, 0xD0):
        count, pos, end = compound(buf, pos)
        items = []
        for _ in range(count):
            item, pos = decode(buf, pos, depth + 1)
            items.append(item)
        return items, _exactly(pos, end)
    if code in (0xC1, 0xD1):
        return _decode_map(buf, pos, depth)
    if code in (0xE0, 0xF0):
        return _decode_array(buf, pos, depth)
    end = skip(buf, pos)
    return _decode_scalar(code, buf, pos + 1, end), end


def _decode_map(buf: bytes, pos: int, depth: int) -> tuple[dict[Any, Any], int]:
    count, pos, end = compound(buf, pos)
    if count % 2:
        raise AmqpDecodeError("a map has an odd number of elements")
    pairs: dict[Any, Any] = {}
    odd_keys = 0
    for _ in range(count // 2):
        key, pos = decode(buf, pos, depth + 1)
        value, pos = decode(buf, pos, depth + 1)
        if isinstance(key, (UUID, Described)):
            odd_keys += 1
            if odd_keys > _MAX_ODD_KEYS:
                raise AmqpDecodeError("a map has too many keys that are UUIDs or described")
        try:
            pairs[key] = value
        except TypeError:
            raise AmqpDecodeError("a map's key is a list or a map") from None
    return pairs, _exactly(pos, end)


def _exactly(pos: int, end: int) -> int:
    """Return the end of a list or map, which its elements must reach exactly."""
    if pos != end:
        raise AmqpDecodeError("a list's or map's elements do not fill its size")
    return end


def _decode_array(buf: bytes, pos: int, depth: int) -> tuple[Array, int]:
    end = skip(buf, pos)
    wide = buf[pos] == 0xF0
    try:
        count = U32.unpack_from(buf, pos + 5)[0] if wide else buf[pos + 2]
        pos += 9 if wide else 3
        descriptor = None
        if buf[pos] == 0:
            descriptor, pos = decode(buf, pos + 1, depth + 1)
        code = buf[pos]
        pos += 1
    except (IndexError, struct.error):
        raise AmqpDecodeError("an array is cut off") from None
    if code not in ARRAY_CODES:
        raise AmqpDecodeError(f"0x{code:02x} is no AMQP format code")
    if code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        # These elements have no bytes, so the size does not bound their number.
        if count > _MAX_EMPTY_ELEMENTS:
            raise AmqpDecodeError("an array has too many empty elements")
    elif count > end - pos:
        raise AmqpDecodeError("an array's elements do not fit its size")
    array = Array(code, (), descriptor)
    head = bytes((code,))
    for _ in range(count):
        # The elements share one constructor, before the first: put it before each to decode it.
        element = head + buf[pos : _element_end(code, buf, pos)]
        value, used = decode(element, 0, depth + 1)
        array.append(value)
        pos += used - 1
    return array, _exactly(pos, end)


def _element_end(code: int, buf: bytes, pos: int) -> int:
    kind = code >> 4
    try:
        if kind in _FIXED:
            end = pos + _FIXED[kind]
        elif kind in (0xA, 0xC, 0xE):
            end = pos + 1 + buf[pos]
        elif kind in (0xB, 0xD, 0xF):
            end = pos + 4 + U32.unpack_from(buf, pos)[0]
        else:
            raise AmqpDecodeError(f"0x{code:02x} is no AMQP format code")
    except (IndexError, struct.error):
        raise AmqpDecodeError("an array's element is cut off") from None
    if end > len(buf):
        raise AmqpDecodeError("an array's element is cut off")
    return end


def _decode_scalar(code: int, buf: bytes, pos: int, end: int) -> Any:
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        raw = buf[pos + (1 if code < 0xB0 else 4) : end]
        try:
            return bytes(raw).decode() if code in (0xA1, 0xB1) else Symbol(bytes(raw).decode("ascii"))
        except UnicodeDecodeError:
            raise AmqpDecodeError(f"the text at byte {pos} is not in its encoding") from None
    if code in (0xA0, 0xB0):
        return bytes(buf[pos + (1 if code == 0xA0 else 4) : end])
    if code == 0x40:
        return None
    if code in (0x41, 0x42):
        return code == 0x41
    if code == 0x56:
        if buf[pos] > 1:
            raise AmqpDecodeError("a boolean is neither 0 nor 1")
        return buf[pos] == 1
    reader = _SCALARS.get(code)
    if reader is None:
        raise AmqpDecodeError(f"0x{code:02x} is no AMQP format code")
    return reader(bytes(buf[pos:end]))


def _char(raw: bytes) -> Char:
    try:
        return Char(raw.decode("utf-32-be"))
    except UnicodeDecodeError:
        raise AmqpDecodeError("a char is no Unicode character") from None


_SCALARS: dict[int, Any] = {
    0x43: lambda raw: UInt(0),
    0x44: lambda raw: ULong(0),
    0x50: lambda raw: UByte(raw[0]),
    0x51: lambda raw: Byte(raw[0] - 256 if raw[0] > 127 else raw[0]),
    0x52: lambda raw: UInt(raw[0]),
    0x53: lambda raw: ULong(raw[0]),
    0x54: lambda raw: raw[0] - 256 if raw[0] > 127 else raw[0],
    0x55: lambda raw: Long(raw[0] - 256 if raw[0] > 127 else raw[0]),
    0x60: lambda raw: UShort(U16.unpack(raw)[0]),
    0x61: lambda raw: Short(I16.unpack(raw)[0]),
    0x70: lambda raw: UInt(U32.unpack(raw)[0]),
    0x71: lambda raw: I32.unpack(raw)[0],
    0x72: lambda raw: Float(F32.unpack(raw)[0]),
    0x73: _char,
    0x74: Decimal,
    0x80: lambda raw: ULong(U64.unpack(raw)[0]),
    0x81: lambda raw: Long(I64.unpack(raw)[0]),
    0x82: lambda raw: F64.unpack(raw)[0],
    0x83: lambda raw: Timestamp(I64.unpack(raw)[0]),
    0x84: Decimal,
    0x94: Decimal,
    0x98: lambda raw: UUID(bytes=raw),
}

__all__ = [
    "MAX_DEPTH", "AmqpDecodeError", "Array", "Byte", "Char", "Decimal", "Described", "Float", "Long", "Short", "Symbol",
    "Timestamp", "UByte", "UInt", "ULong", "UShort", "compound", "decode", "encode", "encode_list", "encode_map",
    "skip",
]  # fmt: skip
