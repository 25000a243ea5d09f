"""When a syphon that is to run once is done: batch after batch, judged without Spark."""

from __future__ import annotations

import pytest

from pairbus.domain.outcome import HeldCount, QueueSummary
from pairbus.spark.batch_summary import BatchSummary, Once, SyphonError


class Judged:
    """Batches of half a minute each, over one queue."""

    def __init__(self) -> None:
        self.now = 0.0
        self.once = Once(clock=lambda: self.now)
        self._batches = 0

    def batch(self, queue: QueueSummary, before: int | None, after: int | None) -> bool:
        self.now += 30.0
        self._batches += 1
        return self.once.is_done(BatchSummary(self._batches, (queue,), {0: before}, {0: after}, 30.0, 1))


def test_who_goes_on_parking_does_not_keep_it_from_ending() -> None:
    """As many have left as were there at first: whatever came meanwhile is the next syphon's."""
    judged = Judged()
    more = QueueSummary(0, received=30_000, delivered=30_000)
    assert [judged.batch(more, 70_000 + 100 * at, 70_100 + 100 * at) for at in range(3)] == [False, False, True]
    assert judged.once.result() == ()


def test_dead_letters_have_left_the_backlog_too() -> None:
    """And held ones have not: they are listed when it ends."""
    judged = Judged()
    held = (HeldCount("ill", "busy", 5),)
    assert not judged.batch(QueueSummary(0, received=9, delivered=2, dead_lettered=2, held=5, held_for=held), 5, 9)
    assert judged.batch(QueueSummary(0, received=9, delivered=1, held=5, held_for=held), 9, 9)
    assert judged.once.result() == held


def test_fewer_than_were_there_are_not_enough() -> None:
    """Another has locked the rest: when that does not come back, it is an error."""
    judged = Judged()
    assert not judged.batch(QueueSummary(0, received=4, delivered=4, empty=True), 5, 1)
    rest = [judged.batch(QueueSummary(0, empty=True), 1, 1) for _ in range(4)]
    assert rest == [False, False, False, True]
    with pytest.raises(SyphonError, match="1 of 1 messages are out of reach"):
        judged.once.result()


def test_an_error_is_not_made_up_for_by_what_was_moved() -> None:
    """A queue that could not be drained to its end is tried again."""
    judged = Judged()
    assert not judged.batch(QueueSummary(0, received=9, delivered=9, error="lost"), 5, 5)
    assert judged.batch(QueueSummary(0, received=1, delivered=1, empty=True), 5, 0)
