"""AMQP frames: sizes, performative codes, and the functions that both filters read and write frames with."""

from __future__ import annotations

import struct

from pairbus.domain.amqp.codec import AmqpDecodeError, compound, decode, skip

MAX_FRAME = 65_536
#: A rewritten frame grows by at most this much: padding with nulls, or a new delivery-id. Each side is told a
#: smaller limit than the other's, so that there is room: Proton sends frames that the client takes after padding,
#: and the client sends frames that Proton takes after renumbering.
REWRITE_MARGIN = 64
PROTON_MAX_FRAME = MAX_FRAME + REWRITE_MARGIN
#: The smallest max-frame-size that AMQP allows.
MIN_MAX_FRAME = 512
#: The first four bytes of a protocol header ("AMQP"), read as a frame's length.
PROTOCOL_HEADER = 0x414D5150
HEADER = struct.Struct(">IBBH")

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
FIELD_COUNT = {
    OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3, END: 1, CLOSE: 1,
}  # fmt: skip

#: Performatives up to this size are not checked for depth: they have no room for harmful nesting.
UNCHECKED_DEPTH_BYTES = 120
_MAX_DEPTH = 16
_LIST32 = struct.Struct(">BII")
_COMPOUNDS = (0xC0, 0xC1, 0xD0, 0xD1)
_ARRAYS = (0xE0, 0xF0)


class FramingError(Exception):
    """Bytes that are no AMQP frame, or one that this server refuses; `valid_bytes` are those before it."""

    valid_bytes = b""


def read_performative(data: bytes, pos: int) -> tuple[int, int]:
    """Return the code of the performative at `pos`, and the position of its list of fields."""
    if data[pos] != 0:
        raise FramingError("a frame's body must begin with a described performative")
    if data[pos + 1 : pos + 2] == b"\x53" and len(data) > pos + 3:
        return data[pos + 2], pos + 3
    try:
        descriptor, value = decode(data, pos + 1)
    except AmqpDecodeError as error:
        raise FramingError(str(error)) from None
    return (int(descriptor), value) if isinstance(descriptor, int) else (0, value)


def field_spans(data: bytes, count: int, pos: int, limit: int) -> list[tuple[int, int]]:
    """Return the start and end of the first `limit` fields of a performative that has `count`."""
    spans: list[tuple[int, int]] = []
    for _ in range(min(count, limit)):
        following = skip(data, pos)
        spans.append((pos, following))
        pos = following
    return spans


def is_aborted(data: bytes, count: int, first: int) -> bool:
    """Return True if the transfer whose fields begin at `first` is aborted."""
    return count > 9 and decode(data, field_spans(data, count, first, 10)[9][0])[0] is True


def write_frame(channel: int, code: int, count: int, fields: bytes, payload: bytes) -> bytes:
    """Return a frame of one performative: `count` fields, already encoded, and a payload."""
    size = 8 + 3 + 9 + len(fields) + len(payload)
    return b"".join(
        (
            HEADER.pack(size, 2, 0, channel),
            bytes((0, 0x53, code)),
            _LIST32.pack(0xD0, len(fields) + 4, count),
            fields,
            payload,
        )
    )


def check_depth(data: bytes, pos: int, depth: int = 0) -> int:
    """Return the end of the value at `pos`; refuse nesting that could exhaust the stack of a recursive decoder."""
    if depth > _MAX_DEPTH:
        raise FramingError("a performative is nested too deeply")
    if pos >= len(data):
        raise FramingError("a performative is cut off")
    code = data[pos]
    if code == 0:
        return check_depth(data, check_depth(data, pos + 1, depth + 1), depth + 1)
    if code in _COMPOUNDS:
        count, at, end = compound(data, pos)
        for _ in range(count):
            at = check_depth(data, at, depth + 1)
        return end
    end = skip(data, pos)
    if code in _ARRAYS:
        at = pos + (3 if code == 0xE0 else 9)
        while at < end and data[at] == 0:
            at = check_depth(data, at + 1, depth + 1)
        if at < end and data[at] in (*_COMPOUNDS, *_ARRAYS):
            raise FramingError("a performative holds an array of lists, maps or arrays")
    return end
