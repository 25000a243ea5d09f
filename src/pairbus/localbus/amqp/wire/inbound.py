"""The filter between a client's bytes and Proton, for the parts of AMQP that Proton does not do.

It refuses frames that are too large or nested too deeply, and transfers on a link that the client receives on; records
the message-format of each delivery; lowers credit to the largest number that Proton computes with; and renumbers
delivery-ids that are out of order, as Go's and Java's SDKs send them.
"""

from __future__ import annotations

from pairbus.domain.amqp.codec import AmqpDecodeError, UInt, compound, decode, encode

from .frames import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    FIELD_COUNT,
    FLOW,
    HEADER,
    MAX_FRAME,
    MIN_MAX_FRAME,
    OPEN,
    PROTOCOL_HEADER,
    REWRITE_MARGIN,
    TRANSFER,
    UNCHECKED_DEPTH_BYTES,
    FramingError,
    check_depth,
    field_spans,
    is_aborted,
    read_performative,
    write_frame,
)
from .sasl import KeyCheck, translate_init

MAX_LINKS = 5_000
_MAX_CREDIT = 0x7FFFFFFF
#: Formats that are kept at most. More of them belong to deliveries that were never finished.
_MAX_FORMATS = 10_000
#: The index of an attach's desired capabilities, which Proton does not show, and the one that localbus knows.
_DESIRED_CAPABILITIES, _RUNTIME_METRIC = 12, b"com.microsoft:enable-receiver-runtime-metric"


class _Channel:
    """State of one of the client's sessions."""

    __slots__ = ("link_names", "next_id", "open_deliveries", "open_formats", "receivers", "renumbered")

    def __init__(self) -> None:
        #: Handle -> name of each link.
        self.link_names: dict[int, bytes] = {}
        #: Handles of the links that the client receives on.
        self.receivers: set[int] = set()
        #: Handle -> delivery-id of a delivery of which more frames will come.
        self.open_deliveries: dict[int, int] = {}
        #: Handle -> key in `message_formats` of a delivery of which more frames will come.
        self.open_formats: dict[int, tuple[bytes, bytes]] = {}
        #: The delivery-id that Proton expects next.
        self.next_id: int | None = None
        #: Delivery-id that Proton knows -> the client's own, until it is settled.
        self.renumbered: dict[int, int] = {}


class InboundFilter:
    """Filter from the client to Proton; `max_frame` is the largest frame that the client takes."""

    def __init__(self, check_key: KeyCheck = lambda name, key: False) -> None:
        self._check_key = check_key
        #: (link name, delivery tag) -> message-format, if that is not 0.
        self.message_formats: dict[tuple[bytes, bytes], int] = {}
        #: Names of links that asked for the partition's last event with each event they receive.
        self.runtime_metric_links: set[bytes] = set()
        self.max_frame = 0xFFFFFFFF
        self._incomplete = b""
        self._opened = False
        self._channels: dict[int, _Channel] = {}

    def feed(self, data: bytes) -> bytes:
        """Return the complete frames received so far; keep an incomplete one until the rest comes."""
        if self._incomplete:
            data = self._incomplete + data
        out: list[bytes] = []
        pos, copied, size = 0, 0, len(data)
        while size - pos >= 8:
            length, offset, kind, channel = HEADER.unpack_from(data, pos)
            if length == PROTOCOL_HEADER:
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
                        rewritten = self._filter_amqp(data, body, pos + length, channel)
                    else:
                        rewritten = self._filter_sasl(data[body : pos + length], kind)
                    if rewritten is not None:
                        out += (data[copied:pos], rewritten)
                        copied = pos + length
            except (FramingError, AmqpDecodeError) as error:
                refused = FramingError(str(error))
                refused.valid_bytes = b"".join((*out, data[copied:pos]))
                raise refused from None
            pos += length
        self._incomplete = data[pos:]
        if not out:
            return data[:pos] if self._incomplete else data
        out.append(data[copied:pos])
        return b"".join(out)

    def _filter_sasl(self, body: bytes, kind: int) -> bytes | None:
        """Return the frame that replaces a SASL frame, None if it can pass unchanged."""
        if kind != 1 or self._opened:
            raise FramingError(f"a frame of type {kind} is not allowed here")
        if len(body) > UNCHECKED_DEPTH_BYTES:
            check_depth(body, 0)
        return translate_init(body, self._check_key)

    def _filter_amqp(self, data: bytes, body: int, end: int, channel: int) -> bytes | None:
        """Return the frame that replaces an AMQP frame, None if it can pass unchanged."""
        code, value = read_performative(data, body)
        if code not in FIELD_COUNT:
            raise FramingError(f"0x{code:02x} is no performative")
        if (code == OPEN) == self._opened:
            raise FramingError("an open comes first, and once")
        self._opened = True
        count, first, after = compound(data, value)
        if after > end:
            raise FramingError("a performative goes beyond the end of its frame")
        if after - value > UNCHECKED_DEPTH_BYTES:
            check_depth(data[value:after], 0)
        if code == TRANSFER:
            return self._filter_transfer(data, count, first, after, end, channel)
        if code == FLOW:
            return self._filter_flow(data, count, first, after, end, channel)
        if code == OPEN:
            return self._filter_open(data, count, first, after, end, channel)
        if code != DISPOSITION:
            self._track_links(code, data, count, first, channel)
        return None

    def _filter_open(self, data: bytes, count: int, first: int, after: int, end: int, channel: int) -> bytes | None:
        """Lower the max-frame-size that Proton sees, so that frames from Proton can be padded."""
        fields = field_spans(data, count, first, 3)
        if len(fields) < 3:
            return None
        a, b = fields[2]
        size = decode(data, a)[0]
        if not isinstance(size, UInt):
            return None
        self.max_frame = max(int(size), MIN_MAX_FRAME)
        lowered = encode(UInt(max(self.max_frame - REWRITE_MARGIN, MIN_MAX_FRAME)))
        return write_frame(channel, OPEN, count, data[first:a] + lowered + data[b:after], data[after:end])

    def _track_links(self, code: int, data: bytes, count: int, first: int, channel: int) -> None:
        """Follow the client's attaches and detaches, and the begin and end of its sessions."""
        if code == ATTACH:
            self._add_link(data, count, first, channel)
        elif code == DETACH and count:
            state = self._channels.get(channel)
            if state is not None:
                self._remove_link(state, decode(data, first)[0])
        elif code in (BEGIN, END):
            state = self._channels.pop(channel, None)
            if state is not None:
                for handle in list(state.link_names):
                    self._remove_link(state, handle)

    def _add_link(self, data: bytes, count: int, first: int, channel: int) -> None:
        fields = field_spans(data, count, first, 3)
        if len(fields) < 3:
            raise FramingError("an attach without name, handle and role")
        name, handle, role = (decode(data, at)[0] for at, _ in fields)
        if not isinstance(name, str) or not isinstance(handle, UInt) or not isinstance(role, bool):
            raise FramingError("an attach's name, handle or role is of a wrong type")
        state = self._channels.setdefault(channel, _Channel())
        self._remove_link(state, handle)
        if sum(len(each.link_names) for each in self._channels.values()) >= MAX_LINKS:
            raise FramingError(f"a connection may have {MAX_LINKS} links at most")
        state.link_names[handle] = name.encode()
        if role:
            state.receivers.add(handle)
        capabilities = field_spans(data, count, first, _DESIRED_CAPABILITIES + 1)[_DESIRED_CAPABILITIES:]
        if any(_RUNTIME_METRIC in data[a:b] for a, b in capabilities):
            self.runtime_metric_links.add(name.encode())

    def _remove_link(self, state: _Channel, handle: object) -> None:
        """Forget a link and the delivery that was still open on it."""
        if isinstance(handle, int):
            self.runtime_metric_links.discard(state.link_names.pop(handle, b""))
            state.receivers.discard(handle)
            state.open_deliveries.pop(handle, None)
            self._discard_format(state, handle)

    def _discard_format(self, state: _Channel, handle: int) -> None:
        """Forget the format of a delivery that will never be complete: its tag may be used again."""
        key = state.open_formats.pop(handle, None)
        if key is not None:
            self.message_formats.pop(key, None)

    def _filter_flow(self, data: bytes, count: int, first: int, after: int, end: int, channel: int) -> bytes | None:
        """Lower credit that Proton's signed numbers cannot hold: Proton would see a negative number."""
        if count < 7:
            return None
        a, b = field_spans(data, count, first, 7)[6]
        if data[a] != 0x70 or data[a + 1] < 0x80:
            return None
        lowered = data[first:a] + encode(UInt(_MAX_CREDIT)) + data[b:after]
        return write_frame(channel, FLOW, count, lowered, data[after:end])

    def _filter_transfer(self, data: bytes, count: int, first: int, after: int, end: int, channel: int) -> bytes | None:
        """Record a transfer's message-format, and replace its delivery-id if it is out of order."""
        state = self._channels.get(channel)
        if state is None:
            return None  # no link on this channel: Proton refuses it
        fields = field_spans(data, count, first, 6)
        handle = decode(data, fields[0][0])[0] if fields else None
        if not isinstance(handle, UInt):
            raise FramingError("a transfer's handle is no uint")  # Proton would take it for 0
        if handle in state.receivers:
            raise FramingError("a transfer on a link that the client receives on")
        # An aborted delivery has no more frames, whatever its `more` says.
        more = len(fields) > 5 and decode(data, fields[5][0])[0] is True and not is_aborted(data, count, first)
        given = decode(data, fields[1][0])[0] if len(fields) > 1 else None
        if given is not None and not isinstance(given, UInt):
            raise FramingError("a transfer's delivery-id is no uint")
        current = state.open_deliveries.get(handle)
        if current is None:
            if given is None:
                return None  # a new delivery without an id: Proton refuses it
            current = self._begin_delivery(data, fields, state, handle, given)
        if more:
            state.open_deliveries[handle] = current
        else:
            state.open_deliveries.pop(handle, None)
            if handle in state.open_formats:
                if is_aborted(data, count, first):
                    self._discard_format(state, handle)
                else:
                    del state.open_formats[handle]
        if given is None or given == current:
            return None
        a, b = fields[1]
        renumbered = data[first:a] + encode(UInt(current)) + data[b:after]
        return write_frame(channel, TRANSFER, count, renumbered, data[after:end])

    def _begin_delivery(
        self, data: bytes, fields: list[tuple[int, int]], state: _Channel, handle: int, given: int
    ) -> int:
        """Return the id under which Proton gets a new delivery; record its message-format."""
        current = given if state.next_id is None else state.next_id
        state.next_id = (current + 1) & 0xFFFFFFFF
        if current != given:
            settled = len(fields) > 4 and decode(data, fields[4][0])[0] is True
            if not settled:
                state.renumbered[current] = given
        if len(fields) > 3 and data[fields[3][0]] not in (0x40, 0x43):  # neither null nor the usual 0
            self._record_format(data, fields, state, handle)
        return current

    def _record_format(self, data: bytes, fields: list[tuple[int, int]], state: _Channel, handle: int) -> None:
        (tag_start, tag_end), (start, end) = fields[2:4]
        if data[start] == 0x70 and data[tag_start] == 0xA0:  # the encodings that every SDK uses
            number: object = int.from_bytes(data[start + 1 : end], "big")
            tag: object = data[tag_start + 2 : tag_end]
        else:
            number, tag = decode(data, start)[0], decode(data, tag_start)[0]
        if isinstance(number, int) and number and isinstance(tag, bytes):
            if len(self.message_formats) > _MAX_FORMATS:
                self.message_formats.clear()  # of deliveries that were never finished, on links long detached
            key = state.open_formats[handle] = (state.link_names.get(handle, b""), tag)
            self.message_formats[key] = int(number)

    def take_client_id(self, channel: int, current: int) -> int | None:
        """Return and forget the client's own id of a renumbered delivery, None if it was not renumbered."""
        state = self._channels.get(channel)
        return None if state is None else state.renumbered.pop(current, None)

    def has_renumbered(self, channel: int) -> bool:
        """Return True if a renumbered delivery on this channel is not settled yet."""
        state = self._channels.get(channel)
        return state is not None and bool(state.renumbered)
