"""The status of a pairing, its events in the log, and its events to a callback."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import BacklogUnavailableError, Event, PairedNamespace, PairedNamespaceClosedError, PairedSender
from pairbus.domain.backlog import queue_path
from pairbus.sending import events
from pairbus.sending import pairing as pairing_module
from pairbus.sending.status import EntityStatus
from tests.support.pairing import SLACK, Pair, pairbus_threads, pairing_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_pings")


class Records(logging.Handler):
    """The records that pairbus logs; `on_record` is called with each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []
        self.on_record: Any = lambda record: None

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)
        self.on_record(record)

    def told(self, kind: str) -> list[logging.LogRecord]:
        return [record for record in self.seen if getattr(record, "pairbus", {}).get("kind") == kind]


@pytest.fixture
def records() -> Iterator[Records]:
    """The records of the logger `pairbus`, from INFO on."""
    log = logging.getLogger("pairbus")
    before, handler = log.level, Records()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def entity(bus: PairedNamespace, name: str) -> EntityStatus:
    return bus.status().entities[name]


def take_down(pair: Pair, sender: PairedSender) -> int:
    """Fail one entity over while its namespace runs; the fault's id."""
    fault = pair.primary.faults.unavailable(sender.entity_name)
    pair.declare_down(pairing_of(sender), sender.entity_name)
    sender.send_messages(ServiceBusMessage("parked"))
    return fault


# --- status ----------------------------------------------------------------------------------------------------------


def test_the_status_of_an_entity_in_each_of_its_states(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """State, since when, last error, last ping, sent and parked: right at every step of an outage, and plain JSON."""
    queue = pair.queue()
    bus = pair.pairing(failover_interval=0.5, ping_primary_interval=0.5, ping_timeout=3, send_timeout=20)
    assert bus.status().entities == {}
    sender = bus.get_queue_sender(queue).__enter__()
    began = datetime.now(timezone.utc)

    found = entity(bus, queue)
    assert (found.path, found.state, found.sent, found.parked) == (queue, "available", 0, 0)
    assert (found.last_error, found.last_error_at, found.last_ping_at, found.last_ping_error) == (None,) * 4
    assert found.since <= began
    sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    assert entity(bus, queue).sent == 2

    monkeypatch.setattr("pairbus.sending.sender._RETRIES", 0)  # what the service answers counts at once
    fault = pair.primary.faults.unavailable(queue)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("lost"))
    found = entity(bus, queue)
    assert (found.state, found.sent, found.parked, found.last_ping_at) == ("suspect", 2, 0, None)
    assert found.since > began
    assert found.last_error
    assert found.last_error_at is not None
    assert began < found.last_error_at <= datetime.now(timezone.utc)
    suspected = found.since

    time.sleep(0.5)
    sender.send_messages(ServiceBusMessage("3"))
    found = entity(bus, queue)
    assert (found.state, found.sent, found.parked) == ("failed over", 2, 1)
    assert found.since > suspected
    failed = wait_until(lambda: entity(bus, queue).last_ping_error and entity(bus, queue))
    assert failed.last_ping_at > found.since

    pair.delete_queue(queue)
    pair.primary.faults.clear(fault)
    wait_until(lambda: entity(bus, queue).state == "unusable")
    assert entity(bus, queue).last_ping_error
    with pair.admin(pair.primary) as admin:
        admin.create_queue(queue)
    wait_until(lambda: entity(bus, queue).state == "available")
    found = entity(bus, queue)
    assert found.last_ping_error is None
    assert found.last_error, "what the last error was is still worth knowing"
    sender.send_messages(ServiceBusMessage("4"))
    assert (entity(bus, queue).sent, entity(bus, queue).parked) == (3, 1)

    plain = json.loads(json.dumps(bus.status().as_dict()))
    assert plain["entities"][queue]["state"] == "available"
    assert plain["closed"] is False
    assert plain["primary"] == f"127.0.0.1:{pair.primary.port}"
    assert plain["secondary"] == f"127.0.0.1:{pair.secondary.port}"
    assert sum(each["parked"] for each in plain["queues"].values()) == 1
    bus.close()
    assert bus.status().closed
    assert entity(bus, queue).parked == 1, "a closed pairing can still be asked"


def test_a_status_can_be_told_as_json(pair: Pair) -> None:
    """As it is, for a health endpoint: times and durations are texts that can be read back, and nothing is lost."""
    path = queue_path(pair.name, 0)
    with pair.admin(pair.secondary) as admin:
        admin.create_queue(path, lock_duration=timedelta(seconds=90.5), max_delivery_count=5)
    queue = pair.queue()
    bus = pair.pairing()
    bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    status = bus.status()
    found = json.loads(json.dumps(status.as_dict()))
    told = found["entities"][queue]
    assert datetime.fromisoformat(told["since"]) == status.entities[queue].since
    assert datetime.fromisoformat(told["last_error_at"]) == status.entities[queue].last_error_at
    assert told["last_ping_at"] is None
    differences = found["queues"][path]["differences"]
    assert differences["lock_duration"] == ["P0DT0H1M30.500000S", "P0DT0H1M0S"]
    assert differences["max_delivery_count"] == [5, 2147483647]
    assert found["queues_asked"] == 2
    assert set(found) == set(asdict(status))


def test_counts_are_exact_under_eight_threads(pair: Pair) -> None:
    """Sent and parked, by entity and by backlog queue, and the operations agree with what the namespaces hold."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue).__enter__()

    def send_all() -> None:
        def send() -> None:
            for _ in range(10):
                sender.send_messages(ServiceBusMessage("one"))
                sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")])

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    send_all()
    assert (entity(bus, queue).sent, entity(bus, queue).parked) == (240, 0)
    assert pair.arrived(queue) == 240
    pair.fail_over(sender)
    send_all()
    status = bus.status()
    assert (status.entities[queue].sent, status.entities[queue].parked) == (240, 241)
    assert {path: each.parked for path, each in status.queues.items()} == pair.parked_by_queue()
    assert pair.parked() == 241
    assert status.operations["send"] == 240
    assert status.operations["park"] == 241


def test_operations_are_counted_by_kind_and_by_each_64_kb(pair: Pair) -> None:
    """Send, park, ping and management have lines of their own; a message of 100 KB is two operations."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=0.5)
    sender = bus.get_queue_sender(queue)
    assert bus.status().operations == {"management": 4}
    big = ServiceBusMessage(b"x" * 100_000)
    sender.send_messages(big)
    sender.send_messages(ServiceBusMessage("small"))
    assert bus.status().operations == {"management": 4, "send": 3}
    pair.primary.kill()
    sender.send_messages(big)
    assert bus.status().operations == {"management": 4, "send": 3, "park": 2}
    pair.primary.restart()
    wait_until(lambda: entity(bus, queue).state == "available")
    assert bus.status().operations == {"management": 4, "send": 3, "park": 2, "ping": 1}


def test_a_queue_out_of_the_rotation_says_why_and_comes_back(
    pair: Pair, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that refused a send is out, with its error; after the interval it is in again, and an event says so."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=5, ping_timeout=1, send_timeout=20)
    pair.primary.kill()
    bad, good = pair.backlog()
    monkeypatch.setattr(bus.backlog.rotation, "choose", min)  # the bad one
    fault = pair.secondary.faults.reject("amqp:resource-limit-exceeded", bad, description="none of yours")
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("parked"))
    status = bus.status()
    assert not status.queues[bad].in_rotation
    assert "none of yours" in (status.queues[bad].why or "")
    assert (status.queues[good].in_rotation, status.queues[good].why) == (True, None)
    (left,) = records.told("queue left rotation")
    assert left.pairbus["queue"] == bad  # type: ignore[attr-defined]
    assert pair.parked_by_queue()[bad] == 0
    pair.secondary.faults.clear(fault)
    wait_until(lambda: bus.status().queues[bad].in_rotation)

    def came_back() -> Any:
        bus.get_queue_sender(queue).send_messages(ServiceBusMessage("parked"))
        return records.told("queue back in rotation")

    (back,) = wait_until(came_back)
    assert back.pairbus["queue"] == bad
    assert bus.status().queues[bad].parked == pair.parked_by_queue()[bad] == 1


def test_the_status_when_no_queue_is_left(pair: Pair) -> None:
    """All queues out: each says why, and the caller's error carries the same reasons."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    pair.fail_over(sender)
    pair.secondary.kill()
    with pytest.raises(BacklogUnavailableError) as raised:
        sender.send_messages(ServiceBusMessage("nowhere"))
    queues = bus.status().queues
    assert not any(each.in_rotation for each in queues.values())
    assert {path: each.why for path, each in queues.items()} == raised.value.reasons
    assert entity(bus, queue).parked == 1


# --- events ----------------------------------------------------------------------------------------------------------


def test_an_outage_is_told_to_the_log_and_to_the_callback_alike(pair: Pair, records: Records) -> None:
    """Failed over, failed back, closed: in order, as records with a `pairbus` dict and as the same Event objects."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=0.5)
    sender = bus.get_queue_sender(queue)
    pair.fail_over(sender)
    pair.primary.restart()
    wait_until(lambda: pair.told("failed back"))
    bus.close()
    kinds = [record.pairbus["kind"] for record in records.seen]  # type: ignore[attr-defined]
    assert [kind for kind in kinds if kind != "ping failed"] == ["failed over", "failed back", "pairing closed"]
    assert [event.kind for event in pair.events] == kinds
    (over,) = records.told("failed over")
    assert (over.name, over.levelno) == ("pairbus", logging.WARNING)
    fields = over.pairbus  # type: ignore[attr-defined]
    assert (fields["primary"], fields["entity"], fields["queue"]) == (pair.name, queue, None)
    assert fields["details"]["error"] == entity(bus, queue).last_error
    assert fields["at"] == pair.told("failed over")[0].at
    assert queue in over.getMessage()
    json.dumps(fields, default=str)
    assert {record.levelno for record in records.told("failed back")} == {logging.INFO}


def test_a_suspect_that_recovers_is_told(pair: Pair, records: Records) -> None:
    """A failure that does not last: "entity suspected", then "entity recovered", and no failover."""
    queue = pair.queue()
    bus = pair.pairing(failover_interval=60)
    sender = bus.get_queue_sender(queue).__enter__()
    fault = pair.primary.faults.unavailable(queue)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("lost"), timeout=1.5)
    pair.primary.faults.clear(fault)
    sender.send_messages(ServiceBusMessage("direct"))
    assert len(records.told("entity suspected")) == len(records.told("entity recovered")) == 1
    assert not records.told("failed over")
    assert entity(bus, queue).state == "available"


def test_every_kind_of_event_is_a_word_of_its_own() -> None:
    """Monitors match on these: they differ, and each level is for a kind that exists."""
    kinds = [value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)]
    assert len(kinds) == len(set(kinds)) == 14
    assert set(events._LEVELS) <= set(kinds)


def test_a_callback_that_raises_breaks_nothing_and_goes_on_hearing(pair: Pair, records: Records) -> None:
    """Its error, be it `sys.exit()`, is logged; sends, pings and close go on, and later events still reach it."""
    heard: list[str] = []

    def callback(event: Event) -> None:
        heard.append(event.kind)
        raise SystemExit(3) if len(heard) == 1 else RuntimeError("my own bug")

    queue = pair.queue()
    bus = pair.pairing(on_event=callback, ping_primary_interval=0.5)
    sender = bus.get_queue_sender(queue)
    pair.primary.faults.clear(take_down(pair, sender))
    wait_until(lambda: entity(bus, queue).state == "available")
    sender.send_messages(ServiceBusMessage("direct"))
    wait_until(lambda: "failed back" in heard)
    bus.close()
    assert [kind for kind in heard if kind != "ping failed"] == ["failed over", "failed back", "pairing closed"]
    complaints = [record for record in records.seen if "on_event failed" in record.getMessage()]
    assert len(complaints) == len(heard)
    assert all(record.exc_info for record in complaints)
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_a_callback_that_never_returns_blocks_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, records: Records
) -> None:
    """Sends, failover, pings and failback go on; that it misses events is logged, once; close waits for it no longer
    than it may; later its thread ends."""
    monkeypatch.setattr(pairing_module, "_HALF_SECONDS", 1.0)
    go_on = threading.Event()
    heard: list[str] = []

    def callback(event: Event) -> None:
        heard.append(event.kind)
        go_on.wait(60)

    queue = pair.queue()
    bus = pair.pairing(on_event=callback, ping_primary_interval=0.5)
    sender = bus.get_queue_sender(queue)
    pair.primary.faults.clear(take_down(pair, sender))
    wait_until(lambda: entity(bus, queue).state == "available")
    sender.send_messages(ServiceBusMessage("direct"))
    for _ in range(2000):  # more than may wait for it
        bus._emit("test")
    wait_until(lambda: heard)
    assert heard == ["failed over"]
    assert len([record for record in records.seen if "on_event is slow" in record.getMessage()]) == 1
    began = time.monotonic()
    bus.close()
    assert time.monotonic() - began < 5 + SLACK
    assert pair.bodies(queue) == ["direct"]
    go_on.set()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_a_callback_may_ask_for_the_status_and_close_the_pairing(pair: Pair) -> None:
    """`bus.status()` and `bus.close()` from the callback: no deadlock, and its thread ends."""
    seen: list[Any] = []
    made: list[PairedNamespace] = []

    def callback(event: Event) -> None:
        if event.kind == "failed over":
            seen.append(made[0].status().entities[event.entity or ""].state)
            made[0].close()
            seen.append("closed")

    queue = pair.queue()
    made.append(pair.pairing(on_event=callback))
    message = ServiceBusMessage("parked before, or refused after")
    pair.primary.kill()
    refused: list[Any] = []
    try:
        made[0].get_queue_sender(queue).send_messages(message)
    except PairedNamespaceClosedError as error:
        refused = error.messages  # type: ignore[attr-defined]
    assert len(refused) + pair.parked() == 1
    wait_until(lambda: len(seen) == 2)
    assert seen == ["failed over", "closed"]
    assert made[0].status().closed
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_a_log_handler_may_ask_for_the_status(pair: Pair, records: Records) -> None:
    """`bus.status()` in a logging handler, for every event of an outage: no deadlock, and the state is the new one."""
    states: dict[str, str] = {}
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=0.5)

    def ask(record: logging.LogRecord) -> None:
        found = bus.status()
        assert json.dumps(found.as_dict())
        states[record.pairbus["kind"]] = found.entities[queue].state  # type: ignore[attr-defined]

    records.on_record = ask
    sender = bus.get_queue_sender(queue)
    pair.primary.faults.clear(take_down(pair, sender))
    wait_until(lambda: "failed back" in states)
    assert states["failed over"] == "failed over"
    assert states["failed back"] == "available"
    bus.close()
    assert "pairing closed" in states
