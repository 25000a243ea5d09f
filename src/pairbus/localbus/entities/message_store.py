"""The messages of one queue: ready, locked, deferred or scheduled, and the transitions between these states.

Pure: commands and the time in, effects out; no socket, no disk, no timer. `Queue` adds sessions and timed work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sortedcontainers import SortedDict

from pairbus.domain.amqp.codec import encode
from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.settings import FOREVER, QueueSettings

from .deadlines import Deadlines
from .duplicates import DuplicateHistory
from .effects import Effects
from .locks import Lock
from .message import ACTIVE, DEFERRED, SCHEDULED, Draft, Message
from .payload import Parts, encode_plain
from .sessions import REMOVED, ReadyList, Session, SessionTable

NEVER = float("inf")


class MessageStore:
    """The messages of one queue in order of their sequence numbers, with locks, expiry and duplicate detection."""

    def __init__(
        self, id: int, path: str, settings: QueueSettings, effects: Effects, *, dead_letters: Any = None
    ) -> None:
        self.id = id
        self.path = path
        self.settings = settings
        self.dead_letters = dead_letters
        self.transfer_dead_letters: Any = None
        self.next_sequence = 1
        self.created_at = self.updated_at = self.accessed_at = 0.0
        self.messages: SortedDict[int, Message] = SortedDict()
        self.sessions = SessionTable() if settings.requires_session else None
        self._own_size = 0
        self._effects = effects
        self._ready = ReadyList()
        self._locks: dict[bytes, Message] = {}
        self._lock_ends = Deadlines(self._is_lock_end)
        self._expiries = Deadlines(self._is_expiry)
        self._schedule = Deadlines(self._is_scheduled)
        self.history = DuplicateHistory()
        self._scheduled = 0
        self._next_advance = NEVER
        #: The service does not count deliveries in a dead-letter queue.
        self._delivery_increment = 0 if dead_letters is None else 1

    def enqueue(self, draft: Draft, now: float) -> Message | None:
        """Add a message; return None if duplicate detection drops it."""
        if self.settings.requires_duplicate_detection and self.is_duplicate(draft.message_id, now):
            return None
        message = Message(self._effects.new_id(), self.next_sequence, now, draft)
        self.next_sequence += 1
        if draft.scheduled_at is not None and draft.scheduled_at > now:
            message.state = SCHEDULED
        else:
            message.expires_at = self.expiry(message, now)
        self.insert(message)
        self._effects.stored(self, message)
        return message

    def skip_sequence_number(self) -> int:
        """Return a sequence number that no message will have: the sender of a dropped message gets it."""
        number = self.next_sequence
        self.next_sequence += 1
        self._effects.sequence_skipped(self)
        return number

    def insert(self, message: Message) -> None:
        """Add a message with its number and state as they are; the caller has it persisted."""
        self.messages[message.sequence] = message
        self._own_size += message.size
        if message.sequence >= self.next_sequence:
            self.next_sequence = message.sequence + 1
        session = self._session_of(message)
        if session is not None:
            session.messages[message.sequence] = message
        if message.state == SCHEDULED:
            self._scheduled += 1
            self._schedule.add(message.scheduled_at or 0.0, message.sequence)
            self.request_advance(message.scheduled_at or 0.0)
        elif message.state == ACTIVE:
            (self._ready if session is None else session.ready).add(message)
            self._announce(session)
            if message.expires_at != NEVER:
                self._expiries.add(message.expires_at, message.sequence)
                self.request_advance(message.expires_at)

    def _session_of(self, message: Message) -> Session | None:
        if self.sessions is None:
            return None
        return self.sessions.open(message.session_id or "")

    def _ready_list_of(self, message: Message) -> ReadyList:
        session = self._session_of(message)
        return self._ready if session is None else session.ready

    def _announce(self, session: Session | None) -> None:
        """Report that the queue, or one session of it, may have a ready message."""
        if session is not None and self.sessions is not None:
            self.sessions.offer(session)
        self._effects.ready(self)

    def expiry(self, message: Message, now: float) -> float:
        """Return the time at which a message expires: its own time to live, or the queue's if that is shorter."""
        life = message.time_to_live
        default = self.settings.default_message_time_to_live
        if default < FOREVER and (life is None or default.total_seconds() < life):
            life = default.total_seconds()
        return NEVER if life is None else now + life

    def is_duplicate(self, message_id: Any, now: float) -> bool:
        """Return True if the id was enqueued within the detection window; otherwise record it."""
        window = self.settings.duplicate_detection_history_time_window.total_seconds()
        key = str(message_id)
        if self.history.contains(key, now, window):
            return True
        self.history.record(key, now)
        self._effects.id_recorded(self, key, now)
        return False

    def restore_message_id(self, message_id: str, at: float) -> None:
        """Add an id to the duplicate history that was read from the store."""
        self.history.record(message_id, at)

    def acquire(
        self,
        now: float,
        limit: int,
        owner: Any = None,
        session: Session | None = None,
        *,
        delete: bool = False,
        max_bytes: float = NEVER,
    ) -> list[Message]:
        """Take up to `limit` ready messages, of one session if given; lock them, or remove them if `delete` is set."""
        ready = self._ready if session is None else session.ready
        taken: list[Message] = []
        remaining = max_bytes
        while len(taken) < limit and remaining > 0:
            message = ready.pop()
            if message is None:
                break
            if message.expires_at <= now:
                self._expire(message, now)
                continue
            taken.append(message)
            remaining -= message.size
        if delete:
            for message in taken:
                self._remove(message)
        else:
            self._lock(taken, now, owner, session)
        return taken

    def acquire_any(self, now: float, limit: int) -> list[Message]:
        """Lock ready messages of any session, in order to move them elsewhere."""
        if self.sessions is None:
            return self.acquire(now, limit)
        while (session := self.sessions.next_free()) is not None:
            # A session whose messages have all expired yields none and is not free afterwards: try the next one.
            if taken := self.acquire(now, limit, None, session):
                return taken
        return []

    def has_ready(self, session: Session | None = None) -> bool:
        return (self._ready if session is None else session.ready).head() is not None

    def _lock(self, taken: Sequence[Message], now: float, owner: Any, session: Session | None) -> None:
        if not taken:
            return
        until = now + self.settings.lock_duration.total_seconds()
        tokens = os.urandom(16 * len(taken))
        for index, message in enumerate(taken):
            tag = tokens[16 * index : 16 * index + 16]
            message.lock = Lock(tag, until, owner, session)
            self._locks[tag] = message
            if session is not None:
                session.locked[tag] = message
            else:
                self._lock_ends.add(until, tag)
            # Persisted as if it were given back already: a delivery that a crash interrupts counts.
            self._effects.state_changed(message, message.delivery_count + self._delivery_increment)
        if session is None:
            self.request_advance(until)

    def locked(self, tag: bytes, now: float) -> Message:
        """Return the message that a lock token locks; raise `BusError` if the lock has ended, noticed or not."""
        message = self._locks.get(tag)
        if message is None or message.lock.end <= now:
            if self.sessions is not None:
                raise bus_errors.session_lock_lost()
            raise BusError(
                bus_errors.MESSAGE_LOCK_LOST,
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
                "from the queue, or was received by a different receiver instance.",
            )
        return message

    def unlock(self, message: Message) -> None:
        """End a message's lock; the caller decides where the message goes."""
        lock = message.lock
        message.lock = None
        del self._locks[lock.tag]
        if lock.session is not None:
            lock.session.locked.pop(lock.tag, None)

    def undo_acquire(self, message: Message) -> None:
        """Give a message back that was acquired and not delivered; its delivery count stays."""
        self.unlock(message)
        self._effects.state_changed(message, message.delivery_count)
        self._put_back(message)

    def remove_locked(self, message: Message) -> None:
        """Remove a locked message that was copied elsewhere (forwarding, fan-out)."""
        self.unlock(message)
        self._remove(message)

    def complete(self, tag: bytes, now: float) -> None:
        message = self.locked(tag, now)
        self.unlock(message)
        self._remove(message)

    def abandon(self, tag: bytes, now: float, properties: dict[str, Any] | None = None) -> None:
        """Give a locked message back, with properties changed; the delivery counts."""
        message = self.locked(tag, now)
        self._modify(message, properties)
        self._give_back(message, now, counted=True)

    def release(self, tag: bytes, now: float) -> None:
        """Give a locked message back that its receiver did not process; the delivery does not count."""
        self._give_back(self.locked(tag, now), now, counted=False)

    def defer(self, tag: bytes, now: float, properties: dict[str, Any] | None = None) -> None:
        """Set a locked message aside until it is received by its sequence number; the delivery counts."""
        message = self.locked(tag, now)
        self._modify(message, properties)
        message.state = DEFERRED
        self._give_back(message, now, counted=True)

    def dead_letter(
        self,
        tag: bytes,
        now: float,
        reason: str | None = None,
        description: str | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Move a locked message to the dead-letter queue, with the receiver's reason."""
        message = self.locked(tag, now)
        if self.dead_letters is None:
            raise BusError(
                bus_errors.NOT_ALLOWED,
                f"A message of '{self.path}' cannot be dead-lettered again: complete it instead.",
            )
        self.unlock(message)
        self.move_to_dead_letters(message, reason, description, properties)

    def renew(self, tag: bytes, now: float) -> float:
        """Extend a lock; return its new end. The lock of a message in a session ends with the session's."""
        message = self.locked(tag, now)
        lock = message.lock
        if lock.session is None:
            lock.until = now + self.settings.lock_duration.total_seconds()
            self._lock_ends.add(lock.until, lock.tag)
            self.request_advance(lock.until)
        return float(lock.end)

    def _modify(self, message: Message, properties: dict[str, Any] | None) -> None:
        if not properties:
            return
        changes = {str(name): encode_plain(value) for name, value in properties.items()}
        payload = self._effects.payloads([message])[0]
        message.payload = Parts.of(payload).with_properties(application=changes).pack()
        self._effects.stored(self, message)

    def _give_back(self, message: Message, now: float, *, counted: bool) -> None:
        self.unlock(message)
        if counted:
            message.delivery_count += self._delivery_increment
        self._effects.state_changed(message, message.delivery_count)
        if counted and self.is_exhausted(message):
            self.dead_letter_exhausted(message)
        elif message.state == DEFERRED:
            return
        elif message.expires_at <= now:
            self._expire(message, now)
        else:
            self._put_back(message)

    def _put_back(self, message: Message) -> None:
        session = self._session_of(message)
        (self._ready if session is None else session.ready).put_back(message)
        self._announce(session)

    def _remove(self, message: Message) -> None:
        del self.messages[message.sequence]
        self._own_size -= message.size
        if message.state == SCHEDULED:
            self._scheduled -= 1
        message.state |= REMOVED
        if self.sessions is not None:
            session = self.sessions.open(message.session_id or "")
            del session.messages[message.sequence]
            self.sessions.remove_if_idle(session)
        self._effects.removed(message)

    def move_to_dead_letters(
        self, message: Message, reason: str | None, description: str | None, properties: dict[str, Any] | None = None
    ) -> None:
        """Move an unlocked message to the dead-letter queue; in a dead-letter queue, put it back instead."""
        if self.dead_letters is None:
            self._effects.state_changed(message, message.delivery_count)
            self._put_back(message)
            return
        changes = {name: encode_plain(value) for name, value in (properties or {}).items()}
        if reason is not None:
            changes["DeadLetterReason"] = encode(reason)
        if description is not None:
            changes["DeadLetterErrorDescription"] = encode(description)
        payload = self._effects.payloads([message])[0]
        if changes:
            payload = Parts.of(payload).with_properties(application=changes).pack()
        self._remove(message)
        self.dead_letters.add_dead_letter(message, payload, self.path)

    def move_to_sub_queue(self, sub_queue: MessageStore, message: Message, reason: str, description: str) -> None:
        """Move a locked message to one of this queue's sub-queues, with the reason."""
        payload = self._effects.payloads([message])[0]
        changes = {"DeadLetterReason": encode(reason), "DeadLetterErrorDescription": encode(description)}
        self.remove_locked(message)
        sub_queue.add_dead_letter(message, Parts.of(payload).with_properties(application=changes).pack(), self.path)

    def add_dead_letter(self, message: Message, payload: bytes, source: str) -> None:
        """Add a message that comes from the parent queue `source`; it keeps its sequence number."""
        draft = Draft(payload, message.size, session_id=message.session_id)
        dead = Message(self._effects.new_id(), message.sequence, message.enqueued_at, draft)
        dead.enqueue_sequence = message.enqueue_sequence
        dead.delivery_count = message.delivery_count
        dead.hops = message.hops
        dead.source = source
        self.insert(dead)
        self._effects.stored(self, dead)

    def is_exhausted(self, message: Message) -> bool:
        """Return True if a message has reached the maximum delivery count; a dead letter has no maximum."""
        return self.dead_letters is not None and message.delivery_count >= self.settings.max_delivery_count

    def dead_letter_exhausted(self, message: Message) -> None:
        """Move a message that has reached the maximum delivery count to the dead-letter queue."""
        limit = self.settings.max_delivery_count
        self.move_to_dead_letters(
            message, "MaxDeliveryCountExceeded", f"Message could not be consumed after {limit} delivery attempts."
        )

    def request_advance(self, when: float) -> None:
        """Request a call of `advance` at that time, unless an earlier one is requested already."""
        if when < self._next_advance:
            self._next_advance = when
            self._effects.due(self, when)

    def _is_lock_end(self, when: float, tag: bytes) -> bool:
        message = self._locks.get(tag)
        return message is not None and message.lock.session is None and bool(message.lock.until == when)

    def _is_expiry(self, when: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        return message is not None and bool(message.expires_at == when)

    def _is_scheduled(self, when: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        return message is not None and message.state == SCHEDULED

    def _expire(self, message: Message, now: float) -> None:
        if self.settings.dead_lettering_on_message_expiration and self.dead_letters is not None:
            self.move_to_dead_letters(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)
