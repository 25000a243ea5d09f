"""`PassState` and the reasons that end a pass, `PassSchedule` and the pauses between passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.drain.pass_state import EndReason, PassSchedule, PassState, Phase

DRAINING = PassState().connected()
ORDERLY = [
    EndReason.STOPPED, EndReason.GOAL_REACHED, EndReason.TOO_MANY_HELD, EndReason.STALLED, EndReason.PRIMARY_LOST,
]  # fmt: skip
AT_ONCE = [reason for reason in EndReason if reason not in ORDERLY]


def test_a_pass_connects_and_then_drains() -> None:
    """A pass that has ended while it was connecting does not begin to drain."""
    assert PassState().phase is Phase.CONNECTING
    assert PassState(Phase.DRAINING) == DRAINING
    ended = PassState().end(EndReason.UNREACHABLE, 1.0, "no route to host")
    assert ended.connected() == ended


@pytest.mark.parametrize("reason", ORDERLY)
def test_an_orderly_reason_lets_messages_in_flight_finish(reason: EndReason) -> None:
    """The pass ends in two steps, and keeps reason and error."""
    ending = DRAINING.end(reason, 7.0, "why")
    assert ending == PassState(Phase.ENDING, reason, "why", 7.0)
    assert ending.finished() == PassState(Phase.FINISHED, reason, "why", 7.0)


@pytest.mark.parametrize("reason", AT_ONCE)
@pytest.mark.parametrize("before", [PassState(), DRAINING], ids=["connecting", "draining"])
def test_any_other_reason_finishes_the_pass(reason: EndReason, before: PassState) -> None:
    """At once, while it connects as while it drains."""
    assert before.end(reason, 7.0, "why") == PassState(Phase.FINISHED, reason, "why", 7.0)


@given(st.lists(st.tuples(st.sampled_from(EndReason), st.sampled_from([None, "one", "two"])), min_size=1))
def test_a_pass_never_goes_back(ends: list[tuple[EndReason, str | None]]) -> None:
    """For any reasons in any order: phases only advance, and the first reason stays unless the journal fails."""
    phases = list(Phase)
    state, first = DRAINING, ends[0][0]
    for at, (reason, error) in enumerate(ends):
        before, state = state, state.end(reason, float(at), error)
        assert phases.index(state.phase) >= phases.index(before.phase)
        assert state.reason in (first, EndReason.JOURNAL_FAILED)
        assert state.ends_since == 0.0
        if not reason.is_orderly:
            assert state.phase is Phase.FINISHED


def test_the_first_error_stays_the_error() -> None:
    """Later errors are consequences, and an end without an error takes the first that follows at once."""
    lost = DRAINING.end(EndReason.STALLED, 1.0, "held").end(EndReason.BACKLOG_LOST, 2.0, "lost")
    assert lost == PassState(Phase.FINISHED, EndReason.STALLED, "held", 1.0)
    stopped = DRAINING.end(EndReason.STOPPED, 1.0).end(EndReason.UNCONFIRMED, 2.0, "silent")
    assert stopped == PassState(Phase.FINISHED, EndReason.STOPPED, "silent", 1.0)


def test_an_orderly_reason_changes_nothing_in_a_pass_that_ends() -> None:
    """A pass that was stopped has no error because much is held back in the end."""
    stopped = DRAINING.end(EndReason.STOPPED, 1.0)
    assert stopped.end(EndReason.TOO_MANY_HELD, 2.0, "held") == stopped
    finished = stopped.finished()
    assert finished.end(EndReason.STALLED, 2.0, "held") == finished


def test_a_journal_that_fails_comes_first() -> None:
    """Nothing may be settled then: the error is the journal's, and the queue is not called empty."""
    failed = DRAINING.end(EndReason.GOAL_REACHED, 1.0).end(EndReason.JOURNAL_FAILED, 2.0, "disk full")
    assert failed == PassState(Phase.FINISHED, EndReason.JOURNAL_FAILED, "disk full", 1.0)
    assert not failed.found_empty
    assert DRAINING.end(EndReason.UNCONFIRMED, 1.0, "silent").end(EndReason.JOURNAL_FAILED, 2.0, "disk full") == (
        PassState(Phase.FINISHED, EndReason.JOURNAL_FAILED, "disk full", 1.0)
    )


@pytest.mark.parametrize("reason", EndReason)
def test_a_queue_is_empty_only_if_the_service_or_the_goal_says_so(reason: EndReason) -> None:
    """No other end says anything of what is left; an error that follows does not change it."""
    expected = reason in (EndReason.EMPTY, EndReason.GOAL_REACHED)
    state = DRAINING.end(reason, 1.0)
    assert state.found_empty is expected
    assert state.end(EndReason.BACKLOG_LOST, 2.0, "lost").found_empty is expected
    assert not DRAINING.found_empty


def test_messages_have_ten_seconds_to_be_sent_at_the_end() -> None:
    """From the beginning of the end; not before it, and not once the pass is finished."""
    ending = DRAINING.end(EndReason.STOPPED, 100.0)
    assert not ending.is_overdue(110.0)
    assert ending.is_overdue(110.1)
    assert not DRAINING.is_overdue(1000.0)
    assert not ending.finished().is_overdue(1000.0)


def test_another_pass_needs_a_journal_and_room() -> None:
    """Too many held messages hide what lies behind them: another pass helps only if this one has moved some."""
    assert not DRAINING.end(EndReason.JOURNAL_FAILED, 1.0, "disk full").allows_another_pass(moved=True)
    crowded = DRAINING.end(EndReason.TOO_MANY_HELD, 1.0, "held")
    assert crowded.allows_another_pass(moved=True)
    assert not crowded.allows_another_pass(moved=False)
    others = [reason for reason in EndReason if reason not in (EndReason.JOURNAL_FAILED, EndReason.TOO_MANY_HELD)]
    assert all(DRAINING.end(reason, 1.0).allows_another_pass(moved=False) for reason in others)


# --- the schedule ----------------------------------------------------------------------------------------------------


class Schedule(PassSchedule):
    """A schedule whose passes move nothing, without an error, unless a test says otherwise."""

    def __call__(
        self, *, moved: bool = False, failed: bool = False, found_empty: bool = False, seconds_locked: float = 0.0
    ) -> float | None:
        return self.pause_after(moved=moved, failed=failed, found_empty=found_empty, seconds_locked=seconds_locked)


@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize(("interval", "pauses"), [(0.5, [1.0, 2.0, None]), (10.0, [20.0, 30.0, None])])
def test_three_passes_that_move_nothing_end_the_drain(
    interval: float, pauses: list[float | None], failed: bool
) -> None:
    """With or without an error; the pause doubles, up to 30 seconds."""
    schedule = Schedule(interval)
    assert [schedule(failed=failed) for _ in range(3)] == pauses


def test_a_pass_that_moves_messages_begins_the_count_anew() -> None:
    """And is followed by the next after the shortest pause, whatever its error was."""
    schedule = Schedule(1.0)
    assert [schedule(failed=True), schedule(failed=True)] == [2.0, 4.0]
    assert schedule(moved=True, failed=True) == 1.0
    assert [schedule(failed=True), schedule(failed=True), schedule(failed=True)] == [2.0, 4.0, None]


def test_locked_messages_are_waited_for() -> None:
    """For any number of passes that move nothing, as long as their locks last; not if passes fail."""
    schedule = Schedule(1.0)
    assert [schedule(seconds_locked=9.0) for _ in range(5)] == [9.0, 9.0, 9.0, 16.0, 30.0]
    schedule = Schedule(1.0)
    assert [schedule(failed=True, seconds_locked=9.0) for _ in range(3)] == [9.0, 9.0, None]


def test_locked_messages_keep_no_pass_waiting_that_has_others_to_move() -> None:
    """Only a queue in which nothing else is left waits for them."""
    schedule = Schedule(1.0)
    assert schedule(moved=True, seconds_locked=9.0) == 1.0
    assert schedule(moved=True, found_empty=True, seconds_locked=9.0) == 9.0
