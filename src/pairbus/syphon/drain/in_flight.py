"""One message on its way home: what is known of it, and what becomes of it."""

from __future__ import annotations

from typing import Any

from pairbus.domain.envelope import Facts, Restored
from pairbus.domain.outcome import Outcome

from .lock_tracking import Session

#: The share of a lock's time after which a message that waits is given back; that after which an answer is not waited
#: for any more. The rest is for the settlement.
_PATIENCE = 0.6
_ANSWER_PATIENCE = 0.85


class Moving:
    """One message on its way home."""

    __slots__ = (
        "alone", "answer_by", "delivered_count", "delivery", "destination", "ends_at", "given_back", "message",
        "message_id", "outcome", "parked_at", "reason", "received", "said", "sent_at", "sequence", "session", "size",
    )  # fmt: skip

    def __init__(self, delivery: Any, received: int) -> None:
        self.delivery = delivery
        #: Bytes as they came from the backlog, and as they go out.
        self.received = received
        self.size = 0
        #: As it is sent; let go as soon as it was accepted.
        self.message = b""
        self.destination: str | None = None
        self.sequence = -1
        self.message_id: str | None = None
        self.session: str | None = None
        self.parked_at: int | None = None
        self.delivered_count = 0
        #: When it was sent; and when its lock is too near its end for it to be sent, or for an answer to be of use. All
        #: by the loop's clock.
        self.sent_at = self.ends_at = self.answer_by = 0.0
        self.given_back = False
        #: Whether it goes by itself: a batch with it was refused, or it chose its partition (a batch goes to one).
        self.alone = False
        #: What becomes of it, once that is known; the reason and what was said go into the row.
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.said: str | None = None

    def told(self, facts: Facts) -> None:
        """What the broker has written on it."""
        self.sequence = -1 if facts.sequence_number is None else facts.sequence_number
        self.parked_at, self.delivered_count = facts.enqueued_at, facts.delivery_count

    def restored(self, found: Restored) -> None:
        """What its envelope held: the message as it goes out, and whose it is."""
        self.told(found.facts)
        self.message, self.size = found.message, len(found.message)
        self.message_id, self.session = found.message_id, found.session_id
        self.alone = found.has_partition_key and found.session_id is None

    def lasts(self, now: float, lock_left: float) -> None:
        """How long its lock does, from now on."""
        self.ends_at, self.answer_by = now + lock_left * _PATIENCE, now + lock_left * _ANSWER_PATIENCE

    @property
    def lane(self) -> Session | None:
        """The session of a destination that it belongs to, if it has one."""
        return None if self.session is None else ((self.destination or "").lower(), self.session)
