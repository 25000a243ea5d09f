"""Nothing is waited for without a bound."""

from __future__ import annotations

import asyncio
from typing import Any

#: How long a connection, a link, a token or a message may take to be answered.
ANSWER_SECONDS = 30.0


class bounded:
    """`asyncio.timeout`, which Python 3.10 does not have."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[Any] | None = None
        self._fired = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        self._fired = True
        assert self._task is not None
        self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        if self._fired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from error
