"""Rows on their way to the journal, committed in groups: while one group is being written, the next one gathers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..domain.outcome import Row, Rows
from .moving import Moving


class Books:
    """What is to be written of one pass. `on_written` gets the messages whose rows are durable, to be settled."""

    def __init__(
        self,
        write: Callable[[Rows], None],
        writer: ThreadPoolExecutor,
        on_written: Callable[[list[Moving]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._write = write
        self._writer = writer
        self._on_written, self._on_failed = on_written, on_failed
        self._loop = asyncio.get_running_loop()
        self._rows, self._decided = list[Row](), list[Moving]()
        self._writing: asyncio.Future[None] | None = None
        #: Whether the journal could not be written: from then on nothing more is.
        self.failed = False

    def note(self, message: Moving, outcome: str, reason: str | None) -> None:
        """A row about a message."""
        parked_at, now, size = message.parked_at, int(time.time() * 1000), message.size or message.received
        name, count = message.destination, message.delivered_count
        self._rows.append(
            (message.sequence, message.message_id, message.session, name, outcome, reason, parked_at, now, size, count)
        )

    def decide(self, message: Moving, outcome: str, reason: str | None) -> None:
        """A row about a message that is to be settled once the row is durable."""
        self.note(message, outcome, reason)
        self._decided.append(message)

    def commit(self) -> None:
        """Make the rows durable, unless others are being written just now: their end begins the next."""
        if self._writing is not None or self.failed or not self._rows:
            return
        rows, decided = self._rows, self._decided
        self._rows, self._decided = [], []
        self._writing = self._loop.run_in_executor(self._writer, lambda: self._write(Rows.of(rows)))
        self._writing.add_done_callback(lambda done: self._committed(done, decided))

    def _committed(self, done: asyncio.Future[None], decided: list[Moving]) -> None:
        self._writing = None
        if (error := done.exception()) is not None:
            self.failed = True
            self._on_failed(error)
        else:
            self._on_written(decided)

    async def written(self) -> None:
        """Wait until all rows are durable, or cannot be made so."""
        while (self._rows or self._writing is not None) and not self.failed:
            self.commit()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            await asyncio.sleep(0)
