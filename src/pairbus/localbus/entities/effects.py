"""What a queue asks of the world around it: to keep, to forget, to wake, to be called at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .message import Message


class Effects(Protocol):
    """The broker carries these out; tests record them. `queue` is the `Queue` that asks."""

    def new_id(self) -> int:
        """An id that no message of the namespace has had."""

    def stored(self, queue: Any, message: Message) -> None:
        """A message came in, or was rewritten: keep it."""

    def numbered(self, queue: Any) -> None:
        """A sequence number was spent on no message: keep the next one."""

    def restated(self, message: Message, delivery_count: int) -> None:
        """State or delivery count changed: keep these."""

    def gone(self, message: Message) -> None:
        """A message left: forget it."""

    def session_state(self, queue: Any, session: str, state: bytes | None) -> None:
        """A session's state was set."""

    def seen(self, queue: Any, message_id: str, at: float) -> None:
        """A message id entered the duplicate history."""

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        """The payloads of messages, wherever they are kept."""

    def ready(self, queue: Any) -> None:
        """There is something to hand out."""

    def due(self, queue: Any, when: float) -> None:
        """`advance` is wanted at that time."""

    def session_lost(self, queue: Any, session: str, owner: Any) -> None:
        """A session's lock ran out under its owner."""
