"""Events that were parked for an event hub are moved to it, to their partition, with their key."""

from __future__ import annotations

from typing import Any

import pytest
from azure.eventhub import EventData

from pairbus.syphon.amqp.link import Sender
from tests.support.backlog import Backlog, encoded, numbered
from tests.support.event_hubs import KEY, Hubs, body, hubs, hubs_bus, message_annotations
from tests.support.pairing import Pair

__all__ = ["hubs", "hubs_bus"]


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Record the addresses that got batches in Service Bus's format."""
    addresses: set[str] = set()
    send_batch = Sender.send_batch

    def many(self: Sender, head: bytes, messages: list[bytes], context: Any) -> None:
        addresses.add(self._wrapper.target.address)
        send_batch(self, head, messages, context)

    monkeypatch.setattr(Sender, "send_batch", many)
    return addresses


def test_events_are_moved_to_their_hub(pair: Pair, backlog: Backlog, hubs: Hubs) -> None:
    """Events that a paired producer parked while the hub was down arrive there; messages go to the primary."""
    hub, queue = hubs.hub(), pair.queue()
    bus = hubs.pairing(backlog_queue_count=1)
    producer = bus.get_event_hub_producer(hub)
    hubs.kill()
    producer.send_event(EventData("anywhere"))
    producer.send_event(EventData("third"), partition_id="2")
    producer.send_batch([EventData("a"), EventData("b")], partition_key="k")
    pair.close_pairings()
    backlog.park(queue, encoded("a message"))
    hubs.heal()
    summary = backlog.drain(event_hubs=hubs.namespace())
    assert (summary.delivered, summary.dead_lettered, summary.held, summary.error) == (5, 0, 0, None)
    assert pair.bodies(queue) == ["a message"]
    found = hubs.read(hub)
    assert hubs.bodies(hub) == ["a", "anywhere", "b", "third"]
    assert "third" in [body(each) for each in found["2"]]
    keyed = [each for events in found.values() for each in events if body(each) in "ab"]
    assert {message_annotations(each)[KEY] for each in keyed} == {"k"}
    assert {row["destination"] for row in backlog.journal.rows} == {
        queue,
        f"sb://{hubs.host}/{hub}",
        f"sb://{hubs.host}/{hub}/Partitions/2",
    }


def test_events_are_sent_singly(pair: Pair, backlog: Backlog, hubs: Hubs, batched: set[str]) -> None:
    """A hub gives a batch to one partition, and Service Bus's format is not its own, however many events wait."""
    hub, queue = hubs.hub(), pair.queue()
    backlog.park(hub, *numbered(40), namespace=hubs.host)
    backlog.park(f"{hub}/Partitions/1", *[encoded("for one", session="a") for _ in range(4)], namespace=hubs.host)
    backlog.park(queue, *numbered(40))
    summary = backlog.drain(event_hubs=hubs.namespace())
    assert (summary.delivered, summary.error) == (84, None)
    assert batched == {queue}
    assert hubs.bodies(hub) == sorted([f"m{number}" for number in range(40)] + ["for one"] * 4)
    assert [body(each) for each in hubs.read(hub)["1"]].count("for one") == 4


def test_a_hub_that_is_down_holds_up_no_queue(pair: Pair, backlog: Backlog, hubs: Hubs) -> None:
    """Its events stay in the backlog until it is back; messages for the primary arrive."""
    hub, queue = hubs.hub(), pair.queue()
    backlog.park(hub, encoded("an event"), namespace=hubs.host)
    backlog.park(queue, encoded("a message"))
    hubs.kill()
    summary = backlog.drain(event_hubs=hubs.namespace())
    assert (summary.delivered, summary.held, summary.dead_lettered) == (1, 1, 0)
    (held,) = summary.held_for
    assert held.destination == f"sb://{hubs.host}/{hub}"
    hubs.heal()
    assert backlog.drain(event_hubs=hubs.namespace()).delivered == 1
    assert hubs.bodies(hub) == ["an event"]


def test_a_primary_that_is_down_holds_up_no_hub(pair: Pair, backlog: Backlog, hubs: Hubs) -> None:
    """Its messages stay in the backlog; events arrive."""
    hub, queue = hubs.hub(), pair.queue()
    backlog.park(queue, encoded("a message"))
    backlog.park(hub, encoded("an event"), namespace=hubs.host)
    pair.primary.kill()
    summary = backlog.drain(event_hubs=hubs.namespace())
    assert (summary.delivered, summary.held) == (1, 1)
    assert hubs.bodies(hub) == ["an event"]
    # Held events alone would be no error; a primary that is down is one.
    assert summary.error is not None
    assert summary.error.startswith(f"the primary {pair.name} cannot be reached: ")


def test_without_event_hubs_in_its_configuration_events_are_dead_lettered(
    pair: Pair, backlog: Backlog, hubs: Hubs
) -> None:
    """The syphon sends only to hosts that it was configured with."""
    hub = hubs.hub()
    backlog.park(hub, encoded("an event"), namespace=hubs.host)
    assert backlog.drain().dead_lettered == 1
    assert hubs.bodies(hub) == []
