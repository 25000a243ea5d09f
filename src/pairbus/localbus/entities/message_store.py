"""Messages that a queue holds: in order, locked, deferred or scheduled, and where each goes when it is settled.

Pure: events and a clock in, effects out; no socket, no disk, no timer. `Queue` adds sessions and the passing of
time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from sortedcontainers import SortedDict

from pairbus.domain.amqp.codec import encode
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.settings import FOREVER, QueueSettings

from .deadlines import Deadlines
from .effects import Effects
from .locks import Lock
from .message import ACTIVE, DEFERRED, SCHEDULED, Draft, Message
from .payload import Parts, encode_plain
from .sessions import GONE, Line, Session, SessionTable

NEVER = float("inf")


class Holding:
    """Messages in order, their locks, life time and duplicates."""

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
        self._own_size = 0
        self.messages: SortedDict[int, Message] = SortedDict()
        self.sessions = SessionTable() if settings.requires_session else None
        self._effects = effects
        self._line = Line()
        self._locks: dict[bytes, Message] = {}
        self._lock_ends = Deadlines(self._lock_ends_at)
        self._expiries = Deadlines(self._expires_at)
        self._schedule = Deadlines(self._is_scheduled)
        self._history: OrderedDict[str, float] = OrderedDict()
        self._scheduled = 0
        self._due = NEVER
        #: What a delivery counts: nothing in a dead-letter queue, as the service has it.
        self._step = 0 if dead_letters is None else 1

    # --- coming in -------------------------------------------------------------------------------------

    def enqueue(self, draft: Draft, now: float) -> Message | None:
        """Take a message in; None if its id was seen within the duplicate window (it is dropped)."""
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

    def spend_number(self) -> int:
        """A sequence number that no message will have: it was told to the sender of one that is dropped."""
        number = self.next_sequence
        self.next_sequence += 1
        self._effects.numbered(self)
        return number

    def insert(self, message: Message) -> None:
        """Put a message into its place; it is durable already, or will be by the caller's word."""
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
            self.wake(message.scheduled_at or 0.0)
        elif message.state == ACTIVE:
            (self._line if session is None else session.line).add(message)
            self._offer(session)
            if message.expires_at != NEVER:
                self._expiries.add(message.expires_at, message.sequence)
                self.wake(message.expires_at)

    def _session_of(self, message: Message) -> Session | None:
        if self.sessions is None:
            return None
        return self.sessions.open(message.session_id or "")

    def _line_of(self, message: Message) -> Line:
        session = self._session_of(message)
        return self._line if session is None else session.line

    def _offer(self, session: Session | None) -> None:
        if session is not None and self.sessions is not None:
            self.sessions.offer(session)
        self._effects.ready(self)

    def expiry(self, message: Message, now: float) -> float:
        life = message.time_to_live
        default = self.settings.default_message_time_to_live
        if default < FOREVER and (life is None or default.total_seconds() < life):
            life = default.total_seconds()
        return NEVER if life is None else now + life

    def is_duplicate(self, message_id: Any, now: float) -> bool:
        """Whether an id was seen within the window; if not, it is from now on."""
        window = self.settings.duplicate_detection_history_time_window.total_seconds()
        while self._history:
            oldest = next(iter(self._history))
            if self._history[oldest] + window > now:
                break
            del self._history[oldest]
        key = str(message_id)
        if self._history.get(key, -NEVER) + window > now:
            return True
        self._history.pop(key, None)  # where the clock was set back, one that is too old need not be first
        self.remember(key, now)
        self._effects.seen(self, key, now)
        return False

    def remember(self, message_id: str, at: float) -> None:
        """Put an id into the duplicate history."""
        self._history[message_id] = at

    # --- going out -------------------------------------------------------------------------------------

    def acquire(
        self,
        now: float,
        limit: int,
        owner: Any = None,
        session: Session | None = None,
        *,
        delete: bool = False,
        most_bytes: float = NEVER,
    ) -> list[Message]:
        """Up to `limit` messages in order, each locked for `owner`, or removed if `delete`.

        The one with which they reach `most_bytes` is the last.
        """
        line = self._line if session is None else session.line
        taken: list[Message] = []
        while len(taken) < limit and most_bytes > 0:
            message = line.pop()
            if message is None:
                break
            if message.expires_at <= now:
                self._expire(message, now)
                continue
            taken.append(message)
            most_bytes -= message.size
        if delete:
            for message in taken:
                self._remove(message)
        else:
            self._lock(taken, now, owner, session)
        return taken

    def acquire_any(self, now: float, limit: int) -> list[Message]:
        """Up to `limit` messages that wait, whatever their session: for what is moved and not received."""
        if self.sessions is None:
            return self.acquire(now, limit)
        while (session := self.sessions.next_free()) is not None:
            # Nothing but expired messages may have waited in it: then it is empty now, and the next one's turn.
            if taken := self.acquire(now, limit, None, session):
                return taken
        return []

    def has_ready(self, session: Session | None = None) -> bool:
        """Whether `acquire` would find something."""
        return (self._line if session is None else session.line).head() is not None

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
                session.held[tag] = message
            else:
                self._lock_ends.add(until, tag)
            # Written as if it came back: what a crash interrupts counts as one delivery.
            self._effects.restated(message, message.delivery_count + self._step)
        if session is None:
            self.wake(until)

    def locked(self, tag: bytes, now: float) -> Message:
        """The message under a lock that still holds; raises if it does not."""
        message = self._locks.get(tag)
        if message is None or message.lock.end <= now:
            if self.sessions is not None:
                raise BusError(
                    conditions.SESSION_LOCK_LOST,
                    "The session lock has expired on the MessageSession. Accept a new MessageSession.",
                )
            raise BusError(
                conditions.MESSAGE_LOCK_LOST,
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed "
                "from the queue, or was received by a different receiver instance.",
            )
        return message

    def unlock(self, message: Message) -> None:
        """End a lock; where the message goes next is the caller's business."""
        lock = message.lock
        message.lock = None
        del self._locks[lock.tag]
        if lock.session is not None:
            lock.session.held.pop(lock.tag, None)

    # --- settling --------------------------------------------------------------------------------------

    def complete(self, tag: bytes, now: float) -> None:
        message = self.locked(tag, now)
        self.unlock(message)
        self._remove(message)

    def abandon(self, tag: bytes, now: float, properties: dict[str, Any] | None = None) -> None:
        message = self.locked(tag, now)
        self._modify(message, properties)
        self._give_back(message, now, counted=True)

    def release(self, tag: bytes, now: float) -> None:
        """Give a message back that nobody looked at: the delivery does not count."""
        self._give_back(self.locked(tag, now), now, counted=False)

    def defer(self, tag: bytes, now: float, properties: dict[str, Any] | None = None) -> None:
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
        message = self.locked(tag, now)
        if self.dead_letters is None:
            raise BusError(
                conditions.NOT_ALLOWED,
                f"A message of '{self.path}' cannot be dead-lettered again: complete it instead.",
            )
        self.unlock(message)
        self.bury(message, reason, description, properties)

    def bury(
        self,
        message: Message,
        reason: str | None,
        description: str | None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Move a message to the dead-letter queue; from there it has nowhere to go and is put back."""
        if self.dead_letters is None:
            self._effects.restated(message, message.delivery_count)
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
        self.dead_letters.receive_dead(message, payload, self.path)

    def is_worn(self, message: Message) -> bool:
        """Whether a message was delivered as often as it may be, waiting or deferred; a dead letter never is."""
        return self.dead_letters is not None and message.delivery_count >= self.settings.max_delivery_count

    def give_up(self, message: Message, now: float) -> None:
        """Dead-letter a message that was delivered as often as it may be."""
        limit = self.settings.max_delivery_count
        self.bury(
            message,
            "MaxDeliveryCountExceeded",
            f"Message could not be consumed after {limit} delivery attempts.",
        )

    def receive_dead(self, message: Message, payload: bytes, source: str) -> None:
        """A message arrives from the queue that this is the dead-letter queue of; its number stays."""
        draft = Draft(payload, message.size, session_id=message.session_id)
        dead = Message(self._effects.new_id(), message.sequence, message.enqueued_at, draft)
        dead.enqueue_sequence = message.enqueue_sequence
        dead.delivery_count = message.delivery_count
        dead.hops = message.hops
        dead.source = source
        self.insert(dead)
        self._effects.stored(self, dead)

    def renew(self, tag: bytes, now: float) -> float:
        """A lock's new end."""
        message = self.locked(tag, now)
        lock = message.lock
        if lock.session is None:
            lock.until = now + self.settings.lock_duration.total_seconds()
            self._lock_ends.add(lock.until, lock.tag)
            self.wake(lock.until)
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
            message.delivery_count += self._step
        self._effects.restated(message, message.delivery_count)
        if counted and self.is_worn(message):
            self.give_up(message, now)
        elif message.state == DEFERRED:
            return
        elif message.expires_at <= now:
            self._expire(message, now)
        else:
            self._put_back(message)

    def _put_back(self, message: Message) -> None:
        session = self._session_of(message)
        (self._line if session is None else session.line).put_back(message)
        self._offer(session)

    def _remove(self, message: Message) -> None:
        del self.messages[message.sequence]
        self._own_size -= message.size
        if message.state == SCHEDULED:
            self._scheduled -= 1
        message.state |= GONE
        if self.sessions is not None:
            session = self.sessions.open(message.session_id or "")
            del session.messages[message.sequence]
            self.sessions.forget_if_idle(session)
        self._effects.gone(message)

    def put_back_unsent(self, message: Message) -> None:
        """Undo an acquire: the message was never delivered."""
        self.unlock(message)
        self._effects.restated(message, message.delivery_count)
        self._put_back(message)

    def move_to(self, other: Holding, message: Message, reason: str, description: str) -> None:
        """An acquired message goes to one of this queue's sub-queues, with the reason."""
        payload = self._effects.payloads([message])[0]
        changes = {"DeadLetterReason": encode(reason), "DeadLetterErrorDescription": encode(description)}
        self.take_out(message)
        other.receive_dead(message, Parts.of(payload).with_properties(application=changes).pack(), self.path)

    def take_out(self, message: Message) -> None:
        """Remove a message that was acquired with a lock: it goes elsewhere (forwarding, fan-out)."""
        self.unlock(message)
        self._remove(message)

    # --- deadlines -------------------------------------------------------------------------------------

    def wake(self, when: float) -> None:
        """Ask for `advance` at that time."""
        if when < self._due:
            self._due = when
            self._effects.due(self, when)

    def _lock_ends_at(self, when: float, tag: bytes) -> bool:
        message = self._locks.get(tag)
        return message is not None and message.lock.session is None and bool(message.lock.until == when)

    def _expires_at(self, when: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        return message is not None and bool(message.expires_at == when)

    def _is_scheduled(self, when: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        return message is not None and message.state == SCHEDULED

    def _expire(self, message: Message, now: float) -> None:
        if self.settings.dead_lettering_on_message_expiration and self.dead_letters is not None:
            self.bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)
