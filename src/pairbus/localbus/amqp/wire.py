"""A filter on each direction of a connection's bytes, for what Proton does not do.

Inbound: frames are bounded before they reach Proton, the message-format of transfers is noted (Proton hides
it), performatives that nest too deeply, and transfers on a link that only receives, are refused, credit beyond
what Proton computes with is cut down, and delivery ids that come out of order (Go's and Java's SDKs send them so;
Proton would close the connection) are renumbered. Outbound: performatives get back the trailing nulls that
Proton leaves out (azure-eventhub counts on them), and renumbered ids get their old numbers.
"""

from __future__ import annotations

import struct

from pairbus.domain.amqp.codec import AmqpDecodeError, UInt, compound, decode, encode, skip

from .sasl import LogIn, offered, translated

MAX_FRAME = 65_536
_MAX_DEPTH = 16
#: What a performative that is shorter than this could nest does no harm.
_SHORT = 120
#: Padding, or a new number, makes a frame longer by this much at most; each side is told of a limit that leaves
#: the room: Proton of smaller frames than the client takes, the client of smaller ones than Proton takes.
_PADDING = 64
PROTON_FRAME = MAX_FRAME + _PADDING
_MIN_MAX_FRAME = 512
_MAX_CREDIT = 0x7FFFFFFF
_HEADER = struct.Struct(">IBBH")
_LIST32 = struct.Struct(">BII")

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
_FIELD_COUNT = {
    OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3, END: 1, CLOSE: 1,
}  # fmt: skip
#: The place of a disposition's state, which Proton leaves out where there is none; and the role of who sent what
#: it settles, which is us.
_STATE, _OURS = 4, 0x42
#: The place of an attach's desired capabilities, which Proton does not show, and the one that is known here.
_DESIRED, _METRIC = 12, b"com.microsoft:enable-receiver-runtime-metric"
_COMPOUNDS = (0xC0, 0xC1, 0xD0, 0xD1)
_ARRAYS = (0xE0, 0xF0)
MAX_LINKS = 5_000


class FramingError(Exception):
    """The peer's bytes cannot be AMQP frames that this server takes; `before` is what was good until then."""

    before = b""


class _Channel:
    """What is known of one of the client's sessions."""

    __slots__ = ("names", "next_id", "open_deliveries", "open_formats", "receivers", "renumbered")

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}
        self.receivers: set[int] = set()
        self.open_deliveries: dict[int, int] = {}
        #: Where the format is noted of a delivery that is not whole yet, by its link.
        self.open_formats: dict[int, tuple[bytes, bytes]] = {}
        self.next_id: int | None = None
        self.renumbered: dict[int, int] = {}


class Inbound:
    """From the client to Proton. `formats` holds the message-format of deliveries that have one, by link and
    tag; `curious` the names of links that asked to be told, with each event, of their partition's newest."""

    def __init__(self, log_in: LogIn = lambda name, key: False) -> None:
        self._log_in = log_in
        self.formats: dict[tuple[bytes, bytes], int] = {}
        self.curious: set[bytes] = set()
        #: The largest frame that the client takes.
        self.max_frame = 0xFFFFFFFF
        self._rest = b""
        self._opened = False
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
            try:
                if length < 8 or length > MAX_FRAME or offset < 2 or offset * 4 > length:
                    raise FramingError(f"a frame of {length} bytes is not allowed here (8 to {MAX_FRAME})")
                if size - pos < length:
                    break
                body = pos + offset * 4
                if length > offset * 4:
                    if kind == 0:
                        new = self._look(data, pos, body, pos + length, channel)
                    else:
                        new = self._look_at_sasl(data[body : pos + length], kind)
                    if new is not None:
                        out += (data[kept:pos], new)
                        kept = pos + length
            except (FramingError, AmqpDecodeError) as error:
                refused = FramingError(str(error))
                refused.before = b"".join((*out, data[kept:pos]))
                raise refused from None
            pos += length
        self._rest = data[pos:]
        if not out:
            return data[:pos] if self._rest else data
        out.append(data[kept:pos])
        return b"".join(out)

    def _look_at_sasl(self, body: bytes, kind: int) -> bytes | None:
        if kind != 1 or self._opened:
            raise FramingError(f"a frame of type {kind} is not allowed here")
        if len(body) > _SHORT:
            check_depth(body, 0)
        return translated(body, self._log_in)

    def _look(self, data: bytes, start: int, body: int, end: int, channel: int) -> bytes | None:
        """Note what must be noted of a frame; a new frame if it has to be changed."""
        code, value = performative(data, body)
        if code not in _FIELD_COUNT:
            raise FramingError(f"0x{code:02x} is no performative")
        if (code == OPEN) == self._opened:
            raise FramingError("an open comes first, and once")
        self._opened = True
        count, first, after = compound(data, value)
        if after > end:
            raise FramingError("a performative goes beyond the end of its frame")
        if after - value > _SHORT:
            check_depth(data[value:after], 0)
        if code == TRANSFER:
            return self._transfer(data, count, first, after, end, channel)
        if code == FLOW:
            return self._flow(data, count, first, after, end, channel)
        if code == ATTACH:
            self._attach(data, count, first, channel)
        elif code == DETACH and count:
            state = self._channels.get(channel)
            if state is not None:
                self._forget(state, decode(data, first)[0])
        elif code in (BEGIN, END):
            gone = self._channels.pop(channel, None)
            if gone is not None:
                for handle in list(gone.names):
                    self._forget(gone, handle)
        elif code == OPEN:
            return self._open(data, count, first, after, end, channel)
        return None

    def _open(self, data: bytes, count: int, first: int, after: int, end: int, channel: int) -> bytes | None:
        """Tell Proton of smaller frames than the client takes, so that there is room for padding."""
        fields = _fields(data, count, first, 3)
        if len(fields) < 3:
            return None
        a, b = fields[2]
        size = decode(data, a)[0]
        if not isinstance(size, UInt):
            return None
        self.max_frame = max(int(size), _MIN_MAX_FRAME)
        smaller = encode(UInt(max(self.max_frame - _PADDING, _MIN_MAX_FRAME)))
        return _frame(channel, OPEN, count, data[first:a] + smaller + data[b:after], data[after:end])

    def _attach(self, data: bytes, count: int, first: int, channel: int) -> None:
        fields = _fields(data, count, first, 3)
        if len(fields) < 3:
            raise FramingError("an attach without name, handle and role")
        name, handle, role = (decode(data, at)[0] for at, _ in fields)
        if not isinstance(name, str) or not isinstance(handle, UInt) or not isinstance(role, bool):
            raise FramingError("an attach's name, handle or role is of a wrong type")
        state = self._channels.setdefault(channel, _Channel())
        self._forget(state, handle)
        if sum(len(each.names) for each in self._channels.values()) >= MAX_LINKS:
            raise FramingError(f"a connection may have {MAX_LINKS} links at most")
        state.names[handle] = name.encode()
        if role:
            state.receivers.add(handle)
        wanted = _fields(data, count, first, _DESIRED + 1)[_DESIRED:]
        if any(_METRIC in data[a:b] for a, b in wanted):
            self.curious.add(name.encode())

    def _forget(self, state: _Channel, handle: object) -> None:
        """The link is gone, and what was half sent on it."""
        if isinstance(handle, int):
            self.curious.discard(state.names.pop(handle, b""))
            state.receivers.discard(handle)
            state.open_deliveries.pop(handle, None)
            self._end_format(state, handle)

    def _end_format(self, state: _Channel, handle: int) -> None:
        """A delivery is never going to be whole: who uses its tag again may mean something else by it."""
        noted = state.open_formats.pop(handle, None)
        if noted is not None:
            self.formats.pop(noted, None)

    def _flow(self, data: bytes, count: int, first: int, after: int, end: int, channel: int) -> bytes | None:
        """Proton computes with signed numbers: more credit than they hold would be none."""
        if count < 7:
            return None
        a, b = _fields(data, count, first, 7)[6]
        if data[a] != 0x70 or data[a + 1] < 0x80:
            return None
        return _frame(channel, FLOW, count, data[first:a] + encode(UInt(_MAX_CREDIT)) + data[b:after], data[after:end])

    def _transfer(self, data: bytes, count: int, first: int, after: int, end: int, channel: int) -> bytes | None:
        state = self._channels.get(channel)
        if state is None:
            return None  # no link there: Proton says so
        fields = _fields(data, count, first, 6)
        handle = decode(data, fields[0][0])[0] if fields else None
        if not isinstance(handle, UInt):
            raise FramingError("a transfer's handle is no uint")  # Proton would take it for 0
        if handle in state.receivers:
            raise FramingError("a transfer on a link that the client receives on")
        more = len(fields) > 5 and decode(data, fields[5][0])[0] is True
        if more:  # an aborted delivery has no more, whatever it says
            more = not _is_aborted(data, count, first)
        current = state.open_deliveries.get(handle)
        given = decode(data, fields[1][0])[0] if len(fields) > 1 else None
        if given is not None and not isinstance(given, UInt):
            raise FramingError("a transfer's delivery-id is no uint")
        if current is None:
            if given is None:
                return None  # a new delivery without an id: Proton says so
            if state.next_id is None:
                state.next_id = given
            current = state.next_id
            state.next_id = (current + 1) & 0xFFFFFFFF
            settled = len(fields) > 4 and decode(data, fields[4][0])[0] is True
            if current != given and not settled:
                state.renumbered[current] = given
            self._note_format(data, fields, state, handle)
        if more:
            state.open_deliveries[handle] = current
        else:
            state.open_deliveries.pop(handle, None)
            if handle in state.open_formats:
                if _is_aborted(data, count, first):
                    self._end_format(state, handle)
                else:
                    del state.open_formats[handle]
        if given is None or given == current:
            return None
        a, b = fields[1]
        listed = data[first:a] + encode(UInt(current)) + data[b:after]
        return _frame(channel, TRANSFER, count, listed, data[after:end])

    def _note_format(self, data: bytes, fields: list[tuple[int, int]], state: _Channel, handle: int) -> None:
        if len(fields) < 4 or data[fields[3][0]] in (0x40, 0x43):
            return
        (tagged, behind), (at, end) = fields[2:4]
        if data[at] == 0x70 and data[tagged] == 0xA0:  # as every SDK writes them
            number: object = int.from_bytes(data[at + 1 : end], "big")
            tag: object = data[tagged + 2 : behind]
        else:
            number, tag = decode(data, at)[0], decode(data, tagged)[0]
        if isinstance(number, int) and number and isinstance(tag, bytes):
            if len(self.formats) > 10_000:
                self.formats.clear()  # deliveries that were never finished; their links are long gone
            key = state.open_formats[handle] = (state.names.get(handle, b""), tag)
            self.formats[key] = int(number)

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
            elif kind == 1 and (mechanisms := offered(data[pos + offset * 4 : pos + length])) is not None:
                out.append(mechanisms)
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
        if code == OPEN and count >= 3:
            a, b = _fields(data, count, first, 3)[2]
            whole = data[first:a] + encode(UInt(MAX_FRAME)) + data[b:after] + b"\x40" * (wanted - count)
            return _frame(channel, OPEN, wanted, whole, data[after:end])
        if code == BEGIN:
            remote = decode(data, first)[0]
            if isinstance(remote, int):
                self._remote[channel] = int(remote)
        elif code == DISPOSITION and count <= _STATE and data[first] == _OURS:
            # Nobody settles a message of ours so: Proton says it of those that a link leaves behind, after its detach.
            return b""
        elif code == DISPOSITION and self._inbound.renumbers(self._remote.get(channel, -1)):
            return self._disposition(data, first, after, count, channel)
        if count >= wanted:
            return data[start:end]
        nulls = b"\x40" * (wanted - count)
        padded = _frame(channel, code, wanted, data[first:after] + nulls, data[after:end])
        return padded if len(padded) <= self._inbound.max_frame else data[start:end]

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
        for step in range(((first if last is None else last) - first & 0xFFFFFFFF) + 1):
            id = first + step & 0xFFFFFFFF
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


def _fields(data: bytes, count: int, pos: int, most: int) -> list[tuple[int, int]]:
    """Where the first fields of a performative begin and end."""
    found: list[tuple[int, int]] = []
    for _ in range(min(count, most)):
        following = skip(data, pos)
        found.append((pos, following))
        pos = following
    return found


def _is_aborted(data: bytes, count: int, first: int) -> bool:
    """Of a transfer's fields."""
    return count > 9 and decode(data, _fields(data, count, first, 10)[9][0])[0] is True


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
