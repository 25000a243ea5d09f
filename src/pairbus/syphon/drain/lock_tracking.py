"""Messages that a pass has left locked: a link was lost before they were settled, or nobody confirmed it, or they were
on their way and never came.

The service gives them out again when their locks have ended, not before. Until then later messages of their sessions
would overtake them, and a queue that gives out nothing is not known to be empty. Messages come in the order of their
sequence numbers, which have no gaps: so one that never came shows as a gap. Pure: the time comes in.
"""

from __future__ import annotations

from collections.abc import Sequence

#: A session of a destination.
Session = tuple[str, str]
#: Clocks and locks are not that exact.
_MARGIN_SECONDS = 1.0
#: As long as a lock of a backlog queue lasts; longer than nearly any other's.
LONGEST_LOCK = 60.0


class Owed:
    """What one drain knows, or must suspect, to be locked by links of its own that are gone."""

    def __init__(self) -> None:
        #: What came and was not settled; with its session if others must not overtake it.
        self._messages: dict[int, Session | None] = {}
        self._sessions: dict[Session, set[int]] = {}
        #: Whether more may be locked that never came, and whether a gap in this pass must be taken for that.
        self._unseen = self._wary = False
        #: All sequence numbers up to this have come, or are nobody's concern.
        self._reached = 0
        #: When all locks have ended; how long they last, while the service was not heard since the link was lost.
        self._until = self._lasting = 0.0
        self._lock = LONGEST_LOCK
        #: Whether the queue has messages of sessions, as far as was seen.
        self.has_sessions = False

    def left(self, now: float, lock: float, messages: Sequence[tuple[int, Session | None]], unseen: bool) -> None:
        """A pass is over; these are not settled, and more may have been on their way. Locks last `lock` seconds, or
        as long as before where that is 0."""
        self._lock = lock or self._lock
        if not messages and not unseen:
            return
        for sequence, session in messages:
            self._forget(sequence)
            self._messages[sequence] = session
            if session is not None:
                self._sessions.setdefault(session, set()).add(sequence)
        self._unseen = self._unseen or unseen
        self._lasting = self._lock + _MARGIN_SECONDS
        self._until = now + self._lasting

    def begin(self, now: float) -> None:
        """The queue is reached again: a service that was frozen may have locked messages until just now."""
        self._until, self._lasting = max(self._until, now + self._lasting if self._lasting else 0.0), 0.0
        self._unseen = self._wary = self._unseen and now < self._until

    def suspect(self, now: float, lock: float) -> None:
        """A process that drained this queue was killed: anything before what comes may be locked by it."""
        self._unseen = self._wary = True
        self._until = now + lock + _MARGIN_SECONDS

    def came(self, sequence: int) -> None:
        """A message was received."""
        if not self._wary:
            self._reached = max(self._reached, sequence)
        elif sequence == self._reached + 1:
            self._reached = sequence
        if self._messages:
            self._forget(sequence)

    def _forget(self, sequence: int) -> None:
        session = self._messages.pop(sequence, None)
        if session is not None:
            numbers = self._sessions[session]
            numbers.discard(sequence)
            if not numbers:
                del self._sessions[session]

    @property
    def is_any(self) -> bool:
        """Whether anything may block anything."""
        return self._wary or bool(self._sessions)

    def blocks(self, session: Session, sequence: int) -> bool:
        """Whether an earlier message of the session is, or may be, still to come."""
        if self._wary and sequence > self._reached:
            return True
        return any(number < sequence for number in self._sessions.get(session, ()))

    def found_empty(self, now: float) -> None:
        """Nothing is there; what has not come again although its lock has ended was settled after all."""
        if now >= self._until:
            self._messages.clear()
            self._sessions.clear()
            self._unseen = self._wary = False

    def seconds(self, now: float) -> float:
        """How long it takes until all locks have ended."""
        return max(self._until - now, 0.0) if self._messages or self._unseen else 0.0

    def seconds_in_order(self, now: float) -> float:
        """The same, if there is anything that others must not overtake."""
        return self.seconds(now) if self._sessions or (self._unseen and self.has_sessions) else 0.0
