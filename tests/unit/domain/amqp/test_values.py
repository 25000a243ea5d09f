"""AMQP's type system: what is encoded is decoded the same, garbage is refused cheaply, Proton agrees."""

from __future__ import annotations

import contextlib
import math
import struct
import time
from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.domain.amqp import codec as values
from pairbus.domain.amqp.codec import (
    MAX_DEPTH,
    AmqpDecodeError,
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
    compound,
    decode,
    encode,
    skip,
)


def _whole(kind: type, bits: int, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    edges = [n for n in (low, low + 1, -129, -128, -1, 0, 1, 127, 128, 255, 256, high) if low <= n <= high]
    return (st.integers(low, high) | st.sampled_from(edges)).map(kind)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
singles = st.floats(width=32, allow_nan=False).map(Float)

#: A strategy for every primitive type, by the constructors (format codes) that an array of it may have.
_PRIMITIVES: dict[str, tuple[st.SearchStrategy[Any], tuple[int, ...]]] = {
    "null": (st.none(), (0x40,)),
    "boolean": (st.booleans(), (0x56,)),
    "ubyte": (_whole(UByte, 8, False), (0x50,)),
    "ushort": (_whole(UShort, 16, False), (0x60,)),
    "uint": (_whole(UInt, 32, False), (0x70,)),
    "ulong": (_whole(ULong, 64, False), (0x80,)),
    "byte": (_whole(Byte, 8, True), (0x51,)),
    "short": (_whole(Short, 16, True), (0x61,)),
    "int": (_whole(int, 32, True), (0x71,)),
    "long": (_whole(Long, 64, True), (0x81,)),
    "small uint": (st.integers(0, 255).map(UInt), (0x52,)),
    "small ulong": (st.integers(0, 255).map(ULong), (0x53,)),
    "small int": (st.integers(-128, 127), (0x54,)),
    "small long": (st.integers(-128, 127).map(Long), (0x55,)),
    "float": (singles, (0x72,)),
    "double": (st.floats(allow_nan=False), (0x82,)),
    "decimal32": (st.binary(min_size=4, max_size=4).map(Decimal), (0x74,)),
    "decimal64": (st.binary(min_size=8, max_size=8).map(Decimal), (0x84,)),
    "decimal128": (st.binary(min_size=16, max_size=16).map(Decimal), (0x94,)),
    "char": (st.characters(exclude_categories=["Cs"]).map(Char), (0x73,)),
    "timestamp": (_whole(Timestamp, 64, True), (0x83,)),
    "uuid": (st.uuids(), (0x98,)),
    "binary": (st.binary(max_size=300), (0xB0,)),
    "short binary": (st.binary(max_size=255), (0xA0,)),
    "string": (text, (0xB1,)),
    "short string": (st.text(st.characters(max_codepoint=127), max_size=255), (0xA1,)),
    "symbol": (ascii_text.map(Symbol), (0xB3,)),
    "short symbol": (st.text(st.characters(max_codepoint=127), max_size=255).map(Symbol), (0xA3,)),
}
primitives = st.one_of([strategy for strategy, _ in _PRIMITIVES.values()])
arrays = st.sampled_from(sorted(_PRIMITIVES)).flatmap(
    lambda name: st.builds(
        Array,
        st.sampled_from(_PRIMITIVES[name][1]),
        st.lists(_PRIMITIVES[name][0], max_size=6),
        st.none() | ascii_text.map(Symbol),
    )
)
# As a map's key every value must be its own in Python too: 1, 1.0 and True are one key there.
keys = text | st.integers(2, 2**31 - 1) | st.uuids() | st.binary(max_size=20)


def _compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=5)
        | st.dictionaries(keys, inner, max_size=5)
        | st.builds(Described, primitives.filter(lambda v: v is not None), inner)
        | st.builds(Array, st.sampled_from((0xC0, 0xD0)), st.lists(st.lists(primitives, max_size=2), max_size=2))
        | st.builds(Array, st.just(0xD1), st.lists(st.dictionaries(keys, primitives, max_size=2), max_size=2))
        | st.builds(Array, st.just(0xF0), st.lists(arrays, max_size=2))
    )


anything = st.recursive(primitives | arrays, _compounds, max_leaves=12)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in every type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Array):
        return a.code == b.code and same(a.descriptor, b.descriptor) and same(list(a), list(b))
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, Described):
        return same(a.descriptor, b.descriptor) and same(a.value, b.value)
    return bool(a == b)


def _short_list_overflows(value: Any) -> bool:
    """Return True if a value contains an array of 8-bit lists one of which does not fit."""
    try:
        encode(value)
    except ValueError:
        return True
    return False


@given(anything)
@example(Array(0xB3, [Symbol("a"), Symbol("b")]))
@example(Described(Symbol("com.microsoft:timespan"), Long(-1)))
@example({"a": [UInt(0), ULong(0), [], {}]})
def test_decode_is_the_inverse_of_encode(value: Any) -> None:
    """Every AMQP value comes back with its value and its exact type."""
    if _short_list_overflows(value):
        return
    raw = encode(value)
    found, end = decode(raw)
    assert end == len(raw)
    assert same(found, value)


@given(anything, st.binary(max_size=5), st.binary(max_size=5))
def test_skip_ends_where_decode_ends(value: Any, before: bytes, after: bytes) -> None:
    """A value is stepped over without decoding, wherever in a buffer it lies."""
    if _short_list_overflows(value):
        return
    raw = encode(value)
    buffer = before + raw + after
    assert skip(buffer, len(before)) == decode(buffer, len(before))[1] == len(before) + len(raw)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x00")
@example(b"\xc1\x03\x02\x45\x40")
@example(b"\xc0\x00\x00")
@example(b"\xe0\x00\x00\x40")
@example(b"\xf0\x00\x00\x00\x00")
@example(b"\x73\x00\x00\xd8\x00")
@example(b"\x73\x00\x11\x00\x00")
@example(b"\xa1\x01\xff")
@example(b"\x56\x02")
def test_garbage_is_refused_with_one_error(raw: bytes) -> None:
    """Whatever the bytes, decoding gives a value or AmqpDecodeError, and skip goes no further than the buffer."""
    try:
        _, end = decode(raw)
        assert 0 < end <= len(raw)
        assert skip(raw, 0) == end
    except AmqpDecodeError:
        pass
    with contextlib.suppress(AmqpDecodeError):
        assert 0 < skip(raw, 0) <= len(raw)
    try:
        count, first, end = compound(raw, 0)
        assert first <= end <= len(raw)
        assert count <= end - first
    except AmqpDecodeError:
        pass


@given(anything, st.data())
def test_a_damaged_value_is_refused_or_is_another_value(value: Any, data: st.DataObject) -> None:
    """One changed byte in a good value: a value or AmqpDecodeError, and what is decoded can be encoded again."""
    if _short_list_overflows(value):
        return
    raw = bytearray(encode(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found, _ = decode(bytes(raw))
    except AmqpDecodeError:
        return
    assert encode(decode(encode(found))[0]) == encode(found)


@given(anything)
def test_a_value_that_is_cut_off_is_refused(value: Any) -> None:
    """No prefix of a value is a value."""
    if _short_list_overflows(value):
        return
    raw = encode(value)
    for size in {*range(min(len(raw), 40)), len(raw) - 1}:
        with pytest.raises(AmqpDecodeError):
            decode(raw[:size])
        with pytest.raises(AmqpDecodeError):
            skip(raw[:size], 0)


LONG_FORMS = [
    (b"\x56\x01", True),
    (b"\x56\x00", False),
    (b"\x70\x00\x00\x00\x05", UInt(5)),
    (b"\x70\x00\x00\x00\x00", UInt(0)),
    (b"\x52\x00", UInt(0)),
    (b"\x80" + b"\x00" * 7 + b"\x05", ULong(5)),
    (b"\x53\x00", ULong(0)),
    (b"\x71\xff\xff\xff\xff", -1),
    (b"\x81" + b"\xff" * 8, Long(-1)),
    (b"\xb0\x00\x00\x00\x01x", b"x"),
    (b"\xb1\x00\x00\x00\x01x", "x"),
    (b"\xb3\x00\x00\x00\x01x", Symbol("x")),
    (b"\xc0\x01\x00", []),
    (b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00", []),
    (b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40", [None]),
    (b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00", {}),
    (b"\xd1\x00\x00\x00\x08\x00\x00\x00\x02\xa1\x01k\x40", {"k": None}),
    (b"\xe0\x04\x02\x52\x01\x02", Array(0x52, [UInt(1), UInt(2)])),
    (b"\xe0\x02\x03\x41", Array(0x41, [True, True, True])),
    (b"\xe0\x07\x02\x00\x53\x05\x54\x01\x02", Array(0x54, [1, 2], ULong(5))),
    (b"\xf0\x00\x00\x00\x05\x00\x00\x00\x00\x40", Array(0x40, [])),
]


@pytest.mark.parametrize(("raw", "value"), LONG_FORMS, ids=lambda x: x.hex() if isinstance(x, bytes) else "")
def test_unusual_encodings_are_read(raw: bytes, value: Any) -> None:
    """A type has several encodings; all of them are understood."""
    found, end = decode(raw)
    assert end == len(raw) == skip(raw, 0)
    assert same(found, value)


@pytest.mark.parametrize(
    "value",
    [UByte(256), UByte(-1), UShort(65_536), UInt(2**32), UInt(-1), ULong(2**64), Byte(128), Short(2**15),
     Long(2**63), Timestamp(2**63), 2**63, "\ud800"],
    ids=repr,
)  # fmt: skip
def test_a_value_out_of_range_is_refused(value: Any) -> None:
    """A value out of its type's range raises ValueError; nothing is truncated."""
    with pytest.raises(ValueError):  # noqa: PT011
        encode(value)


def test_a_python_type_without_an_amqp_type_is_refused() -> None:
    """A set, a complex number, an object: TypeError, with the type's name."""
    for value in ({1}, 1j, object()):
        with pytest.raises(TypeError, match=type(value).__name__):
            encode(value)


def test_a_bare_int_takes_the_width_it_needs() -> None:
    """int where 32 bits do, long where they do not."""
    assert same(decode(encode(2**31 - 1))[0], 2**31 - 1)
    assert same(decode(encode(2**31))[0], Long(2**31))


def test_not_a_number_stays_not_a_number() -> None:
    """NaN has no equal, so it is tested here."""
    assert math.isnan(decode(encode(math.nan))[0])
    assert math.isnan(decode(encode(Float(math.nan)))[0])


# --- cost ---------------------------------------------------------------------------------------------------------


def _nest(depth: int, kind: int) -> bytes:
    raw = b"\x40"
    for _ in range(depth):
        if kind == 0xD0:
            raw = b"\xd0" + struct.pack(">II", len(raw) + 4, 1) + raw
        elif kind == 0xD1:
            raw = b"\xd1" + struct.pack(">II", len(raw) + 5, 2) + b"\x43" + raw
        elif kind == 0xF0:
            raw = b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + raw
        elif kind == 0:
            raw = b"\x00\x43" + raw
        else:
            raw = b"\x00" + raw + b"\x40"
    return raw


@pytest.mark.parametrize("kind", [0xD0, 0xD1, 0xF0, 0, -1], ids=["list", "map", "array", "described", "descriptor"])
def test_deep_nesting_is_refused(kind: int) -> None:
    """A few levels are fine; thousands are refused before Python's stack is at risk."""
    assert decode(_nest(5, kind))[1] == len(_nest(5, kind))
    for depth in (MAX_DEPTH + 1, 5_000):
        with pytest.raises(AmqpDecodeError, match="deep"):
            decode(_nest(depth, kind))
    if kind in (0, -1):
        with pytest.raises(AmqpDecodeError, match="deep"):
            skip(_nest(5_000, kind), 0)


def _uuid_with_hash(number: int) -> bytes:
    return b"\x98" + (number * (2**61 - 1) % 2**128).to_bytes(16, "big")


HOSTILE = {
    "uuids of one hash as keys": values.encode_map(
        [part for n in range(30_000) for part in (_uuid_with_hash(n), b"\x40")]
    ),
    "described keys of one descriptor": values.encode_map(
        [part for n in range(30_000) for part in (b"\x00\x43" + encode(n), b"\x40")]
    ),
    "many arrays of elements without bytes": values.encode_list([b"\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40"] * 20_000),
    "small arrays of elements without bytes": values.encode_list([b"\xe0\x02\xff\x45"] * 100_000),
    "an array that claims 4 G elements": b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
    "a list that claims 4 G elements": b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    "a list in which each list overlaps the next": b"\xd0\x00\x00\xff\xff\x00\x00\x00\x02" * 7_000,
    "arrays in an array, each with a byte too many": b"".join(
        (b"\xf0", struct.pack(">II", 4 + 1 + 4 * 60_000, 60_000), b"\xe0", b"\x02\x01\x40\x40" * 60_000)
    ),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_values_cost_neither_time_nor_memory(raw: bytes) -> None:
    """Decoding is linear in the bytes: what would blow up by its counts or its hashes is refused early."""
    started = time.process_time()
    with pytest.raises(AmqpDecodeError):
        decode(raw)
    assert time.process_time() - started < 1.0


def test_time_grows_with_the_bytes_only() -> None:
    """Ten times the bytes take about ten times as long, for every shape of value."""

    def seconds(raw: bytes) -> float:
        best = math.inf
        for _ in range(3):
            started = time.process_time()
            decode(raw)
            best = min(best, time.process_time() - started)
        return best

    shapes = {
        "list": lambda n: encode([None] * n),
        "strings": lambda n: encode(["abc"] * n),
        "map": lambda n: encode({f"k{i}": i for i in range(n)}),
        "integers as keys": lambda n: encode({i << 20: None for i in range(2, n)}),
        "array": lambda n: encode(Array(0xB1, ["x"] * n)),
        "nested array": lambda n: encode(Array(0xF0, [Array(0xF0, [Array(0x52, [UInt(1)] * n)])])),
        "nested list": lambda n: encode([[[["x"] * n]]]),
    }
    for name, make in shapes.items():
        small, large = seconds(make(3_000)), seconds(make(30_000))
        assert large < 40 * small + 0.01, name


# --- Proton as another opinion ---------------------------------------------------------------------------------------


def _ours_to_proton(value: Any) -> Any:
    """The same value in Proton's Python types."""
    kinds: dict[type, Any] = {
        UByte: proton.ubyte, UShort: proton.ushort, UInt: proton.uint, ULong: proton.ulong, Byte: proton.byte,
        Short: proton.short, int: proton.int32, Long: int, Timestamp: proton.timestamp, Symbol: proton.symbol,
        Char: proton.char, Float: proton.float32,
    }  # fmt: skip
    if isinstance(value, Described):
        return proton.Described(_ours_to_proton(value.descriptor), _ours_to_proton(value.value))
    if type(value) is list:
        return [_ours_to_proton(each) for each in value]
    if type(value) is dict:
        return {_ours_to_proton(key): _ours_to_proton(each) for key, each in value.items()}
    kind = kinds.get(type(value))
    return value if kind is None else kind(value)


# Proton keeps at most 65,535 nodes and has no decimals, arrays differ in its Python form: left out here.
_proton_primitives = st.one_of([s for name, (s, _) in _PRIMITIVES.items() if not name.startswith(("decimal", "float"))])
_proton_values = st.recursive(
    _proton_primitives,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(text | st.uuids(), inner, max_size=4)
        | st.builds(Described, ascii_text.map(Symbol) | _whole(ULong, 64, False), inner)
    ),
    max_leaves=8,
)


@given(_proton_values)
def test_proton_writes_what_we_read(value: Any) -> None:
    """Our decoder reads Proton's encoding of a value as that value, with its types."""
    data = proton.Data()
    data.put_object(_ours_to_proton(value))
    assert same(decode(bytes(data.encode()))[0], value)


@given(_proton_values)
def test_proton_reads_what_we_write(value: Any) -> None:
    """Proton's decoder reads our encoding of a value whole, and as the same value."""
    raw = encode(value)
    data = proton.Data()
    assert data.decode(raw) == len(raw)
    again = proton.Data()
    again.put_object(_ours_to_proton(value))
    assert data.format() == again.format()


@given(arrays)
def test_proton_takes_our_arrays(array: Array) -> None:
    """Arrays of every primitive type, described or not, are arrays to Proton too."""
    raw = encode(array)
    data = proton.Data()
    assert data.decode(raw) == len(raw)


@given(st.binary(max_size=60))
def test_what_we_take_proton_takes(raw: bytes) -> None:
    """We are never laxer than Proton in where a value ends."""
    try:
        found, end = decode(raw)
    except AmqpDecodeError:
        return
    if _has_odd_descriptor(found):
        return
    data = proton.Data()
    assert data.decode(raw[:end]) == end


def _has_odd_descriptor(value: Any) -> bool:
    # Proton takes no list, map, array or described value as a descriptor; AMQP's grammar does.
    if isinstance(value, Described):
        return isinstance(value.descriptor, (list, dict, Described)) or _has_odd_descriptor(value.value)
    if isinstance(value, dict):
        return any(map(_has_odd_descriptor, (*value.keys(), *value.values())))
    if isinstance(value, Array) and value.descriptor is not None:
        return True
    return isinstance(value, list) and any(map(_has_odd_descriptor, value))


def test_uuid_is_the_standard_one() -> None:
    """A UUID is Python's own, in network order."""
    number = UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert encode(number) == b"\x98" + bytes.fromhex("00112233445566778899aabbccddeeff")
