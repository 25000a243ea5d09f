"""Fair use of the one event loop: a client that sends without a pause is served in shares.

Between two shares the other clients are read and get their replies; its own replies are written every few milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.localbus.server import Server

#: A client counts as active for this long after its last bytes.
_ACTIVE_SECONDS = 1.0
#: The length of a share, and the bytes that are processed between two looks at the clock.
SHARE_SECONDS = 0.0001
PIECE_BYTES = 2048
#: Rounds of the event loop between two shares: one to read from the others, one for the turn that replies to them.
ROUNDS_BETWEEN_SHARES = 2
#: Work of clients that are served in shares is committed and its replies are written this often.
GROUP_COMMIT_SECONDS = 0.002
#: Messages that a receiver gets at a time while other clients are active, and while none is.
SHARED_PULL, ALONE_PULL = 25, 200


def yield_to_others(server: Server, resume: Callable[[], None], rounds: int = ROUNDS_BETWEEN_SHARES) -> None:
    """Call `resume` after the rounds of the loop in which other clients are read and get their replies."""
    if rounds > 0 or (rounds > -ROUNDS_BETWEEN_SHARES and server.is_turn_due):
        server.loop.call_soon(yield_to_others, server, resume, rounds - 1)
    else:
        resume()


class ActiveClients:
    """The client that was active last, and when another one was: enough to know that a client is alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._latest: Any = None
        self._latest_at = float("-inf")
        self._another_at = float("-inf")

    def record(self, client: Any) -> bool:
        """Record that a client has sent bytes; return True if another client is active."""
        now = self._clock()
        if client is not self._latest:
            self._latest, self._another_at = client, self._latest_at
        self._latest_at = now
        return now - self._another_at < _ACTIVE_SECONDS

    def has_others(self, client: Any) -> bool:
        at = self._another_at if client is self._latest else self._latest_at
        return self._clock() - at < _ACTIVE_SECONDS

    def remove(self, client: Any) -> None:
        """Drop the reference to a client that has disconnected."""
        if client is self._latest:
            self._latest = None


class CommitCallbacks:
    """Callbacks that wait for a commit, in order for each client; deferred ones run with the next group commit."""

    def __init__(self) -> None:
        self._next: list[Callable[[], None]] = []
        self._deferred: dict[Any, list[Callable[[], None]]] = {}

    def add(self, callback: Callable[[], None], client: Any = None, *, deferred: bool = False) -> None:
        """Keep a callback for the next commit, or for the next group commit if it is deferred."""
        if deferred:
            self._deferred.setdefault(client, []).append(callback)
            return
        self._next += self._deferred.pop(client, ())
        self._next.append(callback)

    def take(self, *, with_deferred: bool) -> list[Callable[[], None]]:
        taken, self._next = self._next, []
        if with_deferred:
            for callbacks in self._deferred.values():
                taken += callbacks
            self._deferred.clear()
        return taken

    def __bool__(self) -> bool:
        return bool(self._next or self._deferred)
