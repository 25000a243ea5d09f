"""How much may be under way: pure parts, by their laws, with a clock that a test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.drain.flow_control import FIRST, LockClock, Pace, Rate, Window
from pairbus.syphon.drain.lock_tracking import Owed

# --- to a destination ------------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.lists(st.one_of(st.integers(1, 600), st.just("refused"))))
def test_a_pace_stays_between_one_and_its_most(most: int, story: list[int | str]) -> None:
    """Whatever happens; taking never makes it slower, and a refusal never faster."""
    pace = Pace(most)
    assert pace.limit == min(FIRST, most)
    for event in story:
        before = pace.limit
        if isinstance(event, int):
            pace.accepted(event)
            assert before <= pace.limit <= 4 * before
        else:
            pace.refused()
            assert pace.limit <= before
        assert 1 <= pace.limit <= most


@given(st.integers(1, 100_000))
def test_a_pace_comes_back_to_its_most(most: int) -> None:
    """After any refusals, once the destination takes messages again."""
    pace = Pace(most)
    for _ in range(20):
        pace.refused()
    for _ in range(40 * most):
        pace.accepted(pace.limit)
        if pace.limit == most:
            break
    assert pace.limit == most


@given(st.floats(20, 20_000))
def test_a_pace_asks_for_no_more_than_is_answered_in_time(per_second: float) -> None:
    """However slow a destination, or the line to it, is: what is in flight to it is answered before it is given up,
    which takes 15 seconds, and sent once more. One that is quick gets all there may be."""
    pace = Pace(32_000)
    for _ in range(20):
        seconds = pace.limit / per_second
        assert seconds < 15.0
        pace.accepted(pace.limit, seconds)
    assert pace.limit == 32_000 or pace.limit * 4 / per_second > 12.0


@given(st.integers(1, 2**21))
def test_a_pace_counts_large_messages_as_several(size: int) -> None:
    """Until it is seen how fast they are taken a megabyte and one message are in flight, however large they are; and
    those that are promptly taken bring it to its most."""
    pace = Pace(32_000)
    count = 0
    while pace.room(count, count * size) > 0:
        count += 1
    assert 1 <= count <= FIRST
    assert (count - 1) * size < 2**20
    assert count == FIRST or count * size >= 2**20
    for _ in range(100_000):
        pace.accepted(1, 0.1, size)
    assert pace.limit == 32_000
    assert pace.room(31_999, 31_999 * size) == 1


# --- a second --------------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 1e5), st.lists(st.tuples(st.floats(0, 2), st.integers(0, 10_000)), max_size=60))
def test_a_rate_is_never_exceeded(per_second: float, asked: list[tuple[float, int]]) -> None:
    """From the beginning on no more is given than one and what the rate allows; after a pause, no more at once than a
    tenth of a second's worth and one."""
    rate, now, given = Rate(per_second, 0.0), 0.0, 0
    for later, wanted in asked:
        now += later
        got = rate.take(wanted, now)
        assert 0 <= got <= min(wanted, per_second / 10 + 1)
        given += got
        assert given <= 1 + now * per_second + 1e-6


@given(st.floats(0.5, 1e4))
def test_a_rate_is_reached(per_second: float) -> None:
    """Who asks often enough gets all of it."""
    rate, given = Rate(per_second, 0.0), 0
    step = min(1 / per_second, 0.1) / 4
    for number in range(1, 2001):
        given += rate.take(1_000_000, number * step)
    assert given >= 2000 * step * per_second * 0.99 - 1


@given(st.floats(1e-6, 0.5), st.integers(1, 50))
def test_the_smallest_rate_moves_something(per_second: float, wanted: int) -> None:
    """One at once, and the next when its time has come."""
    rate = Rate(per_second, 0.0)
    assert rate.take(wanted, 0.0) == 1
    assert rate.take(wanted, 0.9 / per_second) == 0
    assert rate.take(wanted, 1.1 / per_second) == 1


def test_without_a_rate_all_may_go() -> None:
    """None is no limit."""
    assert Rate(None, 0.0).take(12345, 0.0) == 12345


# --- from a backlog queue --------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.lists(st.floats(0, 3), max_size=300), st.floats(1, 60))
def test_a_window_stays_between_one_and_its_most(most: int, pauses: list[float], lock: float) -> None:
    """However fast or slowly messages are settled."""
    window, now = Window(most, 0.0), 0.0
    for pause in pauses:
        now += pause
        window.settled(now, lock)
        assert 1 <= window.size <= most


@given(st.floats(0.0005, 1.0), st.sampled_from([5.0, 30.0, 60.0]))
def test_a_window_holds_no_more_than_is_settled_well_inside_a_lock(seconds_each: float, lock: float) -> None:
    """Settled at an even pace, what is in the window is settled in half of the time that a lock lasts, unless that
    is fewer than a few; and until it is seen how fast that is, there are some hundred."""
    window, now = Window(4000, 0.0), 0.0
    window.sized(100)
    for _ in range(20_000):
        assert window.size <= max(lock / seconds_each / 2, 512)
        now += seconds_each
        window.settled(now, lock)
    assert window.size <= max(lock / seconds_each / 2, 8)


def test_a_fast_queue_gets_its_whole_window() -> None:
    """Each window's worth that is settled makes it larger, up to its most."""
    window = Window(4000, 0.0)
    for number in range(20_000):
        window.settled(number / 10_000, 60.0)
    assert window.size == 4000


@pytest.mark.parametrize(
    ("round_trip", "size"), [(None, 8000), (0.0005, 8000), (0.01, 8000), (0.025, 15_000), (0.05, 30_000)]
)
def test_a_window_is_as_large_as_the_way_is_long(round_trip: float | None, size: int) -> None:
    """Next door more than 8,000 are of no use. From far away it is a multiple of what is on its way there and back;
    one message that took longer, or a thousand of them, change nothing."""
    window = Window(32_000, 0.0)
    for number in range(400_000):
        late = 1.0 if number % 1000 > 1 else 0.0
        window.settled(number / 40_000, 60.0, None if round_trip is None else 2 * round_trip + late)
    assert abs(window.size - size) <= 1


def test_a_window_shrinks_when_the_pace_does() -> None:
    """What a long way asked for at 40,000 a second is not needed at 1,000."""
    window = Window(32_000, 0.0)
    for number in range(200_000):
        window.settled(number / 40_000, 60.0, 0.1)
    assert abs(window.size - 30_000) <= 1
    for number in range(60_000):
        window.settled(5.0 + number / 1000, 60.0, 0.1)
    assert window.size == 8000


# --- what is still locked --------------------------------------------------------------------------------------------

_SESSIONS = [("q", "a"), ("q", "b"), ("r", "a")]
_OWED = st.dictionaries(st.integers(1, 30), st.sampled_from([None, *_SESSIONS]))


@given(_OWED, st.lists(st.integers(1, 30)), st.integers(1, 31))
def test_what_is_owed_blocks_what_lies_behind_it(
    left: dict[int, tuple[str, str] | None], came: list[int], sequence: int
) -> None:
    """And nothing else: not other sessions, not what lies before it, not once it came; whatever the time is."""
    owed = Owed()
    owed.left(0.0, 10.0, list(left.items()), unseen=False)
    owed.begin(5.0)
    for number in came:
        owed.came(number)
    still = {number: session for number, session in left.items() if number not in came}
    for session in _SESSIONS:
        wanted = any(number < sequence and owner == session for number, owner in still.items())
        assert owed.blocks(session, sequence) == wanted
    # From when the service was heard again, a lock's time and a second.
    assert owed.seconds(6.0) == (10.0 if still else 0.0)
    assert owed.seconds_in_order(6.0) == (10.0 if any(still.values()) else 0.0)
    owed.found_empty(15.9)
    assert bool(owed.seconds(15.9)) == bool(still)
    owed.found_empty(16.0)
    assert not any(owed.blocks(session, sequence) for session in _SESSIONS)


@given(st.integers(0, 20), st.sets(st.integers(1, 30)), st.data())
def test_a_gap_behind_a_lost_link_blocks_all_sessions(seen: int, gone: set[int], data: st.DataObject) -> None:
    """What was on its way when the link was lost never came, and nobody knows of which session it was: until its lock
    has ended, a message behind a gap waits; one without a gap before it does not."""
    owed = Owed()
    for number in range(1, seen + 1):
        owed.came(number)
    owed.left(0.0, 10.0, [], unseen=True)
    owed.begin(1.0)
    missing = {number for number in gone if number > seen}
    for number in range(seen + 1, 31):
        if number not in missing:
            owed.came(number)
            assert owed.blocks(("q", "a"), number) == any(hidden < number for hidden in missing)
    assert owed.seconds(1.0) == 11.0
    assert owed.seconds_in_order(1.0) == 0.0
    owed.has_sessions = True
    assert owed.seconds_in_order(1.0) == 11.0
    owed.begin(12.0)  # locks have ended: what is still missing was taken by others
    for number in sorted({data.draw(st.integers(1, 40)) for _ in range(5)}):
        owed.came(number)
        assert not owed.blocks(("q", "a"), number)
    assert owed.seconds(12.0) == 0.0


def test_a_pass_that_left_nothing_adds_nothing() -> None:
    """Passes that follow do not make locks last longer; how long locks last is remembered from one to the next."""
    owed = Owed()
    owed.left(0.0, 10.0, [], unseen=True)
    owed.begin(0.0)
    owed.left(1.0, 0.0, [], unseen=False)
    owed.begin(2.0)
    assert owed.seconds(2.0) == 9.0
    owed.left(3.0, 0.0, [], unseen=True)
    assert owed.seconds(3.0) == 11.0


def test_links_that_are_lost_again_and_again() -> None:
    """What was behind the gap and came is not taken for what was in it, and a message that comes again goes first."""
    owed = Owed()
    for number in (1, 2, 3):
        owed.came(number)
    owed.left(0.0, 10.0, [(3, ("q", "a"))], unseen=True)
    owed.begin(1.0)
    owed.came(6)  # 4 and 5 were on their way
    assert owed.blocks(("q", "b"), 6)
    owed.left(2.0, 10.0, [(6, ("q", "b"))], unseen=True)
    owed.begin(14.0)
    for number in (3, 4):
        owed.came(number)
        assert not owed.blocks(("q", "a"), number)
    owed.left(15.0, 10.0, [], unseen=True)  # 5 was on its way once more
    owed.begin(16.0)
    owed.came(7)
    assert owed.blocks(("q", "b"), 7)
    assert owed.blocks(("q", "c"), 7)


# --- how long a lock lasts -------------------------------------------------------------------------------------------


@given(st.floats(5.0, 60.0), st.floats(0.0, 30.0))
def test_a_lock_that_can_be_is_believed(lock: float, later: float) -> None:
    """A time between the shortest and the longest lock is taken as it is, and runs."""
    clock = LockClock()
    assert abs(clock.left(int((1000.0 + lock) * 1000), 1000.0) - lock) < 0.01
    assert abs(clock.left(int((1000.0 + lock) * 1000), 1000.0 + later) - (lock - later)) < 0.01
    assert abs(clock.now(1000.0) - 1000.0) < 0.01


@given(st.floats(61.0, 1e6))
def test_a_lock_that_has_ended_before_it_began_tells_that_this_clock_is_ahead(ahead: float) -> None:
    """It lasts as long as those of backlog queues do, and the service's time is told from it."""
    clock = LockClock()
    assert abs(clock.left(int(1060.0 * 1000), 1000.0 + ahead) - 60.0) < 0.01
    assert abs(clock.now(1000.0 + ahead) - 1000.0) < 0.01


@given(st.floats(1.0, 1e6))
def test_a_lock_that_lasts_too_long_tells_that_this_clock_is_behind(behind: float) -> None:
    """The same the other way round."""
    clock = LockClock()
    assert abs(clock.left(int((2e6 + 60.0) * 1000), 2e6 - behind) - 60.0) < 0.01
    assert abs(clock.now(2e6 - behind) - 2e6) < 0.01


@given(st.floats(5.0, 60.0), st.floats(1.0, 1e6))
def test_a_clock_that_is_set_back_makes_no_lock_longer(lock: float, back: float) -> None:
    """In the midst of a pass: what waits is not sent after its lock has ended."""
    clock = LockClock()
    assert abs(clock.left(int((2e6 + lock) * 1000), 2e6) - lock) < 0.01
    assert clock.left(int((2e6 + 1.0 + lock) * 1000), 2e6 + 1.0 - back) <= lock + 0.01


@given(st.integers(1, 20_000), st.integers(0, 2**24))
def test_a_window_begins_with_a_few_megabytes_at_the_most(most: int, size: int) -> None:
    """Small messages may come in a larger number from the beginning, large ones may not; the limit holds."""
    window = Window(most, 0.0)
    first = window.size
    window.sized(size)
    assert min(first, most) <= window.size <= min(512, most)
    assert window.size == first or window.size * size <= 4 * 2**20


@pytest.mark.parametrize(
    ("seems", "longest"), [(60.0, 60.0), (100.0, 100.0), (300.0, 300.0), (4000.0, 300.0), (-50.0, 60.0)]
)
def test_a_lock_that_seems_long_may_be_long(seems: float, longest: float) -> None:
    """Messages are given back as if it lasted a minute; what nobody has settled is waited for that long."""
    clock = LockClock()
    clock.left(int((2e6 + seems) * 1000), 2e6)
    assert clock.seconds == 60.0
    assert abs(clock.longest - longest) < 0.01
