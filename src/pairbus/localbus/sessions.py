"""Sessions of one queue: which messages wait in each, who holds it, until when, and its state.

Pure: a clock comes in with every call. The queue owns the messages; here they are only lined up.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any

from .message import ACTIVE, Message

GONE = 3


class Line:
    """Messages in the order of their sequence numbers, also when one that was taken comes back."""

    __slots__ = ("_fresh", "_returned")

    def __init__(self) -> None:
        self._fresh: deque[Message] = deque()
        self._returned: list[tuple[int, Message]] = []

    def add(self, message: Message) -> None:
        self._fresh.append(message)

    def put_back(self, message: Message) -> None:
        heapq.heappush(self._returned, (message.sequence, message))

    def head(self) -> Message | None:
        """The next message that can be had; those that left the queue meanwhile are passed over."""
        fresh, returned = self._fresh, self._returned
        while fresh and (fresh[0].state != ACTIVE or fresh[0].lock is not None):
            fresh.popleft()
        while returned and (returned[0][1].state != ACTIVE or returned[0][1].lock is not None):
            heapq.heappop(returned)
        if returned and (not fresh or returned[0][0] < fresh[0].sequence):
            return returned[0][1]
        return fresh[0] if fresh else None

    def pop(self) -> Message | None:
        message = self.head()
        if message is not None:
            if self._returned and self._returned[0][1] is message:
                heapq.heappop(self._returned)
            else:
                self._fresh.popleft()
        return message


class Session:
    """One session: its line, its lock and its state. `count` says how many messages belong to it."""

    __slots__ = ("count", "held", "id", "line", "owner", "state", "until")

    def __init__(self, id: str) -> None:
        self.id = id
        self.line = Line()
        self.count = 0
        self.owner: Any = None
        self.until = 0.0
        self.held: dict[bytes, Message] = {}
        self.state: bytes | None = None


class SessionTable:
    """All sessions of a queue; those that are free and have something to give are kept in order."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._free: dict[str, Session] = {}
        self._ends: list[tuple[float, str]] = []

    def get(self, id: str) -> Session | None:
        return self._sessions.get(id)

    def open(self, id: str) -> Session:
        session = self._sessions.get(id)
        if session is None:
            session = self._sessions[id] = Session(id)
        return session

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def offer(self, session: Session) -> bool:
        """Note that a session may have something for the next one who asks; says whether it is free."""
        if session.owner is None and session.line.head() is not None:
            self._free[session.id] = session
            return True
        return False

    def next_free(self) -> Session | None:
        while self._free:
            id = next(iter(self._free))
            session = self._free[id]
            if session.owner is None and session.line.head() is not None:
                return session
            del self._free[id]
        return None

    def lock(self, session: Session, owner: Any, until: float) -> None:
        self._free.pop(session.id, None)
        session.owner = owner
        self.extend(session, until)

    def extend(self, session: Session, until: float) -> None:
        session.until = until
        heapq.heappush(self._ends, (until, session.id))

    def unlock(self, session: Session) -> None:
        session.owner = None
        session.held = {}
        self.forget_if_idle(session)

    def forget_if_idle(self, session: Session) -> None:
        """A session that holds nothing is no session any more."""
        if session.owner is None and session.count <= 0 and session.state is None:
            self._sessions.pop(session.id, None)
            self._free.pop(session.id, None)

    def ended(self, now: float) -> list[Session]:
        """Sessions whose lock has run out."""
        found = []
        while self._ends and self._ends[0][0] <= now:
            until, id = heapq.heappop(self._ends)
            session = self._sessions.get(id)
            if session is not None and session.owner is not None and session.until <= until:
                found.append(session)
        return found

    def next_end(self) -> float:
        while self._ends:
            until, id = self._ends[0]
            session = self._sessions.get(id)
            if session is not None and session.owner is not None and session.until == until:
                return until
            heapq.heappop(self._ends)
        return float("inf")
