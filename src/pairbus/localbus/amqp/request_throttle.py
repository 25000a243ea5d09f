"""One client's requests: carried out in the order they came, and no faster than the client reads the answers.

What is asked may change things, and an answer that is made must reach the client; so a request is held back before it
is carried out, never its answer after. Nothing is lost, and a client that reads nothing makes nothing grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .engine import lib

if TYPE_CHECKING:
    from .connection import AmqpConnection
    from .request_nodes import Requests

#: While so many bytes of answers are on their way nothing more is carried out. The last answer may be of any size.
ENOUGH = 4 * 1024 * 1024
#: So many bytes of requests may wait; each costs something besides its bytes.
_MOST_WAITING = 16 * 1024 * 1024
_EACH = 500
#: So many that waited are carried out before others have their turn.
_AT_ONCE = 50


class Answering:
    """What a connection has been asked and not answered yet."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._waiting_bytes = 0
        self._without_credit: set[Requests] = set()
        #: Bytes of answers: made, but not durable or held up yet; and given to Proton, which has them still at most.
        self.owed = 0
        self.given = 0

    @property
    def is_behind(self) -> bool:
        """Whether requests wait for the client to read: then it is asked to send no more of them."""
        return bool(self._waiting)

    def ask(self, carry_out: Callable[[], None], size: int) -> None:
        """Carry a request of so many bytes out, now or when its turn comes."""
        if not self._waiting and not self._is_enough():
            carry_out()
            return
        self._waiting.append((carry_out, size + _EACH))
        self._waiting_bytes += size + _EACH
        self._connection.stalled.add(self)
        if self._waiting_bytes > _MOST_WAITING:
            self._connection.give_up("Too many requests at once, whose answers are not read.")

    def withhold_credit(self, link: Requests) -> None:
        """A link's credit is not renewed until nothing waits."""
        self._without_credit.add(link)

    def on_flow(self) -> None:
        """Something was written, or the client has said something: perhaps there is room for more answers."""
        connection = self._connection
        if not connection.alive or connection.closing:
            self._waiting.clear()
            return
        for _ in range(_AT_ONCE):
            if not self._waiting or self._is_enough():
                break
            carry_out, size = self._waiting.popleft()
            self._waiting_bytes -= size
            carry_out()
        else:
            connection.wants_output()
        if self._waiting:
            connection.stalled.add(self)
            return
        for link in self._without_credit:
            link.renew_credit()
        self._without_credit.clear()

    def _is_enough(self) -> bool:
        if self.owed + self.given < ENOUGH:
            return False
        # What was written is not told one by one. The sessions know what they still hold, messages included.
        sessions = {lib.pn_link_session(link.link) for link in self._connection.replies}
        self.given = min(self.given, sum(lib.pn_session_outgoing_bytes(session) for session in sessions))
        return self.owed + self.given >= ENOUGH
