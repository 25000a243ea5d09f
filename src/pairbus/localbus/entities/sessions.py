"""Sessions of one queue: which messages wait in each, who holds it, until when, and its state.

Pure: a clock comes in with every call. The queue owns the messages; here they are only lined up.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from .deadlines import Deadlines
from .message import ACTIVE, Message

#: A flag beside the state: the message has left its queue.
GONE = 4


class Line:
    """Messages in the order of their sequence numbers, also when one that was taken comes back."""

    __slots__ = ("_fresh", "_returned", "_stale")

    def __init__(self) -> None:
        self._stale = 0
        self._fresh: deque[Message] = deque()
        self._returned: list[tuple[int, Message]] = []

    def add(self, message: Message) -> None:
        self._fresh.append(message)

    def put_back(self, message: Message) -> None:
        heapq.heappush(self._returned, (message.sequence, message))

    def left(self) -> None:
        """A message went without being popped; when such are the most, the line is cleared of them."""
        self._stale += 1
        if self._stale > 1000 and self._stale * 2 > len(self._fresh) + len(self._returned):
            self._stale = 0
            self._fresh = deque(m for m in self._fresh if _waits(m))
            self._returned = [entry for entry in self._returned if _waits(entry[1])]
            heapq.heapify(self._returned)

    def head(self) -> Message | None:
        """The next message that can be had; those that left the queue meanwhile are passed over."""
        fresh, returned = self._fresh, self._returned
        while fresh and not _waits(fresh[0]):
            fresh.popleft()
        while returned and not _waits(returned[0][1]):
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


def _waits(message: Message) -> bool:
    return message.state == ACTIVE and message.lock is None


class Session:
    """One session: its messages whatever their state, the line of those that wait, its lock and its state.

    A queue's numbers only grow, so `messages` is in their order.
    """

    __slots__ = ("held", "id", "line", "messages", "owner", "state", "state_at", "until")

    def __init__(self, id: str) -> None:
        self.id = id
        self.line = Line()
        self.messages: dict[int, Message] = {}
        self.owner: Any = None
        self.until = 0.0
        self.held: dict[bytes, Message] = {}
        self.state: bytes | None = None
        self.state_at = 0.0


class SessionTable:
    """All sessions of a queue; those that are free and have something to give are kept in order."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        #: What is taken from its front again and again must not be a plain dict: that walks over all that was there.
        self._free: OrderedDict[str, Session] = OrderedDict()
        self._stirred: dict[Session, None] = {}
        self._ends = Deadlines(self._ends_at)

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
        if session.owner is not None:
            self._stirred[session] = None
        return False

    def take_stirred(self) -> list[Session]:
        """Sessions that may have something for their holders since this was last asked."""
        stirred = list(self._stirred)
        self._stirred.clear()
        return stirred

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
        self._ends.add(until, session.id)

    def unlock(self, session: Session) -> None:
        session.owner = None
        session.held = {}
        self._stirred.pop(session, None)
        self.forget_if_idle(session)

    def forget_if_idle(self, session: Session) -> None:
        """A session that holds nothing is no session any more."""
        if session.owner is None and not session.messages and session.state is None:
            self._sessions.pop(session.id, None)
            self._free.pop(session.id, None)

    def ended(self, now: float) -> list[Session]:
        """Sessions whose lock has run out."""
        return [self._sessions[id] for id in self._ends.due(now)]

    def next_end(self) -> float:
        return self._ends.next()

    def _ends_at(self, when: float, id: str) -> bool:
        session = self._sessions.get(id)
        return session is not None and session.owner is not None and session.until == when
