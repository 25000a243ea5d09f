"""`DrainGoal`, the messages that a drain is to move, and `CompletionTracker`, the rule that ends a run-once syphon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.domain.outcome import QueueSummary
from pairbus.syphon.drain.completion import OUT_OF_REACH_SECONDS, CompletionTracker, DrainGoal

# --- the goal of one drain -------------------------------------------------------------------------------------------


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 5))
def test_the_goal_is_as_many_messages_as_were_there(count: int, more: int, first: int) -> None:
    """It is reached with the last of them, in each pass; messages behind it do not keep it open."""
    goal = DrainGoal(count)
    numbers = range(first, first + count + more)
    for _ in range(2):  # two passes
        assert [goal.received(number) for number in numbers] == [at >= count - 1 for at in range(count + more)]
    assert not goal.pass_ended([*numbers])
    assert goal.pass_ended([*numbers])
    assert goal.pass_ended(numbers[count:])


def test_a_message_that_is_received_again_counts_once() -> None:
    """Given back and received again in the same pass, it brings the goal no nearer."""
    goal = DrainGoal(3)
    assert [goal.received(number) for number in (7, 8, 7, 8, 7, 9, 7)] == [False] * 5 + [True, False]


def test_a_goal_is_open_while_other_messages_of_it_are_held_back_than_before() -> None:
    """The same messages held back twice end it; fewer of them are progress."""
    goal = DrainGoal(3)
    for number in (1, 2, 3):
        goal.received(number)
    assert not goal.pass_ended([1, 2])
    assert not goal.pass_ended([2])
    assert goal.pass_ended([2, 4])


# --- the end of a run-once syphon ------------------------------------------------------------------------------------


class Rounds:
    """A tracker whose rounds take `seconds` each by a clock of the test; queue 0 unless a round has others."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.now = 1000.0
        self.tracker = CompletionTracker(lambda: self.now)
        self._seconds = seconds

    def __call__(self, *queues: QueueSummary, before: int | None = None, after: int | None = 0) -> bool:
        self.now += self._seconds
        indexes = [queue.queue_index for queue in queues]
        return self.tracker.observe(queues, dict.fromkeys(indexes, before), dict.fromkeys(indexes, after))

    @property
    def unfinished(self) -> dict[int, str]:
        return self.tracker.unfinished


def test_a_queue_that_was_seen_empty_is_finished() -> None:
    """And one that holds no more than is held back; the run has not given up."""
    rounds = Rounds()
    assert rounds(QueueSummary(0, received=2, held=2, empty=True), before=2, after=2)
    assert (rounds.unfinished, rounds.tracker.has_given_up) == ({}, False)


def test_every_queue_must_be_finished() -> None:
    """The reasons name those that are not."""
    rounds = Rounds()
    assert not rounds(QueueSummary(0, empty=True), QueueSummary(3, received=1, delivered=1), after=0)
    assert rounds.unfinished == {3: "it was not seen empty"}


def test_a_depth_above_the_held_messages_is_not_empty() -> None:
    """A receiver that finds nothing does not decide it: others may have messages locked."""
    rounds = Rounds()
    assert not rounds(QueueSummary(0, received=2, held=2, empty=True), after=3)
    assert rounds.unfinished == {0: "1 of 3 messages are out of reach; another receiver may have locked them"}


def test_a_queue_that_was_not_seen_empty_is_drained_again() -> None:
    """Its budget was over: a count of no messages does not replace having looked."""
    rounds = Rounds()
    assert not rounds(QueueSummary(0, received=5, delivered=5), after=0)


def test_as_many_messages_as_were_there_end_it() -> None:
    """Delivered or dead-lettered, over all rounds; messages that are parked meanwhile do not count, nor held ones."""
    rounds = Rounds()
    assert not rounds(QueueSummary(0, received=9, delivered=2, dead_lettered=1, held=5), before=5, after=9)
    assert not rounds(QueueSummary(0, received=9, delivered=1, held=5), before=90, after=90)
    assert rounds(QueueSummary(0, received=9, dead_lettered=1, held=5), before=90, after=90)
    assert not rounds.tracker.has_given_up


def test_a_queue_that_held_nothing_at_first_is_not_finished_by_that() -> None:
    """No message has left it, and no message had to: that says nothing of the one that is there now."""
    rounds = Rounds()
    assert not rounds(QueueSummary(0, empty=True), before=0, after=1)


def test_a_queue_that_was_emptied_twice_is_finished() -> None:
    """Others keep parking into it; a round that received nothing has emptied nothing."""
    rounds = Rounds()
    emptied = QueueSummary(0, received=5, delivered=5, empty=True)
    assert not rounds(QueueSummary(0, empty=True), after=2)
    assert not rounds(emptied, after=2)
    assert not rounds(QueueSummary(0, empty=True), after=2)
    assert rounds(emptied, after=2)


def test_a_round_with_an_error_has_emptied_nothing() -> None:
    """Nor is its queue finished by what it moved."""
    rounds = Rounds()
    failed = QueueSummary(0, received=5, delivered=5, empty=True, error="lost")
    for _ in range(3):
        assert not rounds(failed, before=5, after=2)
    assert rounds.unfinished == {0: "lost"}
    assert not rounds(QueueSummary(1, received=1, empty=True), after=2)


def test_two_failed_rounds_in_a_row_that_moved_nothing_end_it() -> None:
    """A round that moved something begins the count anew, whatever its errors."""
    rounds = Rounds()
    failed, moved = QueueSummary(0, error="lost"), QueueSummary(0, delivered=1, error="lost")
    assert [rounds(each, after=9) for each in (failed, moved, failed, failed)] == [False, False, False, True]
    assert rounds.tracker.has_given_up
    assert rounds.unfinished == {0: "lost"}


def test_messages_out_of_reach_are_waited_for() -> None:
    """For as long as a killed receiver's locks may last since a message moved last; then the run gives up."""
    rounds = Rounds(seconds=OUT_OF_REACH_SECONDS / 3)
    nothing = QueueSummary(0, empty=True)
    assert [rounds(nothing, after=4) for _ in range(3)] == [False] * 3
    assert not rounds(QueueSummary(0, received=1, delivered=1, empty=True), after=4)
    assert [rounds(nothing, after=3) for _ in range(4)] == [False, False, False, True]
    assert rounds.tracker.has_given_up
    assert rounds.unfinished == {0: "3 of 3 messages are out of reach; another receiver may have locked them"}


def test_an_error_does_not_count_as_out_of_reach() -> None:
    """A failing round says nothing of locks, however late it is: it is tried once more."""
    rounds = Rounds(seconds=2 * OUT_OF_REACH_SECONDS)
    assert not rounds(QueueSummary(0, error="lost"), after=4)


def test_an_unknown_depth_leaves_it_to_the_drain() -> None:
    """A queue that was seen empty is finished; one that was not has a reason that says so."""
    rounds = Rounds()
    assert not rounds(QueueSummary(0, empty=True), QueueSummary(1, delivered=1), after=None)
    assert rounds.unfinished == {1: "the number of messages left is unknown: the secondary did not answer"}
    assert rounds(QueueSummary(0, empty=True), QueueSummary(1, empty=True), after=None)


def test_a_queue_whose_depth_was_not_asked_for_is_finished() -> None:
    """It was deleted, or is another syphon's."""
    assert CompletionTracker(lambda: 0.0).observe([QueueSummary(7, delivered=1)], {}, {})


def test_held_messages_alone_do_not_empty_a_queue() -> None:
    """They are received again in every round, while another receiver may have the rest locked."""
    rounds = Rounds(seconds=1.0)
    held = QueueSummary(0, received=1, held=1, empty=True)
    assert [rounds(held, before=2, after=2) for _ in range(5)] == [False] * 5


def test_others_messages_do_not_stand_for_those_that_were_there() -> None:
    """`by_count=False`: as many have left as were there, but five of them were parked since, and five are locked."""
    moved = QueueSummary(0, received=10, delivered=10, empty=True)
    assert CompletionTracker().observe([moved], {0: 10}, {0: 5})
    tracker = CompletionTracker(by_count=False, emptied_enough=4)
    assert [tracker.observe([moved], {0: 10}, {0: 5}) for _ in range(4)] == [False, False, False, True]


def test_a_finished_queue_that_is_parked_into_keeps_no_other_waiting() -> None:
    """Queue 1 is given up in time, though something moves in queue 0 in every round."""
    rounds = Rounds(seconds=OUT_OF_REACH_SECONDS / 3)
    busy, locked = QueueSummary(0, received=1, delivered=1, empty=True), QueueSummary(1, empty=True)
    ended = [rounds.tracker.observe([busy, locked], {0: 1, 1: 3}, {0: 0, 1: 3})]
    for _ in range(4):
        rounds.now += OUT_OF_REACH_SECONDS / 3
        ended.append(rounds.tracker.observe([busy, locked], {0: 1, 1: 3}, {0: 0, 1: 3}))
    assert ended == [False, False, False, False, True]
    assert list(rounds.unfinished) == [1]
