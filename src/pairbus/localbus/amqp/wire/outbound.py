"""The filter between Proton's bytes and the client: it restores trailing nulls and the client's own delivery-ids.

azure-eventhub, for instance, reads the fields of a performative by index.
"""

from __future__ import annotations

from pairbus.domain.amqp.codec import UInt, compound, decode, encode, skip

from .frames import (
    BEGIN,
    DISPOSITION,
    FIELD_COUNT,
    HEADER,
    MAX_FRAME,
    OPEN,
    PROTOCOL_HEADER,
    field_spans,
    read_performative,
    write_frame,
)
from .inbound import InboundFilter
from .sasl import replace_mechanisms

_NULL = b"\x40"
#: The index of a disposition's state, which Proton leaves out where there is none.
_DISPOSITION_STATE = 4
#: An encoded `false` as a disposition's role: it settles deliveries that localbus sent.
_SENDER_ROLE = 0x42


class OutboundFilter:
    """Filter from Proton to the client, which needs to know the numbers that the inbound filter has changed."""

    def __init__(self, inbound: InboundFilter) -> None:
        self._inbound = inbound
        self._incomplete = b""
        #: Channel of localbus -> channel of the client, for each session.
        self._client_channels: dict[int, int] = {}

    def feed(self, data: bytes) -> bytes:
        """Return the complete frames of Proton's output so far, for the client."""
        if self._incomplete:
            data = self._incomplete + data
        out: list[bytes] = []
        pos, size = 0, len(data)
        while size - pos >= 8:
            length, offset, kind, channel = HEADER.unpack_from(data, pos)
            if length == PROTOCOL_HEADER:
                length = 8
            elif size - pos < length:
                break
            elif kind == 0 and length > offset * 4:
                out.append(self._filter_amqp(data, pos, pos + offset * 4, pos + length, channel))
                pos += length
                continue
            elif kind == 1 and (mechanisms := replace_mechanisms(data[pos + offset * 4 : pos + length])) is not None:
                out.append(mechanisms)
                pos += length
                continue
            out.append(data[pos : pos + length])
            pos += length
        self._incomplete = data[pos:]
        return b"".join(out)

    def _filter_amqp(self, data: bytes, start: int, body: int, end: int, channel: int) -> bytes:
        """Return the bytes that replace a frame: none, the frame itself, or other frames."""
        code, value = read_performative(data, body)
        full_count = FIELD_COUNT.get(code)
        if full_count is None:
            return data[start:end]
        count, first, after = compound(data, value)
        if code == OPEN and count >= 3:
            a, b = field_spans(data, count, first, 3)[2]
            fields = data[first:a] + encode(UInt(MAX_FRAME)) + data[b:after] + _NULL * (full_count - count)
            return write_frame(channel, OPEN, full_count, fields, data[after:end])
        if code == BEGIN:
            client_channel = decode(data, first)[0]
            if isinstance(client_channel, int):
                self._client_channels[channel] = int(client_channel)
        elif code == DISPOSITION and count <= _DISPOSITION_STATE and data[first] == _SENDER_ROLE:
            # Proton settles the deliveries of a link after its detach: the client does not know them any more.
            return b""
        elif code == DISPOSITION and self._inbound.has_renumbered(self._client_channels.get(channel, -1)):
            return self._split_disposition(data, first, count, channel)
        if count >= full_count:
            return data[start:end]
        padding = _NULL * (full_count - count)
        padded = write_frame(channel, code, full_count, data[first:after] + padding, data[after:end])
        return padded if len(padded) <= self._inbound.max_frame else data[start:end]

    def _split_disposition(self, data: bytes, pos: int, count: int, channel: int) -> bytes:
        """Return one disposition per delivery, under the client's own ids."""
        fields = []
        for _ in range(count):
            following = skip(data, pos)
            fields.append(data[pos:following])
            pos = following
        fields += [_NULL] * (6 - len(fields))
        first, last = decode(fields[1])[0], decode(fields[2])[0]
        if decode(fields[0])[0] is not True:
            return write_frame(channel, DISPOSITION, 6, b"".join(fields), b"")
        frames = []
        for step in range(((first if last is None else last) - first & 0xFFFFFFFF) + 1):
            current = first + step & 0xFFFFFFFF
            given = self._inbound.take_client_id(self._client_channels[channel], current)
            fields[1] = fields[2] = encode(UInt(current if given is None else given))
            frames.append(write_frame(channel, DISPOSITION, 6, b"".join(fields), b""))
        return b"".join(frames)
