"""The table of AMQP error conditions: their meaning for a sender, and for a message that the syphon moves back.

A message stays in the backlog while waiting may help, else it is dead-lettered. The third column is the refused part.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Meaning(Enum):
    """The meaning of a failed send for its entity."""

    #: Counts towards failover.
    OUTAGE = "counts"
    #: Wait and try again.
    BUSY = "wait and retry"
    #: An error of the caller; it does not count.
    CONFIGURATION = "does not count"


class Refusal(Enum):
    """The treatment of a message that its destination refused."""

    #: The message stays in the backlog, and its destination gets nothing more in this pass.
    HOLD = "hold"
    #: The message is dead-lettered in the backlog: no retry can succeed.
    DEAD_LETTER = "dead-letter"
    #: No sender should get the condition: the message is held, and dead-lettered if it is refused repeatedly.
    UNKNOWN = "unknown"


class Subject(Enum):
    """The part that a condition refuses."""

    #: The service or the connection, or the condition does not say.
    SERVICE = "service"
    #: The key, the token or its rights. Waiting does not help: the operator must supply others.
    CREDENTIAL = "credential"
    #: The entity takes no messages, and no token can be had for it.
    ENTITY = "entity"
    #: One message; its destination takes others.
    MESSAGE = "message"


class Condition(NamedTuple):
    """One row of the table."""

    for_sender: Meaning
    for_message: Refusal
    subject: Subject = Subject.SERVICE


#: A message refused with an unknown condition is dead-lettered after this many deliveries.
MAX_UNKNOWN_DELIVERIES = 10

_OUTAGE = Condition(Meaning.OUTAGE, Refusal.HOLD)
_BUSY = Condition(Meaning.BUSY, Refusal.HOLD)
#: The entity is full or locked: an error for the caller of a send; the syphon waits.
_FULL = Condition(Meaning.CONFIGURATION, Refusal.HOLD)
_CREDENTIAL = Condition(Meaning.CONFIGURATION, Refusal.HOLD, Subject.CREDENTIAL)
_ENTITY = Condition(Meaning.CONFIGURATION, Refusal.DEAD_LETTER, Subject.ENTITY)
_MESSAGE = Condition(Meaning.CONFIGURATION, Refusal.DEAD_LETTER, Subject.MESSAGE)
_PERMANENT = Condition(Meaning.CONFIGURATION, Refusal.DEAD_LETTER)
#: An error of a receiver, which neither the sender's nor the syphon's destination links get.
_RECEIVER = Condition(Meaning.CONFIGURATION, Refusal.UNKNOWN)
#: An error that the SDK raises by itself, without an answer from the service; Proton has no such condition.
_SDK = Condition(Meaning.OUTAGE, Refusal.UNKNOWN)

CONDITIONS: dict[str, Condition] = {
    "com.microsoft:timeout": _OUTAGE,
    "com.microsoft:operation-cancelled": _OUTAGE,
    "com.microsoft:container-close": _OUTAGE,
    "com.microsoft:store-lock-lost": _OUTAGE,
    "com.microsoft:partition-not-owned": _OUTAGE,
    "com.microsoft:server-busy": _BUSY,
    "com.microsoft:auth-failed": _CREDENTIAL,
    "com.microsoft:publisher-revoked": _CREDENTIAL,
    "com.microsoft:entity-disabled": _ENTITY,
    "com.microsoft:relay-not-found": _ENTITY,
    "com.microsoft:argument-error": _MESSAGE,
    "com.microsoft:argument-out-of-range": _MESSAGE,
    "com.microsoft:precondition-failed": _MESSAGE,
    "com.microsoft:entity-already-exists": _PERMANENT,
    "com.microsoft:message-not-found": _PERMANENT,
    "com.microsoft:session-cannot-be-locked": _PERMANENT,
    "com.microsoft:message-lock-lost": _RECEIVER,
    "com.microsoft:session-lock-lost": _RECEIVER,
    "amqp:internal-error": _OUTAGE,
    "amqp:illegal-state": _OUTAGE,
    "amqp:frame-size-too-small": _OUTAGE,
    "amqp:connection:forced": _OUTAGE,
    "amqp:connection:framing-error": _OUTAGE,
    "amqp:connection:redirect": _OUTAGE,
    "amqp:session:window-violation": _OUTAGE,
    "amqp:session:errant-link": _OUTAGE,
    "amqp:session:handle-in-use": _OUTAGE,
    "amqp:session:unattached-handle": _OUTAGE,
    "amqp:link:detach-forced": _OUTAGE,
    "amqp:link:transfer-limit-exceeded": _OUTAGE,
    "amqp:link:redirect": _OUTAGE,
    "amqp:link:stolen": _OUTAGE,
    "amqp:resource-limit-exceeded": _FULL,
    "amqp:resource-locked": _FULL,
    "amqp:unauthorized-access": _CREDENTIAL,
    "amqp:not-found": _ENTITY,
    "amqp:resource-deleted": _ENTITY,
    "amqp:link:message-size-exceeded": _MESSAGE,
    "amqp:decode-error": _MESSAGE,
    "amqp:invalid-field": _MESSAGE,
    "amqp:not-allowed": _MESSAGE,
    "amqp:not-implemented": _MESSAGE,
    "amqp:precondition-failed": _MESSAGE,
    "amqp:unknown-error": _SDK,
    "amqp:vendor-error": _SDK,
    "amqp:client-error": _SDK,
    "amqp:socket-error": _SDK,
}


def conditions_of(subject: Subject) -> frozenset[str]:
    return frozenset(name for name, condition in CONDITIONS.items() if condition.subject is subject)


CREDENTIAL_CONDITIONS = conditions_of(Subject.CREDENTIAL)
ENTITY_CONDITIONS = conditions_of(Subject.ENTITY)
MESSAGE_CONDITIONS = conditions_of(Subject.MESSAGE)


def refusal_of(condition: str | None) -> Refusal:
    """Return the treatment of a refused message; without a condition, as after a lost connection, it is held."""
    if condition is None:
        return Refusal.HOLD
    known = CONDITIONS.get(condition)
    return Refusal.UNKNOWN if known is None else known.for_message
