"""Whether a backlog queue is empty: asked once nothing has moved for a moment, and what the service says to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairbus.syphon.amqp.link import Receiver

#: How long nothing must move before the service is asked, and how long it may take to say.
_QUIET_SECONDS = 0.02
_ANSWER_SECONDS = 5.0


class Silence:
    """How long nothing has moved in a pass, and whether the service was asked what that means."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
        self._loop = loop
        self._look = look
        self._since = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        #: When the service was asked; None while no answer is due.
        self.asked_at: float | None = None

    def broken(self, now: float) -> None:
        """Something moves."""
        self._since = now

    def ask(self, receiver: Receiver, now: float) -> None:
        """Take back what credit there is; the service says then that it has sent all that it had."""
        self.asked_at = now
        receiver.drain()

    def ask_in_time(self, receiver: Receiver, now: float) -> None:
        """Ask, if it was quiet for long enough; else see to it that somebody looks when it is."""
        if now >= self._since + _QUIET_SECONDS:
            self.ask(receiver, now)
        elif self._timer is None:
            self._timer = self._loop.call_at(self._since + _QUIET_SECONDS, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        self._look()

    def is_overdue(self, now: float) -> bool:
        """Whether the answer does not come, though its socket is read: it is not while something moves."""
        return self.asked_at is not None and now - max(self.asked_at, self._since) > _ANSWER_SECONDS

    def was_asked_long_ago(self, now: float) -> bool:
        """The same for who does not care whether anything has moved since."""
        return self.asked_at is not None and now - self.asked_at > _ANSWER_SECONDS

    def answered(self) -> bool:
        """The service has said something; whether it was asked."""
        asked, self.asked_at = self.asked_at is not None, None
        return asked

    def end(self) -> None:
        """Nobody is to look any more."""
        if self._timer is not None:
            self._timer.cancel()
