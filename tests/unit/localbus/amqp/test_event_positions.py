"""The position at which a consumer of an event hub starts."""

from __future__ import annotations

import pytest

from pairbus.localbus.amqp.hub_consumer import start_position
from pairbus.localbus.bus_errors import ARGUMENT_ERROR, BusError
from pairbus.localbus.entities.hubs import Event, Partition


@pytest.fixture
def partition() -> Partition:
    """Return a partition with three events: numbers 0 to 2, offsets 0, 10 and 30, enqueued at 5, 6 and 8 s."""
    found = Partition("0")
    for event in (Event(0, 0, 5.0, b"x" * 10), Event(1, 10, 6.0, b"x" * 20), Event(2, 30, 8.0, b"x")):
        found.restore(event)
    return found


@pytest.mark.parametrize(
    ("name", "inclusive", "value", "index"),
    [
        ("offset", False, "-1", 0),
        ("offset", False, "@latest", 3),
        ("offset", False, "10", 2),
        ("offset", True, "10", 1),
        ("offset", True, "11", 2),
        ("offset", False, "30", 3),
        ("sequence-number", False, "0", 1),
        ("sequence-number", True, "0", 0),
        ("sequence-number", True, "2", 2),
        ("sequence-number", True, "3", 3),
        ("enqueued-time", False, "6000", 2),
        ("enqueued-time", True, "6000", 1),
        ("enqueued-time", False, "5999", 1),
        ("enqueued-time", False, "7000", 2),
        ("enqueued-time", False, "8000", 3),
    ],
)
def test_a_position_is_the_first_event_after_a_value(
    partition: Partition, name: str, inclusive: bool, value: str, index: int
) -> None:
    """The value is compared with the named annotation; an inclusive position contains it."""
    assert start_position(partition, name, inclusive, value) == index


def test_a_position_that_is_not_a_number_is_refused(partition: Partition) -> None:
    """The error names the value."""
    with pytest.raises(BusError, match="'soon'") as caught:
        start_position(partition, "offset", False, "soon")
    assert caught.value.condition == ARGUMENT_ERROR
