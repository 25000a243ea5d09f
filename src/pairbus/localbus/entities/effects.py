"""The port through which a queue persists its changes and asks for work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .message import Message


class Effects(Protocol):
    """Effects of a state change of `queue` (a `Queue`), which the broker carries out and tests record."""

    def new_id(self) -> int: ...  # that no other message of the namespace has had
    def stored(self, queue: Any, message: Message) -> None: ...  # added, or its payload was rewritten
    def sequence_skipped(self, queue: Any) -> None: ...  # a sequence number was given to no message
    def state_changed(self, message: Message, delivery_count: int) -> None: ...
    def removed(self, message: Message) -> None: ...
    def session_state(self, queue: Any, session: str, state: bytes | None) -> None: ...
    def id_recorded(self, queue: Any, message_id: str, at: float) -> None: ...  # in the duplicate history
    def payloads(self, messages: Sequence[Message]) -> list[bytes]: ...
    def ready(self, queue: Any) -> None: ...  # it has messages to give out
    def due(self, queue: Any, when: float) -> None: ...  # for a call of its `advance`
    def session_lost(self, queue: Any, session: str, owner: Any) -> None: ...
