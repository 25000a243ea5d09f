"""The health of an entity: the laws of its state machine over any history, and its documented states at fixed times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pairbus.domain.health import Health, State

SUCCESS, FAILURE = "success", "failure"
ANSWERED, REFUSED, UNHEARD = "ping answered", "ping refused", "ping failed"
KINDS = (SUCCESS, FAILURE, ANSWERED, REFUSED, UNHEARD)

#: Every change that there is, and what brings it about.
CHANGES = {
    (State.AVAILABLE, FAILURE, State.SUSPECT),
    (State.AVAILABLE, FAILURE, State.FAILED_OVER),  # with an interval of 0 only
    (State.SUSPECT, SUCCESS, State.AVAILABLE),
    (State.SUSPECT, FAILURE, State.FAILED_OVER),
    (State.FAILED_OVER, ANSWERED, State.AVAILABLE),
    (State.FAILED_OVER, REFUSED, State.UNUSABLE),
    (State.UNUSABLE, ANSWERED, State.AVAILABLE),
    (State.UNUSABLE, UNHEARD, State.FAILED_OVER),
}


class Happened(NamedTuple):
    kind: str
    at: float
    #: How long a send that failed was under way.
    took: float = 0.0


def step(health: Health, event: Happened, interval: float) -> Health:
    """Return the health after one event."""
    if event.kind == FAILURE:
        return health.failed(event.at, interval, event.at - event.took)
    react = {
        SUCCESS: health.succeeded,
        ANSWERED: health.ping_answered,
        REFUSED: health.ping_refused,
        UNHEARD: health.ping_failed,
    }
    return react[event.kind](event.at)


def play(history: Iterable[Happened], interval: float, start: Health | None = None) -> list[Health]:
    """The health at the start and after each event."""
    seen = [start or Health()]
    for event in history:
        seen.append(step(seen[-1], event, interval))
    return seen


@st.composite
def histories(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> list[Happened]:
    """Events in the order of a clock that may stand still; whole seconds, so that intervals are met exactly."""
    events: list[Happened] = []
    now = draw(st.integers(0, 1000))
    steps = st.tuples(st.sampled_from(kinds), st.integers(0, 40), st.sampled_from([0, 0, 0, 1, 20, 100]))
    for kind, pause, took in draw(st.lists(steps, max_size=30)):
        now += pause
        events.append(Happened(kind, float(now), float(took)))
    return events


#: Failures are most of what happens, or few histories would ever fail over.
stormy = histories((SUCCESS, FAILURE, FAILURE, FAILURE, ANSWERED, REFUSED, UNHEARD))
intervals = st.sampled_from([0.0, 1.0, 30.0, 60.0, 3600.0])


def fails_over(history: Sequence[Happened], interval: float) -> list[int]:
    """Return the events at which sends to the primary stop, from the list of events alone.

    Each is a failure with another one (or itself) a whole interval earlier and no success between them. A failed send
    that was begun before the last success, or before the ping that ended a failover, does not count. The search goes
    backwards and keeps no state but the time of that ping.
    """
    found: list[int] = []
    back = 0  # where the part of the history begins in which sends go to the primary
    answered = -math.inf
    away = False
    for here, event in enumerate(history):
        if away:
            if event.kind == ANSWERED:
                back, away, answered = here + 1, False, event.at
            continue
        if event.kind != FAILURE:
            continue
        unbroken = []
        part = history[back : here + 1]
        well = max([answered, *(earlier.at for earlier in part if earlier.kind == SUCCESS)])
        for earlier in reversed(part):
            if earlier.kind == SUCCESS:
                break
            if earlier.kind == FAILURE and earlier.at - earlier.took >= well:
                unbroken.append(earlier.at)
        if event.at - event.took >= well and event.at - min(unbroken) >= interval:
            found.append(here)
            away = True
    return found


def straggles(health: Health, event: Happened) -> bool:
    """Return True if a send was begun before the entity's last success."""
    return health.well_at is not None and event.at - event.took < health.well_at


# --- laws --------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(stormy, intervals)
@example([Happened(FAILURE, 0.0), Happened(FAILURE, 60.0)], 60.0)
@example([Happened(FAILURE, 0.0), Happened(SUCCESS, 59.0), Happened(FAILURE, 60.0)], 60.0)
@example([Happened(FAILURE, 0.0), Happened(ANSWERED, 30.0), Happened(FAILURE, 60.0)], 60.0)
@example([Happened(SUCCESS, 9.0), Happened(FAILURE, 10.0, took=2.0)], 0.0)
@example([Happened(SUCCESS, 8.0), Happened(FAILURE, 10.0, took=2.0)], 0.0)
@example([Happened(FAILURE, 1.0), Happened(ANSWERED, 9.0), Happened(FAILURE, 10.0, took=2.0)], 0.0)
def test_failing_over_needs_failures_over_a_whole_interval_without_one_success(
    history: list[Happened], interval: float
) -> None:
    """Sends stop going to the primary exactly where the list of events says so, no earlier and no later."""
    seen = play(history, interval)
    stopped = [i for i in range(len(history)) if seen[i].goes_to_primary and not seen[i + 1].goes_to_primary]
    assert stopped == fails_over(history, interval)


@settings(deadline=None)
@given(stormy, intervals, st.integers(0, 5000))
def test_any_success_while_suspect_stops_the_timer(history: list[Happened], interval: float, later: int) -> None:
    """After a success the next failure starts a whole interval anew, however long it failed before."""
    end = play(history, interval)[-1]
    now = history[-1].at if history else 0.0
    calm = end.succeeded(now)
    if end.state is State.SUSPECT:
        assert calm == Health(State.AVAILABLE, now, None, well_at=now)
        again = calm.failed(now + later, 60.0, now + later)
        assert (again.state, again.failing_since) == (State.SUSPECT, now + later)
    elif end.state is State.AVAILABLE:
        assert calm == dataclasses.replace(end, well_at=now)
    else:
        assert calm is end


@settings(deadline=None)
@given(histories())
def test_an_interval_of_zero_fails_over_at_the_first_failure(history: list[Happened]) -> None:
    """With 0 there is no suspect: a failure of an available entity is a failover, but for a straggler's."""
    seen = play(history, 0.0)
    assert all(health.state is not State.SUSPECT for health in seen)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if before.state is State.AVAILABLE and event.kind == FAILURE and not straggles(before, event):
            assert after.state is State.FAILED_OVER


@settings(deadline=None)
@given(stormy, intervals)
def test_only_a_ping_that_succeeds_brings_back(history: list[Happened], interval: float) -> None:
    """Sends go to the primary again at an answered ping and at nothing else, and at the first such ping."""
    seen = play(history, interval)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if not before.goes_to_primary:
            assert after.goes_to_primary is (event.kind == ANSWERED)
            assert not after.goes_to_primary or after.state is State.AVAILABLE


@settings(deadline=None)
@given(stormy, intervals)
def test_stragglers_change_nothing_while_failed_over(history: list[Happened], interval: float) -> None:
    """A send that began before the failover and ends after it, well or badly, says nothing: a ping decides."""
    seen = play(history, interval)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if event.kind in (SUCCESS, FAILURE) and not before.goes_to_primary:
            assert after is before


@settings(deadline=None)
@given(stormy, intervals, st.integers(1, 500))
def test_stragglers_of_before_the_last_success_or_failback_change_nothing(
    history: list[Happened], interval: float, took: int
) -> None:
    """A failure of a send that was begun before a success, or before the ping that brought the entity back, says
    nothing, however late it comes: the end is that of a history without it."""
    seen = play(history, interval)
    for health in seen:
        if health.well_at is not None:
            for later in (0.0, 1.0, 1000.0):
                assert health.failed(health.well_at + later, interval, health.well_at - took) is health
    kept = [
        event
        for before, event in zip(seen, history, strict=False)
        if not (event.kind == FAILURE and straggles(before, event))
    ]
    assert play(kept, interval)[-1] == seen[-1]


@settings(deadline=None)
@given(stormy, intervals)
def test_it_was_last_seen_well_at_the_last_success_or_failback(history: list[Happened], interval: float) -> None:
    """`well_at` is the time of the last send that was accepted while sends went there, or of the ping that brought it
    back, and of nothing else."""
    seen = play(history, interval)
    expected = None
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if (event.kind == SUCCESS and before.goes_to_primary) or (
            event.kind == ANSWERED and not before.goes_to_primary
        ):
            expected = event.at
        assert after.well_at == expected


@settings(deadline=None)
@given(stormy, intervals)
def test_pings_change_nothing_while_sends_go_to_the_primary(history: list[Happened], interval: float) -> None:
    """A ping that ends late neither stops a timer nor starts one, and refuses nothing."""
    seen = play(history, interval)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if event.kind in (ANSWERED, REFUSED, UNHEARD) and before.goes_to_primary:
            assert after is before


@settings(deadline=None)
@given(stormy, intervals)
def test_unusable_only_from_failed_over_and_healed_by_pings_alone(history: list[Happened], interval: float) -> None:
    """A refused ping makes a failed-over entity unusable; one that answers makes it available, one that finds an
    outage makes it failed over again."""
    seen = play(history, interval)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if after.state is State.UNUSABLE and before.state is not State.UNUSABLE:
            assert (before.state, event.kind) == (State.FAILED_OVER, REFUSED)
        if before.state is State.FAILED_OVER and event.kind == REFUSED:
            assert after.state is State.UNUSABLE
        if before.state is State.UNUSABLE:
            healed = {ANSWERED: State.AVAILABLE, UNHEARD: State.FAILED_OVER}
            assert after.state is healed.get(event.kind, State.UNUSABLE)


@settings(deadline=None)
@given(stormy, intervals)
def test_states_never_skip(history: list[Happened], interval: float) -> None:
    """Every change is one of eight, each with one cause; suspect is skipped with an interval of 0 only."""
    seen = play(history, interval)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if before.state is after.state:
            assert after is before or (event.kind, after) == (
                SUCCESS,
                dataclasses.replace(before, well_at=event.at),
            )
            continue
        assert (before.state, event.kind, after.state) in CHANGES
        if (before.state, after.state) == (State.AVAILABLE, State.FAILED_OVER):
            assert interval == 0


@settings(deadline=None)
@given(stormy, intervals, st.integers(-100, 0))
def test_since_is_the_time_of_the_last_change(history: list[Happened], interval: float, opened: int) -> None:
    """`since` is when the state was entered, by the events' own clock, and the start until something changes."""
    seen = play(history, interval, Health(since=float(opened)))
    expected = float(opened)
    for before, event, after in zip(seen, history, seen[1:], strict=False):
        if after.state is not before.state:
            expected = event.at
        assert after.since == expected


@settings(deadline=None)
@given(stormy, intervals)
def test_the_timer_runs_while_suspect_and_only_then(history: list[Happened], interval: float) -> None:
    """`failing_since` is the first failure of an unbroken row while suspect, and nothing in any other state."""
    for health in play(history, interval):
        if health.state is State.SUSPECT:
            assert health.failing_since == health.since
        else:
            assert health.failing_since is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(KINDS), st.integers(0, 40)), max_size=40), intervals)
def test_two_entities_never_influence_each_other(mixed: list[tuple[bool, str, int]], interval: float) -> None:
    """Played into one clock, each entity's states are those of its own events alone."""
    now = 0.0
    both = {True: Health(), False: Health()}
    own: dict[bool, list[Happened]] = {True: [], False: []}
    for which, kind, pause in mixed:
        now += pause
        other = both[not which]
        both[which] = step(both[which], Happened(kind, now), interval)
        own[which].append(Happened(kind, now))
        assert both[not which] is other
    assert both == {which: play(own[which], interval)[-1] for which in both}


@settings(deadline=None)
@given(stormy, intervals, st.integers(-(10**6), 10**6))
def test_only_time_between_events_matters(history: list[Happened], interval: float, shift: int) -> None:
    """The clock's zero changes no state: a monotonic clock will do."""
    moved = [event._replace(at=event.at + shift) for event in history]
    states = [health.state for health in play(history, interval)]
    assert [health.state for health in play(moved, interval)] == states


# --- the states of the contract, with fixed times ----------------------------------------------------------------

MINUTE = 60.0


def after(*events: tuple[str, float], interval: float = MINUTE) -> Health:
    return play([Happened(kind, at) for kind, at in events], interval)[-1]


def test_an_entity_begins_available() -> None:
    """An entity without a send is never suspect."""
    assert Health() == Health(State.AVAILABLE, 0.0, None)
    assert Health().goes_to_primary


def test_the_first_failure_starts_the_timer() -> None:
    """Available → suspect at the first failure; sends still go to the primary."""
    health = after((FAILURE, 100.0))
    assert health == Health(State.SUSPECT, since=100.0, failing_since=100.0)
    assert health.goes_to_primary


def test_further_failures_do_not_start_it_anew() -> None:
    """Suspect keeps the time of its first failure."""
    assert after((FAILURE, 100.0), (FAILURE, 130.0), (FAILURE, 159.9)) == Health(State.SUSPECT, 100.0, 100.0)


@pytest.mark.parametrize(
    ("last", "state"),
    [(159.999, State.SUSPECT), (160.0, State.FAILED_OVER), (160.001, State.FAILED_OVER), (9999.0, State.FAILED_OVER)],
)
def test_the_interval_is_reached_at_its_last_moment(last: float, state: State) -> None:
    """Failing from 100 s on, with an interval of 60 s, the entity is failed over from 160 s on, not before."""
    assert after((FAILURE, 100.0), (FAILURE, last)).state is state


def test_failed_over_sends_nothing_to_the_primary() -> None:
    """Sends to the primary stop, since the failure that found it out."""
    health = after((FAILURE, 100.0), (FAILURE, 175.0))
    assert health == Health(State.FAILED_OVER, since=175.0, failing_since=None)
    assert not health.goes_to_primary


def test_a_success_in_between_costs_the_whole_interval() -> None:
    """One success in 59 s of failures, and the next failure is the first again."""
    assert after((FAILURE, 100.0), (SUCCESS, 159.0)) == Health(State.AVAILABLE, since=159.0, well_at=159.0)
    assert after((FAILURE, 100.0), (SUCCESS, 159.0), (FAILURE, 160.0)) == Health(State.SUSPECT, 160.0, 160.0, 159.0)
    assert after((FAILURE, 100.0), (SUCCESS, 159.0), (FAILURE, 160.0), (FAILURE, 219.0)).state is State.SUSPECT
    assert after((FAILURE, 100.0), (SUCCESS, 159.0), (FAILURE, 160.0), (FAILURE, 220.0)).state is State.FAILED_OVER


def test_a_timer_alone_fails_nothing_over() -> None:
    """A single failure, however old, leaves the entity suspect: a success after an idle hour proves it well."""
    assert after((FAILURE, 100.0), (SUCCESS, 3700.0)) == Health(State.AVAILABLE, since=3700.0, well_at=3700.0)


def test_zero_is_at_the_first_failure() -> None:
    """With an interval of 0 the first failure parks its own message."""
    assert after((FAILURE, 5.0), interval=0.0) == Health(State.FAILED_OVER, since=5.0)


def test_back_at_the_first_ping_that_succeeds() -> None:
    """Failed over → available at an answered ping; the next failure begins a new timer."""
    down = (FAILURE, 0.0), (FAILURE, 60.0)
    assert after(*down, (UNHEARD, 120.0)) == Health(State.FAILED_OVER, since=60.0)
    assert after(*down, (UNHEARD, 120.0), (ANSWERED, 180.0)) == Health(State.AVAILABLE, since=180.0, well_at=180.0)
    assert after(*down, (ANSWERED, 180.0), (FAILURE, 181.0)) == Health(State.SUSPECT, 181.0, 181.0, 180.0)


def test_a_configuration_error_in_a_ping_makes_it_unusable() -> None:
    """Unusable parks nothing and sends nothing to the primary, and a ping that answers mends it."""
    down = (FAILURE, 0.0), (FAILURE, 60.0)
    unusable = after(*down, (REFUSED, 120.0))
    assert unusable == Health(State.UNUSABLE, since=120.0)
    assert not unusable.goes_to_primary
    assert unusable.ping_refused(180.0) is unusable
    assert unusable.ping_answered(240.0) == Health(State.AVAILABLE, since=240.0, well_at=240.0)
    assert unusable.ping_failed(240.0) == Health(State.FAILED_OVER, since=240.0)


def test_a_health_is_a_value() -> None:
    """An event makes a new health and leaves the old as it was; it is immutable."""
    before = Health()
    before.failed(1.0, 60.0, 1.0)
    assert before == Health()
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.state = State.SUSPECT  # type: ignore[misc]


def test_the_states_have_the_names_of_the_contract() -> None:
    """`State` has four members, and their values are what a status shows."""
    assert [state.value for state in State] == ["available", "suspect", "failed over", "unusable"]
