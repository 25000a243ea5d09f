"""`BacklogPoller`: when the reader queries the secondary, and when it offers a batch."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pairbus.runtime.backoff import Backoff
from pairbus.spark.signals import ReaderNote
from pairbus.spark.source import BacklogPoller
from pairbus.syphon.backlog_monitor import BacklogMonitor, PollSchedule
from tests.support.depth_answers import DepthAnswers, unreachable


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def poller_of(secondary: DepthAnswers, clock: Clock) -> BacklogPoller:
    """A poller with an idle interval of two minutes."""
    monitor = BacklogMonitor(secondary, unreachable)
    return BacklogPoller(monitor, PollSchedule(120.0, Backoff(1.0, 120.0)), clock)


def test_an_empty_backlog_is_queried_once_an_interval(clock: Clock) -> None:
    """An idle hour is thirty queries, however often Spark polls."""
    secondary = DepthAnswers({0: 0, 1: None})
    poller = poller_of(secondary, clock)
    for _ in range(3600):
        assert poller.poll(ReaderNote()) is None
        clock.now += 1
    assert len(secondary.hosts) == 30


@pytest.mark.parametrize("answer", [{0: 0}, ConnectionError("down")], ids=["empty", "no answer"])
def test_a_clock_that_is_set_back_does_not_delay_queries(clock: Clock, answer: Any) -> None:
    """Messages parked meanwhile would wait for as long as the clock was set back."""
    poller = poller_of(DepthAnswers(answer, {0: 5}), clock)
    assert poller.poll(ReaderNote()) is None
    clock.now -= 86_400
    assert poller.poll(ReaderNote()) == {0: 5}


def test_work_is_offered_at_once_and_queried_for_again(clock: Clock) -> None:
    """While there are messages each poll queries."""
    secondary = DepthAnswers({0: 5, 1: 0}, {0: 1, 1: 0}, {0: 0, 1: 0})
    poller = poller_of(secondary, clock)
    assert [poller.poll(ReaderNote()) for _ in range(4)] == [{0: 5, 1: 0}, {0: 1, 1: 0}, None, None]
    assert len(secondary.hosts) == 3


def test_depths_in_a_note_spare_a_query(clock: Clock) -> None:
    """The depths after one batch are those before the next; old ones are not used."""
    secondary = DepthAnswers({0: 9})
    poller = poller_of(secondary, clock)
    assert poller.poll(ReaderNote(1, {0: 3}, queried_at=clock.now - 1)) == {0: 3}
    assert poller.poll(ReaderNote(2, {0: 0}, queried_at=clock.now)) is None
    assert len(secondary.hosts) == 0
    assert poller.poll(ReaderNote(3, {0: 2}, queried_at=clock.now - 60)) == {0: 9}
    assert len(secondary.hosts) == 1


def test_depths_of_a_later_time_are_not_used(clock: Clock) -> None:
    """The clock was set back since, so their age is unknown."""
    poller = poller_of(DepthAnswers({0: 9}), clock)
    assert poller.poll(ReaderNote(1, {0: 3}, queried_at=clock.now + 60)) == {0: 9}


def test_a_note_is_used_once(clock: Clock) -> None:
    """The batch that it led to has changed the depths."""
    secondary = DepthAnswers({0: 9})
    poller = poller_of(secondary, clock)
    note = ReaderNote(1, {0: 3}, queried_at=clock.now)
    assert [poller.poll(note), poller.poll(note)] == [{0: 3}, {0: 9}]


def test_a_note_without_depths_asks_for_a_query(clock: Clock) -> None:
    """Also where the backlog was found empty a moment ago."""
    poller = poller_of(DepthAnswers({0: 0}, {0: 4}), clock)
    assert poller.poll(ReaderNote()) is None
    assert poller.poll(ReaderNote(1)) == {0: 4}


def test_no_batch_is_offered_during_a_pause_or_a_stop(clock: Clock) -> None:
    """A pause ends by itself, also if the clock was set back meanwhile; a stop does not."""
    poller = poller_of(DepthAnswers({0: 9}), clock)
    pause = ReaderNote(1, {0: 9}, queried_at=clock.now, pause_until=clock.now + 4)
    assert poller.poll(pause) is None
    clock.now += 4
    assert poller.poll(pause) == {0: 9}
    assert poller.poll(ReaderNote(2, stopping=True)) is None
    assert poller.poll(ReaderNote(3, pause_until=clock.now + 5000)) == {0: 9}


def test_a_secondary_that_does_not_answer_is_a_warning(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """It is queried again after 1, 2, 4 … seconds, at most two minutes; nothing is raised."""
    secondary = DepthAnswers(OSError("no route"))
    poller = poller_of(secondary, clock)
    queried_at: list[float] = []
    with caplog.at_level(logging.WARNING):
        begun = clock.now
        for _ in range(600):
            before = len(secondary.hosts)
            assert poller.poll(ReaderNote()) is None
            if len(secondary.hosts) > before:
                queried_at.append(clock.now - begun)
            clock.now += 1
    assert queried_at == [0, 1, 3, 7, 15, 31, 63, 127, 247, 367, 487]
    assert caplog.messages[0] == "backlog depth unavailable for contoso: OSError: no route; next attempt in 1 s"
    assert caplog.messages[3].endswith("; next attempt in 8 s")
    secondary.answers = [{0: 1}]
    clock.now += 120
    assert poller.poll(ReaderNote()) == {0: 1}
