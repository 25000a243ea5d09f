"""The store: acknowledged changes survive a kill at any moment, and failed ones are not acknowledged."""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleFilter
from proton import Message as Encoded

from pairbus.localbus import LocalBus
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.broker.store import SqliteStore, StoreError
from pairbus.localbus.entities.message import Draft, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.settings import HubSettings, QueueSettings, RuleSettings, SqlExpression, TopicSettings
from tests.support.process_fixtures import FORGETS_SOCKETS, active, administer, bodies, connect, counts, create, take
from tests.support.raw_client import RawClient, RawError, data_of
from tests.support.waiting import wait_until

pytestmark = FORGETS_SOCKETS


def draft(text: str, **more: Any) -> Draft:
    return read_message(Encoded(body=text.encode(), inferred=True, **more).encode())


class StoreBroker:
    """A broker on a store, without sockets; `crash` continues with the files that a kill would leave."""

    def __init__(self, path: Path, cache_bytes: int = 1 << 20) -> None:
        self.path = path
        self.now = 1000.0
        self.after_crash: StoreBroker | None = None
        self._cache = cache_bytes
        self.store = SqliteStore(path, cache_bytes=cache_bytes)
        self.broker = Broker("test", self.store, clock=lambda: self.now)

    def crash(self) -> StoreBroker:
        """Return a broker on a copy of the files as they are now."""
        copy = self.path.with_name(self.path.name + "+")
        for suffix in ("", "-wal"):
            file = Path(str(self.path) + suffix)
            if file.exists():
                shutil.copy(file, str(copy) + suffix)
        self.store.abandon()
        other = self.after_crash = StoreBroker(copy, self._cache)
        other.now = self.now
        return other

    def turn(self) -> None:
        self.broker.turn(self.now)
        self.store.commit()

    def queue(self, path: str = "q") -> Queue:
        found = self.broker.queue(path)
        assert found is not None
        return found

    def texts(self, queue: Queue) -> list[str]:
        """Return the bodies of a queue's messages as they would be delivered."""
        messages = queue.peek(0, 1000)
        found = []
        for message, payload in zip(messages, self.store.payloads(messages), strict=True):
            decoded = Encoded()
            decoded.decode(message.delivered(payload))
            found.append(data_of(decoded).decode())
        return found


@pytest.fixture
def store_broker(tmp_path: Path) -> Iterator[Callable[..., StoreBroker]]:
    """Return a function that makes a broker on a store; close all files at the end."""
    made: list[StoreBroker] = []

    def make(**options: Any) -> StoreBroker:
        made.append(StoreBroker(tmp_path / "bus.db", **options))
        return made[-1]

    yield make
    while made:
        each = made.pop()
        each.store.abandon()
        made += [] if each.after_crash is None else [each.after_crash]


# --- without sockets -------------------------------------------------------------------------------------------


def test_a_crash_keeps_exactly_the_commits(store_broker: Callable[..., StoreBroker]) -> None:
    """Committed changes are there after a crash, others are not."""
    first = store_broker()
    first.broker.create_queue(QueueSettings("q"))
    first.broker.send(first.queue(), [draft("kept"), draft("also kept")], first.now)
    first.turn()
    first.broker.send(first.queue(), [draft("not committed")], first.now)
    first.broker.create_queue(QueueSettings("not-committed"))
    second = first.crash()
    assert second.texts(second.queue()) == ["kept", "also kept"]
    assert second.broker.queue("not-committed") is None


def test_a_crash_ends_locks_and_counts_a_delivery(store_broker: Callable[..., StoreBroker]) -> None:
    """A locked message is ready again with one more delivery; the rest is unchanged."""
    first = store_broker()
    first.broker.create_queue(QueueSettings("q"))
    first.broker.send(first.queue(), [draft(text) for text in "abc"], first.now)
    first.turn()
    first.queue().acquire(first.now, 2)
    first.turn()
    second = first.crash()
    assert [m.delivery_count for m in second.queue().peek(0, 9)] == [1, 1, 0]
    assert len(second.queue().acquire(second.now, 9)) == 3


def test_a_deferred_message_at_its_last_delivery_is_dead_after_a_crash(
    store_broker: Callable[..., StoreBroker],
) -> None:
    """The delivery that the crash interrupted was its last allowed one."""
    first = store_broker()
    first.broker.create_queue(QueueSettings("q", max_delivery_count=2))
    first.broker.send(first.queue(), [draft("worn"), draft("fresh")], first.now)
    for message in first.queue().acquire(first.now, 2):
        first.queue().defer(message.lock.tag, first.now)
    first.queue().receive_deferred([1], first.now)
    first.turn()
    second = first.crash()
    dead = second.queue().dead_letters
    assert dead is not None
    assert (second.texts(second.queue()), second.texts(dead)) == (["fresh"], ["worn"])


def test_a_message_changed_and_moved_in_one_turn(store_broker: Callable[..., StoreBroker]) -> None:
    """Changed by an abandon and moved by its last delivery, it is only a dead letter after a crash."""
    for cache in (1 << 20, 0):
        first = store_broker(cache_bytes=cache)
        name = f"q{cache}"
        first.broker.create_queue(QueueSettings(name, max_delivery_count=1))
        queue = first.queue(name)
        first.broker.send(queue, [draft("x")], first.now)
        first.turn()
        (message,) = queue.acquire(first.now, 1)
        first.turn()
        queue.abandon(message.lock.tag, first.now, {"seen": True})
        first.turn()
        second = first.crash()
        dead = second.queue(name).dead_letters
        assert dead is not None
        assert (second.texts(second.queue(name)), second.texts(dead)) == ([], ["x"])
        second.store.abandon()
        second.path.unlink()


def test_payloads_beyond_the_budget_are_read_back(store_broker: Callable[..., StoreBroker]) -> None:
    """Memory holds what the budget allows; everything is delivered as it was sent, in any order."""
    first = store_broker(cache_bytes=500)
    first.broker.create_queue(QueueSettings("q"))
    queue = first.queue()
    texts = [f"{number}-" + "x" * 100 for number in range(30)]
    for text in texts:
        first.broker.send(queue, [draft(text)], first.now)
    first.turn()
    held = [m for m in queue.peek(0, 100) if m.payload is not None]
    assert 0 < sum(len(m.payload or b"") for m in held) <= 500
    assert first.texts(queue) == texts
    # Dead letters keep their numbers, not the order in which they were dead-lettered.
    locked = queue.acquire(first.now, 30)
    for message in reversed(locked):
        queue.dead_letter(message.lock.tag, first.now)
    first.turn()
    assert queue.dead_letters is not None
    assert first.texts(queue.dead_letters) == texts
    for message in held:
        assert message.payload is None or message.id not in first.store._cached
    second = first.crash()
    dead = second.queue().dead_letters
    assert dead is not None
    assert second.texts(dead) == texts


def test_sequence_numbers_are_not_reused(store_broker: Callable[..., StoreBroker]) -> None:
    """They go on after a crash, also in a queue that was emptied and in a topic without subscribers."""
    first = store_broker()
    first.broker.create_queue(QueueSettings("q"))
    topic = first.broker.create_topic(TopicSettings("t"))
    first.broker.send(first.queue(), [draft("x"), draft("y")], first.now)
    first.broker.send(topic, [draft("x")], first.now)
    first.turn()
    first.queue().acquire(first.now, 2, delete=True)
    first.turn()
    second = first.crash()
    (message,) = second.broker.send(second.queue(), [draft("z")], second.now)
    assert message.sequence == 3
    again = second.broker.topic("t")
    assert again is not None
    (message,) = second.broker.send(again, [draft("z")], second.now)
    assert message.sequence == 2


def test_the_number_of_a_duplicate_is_not_reused(store_broker: Callable[..., StoreBroker]) -> None:
    """The sender of the duplicate may cancel by it: after a crash no other message may have it."""
    first = store_broker()
    first.broker.create_queue(QueueSettings("q", requires_duplicate_detection=True))
    twice = [draft("x", id="a"), draft("x", id="b"), draft("x", id="a")]
    assert first.broker.schedule(first.queue(), twice, first.now) == [1, 2, 3]
    assert first.broker.schedule(first.queue(), [draft("x", id="b")], first.now) == [4]
    first.turn()
    second = first.crash()
    assert list(second.queue().messages) == [1, 2]
    assert second.broker.schedule(second.queue(), [draft("x", id="c")], second.now) == [5]


def test_the_duplicate_history_survives_a_crash(store_broker: Callable[..., StoreBroker]) -> None:
    """Ids older than the window are deleted from the file."""
    first = store_broker()
    window = timedelta(seconds=60)
    first.broker.create_queue(
        QueueSettings("q", requires_duplicate_detection=True, duplicate_detection_history_time_window=window)
    )
    for number in range(5):
        first.broker.send(first.queue(), [draft("x", id=f"id-{number}")], first.now)
    first.turn()
    second = first.crash()
    assert second.broker.send(second.queue(), [draft("x", id="id-3")], second.now) == []
    second.now += 100
    assert len(second.broker.send(second.queue(), [draft("x", id="id-3")], second.now)) == 1
    second.turn()
    assert [row[1] for row in second.store.history()] == ["id-3"]


def test_entities_survive_a_crash(store_broker: Callable[..., StoreBroker]) -> None:
    """Settings, rules, hubs with events and session states are restored; a deleted entity leaves no row."""
    first = store_broker()
    broker = first.broker
    broker.create_queue(QueueSettings("s", requires_session=True, lock_duration=timedelta(seconds=7)))
    broker.create_topic(TopicSettings("t", user_metadata="about"))
    made = RuleSettings("r", SqlExpression("a > 1"), SqlExpression("SET b = 2"))
    broker.create_subscription("t", QueueSettings("sub"), made)
    hub = broker.create_hub(HubSettings("h", 2))
    broker.publish(hub.partition("1"), hub, [draft("event"), draft("other")], first.now)
    broker.send(first.queue("s"), [draft("m", group_id="a")], first.now)
    first.turn()
    session = first.queue("s").accept_session("a", object(), first.now)
    assert session is not None
    first.queue("s").set_session_state("a", b"state", first.now)
    first.turn()
    second = first.crash()
    assert second.queue("s").settings == first.queue("s").settings
    again = second.queue("s").accept_session("a", object(), second.now)
    assert again is not None
    assert again.state == b"state"
    topic, subscription = second.broker.topic("t"), second.broker.subscription("t", "sub")
    assert topic is not None
    assert subscription is not None
    assert topic.settings.user_metadata == "about"
    (rule,) = subscription.rules.values()
    assert rule.settings == made
    kept = second.broker.hub("h")
    assert kept is not None
    assert kept.partition("1").events == hub.partition("1").events
    assert len(kept.partition("1").events) == 2
    second.broker.delete_queue("s")
    second.broker.delete_topic("t")
    second.broker.delete_hub("h")
    second.turn()
    second.store.close()
    with contextlib.closing(sqlite3.connect(second.path)) as db:
        for table in ("entities", "messages", "states", "sessions", "history", "events", "sequences"):
            assert db.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,), table


def test_a_store_that_failed_writes_no_more(store_broker: Callable[..., StoreBroker]) -> None:
    """After a failed commit nothing is committed, not even at the end; earlier commits are there."""
    first = store_broker()
    first.broker.create_queue(QueueSettings("q"))
    first.broker.send(first.queue(), [draft("before")], first.now)
    first.turn()
    pages = first.store._db.execute("PRAGMA page_count").fetchone()[0]
    first.store._db.execute(f"PRAGMA max_page_count={pages}")
    first.broker.send(first.queue(), [draft("x" * 100_000)], first.now)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        first.store.commit()
    first.store._db.execute("PRAGMA max_page_count=1000000")
    with pytest.raises(StoreError):
        first.store.commit()
    first.store.close()
    first.store.close()
    second = StoreBroker(first.path)
    assert second.texts(second.queue()) == ["before"]
    second.store.close()


def test_a_store_has_large_pages_and_a_write_ahead_log(tmp_path: Path) -> None:
    """The mode is WAL, and the page size the one that was measured to be best, also for an existing empty file."""
    path = tmp_path / "bus.db"
    path.touch()
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA page_size").fetchone() == (8192,)


# --- kill -9 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[LocalBus]:
    with LocalBus(store=tmp_path / "bus.db") as started:
        yield started


def test_a_kill_loses_nothing_that_was_acknowledged(bus: LocalBus) -> None:
    """Messages, schedules, sessions with state, dead letters, deferred ones, duplicates, topics, rules and hubs
    survive.
    """
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    with administer(bus) as admin:
        admin.create_queue("plain", max_delivery_count=5, lock_duration=timedelta(minutes=5))
        admin.create_queue("unique", requires_duplicate_detection=True)
        admin.create_queue("sessions", requires_session=True)
        admin.create_topic("news")
        admin.create_subscription("news", "all")
        admin.create_subscription("news", "red")
        admin.delete_rule("news", "red", "$Default")
        admin.create_rule("news", "red", "colour", filter=SqlRuleFilter("colour = 'red'"))
        before = admin.get_queue("plain")
    _create_hub(bus)
    with connect(bus.connection_string) as client:
        with client.get_queue_sender("plain") as sender:
            sender.send_messages([ServiceBusMessage(f"m{n}", application_properties={"n": n}) for n in range(6)])
            (scheduled,) = sender.schedule_messages(ServiceBusMessage("later"), soon)
        with client.get_queue_receiver("plain") as receiver:
            done, dead, deferred, given_back, locked = take(receiver, 5)
            receiver.complete_message(done)
            receiver.dead_letter_message(dead, reason="bad", error_description="very")
            receiver.defer_message(deferred)
            receiver.abandon_message(given_back)
            assert bodies(take(receiver, 1)) == ["m3"]  # it stays locked, like `locked`
            with client.get_queue_sender("unique") as sender:
                sender.send_messages(ServiceBusMessage("once", message_id="the-id"))
            with client.get_queue_sender("sessions") as sender:
                sender.send_messages([ServiceBusMessage(f"s{n}", session_id="a") for n in range(3)])
            with client.get_queue_receiver("sessions", session_id="a") as holder:
                holder.session.set_state(b"half way")
                (first,) = take(holder, 1)
                holder.complete_message(first)
                with client.get_topic_sender("news") as sender:
                    sender.send_messages(ServiceBusMessage("red one", application_properties={"colour": "red"}))
                    sender.send_messages(ServiceBusMessage("blue one", application_properties={"colour": "blue"}))
                _publish(bus, "event")
                bus.kill()
    bus.restart()
    assert counts(bus, "plain") == (4, 1, 1)
    with administer(bus) as admin:
        after = admin.get_queue("plain")
        assert (after.max_delivery_count, after.lock_duration) == (before.max_delivery_count, before.lock_duration)
        assert [rule.name for rule in admin.list_rules("news", "red")] == ["colour"]
        assert admin.get_subscription_runtime_properties("news", "all").active_message_count == 2
        assert admin.get_subscription_runtime_properties("news", "red").active_message_count == 1
    with connect(bus.connection_string) as client:
        with client.get_queue_receiver("plain") as receiver:
            found = {str(m): m for m in take(receiver, 3)}
            assert set(found) == {"m3", "m4", "m5"}
            assert {text: m.delivery_count for text, m in found.items()} == {"m3": 2, "m4": 1, "m5": 0}
            assert found["m5"].application_properties == {b"n": 5}
            (again,) = receiver.receive_deferred_messages([deferred.sequence_number])
            assert str(again) == "m2"
        with client.get_queue_receiver("plain", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (letter,) = receiver.peek_messages(5)
            assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("bad", "very")
            assert bodies([letter]) == ["m1"]
            assert letter.sequence_number == dead.sequence_number
        with client.get_queue_sender("plain") as sender:
            sender.cancel_scheduled_messages([scheduled])
            (next_number,) = sender.schedule_messages(ServiceBusMessage("later"), soon)
            assert next_number > scheduled
        with client.get_queue_sender("unique") as sender:
            sender.send_messages(ServiceBusMessage("once", message_id="the-id"))
        assert active(bus, "unique") == 1
        with client.get_queue_receiver("sessions", session_id="a") as holder:
            assert holder.session.get_state() == b"half way"
            assert bodies(take(holder, 2)) == ["s1", "s2"]
    assert _events(bus) == 1
    assert locked.sequence_number  # received before the kill, and again above


def _create_hub(bus: LocalBus) -> None:
    """Restart with an entities file that has a hub: the missing one is created."""
    assert bus._folder is not None
    file = bus._folder / "entities.toml"
    file.write_text('[[event_hubs]]\nname = "hub"\npartition_count = 1\n')
    bus._entities = file
    bus.restart()


def _publish(bus: LocalBus, text: str) -> None:
    with EventHubProducerClient.from_connection_string(
        bus.connection_string, eventhub_name="hub", retry_total=0
    ) as producer:
        batch = producer.create_batch()
        batch.add(EventData(text))
        producer.send_batch(batch)


def _events(bus: LocalBus) -> int:
    with EventHubProducerClient.from_connection_string(
        bus.connection_string, eventhub_name="hub", retry_total=0
    ) as producer:
        return int(producer.get_partition_properties("0")["last_enqueued_sequence_number"]) + 1


class Load:
    """Clients that work against a bus until it is killed, and record its acknowledgements."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self.tried: set[str] = set()
        self.sent: set[str] = set()
        self.asked: set[str] = set()
        self.completed: set[str] = set()
        self._number = 0

    def round(self, seconds: float) -> None:
        """Run one life of the process: all clients at work, then a kill."""
        self._number += 1
        threads = [
            threading.Thread(target=self._until_killed, args=(work,))
            for work in (self._send_raw, self._send_with_the_sdk, self._receive)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._bus.kill()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()

    def _until_killed(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(OSError, ServiceBusError, RawError):
            work()

    def _send_raw(self) -> None:
        with RawClient(self._bus) as raw:
            raw.put_token("orders")
            link = raw.sender("orders")
            for number in range(100_000):
                text = f"raw-{self._number}-{number}"
                self.tried.add(text)
                raw.send(link, Encoded(body=text.encode() + b" " * 500, inferred=True).encode())
                self.sent.add(text)

    def _send_with_the_sdk(self) -> None:
        with connect(self._bus.connection_string) as client, client.get_queue_sender("orders") as sender:
            for number in range(100_000):
                texts = {f"sdk-{self._number}-{number}-{each}" for each in range(10)}
                self.tried |= texts
                sender.send_messages([ServiceBusMessage(text) for text in texts])
                self.sent |= texts

    def _receive(self) -> None:
        with connect(self._bus.connection_string) as client, client.get_queue_receiver("orders") as receiver:
            while True:
                for message in receiver.receive_messages(20, max_wait_time=1):
                    text = str(message).strip()
                    assert text not in self.completed, f"{text} was completed, and came again"
                    self.asked.add(text)
                    receiver.complete_message(message)
                    self.completed.add(text)


def test_kills_at_random_moments_under_load(bus: LocalBus) -> None:
    """After any kill all accepted messages are there, no completed one is, and no unknown one."""
    create(bus, "orders", lock_duration=timedelta(seconds=5))
    load = Load(bus)
    rounds = 0
    while rounds < 4 or (rounds < 30 and (len(load.sent) <= 200 or not load.completed)):
        rounds += 1
        load.round(random.uniform(0.9, 1.7) + (0 if rounds <= 4 else 2))
        bus.restart()
        found: list[str] = []
        with RawClient(bus) as raw:
            raw.put_token("orders")
            start = 0
            while True:
                status, body, _ = raw.request(
                    "orders", "com.microsoft:peek-message", {"from-sequence-number": start, "message-count": 500}
                )
                if status == 204:
                    break
                for each in body["messages"]:
                    decoded = Encoded()
                    decoded.decode(bytes(each["message"]))
                    found.append(data_of(decoded).decode().strip())
                    start = int(decoded.annotations["x-opt-sequence-number"]) + 1
        present = set(found)
        assert len(found) == len(present), "a message is there twice"
        assert not load.sent - load.asked - present, "accepted, and lost"
        assert not present & load.completed, "completed, and there again"
        assert not present - load.tried, "never sent"
    assert len(load.sent) > 200
    assert load.completed


def test_a_full_disk_acknowledges_nothing(bus: LocalBus) -> None:
    """The send fails, the process ends with the reason, and all acknowledged messages are there later."""
    create(bus, "orders")
    acknowledged = 0
    process = bus._process
    assert process is not None
    resource.prlimit(bus.pid, resource.RLIMIT_FSIZE, (600_000, 600_000))
    with RawClient(bus) as raw:
        raw.put_token("orders")
        link = raw.sender("orders")
        with pytest.raises((OSError, RawError)):  # noqa: PT012
            for _ in range(1000):
                raw.send(link, Encoded(body=b"x" * 20_000, inferred=True).encode())
                acknowledged += 1
    assert process.wait(10) == 1
    assert "a turn failed" in bus.log
    bus.restart()
    assert 0 < acknowledged < 1000
    assert acknowledged <= active(bus, "orders") <= acknowledged + 1


def test_receive_and_delete_does_not_deliver_again_after_a_kill(bus: LocalBus) -> None:
    """A message that was received and deleted stays deleted."""
    create(bus, "orders")
    with connect(bus.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(str(n)) for n in range(10)])
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver("orders", receive_mode=mode) as receiver:
            assert len(take(receiver, 10)) == 10
            bus.kill()
    bus.restart()
    assert active(bus, "orders") == 0


def test_schedules_come_due_after_a_restart(bus: LocalBus) -> None:
    """A message that came due while the process was down is active at once; one that expired is a dead letter."""
    create(bus, "orders", dead_lettering_on_message_expiration=True)
    with connect(bus.connection_string) as client, client.get_queue_sender("orders") as sender:
        due = datetime.now(timezone.utc) + timedelta(seconds=8)
        sender.schedule_messages(ServiceBusMessage("due"), due)
        sender.send_messages(ServiceBusMessage("short", time_to_live=timedelta(seconds=8)))
        assert counts(bus, "orders") == (1, 0, 1)
        bus.kill()
    time.sleep(max(0.0, (due - datetime.now(timezone.utc)).total_seconds()))
    bus.restart()
    wait_until(lambda: counts(bus, "orders") == (1, 1, 0))
