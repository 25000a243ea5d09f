"""Rows on their way to the journal: while one batch is being written, the next one gathers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from pairbus.domain.outcome import Row, Rows
from pairbus.runtime import bounded_call
from pairbus.runtime.bounded_call import CallThread, deadline

from .in_flight import InFlightMessage


class JournalPort(Protocol):
    """A journal as a drain uses it: `write` returns once the rows are durable."""

    def prepare(self) -> None: ...
    def write(self, rows: Rows) -> None: ...


class JournalWriter:
    """A journal, called from one thread; a call that exceeds its deadline has failed, and the thread is left behind."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal
        self._thread = CallThread("pairbus-journal")

    async def prepare(self) -> None:
        await self._called(self._journal.prepare)

    async def write(self, rows: list[Row]) -> None:
        await self._called(lambda: self._journal.write(Rows.of(rows)))

    async def _called(self, call: Callable[[], None]) -> None:
        seconds = bounded_call.JOURNAL_SECONDS
        try:
            async with deadline(seconds):
                await self._thread.call(call)
        except asyncio.TimeoutError as error:
            if error.args:
                raise  # one of the storage's own
            raise TimeoutError(f"the journal did not answer within {seconds:g} s") from None

    def end(self) -> None:
        self._thread.close()


class JournalBatcher:
    """The rows of one pass, written in batches; `on_failed` gets the error after which nothing more is written."""

    def __init__(
        self,
        writer: JournalWriter,
        on_written: Callable[[list[InFlightMessage]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._on_written, self._on_failed = on_written, on_failed
        self._loop = asyncio.get_running_loop()
        self._rows, self._to_settle = list[Row](), list[InFlightMessage]()
        self._writing: asyncio.Task[None] | None = None
        #: True once a batch could not be written.
        self.failed = False

    def add_row(self, message: InFlightMessage, outcome: str, reason: str | None) -> None:
        """Add a row about a message that stays in the backlog."""
        parked_at, now, size = message.parked_at, int(time.time() * 1000), message.size or message.received_size
        name, count = message.destination, message.delivery_count
        self._rows.append(
            (message.sequence, message.message_id, message.session, name, outcome, reason, parked_at, now, size, count)
        )

    def add_decided(self, message: InFlightMessage, outcome: str, reason: str | None) -> None:
        """Add a row about a message that is to be settled once the row is durable."""
        self.add_row(message, outcome, reason)
        self._to_settle.append(message)

    def commit(self) -> None:
        """Start to write the rows, unless a batch is being written: the next one starts when it ends."""
        if self._writing is not None or self.failed or not self._rows:
            return
        rows, to_settle = self._rows, self._to_settle
        self._rows, self._to_settle = [], []
        self._writing = self._loop.create_task(self._writer.write(rows))
        self._writing.add_done_callback(lambda done: self._committed(done, to_settle))

    def _committed(self, done: asyncio.Task[None], to_settle: list[InFlightMessage]) -> None:
        self._writing = None
        if done.cancelled():
            self.failed = True
        elif (error := done.exception()) is not None:
            self.failed = True
            self._on_failed(error)
        else:
            self._on_written(to_settle)

    async def flush(self) -> None:
        """Wait until all rows are durable, or cannot be written."""
        while (self._rows or self._writing is not None) and not self.failed:
            self.commit()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            await asyncio.sleep(0)
