"""Sessions that wait for the next pass: a message of theirs that comes first may be locked by a link that was lost."""

from __future__ import annotations

from .in_flight import Moving
from .lock_tracking import Owed, Session


class Blocked:
    """The sessions of which one pass sends nothing, or nothing more."""

    def __init__(self, owed: Owed) -> None:
        self._owed = owed
        self._sessions: set[Session] = set()

    def has(self, message: Moving) -> bool:
        """Whether an earlier message of its session is, or may be, still locked; then the session waits."""
        owed = self._owed
        owed.has_sessions = True
        if not self._sessions and not owed.is_any:
            return False
        session = message.lane
        assert session is not None
        if session not in self._sessions:
            if not owed.blocks(session, message.sequence):
                return False
            self._sessions.add(session)
        return True
