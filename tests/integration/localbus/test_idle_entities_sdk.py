"""AutoDeleteOnIdle through the SDK on the real server: only the minutes are not waited for, the clock is put forward.

What stays is shown beside something that goes: once that one is gone, the housekeeping has looked at all of them.
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
from tests.support.process_fixtures import QUICK, administer, bodies, connect, drain, send, wait_until

LIMIT = timedelta(minutes=5)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "localbus.db"


@pytest.fixture
def bus(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClockedBus]:
    """New for each test: what clients sign is dated by the real clock, and good for an hour."""
    monkeypatch.setattr("pairbus.localbus.server._TICK_SECONDS", 0.1)  # housekeeping twice a second, not each fifth
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


def kept_in(store: Path) -> set[str]:
    """The entities that a restart after a crash would find: the server locks its files, so copies are read."""
    with TemporaryDirectory() as folder:
        for file in store.parent.glob(store.name + "*"):
            shutil.copy(file, folder)
        with closing(sqlite3.connect(Path(folder) / store.name)) as database:
            return {path for (path,) in database.execute("SELECT path FROM entities")}


def there(admin: ServiceBusAdministrationClient) -> set[str]:
    """The names of all queues."""
    return {queue.name for queue in admin.list_queues()}


def gone(admin: ServiceBusAdministrationClient, *names: str) -> None:
    """Wait for the housekeeping to delete these queues."""
    wait_until(lambda: not there(admin) & set(names), why=f"{names} were not deleted")


def create(admin: ServiceBusAdministrationClient, *names: str, **settings: Any) -> None:
    for name in names:
        admin.create_queue(name, auto_delete_on_idle=LIMIT, **settings)


def peek(client: ServiceBusClient, queue: str) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        return bodies(receiver.peek_messages())


def receive(client: ServiceBusClient, queue: str) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        return bodies(drain(receiver, 60, 1))


async def test_an_idle_queue_is_deleted_and_then_nobody_knows_it(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient, store: Path
) -> None:
    """With the message in it, in the store as well; administration, senders and receivers are refused as for any
    queue that is not there. One that was not given the setting stays."""
    create(admin, "idle")
    assert admin.get_queue("idle").auto_delete_on_idle == LIMIT
    admin.create_queue("kept")
    for queue in ("idle", "kept"):
        send(client, queue, "x")
    assert kept_in(store) == {"idle", "kept"}
    bus.clock.pass_minutes(5.1)
    wait_until(lambda: kept_in(store) == {"kept"})  # nobody asks the server anything meanwhile
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("idle")
    with pytest.raises(ServiceBusAuthenticationError):  # 404 for the token, of which this SDK makes that
        send(client, "idle", "y")
    async with AsyncServiceBusClient.from_connection_string(bus.connection_string, **QUICK) as other:
        with pytest.raises(ServiceBusAuthenticationError):
            await other.get_queue_sender("idle").send_messages(ServiceBusMessage("y"))
        with pytest.raises(ServiceBusAuthenticationError):
            await other.get_queue_receiver("idle").receive_messages(1, max_wait_time=60)
    assert admin.get_queue_runtime_properties("kept").active_message_count == 1


def test_use_puts_the_end_off(bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient) -> None:
    """A send, a receive, a peek or an update in the fourth minute: good for five more, and not for longer."""
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
    gone(admin, "untouched")
    assert there(admin) == set(used)
    bus.clock.pass_minutes(3.7)
    gone(admin, *used)


def test_a_queue_with_an_open_link_stays(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """A receiver that waits, or a sender that says nothing, holds its queue; its time begins when the link closes."""
    create(admin, "untouched", "listened", "spoken")
    with client.get_queue_receiver("listened") as receiver, client.get_queue_sender("spoken") as sender:
        bus.clock.pass_minutes(20)
        gone(admin, "untouched")
        assert there(admin) == {"listened", "spoken"}
        sender.send_messages(ServiceBusMessage("x"))
        send(client, "listened", "y")
        assert bodies(receiver.receive_messages(1, max_wait_time=60)) == ["y"]
    create(admin, "older")
    bus.clock.pass_minutes(4.5)
    send(client, "spoken", "z")
    bus.clock.pass_minutes(0.7)
    gone(admin, "older", "listened")
    assert there(admin) == {"spoken"}
    bus.clock.pass_minutes(5)
    gone(admin, "spoken")


def test_an_idle_subscription_goes_and_its_topic_stays(
    bus: ClockedBus, admin: ServiceBusAdministrationClient, client: ServiceBusClient
) -> None:
    """What nobody receives from is deleted alone; the topic goes with its last user."""
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
    names()  # is answered after the receiver's end was read
    bus.clock.pass_minutes(5.1)
    wait_until(lambda: not list(admin.list_topics()))
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("news")
