"""A message's sections: found whatever their encoding, and edited without touching a byte that was not named."""

from __future__ import annotations

import time
from typing import Any

import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import AmqpDecodeError, Symbol, UInt, ULong, decode, encode
from tests.support.amqp_messages import CORPUS, maps, messages, scalars, wide_form


@given(messages())
def test_every_section_is_found_in_any_encoding(made: tuple[bytes, list[tuple[int, bytes]]]) -> None:
    """Short, 8-byte and symbolic descriptors, 8- and 32-bit sizes: each section has its code and its exact bytes."""
    raw, wanted = made
    found = sections.split(raw)
    assert [(s.code, raw[s.value : s.end]) for s in found] == wanted
    assert b"".join(raw[s.start : s.end] for s in found) == raw


@pytest.mark.parametrize(("name", "raw", "format"), CORPUS, ids=[name for name, _, _ in CORPUS])
def test_the_sdks_own_messages_are_read_as_proton_reads_them(name: str, raw: bytes, format: int) -> None:
    """Messages of Python's, JavaScript's and Go's SDKs have the sections, properties and annotations of Proton."""
    found = sections.split(raw)
    assert b"".join(raw[s.start : s.end] for s in found) == raw
    if format:
        assert {s.code for s in found} >= {sections.DATA}
        for section in found:
            if section.code == sections.DATA:
                assert sections.split(decode(raw, section.value)[0])
        return
    peer = proton.Message()
    peer.decode(raw)
    for section in found:
        if section.code == sections.PROPERTIES:
            assert sections.field(raw, section.value, sections.SUBJECT) == peer.subject
            assert sections.field(raw, section.value, sections.CORRELATION_ID) == peer.correlation_id
            assert sections.field(raw, section.value, sections.GROUP_ID) == peer.group_id
        elif section.code == sections.APPLICATION_PROPERTIES:
            ours = [entry.key for entry in sections.entries(raw, section.value)]
            assert ours == list(peer.properties)  # type: ignore[call-overload]
        elif section.code == sections.MESSAGE_ANNOTATIONS:
            ours = [entry.key for entry in sections.entries(raw, section.value)]
            assert ours == list(peer.annotations or ())


@given(st.binary(max_size=300))
def test_garbage_is_no_message(raw: bytes) -> None:
    """Any bytes: sections that fill them exactly, or AmqpDecodeError."""
    try:
        found = sections.split(raw)
    except AmqpDecodeError:
        return
    assert (found[-1].end if found else 0) == len(raw)


@given(st.sampled_from(CORPUS), st.data())
def test_a_damaged_message_raises_nothing_but_a_decode_error(
    chosen: tuple[str, bytes, int], data: st.DataObject
) -> None:
    """A real message with some bytes changed, cut or put in: read as something, or refused with AmqpDecodeError."""
    raw = bytearray(chosen[1])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    damaged = bytes(raw)
    try:
        for section in sections.split(damaged):
            if section.code in (sections.HEADER, sections.PROPERTIES, sections.SEQUENCE):
                for index in range(len(sections.fields(damaged, section.value))):
                    sections.field(damaged, section.value, index)
            elif section.code in (sections.DATA, sections.VALUE):
                decode(damaged, section.value)
            else:
                sections.check_map(damaged, section.value)
                sections.entries(damaged, section.value)
    except AmqpDecodeError:
        pass


@given(maps | st.binary(min_size=1, max_size=60))
@example(b"\xc1\x03\x02\xa1\x05")
@example(b"\xd1\x00\x00\x00\x05\x00\x00\x00\x01\x40")
def test_check_map_allows_what_entries_can_walk(raw: bytes) -> None:
    """The check when a message comes in and the walk when a rule edits it agree on every map."""

    def outcome(function: Any) -> bool:
        try:
            function(raw, 0)
        except AmqpDecodeError:
            return False
        return True

    assert outcome(sections.check_map) == outcome(sections.entries)


BAD = {
    "no descriptor": b"\x40",
    "unknown section": b"\x00\x53\x79\x45",
    "section 0": b"\x00\x44\x45",
    "unknown symbol": b"\x00\xa3\x03abc\x45",
    "string as descriptor": b"\x00\xa1\x10amqp:header:list\x45",
    "header twice": b"\x00\x53\x70\x45\x00\x53\x70\x45",
    "value twice": b"\x00\x53\x77\x40\x00\x53\x77\x40",
    "two kinds of body": b"\x00\x53\x75\xa0\x00\x00\x53\x77\x40",
    "a map as header": b"\x00\x53\x70\xc1\x01\x00",
    "a list as annotations": b"\x00\x53\x72\x45",
    "a string as data": b"\x00\x53\x75\xa1\x00",
    "cut off in a descriptor": b"\x00\x53",
    "cut off after a descriptor": b"\x00\x53\x75",
    "cut off in a value": b"\x00\x53\x75\xa0\x05abc",
    "a descriptor in a descriptor, a thousand times": b"\x00" * 1_000 + b"\x53\x75\xa0\x00",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    """Each way to be wrong is noticed when the message comes in, not when it is delivered."""
    with pytest.raises(AmqpDecodeError):
        sections.split(raw)


# --- splicing ---------------------------------------------------------------------------------------------------------


@given(st.lists(scalars, max_size=14), st.dictionaries(st.integers(0, 14), scalars, max_size=4), st.booleans())
def test_with_fields_changes_the_named_fields_only(items: list[Any], changes: dict[int, Any], wide: bool) -> None:
    """Every other field keeps its bytes, nulls at the end included; the list grows to the last named one."""
    raw = encode(items)
    raw = b"junk" + (wide_form(raw) if wide else raw)
    out = sections.with_fields(raw, 4, {index: encode(value) for index, value in changes.items()})
    before = [raw[a:b] for a, b in sections.fields(raw, 4)]
    after = [out[a:b] for a, b in sections.fields(out, 0)]
    assert len(after) == max(len(before), *(index + 1 for index in changes), 0)
    for index, part in enumerate(after):
        if index in changes:
            assert part == encode(changes[index])
        else:
            assert part == (before[index] if index < len(before) else b"\x40")


@given(
    st.dictionaries(st.sampled_from("abcdefgh") | st.integers(2, 9), scalars, max_size=8),
    st.dictionaries(st.sampled_from("abcdxyz"), st.none() | scalars.map(encode), max_size=5),
    st.booleans(),
)
def test_with_entries_changes_the_named_entries_only(
    pairs: dict[Any, Any], changes: dict[str, bytes | None], wide: bool
) -> None:
    """Entries keep their order, their keys' and their values' bytes; new ones come last; removed ones are missing."""
    raw = encode(pairs)
    raw = b"junk" + (wide_form(raw) if wide else raw)
    out = sections.with_entries(raw, 4, changes)

    def spans(buffer: bytes, at: int) -> list[tuple[Any, bytes, bytes]]:
        return [(e.key, buffer[e.start : e.value], buffer[e.value : e.end]) for e in sections.entries(buffer, at)]

    wanted = []
    for key, key_bytes, value_bytes in spans(raw, 4):
        if key not in changes:
            wanted.append((key, key_bytes, value_bytes))
        elif changes[key] is not None:
            wanted.append((key, key_bytes, changes[key] or b""))
    wanted += [(k, encode(k), v) for k, v in changes.items() if k not in pairs and v is not None]
    assert spans(out, 0) == wanted


def test_with_entries_keeps_a_symbol_a_symbol() -> None:
    """A changed entry keeps its key's type; a new key gets the given type."""
    raw = encode({Symbol("a"): 1})
    out = sections.with_entries(raw, 0, {"a": encode(2), "b": encode(3)}, Symbol)
    found = decode(out)[0]
    assert found == {"a": 2, "b": 3}
    assert all(type(key) is Symbol for key in found)


def test_an_absent_section_is_made() -> None:
    """Without a list or map to start from, one is written that holds the changes."""
    assert decode(sections.with_fields(b"", None, {2: encode("x")}))[0] == [None, None, "x"]
    assert decode(sections.with_entries(b"", None, {"k": encode(UInt(1)), "gone": None}))[0] == {"k": 1}
    assert sections.split(sections.section(sections.HEADER, b"\x45"))[0].code == sections.HEADER


def test_reading_is_linear_in_the_bytes() -> None:
    """A megabyte of the smallest sections, fields or entries is read within a second."""
    many = {
        "sections": lambda: sections.split(b"\x00\x53\x75\xa0\x00" * 200_000),
        "long descriptors": lambda: sections.split((b"\x00\xa3\x10amqp:data:binary\xa0\x00") * 50_000),
        "fields": lambda: sections.fields(encode([None] * 1_000_000), 0),
        "entries": lambda: sections.entries(encode({f"{n}": None for n in range(100_000)}), 0),
    }
    for name, read in many.items():
        started = time.process_time()
        read()
        assert time.process_time() - started < 2.0, name


def test_a_field_of_a_shorter_list_is_null() -> None:
    """Fields at the end may be left out; they read as null."""
    raw = encode(["a", ULong(1)])
    assert sections.field(raw, 0, 1) == 1
    assert sections.field(raw, 0, 2) is None
