"""Messages between the backlog queue and their destinations: in flight, or held back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.domain.envelope import Facts, Restored
from pairbus.domain.outcome import Outcome

from .lock_tracking import SessionKey

#: The shares of a lock's time after which a message is no longer sent, and an answer no longer waited for. The rest of
#: the lock is for the settlement.
_SEND_SHARE = 0.6
_ANSWER_SHARE = 0.85
_NEVER = float("inf")


@dataclass(slots=True, eq=False, repr=False)
class InFlightMessage:
    """One message that was received from the backlog queue and is not settled yet."""

    delivery: Any
    #: Bytes as received from the backlog, and as sent to the destination.
    received_size: int
    size: int = 0
    #: The encoded message; emptied once it is not needed any more.
    message: bytes = b""
    destination: str | None = None
    sequence: int = -1
    message_id: str | None = None
    session: str | None = None
    parked_at: int | None = None
    delivery_count: int = 0
    #: Times by the event loop's clock: when it was sent, until when it may be sent, and until when an answer is of use.
    sent_at: float = 0.0
    send_by: float = 0.0
    answer_by: float = 0.0
    #: True once it was given back to the backlog queue.
    is_abandoned: bool = False
    #: True if it must not share a batch: one with it was refused, or it has a partition key of its own.
    sent_alone: bool = False
    #: The outcome, once it is decided, with the reason and the description for its row.
    outcome: Outcome | None = None
    reason: str | None = None
    description: str | None = None

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
            f"{len(messages)} messages are held back ({count} of them for {name}); messages behind them were not "
            "checked"
        )
