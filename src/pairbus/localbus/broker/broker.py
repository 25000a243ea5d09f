"""The broker: takes messages in, moves them between entities, and keeps what must outlive the process.

It carries out the effects that queues ask for. Nothing here knows of sockets: the server calls `turn` once per
turn of its loop, `commit` before it answers, and hands out what `ready_queues` names.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from pairbus.domain.sqlfilter.filter import SqlEvaluationError
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Event, Hub, Partition
from pairbus.localbus.entities.limits import check_draft
from pairbus.localbus.entities.message import COPIED, SCHEDULED, Draft, Message
from pairbus.localbus.entities.payload import Parts, View
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic, view_of
from pairbus.localbus.settings import FOREVER

from .catalog import Catalog
from .store import MemoryStore, SqliteStore, Store

log = logging.getLogger("pairbus.localbus.broker")

MAX_HOPS = 4
_RETRY_FORWARD = 1.0
_BATCH = 500
_BATCHES_PER_TURN = 8

SessionLost = Callable[[Queue, str, Any], None]

#: Dead-letter reasons, as the service writes them.
_NO_SESSION = (
    "Session ID is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
_EXCEPTIONS = {
    conditions.ENTITY_DISABLED: "MessagingEntityDisabledException",
    conditions.RESOURCE_LIMIT_EXCEEDED: "QuotaExceededException",
    conditions.MESSAGE_SIZE_EXCEEDED: "MessageSizeExceededException",
}


class Broker(Catalog):
    """A namespace: its entities (see `Catalog`), and what happens between them."""

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
        self._stalled: dict[Queue, float] = {}
        self._agenda: list[tuple[float, int, Queue]] = []
        self._agenda_number = 0
        self._last_id = 0
        self._users: dict[int, int] = {}
        self._forget_at: dict[int, float] = {}
        super().__init__(self, self.store, clock, self._forget, self._change)
        if isinstance(self.store, SqliteStore):
            self._restore(self.store)

    def _restore(self, store: SqliteStore) -> None:
        self.created_at = float(store.about("created", repr(self.created_at)))
        for row in store.entities():
            self.restore(row)
        for id, following in store.sequences().items():
            if id in self.by_id:
                self.by_id[id].next_sequence = following
        worn: list[tuple[Queue, Message]] = []
        for id, message in store.messages():
            self._last_id = max(self._last_id, message.id)
            queue = self.by_id[id]
            queue.insert(message)
            if queue.is_worn(message):
                worn.append((queue, message))
        for id, session, state in store.sessions():
            self.by_id[id].restore_session_state(session, state, self.clock())
        for id, message_id, at in store.history():
            self.by_id[id].remember(message_id, at)
        hubs = {hub.id: hub for hub in self.hubs()}
        for hub, partition, event in store.events():
            hubs[hub].partition(partition).restore(event)
        for queue, message in worn:  # their last delivery ended with the process that made it
            queue.give_up(message, self.clock())

    # --- effects, as queues ask for them ---------------------------------------------------------------

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def stored(self, queue: Queue, message: Message) -> None:
        self.store.put(queue.id, queue.next_sequence, message)

    def numbered(self, queue: Queue) -> None:
        self.store.set_next_sequence(queue.id, queue.next_sequence)

    def restated(self, message: Message, delivery_count: int) -> None:
        self.store.restate(message, delivery_count)

    def gone(self, message: Message) -> None:
        self.store.delete(message)

    def session_state(self, queue: Queue, session: str, state: bytes | None) -> None:
        self.store.set_session(queue.id, session, state)

    def seen(self, queue: Queue, message_id: str, at: float) -> None:
        self.store.remember(queue.id, message_id, at)
        if at >= self._forget_at.get(queue.id, 0.0):
            window = queue.settings.duplicate_detection_history_time_window.total_seconds()
            self.store.forget_before(queue.id, at - window)
            self._forget_at[queue.id] = at + window / 2

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        return self.store.payloads(messages)

    def ready(self, queue: Queue) -> None:
        self._ready[queue] = None
        self.on_work()

    def due(self, queue: Queue, when: float) -> None:
        self._agenda_number += 1
        heapq.heappush(self._agenda, (when, self._agenda_number, queue))
        self.on_work()

    def session_lost(self, queue: Queue, session: str, owner: Any) -> None:
        self.on_session_lost(queue, session, owner)

    def _forget(self, entity: Queue | Hub) -> None:
        if isinstance(entity, Queue):
            self._ready.pop(entity, None)
            self._stalled.pop(entity, None)
        self.on_deleted(entity)
        self.on_work()  # a turn makes it durable: nobody waits for the end of what was only idle

    def _change(self, queue: Queue) -> None:
        self.on_changed(queue)
        self.ready(queue)

    # --- taking in -------------------------------------------------------------------------------------

    def send(self, target: Queue | Topic, drafts: Sequence[Draft], now: float) -> list[Message]:
        """Take a transfer's messages in, all or none; pings and duplicates are accepted and forgotten."""
        queue = self._checked(target, drafts, now)
        messages = [queue.enqueue(draft, now) for draft in drafts if not draft.ping]
        return [message for message in messages if message is not None]

    def schedule(self, target: Queue | Topic, drafts: Sequence[Draft], now: float) -> list[int]:
        """Take messages in as `send` does; a number for each, also for one that is forgotten."""
        queue = self._checked(target, drafts, now)
        numbers = []
        for draft in drafts:
            message = None if draft.ping else queue.enqueue(draft, now)
            numbers.append(queue.spend_number() if message is None else message.sequence)
        return numbers

    def _checked(self, target: Queue | Topic, drafts: Sequence[Draft], now: float) -> Queue:
        """The queue that a target's messages go into, if it may take all of these."""
        queue = target.inbox if isinstance(target, Topic) else target
        if self.by_id.get(queue.id) is not queue:
            raise conditions.not_found(queue.path)  # deleted since its sender came
        self.check_send(target)
        target.accessed_at = now
        drafts = [draft for draft in drafts if not draft.ping]
        for draft in drafts:
            check_draft(draft, queue.path, requires_session=queue.settings.requires_session)
        self._check_quota(target, queue, drafts)
        return queue

    def check_send(self, target: Queue | Topic | Hub) -> None:
        """Refuse a sender where the entity's status, or what it is, does not allow one."""
        if isinstance(target, Hub):
            return
        if isinstance(target, Queue) and self._is_filled_by_us(target):
            raise BusError(conditions.NOT_ALLOWED, f"Messages cannot be sent to '{target.path}' itself.")
        if target.settings.status in ("Disabled", "SendDisabled"):
            raise conditions.disabled(target.settings.name, f"sending to '{target.settings.name}'")

    def check_receive(self, queue: Queue) -> None:
        """Refuse a receiver where the entity's status, or its forwarding, does not allow one."""
        self.check_enabled(queue, "receiving from")
        if queue.settings.forward_to is not None:
            raise BusError(
                conditions.NOT_ALLOWED,
                f"Cannot create a message receiver on the entity '{queue.path}' because auto-forwarding is "
                "enabled on it.",
            )

    def _is_filled_by_us(self, queue: Queue) -> bool:
        return queue.id % 4 != 0 or queue.settings.name != queue.path

    def _check_quota(self, target: Queue | Topic, queue: Queue, drafts: Sequence[Draft]) -> None:
        limit = queue.settings.max_message_size_in_kilobytes * 1024
        for draft in drafts:
            if draft.size > limit:
                raise size_exceeded(queue.path, draft.size, limit)
        quota = queue.settings.max_size_in_megabytes * 1024 * 1024
        size = target.size_in_bytes
        if size + sum(draft.size for draft in drafts) > quota:
            raise BusError(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                f"The maximum entity size has been reached or exceeded for the entity '{queue.path}'. Size of "
                f"entity in bytes: {size}, max entity size in bytes: {quota}.",
            )

    def publish(self, partition: Partition, hub: Hub, drafts: Sequence[Draft], now: float) -> list[Event]:
        """Append events to one partition."""
        if self.hub(hub.settings.name) is not hub:
            raise conditions.not_found(hub.settings.name)  # deleted since its sender came
        hub.accessed_at = now
        events = [partition.append(draft, now) for draft in drafts if not draft.ping]
        for event in events:
            self.store.put_event(hub.id, partition.id, event)
        return events

    # --- moving on -------------------------------------------------------------------------------------

    def turn(self, now: float) -> list[Queue]:
        """Carry out what is due, forward and fan out; the queues that then have something for receivers.

        A turn moves so much and no more: a million messages that are forwarded at once keep nobody waiting.
        """
        due = []
        while self._agenda and self._agenda[0][0] <= now:
            due.append(heapq.heappop(self._agenda)[2])
        for queue in due:
            if queue.id in self.by_id:
                queue.advance(now)
        for queue in [queue for queue, when in self._stalled.items() if when <= now]:
            del self._stalled[queue]
            self._ready[queue] = None
        waiting: dict[Queue, None] = {}
        unfinished: dict[Queue, None] = {}
        batches = _BATCHES_PER_TURN
        while self._ready:
            queue = self._ready.popitem()[0]
            topic = self.topic_of_inbox.get(queue.id)
            if topic is None and queue.settings.forward_to is None:
                waiting[queue] = None
            elif batches <= 0:
                unfinished[queue] = None
            else:
                batches -= 1
                if self._fan_out(topic, now) if topic is not None else self._forward(queue, now):
                    self._ready[queue] = None
        if unfinished:
            self._ready.update(unfinished)
            self.on_work()
        return list(waiting)

    def next_due(self) -> float:
        """When `turn` is wanted next, should nothing else happen."""
        due = self._agenda[0][0] if self._agenda else float("inf")
        return min(due, *self._stalled.values()) if self._stalled else due

    def _fan_out(self, topic: Topic, now: float) -> bool:
        """Copy a batch of a topic's messages to its subscriptions; whether there was one."""
        messages = topic.inbox.acquire(now, _BATCH)
        for message, payload in zip(messages, self.payloads(messages), strict=True):
            self._copy(topic, message, payload, now)
            topic.inbox.take_out(message)
        return bool(messages)

    def _copy(self, topic: Topic, message: Message, payload: bytes, now: float) -> None:
        view: View | None = None
        for subscription in topic.subscriptions.values():
            if view is None and not subscription.takes_all:
                view = view_of(message, payload)
            try:
                copies = subscription.copies(payload, None if subscription.takes_all else view)
            except Exception as error:
                # A rule must not end the server: its message is set aside, or dropped where the owner said so.
                if not isinstance(error, SqlEvaluationError):
                    log.exception("a rule of '%s' failed", subscription.queue.path)
                if subscription.settings.dead_lettering_on_filter_evaluation_exceptions:
                    why = ("FilterEvaluationException", f"A rule could not be evaluated: {error}")
                    self._place(subscription.queue, message, payload, now, message.hops | COPIED, bury=why)
                continue
            for copy in copies:
                edited = copy is not payload
                self._place(subscription.queue, message, copy, now, message.hops | COPIED, edited=edited)

    def _place(
        self,
        queue: Queue,
        message: Message,
        payload: bytes,
        now: float,
        hops: int,
        *,
        edited: bool = False,
        bury: tuple[str, str] | None = None,
    ) -> None:
        """Put a copy of a message that was accepted elsewhere into a queue, or at once into its dead letters."""
        draft = Draft(payload, message.size, None, message.session_id, message.time_to_live)
        if edited:
            draft = _reread(draft)
        if message.expires_at != float("inf") and draft.time_to_live == message.time_to_live:
            draft.time_to_live = message.expires_at - now
        checked = queue.settings.requires_duplicate_detection
        if checked and queue.is_duplicate(_reread(draft).message_id, now):
            return
        if queue.settings.requires_session and draft.session_id is None:
            bury = _NO_SESSION
        copy = Message(self.new_id(), queue.next_sequence, now, draft)
        queue.next_sequence += 1
        copy.enqueue_sequence = message.enqueue_sequence
        copy.hops = hops
        copy.source = message.source
        if edited and draft.scheduled_at is not None and draft.scheduled_at > now:
            copy.state = SCHEDULED
        else:
            copy.expires_at = queue.expiry(copy, now)
        queue.insert(copy)
        self.stored(queue, copy)
        if bury is not None:
            queue.bury(copy, *bury)

    def _forward(self, queue: Queue, now: float) -> bool:
        """Move a batch of a queue's messages to where it forwards; whether there was one."""
        path = queue.settings.forward_to or ""
        target = self.queue(path) or self.topic(path)
        messages = queue.acquire_any(now, _BATCH)
        kept = []
        for message, payload in zip(messages, self.payloads(messages), strict=True):
            problem = self._obstacle(message, target, path)
            if problem is None:
                assert target is not None
                place = target.inbox if isinstance(target, Topic) else target
                self._place(place, message, payload, now, message.hops + 1)
                queue.take_out(message)
            elif queue.transfer_dead_letters is not None:
                # As the service does it: what cannot be forwarded is set aside, for a person to see.
                queue.move_to(queue.transfer_dead_letters, message, *problem)
            else:
                kept.append(message)
        for message in kept:
            # A dead letter has nowhere else to be: it stays, and is tried again.
            queue.put_back_unsent(message)
        if kept:
            self._ready.pop(queue, None)
            self._stalled[queue] = now + _RETRY_FORWARD
        return bool(messages) and not kept

    def _obstacle(self, message: Message, target: Queue | Topic | None, path: str) -> tuple[str, str] | None:
        """Why a message cannot be forwarded: a reason and a description."""
        if target is None:
            return "MessagingEntityNotFoundException", f"The forwarding destination '{path}' does not exist."
        if message.hops % COPIED >= MAX_HOPS:
            return "MaxTransferHopCountExceeded", f"The message has been forwarded {MAX_HOPS} times already."
        inbox = target.inbox if isinstance(target, Topic) else target
        try:
            self.check_send(target)
            self._check_quota(target, inbox, [Draft(b"", message.size)])
        except BusError as error:
            return _EXCEPTIONS.get(error.condition, "MessagingException"), error.description
        if inbox.settings.requires_session and message.session_id is None:
            return _NO_SESSION
        return None

    # --- life of entities ------------------------------------------------------------------------------

    def touch(self, target: Queue | Topic | Hub) -> None:
        """Somebody has asked something of this entity: it is not idle."""
        (self.parent(target) if isinstance(target, Queue) else target).accessed_at = self.clock()

    def attach(self, queue: Queue) -> None:
        """A link uses this queue: it is not idle."""
        parent = self.parent(queue)
        self._users[parent.id] = self._users.get(parent.id, 0) + 1
        parent.accessed_at = self.clock()

    def detach(self, queue: Queue) -> None:
        parent = self.parent(queue)
        self._users[parent.id] = self._users.get(parent.id, 1) - 1
        if self._users[parent.id] <= 0:
            del self._users[parent.id]
        parent.accessed_at = self.clock()

    def delete_idle(self, now: float) -> None:
        """Delete the entities that nobody has used for as long as their AutoDeleteOnIdle says."""
        for queue in self.queues():
            if self._is_idle(queue, now):
                self.delete_queue(queue.path)
        for topic in self.topics():
            inner = [topic.inbox]
            for key, subscription in list(topic.subscriptions.items()):
                if self._is_idle(subscription.queue, now):
                    self.delete_subscription(topic.settings.name, key)
                else:
                    inner.append(subscription.queue)
            limit = topic.settings.auto_delete_on_idle
            used = max(topic.accessed_at, topic.updated_at, *(queue.accessed_at for queue in inner))
            if limit < FOREVER and not any(map(self._in_use, inner)) and used + limit.total_seconds() <= now:
                self.delete_topic(topic.settings.name)

    def _is_idle(self, queue: Queue, now: float) -> bool:
        limit = queue.settings.auto_delete_on_idle
        used = max(queue.accessed_at, queue.updated_at)
        return limit < FOREVER and not self._in_use(queue) and used + limit.total_seconds() <= now

    def _in_use(self, queue: Queue) -> bool:
        """Whether a link is open on it, or a message is scheduled in it."""
        return bool(self._users.get(queue.id)) or queue.counts().scheduled > 0


def size_exceeded(path: str, size: int, limit: int) -> BusError:
    """The service's answer to a message that is too large."""
    return BusError(
        conditions.MESSAGE_SIZE_EXCEEDED,
        f"The received message (size: {size} bytes) for '{path}' exceeds the limit ({limit} bytes) currently "
        "allowed on the link.",
    )


def _reread(draft: Draft) -> Draft:
    """A rule's action may have changed what the broker acts on: read it again."""
    from pairbus.localbus.entities.message import read_message

    found = read_message(Parts.of(draft.payload).sent())
    found.size = draft.size
    return found
