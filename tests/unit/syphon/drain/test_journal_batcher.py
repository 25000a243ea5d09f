"""`JournalBatcher`: rows are written in batches, and messages are settled only after their rows are durable."""

from __future__ import annotations

import asyncio
from typing import Any

from pairbus.domain.outcome import Row
from pairbus.syphon.drain.in_flight import InFlightMessage
from pairbus.syphon.drain.journal_batcher import JournalBatcher


class Writer:
    """A journal whose first writes fail with the errors given."""

    def __init__(self, *errors: OSError) -> None:
        self._errors = list(errors)
        self.batches: list[int] = []

    async def write(self, rows: list[Row]) -> None:
        self.batches.append(len(rows))
        await asyncio.sleep(0)
        if self._errors:
            raise self._errors.pop(0)


class Owner:
    """A pass, as a batcher sees it."""

    def __init__(self, writer: Any) -> None:
        self.settled: list[InFlightMessage] = []
        self.failures: list[BaseException] = []
        self.batcher = JournalBatcher(writer, self.settled.extend, self.failures.append)

    def decide(self) -> InFlightMessage:
        message = InFlightMessage(None, 10)
        self.batcher.add_decided(message, "delivered", None)
        return message


async def test_the_rows_that_gather_during_a_write_are_the_next_batch() -> None:
    """Each message is settled after the write of its own row."""
    writer = Writer()
    owner = Owner(writer)
    first = owner.decide()
    owner.batcher.commit()
    second, third = owner.decide(), owner.decide()
    owner.batcher.commit()
    assert owner.settled == []
    await owner.batcher.flush()
    assert writer.batches == [1, 2]
    assert owner.settled == [first, second, third]


async def test_nothing_is_written_after_a_write_that_failed() -> None:
    """The pass ends: a message that is decided later is not settled, and the error is reported once."""
    error = OSError(28, "No space left on device")
    writer = Writer(error)
    owner = Owner(writer)
    owner.decide()
    await owner.batcher.flush()
    owner.decide()
    owner.batcher.commit()
    await owner.batcher.flush()
    assert writer.batches == [1]
    assert owner.failures == [error]
    assert owner.settled == []
