"""Sessions of one queue: the ready messages, the lock and the state of each. Pure: every call is given the time."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from .deadlines import Deadlines
from .message import ACTIVE, Message

#: A flag beside the state: the message has left its queue.
REMOVED = 4
_COMPACT_AT = 1000


class ReadyList:
    """Messages that can be delivered, in order; one that is locked or removed elsewhere stays until it is reached."""

    __slots__ = ("_fresh", "_returned", "_stale")

    def __init__(self) -> None:
        self._stale = 0
        self._fresh: deque[Message] = deque()
        self._returned: list[tuple[int, Message]] = []

    def add(self, message: Message) -> None:
        self._fresh.append(message)

    def put_back(self, message: Message) -> None:
        heapq.heappush(self._returned, (message.sequence, message))

    def note_removal(self) -> None:
        """Count a message that was removed without `pop`; drop such messages once they are the majority."""
        self._stale += 1
        if self._stale > _COMPACT_AT and self._stale * 2 > len(self):
            self._stale = 0
            self._fresh = deque(m for m in self._fresh if _is_ready(m))
            self._returned = [entry for entry in self._returned if _is_ready(entry[1])]
            heapq.heapify(self._returned)

    def head(self) -> Message | None:
        """Return the next message that can be delivered, None if there is none."""
        fresh, returned = self._fresh, self._returned
        while fresh and not _is_ready(fresh[0]):
            fresh.popleft()
        while returned and not _is_ready(returned[0][1]):
            heapq.heappop(returned)
        if returned and (not fresh or returned[0][0] < fresh[0].sequence):
            return returned[0][1]
        return fresh[0] if fresh else None

    def pop(self) -> Message | None:
        """Remove and return the next message that can be delivered, None if there is none."""
        message = self.head()
        if message is not None:
            if self._returned and self._returned[0][1] is message:
                heapq.heappop(self._returned)
            else:
                self._fresh.popleft()
        return message

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._fresh) + len(self._returned)


def _is_ready(message: Message) -> bool:
    return message.state == ACTIVE and message.lock is None


class Session:
    """One session: its messages in order, those that are ready or locked, its lock and its state."""

    __slots__ = ("id", "locked", "messages", "owner", "ready", "state", "state_at", "until")

    def __init__(self, id: str) -> None:
        self.id = id
        self.ready = ReadyList()
        self.messages: dict[int, Message] = {}
        self.owner: Any = None
        self.until = 0.0
        self.locked: dict[bytes, Message] = {}
        self.state: bytes | None = None
        self.state_at = 0.0


class SessionTable:
    """All sessions of a queue; those that have no owner and a ready message are kept in order of arrival."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        #: An OrderedDict, because taking the first key of a plain dict walks over all deleted entries.
        self._free: OrderedDict[str, Session] = OrderedDict()
        self._updated: dict[Session, None] = {}
        self._lock_ends = Deadlines(self._is_lock_end)

    def get(self, id: str) -> Session | None:
        return self._sessions.get(id)

    def open(self, id: str) -> Session:
        """Return the session of that id; create it if necessary."""
        session = self._sessions.get(id)
        if session is None:
            session = self._sessions[id] = Session(id)
        return session

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def offer(self, session: Session) -> bool:
        """Note that a session may have a ready message; return True if any receiver may accept the session."""
        if session.owner is None and session.ready.head() is not None:
            self._free[session.id] = session
            return True
        if session.owner is not None:
            self._updated[session] = None
        return False

    def take_updated(self) -> list[Session]:
        """Return the locked sessions that may have got a ready message since the last call."""
        updated = list(self._updated)
        self._updated.clear()
        return updated

    def next_free(self) -> Session | None:
        """Return the first session that has a ready message and no owner."""
        while self._free:
            id = next(iter(self._free))
            session = self._free[id]
            if session.owner is None and session.ready.head() is not None:
                return session
            del self._free[id]
        return None

    def lock(self, session: Session, owner: Any, until: float) -> None:
        self._free.pop(session.id, None)
        session.owner = owner
        self.extend(session, until)

    def extend(self, session: Session, until: float) -> None:
        session.until = until
        self._lock_ends.add(until, session.id)

    def unlock(self, session: Session) -> None:
        session.owner = None
        session.locked = {}
        self._updated.pop(session, None)
        self.remove_if_idle(session)

    def remove_if_idle(self, session: Session) -> None:
        """Remove a session that has no owner, no messages and no state."""
        if session.owner is None and not session.messages and session.state is None:
            self._sessions.pop(session.id, None)
            self._free.pop(session.id, None)

    def expired(self, now: float) -> list[Session]:
        """Return the sessions whose lock has expired since the last call."""
        return [self._sessions[id] for id in self._lock_ends.due(now)]

    def next_expiry(self) -> float:
        return self._lock_ends.next()

    def _is_lock_end(self, when: float, id: str) -> bool:
        session = self._sessions.get(id)
        return session is not None and session.owner is not None and session.until == when
