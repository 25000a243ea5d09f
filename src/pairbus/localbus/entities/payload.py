"""A payload: one message's sent bytes in the parts the broker needs, packed into one string of bytes.

Header fields (without delivery-count), the sender's annotations, its delivery annotations (seldom any), and the
*bare* rest (properties, application properties, body, footer) lie one behind the other, so that a message is stored,
cached and delivered without being taken apart again. Editing changes the fields that are named and no other byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import AmqpDecodeError, Described, Symbol, Timestamp, decode, encode, encode_map, skip

PREFIX = struct.Struct(">HIHI")
NO_HEADER = b"\x40\x40\x40\x40"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Parts:
    """A payload taken apart; `annotations` are encoded keys and values, `items` counts both.

    `instructions` are the sender's delivery annotations, an encoded map, or nothing.
    """

    header: bytes
    annotations: bytes
    items: int
    instructions: bytes
    bare: bytes

    @classmethod
    def of(cls, payload: bytes) -> Parts:
        header, annotations, items, instructions = PREFIX.unpack_from(payload)
        start = PREFIX.size + header
        middle = start + annotations
        end = middle + instructions
        return cls(payload[PREFIX.size : start], payload[start:middle], items, payload[middle:end], payload[end:])

    def pack(self) -> bytes:
        return b"".join(
            (
                PREFIX.pack(len(self.header), len(self.annotations), self.items, len(self.instructions)),
                self.header,
                self.annotations,
                self.instructions,
                self.bare,
            )
        )

    def sent(self) -> bytes:
        """The message as an encoded whole again, without anything of the broker's."""
        header = sections.section(sections.HEADER, sections.with_fields(_listed(self.header), 0, {}))
        told = sections.section(sections.DELIVERY_ANNOTATIONS, self.instructions) if self.instructions else b""
        notes = sections.section(sections.MESSAGE_ANNOTATIONS, self._annotation_map()) if self.items else b""
        return (b"" if self.header == NO_HEADER else header) + told + notes + self.bare

    def _annotation_map(self) -> bytes:
        parts, pos = [], 0
        for _ in range(self.items):
            after = skip(self.annotations, pos)
            parts.append(self.annotations[pos:after])
            pos = after
        return encode_map(parts)

    def annotation(self, name: str) -> Any:
        """One of the sender's annotations, decoded; None if it has none of that name."""
        for entry in sections.entries(self._annotation_map(), 0):
            if entry.key == name:
                return decode(self._annotation_map(), entry.value)[0]
        return None

    def with_annotations(self, changes: dict[str, bytes | None]) -> Parts:
        raw = sections.with_entries(self._annotation_map(), 0, changes, Symbol)
        flat = b"".join(raw[e.start : e.end] for e in sections.entries(raw, 0))
        return replace(self, annotations=flat, items=2 * len(sections.entries(raw, 0)))

    def with_instructions(self, changes: dict[str, bytes | None]) -> Parts:
        value = 0 if self.instructions else None
        return replace(self, instructions=sections.with_entries(self.instructions, value, changes, Symbol))

    def with_time_to_live(self, milliseconds: bytes) -> Parts:
        listed = sections.with_fields(_listed(self.header), 0, {2: milliseconds})
        parts = [listed[a:b] for a, b in sections.fields(listed, 0)]
        header = b"".join(parts) + b"\x40" * (4 - len(parts))
        return replace(self, header=header)

    def without_body(self) -> Parts:
        """Properties and application properties alone, for one who only wants to look."""
        kept = (
            s for s in sections.split(self.bare) if s.code in (sections.PROPERTIES, sections.APPLICATION_PROPERTIES)
        )
        return replace(self, bare=b"".join(self.bare[s.start : s.end] for s in kept))

    def with_properties(
        self, fields: Mapping[int, bytes] | None = None, application: Mapping[str, bytes | None] | None = None
    ) -> Parts:
        """Fields of the properties section, and application properties (None removes), replaced."""
        found = {s.code: s for s in sections.split(self.bare)}
        properties = found.get(sections.PROPERTIES)
        ours = found.get(sections.APPLICATION_PROPERTIES)
        body = max((s.end for s in (properties, ours) if s is not None), default=0)
        head = b"" if properties is None else self.bare[properties.start : properties.end]
        if fields:
            value = None if properties is None else properties.value
            listed = sections.with_fields(self.bare, value, dict(fields))
            head = sections.section(sections.PROPERTIES, listed)
        tail = b"" if ours is None else self.bare[ours.start : ours.end]
        if application:
            value = None if ours is None else ours.value
            mapped = sections.with_entries(self.bare, value, dict(application))
            tail = sections.section(sections.APPLICATION_PROPERTIES, mapped)
        return replace(self, bare=head + tail + self.bare[body:])


def _listed(header: bytes) -> bytes:
    """The four header fields as an encoded list."""
    return bytes((0xC0, len(header) + 1, 4)) + header


_SYSTEM = {
    "messageid": sections.MESSAGE_ID,
    "to": sections.TO,
    "label": sections.SUBJECT,
    "subject": sections.SUBJECT,
    "replyto": sections.REPLY_TO,
    "correlationid": sections.CORRELATION_ID,
    "contenttype": sections.CONTENT_TYPE,
    "sessionid": sections.GROUP_ID,
    "replytosessionid": sections.REPLY_TO_GROUP_ID,
}


def plain(value: Any) -> Any:
    """An AMQP value as filters compare it: widths forgotten, times as datetime, described types unpacked."""
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + timedelta(milliseconds=int(value))
        except OverflowError:
            return int(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Described) and isinstance(value.value, int):
        if value.descriptor == "com.microsoft:timespan":
            return timedelta(microseconds=value.value / 10)
        if value.descriptor in ("com.microsoft:datetime", "com.microsoft:datetime-offset"):
            try:
                return datetime(1, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=value.value / 10)
            except OverflowError:
                return int(value.value)
    if isinstance(value, Described):
        return plain(value.value)
    return value


def _readable(raw: bytes, pos: int) -> Any:
    """A property as filters compare it; one that cannot be read counts as null, and is still carried on."""
    try:
        return plain(decode(raw, pos)[0])
    except AmqpDecodeError:
        return None


class View:
    """What rules read of a message: its system and its application properties, decoded once.

    `facts` are system properties that the broker knows better than the message's sender.
    """

    def __init__(self, payload: bytes, facts: Mapping[str, object] | None = None) -> None:
        parts = Parts.of(payload)
        self.system: dict[str, object] = {}
        self.user: dict[str, object] = {}
        bare = parts.bare
        for section in sections.split(bare):
            if section.code == sections.PROPERTIES:
                spans = sections.fields(bare, section.value)
                for name, index in _SYSTEM.items():
                    if index < len(spans):
                        value = _readable(bare, spans[index][0])
                        if value is not None:
                            self.system[name] = value
            elif section.code == sections.APPLICATION_PROPERTIES:
                for entry in sections.entries(bare, section.value):
                    if isinstance(entry.key, str):
                        self.user[str(entry.key)] = _readable(bare, entry.value)
                break
            elif section.code > sections.APPLICATION_PROPERTIES:
                break
        if parts.items:
            key = parts.annotation("x-opt-partition-key")
            if isinstance(key, str):
                self.system["partitionkey"] = key
            when = plain(parts.annotation("x-opt-scheduled-enqueue-time"))
            if when is not None:
                self.system["scheduledenqueuetimeutc"] = when
        time_to_live = sections.field(_listed(parts.header), 0, 2)
        if isinstance(time_to_live, int):
            self.system["timetolive"] = timedelta(milliseconds=int(time_to_live))
        self.system.update(facts or {})


def encode_plain(value: Any) -> bytes:
    """The reverse of `plain`, for values that a rule's action or a client's request set."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return encode(Timestamp((aware - _EPOCH) // timedelta(milliseconds=1)))
    if isinstance(value, timedelta):
        # .NET's TimeSpan ends where a signed 64-bit count of ticks does.
        ticks = min(max(value // timedelta(microseconds=1) * 10, -(2**63)), 2**63 - 1)
        return b"\x00" + encode(Symbol("com.microsoft:timespan")) + b"\x81" + struct.pack(">q", ticks)
    try:
        return encode(value)
    except (TypeError, ValueError):
        return encode(str(value))
