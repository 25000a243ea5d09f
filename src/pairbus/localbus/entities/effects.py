"""The port through which a queue persists its changes and asks for work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .message import Message


class Effects(Protocol):
    """Effects of a state change of `queue` (a `Queue`), which the broker carries out and tests record."""

    def new_id(self) -> int:
        """Return an id that no other message of the namespace has had."""

    def stored(self, queue: Any, message: Message) -> None:
        """Persist a message that was added, or whose payload was rewritten."""

    def sequence_skipped(self, queue: Any) -> None:
        """Persist the queue's next sequence number, since one was given to no message."""

    def state_changed(self, message: Message, delivery_count: int) -> None:
        """Persist a message's state and this delivery count."""

    def removed(self, message: Message) -> None:
        """Delete a message that has left its queue."""

    def session_state(self, queue: Any, session: str, state: bytes | None) -> None:
        """Persist a session's state; None deletes it."""

    def id_recorded(self, queue: Any, message_id: str, at: float) -> None:
        """Persist a message id of the duplicate history."""

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        """Return the payload of each message, from memory or from disk."""

    def ready(self, queue: Any) -> None:
        """Schedule a delivery: the queue has messages to give out."""

    def due(self, queue: Any, when: float) -> None:
        """Schedule a call of the queue's `advance` at that time."""

    def session_lost(self, queue: Any, session: str, owner: Any) -> None:
        """Tell the owner of a session that its lock has expired."""
