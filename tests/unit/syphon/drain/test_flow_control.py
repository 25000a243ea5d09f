"""Flow control by its laws: send windows, rates, receive windows and lock durations, with times that a test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.drain.flow_control import FIRST_WINDOW, RateLimiter, ReceiveWindow, SendWindow, ServiceClock

MAXIMUM_BYTES = 1 << 30

# --- SendWindow: in flight to a destination --------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.lists(st.one_of(st.integers(1, 600), st.just("refused"))))
def test_a_send_window_stays_between_one_and_its_maximum(most: int, story: list[int | str]) -> None:
    """An accepted message never makes it smaller, a refusal never larger."""
    window = SendWindow(most)
    assert window.limit == min(FIRST_WINDOW, most)
    for event in story:
        before = window.limit
        if isinstance(event, int):
            window.accepted(event)
            assert before <= window.limit <= 4 * before
        else:
            window.refused()
            assert window.limit <= before
        assert 1 <= window.limit <= most


@given(st.integers(1, 100_000))
def test_a_send_window_grows_back_to_its_maximum(most: int) -> None:
    """After any refusals, once the destination takes messages again."""
    window = SendWindow(most)
    for _ in range(20):
        window.refused()
    for _ in range(40 * most):
        window.accepted(window.limit)
        if window.limit == most:
            break
    assert window.limit == most


@given(st.floats(20, 20_000))
def test_a_send_window_is_answered_before_its_messages_are_given_up(per_second: float) -> None:
    """For any rate of the destination a whole window takes less than 15 seconds, after which messages are sent again. A
    fast destination gets the maximum."""
    window = SendWindow(32_000)
    for _ in range(20):
        seconds = window.limit / per_second
        assert seconds < 15.0
        window.accepted(window.limit, seconds)
    assert window.limit == 32_000 or window.limit * 4 / per_second > 12.0


@given(st.integers(1, 2**21))
def test_large_messages_count_as_several(size: int) -> None:
    """At first a megabyte and one message are in flight, whatever their size; prompt answers open the window, in which
    every message then counts once."""
    window = SendWindow(32_000)
    count = 0
    while window.room(count, count * size) > 0:
        count += 1
    assert 1 <= count <= FIRST_WINDOW
    assert (count - 1) * size < 2**20
    assert count == FIRST_WINDOW or count * size >= 2**20
    for _ in range(100_000):
        window.accepted(1, 0.1, size)
    assert window.limit == 32_000
    assert window.room(31_999, 31_999 * size) == 1


def test_messages_are_isolated_one_at_a_time() -> None:
    """As many as were in flight when the link ended; then the window grows again. A refusal meanwhile opens nothing."""
    window = SendWindow(1000)
    window.isolate(3)
    for _ in range(3):
        assert (window.is_isolating, window.room(0, 0), window.room(1, 10)) == (True, 1, 0)
        window.refused()
        window.accepted()
    assert not window.is_isolating
    window.accepted()
    assert window.limit == 4


# --- RateLimiter ---------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 1e5), st.lists(st.tuples(st.floats(0, 2), st.integers(0, 10_000)), max_size=60))
def test_a_rate_is_never_exceeded(per_second: float, asked: list[tuple[float, int]]) -> None:
    """From the start no more than one message above the rate; after a pause, at once a tenth of a second's messages
    and one."""
    rate, now, given = RateLimiter(per_second, 0.0), 0.0, 0
    for later, wanted in asked:
        now += later
        got = rate.take(wanted, now)
        assert 0 <= got <= min(wanted, per_second / 10 + 1)
        given += got
        assert given <= 1 + now * per_second + 1e-6


@given(st.floats(0.5, 1e4))
def test_a_rate_is_reached(per_second: float) -> None:
    """Frequent calls get all of it."""
    rate, given = RateLimiter(per_second, 0.0), 0
    step = min(1 / per_second, 0.1) / 4
    for number in range(1, 2001):
        given += rate.take(1_000_000, number * step)
    assert given >= 2000 * step * per_second * 0.99 - 1


@given(st.floats(1e-6, 0.5), st.integers(1, 50))
def test_the_smallest_rate_moves_something(per_second: float, wanted: int) -> None:
    """One message at once, and the next when it is due."""
    rate = RateLimiter(per_second, 0.0)
    assert rate.take(wanted, 0.0) == 1
    assert rate.take(wanted, 0.9 / per_second) == 0
    assert rate.take(wanted, 1.1 / per_second) == 1


def test_no_rate_is_no_limit() -> None:
    """All that is wanted is granted."""
    assert RateLimiter(None, 0.0).take(12345, 0.0) == 12345


# --- ReceiveWindow: in flight from a backlog queue -------------------------------------------------------------------


@given(st.integers(1, 10_000), st.lists(st.floats(0, 3), max_size=300), st.floats(1, 60))
def test_a_receive_window_stays_between_one_and_its_maximum(most: int, pauses: list[float], lock: float) -> None:
    """For any times of settlements and any duration of locks."""
    window, now = ReceiveWindow(most, MAXIMUM_BYTES, 0.0), 0.0
    for pause in pauses:
        now += pause
        window.settled(now, lock)
        assert 1 <= window.size <= most


@given(st.floats(0.0005, 1.0), st.sampled_from([5.0, 30.0, 60.0]))
def test_a_receive_window_is_settled_well_inside_a_lock(seconds_each: float, lock: float) -> None:
    """At a steady rate a window is settled in half of a lock's time, unless that is less than the smallest window.
    Before the rate is known it has some hundred messages."""
    window, now = ReceiveWindow(4000, MAXIMUM_BYTES, 0.0), 0.0
    window.received(100, 0)
    for _ in range(20_000):
        assert window.size <= max(lock / seconds_each / 2, 512)
        now += seconds_each
        window.settled(now, lock)
    assert window.size <= max(lock / seconds_each / 2, 8)


def test_a_fast_queue_gets_the_maximum() -> None:
    """The window grows with each window that was settled."""
    window = ReceiveWindow(4000, MAXIMUM_BYTES, 0.0)
    for number in range(20_000):
        window.settled(number / 10_000, 60.0)
    assert window.size == 4000


@pytest.mark.parametrize(
    ("round_trip", "size"), [(None, 8000), (0.0005, 8000), (0.01, 8000), (0.025, 15_000), (0.05, 30_000)]
)
def test_a_receive_window_fits_the_round_trip(round_trip: float | None, size: int) -> None:
    """A near destination needs 8,000. A far one needs a multiple of the messages on the line; some that took longer
    change nothing."""
    window = ReceiveWindow(32_000, MAXIMUM_BYTES, 0.0)
    for number in range(400_000):
        late = 1.0 if number % 1000 > 1 else 0.0
        window.settled(number / 40_000, 60.0, None if round_trip is None else 2 * round_trip + late)
    assert abs(window.size - size) <= 1


def test_a_receive_window_shrinks_with_the_rate() -> None:
    """A line that needed 30,000 messages at 40,000 a second needs fewer at 1,000."""
    window = ReceiveWindow(32_000, MAXIMUM_BYTES, 0.0)
    for number in range(200_000):
        window.settled(number / 40_000, 60.0, 0.1)
    assert abs(window.size - 30_000) <= 1
    for number in range(60_000):
        window.settled(5.0 + number / 1000, 60.0, 0.1)
    assert window.size == 8000


@pytest.mark.parametrize(
    ("in_flight", "credit", "missing"),
    [(0, 0, 64), (0, 64, 0), (30, 30, 4), (30, 31, 0), (61, 0, 3), (64, 0, 0), (80, 0, 0)],
)
def test_credit_is_granted_for_a_sixteenth_of_the_window(in_flight: int, credit: int, missing: int) -> None:
    """Less is not worth a frame, unless the service has no credit at all; never more than the window."""
    assert ReceiveWindow(64, MAXIMUM_BYTES, 0.0).missing(in_flight, credit) == missing


def test_credit_is_granted_for_the_bytes_that_have_room() -> None:
    """By the mean size of what was received; one message is always allowed, else nothing would ever move."""
    window = ReceiveWindow(64, 10_000, 0.0)
    for _ in range(4):
        window.received(1000, 1000)
    assert window.missing(4, 0) == 6
    window.buffered_bytes -= 2000
    assert window.missing(2, 0) == 8
    window.received(1000, 50_000)
    assert window.missing(0, 0) == 1
    assert window.missing(1, 0) == 0


def test_the_mean_size_follows_the_messages() -> None:
    """One large message changes it little, many change it."""
    window = ReceiveWindow(1000, 1_000_000, 0.0)
    window.received(1000, 0)
    window.received(33_000, 0)
    assert window.missing(0, 0) == 500
    for _ in range(500):
        window.received(100_000, 0)
    assert window.missing(0, 0) == 10


def test_a_socket_is_read_while_the_buffer_has_room() -> None:
    """It is paused above twice the limit, and read again below the limit."""
    window = ReceiveWindow(64, 1000, 0.0)
    states = []
    for size in (1000, 1, 999, 1):
        window.received(size, size)
        states.append((window.has_room, window.is_overfull))
    assert states == [(True, False), (False, False), (False, False), (False, True)]


# --- ServiceClock: how long a lock lasts -----------------------------------------------------------------------------


@given(st.floats(5.0, 60.0), st.floats(0.0, 30.0))
def test_a_plausible_lock_duration_is_taken_as_it_is(lock: float, later: float) -> None:
    """Between the shortest and the longest; the time left then falls as time passes."""
    clock = ServiceClock()
    assert abs(clock.lock_left(int((1000.0 + lock) * 1000), 1000.0) - lock) < 0.01
    assert abs(clock.lock_left(int((1000.0 + lock) * 1000), 1000.0 + later) - (lock - later)) < 0.01
    assert abs(clock.time(1000.0) - 1000.0) < 0.01


@given(st.floats(61.0, 1e6))
def test_a_lock_that_seems_to_have_ended_shows_a_clock_that_is_ahead(ahead: float) -> None:
    """It is taken for a minute, as in backlog queues, and gives the service's time."""
    clock = ServiceClock()
    assert abs(clock.lock_left(int(1060.0 * 1000), 1000.0 + ahead) - 60.0) < 0.01
    assert abs(clock.time(1000.0 + ahead) - 1000.0) < 0.01


@given(st.floats(1.0, 1e6))
def test_a_lock_that_seems_too_long_shows_a_clock_that_is_behind(behind: float) -> None:
    """It is taken for a minute, and gives the service's time."""
    clock = ServiceClock()
    assert abs(clock.lock_left(int((2e6 + 60.0) * 1000), 2e6 - behind) - 60.0) < 0.01
    assert abs(clock.time(2e6 - behind) - 2e6) < 0.01


@given(st.floats(5.0, 60.0), st.floats(1.0, 1e6))
def test_a_clock_that_is_set_back_makes_no_lock_longer(lock: float, back: float) -> None:
    """During a pass: messages that wait are not sent after their locks have ended."""
    clock = ServiceClock()
    assert abs(clock.lock_left(int((2e6 + lock) * 1000), 2e6) - lock) < 0.01
    assert clock.lock_left(int((2e6 + 1.0 + lock) * 1000), 2e6 + 1.0 - back) <= lock + 0.01


@given(st.integers(1, 20_000), st.integers(0, 2**24))
def test_a_receive_window_starts_with_a_few_megabytes(most: int, size: int) -> None:
    """The first message tells: more small messages may follow than large ones, never more than the maximum."""
    window = ReceiveWindow(most, MAXIMUM_BYTES, 0.0)
    first = window.size
    window.received(size, 0)
    assert min(first, most) <= window.size <= min(512, most)
    assert window.size == first or window.size * size <= 4 * 2**20


@pytest.mark.parametrize(
    ("seems", "longest"), [(60.0, 60.0), (100.0, 100.0), (300.0, 300.0), (4000.0, 300.0), (-50.0, 60.0)]
)
def test_a_lock_that_seems_long_may_be_long(seems: float, longest: float) -> None:
    """Messages are given back as if it lasted a minute; those that stay locked are waited for longer."""
    clock = ServiceClock()
    clock.lock_left(int((2e6 + seems) * 1000), 2e6)
    assert clock.lock_seconds == 60.0
    assert abs(clock.longest_lock_seconds - longest) < 0.01


def test_a_message_without_a_lock_time_is_taken_for_one_of_a_minute() -> None:
    """And says nothing of other locks."""
    clock = ServiceClock()
    assert clock.lock_left(None, 1000.0) == 60.0
    assert clock.lock_seconds == 0.0


@pytest.mark.parametrize(("offset", "seconds"), [(0.0, 50.0), (180.0, 50.0), (-180.0, -130.0)])
def test_the_clock_that_shows_less_time_counts(offset: float, seconds: float) -> None:
    """A message that was parked 50 seconds ago is no older because this machine's clock is ahead; one that is behind
    makes it younger, as the lock may be a longer one."""
    clock = ServiceClock()
    clock.lock_left(1060 * 1000, 1000.0 + offset)
    assert clock.seconds_since(950 * 1000, 1000.0 + offset) == pytest.approx(seconds)
