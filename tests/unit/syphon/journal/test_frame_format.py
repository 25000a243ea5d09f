"""Frames: read back as they were written, and never from bytes that are not whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.journal.frame_format import DATA, END, END_FRAME, FrameReader, encode_frame

PAYLOADS = st.lists(st.binary(max_size=40), max_size=5)


def frames_of(payloads: list[bytes]) -> bytes:
    return b"".join(encode_frame(DATA, each) for each in payloads)


def read(data: bytes) -> tuple[list[bytes], FrameReader]:
    """Return the payloads in some bytes, and the reader after the last of them."""
    reader = FrameReader(data)
    return [bytes(each) for each in reader], reader


def test_a_frame_has_a_fixed_form() -> None:
    """Journals outlive a version of pairbus: the bytes of a frame never change."""
    assert encode_frame(DATA, b"payload") == b"PBJ1\x07\x00\x00\x00\x87\xf9\xb8\x07payload"
    assert encode_frame(END, b"") == END_FRAME
    assert END_FRAME[:8] == b"PBJE\x00\x00\x00\x00"


@given(payloads=PAYLOADS, closed=st.booleans())
def test_payloads_are_read_as_they_were_written(payloads: list[bytes], closed: bool) -> None:
    """In their order; the reader reports both ends, and if an end frame was there."""
    data = frames_of(payloads)
    found, reader = read(data + END_FRAME * closed)
    assert found == payloads
    assert (reader.data_end, reader.end) == (len(data), len(data) + len(END_FRAME) * closed)
    assert (reader.finished, reader.torn, reader.damaged) == (closed, False, False)


def test_frames_behind_the_end_frame_are_not_read() -> None:
    """A closed journal never grows: what follows the end frame is foreign."""
    found, reader = read(frames_of([b"a"]) + END_FRAME + frames_of([b"b"]))
    assert found == [b"a"]
    assert (reader.finished, reader.torn, reader.damaged) == (True, True, False)


def test_bytes_cut_anywhere_are_read_to_the_last_whole_frame() -> None:
    """No payload before the cut is lost, none is half, and a cut inside a frame is reported."""
    payloads = [b"", b"one", b"two, and longer"]
    data = frames_of(payloads) + END_FRAME
    ends = [0]
    for each in payloads:
        ends.append(ends[-1] + len(encode_frame(DATA, each)))
    for length in range(len(data) + 1):
        found, reader = read(data[:length])
        whole = sum(end <= length for end in ends) - 1
        assert found == payloads[:whole], length
        assert reader.data_end == ends[whole]
        assert reader.finished is (length == len(data))
        assert reader.torn is (length not in ends and length != len(data))
        assert not reader.damaged


@given(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=5), data=st.data())
def test_a_flipped_bit_ends_the_reading(payloads: list[bytes], data: st.DataObject) -> None:
    """Frames before the broken one are read, it and all behind it are not."""
    whole = bytearray(frames_of(payloads))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    found, reader = read(bytes(whole))
    assert found == payloads[: len(found)]
    assert reader.end <= at
    assert reader.torn
    assert not reader.finished


def test_a_whole_frame_behind_a_broken_one_is_damage() -> None:
    """A killed write breaks the last frame only. A broken frame in front of a whole one was damaged later."""
    first, second = encode_frame(DATA, b"first"), encode_frame(DATA, b"second")
    broken = first[:-1] + b"?"
    assert read(broken + second)[1].damaged
    assert read(broken + END_FRAME)[1].damaged
    assert not read(second + broken)[1].damaged
    assert not read(broken + second[:-1])[1].damaged


def test_bytes_without_a_frame_have_none() -> None:
    """Nothing, a part of a header, zeros, a length beyond the end, another magic: no payload, no error."""
    for data in (b"PBJ1", bytes(4096), b"PBJ1\xff\xff\xff\xff\0\0\0\0", encode_frame(b"PBJ2", b"x")):
        found, reader = read(data)
        assert (found, reader.end, reader.data_end, reader.finished, reader.torn) == ([], 0, 0, False, True)
    assert not read(b"")[1].torn
