"""Event hubs with Microsoft's azure-eventhub, sync and async: producers, properties and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncConsumerClient
from azure.eventhub.aio import EventHubProducerClient as AsyncProducerClient
from azure.eventhub.exceptions import EventDataSendError, EventHubError
from proton import symbol, ulong

from tests.support.raw_client import RawClient, RawError
from tests.support.scenarios import BOTH, scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients

_HUBS = (
    "batches",
    "turns",
    "keys",
    "partitions",
    "properties",
    "empty",
    "positions",
    "live",
    "newest",
    "limits",
    "kept",
    "owners",
)
ENTITIES = "\n".join(
    f'[[event_hubs]]\nname = "{name}-{kind}"\npartition_count = 4\n' for name in _HUBS for kind in BOTH
)
START = "-1"


@asynccontextmanager
async def producer(at: SdkClients, hub: str, **options: Any) -> AsyncIterator[AsyncFacade]:
    cls = EventHubProducerClient if at.kind == "sync" else AsyncProducerClient
    made = AsyncFacade(
        cls.from_connection_string(at.bus.connection_string, eventhub_name=f"{hub}-{at.kind}", retry_total=0, **options)
    )
    try:
        yield made
    finally:
        await made.close()


def _consumer(at: SdkClients, hub: str) -> Any:
    cls = EventHubConsumerClient if at.kind == "sync" else AsyncConsumerClient
    return cls.from_connection_string(
        at.bus.connection_string, "$Default", eventhub_name=f"{hub}-{at.kind}", retry_total=0
    )


async def read(
    at: SdkClients, hub: str, partition: str, count: int, start: Any = START, inclusive: bool = False, **more: Any
) -> list[EventData]:
    """Return the next events of a partition, from a consumer."""
    client, found, enough = _consumer(at, hub), [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(context: Any, event: EventData | None) -> None:
        if event is not None:
            found.append(event)
        if len(found) >= count:
            loop.call_soon_threadsafe(enough.set)

    async def note_async(context: Any, event: EventData | None) -> None:
        note(context, event)

    where = {"partition_id": partition, "starting_position": start, "starting_position_inclusive": inclusive, **more}
    if at.kind == "sync":
        reading = asyncio.ensure_future(asyncio.to_thread(client.receive, note, **where))
    else:
        reading = asyncio.ensure_future(client.receive(note_async, **where))
    try:
        await asyncio.wait_for(enough.wait(), 120)
    finally:
        await AsyncFacade(client).close()
        if at.kind == "async":
            reading.cancel()  # the SDK's own loop would sleep on for half a minute
        await asyncio.wait([reading])
    return found[:count]


async def read_all(at: SdkClients, hub: str, counts: dict[str, int]) -> dict[str, list[str]]:
    """Return the bodies of every partition with events."""
    found = await asyncio.gather(*(read(at, hub, id, count) for id, count in counts.items()))
    return {id: texts(events) for id, events in zip(counts, found, strict=True)}


async def event_counts(sender: AsyncFacade) -> dict[str, int]:
    """Return the number of events in each partition."""
    counts = {}
    for id in await sender.get_partition_ids():
        about = await sender.get_partition_properties(id)
        counts[id] = about["last_enqueued_sequence_number"] - about["beginning_sequence_number"] + 1
    return {id: count for id, count in counts.items() if count}


def texts(events: Iterable[EventData]) -> list[str]:
    return [event.body_as_str() for event in events]


@scenario()
async def test_a_batch_is_in_one_partition_in_order(at: SdkClients) -> None:
    """Events of a batch are read in order, with their properties, ids and positions."""
    async with producer(at, "batches") as sender:
        batch = await sender.create_batch()
        for n in range(5):
            event = EventData(f"e{n}")
            event.properties = {"n": n}
            event.correlation_id, event.content_type = "c", "text/plain"
            if n != 3:  # the service gives an event no id
                event.message_id = f"m{n}"
            batch.add(event)
        await sender.send_batch(batch)
        counts = await event_counts(sender)
    ((partition, count),) = counts.items()
    assert count == 5
    events = await read(at, "batches", partition, 5)
    assert texts(events) == [f"e{n}" for n in range(5)]
    assert [event.properties[b"n"] for event in events] == list(range(5))
    assert {(e.correlation_id, e.content_type) for e in events} == {("c", "text/plain")}
    assert [e.message_id for e in events] == ["m0", "m1", "m2", None, "m4"]
    assert [event.sequence_number for event in events] == list(range(5))
    assert len({event.offset for event in events}) == 5
    assert datetime.now(timezone.utc) - events[0].enqueued_time < timedelta(minutes=1)


@scenario()
async def test_without_a_key_partitions_take_turns(at: SdkClients) -> None:
    """Sends without a partition use all partitions; a list and a single event can be sent, too."""
    async with producer(at, "turns") as sender:
        for n in range(7):
            await sender.send_batch([EventData(str(n))])
        await sender.send_event(EventData("7"))
        counts = await event_counts(sender)
    assert counts == {"0": 2, "1": 2, "2": 2, "3": 2}
    found = await read_all(at, "turns", counts)
    assert sorted(text for each in found.values() for text in each) == list("01234567")


@scenario()
async def test_events_of_a_partition_key_are_in_one_partition(at: SdkClients) -> None:
    """All events of a key are in one partition and have the key; keys are spread over the partitions."""
    keys = [f"key-{n}" for n in range(12)]
    async with producer(at, "keys") as sender:
        for turn in range(2):
            for key in keys:
                batch = await sender.create_batch(partition_key=key)
                batch.add(EventData(f"{key} {turn}"))
                await sender.send_batch(batch)
        counts = await event_counts(sender)
    assert sum(counts.values()) == 24
    assert len(counts) > 1
    for events in await asyncio.gather(*(read(at, "keys", id, count) for id, count in counts.items())):
        for event in events:
            assert event.partition_key == event.body_as_str().split()[0].encode()
        ours = [key for key in keys if f"{key} 0" in texts(events)]
        assert sorted(texts(events)) == sorted(f"{key} {turn}" for key in ours for turn in range(2))


@scenario()
async def test_a_batch_can_name_its_partition(at: SdkClients) -> None:
    """A batch for a partition is in that partition; a missing partition is refused."""
    async with producer(at, "partitions") as sender:
        batch = await sender.create_batch(partition_id="2")
        batch.add(EventData("a"))
        await sender.send_batch(batch)
        await sender.send_batch([EventData("b")], partition_id="2")
        assert await event_counts(sender) == {"2": 2}
        with pytest.raises(EventHubError):
            await sender.send_batch([EventData("x")], partition_id="9")
    assert texts(await read(at, "partitions", "2", 2)) == ["a", "b"]


@scenario()
async def test_hub_and_partition_properties(at: SdkClients) -> None:
    """A hub has its name, creation time and partitions; a partition its first and last event."""
    async with producer(at, "properties") as sender:
        about = await sender.get_eventhub_properties()
        assert about["eventhub_name"] == f"properties-{at.kind}"
        assert about["partition_ids"] == ["0", "1", "2", "3"]
        assert timedelta() <= datetime.now(timezone.utc) - about["created_at"] < timedelta(minutes=10)
        empty = await sender.get_partition_properties("1")
        assert (empty["is_empty"], empty["last_enqueued_sequence_number"]) == (True, -1)
        await sender.send_batch([EventData("a"), EventData("b")], partition_id="1")
        filled = await sender.get_partition_properties("1")
        assert (filled["eventhub_name"], filled["id"]) == (f"properties-{at.kind}", "1")
        assert (filled["is_empty"], filled["beginning_sequence_number"]) == (False, 0)
        assert filled["last_enqueued_sequence_number"] == 1
        assert datetime.now(timezone.utc) - filled["last_enqueued_time_utc"] < timedelta(minutes=1)
        last = (await read(at, "properties", "1", 2))[-1]
        assert filled["last_enqueued_offset"] == last.offset


@scenario()
async def test_a_missing_hub(at: SdkClients) -> None:
    """Sending to an unknown hub raises the same error as with Azure."""
    async with producer(at, "no-such-hub") as sender:
        with pytest.raises(EventHubError):
            await sender.send_batch([EventData("x")])


@scenario()
async def test_a_batch_is_as_large_as_the_link_allows(at: SdkClients) -> None:
    """A batch refuses an event that does not fit; an event above the limit is not accepted."""
    async with producer(at, "limits") as sender:
        batch = await sender.create_batch()
        assert batch.max_size_in_bytes == 1024 * 1024
        batch.add(EventData(b"x" * 700_000))
        with pytest.raises(ValueError, match="size limit"):
            batch.add(EventData(b"x" * 700_000))
        await sender.send_batch(batch)
        with pytest.raises((EventDataSendError, ValueError)):
            await sender.send_batch([EventData(b"x" * 1_100_000)])
        assert sum((await event_counts(sender)).values()) == 1


@scenario()
async def test_a_consumer_starts_at_its_position(at: SdkClients) -> None:
    """From the start, after or at a sequence number, an offset or a time; reading removes no event."""
    async with producer(at, "positions") as sender:
        await sender.send_batch([EventData("0"), EventData("1")], partition_id="0")
        await asyncio.sleep(0.05)  # a later millisecond: a time tells the two batches apart
        await sender.send_batch([EventData("2"), EventData("3")], partition_id="0")
    first = await read(at, "positions", "0", 4)
    assert texts(first) == list("0123")
    after, at_it, offset, moment = await asyncio.gather(
        read(at, "positions", "0", 2, start=1),
        read(at, "positions", "0", 3, start=1, inclusive=True),
        read(at, "positions", "0", 1, start=first[2].offset),
        read(at, "positions", "0", 2, start=first[1].enqueued_time),
    )
    assert [texts(found) for found in (after, at_it, offset, moment)] == [
        ["2", "3"],
        ["1", "2", "3"],
        ["3"],
        ["2", "3"],
    ]


@scenario()
async def test_a_consumer_gets_events_as_they_are_sent(at: SdkClients) -> None:
    """A consumer at the end of a partition gets each new event, and no earlier one."""
    async with producer(at, "live") as sender:
        await sender.send_batch([EventData("before")], partition_id="3")
        waiting = asyncio.ensure_future(read(at, "live", "3", 1, start="@latest"))
        sent = 0
        while not waiting.done():
            await sender.send_batch([EventData(f"new {sent}")], partition_id="3")
            sent += 1
            await asyncio.wait([waiting], timeout=0.2)
    assert texts(waiting.result())[0].startswith("new")


@scenario()
async def test_a_consumer_with_runtime_metrics_gets_the_newest_event(at: SdkClients) -> None:
    """If it asked for them, each event has the position of the partition's last one and the time of the look-up."""
    async with producer(at, "newest") as sender:
        await sender.send_batch([EventData("0"), EventData("1")], partition_id="0")
        about = await sender.get_partition_properties("0")
    asking, silent = await asyncio.gather(
        read(at, "newest", "0", 2, track_last_enqueued_event_properties=True), read(at, "newest", "0", 2)
    )
    for event in asking:
        told = event.raw_amqp_message.delivery_annotations
        assert told[b"last_enqueued_sequence_number"] == about["last_enqueued_sequence_number"] == 1
        assert told[b"last_enqueued_offset"].decode() == about["last_enqueued_offset"]
        assert told[b"last_enqueued_time_utc"] == round(1000 * about["last_enqueued_time_utc"].timestamp())
        assert told[b"runtime_info_retrieval_time_utc"] >= told[b"last_enqueued_time_utc"]
    assert not any(event.raw_amqp_message.delivery_annotations for event in silent)


@scenario()
async def test_a_consumer_with_an_owner_level_is_exclusive(at: SdkClients) -> None:
    """A higher owner level disconnects the readers of its group; a lower one is refused meanwhile."""
    hub = f"owners-{at.kind}"

    def path(group: str) -> str:
        return f"{hub}/ConsumerGroups/{group}/Partitions/0"

    def level(number: int) -> dict[Any, Any]:
        return {symbol("com.microsoft:epoch"): ulong(number)}

    def compete() -> None:
        with RawClient(at.bus) as raw:
            raw.put_token(hub)
            elsewhere, anyone = raw.receiver(path("other")), raw.receiver(path("$Default"))
            first = raw.receiver(path("$default"), properties=level(1))
            second = raw.receiver(path("$Default"), properties=level(2))
            for late in (None, level(1)):
                with pytest.raises(RawError, match="amqp:link:stolen"):
                    raw.receiver(path("$Default"), properties=late)
            for lost in (anyone, first):
                with pytest.raises(RawError, match="amqp:link:stolen"):
                    raw.check(lost)
            raw.check(elsewhere)
            raw.check(second)

    await asyncio.to_thread(compete)
