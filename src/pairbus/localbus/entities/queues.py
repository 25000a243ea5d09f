"""One queue: what it holds, its sessions, and what the passing of time does to them.

A subscription, a dead-letter queue and a topic's inbox are queues too. What must be made durable, and who must
be woken, is said through `Effects`; the broker carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.settings import Counts, QueueSettings

from .effects import Effects
from .limits import check_state
from .message import ACTIVE, DEFERRED, SCHEDULED, Draft, Message
from .message_store import NEVER, Holding
from .sessions import Session, SessionTable

_AT_A_TIME = 1000
DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"


class Queue(Holding):
    """Messages with their sessions and their schedule."""

    def __init__(
        self, id: int, path: str, settings: QueueSettings, effects: Effects, *, dead_letters: Queue | None = None
    ) -> None:
        super().__init__(id, path, settings, effects, dead_letters=dead_letters)
        self.dead_letters: Queue | None = dead_letters
        self.transfer_dead_letters: Queue | None = None

    # --- looking, by sequence number ---------------------------------------------------------------------

    def peek(self, start: int, limit: int, session: str | None = None) -> list[Message]:
        """Messages from a sequence number on, whatever their state; nothing is locked."""
        return list(islice(self._from(start, session), limit))

    def _from(self, start: int, session: str | None) -> Iterator[Message]:
        """Within a session only that session's messages are looked at, however many others there are."""
        if session is not None and self.sessions is not None:
            known = self.sessions.get(session)
            its = [] if known is None else known.messages.values()
            return (m for m in its if m.sequence >= start)
        found = (self.messages[sequence] for sequence in self.messages.irange(minimum=start))
        # In a dead-letter queue messages have sessions too, but are not lined up by them.
        return (m for m in found if session is None or (m.session_id or "") == session)

    def receive_deferred(
        self,
        sequences: Iterable[int],
        now: float,
        owner: Any = None,
        session: Session | None = None,
        *,
        delete: bool = False,
        most_bytes: float = NEVER,
    ) -> list[Message]:
        """Deferred messages by their numbers; one that is not there, or not deferred, refuses all.

        So do several that have more than `most_bytes` together.
        """
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
        size = sum(message.size for message in found)
        if size > most_bytes and len(found) > 1:
            raise BusError(
                conditions.MESSAGE_SIZE_EXCEEDED,
                f"The {len(found)} messages have {size} bytes together; {most_bytes} can be received at once. Ask for "
                "fewer of them.",
            )
        if delete:
            for message in found:
                self._remove(message)
        else:
            self._lock(found, now, owner, session)
        return found

    def delete_oldest(self, limit: int, before: float = NEVER, session: str | None = None) -> int:
        """Remove up to so many messages that wait, those with the lowest numbers; how many there were.

        Of those only that were enqueued `before` a time in milliseconds. One that somebody has locked stays, and so do
        those of a session that somebody holds, unless it is the session that is named.
        """
        waiting = (
            message
            for message in self._from(0, session)
            if message.state == ACTIVE
            and message.lock is None
            and int(message.enqueued_at * 1000) < before
            and (session is not None or not self._is_held(message))
        )
        chosen = list(islice(waiting, limit))
        for message in chosen:
            self._line_of(message).left()
            self._remove(message)
        return len(chosen)

    def _is_held(self, message: Message) -> bool:
        session = None if self.sessions is None else self.sessions.get(message.session_id or "")
        return session is not None and session.owner is not None

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

    def has_free_session(self) -> bool:
        """Whether `accept_session` would find one for whoever takes any."""
        return self._table().next_free() is not None

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
        check_state(state)
        session.state, session.state_at = state, now
        self._effects.session_state(self, id, state)

    def restore_session_state(self, id: str, state: bytes, now: float) -> None:
        session = self._table().open(id)
        session.state, session.state_at = state, now  # when it was set is not kept

    def session_ids(self, updated_since: float | None = None) -> list[str]:
        """Sessions with messages or a state, or those whose state was set since, in the order of their names."""
        if updated_since is not None:
            return sorted(s.id for s in self._table() if s.state is not None and s.state_at > updated_since)
        return sorted(s.id for s in self._table() if s.messages or s.state is not None)

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

    def advance(self, now: float) -> None:
        """Carry out what time has brought: locks that ended, lives that ended, schedules that came.

        So much at a time that others are served in between; what is left is due at once.
        """
        self._due = NEVER
        for tag in islice(self._lock_ends.due(now), _AT_A_TIME):
            self._give_back(self._locks[tag], now, counted=True)
        if self.sessions is not None:
            for session in self.sessions.ended(now):
                owner = session.owner
                self._free(session, now, counted=True)
                self._effects.session_lost(self, session.id, owner)
        for sequence in islice(self._schedule.due(now), _AT_A_TIME):
            self._activate(self.messages[sequence], now)
        for sequence in islice(self._expiries.due(now), _AT_A_TIME):
            message = self.messages[sequence]
            if message.state == ACTIVE and message.lock is None:
                self._line_of(message).left()
                self._expire(message, now)
        self.wake(self._next_due())

    def _next_due(self) -> float:
        due = min(self._lock_ends.next(), self._schedule.next(), self._expiries.next())
        return due if self.sessions is None else min(due, self.sessions.next_end())

    def _activate(self, message: Message, now: float) -> None:
        """A scheduled message's time has come: it joins the end of the queue, under a new number."""
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
        """Take new settings; they hold for what comes, locks and lives that run stay as they are."""
        self.settings = settings

    def drop_all(self) -> None:
        """The entity is deleted: everything in it goes."""
        for message in list(self.messages.values()):
            if message.lock is not None:
                self.unlock(message)
            self._remove(message)
