"""Rows on their way to the journal, committed in groups: while one group is being written, the next one gathers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from pairbus.domain.outcome import Row, Rows
from pairbus.runtime import bounded_call as bounds
from pairbus.runtime.bounded_call import CallThread, deadline

from .in_flight import Moving


class Journal(Protocol):
    """Where rows are made durable."""

    def prepare(self) -> None: ...
    def write(self, rows: Rows) -> None: ...


class Writer:
    """A journal, called by one thread: rows are written in the order that they were decided in. A call that does not
    end in time has failed, and its thread is left behind."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._thread = CallThread("pairbus-journal")

    async def prepare(self) -> None:
        await self._called(self._journal.prepare)

    async def write(self, rows: list[Row]) -> None:
        await self._called(lambda: self._journal.write(Rows.of(rows)))

    async def _called(self, call: Callable[[], None]) -> None:
        seconds = bounds.JOURNAL_SECONDS
        try:
            async with deadline(seconds):
                await self._thread.call(call)
        except asyncio.TimeoutError as error:
            if error.args:
                raise  # one of the storage's own
            raise TimeoutError(f"the journal did not answer within {seconds:g} s") from None

    def end(self) -> None:
        self._thread.close()


class Books:
    """What is to be written of one pass. `on_written` gets the messages whose rows are durable, to be settled."""

    def __init__(
        self,
        writer: Writer,
        on_written: Callable[[list[Moving]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._on_written, self._on_failed = on_written, on_failed
        self._loop = asyncio.get_running_loop()
        self._rows, self._decided = list[Row](), list[Moving]()
        self._writing: asyncio.Task[None] | None = None
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
        self._writing = self._loop.create_task(self._writer.write(rows))
        self._writing.add_done_callback(lambda done: self._committed(done, decided))

    def _committed(self, done: asyncio.Task[None], decided: list[Moving]) -> None:
        self._writing = None
        if done.cancelled():
            self.failed = True
        elif (error := done.exception()) is not None:
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
