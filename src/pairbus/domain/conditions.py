"""What a destination's refusal means for a message that comes home: one table from AMQP condition to what is done.

A message stays in the backlog while waiting may help, and is dead-lettered there when it cannot. A refusal of the
syphon itself (its key, its rights) is never the message's fault, so the message waits.
"""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """What is done with the message."""

    #: It stays in the backlog, and its destination is left alone for the rest of the pass.
    HOLD = "hold"
    #: No retry can mend it.
    DEAD_LETTER = "dead-letter"
    #: A condition that nobody has heard of: held, and dead-lettered if it comes again and again.
    UNKNOWN = "unknown"


#: After so many deliveries a message that is refused for a reason nobody knows no longer stands in others' way.
PATIENCE = 10

_HOLD, _DEAD_LETTER = Refusal.HOLD, Refusal.DEAD_LETTER

CONDITIONS: dict[str, Refusal] = {
    "com.microsoft:timeout": _HOLD,
    "com.microsoft:server-busy": _HOLD,
    "com.microsoft:operation-cancelled": _HOLD,
    "com.microsoft:container-close": _HOLD,
    "com.microsoft:store-lock-lost": _HOLD,
    "com.microsoft:partition-not-owned": _HOLD,
    "amqp:internal-error": _HOLD,
    "amqp:illegal-state": _HOLD,
    "amqp:frame-size-too-small": _HOLD,
    "amqp:resource-limit-exceeded": _HOLD,  # the destination is full
    "amqp:resource-locked": _HOLD,
    "amqp:connection:forced": _HOLD,
    "amqp:connection:framing-error": _HOLD,
    "amqp:connection:redirect": _HOLD,
    "amqp:session:window-violation": _HOLD,
    "amqp:session:errant-link": _HOLD,
    "amqp:session:handle-in-use": _HOLD,
    "amqp:session:unattached-handle": _HOLD,
    "amqp:link:detach-forced": _HOLD,
    "amqp:link:transfer-limit-exceeded": _HOLD,
    "amqp:link:redirect": _HOLD,
    "amqp:link:stolen": _HOLD,
    # The syphon is refused, not the message.
    "amqp:unauthorized-access": _HOLD,
    "com.microsoft:auth-failed": _HOLD,
    "com.microsoft:publisher-revoked": _HOLD,
    "amqp:not-found": _DEAD_LETTER,
    "amqp:resource-deleted": _DEAD_LETTER,
    "com.microsoft:relay-not-found": _DEAD_LETTER,
    "com.microsoft:entity-disabled": _DEAD_LETTER,
    "amqp:link:message-size-exceeded": _DEAD_LETTER,
    "amqp:not-allowed": _DEAD_LETTER,
    "amqp:not-implemented": _DEAD_LETTER,
    "amqp:decode-error": _DEAD_LETTER,
    "amqp:invalid-field": _DEAD_LETTER,
    "amqp:precondition-failed": _DEAD_LETTER,
    "com.microsoft:precondition-failed": _DEAD_LETTER,
    "com.microsoft:argument-error": _DEAD_LETTER,
    "com.microsoft:argument-out-of-range": _DEAD_LETTER,
    "com.microsoft:message-not-found": _DEAD_LETTER,
    "com.microsoft:session-cannot-be-locked": _DEAD_LETTER,
    "com.microsoft:entity-already-exists": _DEAD_LETTER,
}
#: Refusals of the syphon itself: waiting mends nothing, somebody must give it another key or another right.
OF_THE_SYPHON = frozenset({"amqp:unauthorized-access", "com.microsoft:auth-failed", "com.microsoft:publisher-revoked"})
#: What an entity is like that takes no message, and for which no token is to be had.
OF_THE_ENTITY = frozenset(
    {"amqp:not-found", "amqp:resource-deleted", "com.microsoft:relay-not-found", "com.microsoft:entity-disabled"}
)
#: Refusals of one message; its destination takes others.
OF_THE_MESSAGE = frozenset(
    {
        "amqp:link:message-size-exceeded",
        "amqp:decode-error",
        "amqp:invalid-field",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:precondition-failed",
        "com.microsoft:precondition-failed",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
    }
)


def means(condition: str | None) -> Refusal:
    """What a condition means; none at all, such as a connection that was lost, is not the message's fault."""
    return Refusal.HOLD if condition is None else CONDITIONS.get(condition, Refusal.UNKNOWN)
