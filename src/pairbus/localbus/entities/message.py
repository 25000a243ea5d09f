"""A message in the broker: the bytes that were sent, and the few properties that the broker owns."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from uuid import uuid4

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import AmqpDecodeError, Symbol, Timestamp, decode, encode

from .payload import NO_HEADER, PREFIX

BATCH_FORMAT = 0x80013700
PING_CONTENT_TYPE = b"application/vnd.ms-servicebus-ping"
_PING = PING_CONTENT_TYPE.decode()

ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
#: A flag in `hops`, beside the number of times that a message was forwarded: the message is a topic's copy.
COPIED = 256

#: Annotations that only the broker writes: like the service, localbus drops a sender's.
_BROKER_ANNOTATIONS = frozenset(
    (
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-lock-token",
    )
)
_LOCK_TOKEN = "x-opt-lock-token"
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")
_U32X2 = struct.Struct(">II")

# Encoded map entries up to the value's constructor: only the values differ between messages.
_TOKEN_SECTION = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
_EMPTY_SECTION = b"\x00\x53\x71\xc1\x01\x00"
_SEQUENCE = b"\xa3\x15x-opt-sequence-number\x81"
_ENQUEUED = b"\xa3\x13x-opt-enqueued-time\x83"
_LOCKED = b"\xa3\x12x-opt-locked-until\x83"
_ENQUEUE_SEQUENCE = b"\xa3\x1dx-opt-enqueue-sequence-number\x81"
_STATE = b"\xa3\x13x-opt-message-state\x54"
_SOURCE = b"\xa3\x17x-opt-deadletter-source"


@dataclass(slots=True)
class Draft:
    """A message that was parsed and is not in a queue yet."""

    payload: bytes
    size: int
    message_id: Any = None
    session_id: str | None = None
    time_to_live: float | None = None
    scheduled_at: float | None = None
    partition_key: str | None = None
    ping: bool = False


class Message:
    """One message of one queue. `payload` is None while its bytes are only on disk."""

    __slots__ = (
        "delivery_count", "enqueue_sequence", "enqueued_at", "expires_at", "hops", "id", "lock", "payload",
        "scheduled_at", "sequence", "session_id", "size", "source", "state", "time_to_live",
    )  # fmt: skip

    def __init__(self, id: int, sequence: int, enqueued_at: float, draft: Draft) -> None:
        self.id = id
        self.sequence = sequence
        self.enqueue_sequence = sequence
        self.enqueued_at = enqueued_at
        self.expires_at = float("inf")
        self.scheduled_at = draft.scheduled_at
        self.time_to_live = draft.time_to_live
        self.session_id = draft.session_id
        self.size = draft.size
        self.delivery_count = 0
        self.hops = 0
        self.state = ACTIVE
        self.lock: Any = None
        self.source: str | None = None
        self.payload: bytes | None = draft.payload

    def delivered(self, payload: bytes, token: bytes | None = None, locked_until: float = 0.0) -> bytes:
        """Return the encoded message for a receiver, with the lock's `token` (in network order) if it is locked."""
        header, annotations, items, delivery_annotations = PREFIX.unpack_from(payload)
        at = PREFIX.size + header
        count = self.delivery_count
        if count == 0:
            fixed = payload[PREFIX.size : at] + b"\x43"
        elif count < 256:
            fixed = payload[PREFIX.size : at] + bytes((0x52, count))
        else:
            fixed = payload[PREFIX.size : at] + b"\x70" + _U32.pack(count)
        entries = [
            payload[at : at + annotations],
            _SEQUENCE,
            _I64.pack(self.sequence),
            _ENQUEUED,
            _I64.pack(int(self.enqueued_at * 1000)),
        ]
        items += 4
        # Like the service: the first number only if the message was moved, the state only if it is not active.
        if self.hops or self.enqueue_sequence != self.sequence:
            entries += (_ENQUEUE_SEQUENCE, _I64.pack(self.enqueue_sequence))
            items += 2
        if state := self.state & 3:  # without the flag of a message that is removed as it is delivered
            entries += (_STATE, bytes((state,)))
            items += 2
        if locked_until:
            entries += (_LOCKED, _I64.pack(int(locked_until * 1000)))
            items += 2
        if self.source is not None:
            entries += (_SOURCE, encode(self.source))
            items += 2
        raw = b"".join(entries)
        bare = at + annotations + delivery_annotations
        if delivery_annotations:
            section = _delivery_annotations(payload[at + annotations : bare], token)
        else:
            section = _EMPTY_SECTION if token is None else _TOKEN_SECTION + token
        return b"".join(
            (
                b"\x00\x53\x70\xc0",
                bytes((len(fixed) + 1, 5)),
                fixed,
                section,
                b"\x00\x53\x72\xd1",
                _U32X2.pack(len(raw) + 4, items),
                raw,
                payload[bare:],
            )
        )


def _delivery_annotations(sent: bytes, token: bytes | None) -> bytes:
    """Encode the sender's delivery annotations, which the service passes on, with the lock token."""
    lock = None if token is None else b"\x98" + token
    listed = sections.with_entries(sent, 0, {_LOCK_TOKEN: lock}, Symbol)
    return sections.section(sections.DELIVERY_ANNOTATIONS, listed)


_code = attrgetter("code")


def read_message(raw: bytes, *, identify: bool = True) -> Draft:
    """Parse an encoded message into a draft; give it a random id if it has none and `identify` is set."""
    header, annotations, items, delivery_annotations = NO_HEADER, b"", 0, b""
    draft = Draft(b"", len(raw))
    properties: sections.Section | None = None
    found = sections.split(raw)
    found.sort(key=_code)  # a sender may write them in any order
    kept: list[bytes] = []
    for section in found:
        code = section.code
        if code == sections.HEADER:
            header = _read_header(raw, section.value, draft)
        elif code == sections.DELIVERY_ANNOTATIONS:
            # A message that was received and is sent again may still have the old lock's token.
            given = sections.with_entries(raw, section.value, {_LOCK_TOKEN: None})
            delivery_annotations = given if sections.entries(given, 0) else b""
        elif code == sections.MESSAGE_ANNOTATIONS:
            annotations, items = _read_annotations(raw, section.value, draft)
        elif code == sections.PROPERTIES:
            properties = section
            _read_properties(raw, section.value, draft)
        elif code >= sections.APPLICATION_PROPERTIES:
            if code == sections.APPLICATION_PROPERTIES:
                sections.check_map(raw, section.value)  # rules and dead-lettering write into it later
            kept.append(raw[section.start : section.end])
    if draft.message_id is None and identify:
        # As the service does; some SDKs cannot settle a message without an id.
        draft.message_id = uuid4().hex
        value = None if properties is None else properties.value
        listed = sections.with_fields(raw, value, {sections.MESSAGE_ID: encode(draft.message_id)})
        head = sections.section(sections.PROPERTIES, listed)
    else:
        head = b"" if properties is None else raw[properties.start : properties.end]
    prefix = PREFIX.pack(len(header), len(annotations), items, len(delivery_annotations))
    draft.payload = b"".join((prefix, header, annotations, delivery_annotations, head, *kept))
    return draft


def read_batch(raw: bytes, *, identify: bool = True) -> list[Draft]:
    """Parse a transfer of format `BATCH_FORMAT`: each data section is one encoded message."""
    drafts = []
    for section in sections.split(raw):
        if section.code == sections.DATA:
            drafts.append(read_message(decode(raw, section.value)[0], identify=identify))
        elif section.code in (sections.SEQUENCE, sections.VALUE):
            raise AmqpDecodeError("a batch holds its messages in data sections only")
    return drafts


def _read_header(raw: bytes, value: int, draft: Draft) -> bytes:
    parts = [raw[a:b] for a, b in sections.fields(raw, value)[:4]]
    if len(parts) > 2:
        time_to_live = decode(parts[2])[0]
        if time_to_live is not None:
            if not isinstance(time_to_live, int) or not 0 <= time_to_live < 2**32:
                raise AmqpDecodeError("the header's ttl is no uint")
            draft.time_to_live = time_to_live / 1000
    fixed = b"".join(parts) + b"\x40" * (4 - len(parts))
    if len(fixed) > 200:
        raise AmqpDecodeError("the header is too large")
    return fixed


def _read_annotations(raw: bytes, value: int, draft: Draft) -> tuple[bytes, int]:
    kept, items = [], 0
    for entry in sections.entries(raw, value):
        key = entry.key
        if not isinstance(key, str):
            pass  # passed on without a meaning to the broker
        elif key in _BROKER_ANNOTATIONS:
            continue
        elif key == "x-opt-scheduled-enqueue-time":
            when = decode(raw, entry.value)[0]
            if not isinstance(when, Timestamp):
                raise AmqpDecodeError("x-opt-scheduled-enqueue-time is no timestamp")
            draft.scheduled_at = when / 1000
        elif key == "x-opt-partition-key":
            found = decode(raw, entry.value)[0]
            draft.partition_key = str(found) if isinstance(found, str) else None
        kept.append(raw[entry.start : entry.end])
        items += 2
    if items > 2000:
        raise AmqpDecodeError("a message may have 1000 annotations at most")
    return b"".join(kept), items


def _read_properties(raw: bytes, value: int, draft: Draft) -> None:
    spans = sections.fields(raw, value)
    count = len(spans)
    if count > sections.GROUP_ID:
        group = decode(raw, spans[sections.GROUP_ID][0])[0]
        if group is not None and not isinstance(group, str):
            raise AmqpDecodeError("the group-id (session id) is no string")
        draft.session_id = None if group is None else str(group)
    if count > sections.CONTENT_TYPE:
        at, end = spans[sections.CONTENT_TYPE]
        draft.ping = raw.endswith(PING_CONTENT_TYPE, at, end) and decode(raw, at)[0] == _PING
    if count:
        draft.message_id = decode(raw, spans[0][0])[0]
