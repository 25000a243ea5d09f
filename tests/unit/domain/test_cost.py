"""The cost of paired namespaces: Microsoft's figures, pairbus's own, and prices."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pairbus
from pairbus.cost import Forecast, Line, forecast, operations_of

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KB = 1024

DETOUR = ["send to the backlog", "receive from the backlog", "send to the primary", "receive from the primary"]
SETTLEMENTS = ["settle in the backlog", "settle in the primary"]


def by_name(cost: Forecast) -> dict[str, int]:
    return {line.what: line.operations for line in cost.lines}


# --- the documented figures --------------------------------------------------------------------------------------


def test_a_message_that_takes_the_detour_is_four_operations() -> None:
    """Send to the backlog, receive from it, send to the primary, receive from the primary."""
    cost = forecast(messages=1)
    assert cost.documented == 4
    assert [line.what for line in cost.lines if not line.beyond] == DETOUR
    assert forecast(messages=1_000_000).documented == 4_000_000


@pytest.mark.parametrize(("idle", "receives"), [(HOUR, 40), (DAY, 960), (30 * DAY, 28_800)], ids=str)
def test_an_idle_syphon_of_the_original(idle: timedelta, receives: int) -> None:
    """A 15-minute long poll over 10 queues: 40 receives an hour, 960 a day, 28,800 in 30 days."""
    cost = forecast(idle=idle, queues=10, long_poll=timedelta(minutes=15))
    assert (cost.documented, cost.operations) == (receives, receives)


@pytest.mark.parametrize("queues", [1, 10, 100, 1000])
def test_an_idle_syphon_of_pairbus(queues: int) -> None:
    """It asks for all depths in one call every 2 minutes: 30 an hour, however many queues there are."""
    cost = forecast(idle=HOUR, queues=queues)
    assert cost.operations == 30
    assert forecast(idle=DAY, queues=queues).operations == 720


def test_that_question_is_a_management_call_with_a_line_of_its_own() -> None:
    """It goes beyond what Microsoft's page counts, and says that it is management."""
    (line,) = forecast(idle=HOUR).lines
    assert line.beyond
    assert "management" in line.what
    assert forecast(idle=HOUR).documented == 0


@pytest.mark.parametrize(
    ("clients", "entities", "minutes", "pings"),
    [(1, 1, 1, 1), (1, 1, 60, 60), (5, 1, 60, 300), (1, 7, 60, 420), (5, 7, 60, 2100), (0, 7, 60, 0), (5, 0, 60, 0)],
)
def test_pings_of_an_outage(clients: int, entities: int, minutes: int, pings: int) -> None:
    """One per unavailable entity, per client, per interval of a minute."""
    cost = forecast(outage=timedelta(minutes=minutes), clients=clients, entities=entities)
    assert by_name(cost) == {"pings": pings}
    assert cost.documented == pings


@settings(deadline=None)
@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(1, 5000),
    st.floats(1, 1800) | st.integers(1, 1800) | st.timedeltas(timedelta(seconds=1), timedelta(minutes=30)),
)
def test_pings_are_clients_times_entities_times_intervals(
    clients: int, entities: int, intervals: int, interval: Any
) -> None:
    """Whatever the interval is, also where a float cannot say it exactly."""
    cost = forecast(outage=intervals * interval, clients=clients, entities=entities, ping_interval=interval)
    assert by_name(cost) == {"pings": clients * entities * intervals}


def test_an_interval_that_has_only_begun_pings_nobody() -> None:
    """A ping is made at the end of each interval."""
    assert forecast(outage=59).operations == 0
    assert forecast(outage=119.9).operations == 1


# --- beyond ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "operations"),
    [
        (0, 1),
        (1, 1),
        (64 * KB - 1, 1),
        (64 * KB, 1),
        (64 * KB + 1, 2),
        (128 * KB, 2),
        (128 * KB + 1, 3),
        (256 * KB, 4),
        (100 * KB * KB, 1600),
    ],
)
def test_each_further_64_kb_count_again(size: int, operations: int) -> None:
    """An empty message is one operation, and each begun 64 KB is one."""
    assert operations_of(size) == operations
    cost = forecast(messages=10, message_size=size)
    assert [line.operations for line in cost.lines if not line.beyond] == [10 * operations] * 4


def test_settlements_have_lines_of_their_own() -> None:
    """One in the backlog and one in the primary a message, however large it is; the documented four stay four."""
    cost = forecast(messages=10, message_size=256 * KB)
    assert [line.what for line in cost.lines if line.beyond] == SETTLEMENTS
    assert [by_name(cost)[what] for what in SETTLEMENTS] == [10, 10]
    assert (cost.documented, cost.operations) == (160, 180)


def test_nothing_costs_nothing() -> None:
    """No messages, no outage, no idleness: no line."""
    assert forecast() == Forecast(())
    assert (forecast().operations, forecast().documented, forecast().money) == (0, 0, None)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5))
def test_parts_add_up(messages: int, size: int, outage: int, idle: int) -> None:
    """A forecast of everything is the sum of the forecasts of its parts."""
    whole = forecast(messages=messages, message_size=size, outage=outage, idle=idle)
    parts = [forecast(messages=messages, message_size=size), forecast(outage=outage), forecast(idle=idle)]
    assert whole.operations == sum(part.operations for part in parts)
    assert whole.documented == sum(part.documented for part in parts)
    assert whole.lines == sum((part.lines for part in parts), ())


# --- money -------------------------------------------------------------------------------------------------------


def test_money_is_the_price_of_all_operations() -> None:
    """Those beyond the page are billed as well: 1,000,000 messages are 6,000,000 operations."""
    assert forecast(messages=1_000_000, price_per_million=0.8).money == pytest.approx(4.8)
    assert forecast(messages=1, price_per_million=1_000_000).money == pytest.approx(6.0)


def test_no_price_no_money() -> None:
    """Nothing is made up where no price was given, and a price of 0 is a price."""
    assert forecast(messages=5).money is None
    assert forecast(messages=5, price_per_million=0).money == 0


# --- arguments ---------------------------------------------------------------------------------------------------

COUNTS = ("messages", "message_size", "clients", "entities", "queues")
DURATIONS = ("outage", "idle")
INTERVALS = ("ping_interval", "long_poll", "idle_poll_interval")


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 1.0, 1.5, "1", None, True, math.nan], ids=repr)
def test_a_bad_count_is_refused_by_name(name: str, value: Any) -> None:
    """Counts are whole numbers, 0 or more; the error has the name and the value."""
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number, 0 or more, not ") as refused:
        forecast(**{name: value})
    assert str(refused.value).endswith(repr(value))


NO_DURATION = [-1, -0.001, math.nan, math.inf, -math.inf, "60", b"60", True, [60], timedelta(seconds=-1), 10**400]


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [*NO_DURATION, None], ids=lambda value: repr(value)[:20])
def test_a_bad_duration_is_refused_by_name(name: str, value: Any) -> None:
    """Durations are seconds or timedelta, 0 or more."""
    with pytest.raises(ValueError, match=rf"^{name} must be 0 or more seconds, not "):
        forecast(**{name: value})


@pytest.mark.parametrize("name", INTERVALS)
@pytest.mark.parametrize("value", [*NO_DURATION, 0, 0.0, timedelta()], ids=lambda value: repr(value)[:20])
def test_a_bad_interval_is_refused_by_name(name: str, value: Any) -> None:
    """Intervals are more than 0, and are looked at also where nothing is to be reckoned with them."""
    with pytest.raises(ValueError, match=rf"^{name} must be more than 0 seconds, not "):
        forecast(**{name: value})
    with pytest.raises(ValueError, match=rf"^{name} must be more than 0 seconds, not "):
        forecast(**{name: value}, idle=HOUR, outage=HOUR)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.8", True, 10**400], ids=lambda value: repr(value)[:20])
def test_a_bad_price_is_refused_by_name(value: Any) -> None:
    """A price is a number, 0 or more."""
    with pytest.raises(ValueError, match=r"^price_per_million must be a number, 0 or more, not "):
        forecast(price_per_million=value)


def test_an_unknown_argument_is_refused() -> None:
    """A misspelt argument is not ignored, and arguments have no positions."""
    with pytest.raises(TypeError, match="mesages"):
        forecast(mesages=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        forecast(1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [*DURATIONS, *INTERVALS])
def test_seconds_and_timedelta_are_the_same(name: str) -> None:
    """Every duration may be said either way."""
    around: dict[str, Any] = {"outage": DAY, "idle": DAY}
    assert forecast(**{**around, name: 900}) == forecast(**{**around, name: timedelta(minutes=15)})


# --- what is shown -----------------------------------------------------------------------------------------------


def test_a_forecast_is_readable() -> None:
    """One line a kind, numbers under each other with thousands apart, all of them, and the money last."""
    cost = forecast(messages=1_000_000, outage=HOUR, price_per_million=0.8)
    assert str(cost).splitlines() == [
        "send to the backlog             1,000,000",
        "receive from the backlog        1,000,000",
        "send to the primary             1,000,000",
        "receive from the primary        1,000,000",
        "settle in the backlog           1,000,000",
        "settle in the primary           1,000,000",
        "pings                                  60",
        "all operations                  6,000,060",
        "money                                4.80",
    ]


def test_without_a_price_no_money_is_shown() -> None:
    """The sum is the last line; of nothing, too."""
    assert str(forecast(messages=1)).splitlines()[-1].split() == ["all", "operations", "6"]
    assert str(forecast()).split() == ["all", "operations", "0"]


def test_a_forecast_is_a_value() -> None:
    """It can be compared and cannot be changed."""
    assert forecast(messages=3) == forecast(messages=3)
    assert Line("pings", 3) == Line("pings", 3, beyond=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        forecast().price_per_million = 1.0  # type: ignore[misc]


def test_it_is_reached_as_an_attribute_and_by_import() -> None:
    """`pairbus.cost.forecast` is the one that `from pairbus.cost import forecast` gives."""
    assert pairbus.cost.forecast is forecast
    assert pairbus.cost.forecast(messages=1).documented == 4
