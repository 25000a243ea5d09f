"""Summaries of batches, and the rule that ends a run-once syphon; without Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pairbus.domain.outcome import HeldCount, QueueSummary
from pairbus.spark.batch_summary import BatchSummary, RunOnceTracker, SyphonError


class Batches:
    """Batches of half a minute each, and a tracker that is given them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tracker = RunOnceTracker(clock=lambda: self.now)
        self._batches = 0

    def batch(self, *queues: QueueSummary, before: Mapping[int, int | None], after: Mapping[int, int | None]) -> bool:
        self.now += 30.0
        self._batches += 1
        return self.tracker.is_done(BatchSummary(self._batches, queues, before, after, 30.0, 1))

    def one(self, queue: QueueSummary, before: int | None, after: int | None) -> bool:
        return self.batch(queue, before={0: before}, after={0: after})


@pytest.fixture
def batches() -> Batches:
    return Batches()


def test_empty_queues_are_drained(batches: Batches) -> None:
    """Held messages may be left; the result counts them by destination and reason."""
    held = QueueSummary(1, received=3, held=3, empty=True, held_for=(HeldCount("orders", "busy", 3),))
    more = QueueSummary(0, received=2, held=2, empty=True, held_for=(HeldCount("orders", "busy", 2),))
    assert batches.batch(more, held, before={}, after={0: 2, 1: 3})
    assert batches.tracker.result() == (HeldCount("orders", "busy", 5),)


def test_a_queue_with_more_than_held_messages_is_not_drained(batches: Batches) -> None:
    held = (HeldCount("orders", "busy", 2),)
    assert not batches.one(QueueSummary(0, received=2, held=2, empty=True, held_for=held), None, 3)


def test_a_batch_that_used_up_its_budget_is_not_the_last(batches: Batches) -> None:
    assert not batches.one(QueueSummary(0, received=5, delivered=5), None, 10)
    assert batches.one(QueueSummary(0, received=10, delivered=10, empty=True), None, 0)


def test_errors_that_persist_end_the_run(batches: Batches) -> None:
    """An error is tried again once; after a second batch without progress it is raised, with its queue."""
    failed = QueueSummary(0, error="the primary is not there")
    assert not batches.one(failed, None, 10)
    assert batches.one(failed, None, 10)
    with pytest.raises(SyphonError, match="queue 0: the primary is not there"):
        batches.tracker.result()


def test_progress_gives_errors_another_chance(batches: Batches) -> None:
    """Two batches in a row without any are needed to give up."""
    failed = QueueSummary(0, error="lost")
    progress = QueueSummary(0, received=1, delivered=1, error="lost")
    assert [batches.one(each, None, 10) for each in (failed, progress, failed, failed)] == [False, False, False, True]


def test_messages_that_another_has_locked_are_waited_for(batches: Batches) -> None:
    """A killed run leaves its messages locked for a minute: an error only if it takes much longer."""
    nothing = QueueSummary(0, empty=True)
    assert [batches.one(nothing, None, 10) for _ in range(4)] == [False, False, False, True]
    with pytest.raises(SyphonError, match="10 of 10 messages are out of reach"):
        batches.tracker.result()


def test_a_queue_that_was_emptied_twice_is_drained(batches: Batches) -> None:
    """Senders that go on parking must not keep the run from ending."""
    emptied = QueueSummary(0, received=5, delivered=5, empty=True)
    assert not batches.one(emptied, None, 2)
    assert batches.one(emptied, None, 2)
    assert batches.tracker.result() == ()


def test_a_queue_that_as_many_have_left_as_it_held_at_first_is_drained(batches: Batches) -> None:
    """Messages that were parked meanwhile are for the next syphon."""
    more = QueueSummary(0, received=30_000, delivered=30_000)
    assert [batches.one(more, 70_000 + 100 * at, 70_100 + 100 * at) for at in range(3)] == [False, False, True]
    assert batches.tracker.result() == ()


def test_dead_letters_have_left_the_backlog(batches: Batches) -> None:
    """And held messages have not: the result has them."""
    held = (HeldCount("ill", "busy", 5),)
    assert not batches.one(QueueSummary(0, received=9, delivered=2, dead_lettered=2, held=5, held_for=held), 5, 9)
    assert batches.one(QueueSummary(0, received=9, delivered=1, held=5, held_for=held), 9, 9)
    assert batches.tracker.result() == held


def test_fewer_than_it_held_at_first_are_not_enough(batches: Batches) -> None:
    """Another receiver has locked the rest: an error if it does not come back."""
    assert not batches.one(QueueSummary(0, received=4, delivered=4, empty=True), 5, 1)
    rest = [batches.one(QueueSummary(0, empty=True), 1, 1) for _ in range(4)]
    assert rest == [False, False, False, True]
    with pytest.raises(SyphonError, match="1 of 1 messages are out of reach"):
        batches.tracker.result()


def test_a_queue_with_an_error_is_not_drained(batches: Batches) -> None:
    """Whatever was moved."""
    assert not batches.one(QueueSummary(0, received=9, delivered=9, error="lost"), 5, 5)
    assert batches.one(QueueSummary(0, received=1, delivered=1, empty=True), 5, 0)


def test_without_a_depth_the_drain_decides(batches: Batches) -> None:
    unknown: Mapping[int, int | None] = {0: None, 1: None}
    empty, left = QueueSummary(0, empty=True), QueueSummary(1, delivered=1)
    assert not batches.batch(empty, left, before={}, after=unknown)
    assert batches.batch(empty, QueueSummary(1, empty=True), before={}, after=unknown)


def test_another_syphon_may_end_it(batches: Batches) -> None:
    """Nothing is left then, not even the messages that were held."""
    held = (HeldCount("ill", "busy", 5),)
    batches.one(QueueSummary(0, received=5, held=5, held_for=held), 9, 9)
    batches.tracker.found_empty()
    assert (batches.tracker.is_over, batches.tracker.result()) == (True, ())


def test_giving_up_is_an_error(batches: Batches) -> None:
    batches.tracker.give_up("no batch for 120 s")
    with pytest.raises(SyphonError, match="could not be emptied: no batch for 120 s"):
        batches.tracker.result()


def test_a_summary_is_one_line() -> None:
    """Counts, the depth that is left, the cost, and every queue's error."""
    queues = (QueueSummary(0, 9, 8, 1, bytes=100, operations=20), QueueSummary(1, error="gone"))
    assert str(BatchSummary(0, queues, {}, {0: 0, 1: 4}, 1.0, 1)) == (
        "batch 0: 8 delivered, 1 dead-lettered, 0 held, 0 in-doubt; 4 left in the backlog; 100 bytes, "
        "21 billable operations, 1.0 s; queue 1: gone"
    )
    unknown = BatchSummary(0, (QueueSummary(0),), {}, {0: 3, 1: None}, 1.0, 1)
    assert "; an unknown number left in the backlog;" in str(unknown)
