"""Parking: from an encoded message to the one that waits in the backlog. The package states what is guaranteed."""

from __future__ import annotations

import struct

from pairbus.domain.amqp.codec import AmqpDecodeError, compound, encode
from pairbus.domain.amqp.sections import (
    ABSOLUTE_EXPIRY_TIME,
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    GROUP_ID,
    HEADER,
    MESSAGE_ANNOTATIONS,
    MESSAGE_ID,
    PROPERTIES,
    Section,
    bounds,
    check_map,
    fits_short,
    layout,
    list_section,
    map_section,
    pairs,
    replace_fields,
)

from .encoding_form import TICKS, TIMESPAN_PREFIX, TTL, USUAL_DESCRIPTORS, USUAL_HEADER, USUAL_SCHEDULED_KEY, order_of
from .property_names import (
    ALIASES,
    NAMESPACE,
    PATH,
    SCHEDULED_ANNOTATION,
    NotRestorableError,
    shown,
    spellings,
    text_of,
)

_NULL = b"\x40"
_I64 = struct.Struct(">q")
_ALIAS_KEYS = spellings(*ALIASES)
_SCHEDULED_KEYS = spellings(SCHEDULED_ANNOTATION)
_PATH_KEY, _SESSION_ID_KEY, _TIME_TO_LIVE_KEY, _SCHEDULED_KEY, _NAMESPACE_KEY, _FORM_KEY = map(encode, ALIASES)


def park(message: bytes, path: str, message_id: str, namespace: str | None = None) -> bytes:
    """Return a message as it is sent to a backlog queue: with the destination and the cleared fields as properties.

    Parameters
    ----------
    message
        The encoded message.
    path
        The path of its destination.
    message_id
        The id to give to a message that has none.
    namespace
        The destination's namespace, if that is not the primary.

    Raises
    ------
    NotRestorableError
        The message could not be restored: it has an application property with the name of an alias; its session id,
        time to live or scheduled time has a type that AMQP does not allow there; or it is no AMQP message. Nothing
        else is raised.
    """
    try:
        return _park(message, path, message_id, namespace)
    except AmqpDecodeError as error:
        raise NotRestorableError("message", f"is not readable: {error}") from error


def _park(message: bytes, path: str, message_id: str, namespace: str | None) -> bytes:
    if not path or namespace == "":
        raise NotRestorableError(PATH if not path else NAMESPACE, "would be empty")
    where, rest, codes = layout(message)
    form: list[str] = []
    added = [_PATH_KEY, encode(path)]
    if namespace is not None:
        added += (_NAMESPACE_KEY, encode(namespace))

    header = instructions = annotations = b""
    time_to_live = scheduled = None
    if (found := where.get(HEADER)) is not None:
        header, time_to_live = _park_header(message, found, form)
    if (found := where.get(DELIVERY_ANNOTATIONS)) is not None:
        _note_map(message, found, "delivery", form)
        instructions = message[found.start : found.end]
    if (found := where.get(MESSAGE_ANNOTATIONS)) is not None:
        annotations, scheduled = _park_annotations(message, found, form)
    properties, session_id = _park_properties(
        message, where.get(PROPERTIES), message_id, time_to_live is not None, form
    )

    if session_id is not None:
        added += (_SESSION_ID_KEY, session_id)
    if time_to_live is not None:
        added += (_TIME_TO_LIVE_KEY, TIMESPAN_PREFIX + _I64.pack(time_to_live * TICKS))
    if scheduled is not None:
        added += (_SCHEDULED_KEY, scheduled)
    if codes:
        form.append(order_of(codes))
    application = _park_application(message, where.get(APPLICATION_PROPERTIES), added, form)
    return b"".join((header, instructions, annotations, properties, application, rest))


def _park_header(message: bytes, found: Section, form: list[str]) -> tuple[bytes, int | None]:
    """Return the header without its time to live, and the time to live in milliseconds."""
    at = bounds(message, found.value)
    header, time_to_live = message[found.start : found.end], None
    if len(at) - 1 > TTL and message[at[TTL]] != 0x40:
        start, end = at[TTL], at[TTL + 1]
        code = message[start]
        if code not in (0x43, 0x52, 0x70):
            raise NotRestorableError("ttl", f"of the header is no uint but {shown(message[start:end])}")
        time_to_live = int.from_bytes(message[start + 1 : end], "big")
        if code != (0x70 if time_to_live > 255 else 0x52 if time_to_live else 0x43):
            form.append(f"ttl={code:x}")
        header = replace_fields(message, found, at, ((TTL, _NULL),))
    if time_to_live is None or header != USUAL_HEADER:
        form.append("header=" + header.hex())
    return header, time_to_live


def _park_annotations(message: bytes, found: Section, form: list[str]) -> tuple[bytes, bytes | None]:
    """Return the message annotations without the scheduled time, and the encoded scheduled time."""
    _note_map(message, found, "annotations", form)
    if message.find(b"x-opt-scheduled-enqueue-time", found.value, found.end) < 0:
        return message[found.start : found.end], None
    kept: list[bytes] = []
    place = key = scheduled = None
    for index, (start, value, end) in enumerate(pairs(message, found.value)):
        if message[start:value] not in _SCHEDULED_KEYS or message[value] == 0x40:
            kept.append(message[start:end])
        elif scheduled is not None:
            raise NotRestorableError(SCHEDULED_ANNOTATION, "is there twice")
        elif message[value] != 0x83:
            raise NotRestorableError(SCHEDULED_ANNOTATION, f"is no timestamp but {shown(message[value:end])}")
        else:
            place, key, scheduled = index, message[start:value], message[value:end]
    if key is not None and key != USUAL_SCHEDULED_KEY:
        form.append(f"key={key[0]:x}")
    if place is not None and place != len(kept):
        form.append(f"place={place}")
    if not kept:
        return b"", scheduled
    return map_section(USUAL_DESCRIPTORS[MESSAGE_ANNOTATIONS], kept, 2 * len(kept)), scheduled


def _park_properties(
    message: bytes, found: Section | None, message_id: str, expires: bool, form: list[str]
) -> tuple[bytes, bytes | None]:
    """Return the properties with an id, without session id and expiry, and the encoded session id."""
    if found is None:
        return list_section(USUAL_DESCRIPTORS[PROPERTIES], [encode(message_id)], 1), None
    at = bounds(message, found.value)
    count = len(at) - 1
    changes: list[tuple[int, bytes]] = []
    session_id = None
    if not count or message[at[MESSAGE_ID]] == 0x40:
        changes.append((MESSAGE_ID, encode(message_id)))
    if count > ABSOLUTE_EXPIRY_TIME:
        start, end = at[ABSOLUTE_EXPIRY_TIME], at[ABSOLUTE_EXPIRY_TIME + 1]
        if message[start] != 0x40:
            if expires:
                changes.append((ABSOLUTE_EXPIRY_TIME, _NULL))
                form.append("expiry")
            else:
                form.append("expiry=" + message[start:end].hex())
        if count > GROUP_ID:
            start, end = at[GROUP_ID], at[GROUP_ID + 1]
            if message[start] != 0x40:
                session_id = message[start:end]
                if text_of(session_id) is None:
                    raise NotRestorableError("group-id", f"(session id) is no string but {shown(session_id)}")
                changes.append((GROUP_ID, _NULL))
    if not changes:
        return message[found.start : found.end], None
    return replace_fields(message, found, at, changes), session_id


def _park_application(message: bytes, found: Section | None, added: list[bytes], form: list[str]) -> bytes:
    """Return the application properties with the aliases after them."""
    descriptor, items, count = USUAL_DESCRIPTORS[APPLICATION_PROPERTIES], b"", 0
    if found is not None:
        count, first, end = compound(message, found.value)
        descriptor, items = message[found.start : found.value], message[first:end]
        check_map(message, found.value)
        if not count or (message[found.value] == 0xD1 and fits_short(len(items), count)):
            form.append(f"properties={message[found.value]:x}")
        if b"x-ms-" in items or b"x-pairbus-" in items:
            for start, value, _ in pairs(message, found.value):
                if (name := _ALIAS_KEYS.get(message[start:value])) is not None:
                    raise NotRestorableError(name, "is an application property of the message itself")
    if form:
        added += (_FORM_KEY, encode(";".join(form)))
    return map_section(descriptor, [items, *added], count + len(added))


def _note_map(message: bytes, found: Section, name: str, form: list[str]) -> None:
    """Add a word to the form for a map of annotations that is empty, wider than needed, or has another descriptor."""
    check_map(message, found.value)
    count, first, end = compound(message, found.value)
    code = message[found.value]
    if not count or (code == 0xD1 and fits_short(end - first, count)) or message[found.start + 1] != 0x53:
        form.append(f"{name}={message[found.start : found.value + 1].hex()}")
