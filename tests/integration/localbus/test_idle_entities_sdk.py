"""AutoDeleteOnIdle through the SDK on the real server, with a clock that is set ahead.

The entities that stay are checked after another one was deleted: by then the housekeeping has checked all of them.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support.clocked_server import ClockedBus, clocked_bus
from tests.support.process_fixtures import QUICK, administer, bodies, connect, drain, send
from tests.support.waiting import wait_until

LIMIT = timedelta(minutes=5)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "localbus.db"


@pytest.fixture
def bus(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClockedBus]:
    """Start a server for each test; tokens are signed with the real clock and last an hour."""
    monkeypatch.setattr("pairbus.localbus.server._TICK_SECONDS", 0.1)  # housekeeping every half second
    with clocked_bus(tmp_path / "tls", store) as running:
        yield running


@pytest.fixture
def admin(bus: ClockedBus) -> Iterator[ServiceBusAdministrationClient]:
    with administer(bus) as client:  # type: ignore[arg-type]
        yield client


@pytest.fixture
def client(bus: ClockedBus) -> Iterator[ServiceBusClient]:
    with connect(bus.connection_string) as opened:
        yield opened


def stored_entities(store: Path) -> set[str]:
    """Return the entities that a restart after a crash would find, from copies of the locked files."""
    with TemporaryDirectory() as folder:
        for file in store.parent.glob(store.name + "*"):
            shutil.copy(file, folder)
        with closing(sqlite3.connect(Path(folder) / store.name)) as database:
            return {path for (path,) in database.execute("SELECT path FROM entities")}


def queue_names(admin: ServiceBusAdministrationClient) -> set[str]:
    """Return the names of all queues."""
    return {queue.name for queue in admin.list_queues()}


def wait_for_deletion(admin: ServiceBusAdministrationClient, *names: str) -> None:
    """Wait until these queues are deleted."""
    wait_until(lambda: not queue_names(admin) & set(names), why=f"{names} were not deleted")


def create(admin: ServiceBusAdministrationClient, *names: str, **settings: Any) -> None:
    for name in names:
        admin.create_queue(name, auto_delete_on_idle=LIMIT, **settings)


def peek(client: ServiceBusClient, queue: str) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        return bodies(receiver.peek_messages())


def receive(client: ServiceBusClient, queue: str) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        return bodies(drain(receiver, 60, 1))


async def test_an_idle_queue_is_deleted(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient, store: Path
) -> None:
    """It is deleted with its message and from the store: administration, senders and receivers get not found. A queue
    without the setting stays.
    """
    create(admin, "idle")
    assert admin.get_queue("idle").auto_delete_on_idle == LIMIT
    admin.create_queue("kept")
    for queue in ("idle", "kept"):
        send(client, queue, "x")
    assert stored_entities(store) == {"idle", "kept"}
    bus.clock.pass_minutes(5.1)
    wait_until(lambda: stored_entities(store) == {"kept"})  # without any request to the server
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("idle")
    with pytest.raises(ServiceBusAuthenticationError):  # the SDK's error for the 404 of the token
        send(client, "idle", "y")
    async with AsyncServiceBusClient.from_connection_string(bus.connection_string, **QUICK) as other:
        with pytest.raises(ServiceBusAuthenticationError):
            await other.get_queue_sender("idle").send_messages(ServiceBusMessage("y"))
        with pytest.raises(ServiceBusAuthenticationError):
            await other.get_queue_receiver("idle").receive_messages(1, max_wait_time=60)
    assert admin.get_queue_runtime_properties("kept").active_message_count == 1


def test_use_restarts_the_idle_time(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """After a send, a receive, a peek or an update in the fourth minute it stays five minutes more, and no longer."""
    used = ("sent", "received", "peeked", "updated")
    create(admin, "untouched", *used)
    for queue in ("received", "peeked"):
        send(client, queue, "x")
    bus.clock.pass_minutes(4)
    send(client, "sent", "x")
    assert receive(client, "received") == ["x"]
    assert peek(client, "peeked") == ["x"]
    changed = admin.get_queue("updated")
    changed.max_delivery_count = 3
    admin.update_queue(changed)
    bus.clock.pass_minutes(1.5)
    wait_for_deletion(admin, "untouched")
    assert queue_names(admin) == set(used)
    bus.clock.pass_minutes(3.7)
    wait_for_deletion(admin, *used)


def test_a_queue_with_an_open_link_stays(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """An idle receiver or sender keeps its queue; the time begins when the link closes."""
    create(admin, "untouched", "listened", "spoken")
    with client.get_queue_receiver("listened") as receiver, client.get_queue_sender("spoken") as sender:
        bus.clock.pass_minutes(20)
        wait_for_deletion(admin, "untouched")
        assert queue_names(admin) == {"listened", "spoken"}
        sender.send_messages(ServiceBusMessage("x"))
        send(client, "listened", "y")
        assert bodies(receiver.receive_messages(1, max_wait_time=60)) == ["y"]
    create(admin, "older")
    bus.clock.pass_minutes(4.5)
    send(client, "spoken", "z")
    bus.clock.pass_minutes(0.7)
    wait_for_deletion(admin, "older", "listened")
    assert queue_names(admin) == {"spoken"}
    bus.clock.pass_minutes(5)
    wait_for_deletion(admin, "spoken")


def test_an_idle_subscription_is_deleted_without_its_topic(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """A subscription without receivers is deleted alone; the topic is deleted after its last use."""
    admin.create_topic("news", auto_delete_on_idle=LIMIT)
    admin.create_subscription("news", "idle", auto_delete_on_idle=LIMIT)
    admin.create_subscription("news", "used")

    def names() -> list[str]:
        return [each.name for each in admin.list_subscriptions("news")]

    with client.get_subscription_receiver("news", "used") as receiver:
        bus.clock.pass_minutes(5.1)
        wait_until(lambda: names() == ["used"])
        send(client, "news", "x", topic=True)
        assert bodies(receiver.receive_messages(1, max_wait_time=60)) == ["x"]
    names()  # answered after the server has read the receiver's close
    bus.clock.pass_minutes(5.1)
    wait_until(lambda: not list(admin.list_topics()))
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("news")
