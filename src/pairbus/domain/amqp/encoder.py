"""The encoder for single AMQP 1.0 values, each in its shortest usual encoding."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from . import types

U8 = struct.Struct(">B")
I8 = struct.Struct(">b")
U8X2 = struct.Struct(">BB")
U16 = struct.Struct(">H")
I16 = struct.Struct(">h")
U32 = struct.Struct(">I")
I32 = struct.Struct(">i")
U64 = struct.Struct(">Q")
I64 = struct.Struct(">q")
F32 = struct.Struct(">f")
F64 = struct.Struct(">d")
U32X2 = struct.Struct(">II")


def encode(value: Any) -> bytes:
    """Return a value in its shortest usual encoding; TypeError or ValueError for one that AMQP cannot hold."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"{type(value).__name__} has no AMQP type")
    try:
        return bytes(encoder(value))
    except struct.error:
        raise ValueError(f"{value!r} is out of range for {type(value).__name__}") from None


def _variable(short: int, long: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((short, len(raw))) + raw
    return bytes((long,)) + U32.pack(len(raw)) + raw


def encode_list(items: list[bytes]) -> bytes:
    return _compound(0xC0, 0xD0, len(items), b"".join(items)) if items else b"\x45"


def encode_map(items: list[bytes]) -> bytes:
    """Return a map of encoded keys and values, alternating."""
    return _compound(0xC1, 0xD1, len(items), b"".join(items))


def _compound(short: int, long: int, count: int, raw: bytes) -> bytes:
    if len(raw) < 255 and count < 256:
        return bytes((short, len(raw) + 1, count)) + raw
    return bytes((long,)) + U32X2.pack(len(raw) + 4, count) + raw


def _int(value: int) -> bytes:
    if -128 <= value <= 127:
        return b"\x54" + value.to_bytes(1, "big", signed=True)
    if -(2**31) <= value < 2**31:
        return b"\x71" + I32.pack(value)
    return b"\x81" + I64.pack(value)


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if 0 < value < 256 else b"\x70" + U32.pack(value)


def _ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if 0 < value < 256 else b"\x80" + U64.pack(value)


def _long(value: int) -> bytes:
    if -128 <= value <= 127:
        return b"\x55" + value.to_bytes(1, "big", signed=True)
    return b"\x81" + I64.pack(value)


def _map(pairs: dict[Any, Any]) -> bytes:
    return encode_map([encode(part) for part in _flat(pairs)])


def _array(array: types.Array) -> bytes:
    return b"\xf0" + _array_element(array, U32X2, 4)


def _array_element(array: types.Array, head: struct.Struct, spare: int) -> bytes:
    # All elements have the one encoding that the constructor names.
    packer = _ELEMENTS.get(array.code)
    if packer is None:
        raise TypeError(f"0x{array.code:02x} is no AMQP format code")
    described = b"" if array.descriptor is None else b"\x00" + encode(array.descriptor)
    raw = b"".join((described, bytes((array.code,)), *(packer(item) for item in array)))
    return head.pack(len(raw) + spare, len(array)) + raw


def _items_element(items: list[Any], head: struct.Struct, spare: int) -> bytes:
    raw = b"".join(encode(item) for item in items)
    return head.pack(len(raw) + spare, len(items)) + raw


def _flat(pairs: dict[Any, Any]) -> list[Any]:
    return [part for pair in pairs.items() for part in pair]


def _sized(raw: bytes, head: struct.Struct) -> bytes:
    return head.pack(len(raw)) + raw


#: Format code of an array's constructor -> the encoder of its elements.
_ELEMENTS: dict[int, Any] = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), lambda v: b""),
    **dict.fromkeys((0x50, 0x52, 0x53), U8.pack),
    **dict.fromkeys((0x51, 0x54, 0x55), I8.pack),
    0x56: lambda v: b"\x01" if v else b"\x00",
    0x60: U16.pack,
    0x61: I16.pack,
    0x70: U32.pack,
    0x71: I32.pack,
    0x72: F32.pack,
    0x73: lambda v: U32.pack(ord(v)),
    0x80: U64.pack,
    0x81: I64.pack,
    0x82: F64.pack,
    0x83: I64.pack,
    **dict.fromkeys((0x74, 0x84, 0x94), bytes),
    0x98: lambda v: v.bytes,
    0xA0: lambda v: _sized(v, U8),
    0xA1: lambda v: _sized(v.encode(), U8),
    0xA3: lambda v: _sized(v.encode("ascii"), U8),
    0xB0: lambda v: _sized(v, U32),
    0xB1: lambda v: _sized(v.encode(), U32),
    0xB3: lambda v: _sized(v.encode("ascii"), U32),
    0xC0: lambda v: _items_element(v, U8X2, 1),
    0xC1: lambda v: _items_element(_flat(v), U8X2, 1),
    0xD0: lambda v: _items_element(v, U32X2, 4),
    0xD1: lambda v: _items_element(_flat(v), U32X2, 4),
    0xE0: lambda v: _array_element(v, U8X2, 1),
    0xF0: lambda v: _array_element(v, U32X2, 4),
}
#: The format codes that an array's elements may have.
ARRAY_CODES = frozenset(_ELEMENTS)


_ENCODERS: dict[type, Any] = {
    type(None): lambda v: b"\x40",
    bool: lambda v: b"\x41" if v else b"\x42",
    int: _int,
    str: lambda v: _variable(0xA1, 0xB1, v.encode()),
    bytes: lambda v: _variable(0xA0, 0xB0, v),
    bytearray: lambda v: _variable(0xA0, 0xB0, bytes(v)),
    float: lambda v: b"\x82" + F64.pack(v),
    UUID: lambda v: b"\x98" + v.bytes,
    list: lambda v: encode_list([encode(item) for item in v]),
    dict: _map,
    types.Array: _array,
    types.Symbol: lambda v: _variable(0xA3, 0xB3, v.encode("ascii")),
    types.Char: lambda v: b"\x73" + U32.pack(ord(v)),
    types.UByte: lambda v: b"\x50" + U8.pack(v),
    types.UShort: lambda v: b"\x60" + U16.pack(v),
    types.UInt: _uint,
    types.ULong: _ulong,
    types.Byte: lambda v: b"\x51" + I8.pack(v),
    types.Short: lambda v: b"\x61" + I16.pack(v),
    types.Long: _long,
    types.Timestamp: lambda v: b"\x83" + I64.pack(v),
    types.Float: lambda v: b"\x72" + F32.pack(v),
    types.Decimal: lambda v: bytes(({4: 0x74, 8: 0x84, 16: 0x94}[len(v)],)) + v,
    types.Described: lambda v: b"\x00" + encode(v.descriptor) + encode(v.value),
}
