"""Messages between the backlog queue and their destinations: in flight, or held back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pairbus.domain.envelope import Facts, Restored
from pairbus.domain.outcome import Outcome

from .lock_tracking import SessionKey

#: The shares of a lock's time after which a message is no longer sent, and an answer no longer waited for. The rest of
#: the lock is for the settlement.
_SEND_SHARE = 0.6
_ANSWER_SHARE = 0.85
_NEVER = float("inf")


class InFlightMessage:
    """One message that was received from the backlog queue and is not settled yet."""

    __slots__ = (
        "answer_by", "delivery", "delivery_count", "description", "destination", "is_abandoned", "message",
        "message_id", "outcome", "parked_at", "reason", "received_size", "send_by", "sent_alone", "sent_at",
        "sequence", "session", "size",
    )  # fmt: skip

    def __init__(self, delivery: Any, received_size: int) -> None:
        self.delivery = delivery
        #: Bytes as received from the backlog, and as sent to the destination.
        self.received_size = received_size
        self.size = 0
        #: The encoded message; emptied once it is not needed any more.
        self.message = b""
        self.destination: str | None = None
        self.sequence = -1
        self.message_id: str | None = None
        self.session: str | None = None
        self.parked_at: int | None = None
        self.delivery_count = 0
        #: Times by the event loop's clock: when it was sent, until when it may be sent, and until when an answer is of
        #: use.
        self.sent_at = self.send_by = self.answer_by = 0.0
        #: True once it was given back to the backlog queue.
        self.is_abandoned = False
        #: True if it must not share a batch: one with it was refused, or it has a partition key (a batch goes to one
        #: partition).
        self.sent_alone = False
        #: The outcome, once it is decided, with the reason and the description for its row.
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.description: str | None = None

    def set_facts(self, facts: Facts) -> None:
        self.sequence = -1 if facts.sequence_number is None else facts.sequence_number
        self.parked_at, self.delivery_count = facts.enqueued_at, facts.delivery_count

    def set_content(self, restored: Restored) -> None:
        self.set_facts(restored.facts)
        self.message, self.size = restored.message, len(restored.message)
        self.message_id, self.session = restored.message_id, restored.session_id
        self.sent_alone = restored.has_partition_key and restored.session_id is None

    def set_deadlines(self, now: float, lock_seconds: float) -> None:
        self.send_by, self.answer_by = now + lock_seconds * _SEND_SHARE, now + lock_seconds * _ANSWER_SHARE

    @property
    def session_key(self) -> SessionKey | None:
        """The session, with the destination's name in lower case: entities are the same in any case."""
        return None if self.session is None else ((self.destination or "").lower(), self.session)


class HeldMessages:
    """Messages that a pass holds back, locked, until it ends or their locks are about to: no destination takes them."""

    def __init__(self) -> None:
        self._messages: list[InFlightMessage] = []
        self._next_due = _NEVER

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: InFlightMessage) -> None:
        self._messages.append(message)
        self._next_due = min(self._next_due, message.send_by)

    def take_due(self, now: float) -> list[InFlightMessage]:
        """Remove and return the messages that must be given back before their locks end."""
        if now <= self._next_due:
            return []
        due = [message for message in self._messages if now > message.send_by]
        self._messages = [message for message in self._messages if now <= message.send_by]
        self._next_due = min((message.send_by for message in self._messages), default=_NEVER)
        return due

    def describe(self, abandoned: Sequence[InFlightMessage] = ()) -> str:
        """Return an error text: the number of messages, those just given back included, and their main destination."""
        messages = [*abandoned, *self._messages]
        name, count = Counter(message.destination for message in messages).most_common(1)[0]
        return (
            f"{len(messages)} messages are held back ({count} of them for {name}); what lies behind them was not "
            "looked at"
        )
