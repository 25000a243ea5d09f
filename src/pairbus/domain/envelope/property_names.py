"""The names of the properties and annotations that parking uses, and the errors that name them.

ValueError
├── NotRestorableError   park: the parked message could not be restored
└── EnvelopeError        restore: the message was not parked, or was damaged afterwards
"""

from __future__ import annotations

from uuid import UUID

from pairbus.domain.amqp.codec import AmqpDecodeError, decode

PATH = "x-ms-path"
SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
NAMESPACE = "x-pairbus-namespace"
FORM = "x-pairbus-form"
#: The application properties that `park` adds and `restore` removes.
ALIASES = (PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED, NAMESPACE, FORM)

SCHEDULED_ANNOTATION = "x-opt-scheduled-enqueue-time"
PARTITION_KEY = "x-opt-partition-key"
ENQUEUED_TIME = "x-opt-enqueued-time"
SEQUENCE_NUMBER = "x-opt-sequence-number"
LOCKED_UNTIL = "x-opt-locked-until"
#: Message and delivery annotations that only a broker may write.
BROKER_OWNED = (
    SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    "x-opt-enqueue-sequence-number",
    "x-opt-message-state",
    "x-opt-deadletter-source",
    "x-opt-lock-token",
)

_SHOWN = 80
_TYPES = {bool: "boolean", str: "string", bytes: "binary", float: "double", UUID: "uuid", dict: "map"}


class NotRestorableError(ValueError):
    """A message that `park` refuses, since `restore` could not return it unchanged.

    Attributes
    ----------
    property
        The part of the message that stands in the way.
    reason
        What is wrong with it, as the end of a sentence that begins with the property.
    """

    def __init__(self, property: str, reason: str) -> None:
        super().__init__(property, reason)
        self.property = property
        self.reason = reason

    def __str__(self) -> str:
        return f"the message cannot be parked: {self.property} {self.reason}"


class EnvelopeError(ValueError):
    """A message that `restore` refuses, since `park` did not make it.

    Attributes
    ----------
    property
        The property that is missing or wrong; `message` if the bytes are no AMQP message.
    held
        A description of its value.
    """

    def __init__(self, property: str, held: str) -> None:
        super().__init__(property, held)
        self.property = property
        self.held = held

    def __str__(self) -> str:
        return f"the message cannot be restored: {self.property} held {self.held}"


def spellings(*names: str) -> dict[bytes, str]:
    """Map each encoding of a key (string or symbol, short or long) to its name."""
    found = {}
    for name in names:
        raw = name.encode()
        for code in (0xA1, 0xA3):
            found[bytes((code, len(raw))) + raw] = name
            found[bytes((code + 0x10,)) + len(raw).to_bytes(4, "big") + raw] = name
    return found


def text_of(raw: bytes) -> str | None:
    """Return an encoded string's text; None for a value of another type."""
    try:
        if raw[0] == 0xA1:
            return raw[2:].decode()
        if raw[0] == 0xB1:
            return raw[5:].decode()
    except UnicodeDecodeError:
        pass
    return None


def shown(raw: bytes) -> str:
    """Return an encoded value's type and its beginning, in one line."""
    try:
        value = decode(raw)[0]
    except AmqpDecodeError:
        return f"unreadable bytes {raw[:24].hex()}"
    if value is None:
        return "null"
    text = f"{_TYPES.get(type(value), type(value).__name__.lower())} {value!r}"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
