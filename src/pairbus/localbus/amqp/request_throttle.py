"""A limit on one client's management requests: they wait until the client reads, and no reply is held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .engine import lib

if TYPE_CHECKING:
    from .connection import AmqpConnection
    from .request_nodes import RequestLink

#: No request is carried out while this many bytes of replies are unread. The last reply may be of any size.
MAX_REPLY_BYTES = 4 * 1024 * 1024
#: Requests that may wait, in bytes; each counts with a little more than its own.
_MAX_WAITING_BYTES = 16 * 1024 * 1024
_REQUEST_OVERHEAD_BYTES = 500
#: Waiting requests that are carried out before other clients have their turn.
_REQUESTS_PER_TURN = 50


class RequestThrottle:
    """The waiting requests of one connection, carried out in order, as fast as the client reads the replies."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._waiting_bytes = 0
        self._without_credit: set[RequestLink] = set()
        #: Bytes of replies that wait for a commit or a fault's delay, and (an upper bound) that Proton still holds.
        self.pending_bytes = self.buffered_bytes = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def submit(self, carry_out: Callable[[], None], size: int) -> None:
        """Carry out a request of `size` bytes, now or when its turn comes."""
        if not self._waiting and not self._is_full():
            carry_out()
            return
        self._waiting.append((carry_out, size + _REQUEST_OVERHEAD_BYTES))
        self._waiting_bytes += size + _REQUEST_OVERHEAD_BYTES
        self._connection.stalled.add(self)
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._connection.close_over_limit("Too many requests at once, whose answers are not read.")

    def defer_credit(self, link: RequestLink) -> None:
        """Renew a link's credit only when no request waits any more."""
        self._without_credit.add(link)

    def on_flow(self) -> None:
        """Carry out waiting requests: the client has read, or has sent a flow."""
        connection = self._connection
        if not connection.alive or connection.closing:
            self._waiting.clear()
            return
        for _ in range(_REQUESTS_PER_TURN):
            if not self._waiting or self._is_full():
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

    def _is_full(self) -> bool:
        if self.pending_bytes + self.buffered_bytes < MAX_REPLY_BYTES:
            return False
        # Proton does not report each reply that it has written, only the bytes that each session still holds.
        sessions = {lib.pn_link_session(link.link) for link in self._connection.reply_links}
        held = sum(lib.pn_session_outgoing_bytes(session) for session in sessions)
        self.buffered_bytes = min(self.buffered_bytes, held)
        return self.pending_bytes + self.buffered_bytes >= MAX_REPLY_BYTES
