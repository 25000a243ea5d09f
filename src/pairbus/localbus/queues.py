"""One queue: what holds messages. Pure: events and a clock in, effects out; no socket, no disk, no timer.

A subscription, a dead-letter queue and a topic's inbox are queues too. What must be made durable, and who must
be woken, is said through `Effects`; the broker carries it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sortedcontainers import SortedDict

from ..domain.values import encode
from . import conditions
from .conditions import BusError
from .deadlines import Deadlines
from .message import ACTIVE, DEFERRED, SCHEDULED, Draft, Message
from .payload import Parts, encode_plain
from .sessions import GONE, Line, Session, SessionTable
from .settings import FOREVER, Counts, QueueSettings

NEVER = float("inf")
DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
_BATCH = 256


class Effects(Protocol):
    """What a queue asks of the world around it."""

    def new_id(self) -> int:
        """An id that no message of the namespace has had."""

    def stored(self, queue: Queue, message: Message) -> None:
        """A message came in, or was rewritten: keep it."""

    def restated(self, message: Message, delivery_count: int) -> None:
        """State or delivery count changed: keep these."""

    def gone(self, message: Message) -> None:
        """A message left: forget it."""

    def session_state(self, queue: Queue, session: str, state: bytes | None) -> None:
        """A session's state was set."""

    def seen(self, queue: Queue, message_id: str, at: float) -> None:
        """A message id entered the duplicate history."""

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        """The payloads of messages, wherever they are kept."""

    def ready(self, queue: Queue) -> None:
        """There is something to hand out."""

    def due(self, queue: Queue, when: float) -> None:
        """`advance` is wanted at that time."""

    def session_lost(self, queue: Queue, session: str, owner: Any) -> None:
        """A session's lock ran out under its owner."""


class Lock:
    """A message's lock: its token as a delivery tag (UUID, little-endian), its end, its holder."""

    __slots__ = ("owner", "session", "tag", "until")

    def __init__(self, tag: bytes, until: float, owner: Any, session: Session | None) -> None:
        self.tag = tag
        self.until = until
        self.owner = owner
        self.session = session

    @property
    def end(self) -> float:
        return self.until if self.session is None else self.session.until


def swap_guid(raw: bytes) -> bytes:
    """Between a UUID's network order and the order in which .NET, and so a delivery tag, writes it."""
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]


class Queue:
    """Messages in order, their locks, sessions, schedule, life time and duplicates."""

    def __init__(
        self, id: int, path: str, settings: QueueSettings, effects: Effects, *, dead_letters: Queue | None = None
    ) -> None:
        self.id = id
        self.path = path
        self.settings = settings
        self.dead_letters = dead_letters
        self.transfer_dead_letters: Queue | None = None
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
        self._history: dict[str, float] = {}
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

    def insert(self, message: Message) -> None:
        """Put a message into its place; it is durable already, or will be by the caller's word."""
        self.messages[message.sequence] = message
        self._own_size += message.size
        if message.sequence >= self.next_sequence:
            self.next_sequence = message.sequence + 1
        session = self._session_of(message)
        if session is not None:
            session.count += 1
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
        if key in self._history:
            return True
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
        session = self.sessions.next_free()
        return [] if session is None else self.acquire(now, limit, None, session)

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
        self.unlock(message)
        message.state = DEFERRED
        message.delivery_count += self._step
        self._effects.restated(message, message.delivery_count)

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
        self.bury(message, now, reason, description, properties)

    def bury(
        self,
        message: Message,
        now: float,
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

    def give_up(self, message: Message, now: float) -> None:
        """Dead-letter a message that was delivered as often as it may be."""
        limit = self.settings.max_delivery_count
        self.bury(
            message,
            now,
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
        if message.state == DEFERRED:
            return
        if message.delivery_count >= self.settings.max_delivery_count and counted and self.dead_letters:
            self.give_up(message, now)
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
        message.state = GONE
        if self.sessions is not None:
            session = self.sessions.open(message.session_id or "")
            session.count -= 1
            self.sessions.forget_if_idle(session)
        self._effects.gone(message)

    def put_back_unsent(self, message: Message) -> None:
        """Undo an acquire: the message was never delivered."""
        self.unlock(message)
        self._effects.restated(message, message.delivery_count)
        self._put_back(message)

    def move_to(self, other: Queue, message: Message, reason: str, description: str) -> None:
        """An acquired message goes to one of this queue's sub-queues, with the reason."""
        payload = self._effects.payloads([message])[0]
        changes = {"DeadLetterReason": encode(reason), "DeadLetterErrorDescription": encode(description)}
        self.take_out(message)
        other.receive_dead(message, Parts.of(payload).with_properties(application=changes).pack(), self.path)

    def take_out(self, message: Message) -> None:
        """Remove a message that was acquired with a lock: it goes elsewhere (forwarding, fan-out)."""
        self.unlock(message)
        self._remove(message)

    # --- looking, by sequence number ---------------------------------------------------------------------

    def peek(self, start: int, limit: int, session: str | None = None) -> list[Message]:
        """Messages from a sequence number on, whatever their state; nothing is locked."""
        found: list[Message] = []
        for sequence in self.messages.irange(minimum=start):
            message = self.messages[sequence]
            if session is None or (message.session_id or "") == session:
                found.append(message)
                if len(found) >= limit:
                    break
        return found

    def receive_deferred(
        self,
        sequences: Iterable[int],
        now: float,
        owner: Any = None,
        session: Session | None = None,
        *,
        delete: bool = False,
    ) -> list[Message]:
        """Deferred messages by their numbers; one that is not there, or not deferred, refuses all."""
        found = []
        for sequence in dict.fromkeys(sequences):  # one that is named twice is meant once
            message = self.messages.get(sequence)
            if (
                message is None
                or message.state != DEFERRED
                or message.lock is not None
                or (session is not None and (message.session_id or "") != session.id)
            ):
                raise BusError(
                    conditions.MESSAGE_NOT_FOUND,
                    f"Failed to lock one or more specified messages. The message with sequence number {sequence} "
                    "does not exist or is not deferred.",
                )
            found.append(message)
        if delete:
            for message in found:
                self._remove(message)
        else:
            self._lock(found, now, owner, session)
        return found

    def discard(self, message: Message) -> None:
        """Remove a message that nobody has locked."""
        self._line_of(message).left()
        self._remove(message)

    def cancel_scheduled(self, sequences: Iterable[int]) -> None:
        """Remove scheduled messages; one that is not there refuses all."""
        found = []
        for sequence in dict.fromkeys(sequences):  # one that is named twice is meant once
            message = self.messages.get(sequence)
            if message is None or message.state != SCHEDULED:
                raise BusError(
                    conditions.MESSAGE_NOT_FOUND,
                    f"The scheduled message with SequenceNumber = {sequence} is not found.",
                )
            found.append(message)
        for message in found:
            self._remove(message)

    def counts(self) -> Counts:
        """How many messages there are, by state; one that waits to be forwarded is in transfer."""
        dead, stranded = self.dead_letters, self.transfer_dead_letters
        waiting = len(self.messages) - self._scheduled
        forwards = self.settings.forward_to is not None
        return Counts(
            active=0 if forwards else waiting,
            dead_letter=0 if dead is None else len(dead.messages),
            scheduled=self._scheduled,
            transfer=waiting if forwards else 0,
            transfer_dead_letter=0 if stranded is None else len(stranded.messages),
        )

    @property
    def size_in_bytes(self) -> int:
        """Bytes that count against the quota: dead letters included."""
        size = self._own_size
        if self.dead_letters is not None:
            size += self.dead_letters._own_size
        if self.transfer_dead_letters is not None:
            size += self.transfer_dead_letters._own_size
        return size

    # --- sessions --------------------------------------------------------------------------------------

    def accept_session(self, id: str | None, owner: Any, now: float) -> Session | None:
        """Lock a session by name, or the next free one that has messages; None if there is none."""
        table = self._table()
        if id is None:
            session = table.next_free()
            if session is None:
                return None
        else:
            session = table.open(id)
            if session.owner is not None and session.until <= now:
                self.advance(now)  # its lock has ended, only nobody has looked yet
                session = table.open(id)
            if session.owner is not None:
                raise BusError(
                    conditions.SESSION_CANNOT_BE_LOCKED,
                    f"The requested session '{id}' cannot be accepted. It may be locked by another receiver.",
                )
        until = now + self.settings.lock_duration.total_seconds()
        table.lock(session, owner, until)
        self.wake(until)
        return session

    def release_session(self, session: Session, owner: Any, now: float) -> None:
        """The holder leaves: its messages are there again at once, their delivery count as it was."""
        if session.owner is owner and owner is not None:
            self._free(session, now, counted=False)

    def renew_session(self, id: str, now: float) -> float:
        session = self.held_session(id, now)
        until = now + self.settings.lock_duration.total_seconds()
        self._table().extend(session, until)
        self.wake(until)
        return until

    def held_session(self, id: str, now: float) -> Session:
        """A session that somebody holds; raises if its lock is lost."""
        session = self._table().get(id)
        if session is None or session.owner is None or session.until <= now:
            raise BusError(
                conditions.SESSION_LOCK_LOST,
                "The session lock has expired on the MessageSession. Accept a new MessageSession.",
            )
        return session

    def set_session_state(self, id: str, state: bytes | None, now: float) -> None:
        session = self.held_session(id, now)
        session.state, session.state_at = state, now
        self._effects.session_state(self, id, state)

    def restore_session_state(self, id: str, state: bytes, now: float) -> None:
        session = self._table().open(id)
        session.state, session.state_at = state, now  # when it was set is not kept

    def session_ids(self, updated_since: float | None = None) -> list[str]:
        """Sessions with messages or a state, or those whose state was set since, in the order of their names."""
        if updated_since is not None:
            return sorted(s.id for s in self._table() if s.state is not None and s.state_at > updated_since)
        return sorted(s.id for s in self._table() if s.count > 0 or s.state is not None)

    def _table(self) -> SessionTable:
        if self.sessions is None:
            raise BusError(
                conditions.NOT_ALLOWED,
                "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure "
                "RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior. "
                f"Entity: '{self.path}'.",
            )
        return self.sessions

    def _free(self, session: Session, now: float, *, counted: bool) -> None:
        for message in list(session.held.values()):
            self._give_back(message, now, counted=counted)
        assert self.sessions is not None
        self.sessions.unlock(session)
        if self.sessions.offer(session):
            self._effects.ready(self)

    # --- time ------------------------------------------------------------------------------------------

    def wake(self, when: float) -> None:
        """Ask for `advance` at that time."""
        if when < self._due:
            self._due = when
            self._effects.due(self, when)

    def advance(self, now: float) -> None:
        """Carry out what time has brought: locks that ended, lives that ended, schedules that came."""
        self._due = NEVER
        for tag in self._lock_ends.due(now):
            self._give_back(self._locks[tag], now, counted=True)
        if self.sessions is not None:
            for session in self.sessions.ended(now):
                owner = session.owner
                self._free(session, now, counted=True)
                self._effects.session_lost(self, session.id, owner)
        for sequence in self._schedule.due(now):
            self._activate(self.messages[sequence], now)
        for sequence in self._expiries.due(now):
            message = self.messages[sequence]
            if message.state == ACTIVE and message.lock is None:
                self._line_of(message).left()
                self._expire(message, now)
        self.wake(self._next_due())

    def _next_due(self) -> float:
        due = min(self._lock_ends.next(), self._schedule.next(), self._expiries.next())
        return due if self.sessions is None else min(due, self.sessions.next_end())

    def _lock_ends_at(self, when: float, tag: bytes) -> bool:
        message = self._locks.get(tag)
        return message is not None and message.lock.session is None and bool(message.lock.until == when)

    def _expires_at(self, when: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        return message is not None and bool(message.expires_at == when)

    def _is_scheduled(self, when: float, sequence: int) -> bool:
        message = self.messages.get(sequence)
        return message is not None and message.state == SCHEDULED

    def _activate(self, message: Message, now: float) -> None:
        """A scheduled message's time has come: it joins the end of the queue, under a new number."""
        payload = self._effects.payloads([message])[0]
        self._remove(message)
        draft = Draft(payload, message.size, session_id=message.session_id, time_to_live=message.time_to_live)
        active = Message(self._effects.new_id(), self.next_sequence, now, draft)
        active.scheduled_at = message.scheduled_at
        active.enqueue_sequence = message.enqueue_sequence
        active.expires_at = self.expiry(active, now)
        self.insert(active)
        self._effects.stored(self, active)

    def _expire(self, message: Message, now: float) -> None:
        if self.settings.dead_lettering_on_message_expiration and self.dead_letters is not None:
            self.bury(message, now, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Take new settings; they hold for what comes, locks and lives that run stay as they are."""
        self.settings = settings

    def drop_all(self) -> None:
        """The entity is deleted: everything in it goes."""
        for message in list(self.messages.values()):
            if message.lock is not None:
                self.unlock(message)
            self._remove(message)
