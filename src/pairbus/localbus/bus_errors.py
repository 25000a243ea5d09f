"""The errors that localbus answers with: one class, and the service's AMQP conditions and HTTP statuses."""

from __future__ import annotations

from typing import TypeVar

_Entity = TypeVar("_Entity")

#: HTTP status of each condition, on the management REST API and in request/response replies.
STATUS: dict[str, int] = {}


def _condition(name: str, status: int) -> str:
    STATUS[name] = status
    return name


# Those without a name are for faults only.
INTERNAL_ERROR = _condition("amqp:internal-error", 500)
NOT_FOUND = _condition("amqp:not-found", 404)
UNAUTHORIZED = _condition("amqp:unauthorized-access", 401)
DECODE_ERROR = _condition("amqp:decode-error", 400)
RESOURCE_LIMIT_EXCEEDED = _condition("amqp:resource-limit-exceeded", 403)
NOT_ALLOWED = _condition("amqp:not-allowed", 400)
INVALID_FIELD = _condition("amqp:invalid-field", 400)
NOT_IMPLEMENTED = _condition("amqp:not-implemented", 501)
_condition("amqp:illegal-state", 400)
_condition("amqp:precondition-failed", 412)
_condition("amqp:resource-deleted", 410)
CONNECTION_FORCED = _condition("amqp:connection:forced", 503)
FRAMING_ERROR = _condition("amqp:connection:framing-error", 400)
DETACH_FORCED = _condition("amqp:link:detach-forced", 500)
MESSAGE_SIZE_EXCEEDED = _condition("amqp:link:message-size-exceeded", 413)
STOLEN = _condition("amqp:link:stolen", 409)
TIMEOUT = _condition("com.microsoft:timeout", 408)
SERVER_BUSY = _condition("com.microsoft:server-busy", 503)
ENTITY_DISABLED = _condition("com.microsoft:entity-disabled", 403)
ENTITY_EXISTS = _condition("com.microsoft:entity-already-exists", 409)
MESSAGE_LOCK_LOST = _condition("com.microsoft:message-lock-lost", 410)
MESSAGE_NOT_FOUND = _condition("com.microsoft:message-not-found", 404)
SESSION_LOCK_LOST = _condition("com.microsoft:session-lock-lost", 410)
SESSION_CANNOT_BE_LOCKED = _condition("com.microsoft:session-cannot-be-locked", 409)
AUTH_FAILED = _condition("com.microsoft:auth-failed", 401)
ARGUMENT_ERROR = _condition("com.microsoft:argument-error", 400)
ARGUMENT_OUT_OF_RANGE = _condition("com.microsoft:argument-out-of-range", 400)
_condition("com.microsoft:operation-cancelled", 503)
DEAD_LETTER = _condition("com.microsoft:dead-letter", 400)

#: Operations that a disabled entity refuses, worded for `disabled`.
SETTLING = "settling a message of"
RENEWING = "renewing a lock of"


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
