"""`Round`: the result of one round of a syphon without Spark, and of several."""

from __future__ import annotations

from pairbus.domain.outcome import HeldCount, QueueSummary
from pairbus.syphon.service import Round


def test_messages_that_left_the_backlog_have_moved() -> None:
    """Delivered or dead-lettered; held messages have not."""
    done = Round((QueueSummary(0, delivered=3, held=9), QueueSummary(1, dead_lettered=2)))
    assert done.moved == 5


def test_a_round_is_empty_if_every_queue_is() -> None:
    assert Round((QueueSummary(0, empty=True), QueueSummary(1, empty=True))).is_empty
    assert not Round((QueueSummary(0, empty=True), QueueSummary(1))).is_empty


def test_errors_name_their_queues() -> None:
    assert Round((QueueSummary(0), QueueSummary(3, error="lost"))).errors == ("queue 3: lost",)


def test_a_queue_with_an_error_is_not_empty() -> None:
    """Also where a receiver found nothing; the others stay as they were."""
    done = Round((QueueSummary(0, empty=True), QueueSummary(1, empty=True)), missing=(2,)).with_errors({1: "locked"})
    assert done.queues == (QueueSummary(0, empty=True), QueueSummary(1, empty=False, error="locked"))
    assert done.missing == (2,)


def test_two_rounds_are_added_up() -> None:
    """Counts are summed up; the state and the held messages are those of the later round."""
    first = QueueSummary(
        0, received=5, delivered=2, dead_lettered=1, held=2, in_doubt=1, bytes=10, operations=7, seconds=1.5
    )
    held = (HeldCount("orders", "busy", 1),)
    second = QueueSummary(
        0, received=3, delivered=1, dead_lettered=1, held=1, in_doubt=1, bytes=5, operations=4, seconds=0.5,
        empty=True, held_for=held, error="late",
    )  # fmt: skip
    new = QueueSummary(1, received=1)
    done = Round((first,)).followed_by(Round((second, new), left_out={4: 2}))
    assert done.queues == (
        QueueSummary(
            0, received=8, delivered=3, dead_lettered=2, held=1, in_doubt=2, bytes=15, operations=11, seconds=2.0,
            empty=True, held_for=held, error="late",
        ),
        new,
    )  # fmt: skip
    assert done.left_out == {4: 2}
    assert done.held == held


def test_its_text_has_the_counts_that_are_not_zero() -> None:
    done = Round((QueueSummary(0, delivered=1200, seconds=1.0), QueueSummary(1, dead_lettered=1, seconds=2.0)))
    assert str(done) == "1,200 delivered, 1 dead lettered in 2.0 s"
    assert str(Round(())) == "nothing was moved in 0.0 s"
