"""The message-format of batches: set in Proton's output for batches alone, wherever the output was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.domain.amqp import sections
from pairbus.syphon.amqp.message_format import BatchFormat, batch_head, encode_batch

FORMAT = b"\x70\x80\x01\x37\x00"


def transfer(tag: bytes, message_format: bytes = b"\x43") -> bytes:
    """Return the tag and the message-format of a transfer, as Proton writes them."""
    return b"\xa0" + bytes((len(tag),)) + tag + message_format


def test_the_transfer_of_a_batch_gets_its_message_format() -> None:
    """The tag loses the padding, so the size of the frame stays the same."""
    batches = BatchFormat()
    used_before = batches.is_used
    tag = batches.tag(7)
    assert (used_before, batches.is_used) == (False, True)
    before = b"before" + transfer(tag) + b"after"
    after = batches.apply(before)
    assert after == b"before" + transfer(tag[4:], FORMAT) + b"after"
    assert len(after) == len(before)
    assert tag[:4] == bytes(4)
    assert tag[-4:] == b"\0\0\0\x07"


def test_tags_of_one_connection_differ_in_their_number_only() -> None:
    """And connections differ in a random part: a message cannot hold the tag by chance, or by intent."""
    batches = BatchFormat()
    first, second = batches.tag(1), batches.tag(2)
    assert first[:-4] == second[:-4]
    assert len({BatchFormat().tag(1) for _ in range(20)}) == 20


@given(pieces=st.lists(st.binary(max_size=20), max_size=6))
def test_other_output_is_not_changed(pieces: list[bytes]) -> None:
    """Transfers of single messages, and any bytes between batches."""
    batches = BatchFormat()
    tag = batches.tag(1)
    assert batches.apply(transfer(tag).join(pieces)) == transfer(tag[4:], FORMAT).join(pieces)
    assert batches.apply(bytearray(b"".join(pieces))) == b"".join(pieces)
    assert batches.apply(transfer(b"\0\0\0\x01")) == transfer(b"\0\0\0\x01")


@pytest.mark.parametrize("behind", [b"", b"\x40", FORMAT])
def test_a_tag_without_protons_message_format_is_not_changed(behind: bytes) -> None:
    """Such bytes are not the beginning of a transfer. The next batch still gets its format."""
    batches = BatchFormat()
    tag = batches.tag(1)
    foreign = transfer(tag, behind)
    assert batches.apply(foreign) == foreign
    assert batches.apply(foreign + transfer(tag)) == foreign + transfer(tag[4:], FORMAT)


@pytest.mark.parametrize("size", [0, 1, 243, 244, 245, 300])
def test_the_head_of_a_batch_holds_the_session(size: int) -> None:
    """Its properties are a short list or a long one, with the session as group-id."""
    head = batch_head("s" * size)
    (found,) = sections.split(head)
    assert found.code == sections.PROPERTIES
    assert sections.field(head, found.value, sections.GROUP_ID) == "s" * size


def test_messages_of_a_batch_are_data_sections_in_their_order() -> None:
    """With a short size up to 255 bytes, and with a long one from there."""
    messages = [b"", b"a" * 255, b"b" * 256, b"c" * 70_000]
    encoded = encode_batch(batch_head("s"), messages)
    head, *found = sections.split(encoded)
    assert head.code == sections.PROPERTIES
    assert encoded.startswith(batch_head("s") + b"\x00\x53\x75\xa0\x00" + b"\x00\x53\x75\xa0\xff" + messages[1])
    assert b"\x00\x53\x75\xb0\x00\x00\x01\x00" + messages[2] in encoded
    assert encoded.endswith(b"\x00\x53\x75\xb0" + (70_000).to_bytes(4, "big") + messages[3])
    assert [each.code for each in found] == [sections.DATA] * 4
