"""Event hubs of a third localbus process, and readers of the events in them."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.eventhub import EventData
from proton import Message

from pairbus import (
    Namespace,
    PairedNamespace,
    PairingOptions,
    pair_namespaces,
)
from pairbus.domain import envelope
from pairbus.domain.amqp import sections as amqp
from pairbus.domain.amqp.codec import decode
from pairbus.domain.amqp.sections import split
from pairbus.localbus import LocalBus
from tests.support.pairing import IMPATIENT, Pair, pairbus_threads
from tests.support.process_fixtures import revive
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

EVENT_HUBS = 60
PARTITIONS = 4
KEY = "x-opt-partition-key"


class Hubs:
    """The event hubs of one test."""

    def __init__(self, bus: LocalBus, pair: Pair, names: Iterator[int]) -> None:
        self.bus = bus
        self.pair = pair
        self._names = names

    def hub(self) -> str:
        """An unused event hub."""
        return f"hub-{next(self._names)}"

    @property
    def host(self) -> str:
        return f"{self.bus.host}:{self.bus.port}"

    def namespace(self, connection_string: str | None = None) -> Namespace:
        return Namespace.from_connection_string(
            connection_string or self.bus.connection_string, name="hubs", ca_file=self.bus.ca_file
        )

    def pairing(self, event_hubs: Namespace | None = None, **options: Any) -> PairedNamespace:
        """A pairing that is closed after the test."""
        given = {"on_event": self.pair.events.append, **IMPATIENT, **options}
        made = pair_namespaces(
            self.pair.primary_namespace(),
            self.pair.secondary_namespace(),
            PairingOptions(**given),
            event_hubs=event_hubs or self.namespace(),
        )
        return self.pair.keep(made)

    def name(self, path: str) -> str:
        """Return an entity's name in status and events."""
        return f"sb://{self.host}/{path}"

    def state(self, bus: PairedNamespace, path: str) -> str:
        return bus.status().entities[self.name(path)].state

    def kill(self) -> None:
        self.bus.kill()

    def heal(self) -> None:
        revive(self.bus)

    def read(self, hub: str) -> dict[str, list[bytes]]:
        """Every partition that holds something, and the events in it, as a consumer gets them."""
        found: dict[str, list[bytes]] = {}
        with RawClient(self.bus) as raw:
            raw.put_token(hub)
            for partition in map(str, range(PARTITIONS)):
                about = {"operation": "READ", "type": "com.microsoft:partition", "name": hub, "partition": partition}
                answer: Any = raw.exchange("$management", Message(properties=about)).body
                count = answer["last_enqueued_sequence_number"] + 1
                if count:
                    link = raw.receiver(f"{hub}/ConsumerGroups/$Default/Partitions/{partition}", credit=int(count))
                    found[partition] = [raw.receive(link).payload for _ in range(count)]
        return found

    def bodies(self, hub: str) -> list[str]:
        """The bodies in all partitions, in order of the text."""
        return sorted(body(each) for events in self.read(hub).values() for each in events)


def body(payload: bytes) -> str:
    return b"".join(decode(payload, each.value)[0] for each in split(payload) if each.code == amqp.DATA).decode()


def message_annotations(payload: bytes) -> dict[str, Any]:
    for each in split(payload):
        if each.code == amqp.MESSAGE_ANNOTATIONS:
            return {str(key): value for key, value in decode(payload, each.value)[0].items()}
    return {}


def properties(payload: bytes) -> dict[str, Any]:
    for each in split(payload):
        if each.code == amqp.APPLICATION_PROPERTIES:
            found: dict[str, Any] = decode(payload, each.value)[0]
            return found
    return {}


def restored(payload: bytes) -> Any:
    return envelope.restore(payload, int(time.time() * 1000))


def event(text: str, /, **application: Any) -> EventData:
    """An event with an id, as one that is to be restored byte for byte has."""
    made = EventData(text)
    made.message_id = f"id-{text[:100]}"  # a backlog queue takes ids of up to 128 characters
    if application:
        made.properties = dict(application.items())
    return made


@pytest.fixture(scope="module")
def hubs_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalBus, Iterator[int]]]:
    folder = tmp_path_factory.mktemp("hubs")
    entities = folder / "entities.toml"
    entities.write_text(
        "".join(f'[[event_hubs]]\nname = "hub-{n}"\npartition_count = {PARTITIONS}\n' for n in range(EVENT_HUBS))
        + '[[event_hubs]]\nname = "telemetry"\npartition_count = 4\n'
    )
    with LocalBus("hubs", store=folder / "hubs.db", entities=entities) as bus:
        yield bus, itertools.count()


@pytest.fixture
def hubs(hubs_bus: tuple[LocalBus, Iterator[int]], pair: Pair) -> Iterator[Hubs]:
    """Event hubs that are well, beside a pair; well again after the test."""
    made = Hubs(hubs_bus[0], pair, hubs_bus[1])
    made.heal()
    try:
        yield made
    finally:
        pair.close_pairings()
        made.heal()
        # The SDK forgets sockets: they are collected before this test's filter of warnings ends.
        wait_until(lambda: not pairbus_threads(), 10, pairbus_threads)
        pair.forget_pairings()
        gc.collect()
