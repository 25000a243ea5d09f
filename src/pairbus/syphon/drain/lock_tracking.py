"""Messages that earlier passes have left locked: the link was lost before they were settled, or while they were sent.

The service hands them out again when their locks end. Until then later messages of their sessions would overtake them,
and a queue that returns nothing is not known to be empty. A queue hands messages out in the order of their sequence
numbers, which have no gaps, so a gap shows a message that was sent and never received. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .in_flight import InFlightMessage

#: A destination's name in lower case, and a session id.
SessionKey = tuple[str, str]
#: Clocks and locks are not exact.
_MARGIN_SECONDS = 1.0
#: The lock duration of a backlog queue; few queues of others have a longer one.
LONGEST_LOCK = 60.0


class LockedMessages:
    """The messages that one drain knows, or must suspect, to be locked by links that are gone."""

    def __init__(self) -> None:
        #: Messages that were received and not settled: sequence number -> session that others must not overtake.
        self._messages: dict[int, SessionKey | None] = {}
        self._sessions: dict[SessionKey, set[int]] = {}
        #: Sessions of which the running pass sends nothing more.
        self._blocked: set[SessionKey] = set()
        #: True if messages that were never received may be locked; the second, if this pass must suspect each gap.
        self._unseen = self._suspects_gaps = False
        #: All sequence numbers up to this one were received, or need not be waited for.
        self._reached = 0
        #: The time when all locks have ended, and how long they last if the service was not reached since.
        self._until = self._lasting = 0.0
        self._lock_seconds = LONGEST_LOCK
        #: True if messages of sessions were seen in the queue.
        self.has_sessions = False

    def pass_began(self, now: float) -> None:
        """Note that the queue is reached again: a service that was frozen may have locked messages until just now."""
        self._blocked.clear()
        self._until, self._lasting = max(self._until, now + self._lasting if self._lasting else 0.0), 0.0
        self._unseen = self._suspects_gaps = self._unseen and now < self._until

    def pass_ended(
        self, now: float, lock_seconds: float, unsettled: Sequence[tuple[int, SessionKey | None]], unseen: bool
    ) -> None:
        """Note the messages that a pass has left locked; `unseen` if some were sent and perhaps not received."""
        self._lock_seconds = lock_seconds or self._lock_seconds
        if not unsettled and not unseen:
            return
        for sequence, session in unsettled:  # no session: it was sent
            self._forget(sequence)
            self._messages[sequence] = session
            if session is not None:
                self._sessions.setdefault(session, set()).add(sequence)
        self._unseen = self._unseen or unseen
        self._lasting = self._lock_seconds + _MARGIN_SECONDS
        self._until = now + self._lasting

    def suspect_killed_drain(self, now: float, lock_seconds: float) -> None:
        """Note that another drain of the queue was killed: it may have locked any message that was not received yet."""
        self._unseen = self._suspects_gaps = True
        self._until = now + lock_seconds + _MARGIN_SECONDS

    def received(self, sequence: int) -> None:
        if not self._suspects_gaps:
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

    def blocks(self, message: InFlightMessage) -> bool:
        """Return True if an earlier message of its session is, or may be, locked: then the pass sends none of it."""
        self.has_sessions = True
        if not (self._blocked or self._sessions or self._suspects_gaps):
            return False
        session = message.session_key
        assert session is not None
        if session not in self._blocked:
            sequence = message.sequence
            behind_gap = self._suspects_gaps and sequence > self._reached
            if not behind_gap and not any(number < sequence for number in self._sessions.get(session, ())):
                return False
            self._blocked.add(session)
        return True

    def queue_was_empty(self, now: float) -> None:
        """Forget what was not received again although its lock has ended: it was settled after all."""
        if now >= self._until:
            self._messages.clear()
            self._sessions.clear()
            self._blocked.clear()
            self._unseen = self._suspects_gaps = False

    def seconds_locked(self, now: float) -> float:
        """Return the seconds until all locks have ended; 0 if none is left."""
        return max(self._until - now, 0.0) if self._messages or self._unseen else 0.0

    def seconds_out_of_order(self, now: float) -> float:
        """Return the seconds until another drain of the queue would receive every session in its order."""
        return self.seconds_locked(now) if self._sessions or (self._unseen and self.has_sessions) else 0.0
