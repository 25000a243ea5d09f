"""Event hubs as destinations: sent to, parked for, failed back to, counted, through azure-eventhub and localbus.

A third process serves the event hubs. Each test takes hubs of its own; what is read back are the bytes on the wire.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import pickle
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import (
    AuthenticationError,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    EventDataSendError,
    EventHubError,
    OperationTimeoutError,
)
from azure.servicebus import ServiceBusMessage
from proton import int32

from pairbus import (
    BacklogUnavailableError,
    Namespace,
    NotParkableError,
    NotSupportedError,
    OptionError,
    PairedEventHubProducer,
    PairedNamespaceClosedError,
    pair_namespaces,
)
from pairbus.domain.amqp import sections as amqp
from pairbus.domain.amqp.sections import split
from pairbus.sending.sdk import event_hub_sender
from pairbus.sending.sdk.connection_patches import patch_connection
from tests.support.event_hubs import (
    KEY,
    Hubs,
    body,
    event,
    message_annotations,
    properties,
    restored,
)
from tests.support.pairing import SLACK, Pair, come_back, entity_of, on_parking, pairbus_threads, returned_messages
from tests.support.raw_client import sas_token
from tests.support.send_ledger import peek
from tests.support.spans import traced
from tests.support.waiting import wait_until

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "sender.md"


# --- while all is well -----------------------------------------------------------------------------------------------


def test_every_form_arrives_as_the_sdk_would_have_sent_it(hubs: Hubs) -> None:
    """One event, a list, a batch, an annotated message; with a partition key, with a partition id, with neither."""
    ours, theirs = hubs.hub(), hubs.hub()

    def send(producer: Any) -> None:
        producer.send_event(event("plain"))
        producer.send_event(event("keyed", n=1, yes=True), partition_key="k")
        producer.send_event(event("placed"), partition_id="3")
        producer.send_batch([event("list 1"), event("list 2", text="é")])
        producer.send_batch([event("keyed list 1"), event("keyed list 2")], partition_key="k")
        producer.send_batch(iter([event("placed list")]), partition_id="3")
        mine = {"properties": {"message_id": "m"}, "annotations": {"x-opt-a": "b"}}
        producer.send_event(AmqpAnnotatedMessage(data_body=b"annotated", **mine))
        producer.send_batch([AmqpAnnotatedMessage(data_body=b"annotated list", **mine)])
        for where in ({}, {"partition_key": "k"}, {"partition_id": "3"}):
            batch = producer.create_batch(**where)
            batch.add(event(f"batch {where}"))
            batch.add(event(f"batch {where} again"))
            producer.send_batch(batch)

    with EventHubProducerClient.from_connection_string(hubs.bus.connection_string, eventhub_name=theirs) as plain:
        send(plain)
    bus = hubs.pairing()
    with bus.get_event_hub_producer(ours) as producer:
        send(producer)

    def sent(hub: str) -> dict[str, bytes]:
        events = [each for partition in hubs.read(hub).values() for each in partition]
        return {body(each): restorable(each) for each in events}

    found, wanted = hubs.read(ours), sent(theirs)
    assert sent(ours) == wanted
    assert sum(map(len, found.values())) == len(wanted) == 16
    assert {"placed", "placed list"} <= {body(each) for each in found["3"]}
    keyed = {key: part for part, events in found.items() for each in events for key in [body(each)] if "keyed" in key}
    assert len(set(keyed.values())) == 1
    entities = bus.status().entities
    assert entities[hubs.name(ours)].sent == 12
    assert entities[hubs.name(f"{ours}/Partitions/3")].sent == 4
    assert bus.status().operations["send"] == 16
    assert hubs.pair.parked() == 0


def restorable(payload: bytes) -> bytes:
    """An event as it was sent: without the header and annotations that are the broker's."""
    kept = {key: value for key, value in message_annotations(payload).items() if key in (KEY, "x-opt-a")}
    rest = b"".join(
        payload[each.start : each.end]
        for each in split(payload)
        if each.code not in (amqp.MESSAGE_ANNOTATIONS, amqp.HEADER)
    )
    return repr(sorted(kept.items())).encode() + rest


def test_over_tls_with_a_signature(hubs: Hubs) -> None:
    """A port in the host, a private authority, a shared access signature; other tests have plain AMQP and a key."""
    hub = hubs.hub()
    signature = AzureSasCredential(sas_token(hubs.bus, f"sb://{hubs.host}/{hub}"))
    namespace = Namespace(hubs.host, credential=signature, name="hubs", ca_file=hubs.bus.ca_file)
    with hubs.pairing(namespace).get_event_hub_producer(hub) as producer:
        producer.send_event(event("secret"))
    assert hubs.bodies(hub) == ["secret"]


def test_the_callers_events_are_not_changed(hubs: Hubs) -> None:
    """Neither by sending nor by parking: no partition key, no message, nothing is left in them."""
    hub = hubs.hub()
    bus = hubs.pairing()
    given = [event("a", n=1), AmqpAnnotatedMessage(data_body=b"b"), EventData("c")]
    before = [picture(each) for each in given]
    with bus.get_event_hub_producer(hub) as producer:
        for _ in range(2):
            for each in given:
                producer.send_event(each, partition_key="k")
            producer.send_batch(given, partition_key="k")
            producer.can_park(given, partition_key="k")
            assert [picture(each) for each in given] == before
            if hubs.state(bus, hub) == "available":
                hubs.kill()
    assert hubs.state(bus, hub) == "failed over"
    assert hubs.pair.parked() == 6


def picture(given: Any) -> Any:
    raw = given.raw_amqp_message if isinstance(given, EventData) else given
    found = copy.deepcopy({name: value for name, value in vars(raw).items() if name not in ("_header", "_properties")})
    return found, getattr(given, "_message", None), str(raw.header), str(raw.properties)


def test_a_key_for_a_message_without_annotations_is_not_lost(hubs: Hubs) -> None:
    """The SDK loses it, or stumbles over it in a batch."""
    hub = hubs.hub()
    with hubs.pairing().get_event_hub_producer(hub) as producer:
        producer.send_event(AmqpAnnotatedMessage(data_body=b"one"), partition_key="k")
        producer.send_batch([AmqpAnnotatedMessage(data_body=b"two")], partition_key="k")
    ((_, events),) = hubs.read(hub).items()
    assert [message_annotations(each)[KEY] for each in events] == ["k", "k"]


def test_what_there_is_too_much_of_is_the_sdks_error(hubs: Hubs) -> None:
    """A list that is no batch, also where no link has said yet how large one is; a batch; a single event."""
    hub = hubs.hub()
    bus = hubs.pairing()
    large = [EventData(b"x" * 700_000), EventData(b"x" * 700_000)]
    with bus.get_event_hub_producer(hub) as producer:
        for _ in range(2):
            with pytest.raises(ValueError, match="exceeds the Event Hub frame size limit") as refused:
                producer.send_batch(large)
            assert refused.value.messages == large  # type: ignore[attr-defined]
        batch = producer.create_batch()
        assert batch.max_size_in_bytes == 1024 * 1024
        batch.add(large[0])
        with pytest.raises(ValueError, match="size limit"):
            batch.add(large[1])
        with pytest.raises(ValueError, match="too large, acceptable max batch size is: 1048576 bytes"):
            producer.create_batch(max_size_in_bytes=2 * 1024 * 1024)
        assert producer.create_batch(max_size_in_bytes=1000).max_size_in_bytes == 1000
        with pytest.raises(EventDataSendError) as too_large:
            producer.send_event(EventData(b"x" * 1_100_000))
        assert len(returned_messages(too_large.value)) == 1
    assert hubs.state(bus, hub) == "available"
    assert hubs.pair.parked() == 0


def test_bad_arguments_are_refused_as_in_the_sdk(hubs: Hubs) -> None:
    """And what the SDK would take for something else is refused too."""
    hub = hubs.hub()
    with hubs.pairing().get_event_hub_producer(hub) as producer:
        batch = producer.create_batch(partition_key="k")
        with pytest.raises(TypeError, match="should be None when sending an EventDataBatch"):
            producer.send_batch(batch, partition_key="k")
        with pytest.raises(TypeError, match="partition_id must be a string such as '0', not 0"):
            producer.send_event(event("x"), partition_id=0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="greater than 0"):
            producer.send_event(event("x"), timeout=-1)
        with pytest.warns(UserWarning, match="Unsupported keyword args"):
            producer.send_batch([], partition="0")
        with pytest.raises(AttributeError):
            producer.send_event("no event")

        def broken_off() -> Iterator[EventData]:
            yield event("x")
            raise LookupError("there is no second")

        with pytest.raises(LookupError) as raised:
            producer.send_batch(broken_off())
        assert len(raised.value.messages) == 1  # type: ignore[attr-defined]
        producer.send_batch(batch)  # empty: nothing to send
        producer.send_event(event("sent"), timeout=0)
        producer.flush()
    assert hubs.bodies(hub) == ["sent"]


def test_an_event_that_cannot_be_encoded_is_no_outage(hubs: Hubs) -> None:
    """The SDK reports it like one; it is the caller's mistake, whatever the state of the hub."""
    hub = hubs.hub()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer:
        bad = event("bad", value=2**70)
        with pytest.raises(EventHubError) as refused:
            producer.send_event(bad)
        assert refused.value.messages == [bad]  # type: ignore[attr-defined]
        producer.send_event(event("good"))
        assert hubs.state(bus, hub) == "available"
        hubs.kill()
        with pytest.raises(EventHubError):
            producer.send_event(bad)
    assert hubs.pair.parked() == 0


# --- configuration ---------------------------------------------------------------------------------------------------


def test_a_hub_that_is_not_there_is_no_outage(hubs: Hubs) -> None:
    """Nor is a partition: the SDK's error, and nothing is parked."""
    hub = hubs.hub()
    bus = hubs.pairing()
    for name, partition, kind in ((f"no-{hub}", None, AuthenticationError), (hub, "99", ConnectError)):
        with bus.get_event_hub_producer(name) as producer:
            with pytest.raises(kind) as refused:
                producer.send_event(event("x"), partition_id=partition)
            assert len(refused.value.messages) == 1  # type: ignore[attr-defined]
    assert {status.state for status in bus.status().entities.values()} == {"available"}
    assert hubs.pair.parked() == 0


def test_a_bad_key_is_no_outage(hubs: Hubs) -> None:
    """The SDK's error, and the key is nowhere in it."""
    hub = hubs.hub()
    bad = re.sub(r"SharedAccessKey=[^;]+", "SharedAccessKey=bm90IHRoaXMgb25l", hubs.bus.connection_string)
    bus = hubs.pairing(hubs.namespace(bad))
    with bus.get_event_hub_producer(hub) as producer, pytest.raises(AuthenticationError) as refused:
        producer.send_event(event("x"))
    assert "bm90IHRoaXMgb25l" not in repr(refused.value)
    assert hubs.state(bus, hub) == "available"
    assert hubs.pair.parked() == 0


def test_without_a_namespace_of_event_hubs_there_is_no_producer(pair: Pair) -> None:
    """The error says what to pass."""
    bus = pair.pairing()
    with pytest.raises(OptionError, match=r"telemetry.*event_hubs=Namespace\("):
        bus.get_event_hub_producer("telemetry")


def test_a_name_that_is_none_is_refused(hubs: Hubs) -> None:
    """Partitions are named where events are sent."""
    bus = hubs.pairing()
    names: list[Any] = ["", " ", None, 3, "telemetry/Partitions/0"]
    for name in names:
        with pytest.raises(ValueError, match="the name of an event hub"):
            bus.get_event_hub_producer(name)


@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_the_namespace_of_event_hubs_is_another_one(role: str) -> None:
    """It cannot be one of Service Bus: whoever passes that has mixed up two connection strings."""
    made = {
        name: Namespace(f"{name}.servicebus.windows.net", credential=AzureNamedKeyCredential("k", "v"))
        for name in ("primary", "secondary")
    }
    same = Namespace(f"{role.upper()}.servicebus.windows.net", credential=AzureNamedKeyCredential("k", "v"))
    with pytest.raises(OptionError, match=rf"event_hubs and {role} are the same namespace"):
        pair_namespaces(made["primary"], made["secondary"], event_hubs=same)
    with pytest.raises(OptionError, match="event_hubs must be a Namespace, not str"):
        pair_namespaces(made["primary"], made["secondary"], event_hubs="hubs")  # type: ignore[arg-type]


def test_what_is_refused_before_it_is_sent_comes_back_too(hubs: Hubs) -> None:
    """A bad time-out, a bad partition, a closed producer, a closed pairing: the error has the caller's events."""
    bus = hubs.pairing()
    producer = bus.get_event_hub_producer(hubs.hub())
    one, batch = event("x"), producer.create_batch()
    batch.add(one)

    def refused(kind: type[Exception], given: Any, **options: Any) -> None:
        send: Any = producer.send_event if given is one else producer.send_batch
        with pytest.raises(kind) as raised:
            send(given, **options)
        assert len(raised.value.messages) == 1  # type: ignore[attr-defined]

    for given in (one, [one], batch):
        refused(ValueError, given, timeout=-1)
        refused(ValueError, given, timeout=float("nan"))
    for given in (one, [one]):
        refused(TypeError, given, partition_id=3)
    producer.send_event(one, timeout=float("inf"))
    producer.close()
    for given in (one, [one], batch):
        refused(ClientClosedError, given)
    producer = bus.get_event_hub_producer(hubs.hub())
    bus.close()
    for given in (one, [one], batch):
        refused(PairedNamespaceClosedError, given)


def test_without_azure_eventhub_it_says_what_to_install(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the pairing is made, not at the first send; a pairing without event hubs needs nothing."""
    monkeypatch.setitem(sys.modules, "azure.eventhub", None)
    monkeypatch.delitem(sys.modules, "pairbus.sending.sdk.event_hub_sender")
    with pytest.raises(OptionError, match=r"install pairbus with its extra 'eventhubs'") as refused:
        hubs.pairing()
    assert isinstance(refused.value.__cause__, ImportError)
    with hubs.pair.pairing() as bus:
        assert bus.event_hubs is None
    monkeypatch.undo()
    importlib.import_module("pairbus.sending.sdk.event_hub_sender")


# --- outages ---------------------------------------------------------------------------------------------------------


def test_what_is_parked_names_hub_host_and_partition(hubs: Hubs) -> None:
    """Each parked event has the aliases of its destination and, in its annotation, its key, whoever had it."""
    hub = hubs.hub()
    bus = hubs.pairing(backlog_queue_count=1)
    with bus.get_event_hub_producer(hub) as producer:
        batch = producer.create_batch(partition_key="of the batch")
        batch.add(event("in a batch"))
        own = EventDataBatch(partition_key="of the batch", partition_id="1")
        own.add(event("in a batch of its own"))
        hubs.kill()
        producer.send_event(event("plain", n=1))
        producer.send_event(event("keyed"), partition_key="k")
        producer.send_batch([event("in a list")], partition_key="k")
        producer.send_event(event("placed"), partition_id="2")
        producer.send_event(event("both"), partition_id="2", partition_key="k")
        producer.send_batch(batch)
        producer.send_batch(own)
    parked = hubs.pair.parked_payloads()
    found = {body(each): each for each in parked}
    assert {name: properties(each)["x-ms-path"] for name, each in found.items()} == {
        "plain": hub,
        "keyed": hub,
        "in a list": hub,
        "placed": f"{hub}/Partitions/2",
        "both": f"{hub}/Partitions/2",
        "in a batch": hub,
        "in a batch of its own": f"{hub}/Partitions/1",
    }
    assert {properties(each)["x-pairbus-namespace"] for each in parked} == {hubs.host}
    assert {name: message_annotations(each).get(KEY) for name, each in found.items()} == {
        "plain": None,
        "keyed": "k",
        "in a list": "k",
        "placed": None,
        "both": "k",
        "in a batch": "of the batch",
        "in a batch of its own": "of the batch",
    }
    assert {(restored(each).path, restored(each).namespace) for each in parked} == {
        (hub, hubs.host),
        (f"{hub}/Partitions/1", hubs.host),
        (f"{hub}/Partitions/2", hubs.host),
    }
    entities = bus.status().entities
    assert (entities[hubs.name(hub)].parked, entities[hubs.name(f"{hub}/Partitions/2")].parked) == (4, 2)
    assert entities[hubs.name(hub)].event_hubs == hubs.host
    assert entities[hubs.name(hub)].path == hub
    assert bus.status().operations["park"] == 7
    assert bus.status().event_hubs == hubs.host
    bus.close()  # all is told by then
    assert {each.entity for each in hubs.pair.told("failed over")} == set(entities)


def rich(name: str) -> list[Any]:
    """Events with everything that an event can have."""
    full = event(
        f"{name} full",
        n=1,
        big={"TYPE": "LONG", "VALUE": 2**40},
        text="é",
        yes=True,
        real=0.5,
        none=None,
        raw=b"\x00\xff",
    )
    full.correlation_id, full.content_type = "c", "text/plain"
    full.raw_amqp_message.header.time_to_live = 5
    full.raw_amqp_message.header.priority = 7
    full.raw_amqp_message.properties.group_id = "g"
    full.raw_amqp_message.properties.subject = "s"
    identity = {"message_id": uuid.uuid4()}
    return [
        event(f"{name} plain"),
        full,
        AmqpAnnotatedMessage(value_body={"a": [1, "b"]}, properties=identity, annotations={"x-opt-mine": 3}),
        AmqpAnnotatedMessage(sequence_body=[[1, 2], ["three"]], properties=identity, delivery_annotations={"d": 1}),
        AmqpAnnotatedMessage(
            data_body=[b"two", b"parts"], properties=identity, footer={"f": 1}, header={"durable": True}
        ),
    ]


def test_a_restored_event_is_byte_for_byte_what_the_sdk_would_have_sent(
    hubs: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the bytes that azure-eventhub's own producer gives its link, for the same calls."""
    hub = hubs.hub()
    given = rich("one")

    def send(producer: Any) -> None:
        for each in given:
            producer.send_event(copy.deepcopy(each))
            producer.send_event(copy.deepcopy(each), partition_id="1")
        for each in given[:2]:  # a key for one without annotations is lost by the SDK
            producer.send_event(copy.deepcopy(each), partition_key="k")
            producer.send_batch([copy.deepcopy(each)], partition_key="k")
        producer.send_batch(copy.deepcopy(given))

    # What the SDK hands to its AMQP client, encoded as that does it.
    wire: list[bytes] = []
    with EventHubProducerClient.from_connection_string(
        hubs.bus.connection_string, eventhub_name=hub, retry_total=0
    ) as plain:
        transport = plain._amqp_transport

        def send_messages(producer: Any, timeout_time: Any, last_exception: Any, logger: Any) -> None:
            message = producer._unsent_events[0]
            batch = type(message).__name__ == "BatchMessage"
            wire.extend(bytes(each) for each in message.data) if batch else wire.append(encoded(message))

        monkeypatch.setattr(transport, "send_messages", send_messages)
        send(plain)
        monkeypatch.undo()
    bus = hubs.pairing(backlog_queue_count=1)
    hubs.kill()
    with bus.get_event_hub_producer(hub) as producer:
        send(producer)
    parked = [restored(each).message for each in hubs.pair.parked_payloads()]
    assert len(parked) == len(wire) == 2 * len(given) + 4 + len(given)
    for mine, theirs in zip(parked, wire, strict=True):
        assert mine == theirs


def encoded(message: Any) -> bytes:
    output = bytearray()
    encode_payload(output, message)
    return bytes(output)


OUTAGES: dict[str, Callable[[Hubs, str], object]] = {
    "killed": lambda hubs, hub: hubs.bus.kill(),
    "black hole": lambda hubs, hub: hubs.bus.faults.black_hole(hub),
    "refused": lambda hubs, hub: hubs.bus.faults.unavailable(hub),
    "rejected": lambda hubs, hub: hubs.bus.faults.internal_error(hub),
}


@pytest.mark.parametrize(
    ("outage", "opened"),
    [*((outage, True) for outage in OUTAGES), ("black hole", False)],
)
def test_an_outage_parks(hubs: Hubs, outage: str, opened: bool) -> None:
    """Whatever goes wrong, with a link that is open or none yet: parked in bounded time, and at once from then on."""
    hub = hubs.hub()
    bus = hubs.pairing(send_timeout=6, backlog_queue_count=1)
    with bus.get_event_hub_producer(hub) as producer:
        if opened:
            producer.send_event(event("before"), timeout=30)
        OUTAGES[outage](hubs, hub)
        began = time.monotonic()
        producer.send_event(event("parked"), partition_key="k")
        assert time.monotonic() - began < 2 * 6 + SLACK
        assert hubs.state(bus, hub) == "failed over"
        lasted = []
        for _ in range(5):  # the quickest of some: whoever asked the primary first would need six seconds every time
            began = time.monotonic()
            producer.send_batch([event("parked too")])
            lasted.append(time.monotonic() - began)
        assert min(lasted) < 3
    assert sorted(hubs.pair.parked_bodies()) == ["parked", *["parked too"] * 5]
    hubs.heal()
    expected = ["before"] if opened else []
    assert set(hubs.bodies(hub)) - {"parked"} == set(expected)


def test_a_refusal_is_no_outage(hubs: Hubs) -> None:
    """The SDK's error with the event in it; the link goes on being used."""
    hub = hubs.hub()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer:
        for condition in ("amqp:resource-limit-exceeded", "com.microsoft:entity-disabled", "amqp:unauthorized-access"):
            hubs.bus.faults.reject(condition, hub, count=1)
            given = event("refused")
            with pytest.raises(EventDataSendError) as refused:
                producer.send_event(given)
            assert refused.value.messages == [given]  # type: ignore[attr-defined]
        producer.send_event(event("taken"))
    assert hubs.state(bus, hub) == "available"
    assert hubs.bodies(hub) == ["taken"]
    assert hubs.pair.parked() == 0


def test_a_busy_hub_is_asked_again(hubs: Hubs) -> None:
    """Once, after a pause, as the service asks; then it is the SDK's error."""
    hub = hubs.hub()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer:
        hubs.bus.faults.busy(hub, count=1)
        producer.send_event(event("second try"))
        hubs.bus.faults.busy(hub, count=2)
        with pytest.raises(EventDataSendError):
            producer.send_event(event("third would be needed"))
    assert hubs.state(bus, hub) == "available"
    assert hubs.bodies(hub) == ["second try"]


def test_before_failover_it_is_the_sdks_error(hubs: Hubs) -> None:
    """With an interval the caller sees what azure-eventhub raises, time-outs too, until the interval is over."""
    hub = hubs.hub()
    bus = hubs.pairing(failover_interval=1, send_timeout=1)
    with bus.get_event_hub_producer(hub) as producer:
        producer.send_event(event("before"), timeout=30)
        hubs.bus.pause()
        with pytest.raises(OperationTimeoutError):
            producer.send_event(event("early"))
        assert hubs.state(bus, hub) == "suspect"
        wait_until(lambda: _parks(producer))
        hubs.bus.resume()
    assert hubs.state(bus, hub) == "failed over"


def _parks(producer: PairedEventHubProducer) -> bool:
    try:
        producer.send_event(event("late"))
    except (EventHubError, BacklogUnavailableError):
        return False
    return True


def test_a_link_that_is_gone_is_no_outage(hubs: Hubs) -> None:
    """Cut, or closed by the SDK, while nobody looked: replaced, not counted."""
    hub = hubs.hub()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer:
        producer.send_event(event("1"))
        hubs.bus.faults.drop(hub)
        producer.send_event(event("2"))
        pool = entity_of(bus, hubs.name(hub)).pool
        connection = pool.take()
        connection.sender._producer.running = False  # the SDK would open it again, for as long as it takes
        pool.give_back(connection)
        producer.send_event(event("3"))
    assert bus.status().entities[hubs.name(hub)].last_error is None
    assert hubs.bodies(hub) == list("123")


def test_failback_by_a_link_and_no_event_of_a_ping(hubs: Hubs) -> None:
    """Event Hubs would deliver a ping: whatever the option says, a link is opened, and the hub holds only events. A
    partition that is not there is found out then: its error instead of parking for ever."""
    hub = hubs.hub()
    bus = hubs.pairing(ping="message", ping_primary_interval=1)
    with bus.get_event_hub_producer(hub) as producer:
        hubs.kill()
        producer.send_event(event("parked"))
        producer.send_event(event("parked placed"), partition_id="1")
        producer.send_event(event("parked nowhere"), partition_id="77")
        assert {hubs.state(bus, hub), hubs.state(bus, f"{hub}/Partitions/1")} == {"failed over"}
        hubs.bus.restart()
        wait_until(lambda: hubs.state(bus, hub) == hubs.state(bus, f"{hub}/Partitions/1") == "available", 15)
        producer.send_event(event("direct"))
        producer.send_event(event("direct placed"), partition_id="1")
        wait_until(lambda: hubs.state(bus, f"{hub}/Partitions/77") == "unusable", 15)
        with pytest.raises(ConnectError) as refused:
            producer.send_event(event("refused"), partition_id="77")
        assert len(refused.value.messages) == 1  # type: ignore[attr-defined]
    assert hubs.bodies(hub) == ["direct", "direct placed"]
    assert sorted(hubs.pair.parked_bodies()) == ["parked", "parked nowhere", "parked placed"]
    assert "ping" not in bus.status().operations


def test_hubs_partitions_and_queues_fail_one_by_one(hubs: Hubs) -> None:
    """One hub down says nothing of another, of its own partitions, or of a queue of the same name."""
    hub, other = hubs.hub(), hubs.hub()
    with hubs.pair.admin(hubs.pair.primary) as admin:
        admin.create_queue(hub)
    bus = hubs.pairing()
    with (
        bus.get_event_hub_producer(hub) as producer,
        bus.get_event_hub_producer(hub.upper()) as same,
        bus.get_event_hub_producer(other) as another,
        bus.get_queue_sender(hub) as sender,
    ):
        hubs.bus.faults.unavailable(hub)
        producer.send_event(event("parked"), partition_id="0", timeout=6)
        assert hubs.state(bus, f"{hub}/Partitions/0") == "failed over"
        another.send_event(event("direct"))
        sender.send_messages(ServiceBusMessage("direct"))
        hubs.bus.faults.clear()
        producer.send_event(event("whole hub"))
        producer.send_event(event("partition 1"), partition_id="1")
        same.send_event(event("parked too"), partition_id="0")
        states = {name: status.state for name, status in bus.status().entities.items()}
    assert states == {
        hub: "available",
        hubs.name(hub): "available",
        hubs.name(other): "available",
        hubs.name(f"{hub}/Partitions/0"): "failed over",
        hubs.name(f"{hub}/Partitions/1"): "available",
    }
    assert sorted(hubs.pair.parked_bodies()) == ["parked", "parked too"]
    assert hubs.bodies(hub) == ["partition 1", "whole hub"]
    assert hubs.bodies(other) == ["direct"]
    assert hubs.pair.bodies(hub) == ["direct"]


def test_one_being_a_queue_does_not_fail_the_hub(hubs: Hubs) -> None:
    """The primary is down, the hubs are not."""
    hub, queue = hubs.hub(), hubs.pair.queue()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer, bus.get_queue_sender(queue) as sender:
        hubs.pair.primary.kill()
        sender.send_messages(ServiceBusMessage("parked"))
        producer.send_event(event("direct"))
    assert hubs.bodies(hub) == ["direct"]
    (parked,) = hubs.pair.parked_payloads()
    assert "x-pairbus-namespace" not in properties(parked)


def test_nothing_is_lost_while_hubs_come_and_go(hubs: Hubs) -> None:
    """Threads send in all forms while the hub's process is killed and comes back: every event whose send returned is
    in the hub or in a backlog queue, unchanged in its key, and no other than those whose answer was lost is twice."""
    hub = hubs.hub()
    bus = hubs.pairing(ping_primary_interval=1, send_timeout=20)
    accepted: set[str] = set()
    ending = threading.Event()
    trouble: list[BaseException] = []

    def stream(number: int) -> None:
        try:
            for turn in itertools.count():
                texts = [f"{number}-{turn}-{each}" for each in range(3 if turn % 3 else 1)]
                if turn % 3 == 0:
                    producer.send_event(event(texts[0]), partition_key=f"k{number}")
                elif turn % 3 == 1:
                    producer.send_batch([event(each) for each in texts], partition_id=str(number))
                else:
                    batch = producer.create_batch(partition_key=f"k{number}")
                    for each in texts:
                        batch.add(event(each))
                    producer.send_batch(batch)
                accepted.update(texts)
                if ending.wait(0.01):
                    return
        except BaseException as error:
            trouble.append(error)

    def grows() -> None:
        wanted = len(accepted) + 40
        wait_until(lambda: trouble or len(accepted) > wanted, 20)

    with bus.get_event_hub_producer(hub) as producer:
        threads = [threading.Thread(target=stream, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        grows()
        hubs.kill()
        wait_until(lambda: trouble or hubs.state(bus, hub) == "failed over", 15)
        grows()
        hubs.bus.restart()
        wait_until(lambda: trouble or all(each.state == "available" for each in bus.status().entities.values()), 20)
        grows()
        ending.set()
        for thread in threads:
            thread.join(20)
    assert not trouble
    direct = [each for events in hubs.read(hub).values() for each in events]
    parked = [restored(each).message for path in hubs.pair.backlog() for each in peek(hubs.pair.secondary, path)]
    found = [body(each) for each in direct + parked]
    assert set(found) == accepted
    assert len(found) - len(accepted) <= 9, "only what was under way when the process died may be there twice"
    assert parked
    assert {message_annotations(each).get(KEY) for each in direct + parked} == {"k0", "k1", "k2", None}
    status = bus.status()
    assert sum(each.sent + each.parked for each in status.entities.values()) == len(accepted)
    assert sum(each.parked for each in status.entities.values()) == len(parked)


def test_a_hub_that_comes_back_while_a_list_is_parked_gets_the_rest(
    hubs: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that are not parked yet go to the hub, with their key; none is there twice."""
    hub = hubs.hub()
    bus = hubs.pairing(backlog_queue_count=1)
    with bus.get_event_hub_producer(hub) as producer:
        hubs.bus.faults.unavailable(hub)
        producer.send_event(event("first"), timeout=6)
        hubs.bus.faults.clear()
        on_parking(bus, after=lambda path: come_back(bus, hubs.name(hub)))
        texts = [f"{n} " + "x" * 100_000 for n in range(5)]
        producer.send_batch([event(each) for each in texts], partition_key="k")
    parked = [each for each in hubs.pair.parked_payloads() if body(each) != "first"]
    ((_, direct),) = hubs.read(hub).items()
    assert 0 < len(parked) < 5
    assert sorted(map(body, parked + direct)) == texts
    assert {message_annotations(each)[KEY] for each in parked + direct} == {"k"}


def test_when_nobody_takes_them_the_error_has_the_events(hubs: Hubs) -> None:
    """The caller's own objects, all of them."""
    hub = hubs.hub()
    bus = hubs.pairing(send_timeout=2)
    with bus.get_event_hub_producer(hub) as producer:
        hubs.kill()
        hubs.pair.secondary.kill()
        given = [event("a"), event("b")]
        with pytest.raises(BacklogUnavailableError) as refused:
            producer.send_batch(given, partition_key="k")
        assert all(mine is theirs for mine, theirs in zip(refused.value.messages, given, strict=True))


def test_a_batch_can_be_made_while_the_hub_is_down(hubs: Hubs) -> None:
    """With the last known limit, or with what every hub takes."""
    hub, unknown = hubs.hub(), hubs.hub()
    bus = hubs.pairing(send_timeout=20)
    with bus.get_event_hub_producer(hub) as producer, bus.get_event_hub_producer(unknown) as another:
        producer.send_event(event("before"))
        hubs.kill()
        assert producer.create_batch().max_size_in_bytes == 1024 * 1024
        batch = another.create_batch(partition_key="k")
        assert batch.max_size_in_bytes == 256 * 1024
        batch.add(event("parked"))
        another.send_batch(batch)
    assert hubs.pair.parked_bodies() == ["parked"]


def test_can_park_tells_sizes(hubs: Hubs) -> None:
    """While all is well: one event, a list, a batch; too large for a backlog queue, or a name that parking uses."""
    hub = hubs.hub()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer:
        small = producer.can_park(event("small"), partition_id="1", partition_key="k")
        assert small
        assert small.added > len(f"{hub}/Partitions/1") + len(hubs.host)
        large = EventData(b"x" * 300_000)
        refused = producer.can_park([event("small"), large])
        assert not refused
        assert refused.size > refused.limit == 256 * 1024
        assert not producer.can_park(event("taken", **{"x-ms-path": "mine"}))
        batch = producer.create_batch()
        batch.add(large)
        assert not producer.can_park(batch)
        producer.send_batch(batch)
        hubs.kill()
        with pytest.raises(NotParkableError) as error:
            producer.send_batch(batch)
        assert error.value.messages == [large]
        producer.send_event(event("small"))
    assert hubs.pair.parked_bodies() == ["small"]


# --- the rest of the surface -----------------------------------------------------------------------------------------


def test_what_a_producer_does_not_do_says_what_to_use(hubs: Hubs) -> None:
    """By name."""
    producer = hubs.pairing().get_event_hub_producer(hubs.hub())
    for ask in (producer.get_eventhub_properties, producer.get_partition_ids):
        with pytest.raises(NotSupportedError, match=rf"{ask.__name__}.*EventHubProducerClient"):
            ask()
    with pytest.raises(NotSupportedError, match=r"get_partition_properties"):
        producer.get_partition_properties("0")


def test_a_producer_says_what_it_is_and_cannot_be_pickled(hubs: Hubs) -> None:
    """Its repr has no secret."""
    hub = hubs.hub()
    producer = hubs.pairing().get_event_hub_producer(hub)
    assert repr(producer) == f"<PairedEventHubProducer to {hub} of {hubs.host}>"
    assert (producer.eventhub_name, producer.fully_qualified_namespace) == (hub, hubs.host)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(producer)


def test_closing(hubs: Hubs) -> None:
    """A closed producer and one of a closed pairing refuse; closing twice is fine; no thread is left."""
    before = pairbus_threads()
    hub = hubs.hub()
    bus = hubs.pairing(ping_primary_interval=1)
    with bus.get_event_hub_producer(hub) as producer:
        producer.send_event(event("1"))
    producer.close(flush=True, timeout=1)
    with pytest.raises(ClientClosedError, match=hub):
        producer.send_event(event("2"))
    again = bus.get_event_hub_producer(hub)
    again.send_event(event("2"), partition_id="0")
    hubs.bus.pause()
    again.send_event(event("parked"), partition_id="0", timeout=6)
    began = time.monotonic()
    bus.close()
    assert time.monotonic() - began < 5 + SLACK
    hubs.bus.resume()
    with pytest.raises(PairedNamespaceClosedError):
        again.send_event(event("3"))
    with pytest.raises(PairedNamespaceClosedError):
        bus.get_event_hub_producer(hub)
    wait_until(lambda: pairbus_threads() == before, 10, pairbus_threads)
    assert set(hubs.bodies(hub)) - {"parked"} == {"1", "2"}


def test_a_tracer_sees_what_it_sees_of_the_sdk(hubs: Hubs) -> None:
    """A span for each event and for each send, linked; the events carry it, the caller's objects do not."""
    hub = hubs.hub()
    given = [event("a"), event("b")]
    with hubs.pairing().get_event_hub_producer(hub) as producer, traced() as spans:
        producer.send_event(given[0])
        producer.send_batch(given)
    assert [(span.name, len(span.links)) for span in spans] == [
        ("EventHubs.message", 0),
        ("EventHubs.send", 1),
        ("EventHubs.message", 0),
        ("EventHubs.message", 0),
        ("EventHubs.send", 2),
    ]
    assert all("traceparent" in properties(each) for events in hubs.read(hub).values() for each in events)
    assert [each.properties for each in given] == [{}, {}]


def test_an_idle_link_is_tended(hubs: Hubs) -> None:
    """The guard keeps links of event hubs alive as it does others, and finds out when one is dead."""
    hub = hubs.hub()
    bus = hubs.pairing()
    with bus.get_event_hub_producer(hub) as producer:
        producer.send_event(event("1"))
        pool = entity_of(bus, hubs.name(hub)).pool
        pool.keep_alive(time.monotonic())
        connection = pool.take()
        assert connection.opened
        pool.give_back(connection)
        hubs.bus.faults.drop(hub)
        wait_until(lambda: pool.keep_alive(time.monotonic()) or not pool.idle_count, 10)
        producer.send_event(event("2"))
    assert hubs.bodies(hub) == ["1", "2"]


def test_the_parts_of_azure_eventhub_that_are_used_are_there(hubs: Hubs) -> None:
    """The pins: a new version of the SDK that moves one of them fails here."""
    sender = event_hub_sender.HubSender(hubs.namespace(), "telemetry", "1")
    producer = sender._producer
    assert producer._target.endswith("/telemetry/Partitions/1")
    assert (producer.running, producer._keep_alive, producer._client._config.max_retries) == (False, None, 0)
    assert producer._client._config.backoff_factor == 0
    with pytest.raises(ConnectionLostError):
        sender.send_messages(event_hub_sender.one_event(event("x"), "host", "telemetry", None), timeout=1)
    sender.__enter__()
    assert sender.create_message_batch().max_size_in_bytes == 1024 * 1024
    assert producer._handler._keep_alive_thread is None
    sender.close()
    assert producer._create_handler.__module__ == patch_connection.__module__
    batch: Any = EventDataBatch(partition_key="k")
    batch.add(event("x"))
    assert batch._message[5] == [bytearray(event_hub_sender.whole_batch(batch).encoded()[0])]
    assert int32(batch._count) == len(batch._internal_events) == 1


def test_the_guides_example_runs(hubs: Hubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the section on event hubs, as it stands but for what an address and a private CA must be told."""
    (example,) = [
        each
        for each in re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
        if "get_event_hub_producer" in each
    ]
    buses = {"PRIMARY": hubs.pair.primary, "SECONDARY": hubs.pair.secondary, "EVENT_HUBS": hubs.bus}
    for variable, bus in buses.items():
        monkeypatch.setenv(variable, bus.connection_string)
        monkeypatch.setenv(f"{variable}_CA", str(bus.ca_file))
        name = hubs.pair.name if variable == "PRIMARY" else "x"
        told = f'os.environ["{variable}"], name="{name}", ca_file=os.environ["{variable}_CA"]'
        example = example.replace(f'os.environ["{variable}"]', told)
    exec(compile(example, "docs/sender.md", "exec"), {})
    assert hubs.bodies("telemetry") == ["19.5", "20.1", "20.2", "20.3"]
