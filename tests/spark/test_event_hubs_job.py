"""Events that were parked for event hubs, delivered by the Spark job: a third reference, resolved on executors."""

from __future__ import annotations

from azure.eventhub import EventData
from pyspark.sql import SparkSession

from pairbus.config.syphon_config import SyphonConfig
from pairbus.spark import syphon, verify
from tests.support.event_hubs import KEY, Hubs, body, hubs, hubs_bus, message_annotations
from tests.support.spark import Backlog

__all__ = ["hubs", "hubs_bus"]


def with_hubs(backlog: Backlog, hubs: Hubs) -> SyphonConfig:
    """Return a configuration with a reference to the namespace of the event hubs."""
    backlog.config()  # writes the secrets of the two
    secret = backlog.folder / "secrets" / "hubs"
    secret.write_text(hubs.bus.connection_string)
    authority = {"ca_file": str(hubs.bus.ca_file)} if hubs.bus.ca_file else {}
    return SyphonConfig.from_mapping(
        {**backlog.mapping(), "event_hubs": {"connection": f"file:{secret}", "name": "hubs", **authority}}
    )


def park_events(hubs: Hubs, hub: str) -> None:
    """Park four events with a paired producer while their namespace is down."""
    producer = hubs.pairing().get_event_hub_producer(hub)
    hubs.kill()
    producer.send_event(EventData("anywhere"))
    producer.send_event(EventData("third"), partition_id="2")
    producer.send_batch([EventData("a"), EventData("b")], partition_key="k")
    hubs.pair.close_pairings()


def test_parked_events_are_delivered(spark: SparkSession, backlog: Backlog, hubs: Hubs) -> None:
    """To their hub, with partition and key, beside messages for the primary; the ledger has the hub's host."""
    hub, queue = hubs.hub(), hubs.pair.queue()
    park_events(hubs, hub)
    backlog.park({0: queue, 1: queue}, 3)
    hubs.heal()
    config = with_hubs(backlog, hubs)
    job = syphon(spark, config)
    assert job.run_once() == ()
    assert hubs.pair.arrived(queue) == 6
    assert backlog.depths() == {0: 0, 1: 0}
    found = hubs.read(hub)
    assert sorted(body(each) for events in found.values() for each in events) == ["a", "anywhere", "b", "third"]
    assert "third" in [body(each) for each in found["2"]]
    keyed = [each for events in found.values() for each in events if body(each) in "ab"]
    assert {message_annotations(each)[KEY] for each in keyed} == {"k"}
    outcomes = job.ledger.outcomes().groupBy("destination", "outcome").count().collect()
    assert {tuple(row) for row in outcomes} == {
        (queue, "delivered", 6),
        (f"sb://{hubs.host}/{hub}", "delivered", 3),
        (f"sb://{hubs.host}/{hub}/Partitions/2", "delivered", 1),
    }
    assert config.ledger is not None
    assert verify(spark, config.ledger).ok


def test_hubs_that_are_down_delay_no_messages(spark: SparkSession, backlog: Backlog, hubs: Hubs) -> None:
    """Their events are held, messages for the primary are delivered; a later run delivers the events."""
    hub, queue = hubs.hub(), hubs.pair.queue()
    park_events(hubs, hub)
    backlog.park({0: queue, 1: queue}, 3)
    config = with_hubs(backlog, hubs)
    held = syphon(spark, config).run_once()
    assert sum(each.count for each in held) == 4
    assert {each.destination for each in held} == {f"sb://{hubs.host}/{hub}", f"sb://{hubs.host}/{hub}/Partitions/2"}
    assert (hubs.pair.arrived(queue), sum(backlog.depths().values())) == (6, 4)
    hubs.heal()
    assert syphon(spark, config).run_once() == ()
    assert hubs.bodies(hub) == ["a", "anywhere", "b", "third"]
