"""Effects of localbus's queues, recorded in memory, and queues on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pairbus.localbus.entities.message import Message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.settings import QueueSettings

NEVER = float("inf")


@dataclass
class StoredMessage:
    """A message as a store has it."""

    queue: int
    message: Message
    payload: bytes
    state: int
    delivery_count: int


class RecordedEffects:
    """Effects recorded in memory, as a store writes them, with the times at which queues asked for `advance`."""

    def __init__(self) -> None:
        self.last_id = 0
        self.kept: dict[int, StoredMessage] = {}
        self.next_sequences: dict[int, int] = {}
        self.states: dict[tuple[int, str], bytes] = {}
        self.history: list[tuple[int, str, float]] = []
        self.advance_at: dict[int, float] = {}
        self.ready_queues: set[int] = set()
        self.lost: list[str] = []

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def stored(self, queue: Queue, message: Message) -> None:
        assert message.payload is not None
        self.kept[message.id] = StoredMessage(queue.id, message, message.payload, message.state, message.delivery_count)
        self.next_sequences[queue.id] = queue.next_sequence

    def sequence_skipped(self, queue: Queue) -> None:
        self.next_sequences[queue.id] = queue.next_sequence

    def state_changed(self, message: Message, delivery_count: int) -> None:
        kept = self.kept[message.id]
        kept.state, kept.delivery_count = message.state, delivery_count

    def removed(self, message: Message) -> None:
        del self.kept[message.id]

    def session_state(self, queue: Queue, session: str, state: bytes | None) -> None:
        if state is None:
            self.states.pop((queue.id, session), None)
        else:
            self.states[(queue.id, session)] = state

    def id_recorded(self, queue: Queue, message_id: str, at: float) -> None:
        self.history.append((queue.id, message_id, at))

    def payloads(self, messages: Any) -> list[bytes]:
        return [self.kept[m.id].payload for m in messages]

    def ready(self, queue: Queue) -> None:
        self.ready_queues.add(queue.id)

    def due(self, queue: Queue, when: float) -> None:
        self.advance_at[queue.id] = min(when, self.advance_at.get(queue.id, NEVER))

    def session_lost(self, queue: Queue, session: str, owner: Any) -> None:
        self.lost.append(session)


def queue_with_dead_letters(effects: RecordedEffects, chosen: QueueSettings) -> Queue:
    """Return a queue with its dead-letter queue, as the catalog builds them."""
    plain = QueueSettings(chosen.name, lock_duration=chosen.lock_duration)
    dead = Queue(1, f"{chosen.name}/$DeadLetterQueue", plain, effects)
    return Queue(0, chosen.name, chosen, effects, dead_letters=dead)
