"""One loop serves everybody: while several clients want something, each gets a fraction of a millisecond at a time.

A client that sends without a pause is worked for in shares, and what it sent is answered every few milliseconds. One
that says a little and waits is heard between two shares and answered at once, before the others' answers are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: How long a client that has been heard is counted as wanting something.
_RECENT_SECONDS = 1.0
#: How long one client is worked for before others are listened to, and how many bytes are looked at in between.
SHARE_SECONDS = 0.0001
PIECE_BYTES = 2048
#: How many rounds of the loop others have between two shares: one to be heard, one for the turn that answers them.
PASSES = 2
#: How long work that nobody else waits for is collected before it is committed and answered.
PATIENCE_SECONDS = 0.002
#: How many messages a receiver gets at a time while others wait, and while none does.
SHARED_PULL, ALONE_PULL = 25, 200


class Talkers:
    """Who was heard last, and when anybody else was: enough to know whether a client is alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._latest: Any = None
        self._latest_at = float("-inf")
        self._another_at = float("-inf")

    def heard(self, who: Any) -> bool:
        """A client has said something; whether another one has of late."""
        now = self._clock()
        if who is not self._latest:
            self._latest, self._another_at = who, self._latest_at
        self._latest_at = now
        return now - self._another_at < _RECENT_SECONDS

    def others(self, who: Any) -> bool:
        """Whether anybody but this client was heard of late."""
        at = self._another_at if who is self._latest else self._latest_at
        return self._clock() - at < _RECENT_SECONDS

    def gone(self, who: Any) -> None:
        """Keep nothing of a client that has left."""
        if who is self._latest:
            self._latest = None


class Answers:
    """What waits to be said until it is durable: at once, or, to clients that are worked for in shares, in a moment.

    What one client is owed keeps its order.
    """

    def __init__(self) -> None:
        self._now: list[Callable[[], None]] = []
        self._soon: dict[Any, list[Callable[[], None]]] = {}

    def add(self, callback: Callable[[], None], client: Any = None, *, patient: bool = False) -> None:
        if patient:
            self._soon.setdefault(client, []).append(callback)
            return
        self._now += self._soon.pop(client, ())
        self._now.append(callback)

    def take(self, *, all_of_them: bool) -> list[Callable[[], None]]:
        """What is to be said now, and no longer kept."""
        taken, self._now = self._now, []
        if all_of_them:
            for owed in self._soon.values():
                taken += owed
            self._soon.clear()
        return taken

    def __bool__(self) -> bool:
        return bool(self._now or self._soon)
