"""From a message to the parked one: see `envelope`, which says what is promised."""

from __future__ import annotations

import struct
from functools import lru_cache

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

from .encoding_form import TICKS, TICKS_OF, TTL, USUAL_HEADER, USUAL_HEADS, USUAL_SCHEDULED_KEY, order_of
from .property_names import ALIASES, NAMESPACE, PATH, SCHEDULED_ANNOTATION, NotParkableError, shown, spellings, text_of

_NULL = b"\x40"
#: How sections begin that Python's SDK has written; the data's in one and in four bytes of size.
_SHORT_PROPERTIES, _SHORT_DATA, _LONG_DATA = b"\x00Ss\xc0", b"\x00Su\xa0", b"\x00Su\xb0"
_I64 = struct.Struct(">q")
_ALIAS_KEYS = spellings(*ALIASES)
_SCHEDULED_KEYS = spellings(SCHEDULED_ANNOTATION)
#: A sender parks for one path.
_encode_text = lru_cache(maxsize=256, typed=True)(encode)
_PATH_KEY, _SESSION_ID_KEY, _TIME_TO_LIVE_KEY, _SCHEDULED_KEY, _NAMESPACE_KEY, _FORM_KEY = map(encode, ALIASES)


def park(message: bytes, path: str, message_id: str, namespace: str | None = None) -> bytes:
    """The message as it waits in a backlog queue for the entity at `path`; `message_id` is for one that has none.

    Raises `NotParkableError`, and nothing else, for a message that could not be restored: it has an application
    property of an alias's name, a session id, time to live or scheduled time of a type that AMQP does not allow
    there, or is no AMQP message.
    """
    try:
        return _park_usual(message, path, namespace) or _park(message, path, message_id, namespace)
    except AmqpDecodeError as error:
        raise NotParkableError("message", f"is not readable: {error}") from error


def _park_usual(message: bytes, path: str, namespace: str | None) -> bytes | None:
    """What `_park` makes of what most messages are: short properties, an id among them, with nothing but strings; and
    one data section. Nothing for any other, nor for what is refused."""
    size = len(message)
    if size < 16 or message[:4] != _SHORT_PROPERTIES:
        return None
    end, count = 5 + message[4], message[5]
    data = message[end : end + 4]
    if data == _LONG_DATA:
        whole = end + 8 + int.from_bytes(message[end + 4 : end + 8], "big") == size
    else:
        whole = data == _SHORT_DATA and size > end + 4 and end + 5 + message[end + 4] == size
    if not whole or not count or message[6] == 0x40:
        return None
    pos, group = 6, 0
    for index in range(count):
        code = message[pos]
        if code == 0x40:
            pos += 1
        elif code == 0xA1 and index != ABSOLUTE_EXPIRY_TIME:
            if index == GROUP_ID:
                group = pos
            pos += 2 + message[pos + 1]
        else:
            return None
        if pos > end:
            return None
    entries = _aliases_of_all(path, namespace)
    if pos != end or entries is None:
        return None
    properties, number = message[:end], 2 if namespace is None else 4
    if group:
        after = group + 2 + message[group + 1]
        if not message[group + 2 : after].isascii():
            return None
        entries += _SESSION_ID_KEY + message[group:after]
        number += 2
        shorter = bytes((message[4] + 1 - (after - group), count))
        properties = b"".join((_SHORT_PROPERTIES, shorter, message[6:group], _NULL, message[after:end]))
    application = map_section(USUAL_HEADS[APPLICATION_PROPERTIES], [entries], number)
    return b"".join((properties, application, message[end:]))


@lru_cache(maxsize=256, typed=True)
def _aliases_of_all(path: str, namespace: str | None) -> bytes | None:
    """The aliases that every message for a destination gets; none where `_park` refuses them."""
    if not path or namespace == "":
        return None
    return b"".join((_PATH_KEY, encode(path), *(() if namespace is None else (_NAMESPACE_KEY, encode(namespace)))))


def _park(message: bytes, path: str, message_id: str, namespace: str | None) -> bytes:
    if not path or namespace == "":
        raise NotParkableError(PATH if not path else NAMESPACE, "would be empty")
    where, rest, codes = layout(message)
    form: list[str] = []
    added = [_PATH_KEY, _encode_text(path)]
    if namespace is not None:
        added += (_NAMESPACE_KEY, _encode_text(namespace))

    header = instructions = annotations = b""
    time_to_live = scheduled = None
    if (told := where.get(HEADER)) is not None:
        header, time_to_live = _park_header(message, told, form)
    if (told := where.get(DELIVERY_ANNOTATIONS)) is not None:
        _note_map(message, told, "delivery", form)
        instructions = message[told.start : told.end]
    if (told := where.get(MESSAGE_ANNOTATIONS)) is not None:
        annotations, scheduled = _park_annotations(message, told, form)
    properties, session_id = _park_properties(
        message, where.get(PROPERTIES), message_id, time_to_live is not None, form
    )

    if session_id is not None:
        added += (_SESSION_ID_KEY, session_id)
    if time_to_live is not None:
        added += (_TIME_TO_LIVE_KEY, TICKS_OF + _I64.pack(time_to_live * TICKS))
    if scheduled is not None:
        added += (_SCHEDULED_KEY, scheduled)
    if codes:
        form.append(order_of(codes))
    application = _park_application(message, where.get(APPLICATION_PROPERTIES), added, form)
    return b"".join((header, instructions, annotations, properties, application, rest))


def _park_header(message: bytes, found: Section, form: list[str]) -> tuple[bytes, int | None]:
    """The header without its time to live, and that in milliseconds."""
    at = bounds(message, found.value)
    header, time_to_live = message[found.start : found.end], None
    if len(at) - 1 > TTL and message[at[TTL]] != 0x40:
        start, end = at[TTL], at[TTL + 1]
        code = message[start]
        if code not in (0x43, 0x52, 0x70):
            raise NotParkableError("ttl", f"of the header is no uint but {shown(message[start:end])}")
        time_to_live = int.from_bytes(message[start + 1 : end], "big")
        if code != (0x70 if time_to_live > 255 else 0x52 if time_to_live else 0x43):
            form.append(f"ttl={code:x}")
        header = replace_fields(message, found, at, ((TTL, _NULL),))
    if time_to_live is None or header != USUAL_HEADER:
        form.append("header=" + header.hex())
    return header, time_to_live


def _park_annotations(message: bytes, found: Section, form: list[str]) -> tuple[bytes, bytes | None]:
    """The message annotations without the scheduled time, and that, encoded."""
    _note_map(message, found, "annotations", form)
    if message.find(b"x-opt-scheduled-enqueue-time", found.value, found.end) < 0:
        return message[found.start : found.end], None
    kept: list[bytes] = []
    place = key = when = None
    for index, (start, value, end) in enumerate(pairs(message, found.value)):
        if message[start:value] not in _SCHEDULED_KEYS or message[value] == 0x40:
            kept.append(message[start:end])
        elif when is not None:
            raise NotParkableError(SCHEDULED_ANNOTATION, "is there twice")
        elif message[value] != 0x83:
            raise NotParkableError(SCHEDULED_ANNOTATION, f"is no timestamp but {shown(message[value:end])}")
        else:
            place, key, when = index, message[start:value], message[value:end]
    if key is not None and key != USUAL_SCHEDULED_KEY:
        form.append(f"key={key[0]:x}")
    if place is not None and place != len(kept):
        form.append(f"place={place}")
    if not kept:
        return b"", when
    return map_section(USUAL_HEADS[MESSAGE_ANNOTATIONS], kept, 2 * len(kept)), when


def _park_properties(
    message: bytes, found: Section | None, message_id: str, expires: bool, form: list[str]
) -> tuple[bytes, bytes | None]:
    """The properties with an id, without session id and expiry; and the session id, encoded."""
    if found is None:
        return list_section(USUAL_HEADS[PROPERTIES], [encode(message_id)], 1), None
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
                    raise NotParkableError("group-id", f"(session id) is no string but {shown(session_id)}")
                changes.append((GROUP_ID, _NULL))
    if not changes:
        return message[found.start : found.end], None
    return replace_fields(message, found, at, changes), session_id


def _park_application(message: bytes, found: Section | None, added: list[bytes], form: list[str]) -> bytes:
    """The application properties with the aliases behind them."""
    head, items, count = USUAL_HEADS[APPLICATION_PROPERTIES], b"", 0
    if found is not None:
        count, first, end = compound(message, found.value)
        head, items = message[found.start : found.value], message[first:end]
        check_map(message, found.value)
        if not count or (message[found.value] == 0xD1 and fits_short(len(items), count)):
            form.append(f"properties={message[found.value]:x}")
        if b"x-ms-" in items or b"x-pairbus-" in items:
            for start, value, _ in pairs(message, found.value):
                if (name := _ALIAS_KEYS.get(message[start:value])) is not None:
                    raise NotParkableError(name, "is an application property of the message itself")
    if form:
        added += (_FORM_KEY, encode(";".join(form)))
    return map_section(head, [items, *added], count + len(added))


def _note_map(message: bytes, found: Section, name: str, form: list[str]) -> None:
    """Note a map of annotations that is empty, wider than it need be, or has an odd descriptor."""
    check_map(message, found.value)
    count, first, end = compound(message, found.value)
    code = message[found.value]
    if not count or (code == 0xD1 and fits_short(end - first, count)) or message[found.start + 1] != 0x53:
        form.append(f"{name}={message[found.start : found.value + 1].hex()}")
