"""The pause between attempts."""

from __future__ import annotations

import pytest

from pairbus.runtime.backoff import Backoff


@pytest.mark.parametrize(("failures", "pause"), [(0, 0.5), (1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (10_000, 30.0)])
def test_each_failure_doubles_the_pause_up_to_the_longest(failures: int, pause: float) -> None:
    """A first pause of 0.5 s doubles to 30 s, and stays there however often the attempt fails."""
    assert Backoff(first=0.5, longest=30.0).pause(failures) == pause


def test_a_first_pause_beyond_the_longest_is_cut() -> None:
    """A longest pause holds for the first attempt, too."""
    assert Backoff(first=60.0, longest=30.0).pause(0) == 30.0
