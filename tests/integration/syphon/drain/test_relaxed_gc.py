"""Python's garbage collector in a process that only drains."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pairbus.syphon.drain.relaxed_gc import relaxed_gc
from tests.support.backlog import Backlog, encoded
from tests.support.pairing import Pair


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_is_relaxed_and_then_as_before() -> None:
    """Also when the body of the context raises."""
    gc.set_threshold(700, 11, 12)

    def fail() -> None:
        with relaxed_gc():
            assert gc.get_threshold()[0] == 200_000
            assert gc.isenabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("threshold", [0, 500_000])
def test_a_collector_that_is_off_or_more_relaxed_is_left_alone(threshold: int) -> None:
    """The program has set it so for its own reasons."""
    gc.set_threshold(threshold or 700, 10, 10)
    if not threshold:
        gc.disable()
    try:
        with relaxed_gc():
            assert gc.get_threshold() == (threshold or 700, 10, 10)
            assert gc.isenabled() == bool(threshold)
    finally:
        gc.enable()


def test_a_drain_relaxes_the_collector(pair: Pair, backlog: Backlog) -> None:
    """While a queue is drained, and not after it."""
    gc.set_threshold(700, 10, 10)
    backlog.park(pair.queue(), encoded("one"))
    seen: list[int] = []

    def stop() -> bool:
        seen.append(gc.get_threshold()[0])
        return False

    assert backlog.drain(stop=stop).delivered == 1
    assert set(seen) == {200_000}
    assert gc.get_threshold() == (700, 10, 10)
