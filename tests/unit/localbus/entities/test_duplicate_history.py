"""The duplicate history: ids are known for the length of the window."""

from __future__ import annotations

from pairbus.localbus.entities.duplicates import DuplicateHistory


def test_an_id_is_known_for_the_window() -> None:
    """At the end of the window the id is unknown again."""
    history = DuplicateHistory()
    assert not history.contains("a", 0.0, 10.0)
    history.record("a", 0.0)
    assert history.contains("a", 9.999, 10.0)
    assert not history.contains("b", 9.999, 10.0)
    assert not history.contains("a", 10.0, 10.0)
    assert len(history) == 0


def test_a_new_record_restarts_the_window() -> None:
    """An id that is recorded again is known from then on, and moves behind the others."""
    history = DuplicateHistory()
    history.record("a", 0.0)
    history.record("b", 1.0)
    history.record("a", 5.0)
    assert [id for id, _ in history.items()] == ["b", "a"]
    assert not history.contains("b", 11.0, 10.0)
    assert history.contains("a", 14.0, 10.0)


def test_an_expired_id_behind_a_newer_one_is_unknown() -> None:
    """The clock was set back: an id may lie behind one that expires later, and is still not known for too long."""
    history = DuplicateHistory()
    history.record("later", 100.0)
    history.record("earlier", 50.0)
    assert not history.contains("earlier", 61.0, 10.0)
    assert history.contains("later", 61.0, 10.0)
    history.record("earlier", 61.0)
    assert history.contains("earlier", 62.0, 10.0)


def test_a_shorter_window_drops_ids() -> None:
    """The window is that of the queue's current settings."""
    history = DuplicateHistory()
    history.record("a", 0.0)
    assert history.contains("a", 50.0, 60.0)
    assert not history.contains("a", 50.0, 20.0)
