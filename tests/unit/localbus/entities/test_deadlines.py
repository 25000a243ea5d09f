"""Deadlines: in order of time, stale ones skipped and finally dropped."""

from __future__ import annotations

from pairbus.localbus.entities.deadlines import Deadlines


def test_due_keys_come_in_order_of_time() -> None:
    """A key is due at its time, once, and not before."""
    deadlines = Deadlines(lambda when, key: True)
    for when, key in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        deadlines.add(when, key)
    assert deadlines.next() == 1.0
    assert list(deadlines.due(0.999)) == []
    assert list(deadlines.due(2.0)) == ["a", "b"]
    assert list(deadlines.due(2.0)) == []
    assert deadlines.next() == 3.0


def test_stale_keys_are_skipped() -> None:
    """A key whose deadline has changed is due at the current one only."""
    current = {"a": 5.0, "b": 2.0}
    deadlines = Deadlines(lambda when, key: current.get(key) == when)
    for when, key in ((1.0, "a"), (2.0, "b"), (3.0, "gone"), (5.0, "a")):
        deadlines.add(when, key)
    assert list(deadlines.due(4.0)) == ["b"]
    assert list(deadlines.due(5.0)) == ["a"]
    assert deadlines.next() == float("inf")


def test_stale_entries_do_not_accumulate() -> None:
    """A lock that is renewed a hundred thousand times takes the memory of a few thousand entries."""
    current = {"a": 0.0}
    deadlines = Deadlines(lambda when, key: current[key] == when)
    for number in range(100_000):
        current["a"] = float(number)
        deadlines.add(float(number), "a")
    assert len(deadlines) < 2_000
    assert list(deadlines.due(1e9)) == ["a"]


def test_current_entries_are_all_kept() -> None:
    """Beyond the limit at which stale entries are dropped no current one is lost."""
    deadlines = Deadlines(lambda when, key: True)
    for number in range(5_000):
        deadlines.add(float(number), number)
    assert list(deadlines.due(1e9)) == list(range(5_000))
