"""The broker: accepts messages, moves them between entities, and persists what must outlive the process.

The server calls `turn` once per turn of its event loop, delivers messages of the queues that `turn` returns, and
commits the store before anything is answered.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Any

from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Event, Hub, Partition
from pairbus.localbus.entities.limits import check_draft
from pairbus.localbus.entities.message import Draft, Message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic

from .catalog import IDS_PER_ENTITY, Catalog
from .forwarding import Forwarder
from .store import MemoryStore, SqliteStore, Store
from .usage import EntityUsage

_FORWARD_RETRY_SECONDS = 1.0
_BATCHES_PER_TURN = 8

SessionLost = Callable[[Queue, str, Any], None]


class Broker(Catalog):
    """A namespace: its entities (see `Catalog`), and the messages in them; the server sets the `on_...` callbacks."""

    def __init__(self, name: str, store: Store | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.name = name
        self.store: Store = MemoryStore() if store is None else store
        self.clock = clock
        self.created_at = clock()
        self.on_session_lost: SessionLost = lambda queue, session, owner: None
        self.on_deleted: Callable[[Queue | Hub], None] = lambda entity: None
        self.on_changed: Callable[[Queue], None] = lambda queue: None
        self.on_work: Callable[[], None] = lambda: None
        self._ready: dict[Queue, None] = {}
        self._forward_retries: dict[Queue, float] = {}
        self._due: list[tuple[float, int, Queue]] = []
        self._due_number = 0
        self._last_id = 0
        self._prune_history_at: dict[int, float] = {}
        super().__init__(self, self.store, clock, self._report_deleted, self._report_changed)
        self.usage = EntityUsage(self, clock)
        self._forwarder = Forwarder(self)
        if isinstance(self.store, SqliteStore):
            self._restore(self.store)

    def _restore(self, store: SqliteStore) -> None:
        self.created_at = float(store.about("created", repr(self.created_at)))
        for row in store.entities():
            self.restore(row)
        for id, following in store.sequences().items():
            if id in self.by_id:
                self.by_id[id].next_sequence = following
        exhausted: list[tuple[Queue, Message]] = []
        for id, message in store.messages():
            self._last_id = max(self._last_id, message.id)
            queue = self.by_id[id]
            queue.insert(message)
            if queue.is_exhausted(message):
                exhausted.append((queue, message))
        for id, session, state in store.sessions():
            self.by_id[id].restore_session_state(session, state, self.clock())
        for id, message_id, at in store.history():
            self.by_id[id].restore_message_id(message_id, at)
        hubs = {hub.id: hub for hub in self.hubs()}
        for hub, partition, event in store.events():
            hubs[hub].partition(partition).restore(event)
        for queue, message in exhausted:  # the end of the previous process ended their last delivery
            queue.dead_letter_exhausted(message)

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def stored(self, queue: Queue, message: Message) -> None:
        self.store.put(queue.id, queue.next_sequence, message)

    def sequence_skipped(self, queue: Queue) -> None:
        self.store.set_next_sequence(queue.id, queue.next_sequence)

    def state_changed(self, message: Message, delivery_count: int) -> None:
        self.store.set_state(message, delivery_count)

    def removed(self, message: Message) -> None:
        self.store.delete(message)

    def session_state(self, queue: Queue, session: str, state: bytes | None) -> None:
        self.store.set_session(queue.id, session, state)

    def id_recorded(self, queue: Queue, message_id: str, at: float) -> None:
        self.store.add_to_history(queue.id, message_id, at)
        if at >= self._prune_history_at.get(queue.id, 0.0):
            window = queue.settings.duplicate_detection_history_time_window.total_seconds()
            self.store.prune_history(queue.id, at - window)
            self._prune_history_at[queue.id] = at + window / 2

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        return self.store.payloads(messages)

    def ready(self, queue: Queue) -> None:
        self._ready[queue] = None
        self.on_work()

    def due(self, queue: Queue, when: float) -> None:
        self._due_number += 1
        heapq.heappush(self._due, (when, self._due_number, queue))
        self.on_work()

    def session_lost(self, queue: Queue, session: str, owner: Any) -> None:
        self.on_session_lost(queue, session, owner)

    def _report_deleted(self, entity: Queue | Hub) -> None:
        if isinstance(entity, Queue):
            self._ready.pop(entity, None)
            self._forward_retries.pop(entity, None)
        self.on_deleted(entity)
        self.on_work()  # no client waits for the deletion of an idle entity: a turn has to make it durable

    def _report_changed(self, queue: Queue) -> None:
        self.on_changed(queue)
        self.ready(queue)

    def send(self, target: Queue | Topic, drafts: Sequence[Draft], now: float) -> list[Message]:
        """Enqueue a transfer's messages, all or none; return those added: pings and duplicates are dropped."""
        queue = self._checked_queue(target, drafts, now)
        messages = [queue.enqueue(draft, now) for draft in drafts if not draft.ping]
        return [message for message in messages if message is not None]

    def schedule(self, target: Queue | Topic, drafts: Sequence[Draft], now: float) -> list[int]:
        """Enqueue messages as `send` does; return a sequence number for each, for dropped ones too."""
        queue = self._checked_queue(target, drafts, now)
        numbers = []
        for draft in drafts:
            message = None if draft.ping else queue.enqueue(draft, now)
            numbers.append(queue.skip_sequence_number() if message is None else message.sequence)
        return numbers

    def _checked_queue(self, target: Queue | Topic, drafts: Sequence[Draft], now: float) -> Queue:
        """Return the queue that takes a target's messages; raise `BusError` if it cannot take all of these."""
        queue = target.inbox if isinstance(target, Topic) else target
        if self.by_id.get(queue.id) is not queue:
            raise bus_errors.not_found(queue.path)  # deleted since the sender attached
        self.check_send(target)
        target.accessed_at = now
        drafts = [draft for draft in drafts if not draft.ping]
        for draft in drafts:
            check_draft(draft, queue.path, requires_session=queue.settings.requires_session)
        self.check_quota(target, queue, drafts)
        return queue

    def check_send(self, target: Queue | Topic | Hub) -> None:
        """Raise `BusError` if the entity's status or kind does not allow a sender."""
        if isinstance(target, Hub):
            return
        if isinstance(target, Queue) and self._is_internal(target):
            raise BusError(bus_errors.NOT_ALLOWED, f"Messages cannot be sent to '{target.path}' itself.")
        if target.settings.status in ("Disabled", "SendDisabled"):
            raise bus_errors.disabled(target.settings.name, f"sending to '{target.settings.name}'")

    def check_receive(self, queue: Queue) -> None:
        """Raise `BusError` if the entity's status or its forwarding does not allow a receiver."""
        self.check_enabled(queue, "receiving from")
        if queue.settings.forward_to is not None:
            raise BusError(
                bus_errors.NOT_ALLOWED,
                f"Cannot create a message receiver on the entity '{queue.path}' because auto-forwarding is "
                "enabled on it.",
            )

    def _is_internal(self, queue: Queue) -> bool:
        """Return True for a sub-queue or a subscription, which only the broker fills."""
        return queue.id % IDS_PER_ENTITY != 0 or queue.settings.name != queue.path

    def check_quota(self, target: Queue | Topic, queue: Queue, drafts: Sequence[Draft]) -> None:
        """Raise `BusError` if a message is too large, or the entity has no room for all of them."""
        limit = queue.settings.max_message_size_in_kilobytes * 1024
        for draft in drafts:
            if draft.size > limit:
                raise bus_errors.size_exceeded(queue.path, draft.size, limit)
        quota = queue.settings.max_size_in_megabytes * 1024 * 1024
        size = target.size_in_bytes
        if size + sum(draft.size for draft in drafts) > quota:
            raise BusError(
                bus_errors.RESOURCE_LIMIT_EXCEEDED,
                f"The maximum entity size has been reached or exceeded for the entity '{queue.path}'. Size of "
                f"entity in bytes: {size}, max entity size in bytes: {quota}.",
            )

    def publish(self, partition: Partition, hub: Hub, drafts: Sequence[Draft], now: float) -> list[Event]:
        if self.hub(hub.settings.name) is not hub:
            raise bus_errors.not_found(hub.settings.name)  # deleted since the sender attached
        hub.accessed_at = now
        events = [partition.append(draft, now) for draft in drafts if not draft.ping]
        for event in events:
            self.store.put_event(hub.id, partition.id, event)
        return events

    def turn(self, now: float) -> list[Queue]:
        """Do the work that is due, then forward some batches; return the queues with messages for receivers."""
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due)[2])
        for queue in due:
            if queue.id in self.by_id:
                queue.advance(now)
        for queue in [queue for queue, when in self._forward_retries.items() if when <= now]:
            del self._forward_retries[queue]
            self._ready[queue] = None
        deliverable: dict[Queue, None] = {}
        postponed: dict[Queue, None] = {}
        batches = _BATCHES_PER_TURN
        while self._ready:
            queue = self._ready.popitem()[0]
            topic = self.topic_of_inbox.get(queue.id)
            if topic is None and queue.settings.forward_to is None:
                deliverable[queue] = None
            elif batches <= 0:
                postponed[queue] = None
            else:
                batches -= 1
                forwarder = self._forwarder
                if forwarder.fan_out(topic, now) if topic is not None else forwarder.forward(queue, now):
                    self._ready[queue] = None
        if postponed:
            self._ready.update(postponed)
            self.on_work()
        return list(deliverable)

    def retry_forwarding(self, queue: Queue, now: float) -> None:
        """Leave out a queue whose messages cannot be forwarded, and try it again after a while."""
        self._ready.pop(queue, None)
        self._forward_retries[queue] = now + _FORWARD_RETRY_SECONDS

    def next_due(self) -> float:
        """Return the time at which the next turn is due without any client's request."""
        due = self._due[0][0] if self._due else float("inf")
        return min(due, *self._forward_retries.values()) if self._forward_retries else due
