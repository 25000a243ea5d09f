"""Event hubs: the choice of a partition, and the numbers of its events."""

from __future__ import annotations

import pytest

from pairbus.localbus.bus_errors import ARGUMENT_OUT_OF_RANGE, BusError
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.message import Draft
from pairbus.localbus.settings import HubSettings


def test_a_key_always_has_the_same_partition() -> None:
    """Keys are spread over all partitions, and a key stays at its own, in another hub object too."""
    hub, again = (Hub(0, HubSettings("h", partition_count=4), 0.0) for _ in range(2))
    chosen = {key: hub.choose(key).id for key in map(str, range(200))}
    assert {again.choose(key).id == id for key, id in chosen.items()} == {True}
    assert set(chosen.values()) == {"0", "1", "2", "3"}


def test_events_without_a_key_go_to_the_partitions_in_turn() -> None:
    """Each partition gets its share."""
    hub = Hub(0, HubSettings("h", partition_count=3), 0.0)
    ids = [hub.choose(None).id for _ in range(6)]
    assert ids[:3] == ids[3:]
    assert sorted(ids[:3]) == ["0", "1", "2"]


def test_sequence_numbers_count_events_and_offsets_bytes() -> None:
    """Both start at 0, and go on after events were restored."""
    partition = Hub(0, HubSettings("h", partition_count=1), 0.0).partition("0")
    events = [partition.append(Draft(b"x" * size, size), 1.0) for size in (10, 20, 30)]
    assert [(event.sequence, event.offset) for event in events] == [(0, 0), (1, 10), (2, 30)]
    restored = Hub(0, HubSettings("h", partition_count=1), 0.0).partition("0")
    for event in events:
        restored.restore(event)
    added = restored.append(Draft(b"y", 1), 2.0)
    assert (added.sequence, added.offset) == (3, 60)


def test_an_unknown_partition_is_refused() -> None:
    """The error names the partitions that exist."""
    hub = Hub(0, HubSettings("h", partition_count=2), 0.0)
    with pytest.raises(BusError, match="valid are 0, 1") as refused:
        hub.partition("2")
    assert refused.value.condition == ARGUMENT_OUT_OF_RANGE
