"""Restoring: from a parked message, as made or as a broker delivers it, to the message that was sent."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pairbus.domain.amqp.codec import AmqpDecodeError, Described, Long, Symbol, UInt, decode, encode
from pairbus.domain.amqp.sections import (
    ABSOLUTE_EXPIRY_TIME,
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    DELIVERY_COUNT,
    GROUP_ID,
    HEADER,
    MESSAGE_ANNOTATIONS,
    MESSAGE_ID,
    PROPERTIES,
    Section,
    bounds,
    layout,
    map_section,
    pairs,
    replace_fields,
    section,
    split,
)

from .broker_header import HEADER_SECTIONS, BrokerHeaderCache, Facts
from .encoding_form import (
    TICKS,
    TIMESPAN,
    TIMESPAN_PREFIX,
    TTL,
    USUAL,
    USUAL_DESCRIPTORS,
    USUAL_HEADER,
    Form,
    in_order,
    read_form,
)
from .property_names import (
    ALIASES,
    BROKER_OWNED,
    ENQUEUED_TIME,
    FORM,
    LOCKED_UNTIL,
    NAMESPACE,
    PARTITION_KEY,
    PATH,
    SCHEDULED,
    SCHEDULED_ANNOTATION,
    SEQUENCE_NUMBER,
    SESSION_ID,
    TIME_TO_LIVE,
    EnvelopeError,
    shown,
    spellings,
    text_of,
)

#: The longest time to live that a header can hold, in milliseconds.
MAX_TIME_TO_LIVE = 2**32 - 1
#: The last millisecond of the year 9999, since 1970.
_END_OF_TIME = 253_402_300_799_999
_NULL = b"\x40"
_I64 = struct.Struct(">q")
_U32 = struct.Struct(">I")
_ALIAS_KEYS = spellings(*ALIASES)
_OWNED_KEYS = spellings(*BROKER_OWNED)
_OWNED_OR_SCHEDULED_KEYS = _OWNED_KEYS | spellings(SCHEDULED_ANNOTATION)
_PARTITION_KEY = PARTITION_KEY.encode()
_FACTS = (SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL)
_FACT_KEYS = spellings(*_FACTS)
_CACHE = BrokerHeaderCache()
_ONLY_A_LOCK_TOKEN = section(DELIVERY_ANNOTATIONS, b"\xc1\x24\x02\xa3\x10x-opt-lock-token\x98")


class Restored(NamedTuple):
    """A restored message and the contents of its envelope; times in milliseconds since 1970."""

    message: bytes
    path: str
    namespace: str | None
    message_id: str | None
    session_id: str | None
    time_to_live: int | None
    scheduled: int | None
    parked_at: int | None
    #: The broker's fields.
    facts: Facts
    #: True if the sender gave the message a partition key.
    has_partition_key: bool


#: `Restored(...)` without a Python call: this runs for every message that is moved back.
_new_restored: Callable[[tuple[Any, ...]], Restored] = partial(tuple.__new__, Restored)


def facts(message: bytes) -> Facts:
    """Return the broker's fields of any delivered message, parked or not; empty ones for unreadable bytes."""
    try:
        where = {found.code: found for found in split(message)}
        values: dict[str, int] = {}
        annotations = where.get(MESSAGE_ANNOTATIONS)
        for start, value, _ in () if annotations is None else pairs(message, annotations.value):
            name = _FACT_KEYS.get(message[start:value])
            if name is not None:
                values[name] = _whole(message, value)
        count = _delivery_count(message, where.get(HEADER))
    except AmqpDecodeError:
        return Facts()
    known = {name: value for name, value in values.items() if value >= 0}
    return Facts(known.get(SEQUENCE_NUMBER), known.get(ENQUEUED_TIME), known.get(LOCKED_UNTIL), count)


def message_id(message: bytes) -> str | None:
    """Return the id of any message as text, parked or not; None for unreadable bytes."""
    try:
        found = next((each for each in split(message) if each.code == PROPERTIES), None)
        at = bounds(message, found.value) if found is not None else ()
        return _id_text(message, at[MESSAGE_ID], at[MESSAGE_ID + 1]) if len(at) > 1 else None
    except AmqpDecodeError:
        return None


def _delivery_count(message: bytes, header: Section | None) -> int:
    if header is None:
        return 0
    end = header.end
    if message[end - 1] == 0x43 and message[header.value + 1 : header.value + 3] == b"\x06\x05":
        return 0  # five fields of a byte each, the last of them zero: the first delivery of nearly every message
    at = bounds(message, header.value)
    count = decode(message, at[DELIVERY_COUNT])[0] if len(at) > DELIVERY_COUNT + 1 else 0
    return int(count) if isinstance(count, int) else 0


def _whole(message: bytes, value: int) -> int:
    """Return the number of a long or a timestamp; -1 for a value of another type, which no broker writes."""
    code = message[value]
    if code in (0x81, 0x83):
        return int(_I64.unpack_from(message, value + 1)[0])
    return message[value + 1] if code == 0x55 else -1


def restore(message: bytes, now: int, cache: BrokerHeaderCache = _CACHE) -> Restored:
    """Return the message as it was before `park`, and the contents of its envelope.

    Parameters
    ----------
    message
        The encoded message, as `park` made it or as a broker delivered it.
    now
        The time from which a time to live counts again, in milliseconds since 1970.
    cache
        The broker headers of earlier messages.

    Raises
    ------
    EnvelopeError
        There is no path, an alias has another type than `park` gives it, or the bytes are no AMQP message (property
        `message`). Nothing else is raised.
    """
    try:
        return _restore(message, now, cache)
    except AmqpDecodeError as error:
        raise EnvelopeError("message", f"bytes that are not readable: {error}") from error


def _restore(message: bytes, now: int, cache: BrokerHeaderCache) -> Restored:
    cached = cache.read(message)
    where, rest, _ = layout(message) if cached is None else layout(message, cached[1], HEADER_SECTIONS)
    application, count, held = _open_application(message, where.get(APPLICATION_PROPERTIES))
    path = _string(held, PATH)
    if path is None:
        raise EnvelopeError(PATH, "nothing: it is missing")
    namespace = _string(held, NAMESPACE) if NAMESPACE in held else None
    session_id = held.get(SESSION_ID)
    session = None
    if session_id is not None and session_id != _NULL and (session := text_of(session_id)) is None:
        raise EnvelopeError(SESSION_ID, shown(session_id))
    time_to_live = _read_time_to_live(held.get(TIME_TO_LIVE))
    scheduled = held.get(SCHEDULED)
    if scheduled is not None and scheduled[0] != 0x83:
        raise EnvelopeError(SCHEDULED, shown(scheduled))
    form = USUAL if FORM not in held else _read_form(held[FORM])

    header = form.header
    if time_to_live is not None:
        header = _with_time_to_live(header or USUAL_HEADER, min(time_to_live, MAX_TIME_TO_LIVE), form.ttl)
    delivery = where.get(DELIVERY_ANNOTATIONS)
    instructions = b""
    if form.delivery is not None or (delivery is not None and not _is_lock_token(message, delivery)):
        entries = [] if delivery is None else _sender_entries(message, delivery)
        instructions = _annotation_map(DELIVERY_ANNOTATIONS, entries, form.delivery)
    annotations = b""
    numbers: dict[str, int] = {}
    if cached is None or scheduled is not None or form.annotations is not None:
        annotations, numbers = _restore_annotations(message, where.get(MESSAGE_ANNOTATIONS), scheduled, form)
    expiry = form.expiry
    if expiry == b"" or (time_to_live or 0) > MAX_TIME_TO_LIVE:  # which a header cannot hold
        expiry = None if time_to_live is None else b"\x83" + _I64.pack(now + time_to_live)
    properties, message_id = _restore_properties(message, where.get(PROPERTIES), session_id, expiry)
    if count or form.properties:
        envelope = where[APPLICATION_PROPERTIES]
        application = map_section(
            message[envelope.start : envelope.value], [application], count, form.properties == 0xD1
        )

    parts = (header, instructions, annotations, properties, application, rest)
    whole = b"".join(parts) if form.order is None else in_order(parts, form.order)
    when = None if scheduled is None else _I64.unpack_from(scheduled, 1)[0]
    if cached is not None:
        broker = cached[0]
    else:
        broker = Facts(
            numbers.get(SEQUENCE_NUMBER),
            numbers.get(ENQUEUED_TIME),
            numbers.get(LOCKED_UNTIL),
            _delivery_count(message, where.get(HEADER)),
        )
        if delivery is not None and _is_lock_token(message, delivery):
            cache.add(message, where, broker)
    keyed = bool(annotations) and _PARTITION_KEY in annotations
    return _new_restored((whole, path, namespace, message_id, session, time_to_live, when, broker[1], broker, keyed))


def _open_application(message: bytes, found: Section | None) -> tuple[bytes, int, dict[str, bytes]]:
    """Return the sender's entries of the application properties, their number, and the values of the aliases."""
    held: dict[str, bytes] = {}
    if found is None:
        return b"", 0, held
    kept: list[bytes] = []
    spans = pairs(message, found.value)
    at = spans[0][0] if spans else found.end
    for start, value, end in spans:
        name = _ALIAS_KEYS.get(message[start:value])
        if name is not None:
            if name in held:
                raise EnvelopeError(name, "two values: it is there twice")
            held[name] = message[value:end]
            if at != start:
                kept.append(message[at:start])
            at = end
    kept.append(message[at : found.end])
    return b"".join(kept), 2 * (len(spans) - len(held)), held


def _read_time_to_live(raw: bytes | None) -> int | None:
    """Return the time to live in milliseconds; None if there is none, or one beyond .NET's calendar: for ever."""
    if raw is None:
        return None
    if raw.startswith(TIMESPAN_PREFIX):
        ticks = _I64.unpack_from(raw, len(TIMESPAN_PREFIX))[0]
    else:
        value = _readable(raw)
        known = isinstance(value, Described) and type(value.descriptor) is Symbol and value.descriptor == TIMESPAN
        ticks = value.value if known and type(value.value) is Long else -1
    if ticks < 0:
        raise EnvelopeError(TIME_TO_LIVE, shown(raw))
    milliseconds = int(ticks) // TICKS
    return milliseconds if milliseconds <= _END_OF_TIME else None


def _read_form(raw: bytes) -> Form:
    text = text_of(raw)
    if text is None:
        raise EnvelopeError(FORM, shown(raw))
    try:
        return read_form(text)
    except ValueError:
        raise EnvelopeError(FORM, shown(raw)) from None


def _with_time_to_live(header: bytes, milliseconds: int, code: int) -> bytes:
    if code == 0x70:
        ttl = b"\x70" + _U32.pack(milliseconds)
    elif code == 0x52 and milliseconds < 256:
        ttl = bytes((0x52, milliseconds))
    else:
        ttl = encode(UInt(milliseconds))
    if header == USUAL_HEADER:
        return b"\x00\x53\x70\xc0" + bytes((len(ttl) + 5, 5)) + b"\x40\x40" + ttl + b"\x40\x40"
    found = split(header)[0]
    return replace_fields(header, found, bounds(header, found.value), ((TTL, ttl),))


def _is_lock_token(message: bytes, found: Section) -> bool:
    return found.end - found.start == 41 and message.startswith(_ONLY_A_LOCK_TOKEN, found.start)


def _sender_entries(message: bytes, found: Section) -> list[bytes]:
    """Return the encoded entries of a map of annotations without the broker's."""
    spans = pairs(message, found.value)
    return [message[start:end] for start, value, end in spans if message[start:value] not in _OWNED_KEYS]


def _restore_annotations(
    message: bytes, found: Section | None, scheduled: bytes | None, form: Form
) -> tuple[bytes, dict[str, int]]:
    """Return the message annotations as they were sent, and the broker's numbers among them."""
    entries: list[bytes] = []
    numbers: dict[str, int] = {}
    if found is not None:
        removed = _OWNED_KEYS if scheduled is None else _OWNED_OR_SCHEDULED_KEYS
        for start, value, end in pairs(message, found.value):
            name = removed.get(message[start:value])
            if name is None or (name == SCHEDULED_ANNOTATION and message[value] == 0x40):  # null: no time is set
                entries.append(message[start:end])
            elif name in _FACTS and (number := _whole(message, value)) >= 0:
                numbers[name] = number
    if scheduled is not None:
        entries.insert(len(entries) if form.place is None else form.place, form.key + scheduled)
    return _annotation_map(MESSAGE_ANNOTATIONS, entries, form.annotations), numbers


def _annotation_map(code: int, entries: list[bytes], form: bytes | None) -> bytes:
    if form is not None:
        return map_section(form[:-1], entries, 2 * len(entries), form[-1] == 0xD1)
    return map_section(USUAL_DESCRIPTORS[code], entries, 2 * len(entries)) if entries else b""


def _restore_properties(
    message: bytes, found: Section | None, session_id: bytes | None, expiry: bytes | None
) -> tuple[bytes, str | None]:
    """Return the properties with session id and expiry, and the message id as text."""
    if found is None:  # some brokers leave out an empty section
        if session_id is None and expiry is None:
            return b"", None
        message = section(PROPERTIES, b"\x45")
        found = split(message)[0]
    at = bounds(message, found.value)
    count = len(at) - 1
    message_id = None if not count else _id_text(message, at[MESSAGE_ID], at[MESSAGE_ID + 1])
    changes: list[tuple[int, bytes]] = []
    if expiry is not None:
        changes.append((ABSOLUTE_EXPIRY_TIME, expiry))
    elif count > ABSOLUTE_EXPIRY_TIME and message[at[ABSOLUTE_EXPIRY_TIME]] != 0x40:
        changes.append((ABSOLUTE_EXPIRY_TIME, _NULL))  # the broker computed it from the backlog's time to live
    if session_id is not None and session_id != _NULL:
        changes.append((GROUP_ID, session_id))
    if not changes:
        return message[found.start : found.end], message_id
    return replace_fields(message, found, at, changes), message_id


def _string(held: dict[str, bytes], name: str) -> str | None:
    """Return the text of an alias that must be a non-empty string; None if the alias is missing."""
    raw = held.get(name)
    if raw is None:
        return None
    text = text_of(raw)
    if not text:
        raise EnvelopeError(name, shown(raw))
    return text


def _id_text(message: bytes, start: int, end: int) -> str | None:
    """Return a message id as text: hexadecimal digits for bytes, `str` for a number or a UUID."""
    text = text_of(message[start:end])
    if text is not None:
        return text
    value = decode(message, start)[0]
    return None if value is None else value.hex() if isinstance(value, bytes) else str(value)


def _readable(raw: bytes) -> Any:
    try:
        return decode(raw)[0]
    except AmqpDecodeError:
        return None
