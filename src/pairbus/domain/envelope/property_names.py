"""The names that parking uses, and the errors that name them.

ValueError
├── NotParkableError   park: the message could not be restored from what would be parked
└── EnvelopeError      restore: this was not parked, or has been damaged since
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
#: The application properties of a parked message that `restore` takes away.
ALIASES = (PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED, NAMESPACE, FORM)

SCHEDULED_ANNOTATION = "x-opt-scheduled-enqueue-time"
PARTITION_KEY = "x-opt-partition-key"
ENQUEUED_TIME = "x-opt-enqueued-time"
SEQUENCE_NUMBER = "x-opt-sequence-number"
LOCKED_UNTIL = "x-opt-locked-until"
#: Annotations, of message or delivery, that only a broker may write.
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


class NotParkableError(ValueError):
    """`park` cannot make a message of this that `restore` would turn into the same again."""

    def __init__(self, property: str, reason: str) -> None:
        super().__init__(property, reason)
        self.property = property
        self.reason = reason

    def __str__(self) -> str:
        return f"the message cannot be parked: {self.property} {self.reason}"


class EnvelopeError(ValueError):
    """`restore` was given what `park` has not made: `property` is missing, or `held` something else."""

    def __init__(self, property: str, held: str) -> None:
        super().__init__(property, held)
        self.property = property
        self.held = held

    def __str__(self) -> str:
        return f"the message cannot be restored: {self.property} held {self.held}"


def spellings(*names: str) -> dict[bytes, str]:
    """Every encoding that a map's key may have (string or symbol, short or long) to the name it spells."""
    found = {}
    for name in names:
        raw = name.encode()
        for code in (0xA1, 0xA3):
            found[bytes((code, len(raw))) + raw] = name
            found[bytes((code + 0x10,)) + len(raw).to_bytes(4, "big") + raw] = name
    return found


def text_of(raw: bytes) -> str | None:
    """The string that is encoded here; None if it is anything else."""
    try:
        if raw[0] == 0xA1:
            return raw[2:].decode()
        if raw[0] == 0xB1:
            return raw[5:].decode()
    except UnicodeDecodeError:
        pass
    return None


def shown(raw: bytes) -> str:
    """What an encoded value is, its type and a glimpse of it: never more than a line."""
    try:
        value = decode(raw)[0]
    except AmqpDecodeError:
        return f"unreadable bytes {raw[:24].hex()}"
    if value is None:
        return "null"
    said = f"{_TYPES.get(type(value), type(value).__name__.lower())} {value!r}"
    return said if len(said) <= _SHOWN else said[: _SHOWN - 1] + "…"
