"""A filter on each direction of a connection's bytes, for what Proton does not do.

Inbound: frames are bounded before they reach Proton, the message-format of transfers is noted (Proton hides it),
performatives that nest too deeply are refused, and delivery ids that come out of order (Go's and Java's SDKs send
them so; Proton would close the connection) are renumbered. Outbound: performatives get back the trailing nulls
that Proton leaves out (azure-eventhub counts on them), and renumbered ids get their old numbers.
"""

from __future__ import annotations

import struct

from ..domain.values import AmqpDecodeError, UInt, compound, decode, encode, skip

MAX_FRAME = 65_536
_MAX_DEPTH = 16
_HEADER = struct.Struct(">IBBH")
_LIST32 = struct.Struct(">BII")

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
_FIELD_COUNT = {
    OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3, END: 1, CLOSE: 1,
}  # fmt: skip
_NULL = 0x40


class FramingError(Exception):
    """The peer's bytes cannot be AMQP frames that this server takes."""


class _Channel:
    """What is known of one of the client's sessions."""

    __slots__ = ("names", "next_id", "open_deliveries", "renumbered")

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}
        self.open_deliveries: dict[int, int] = {}
        self.next_id: int | None = None
        self.renumbered: dict[int, int] = {}


class Inbound:
    """From the client to Proton. `formats` holds the message-format of deliveries that have one, by link and tag."""

    def __init__(self) -> None:
        self.formats: dict[tuple[bytes, bytes], int] = {}
        self._rest = b""
        self._channels: dict[int, _Channel] = {}

    def feed(self, data: bytes) -> bytes:
        """The complete frames in what has come so far; an incomplete one waits for its rest."""
        if self._rest:
            data = self._rest + data
        out: list[bytes] = []
        pos, kept, size = 0, 0, len(data)
        while size - pos >= 8:
            length, offset, kind, channel = _HEADER.unpack_from(data, pos)
            if length == 0x414D5150:  # "AMQP": a protocol header, eight bytes
                pos += 8
                continue
            if length < 8 or length > MAX_FRAME or offset < 2 or offset * 4 > length:
                raise FramingError(f"a frame of {length} bytes is not allowed here (8 to {MAX_FRAME})")
            if size - pos < length:
                break
            body = pos + offset * 4
            if kind == 0 and length > offset * 4:
                new = self._look(data, pos, body, pos + length, channel)
                if new is not None:
                    out += (data[kept:pos], new)
                    kept = pos + length
            pos += length
        self._rest = data[pos:]
        if not out:
            return data[:pos] if self._rest else data
        out.append(data[kept:pos])
        return b"".join(out)

    def _look(self, data: bytes, start: int, body: int, end: int, channel: int) -> bytes | None:
        """Note what must be noted of a frame; a new frame if it has to be changed."""
        code, value = performative(data, body)
        if code == TRANSFER:
            return self._transfer(data, start, value, end, channel)
        if code in (FLOW, DISPOSITION) and end - body < 120:
            return None  # too short to nest deeply
        check_depth(data[value:end], 0)
        if code == ATTACH:
            name, pos = decode(data, compound(data, value)[1])
            handle = decode(data, pos)[0]
            if isinstance(name, str) and isinstance(handle, int):
                self._channels.setdefault(channel, _Channel()).names[handle] = name.encode()
        elif code == END:
            self._channels.pop(channel, None)
        return None

    def _transfer(self, data: bytes, start: int, value: int, end: int, channel: int) -> bytes | None:
        state = self._channels.get(channel)
        if state is None:
            return None  # no link there: Proton says so
        count, pos, after = compound(data, value)
        fields: list[tuple[int, int]] = []
        for _ in range(min(count, 6)):
            following = skip(data, pos)
            fields.append((pos, following))
            pos = following
        handle = decode(data, fields[0][0])[0] if fields else None
        if not isinstance(handle, int):
            return None
        more = len(fields) > 5 and decode(data, fields[5][0])[0] is True
        current = state.open_deliveries.get(handle)
        given = decode(data, fields[1][0])[0] if len(fields) > 1 else None
        if current is None:
            if not isinstance(given, int):
                return None  # a new delivery without an id: Proton says so
            if state.next_id is None:
                state.next_id = given
            current = state.next_id
            state.next_id = (current + 1) & 0xFFFFFFFF
            if current != given:
                state.renumbered[current] = given
            self._note_format(data, fields, state, handle)
        if more:
            state.open_deliveries[handle] = current
        else:
            state.open_deliveries.pop(handle, None)
        if given is None or given == current:
            return None
        a, b = fields[1]
        first = fields[0][0]
        listed = data[first:a] + encode(UInt(current)) + data[b:after]
        return _frame(channel, TRANSFER, count, listed, data[after:end])

    def _note_format(self, data: bytes, fields: list[tuple[int, int]], state: _Channel, handle: int) -> None:
        if len(fields) < 4 or data[fields[3][0]] in (0x40, 0x43):
            return
        number = decode(data, fields[3][0])[0]
        tag = decode(data, fields[2][0])[0]
        if isinstance(number, int) and number and isinstance(tag, bytes):
            if len(self.formats) > 10_000:
                self.formats.clear()  # deliveries that were never finished; their links are long gone
            self.formats[(state.names.get(handle, b""), tag)] = int(number)

    def given_id(self, channel: int, current: int) -> int | None:
        """The client's own number of a delivery that was renumbered."""
        state = self._channels.get(channel)
        return None if state is None else state.renumbered.pop(current, None)

    def renumbers(self, channel: int) -> bool:
        state = self._channels.get(channel)
        return state is not None and bool(state.renumbered)


class Outbound:
    """From Proton to the client."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self._rest = b""
        self._remote: dict[int, int] = {}

    def feed(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
        out: list[bytes] = []
        pos, size = 0, len(data)
        while size - pos >= 8:
            length, offset, kind, channel = _HEADER.unpack_from(data, pos)
            if length == 0x414D5150:
                length = 8
            elif size - pos < length:
                break
            elif kind == 0 and length > offset * 4:
                out.append(self._whole(data, pos, pos + offset * 4, pos + length, channel))
                pos += length
                continue
            out.append(data[pos : pos + length])
            pos += length
        self._rest = data[pos:]
        return b"".join(out)

    def _whole(self, data: bytes, start: int, body: int, end: int, channel: int) -> bytes:
        code, value = performative(data, body)
        wanted = _FIELD_COUNT.get(code)
        if wanted is None:
            return data[start:end]
        count, first, after = compound(data, value)
        if code == BEGIN:
            remote = decode(data, first)[0]
            if isinstance(remote, int):
                self._remote[channel] = int(remote)
        elif code == DISPOSITION and self._inbound.renumbers(self._remote.get(channel, -1)):
            return self._disposition(data, first, after, count, channel)
        if count >= wanted:
            return data[start:end]
        nulls = b"\x40" * (wanted - count)
        return _frame(channel, code, wanted, data[first:after] + nulls, data[after:end])

    def _disposition(self, data: bytes, pos: int, after: int, count: int, channel: int) -> bytes:
        """One disposition per delivery, under the numbers that the client gave."""
        fields = []
        for _ in range(count):
            following = skip(data, pos)
            fields.append(data[pos:following])
            pos = following
        fields += [b"\x40"] * (6 - len(fields))
        first, last = decode(fields[1])[0], decode(fields[2])[0]
        if decode(fields[0])[0] is not True:
            return _frame(channel, DISPOSITION, 6, b"".join(fields), b"")
        frames = []
        for id in range(first, (first if last is None else last) + 1):
            given = self._inbound.given_id(self._remote[channel], id)
            fields[1] = fields[2] = encode(UInt(id if given is None else given))
            frames.append(_frame(channel, DISPOSITION, 6, b"".join(fields), b""))
        return b"".join(frames)


def performative(data: bytes, pos: int) -> tuple[int, int]:
    """A frame body's performative code, and where its list begins."""
    if data[pos] != 0:
        raise FramingError("a frame's body must begin with a described performative")
    if data[pos + 1 : pos + 2] == b"\x53" and len(data) > pos + 3:
        return data[pos + 2], pos + 3
    try:
        descriptor, value = decode(data, pos + 1)
    except AmqpDecodeError as error:
        raise FramingError(str(error)) from None
    return (int(descriptor), value) if isinstance(descriptor, int) else (0, value)


def _frame(channel: int, code: int, count: int, fields: bytes, payload: bytes) -> bytes:
    size = 8 + 3 + 9 + len(fields) + len(payload)
    return b"".join(
        (
            _HEADER.pack(size, 2, 0, channel),
            bytes((0, 0x53, code)),
            _LIST32.pack(0xD0, len(fields) + 4, count),
            fields,
            payload,
        )
    )


def check_depth(data: bytes, pos: int, depth: int = 0) -> int:
    """Refuse a value that nests beyond any use before a recursive decoder sees it; where it ends."""
    if depth > _MAX_DEPTH:
        raise FramingError("a performative is nested too deeply")
    code = data[pos]
    if code == 0:
        return check_depth(data, check_depth(data, pos + 1, depth + 1), depth + 1)
    if code in (0xC0, 0xC1, 0xD0, 0xD1):
        count, at, end = compound(data, pos)
        for _ in range(count):
            at = check_depth(data, at, depth + 1)
        return end
    return skip(data, pos)
