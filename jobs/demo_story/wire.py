"""The sender's part of a received message's bytes, without the broker's additions."""

from __future__ import annotations

from hashlib import blake2b

from pairbus.domain.amqp.sections import (
    ABSOLUTE_EXPIRY_TIME,
    CREATION_TIME,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    entries,
    fields,
    split,
)

_OF_THE_BROKER = {
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-enqueue-sequence-number",
}
#: The sender's fields of the header: durable, priority and time to live. The broker writes the others.
_OF_THE_SENDER = 3
#: The SDK sets these by the clock, and the time to live starts anew on delivery.
_BY_THE_CLOCK = (ABSOLUTE_EXPIRY_TIME, CREATION_TIME)
_NULL = b"\x40"


def digest(message: bytes) -> bytes:
    """Return a digest of header, annotations, properties, application properties, body and footer, byte for byte.

    It excludes the broker's additions. Of two times that depend on the moment of sending, it includes only their
    presence.
    """
    parts = {HEADER: _NULL * _OF_THE_SENDER}
    body = b""
    for section in split(message):
        if section.code == HEADER:
            parts[HEADER] = _header(message, section)
        elif section.code == MESSAGE_ANNOTATIONS:
            parts[MESSAGE_ANNOTATIONS] = _annotations(message, section)
        elif section.code == PROPERTIES:
            parts[PROPERTIES] = _properties(message, section)
        elif section.code != DELIVERY_ANNOTATIONS:
            body += message[section.start : section.end]
    found = blake2b(body, digest_size=16)
    for code, part in sorted(parts.items()):
        if part:
            found.update(bytes((code,)) + len(part).to_bytes(4, "big") + part)
    return found.digest()


def _header(message: bytes, section: Section) -> bytes:
    found = [message[start:end] for start, end in fields(message, section.value)][:_OF_THE_SENDER]
    return b"".join(found + [_NULL] * (_OF_THE_SENDER - len(found)))


def _annotations(message: bytes, section: Section) -> bytes:
    kept = [each for each in entries(message, section.value) if str(each.key) not in _OF_THE_BROKER]
    return b"".join(message[each.start : each.end] for each in kept)


def _properties(message: bytes, section: Section) -> bytes:
    found = [message[start:end] for start, end in fields(message, section.value)]
    for index in _BY_THE_CLOCK:
        if index < len(found) and found[index] != _NULL:
            found[index] = b"set"
    return b"".join(found)
