"""The errors that localbus answers with: one class, and the service's AMQP conditions and HTTP statuses."""

from __future__ import annotations

from typing import TypeVar

_Entity = TypeVar("_Entity")

INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
UNAUTHORIZED = "amqp:unauthorized-access"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
INVALID_FIELD = "amqp:invalid-field"
NOT_IMPLEMENTED = "amqp:not-implemented"
CONNECTION_FORCED = "amqp:connection:forced"
FRAMING_ERROR = "amqp:connection:framing-error"
DETACH_FORCED = "amqp:link:detach-forced"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
STOLEN = "amqp:link:stolen"
TIMEOUT = "com.microsoft:timeout"
SERVER_BUSY = "com.microsoft:server-busy"
ENTITY_DISABLED = "com.microsoft:entity-disabled"
ENTITY_EXISTS = "com.microsoft:entity-already-exists"
MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
AUTH_FAILED = "com.microsoft:auth-failed"
ARGUMENT_ERROR = "com.microsoft:argument-error"
ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
DEAD_LETTER = "com.microsoft:dead-letter"

#: Operations that a disabled entity refuses, worded for `disabled`.
SETTLING = "settling a message of"
RENEWING = "renewing a lock of"

#: HTTP status of each condition, on the management REST API and in request/response replies.
STATUS: dict[str, int] = {
    INTERNAL_ERROR: 500,
    NOT_FOUND: 404,
    UNAUTHORIZED: 401,
    DECODE_ERROR: 400,
    RESOURCE_LIMIT_EXCEEDED: 403,
    NOT_ALLOWED: 400,
    INVALID_FIELD: 400,
    NOT_IMPLEMENTED: 501,
    "amqp:illegal-state": 400,
    "amqp:precondition-failed": 412,
    "amqp:resource-deleted": 410,
    CONNECTION_FORCED: 503,
    FRAMING_ERROR: 400,
    DETACH_FORCED: 500,
    MESSAGE_SIZE_EXCEEDED: 413,
    STOLEN: 409,
    TIMEOUT: 408,
    SERVER_BUSY: 503,
    ENTITY_DISABLED: 403,
    ENTITY_EXISTS: 409,
    MESSAGE_LOCK_LOST: 410,
    MESSAGE_NOT_FOUND: 404,
    SESSION_LOCK_LOST: 410,
    SESSION_CANNOT_BE_LOCKED: 409,
    AUTH_FAILED: 401,
    ARGUMENT_ERROR: 400,
    ARGUMENT_OUT_OF_RANGE: 400,
    "com.microsoft:operation-cancelled": 503,
    DEAD_LETTER: 400,
}


class BusError(Exception):
    """A refusal with the service's condition, an HTTP status (by default the condition's) and a description."""

    def __init__(self, condition: str, description: str, *, status: int | None = None) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description
        self.status = STATUS[condition] if status is None else status

    def __repr__(self) -> str:
        return f"BusError({self.condition!r}, {self.description!r})"


def disabled(entity: str, what: str) -> BusError:
    return BusError(
        ENTITY_DISABLED,
        f"The messaging entity '{entity}' is currently disabled: {what} is refused. Its owner can enable it again.",
    )


def not_found(path: str) -> BusError:
    return BusError(NOT_FOUND, f"The messaging entity '{path}' could not be found.")


def existing(entity: _Entity | None, path: str) -> _Entity:
    """Return an entity that was looked up; raise the service's error if there is none."""
    if entity is None:
        raise not_found(path)
    return entity


def session_lock_lost() -> BusError:
    return BusError(
        SESSION_LOCK_LOST, "The session lock has expired on the MessageSession. Accept a new MessageSession."
    )


def size_exceeded(path: str, size: int, limit: int) -> BusError:
    return BusError(
        MESSAGE_SIZE_EXCEEDED,
        f"The received message (size: {size} bytes) for '{path}' exceeds the limit ({limit} bytes) currently "
        "allowed on the link.",
    )
