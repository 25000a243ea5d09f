"""The store: what was acknowledged is there after a kill, whatever the moment; what could not be kept is not."""

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
from tests.support.process_fixtures import (
    FORGETS_SOCKETS,
    active,
    administer,
    bodies,
    connect,
    counts,
    create,
    take,
    wait_until,
)
from tests.support.raw_client import RawClient, RawError

pytestmark = FORGETS_SOCKETS


def draft(text: str, **more: Any) -> Draft:
    return read_message(Encoded(body=text.encode(), inferred=True, **more).encode())


class Bench:
    """A broker on a store, without sockets; `crash` is what a kill would leave."""

    def __init__(self, path: Path, cache_bytes: int = 1 << 20) -> None:
        self.path = path
        self.now = 1000.0
        self.after_crash: Bench | None = None
        self._cache = cache_bytes
        self.store = SqliteStore(path, cache_bytes=cache_bytes)
        self.broker = Broker("test", self.store, clock=lambda: self.now)

    def crash(self) -> Bench:
        """A broker on a copy of the files as they are now."""
        copy = self.path.with_name(self.path.name + "+")
        for suffix in ("", "-wal"):
            file = Path(str(self.path) + suffix)
            if file.exists():
                shutil.copy(file, str(copy) + suffix)
        self.store.abandon()
        other = self.after_crash = Bench(copy, self._cache)
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
        """What is in a queue, as it would be delivered."""
        messages = queue.peek(0, 1000)
        found = []
        for message, payload in zip(messages, self.store.payloads(messages), strict=True):
            decoded = Encoded()
            decoded.decode(message.delivered(payload))
            found.append(bytes(decoded.body).decode())
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a broker on a store; at the end no file is left open."""
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(tmp_path / "bus.db", **options))
        return made[-1]

    yield make
    while made:
        each = made.pop()
        each.store.abandon()
        made += [] if each.after_crash is None else [each.after_crash]


# --- without sockets -------------------------------------------------------------------------------------------


def test_what_is_committed_is_there_and_nothing_else(bench: Callable[..., Bench]) -> None:
    """A crash keeps what was committed and knows nothing of what was not."""
    first = bench()
    first.broker.create_queue(QueueSettings("q"))
    first.broker.send(first.queue(), [draft("kept"), draft("also kept")], first.now)
    first.turn()
    first.broker.send(first.queue(), [draft("not committed")], first.now)
    first.broker.create_queue(QueueSettings("not-committed"))
    second = first.crash()
    assert second.texts(second.queue()) == ["kept", "also kept"]
    assert second.broker.queue("not-committed") is None


def test_locks_end_and_count_with_a_crash(bench: Callable[..., Bench]) -> None:
    """What was locked is free again with its delivery count one higher; the rest is as it was."""
    first = bench()
    first.broker.create_queue(QueueSettings("q"))
    first.broker.send(first.queue(), [draft(text) for text in "abc"], first.now)
    first.turn()
    first.queue().acquire(first.now, 2)
    first.turn()
    second = first.crash()
    assert [m.delivery_count for m in second.queue().peek(0, 9)] == [1, 1, 0]
    assert len(second.queue().acquire(second.now, 9)) == 3


def test_a_deferred_message_at_its_last_delivery_is_dead_after_a_crash(bench: Callable[..., Bench]) -> None:
    """It was received by its number as often as it may be: the delivery that the crash ended was the last."""
    first = bench()
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


def test_a_message_changed_and_gone_in_one_turn_stays_gone(bench: Callable[..., Bench]) -> None:
    """Changed by an abandon and moved by its last delivery at once: after a crash it is a dead letter only."""
    for cache in (1 << 20, 0):
        first = bench(cache_bytes=cache)
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


def test_payloads_beyond_the_budget_are_read_back(bench: Callable[..., Bench]) -> None:
    """Memory holds what the budget allows; everything is delivered as it was sent, in whatever order it lies."""
    first = bench(cache_bytes=500)
    first.broker.create_queue(QueueSettings("q"))
    queue = first.queue()
    texts = [f"{number}-" + "x" * 100 for number in range(30)]
    for text in texts:
        first.broker.send(queue, [draft(text)], first.now)
    first.turn()
    held = [m for m in queue.peek(0, 100) if m.payload is not None]
    assert 0 < sum(len(m.payload or b"") for m in held) <= 500
    assert first.texts(queue) == texts
    # Dead letters keep their numbers, not the order in which they were buried.
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


def test_numbers_are_never_given_twice(bench: Callable[..., Bench]) -> None:
    """Sequence numbers go on after a crash, also where everything was taken out, and in a topic without subscribers."""
    first = bench()
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


def test_a_number_spent_on_a_duplicate_is_never_given_again(bench: Callable[..., Bench]) -> None:
    """Its sender may cancel by it: after a crash it must not be another message's."""
    first = bench()
    first.broker.create_queue(QueueSettings("q", requires_duplicate_detection=True))
    twice = [draft("x", id="a"), draft("x", id="b"), draft("x", id="a")]
    assert first.broker.schedule(first.queue(), twice, first.now) == [1, 2, 3]
    assert first.broker.schedule(first.queue(), [draft("x", id="b")], first.now) == [4]
    first.turn()
    second = first.crash()
    assert list(second.queue().messages) == [1, 2]
    assert second.broker.schedule(second.queue(), [draft("x", id="c")], second.now) == [5]


def test_duplicates_are_known_after_a_crash_and_forgotten_in_time(bench: Callable[..., Bench]) -> None:
    """The history outlives the process; what is older than the window leaves the file too."""
    first = bench()
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


def test_everything_about_entities_is_kept(bench: Callable[..., Bench]) -> None:
    """Settings, rules, hubs with their events, and session states; a deleted entity leaves nothing in any table."""
    first = bench()
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
    db = second.store._db
    for table in ("entities", "messages", "states", "sessions", "history", "events", "sequences"):
        assert db.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,), table


def test_a_store_that_failed_writes_no_more(bench: Callable[..., Bench]) -> None:
    """After a failed commit nothing is committed, not even at the end; what was committed before is there."""
    first = bench()
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
    second = Bench(first.path)
    assert second.texts(second.queue()) == ["before"]
    second.store.close()


def test_a_store_has_large_pages_and_a_write_ahead_log(tmp_path: Path) -> None:
    """WAL, and the page size that was measured to be best, also for a file that was looked at first."""
    store = SqliteStore(tmp_path / "bus.db")
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA page_size").fetchone() == (8192,)
    store.close()


# --- kill -9 ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[LocalBus]:
    with LocalBus(store=tmp_path / "bus.db") as started:
        yield started


def test_a_kill_loses_nothing_that_was_acknowledged(bus: LocalBus) -> None:
    """Messages, schedules, sessions and their state, dead letters, deferred ones, duplicates, topics, rules, hubs."""
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
            assert bodies(take(receiver, 1)) == ["m3"]  # and is left locked, as `locked` is
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
    assert locked.sequence_number  # it was received before the kill, and has come back above


def _create_hub(bus: LocalBus) -> None:
    """Hubs come from the entities file only: a restart with one creates what is missing."""
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
    """Clients that work against a bus until it dies under them, and remember what was acknowledged to them."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self.tried: set[str] = set()
        self.sent: set[str] = set()
        self.asked: set[str] = set()
        self.completed: set[str] = set()
        self._number = 0

    def round(self, seconds: float) -> None:
        """One life of the process: all clients at work, then a kill in the middle of it."""
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
    """Whatever the moment: all that was accepted is there, nothing that was completed is, and nothing was invented."""
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
                    found.append(bytes(decoded.body).decode().strip())
                    start = int(decoded.annotations["x-opt-sequence-number"]) + 1
        present = set(found)
        assert len(found) == len(present), "a message is there twice"
        assert not load.sent - load.asked - present, "accepted, and lost"
        assert not present & load.completed, "completed, and there again"
        assert not present - load.tried, "never sent"
    assert len(load.sent) > 200
    assert load.completed


def test_what_cannot_be_kept_is_not_acknowledged(bus: LocalBus) -> None:
    """The disk is full: the send fails, the process ends saying why, and everything acknowledged is there later."""
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
    """What was taken for good is gone for good."""
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
    """A message that was due while nobody was there is active at once; so is a life that ended, as a dead letter."""
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
