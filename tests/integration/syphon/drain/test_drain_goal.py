"""A drain with a goal moves the messages that are there when it begins, and ends while others keep parking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus.domain.envelope import park
from pairbus.syphon import service as service_module
from pairbus.syphon.drain.drain import DrainOptions
from pairbus.syphon.service import Round, Service
from tests.support.backlog import Backlog, InBackground, encoded, numbered
from tests.support.pairing import Pair
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until


@contextmanager
def parking(pair: Pair, backlog: Backlog, destination: str) -> Iterator[Callable[[], int]]:
    """Park messages as fast as possible while the context lasts; yields a function that counts them."""
    ended, parked = threading.Event(), [0]

    def go_on() -> None:
        with RawClient(pair.secondary) as raw:
            raw.put_token(backlog.path())
            link = raw.sender(backlog.path())
            while not ended.wait(0.005):
                raw.send(link, park(encoded("more"), destination, "id-of-park", None))
                parked[0] += 1

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        wait_until(lambda: parked[0] > 3)
        yield lambda: parked[0]
    finally:
        ended.set()
        thread.join(60)


def test_a_drain_with_a_goal_ends(pair: Pair, backlog: Backlog, in_background: Callable[..., InBackground]) -> None:
    """No pass sees the queue empty, but the goal is reached, so that the summary says empty."""
    queue = pair.queue()
    backlog.park(queue, *numbered(100))
    with parking(pair, backlog, queue):
        summary = in_background(lambda: backlog.drain(budget=None, goal=100)).result()
    assert summary.delivered >= 100
    assert (summary.empty, summary.error) == (True, None)
    assert set(pair.bodies(queue)) >= {f"m{number}" for number in range(100)}


def test_held_messages_of_the_goal_do_not_keep_a_drain_going(
    pair: Pair, backlog: Backlog, in_background: Callable[..., InBackground]
) -> None:
    """Each pass moves messages that were parked meanwhile, and none of the goal: that is no reason for another pass."""
    ill, well = pair.queue(), pair.queue()
    backlog.park(ill, *numbered(5))
    backlog.park(well, *numbered(5))
    pair.primary.faults.busy(ill)
    with parking(pair, backlog, well):
        summary = in_background(lambda: backlog.drain(budget=None, goal=10)).result()
    assert summary.delivered >= 5
    assert (summary.held, summary.empty, summary.error) == (5, True, None)


def test_held_messages_of_the_goal_are_tried_again(pair: Pair, backlog: Backlog) -> None:
    """A destination was busy in the first pass: all of the goal is moved."""
    ill, well = pair.queue(), pair.queue()
    backlog.park(ill, *numbered(20))
    backlog.park(well, *numbered(5))
    pair.primary.faults.busy(ill, count=1)
    summary = backlog.drain(budget=60.0, goal=25)
    assert (summary.delivered, summary.held, summary.empty) == (25, 0, True)


def test_a_service_that_runs_once_ends(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The held messages are listed, and all others of the goal were moved."""
    monkeypatch.setattr(service_module, "_LOCKED_PAUSE_SECONDS", 0.1)
    ill, well = pair.queue(), pair.queue()
    backlog.park(ill, *numbered(3))
    backlog.park(well, *numbered(50))
    pair.primary.faults.busy(ill)
    options = DrainOptions(retry_interval=0.05)
    made = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path), options=options)
    done: list[Round] = []
    thread = threading.Thread(target=lambda: done.append(made.once()), daemon=True)
    with parking(pair, backlog, well):
        thread.start()
        thread.join(120)
        assert done, "it still runs"
    assert done[0].is_empty
    assert done[0].errors == ()
    assert [(each.destination, each.count) for each in done[0].held] == [(ill, 3)]
    assert {f"m{number}" for number in range(50)} <= set(pair.bodies(well))
