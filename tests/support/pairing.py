"""Two localbus processes as two namespaces, pairings that close by themselves, and counting what ended up where.

Both processes serve all tests of a session; each test has a primary name of its own, so it has its own backlog queues,
and entities under names of its own. Whatever a test has done to a process (killed, paused, faults) is undone after it.

    def test_it(pair: Pair) -> None:
        queue = pair.queue()
        bus = pair.pairing(failover_interval=0)
        with bus.get_queue_sender(queue) as sender:
            pair.primary.kill()
            sender.send_messages(ServiceBusMessage("parked"))
        assert pair.parked() == 1
"""

from __future__ import annotations

import gc
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Message

from pairbus import Event, Namespace, PairedNamespace, PairedSender, PairingOptions, options, pair_namespaces
from pairbus.config.checks import Range
from pairbus.domain.backlog import queue_path
from pairbus.localbus import LocalBus
from pairbus.sending.connections import Attempt
from tests.support.process_fixtures import administer, connect, revive
from tests.support.raw_client import RawClient

#: What a pairing of a test has unless it says otherwise: nothing takes long, and nobody pings by surprise.
IMPATIENT: dict[str, Any] = {
    "backlog_queue_count": 2,
    "failover_interval": 0,
    "ping_primary_interval": 600,
    "ping_timeout": 5,
    "send_timeout": 5,
    "server_busy_wait": 0.2,
}
#: Seconds that a busy machine may add to a bound.
SLACK = 3.0


def pairbus_threads() -> list[str]:
    """The names of the threads that pairbus has running in this process."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("pairbus-"))


class Sending(threading.Thread):
    """One send on a thread of its own, and its error."""

    def __init__(self, sender: PairedSender, message: Any) -> None:
        super().__init__(daemon=True)
        self.sender, self.message = sender, message
        self.error: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.sender.send_messages(self.message)
        except Exception as error:
            self.error = error


def state_of(bus: PairedNamespace, name: str) -> str:
    """Return the state of an entity in the status of its pairing."""
    return bus.status().entities[name].state


def entity_of(bus: PairedNamespace, name: str) -> Any:
    """Return an entity of a pairing by its name in the status; it exists already."""
    host, _, path = name.removeprefix("sb://").partition("/")
    return bus.entity(path, list, host) if name.startswith("sb://") else bus.entity(name, list)


def pairing_of(sender: PairedSender) -> PairedNamespace:
    """Return the pairing that made a sender."""
    return sender._pairing


def entity_of_sender(sender: PairedSender) -> Any:
    """Return the entity that a sender sends to, with its health and its connections."""
    return sender._entity


def backlog_queue_of(sender: PairedSender) -> Any:
    """Return the path of the backlog queue that a sender parks in; None before its first choice."""
    return sender._sender_queue.queue


def use_backlog_queue(sender: PairedSender, path: str) -> None:
    """Make a sender park in a queue as if it had chosen it."""
    sender._sender_queue.queue = path


def on_parking(
    bus: PairedNamespace, *, before: Callable[[str], Any] | None = None, after: Callable[[str], Any] | None = None
) -> None:
    """Call `before` with the queue ahead of each attempt to park a batch there, and `after` once it was accepted."""
    attempt = bus.backlog.attempt

    def watched(queue: str, messages: Sequence[bytes], seconds: float) -> Attempt:
        if before is not None:
            before(queue)
        found = attempt(queue, messages, seconds)
        if after is not None and found.error is None:
            after(queue)
        return found

    bus.backlog.attempt = watched  # type: ignore[method-assign]


def come_back(bus: PairedNamespace, name: str) -> None:
    """Have an entity take sends again, as if a ping had been answered."""
    entity = entity_of(bus, name)
    entity.health = entity.health.ping_answered(time.monotonic())


def idle_connection(pool: Any) -> Any:
    """Return the one idle connection of a pool, which keeps it."""
    assert pool.idle_count == 1
    connection = pool.take()
    pool.give_back(connection)
    return connection


def watchdog_of(bus: PairedNamespace) -> Any:
    """Return the watchdog of all connections of a pairing."""
    return next(iter(bus.backlog.pools.values())).watchdog


def is_closed(sender: Any) -> bool:
    """Return True once an SDK's sender was closed; it has no public name for that."""
    return bool(sender._shutdown.is_set())


def returned_messages(error: BaseException) -> list[Any]:
    """Return the messages that a failed send gives back with its error; on the SDK's errors, pairbus adds them."""
    messages: list[Any] = error.messages  # type: ignore[attr-defined]
    return messages


def _body(payload: bytes) -> str:
    message = Message()
    message.decode(payload)
    body = message.body
    return bytes(body).decode() if isinstance(body, (bytes, memoryview)) else str(body)


class Pair:
    """A test's view of the two namespaces."""

    def __init__(self, primary: LocalBus, secondary: LocalBus) -> None:
        self.primary = primary
        self.secondary = secondary
        #: The primary's name, part of the backlog queues' paths.
        self.name = f"p{uuid.uuid4().hex[:10]}"
        #: What the pairings of this test have told.
        self.events: list[Event] = []
        self._pairings: list[PairedNamespace] = []

    # --- namespaces and pairings ---------------------------------------------------------------------------

    def primary_namespace(self, connection_string: str | None = None) -> Namespace:
        return Namespace.from_connection_string(
            connection_string or self.primary.connection_string, name=self.name, ca_file=self.primary.ca_file
        )

    def secondary_namespace(self, connection_string: str | None = None) -> Namespace:
        return Namespace.from_connection_string(
            connection_string or self.secondary.connection_string, name="backup", ca_file=self.secondary.ca_file
        )

    def pairing(self, *, primary: Namespace | None = None, secondary: Namespace | None = None, **options: Any) -> Any:
        """A pairing with `IMPATIENT` options and these; closed after the test if the test has not done so."""
        given = {"on_event": self.events.append, **IMPATIENT, **options}
        made = pair_namespaces(
            primary or self.primary_namespace(), secondary or self.secondary_namespace(), PairingOptions(**given)
        )
        return self.keep(made)

    def keep(self, pairing: PairedNamespace) -> PairedNamespace:
        """Close a pairing after the test if the test has not done so."""
        self._pairings.append(pairing)
        return pairing

    def sender(self, queue: str, **options: Any) -> PairedSender:
        """A sender of a pairing of its own, with an open link."""
        made: PairedSender = self.pairing(**options).get_queue_sender(queue)
        return made.__enter__()

    def close_pairings(self) -> None:
        for each in self._pairings:
            each.close()

    def forget_pairings(self) -> None:
        """Drop the pairings: an entity's last error has a traceback, which refers to everything."""
        self._pairings.clear()

    def told(self, kind: str) -> list[Event]:
        """The events of a kind that the callback has heard."""
        return [event for event in self.events if event.kind == kind]

    # --- entities ------------------------------------------------------------------------------------------

    def admin(self, bus: LocalBus) -> ServiceBusAdministrationClient:
        """An administration client; use it in a with statement."""
        return administer(bus)

    def queue(self, **settings: Any) -> str:
        """A new queue of the primary."""
        name = f"q-{uuid.uuid4().hex[:10]}"
        with administer(self.primary) as admin:
            admin.create_queue(name, **settings)
        return name

    def topic(self, **settings: Any) -> tuple[str, str]:
        """A new topic of the primary with a subscription to all of it: its name, and the subscription's path."""
        name = f"t-{uuid.uuid4().hex[:10]}"
        with administer(self.primary) as admin:
            admin.create_topic(name, **settings)
            admin.create_subscription(name, "all")
        return name, f"{name}/Subscriptions/all"

    def update_queue(self, queue: str, **changes: Any) -> None:
        """Change a queue of the primary, for example `status="Disabled"`."""
        with administer(self.primary) as admin:
            found = admin.get_queue(queue)
            for name, value in changes.items():
                setattr(found, name, value)
            admin.update_queue(found)

    def delete_queue(self, queue: str) -> None:
        with administer(self.primary) as admin:
            admin.delete_queue(queue)

    def plain_client(self, bus: LocalBus, **options: Any) -> ServiceBusClient:
        """The SDK's own client, impatient; use it in a with statement."""
        return connect(bus.connection_string, **options)

    # --- what is where -------------------------------------------------------------------------------------

    def count(self, bus: LocalBus, path: str) -> int:
        """Active and scheduled messages of a queue or, written `topic/Subscriptions/name`, of a subscription."""
        topic, _, subscription = path.partition("/Subscriptions/")
        with administer(bus) as admin:
            if subscription:
                there = admin.get_subscription_runtime_properties(topic, subscription)
                return int(there.active_message_count or 0)
            found = admin.get_queue_runtime_properties(path)
        return int(found.active_message_count + found.scheduled_message_count)

    def arrived(self, path: str) -> int:
        """How many messages an entity of the primary holds."""
        return self.count(self.primary, path)

    def backlog(self) -> list[str]:
        """The paths of this test's backlog queues that exist, extra ones too."""
        with administer(self.secondary) as admin:
            found = [queue.name for queue in admin.list_queues()]
        return sorted(name for name in found if name.startswith(queue_path(self.name, 0)[:-1]))

    def parked_by_queue(self) -> dict[str, int]:
        """Backlog queue → how many messages it holds."""
        return {path: self.count(self.secondary, path) for path in self.backlog()}

    def parked(self) -> int:
        """How many messages all backlog queues of this test hold."""
        return sum(self.parked_by_queue().values())

    def payloads(self, bus: LocalBus, path: str, count: int | None = None) -> list[bytes]:
        """Take messages out of an entity as the bytes that came over the wire (with the broker's own annotations)."""
        wanted = self.count(bus, path) if count is None else count
        with RawClient(bus) as raw:
            if not wanted:
                return []
            raw.put_token(path)
            link = raw.receiver(path, delete=True)
            return [raw.receive(link).payload for _ in range(wanted)]

    def parked_payloads(self) -> list[bytes]:
        """Take all parked messages out of the backlog queues, as bytes."""
        return [each for path in self.backlog() for each in self.payloads(self.secondary, path)]

    def take(self, bus: LocalBus, path: str, count: int | None = None, **options: Any) -> list[Any]:
        """Take messages out of a queue with the SDK's receiver."""
        wanted = self.count(bus, path) if count is None else count
        found: list[Any] = []
        if not wanted:
            return found
        with (
            connect(bus.connection_string) as client,
            client.get_queue_receiver(path, receive_mode="receiveanddelete", **options) as receiver,
        ):
            deadline = time.monotonic() + 60
            while len(found) < wanted and time.monotonic() < deadline:
                found += receiver.receive_messages(wanted - len(found), max_wait_time=60)
        assert len(found) == wanted, f"{len(found)} of {wanted} messages came out of {path}"
        return found

    def take_parked(self) -> list[Any]:
        """Take all parked messages out of the backlog queues, with the SDK's receiver."""
        return [each for path in self.backlog() for each in self.take(self.secondary, path)]

    def bodies(self, queue: str) -> list[str]:
        """Take what has arrived at a queue or subscription of the primary: the bodies, as text."""
        return [_body(each) for each in self.payloads(self.primary, queue)]

    def parked_bodies(self) -> list[str]:
        """Take all parked messages out of the backlog queues: the bodies, as text."""
        return [_body(each) for each in self.parked_payloads()]

    # --- outages -------------------------------------------------------------------------------------------

    def fail_over(self, sender: PairedSender, pairing: PairedNamespace | None = None) -> None:
        """Kill the primary and send one message, body `failover`, which is parked."""
        self.primary.kill()
        sender.send_messages(ServiceBusMessage("failover"))
        if pairing is not None:
            assert pairing.status().entities[sender.entity_name].state == "failed over"

    def declare_down(self, pairing: PairedNamespace, entity: str) -> None:
        """Fail an entity over as if a send had found it down; for tests that are not about how that comes about."""
        entity_of(pairing, entity).failed(ConnectionError("a test says that it is down"), time.monotonic())
        assert pairing.status().entities[entity].state == "failed over"

    def heal(self) -> None:
        """Both processes run and nothing is wrong with them."""
        for bus in (self.primary, self.secondary):
            revive(bus)


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalBus, LocalBus]]:
    """The two processes, each with a store: a kill and a restart lose nothing."""
    folder = tmp_path_factory.mktemp("pair")
    with (
        LocalBus("contoso", store=folder / "primary.db") as primary,
        LocalBus("backup", store=folder / "secondary.db") as secondary,
    ):
        yield primary, secondary


@pytest.fixture
def pair(both: tuple[LocalBus, LocalBus]) -> Iterator[Pair]:
    """Two namespaces that are well; after the test its pairings are closed and the namespaces are well again."""
    made = Pair(*both)
    try:
        yield made
    finally:
        made.close_pairings()
        made.heal()


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pings be more frequent than the options allow, so that no test waits for them."""
    monkeypatch.setitem(options._RANGES, "ping_primary_interval", Range(0.1, 1800.0, "any"))


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Sockets that the SDK has forgotten are collected here, not in the midst of somebody else's tests."""
    yield
    gc.collect()
