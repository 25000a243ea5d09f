"""A payload: one message's sent bytes, split into parts and packed into one byte string.

The *bare* part is properties, application properties, body and footer. A message is stored, cached and delivered in
this form without being parsed again. An edit changes the fields that it names and no other byte.
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
    """The parts of a payload; `annotations` holds encoded keys and values, and `items` counts both."""

    header: bytes
    annotations: bytes
    items: int
    delivery_annotations: bytes
    bare: bytes

    @classmethod
    def of(cls, payload: bytes) -> Parts:
        header, annotations, items, delivery_annotations = PREFIX.unpack_from(payload)
        start = PREFIX.size + header
        middle = start + annotations
        end = middle + delivery_annotations
        return cls(payload[PREFIX.size : start], payload[start:middle], items, payload[middle:end], payload[end:])

    def pack(self) -> bytes:
        return b"".join(
            (
                PREFIX.pack(len(self.header), len(self.annotations), self.items, len(self.delivery_annotations)),
                self.header,
                self.annotations,
                self.delivery_annotations,
                self.bare,
            )
        )

    def sent(self) -> bytes:
        """Return the encoded message as it was sent, without the broker's annotations."""
        header = sections.section(sections.HEADER, sections.with_fields(_listed(self.header), 0, {}))
        given = self.delivery_annotations
        delivery = sections.section(sections.DELIVERY_ANNOTATIONS, given) if given else b""
        annotations = sections.section(sections.MESSAGE_ANNOTATIONS, self._annotation_map()) if self.items else b""
        return (b"" if self.header == NO_HEADER else header) + delivery + annotations + self.bare

    def _annotation_map(self) -> bytes:
        parts, pos = [], 0
        for _ in range(self.items):
            after = skip(self.annotations, pos)
            parts.append(self.annotations[pos:after])
            pos = after
        return encode_map(parts)

    def annotation(self, name: str) -> Any:
        """Return one of the sender's annotations, decoded; None if there is none of that name."""
        for entry in sections.entries(self._annotation_map(), 0):
            if entry.key == name:
                return decode(self._annotation_map(), entry.value)[0]
        return None

    def with_annotations(self, changes: dict[str, bytes | None]) -> Parts:
        """Return a copy with message annotations set to encoded values, or removed (None)."""
        raw = sections.with_entries(self._annotation_map(), 0, changes, Symbol)
        flat = b"".join(raw[e.start : e.end] for e in sections.entries(raw, 0))
        return replace(self, annotations=flat, items=2 * len(sections.entries(raw, 0)))

    def with_delivery_annotations(self, changes: dict[str, bytes | None]) -> Parts:
        """Return a copy with delivery annotations set to encoded values, or removed (None)."""
        given = self.delivery_annotations
        changed = sections.with_entries(given, 0 if given else None, changes, Symbol)
        return replace(self, delivery_annotations=changed)

    def with_time_to_live(self, milliseconds: bytes) -> Parts:
        """Return a copy with the header's ttl set to an encoded uint."""
        listed = sections.with_fields(_listed(self.header), 0, {2: milliseconds})
        parts = [listed[a:b] for a, b in sections.fields(listed, 0)]
        header = b"".join(parts) + b"\x40" * (4 - len(parts))
        return replace(self, header=header)

    def without_body(self) -> Parts:
        """Return a copy that keeps only properties and application properties, for a peek without bodies."""
        kept = (
            s for s in sections.split(self.bare) if s.code in (sections.PROPERTIES, sections.APPLICATION_PROPERTIES)
        )
        return replace(self, bare=b"".join(self.bare[s.start : s.end] for s in kept))

    def with_properties(
        self, fields: Mapping[int, bytes] | None = None, application: Mapping[str, bytes | None] | None = None
    ) -> Parts:
        """Return a copy with encoded properties and application properties set; None removes one of the latter."""
        found = {s.code: s for s in sections.split(self.bare)}
        properties = found.get(sections.PROPERTIES)
        custom = found.get(sections.APPLICATION_PROPERTIES)
        body = max((s.end for s in (properties, custom) if s is not None), default=0)
        head = b"" if properties is None else self.bare[properties.start : properties.end]
        if fields:
            value = None if properties is None else properties.value
            listed = sections.with_fields(self.bare, value, dict(fields))
            head = sections.section(sections.PROPERTIES, listed)
        tail = b"" if custom is None else self.bare[custom.start : custom.end]
        if application:
            value = None if custom is None else custom.value
            mapped = sections.with_entries(self.bare, value, dict(application))
            tail = sections.section(sections.APPLICATION_PROPERTIES, mapped)
        return replace(self, bare=head + tail + self.bare[body:])


def _listed(header: bytes) -> bytes:
    return bytes((0xC0, len(header) + 1, 4)) + header


#: System property, as SQL names it in lower case -> its position among the properties.
SYSTEM_FIELDS = {
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
    """Convert an AMQP value for filters: plain numbers, times as datetime, described types unpacked."""
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
    """Decode a property for filters; one that cannot be decoded counts as null there, and is still delivered."""
    try:
        return plain(decode(raw, pos)[0])
    except AmqpDecodeError:
        return None


class MessageView:
    """The properties that rules read, decoded once; `facts` are those that the broker knows better than the sender."""

    def __init__(self, payload: bytes, facts: Mapping[str, object] | None = None) -> None:
        parts = Parts.of(payload)
        self.system: dict[str, object] = {}
        self.user: dict[str, object] = {}
        self._read_sections(parts.bare)
        if parts.items:
            self._read_annotations(parts)
        time_to_live = sections.field(_listed(parts.header), 0, 2)
        if isinstance(time_to_live, int):
            self.system["timetolive"] = timedelta(milliseconds=int(time_to_live))
        self.system.update(facts or {})

    def _read_sections(self, bare: bytes) -> None:
        for section in sections.split(bare):
            if section.code == sections.PROPERTIES:
                self._read_properties(bare, section.value)
            elif section.code == sections.APPLICATION_PROPERTIES:
                for entry in sections.entries(bare, section.value):
                    if isinstance(entry.key, str):
                        self.user[str(entry.key)] = _readable(bare, entry.value)
            if section.code >= sections.APPLICATION_PROPERTIES:
                return

    def _read_properties(self, bare: bytes, value: int) -> None:
        spans = sections.fields(bare, value)
        for name, index in SYSTEM_FIELDS.items():
            if index < len(spans):
                found = _readable(bare, spans[index][0])
                if found is not None:
                    self.system[name] = found

    def _read_annotations(self, parts: Parts) -> None:
        key = parts.annotation("x-opt-partition-key")
        if isinstance(key, str):
            self.system["partitionkey"] = key
        when = plain(parts.annotation("x-opt-scheduled-enqueue-time"))
        if when is not None:
            self.system["scheduledenqueuetimeutc"] = when


def encode_plain(value: Any) -> bytes:
    """Encode a plain value that a rule's action or a client's request has set; the reverse of `plain`."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
        return encode(Timestamp((aware - _EPOCH) // timedelta(milliseconds=1)))
    if isinstance(value, timedelta):
        # .NET's TimeSpan is a signed 64-bit number of ticks.
        ticks = min(max(value // timedelta(microseconds=1) * 10, -(2**63)), 2**63 - 1)
        return b"\x00" + encode(Symbol("com.microsoft:timespan")) + b"\x81" + struct.pack(">q", ticks)
    try:
        return encode(value)
    except (TypeError, ValueError):
        return encode(str(value))
