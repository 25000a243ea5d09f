"""One queue: its messages, its sessions, and the work that becomes due with time.

A subscription, a dead-letter queue and a topic's inbox are queues too. The broker carries out a queue's `Effects`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.settings import Counts, QueueSettings

from .effects import Effects
from .limits import check_state
from .message import ACTIVE, DEFERRED, SCHEDULED, Draft, Message
from .message_store import NEVER, MessageStore
from .sessions import Session, SessionTable

#: Due entries of each kind that one `advance` handles, so that it does not block the event loop.
_ADVANCE_LIMIT = 1000
DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"


class Queue(MessageStore):
    """A queue: a message store with browsing, sessions and timed work."""

    def __init__(
        self, id: int, path: str, settings: QueueSettings, effects: Effects, *, dead_letters: Queue | None = None
    ) -> None:
        super().__init__(id, path, settings, effects, dead_letters=dead_letters)
        self.dead_letters: Queue | None = dead_letters
        self.transfer_dead_letters: Queue | None = None

    def peek(self, start: int, limit: int, session: str | None = None) -> list[Message]:
        """Return messages from a sequence number on, in any state, without locking them."""
        return list(islice(self._messages_from(start, session), limit))

    def _messages_from(self, start: int, session: str | None) -> Iterator[Message]:
        """Yield messages from a sequence number on; of one session without walking over the others' messages."""
        if session is not None and self.sessions is not None:
            known = self.sessions.get(session)
            own = [] if known is None else known.messages.values()
            return (m for m in own if m.sequence >= start)
        found = (self.messages[sequence] for sequence in self.messages.irange(minimum=start))
        # Messages of a dead-letter queue keep their session id, but the queue has no sessions.
        return (m for m in found if session is None or (m.session_id or "") == session)

    def receive_deferred(
        self,
        sequences: Iterable[int],
        now: float,
        owner: Any = None,
        session: Session | None = None,
        *,
        delete: bool = False,
        max_bytes: float = NEVER,
    ) -> list[Message]:
        """Lock deferred messages, or remove them if `delete` is set; if one is missing, raise `BusError` instead."""
        found = []
        for sequence in dict.fromkeys(sequences):  # a number may be given twice
            message = self.messages.get(sequence)
            if (
                message is None
                or message.state != DEFERRED
                or message.lock is not None
                or (session is not None and (message.session_id or "") != session.id)
            ):
                raise BusError(
                    bus_errors.MESSAGE_NOT_FOUND,
                    f"Failed to lock one or more specified messages. The message with sequence number {sequence} "
                    "does not exist or is not deferred.",
                )
            found.append(message)
        size = sum(message.size for message in found)
        if size > max_bytes and len(found) > 1:
            raise BusError(
                bus_errors.MESSAGE_SIZE_EXCEEDED,
                f"The {len(found)} messages have {size} bytes together; {max_bytes} can be received at once. Ask for "
                "fewer of them.",
            )
        if delete:
            for message in found:
                self._remove(message)
        else:
            self._lock(found, now, owner, session)
        return found

    def delete_oldest(self, limit: int, before: float = NEVER, session: str | None = None) -> int:
        """Remove up to `limit` unlocked active messages enqueued `before` a time in ms; return the number removed."""
        removable = (
            message
            for message in self._messages_from(0, session)
            if message.state == ACTIVE
            and message.lock is None
            and int(message.enqueued_at * 1000) < before
            and (session is not None or not self._is_session_locked(message))
        )
        chosen = list(islice(removable, limit))
        for message in chosen:
            self._ready_list_of(message).note_removal()
            self._remove(message)
        return len(chosen)

    def _is_session_locked(self, message: Message) -> bool:
        session = None if self.sessions is None else self.sessions.get(message.session_id or "")
        return session is not None and session.owner is not None

    def cancel_scheduled(self, sequences: Iterable[int]) -> None:
        """Remove scheduled messages; raise `BusError`, and remove none, if one of them does not exist."""
        found = []
        for sequence in dict.fromkeys(sequences):  # a number may be given twice
            message = self.messages.get(sequence)
            if message is None or message.state != SCHEDULED:
                raise BusError(
                    bus_errors.MESSAGE_NOT_FOUND,
                    f"The scheduled message with SequenceNumber = {sequence} is not found.",
                )
            found.append(message)
        for message in found:
            self._remove(message)

    def counts(self) -> Counts:
        """Return the message counts by state; messages that wait to be forwarded count as in transfer."""
        dead, transfer_dead = self.dead_letters, self.transfer_dead_letters
        waiting = len(self.messages) - self._scheduled
        forwards = self.settings.forward_to is not None
        return Counts(
            active=0 if forwards else waiting,
            dead_letter=0 if dead is None else len(dead.messages),
            scheduled=self._scheduled,
            transfer=waiting if forwards else 0,
            transfer_dead_letter=0 if transfer_dead is None else len(transfer_dead.messages),
        )

    @property
    def size_in_bytes(self) -> int:
        """Bytes that count against the quota, those of the dead-letter queues included."""
        size = self._own_size
        if self.dead_letters is not None:
            size += self.dead_letters._own_size
        if self.transfer_dead_letters is not None:
            size += self.transfer_dead_letters._own_size
        return size

    def accept_session(self, id: str | None, owner: Any, now: float) -> Session | None:
        """Lock and return the session of that id, or the next free one with a ready message if `id` is None."""
        table = self._session_table()
        if id is None:
            session = table.next_free()
            if session is None:
                return None
        else:
            session = table.open(id)
            if session.owner is not None and session.until <= now:
                self.advance(now)  # its lock has expired, and no timer has run since
                session = table.open(id)
            if session.owner is not None:
                raise BusError(
                    bus_errors.SESSION_CANNOT_BE_LOCKED,
                    f"The requested session '{id}' cannot be accepted. It may be locked by another receiver.",
                )
        until = now + self.settings.lock_duration.total_seconds()
        table.lock(session, owner, until)
        self.request_advance(until)
        return session

    def has_free_session(self) -> bool:
        """Return True if `accept_session` without an id would find a session."""
        return self._session_table().next_free() is not None

    def release_session(self, session: Session, owner: Any, now: float) -> None:
        """Unlock a session of `owner`; its locked messages are ready again, and their deliveries do not count."""
        if session.owner is owner and owner is not None:
            self._unlock_session(session, now, counted=False)

    def renew_session(self, id: str, now: float) -> float:
        """Extend a session's lock; return its new end."""
        session = self.held_session(id, now)
        until = now + self.settings.lock_duration.total_seconds()
        self._session_table().extend(session, until)
        self.request_advance(until)
        return until

    def held_session(self, id: str, now: float) -> Session:
        """Return a locked session; raise `BusError` if its lock has ended."""
        session = self._session_table().get(id)
        if session is None or session.owner is None or session.until <= now:
            raise bus_errors.session_lock_lost()
        return session

    def set_session_state(self, id: str, state: bytes | None, now: float) -> None:
        session = self.held_session(id, now)
        check_state(state)
        session.state, session.state_at = state, now
        self._effects.session_state(self, id, state)

    def restore_session_state(self, id: str, state: bytes, now: float) -> None:
        """Set a session's state that was read from the store; the store does not keep its time."""
        session = self._session_table().open(id)
        session.state, session.state_at = state, now

    def session_ids(self, updated_since: float | None = None) -> list[str]:
        """Return the sorted ids of sessions with messages or a state, or with a state that was set since a time."""
        if updated_since is not None:
            return sorted(s.id for s in self._session_table() if s.state is not None and s.state_at > updated_since)
        return sorted(s.id for s in self._session_table() if s.messages or s.state is not None)

    def _session_table(self) -> SessionTable:
        if self.sessions is None:
            raise BusError(
                bus_errors.NOT_ALLOWED,
                "A sessionful message receiver cannot be created on an entity that does not require sessions. Ensure "
                "RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior. "
                f"Entity: '{self.path}'.",
            )
        return self.sessions

    def _unlock_session(self, session: Session, now: float, *, counted: bool) -> None:
        for message in list(session.locked.values()):
            self._give_back(message, now, counted=counted)
        assert self.sessions is not None
        self.sessions.unlock(session)
        if self.sessions.offer(session):
            self._effects.ready(self)

    def advance(self, now: float) -> None:
        """End expired locks, activate scheduled messages and remove expired ones; later calls do what is left."""
        self._next_advance = NEVER
        for tag in islice(self._lock_ends.due(now), _ADVANCE_LIMIT):
            self._give_back(self._locks[tag], now, counted=True)
        if self.sessions is not None:
            for session in self.sessions.expired(now):
                owner = session.owner
                self._unlock_session(session, now, counted=True)
                self._effects.session_lost(self, session.id, owner)
        for sequence in islice(self._schedule.due(now), _ADVANCE_LIMIT):
            self._activate(self.messages[sequence], now)
        for sequence in islice(self._expiries.due(now), _ADVANCE_LIMIT):
            message = self.messages[sequence]
            if message.state == ACTIVE and message.lock is None:
                self._ready_list_of(message).note_removal()
                self._expire(message, now)
        self.request_advance(self._next_deadline())

    def _next_deadline(self) -> float:
        due = min(self._lock_ends.next(), self._schedule.next(), self._expiries.next())
        return due if self.sessions is None else min(due, self.sessions.next_expiry())

    def _activate(self, message: Message, now: float) -> None:
        """Move a scheduled message that is due to the end of the queue, under a new sequence number."""
        payload = self._effects.payloads([message])[0]
        self._remove(message)
        draft = Draft(payload, message.size, session_id=message.session_id, time_to_live=message.time_to_live)
        active = Message(self._effects.new_id(), self.next_sequence, now, draft)
        active.scheduled_at = message.scheduled_at
        active.enqueue_sequence = message.enqueue_sequence
        active.hops = message.hops
        active.expires_at = self.expiry(active, now)
        self.insert(active)
        self._effects.stored(self, active)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Replace the settings; running locks and expiry times stay as they are."""
        self.settings = settings

    def drop_all(self) -> None:
        """Remove all messages, because the entity is deleted."""
        for message in list(self.messages.values()):
            if message.lock is not None:
                self.unlock(message)
            self._remove(message)
