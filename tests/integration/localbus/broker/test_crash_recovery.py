"""Kills at any moment: after a turn the store has the broker's state, and acknowledgements stay true."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from proton import Delivery, symbol, timestamp
from proton import Message as Encoded

from pairbus.localbus import LocalBus
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.broker.settings_json import dump_subscription, load_subscription
from pairbus.localbus.broker.store import SqliteStore
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.message import BATCH_FORMAT, DEFERRED, SCHEDULED, Draft, Message, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session
from pairbus.localbus.entities.topics import Topic
from pairbus.localbus.settings import (
    CorrelationFilter,
    HubSettings,
    QueueSettings,
    RuleSettings,
    SqlExpression,
    TopicSettings,
)
from tests.support.process_fixtures import administer
from tests.support.raw_client import RawClient, RawError, data_of, longs, session_filter

LOCK = timedelta(seconds=10)
WINDOW = timedelta(seconds=30)


# --- a broker and its store are one -----------------------------------------------------------------------------


def message_facts(broker: Broker, queue: Queue) -> dict[int, tuple[Any, ...]]:
    """Return everything about a queue's messages that must outlive a kill; a locked one counts one more delivery."""
    messages = list(queue.messages.values())
    step = 0 if queue.dead_letters is None else 1
    return {
        m.sequence: (
            m.id, m.state, m.delivery_count + (step if m.lock is not None else 0), m.enqueue_sequence, m.enqueued_at,
            m.expires_at, m.scheduled_at, m.time_to_live, m.session_id, m.size, m.source, m.hops, payload,
        )
        for m, payload in zip(messages, broker.payloads(messages), strict=True)
    }  # fmt: skip


def queue_facts(broker: Broker, queue: Queue, now: float) -> dict[str, Any]:
    window = queue.settings.duplicate_detection_history_time_window.total_seconds()
    sessions = {s.id: (list(s.messages), s.state) for s in queue.sessions or () if s.messages or s.state}
    return {
        "path": queue.path,
        "settings": queue.settings,
        "times": None if queue.id in broker.topic_of_inbox else (queue.created_at, queue.updated_at),
        "next": queue.next_sequence,
        "counts": queue.counts(),
        "size": queue.size_in_bytes,
        "messages": message_facts(broker, queue),
        "sessions": sessions,
        "history": {id: at for id, at in queue.history.items() if at + window > now},
    }


def facts(broker: Broker, now: float) -> dict[str, Any]:
    """Return everything about a namespace that must outlive a kill."""
    topics = {
        topic.settings.name: (
            topic.settings,
            topic.created_at,
            topic.updated_at,
            {
                key: (s.name, s.created_at, s.updated_at, [(r.settings, r.created_at) for r in s.rules.values()])
                for key, s in topic.subscriptions.items()
            },
        )
        for topic in broker.topics()
    }
    hubs = {hub.settings.name: (hub.id, [(p.events, p.next_offset) for p in hub.partitions]) for hub in broker.hubs()}
    queues = {id: queue_facts(broker, queue, now) for id, queue in sorted(broker.by_id.items())}
    return {"topics": topics, "hubs": hubs, "queues": queues}


class Replay(RuleBasedStateMachine):
    """Random work, turn by turn: after each turn a broker on a copy of the files equals the working one."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="replay-"))
        self.now = 1000.0
        self.number = 0
        self.copies = 0
        #: Bodies of messages in queues (not of topics), each in one place.
        self.alive: set[bytes] = set()
        self.committed: set[bytes] = set()
        self.held: dict[str, tuple[Session, object]] = {}

    @initialize(cache=st.sampled_from((0, 300, 1 << 20)))
    def begin(self, cache: int) -> None:
        self.cache = cache
        self.path = self.folder / "bus.db"
        self.store = SqliteStore(self.path, cache_bytes=cache)
        broker = self.broker = Broker("test", self.store, clock=lambda: self.now)
        common: dict[str, Any] = {
            "lock_duration": LOCK, "max_delivery_count": 2, "dead_lettering_on_message_expiration": True,
        }  # fmt: skip
        for name in ("sink", "q"):
            broker.create_queue(QueueSettings(name, **common))
        broker.create_queue(
            QueueSettings(
                "unique",
                requires_duplicate_detection=True,
                duplicate_detection_history_time_window=WINDOW,
                forward_dead_lettered_messages_to="sink",
                **common,
            )
        )
        broker.create_queue(QueueSettings("sessions", requires_session=True, **common))
        broker.create_queue(QueueSettings("chain", forward_to="q", **common))
        broker.create_queue(QueueSettings("to-sessions", forward_to="sessions", **common))
        broker.create_topic(TopicSettings("topic"))
        broker.create_subscription("topic", QueueSettings("all", **common), None)
        coloured = RuleSettings("r", SqlExpression("n > 3"), SqlExpression("SET seen = n + 1"))
        broker.create_subscription("topic", QueueSettings("some", **common), coloured)
        broker.create_subscription("topic", QueueSettings("on", forward_to="sink", **common), None)
        broker.create_subscription("topic", QueueSettings("sorted", requires_session=True, **common), None)
        broker.create_hub(HubSettings("hub", 2))
        self.turn()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
        shutil.rmtree(self.folder)

    # --- turns and crashes ---------------------------------------------------------------------------------------

    def load(self) -> tuple[SqliteStore, Path]:
        """Open a store on a copy of the files, as a kill would leave them."""
        self.copies += 1
        copy = self.folder / f"copy-{self.copies}.db"
        for suffix in ("", "-wal"):
            file = Path(f"{self.path}{suffix}")
            if file.exists():
                shutil.copy(file, f"{copy}{suffix}")
        return SqliteStore(copy, cache_bytes=self.cache), copy

    def turn(self) -> None:
        self.broker.turn(self.now)
        self.store.commit()
        self.committed = set(self.alive)
        self.check()

    def check(self) -> None:
        store, copy = self.load()
        try:
            with mock.patch.object(Queue, "dead_letter_exhausted"):  # checked in `crash`
                other = Broker("test", store, clock=lambda: self.now)
            kept, held = facts(other, self.now), facts(self.broker, self.now)
            for id, queue in kept.pop("queues").items():
                mine = held["queues"].pop(id)
                assert queue == mine, {name: (queue[name], mine[name]) for name in mine if queue[name] != mine[name]}
            assert not held.pop("queues")
            assert kept == held
        finally:
            store.abandon()
            for file in self.folder.glob(copy.name + "*"):
                file.unlink()
        self.nothing_is_lost()

    def nothing_is_lost(self) -> None:
        places = [
            body
            for queue in self.broker.by_id.values()
            for body in self.bodies(queue, list(queue.messages.values()))
            if body.startswith(b"one-")
        ]
        assert len(places) == len(set(places)), "a message is in two places"
        assert set(places) == self.alive

    @rule()
    def crash(self) -> None:
        """Kill: continue with a new broker on the files."""
        store, copy = self.load()
        self.store.abandon()
        self.store, self.path = store, copy
        self.broker = Broker("test", self.store, clock=lambda: self.now)
        self.held.clear()
        self.alive = set(self.committed)
        self.turn()

    @rule(seconds=st.sampled_from((0.5, 4.0, 11.0, 40.0, -3.0)))
    def wait(self, seconds: float) -> None:
        """Let time pass; sometimes set the clock back."""
        self.now += seconds
        self.turn()
        for name, (session, owner) in list(self.held.items()):
            if session.owner is not owner:
                del self.held[name]

    # --- what can be done ----------------------------------------------------------------------------------------

    def queue(self, path: str) -> Queue:
        found = self.broker.queue(path)
        assert found is not None
        return found

    def receivable(self) -> list[Queue]:
        return [q for q in self.broker.by_id.values() if q.settings.forward_to is None]

    def bodies(self, queue: Queue, messages: list[Message]) -> list[bytes]:
        found = []
        for message, payload in zip(messages, self.broker.payloads(messages), strict=True):
            decoded = Encoded()
            decoded.decode(message.delivered(payload))
            found.append(data_of(decoded))
        return found

    def draft(self, kind: str, data: st.DataObject) -> Draft:
        self.number += 1
        message: Any = Encoded(body=f"{kind}-{self.number}".encode(), inferred=True)
        message.properties = {"n": data.draw(st.integers(0, 6))}
        message.group_id = data.draw(st.sampled_from((None, "a", "b")))
        message.id = data.draw(st.sampled_from((None, "x", "y")))
        draft = read_message(message.encode())
        draft.time_to_live = data.draw(st.sampled_from((None, None, 5.0, 20.0)))
        draft.scheduled_at = data.draw(st.sampled_from((None, None, self.now + 3, self.now + 30)))
        return draft

    @rule(
        data=st.data(),
        to=st.sampled_from(("q", "unique", "sessions", "chain", "to-sessions", "topic")),
        size=st.integers(1, 3),
        turn=st.booleans(),
    )
    def send(self, data: st.DataObject, to: str, size: int, turn: bool) -> None:
        target: Queue | Topic | None = self.broker.queue(to) or self.broker.topic(to)
        assert target is not None
        drafts = [self.draft("many" if isinstance(target, Topic) else "one", data) for _ in range(size)]
        if to == "sessions":
            for draft in drafts:
                draft.session_id = draft.session_id or "a"
        taken = self.broker.send(target, drafts, self.now)
        if isinstance(target, Queue):
            self.alive |= set(self.bodies(target, taken))
        if turn:  # otherwise the next step is in the same turn
            self.turn()

    @rule(data=st.data(), crash=st.booleans())
    def pass_through(self, data: st.DataObject, crash: bool) -> None:
        """Send, receive and complete a message, each in its own turn: no trace of it stays for the next one with its
        id.
        """
        queue = self.queue("unique")
        taken = self.broker.send(queue, [self.draft("one", data)], self.now)
        self.alive |= set(self.bodies(queue, taken))
        self.turn()
        for message in queue.acquire(self.now, 100):
            self.turn()
            self.alive -= set(self.bodies(queue, [message]))
            queue.complete(message.lock.tag, self.now)
        self.turn()
        if crash:
            self.crash()

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        hub = self.broker.hub("hub")
        assert hub is not None
        self.broker.publish(hub.choose(None), hub, [self.draft("event", data)], self.now)
        self.turn()

    @rule(data=st.data(), limit=st.integers(1, 3), delete=st.booleans(), turn=st.booleans())
    def receive(self, data: st.DataObject, limit: int, delete: bool, turn: bool) -> None:
        queue = data.draw(st.sampled_from(self.receivable()))
        session = None
        if queue.sessions is not None:
            session = self.held.get(queue.path, (None,))[0]
            if session is None:
                owner = object()
                session = queue.accept_session(None, owner, self.now)
                if session is None:
                    return
                self.held[queue.path] = (session, owner)
        taken = queue.acquire(self.now, limit, None, session, delete=delete)
        if delete:
            self.alive -= set(self.bodies(queue, taken))
        if turn:
            self.turn()

    @rule(
        data=st.data(),
        how=st.sampled_from(("complete", "abandon", "release", "defer", "dead_letter", "renew")),
        changes=st.sampled_from((None, {"why": "because"}, {"n": 9, "more": [1]})),
        turn=st.booleans(),
    )
    def settle(self, data: st.DataObject, how: str, changes: dict[str, Any] | None, turn: bool) -> None:
        locked = [(q, m) for q in self.broker.by_id.values() for m in q.messages.values() if m.lock is not None]
        if not locked:
            return
        queue, message = data.draw(st.sampled_from(locked))
        body = self.bodies(queue, [message])
        arguments = [changes] if how in ("abandon", "defer") else []
        try:
            getattr(queue, how)(message.lock.tag, self.now, *arguments)
        except BusError:
            assert message.lock.end <= self.now or queue.dead_letters is None
        else:
            if how == "complete":
                self.alive -= set(body)
        if turn:
            self.turn()

    @rule(data=st.data(), delete=st.booleans())
    def receive_deferred(self, data: st.DataObject, delete: bool) -> None:
        deferred = [
            (q, m) for q in self.receivable() for m in q.messages.values() if m.state == DEFERRED and m.lock is None
        ]
        if not deferred:
            return
        queue, message = data.draw(st.sampled_from(deferred))
        taken = queue.receive_deferred([message.sequence], self.now, delete=delete)
        if delete:
            self.alive -= set(self.bodies(queue, taken))
        self.turn()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        scheduled = [(q, m) for q in self.broker.by_id.values() for m in q.messages.values() if m.state == SCHEDULED]
        if not scheduled:
            return
        queue, message = data.draw(st.sampled_from(scheduled))
        self.alive -= set(self.bodies(queue, [message]))
        queue.cancel_scheduled([message.sequence])
        self.turn()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), state=st.sampled_from((None, b"", b"state")), leave=st.booleans())
    def use_session(self, data: st.DataObject, state: bytes | None, leave: bool) -> None:
        path = data.draw(st.sampled_from(sorted(self.held)))
        session, owner = self.held[path]
        queue = next(q for q in self.broker.by_id.values() if q.path == path)
        try:
            queue.set_session_state(session.id, state, self.now)
        except BusError:
            assert session.until <= self.now
        if leave:
            queue.release_session(session, owner, self.now)
            del self.held[path]
        self.turn()

    @rule(
        limit=st.integers(1, 3),
        forward=st.sampled_from((None, "sink", "chain", "topic")),
        status=st.sampled_from(("Active", "SendDisabled", "Disabled")),
    )
    def update(self, limit: int, forward: str | None, status: str) -> None:
        """Change settings under existing messages, also to loops and destinations that refuse."""
        q, sink = self.queue("q").settings, self.queue("sink").settings
        self.broker.update_queue(sink.changed(status=status, max_delivery_count=limit))
        if forward != "topic":  # a topic may copy a message to several queues
            self.broker.update_queue(q.changed(forward_to=forward, max_delivery_count=limit))
        self.turn()

    @rule(text=st.sampled_from(("n > 1", "n = 2", "other = 'x'")), name=st.sampled_from(("r", "s", "R")))
    def change_rules(self, text: str, name: str) -> None:
        subscription = self.broker.subscription("topic", "some")
        assert subscription is not None
        if name.lower() in subscription.rules and len(subscription.rules) > 1:
            self.broker.delete_rule("TOPIC", "SOME", name)
        elif name.lower() in subscription.rules:
            self.broker.update_rule("Topic", "some", RuleSettings(name, SqlExpression(text)))
        else:
            self.broker.create_rule(
                "topic", "Some", RuleSettings(name, SqlExpression(text), SqlExpression("SET a = 1"))
            )
        self.broker.update_topic(TopicSettings("Topic", user_metadata=text))
        self.turn()

    @rule(data=st.data(), turn=st.booleans())
    def come_and_go(self, data: st.DataObject, turn: bool) -> None:
        """Create, fill and delete entities, also within one turn; no id is used twice."""
        if self.broker.queue("temporary") is None:
            made = self.broker.create_queue(QueueSettings("temporary", requires_duplicate_detection=True))
            self.broker.send(made, [self.draft("temporary", data)], self.now)
            self.broker.create_subscription("topic", QueueSettings("temporary"), None)
        else:
            gone = self.queue("temporary")
            self.broker.send(gone, [self.draft("temporary", data)], self.now)
            self.broker.delete_queue("Temporary")
            self.broker.delete_subscription("topic", "Temporary")
            with pytest.raises(BusError):
                self.broker.send(gone, [self.draft("temporary", data)], self.now)
        if turn:
            self.turn()


def _effort(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def test_a_restored_broker_equals_the_original() -> None:
    """After every turn a new broker on a copy of the files has the same state; no message is lost or duplicated."""
    run_state_machine_as_test(Replay, settings=_effort(40, 25))


@pytest.mark.campaign
def test_a_restored_broker_equals_the_original_in_long_runs() -> None:
    """More and longer random runs show the same."""
    run_state_machine_as_test(Replay, settings=_effort(1000, 60))


# --- kills at random instants --------------------------------------------------------------------------------------


class Acknowledged:
    """The requests to a bus and its acknowledgements, over several lives of the process."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.tried: dict[str, set[str]] = defaultdict(set)
        self.sent: dict[str, set[str]] = defaultdict(set)
        #: Received and deleted messages; then the settlements that were requested and those that were confirmed.
        self.taken: set[str] = set()
        self.last = -1
        self.requested: set[str] = set()
        self.settled: dict[str, str] = {}
        #: The kinds of settlements that were used.
        self.settlement_kinds: set[str] = set()
        self.cancelled: set[int] = set()
        self.scheduled: dict[int, str] = {}
        self.dropping: set[int] = set()
        self.states: list[bytes] = [b""]
        self.state = b""

    def body(self, entity: str) -> str:
        text = f"{entity}-{next(self._numbers)}"
        self.tried[entity].add(text)
        return text


def encoded(text: str, **more: Any) -> bytes:
    return bytes(Encoded(body=text.encode(), inferred=True, properties={"n": 1}, **more).encode())


def body_of(raw: bytes) -> tuple[str, Encoded]:
    decoded = Encoded()
    decoded.decode(raw)
    return data_of(decoded).decode(), decoded


def number_of(text: str) -> int:
    return int(text.rsplit("-", 1)[1])


def send_until_killed(raw: RawClient, record: Acknowledged) -> None:
    """Send to queues and a topic, one by one and in batches, until the process dies."""
    raw.put_token("")
    links = {entity: raw.sender(entity) for entity in ("work", "taken", "news")}
    for number in itertools.count():
        for entity, link in links.items():
            texts = [record.body(entity) for _ in range(1 + number % 4)]
            if len(texts) == 1:
                raw.send(link, encoded(texts[0]))
            else:
                batch = b"".join(b"\x00\x53\x75\xb0" + struct.pack(">I", len(m)) + m for m in map(encoded, texts))
                raw.send(link, batch, BATCH_FORMAT)
            record.sent[entity] |= set(texts)


def receive_and_delete_until_killed(raw: RawClient, record: Acknowledged) -> None:
    """Receive and delete many messages at a time; one that was received must not come again."""
    raw.put_token("")
    link = raw.receiver("taken", 50, delete=True)
    for _ in itertools.count():
        if link.credit < 20:
            link.flow(50)
        text = body_of(raw.receive(link).payload)[0]
        assert text not in record.taken, f"{text} was received and deleted, and came again"
        record.taken.add(text)
        assert number_of(text) > record.last, f"{text} came too late"
        record.last = number_of(text)


def settle_until_killed(raw: RawClient, record: Acknowledged) -> None:
    """Receive with locks and settle in every way."""
    raw.put_token("")
    link = raw.receiver("work", 5)
    for number in itertools.count():
        link.flow(1)
        received = raw.receive(link)
        text, _ = body_of(received.payload)
        assert record.settled.get(text, "released") == "released", f"{text} was {record.settled[text]}, and came again"
        outcome, name = (
            (Delivery.ACCEPTED, "completed"),
            (Delivery.REJECTED, "dead"),
            (Delivery.MODIFIED, "deferred"),
            (Delivery.RELEASED, "released"),
        )[number % 4]
        if name == "deferred":
            received.delivery.local.undeliverable = True
        record.requested.add(text)
        if raw.settle(link, received, outcome) is None:
            record.settled[text] = name
            record.settlement_kinds.add(name)


def schedule_until_killed(raw: RawClient, record: Acknowledged) -> None:
    """Schedule messages for soon and for later, and cancel every other late one."""
    raw.put_token("")
    for number in itertools.count():
        text = record.body("later")
        due = timestamp(int(time.time() * 1000) + (300 if number % 3 == 0 else 3_600_000))
        message = encoded(text, annotations={symbol("x-opt-scheduled-enqueue-time"): due})
        status, body, _ = raw.request("later", "com.microsoft:schedule-message", {"messages": [{"message": message}]})
        assert status == 200
        (sequence,) = body["sequence-numbers"]
        assert sequence not in record.scheduled, "a number was given twice"
        record.scheduled[sequence] = text
        record.sent["later"].add(text)
        if number % 3 == 1:
            record.dropping.add(sequence)
            wanted = {"sequence-numbers": longs(sequence)}
            status, _, _ = raw.request("later", "com.microsoft:cancel-scheduled-message", wanted)
            assert status == 200
            record.cancelled.add(sequence)


def hold_session_until_killed(raw: RawClient, record: Acknowledged) -> None:
    """Hold a session and set its state again and again."""
    raw.put_token("")
    raw.receiver("sessions", filters=session_filter("s"))
    for _ in itertools.count():
        state = str(uuid.uuid4()).encode()
        record.states = [record.state, state]
        status, _, _ = raw.request(
            "sessions", "com.microsoft:set-session-state", {"session-id": "s", "session-state": state}
        )
        assert status == 200
        record.state = state


def life(bus: LocalBus, record: Acknowledged, seconds: float) -> None:
    """Run one life of the process: all clients at work, a pause, and a kill in the middle."""
    failures: list[BaseException] = []

    def work(job: Callable[[RawClient, Acknowledged], None]) -> None:
        try:
            with RawClient(bus) as raw:
                job(raw, record)
        except (OSError, RawError):
            pass  # it was killed
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(job,))
        for job in (
            send_until_killed,
            receive_and_delete_until_killed,
            settle_until_killed,
            schedule_until_killed,
            hold_session_until_killed,
        )
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    bus.pause()
    time.sleep(0.05)
    bus.resume()
    time.sleep(seconds / 2)
    bus.kill()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def peeked(raw: RawClient, path: str) -> list[tuple[str, Encoded]]:
    found: list[tuple[str, Encoded]] = []
    start = 0
    while True:
        wanted = {"from-sequence-number": start, "message-count": 500}
        status, body, _ = raw.request(path, "com.microsoft:peek-message", wanted)
        if status == 204:
            return found
        found += [body_of(bytes(each["message"])) for each in body["messages"]]
        start = found[-1][1].annotations["x-opt-sequence-number"] + 1


def peeked_at_rest(raw: RawClient, path: str) -> list[tuple[str, Encoded]]:
    """Peek all messages of a queue whose scheduled messages come due: one that does between two pages is in both."""
    found, before = peeked(raw, path), None
    while before != (texts := [text for text, _ in found]):
        found, before = peeked(raw, path), texts
    return found


def verify(bus: LocalBus, record: Acknowledged) -> None:
    """Check that everything that was acknowledged holds after the kills."""
    with RawClient(bus) as raw:
        raw.put_token("")
        there = {
            path: peeked_at_rest(raw, path)
            for path in (
                "work", "work/$deadletterqueue", "taken", "later", "news/subscriptions/one", "news/subscriptions/two",
            )
        }  # fmt: skip
        raw.receiver("sessions", filters=session_filter("s"))
        _, body, _ = raw.request("sessions", "com.microsoft:get-session-state", {"session-id": "s"})
        assert (body["session-state"] or b"") in record.states
        record.state = body["session-state"] or b""
        record.states = [record.state]
    texts = {path: [text for text, _ in found] for path, found in there.items()}
    for path, found in texts.items():
        assert len(found) == len(set(found)), f"a message is twice in {path}"
        assert set(found) <= record.tried[path.split("/")[0]], f"something in {path} was never sent"
        numbers = [m.annotations["x-opt-sequence-number"] for _, m in there[path]]
        assert numbers == sorted(set(numbers))
        if path.startswith(("taken", "news")):  # each has one sender
            assert found == sorted(found, key=number_of), f"the order of {path} is not the order of its sender"
    for path in ("news/subscriptions/one", "news/subscriptions/two"):
        assert record.sent["news"] <= set(texts[path]), "accepted by a topic, and not in a subscription"
    assert texts["news/subscriptions/one"] == texts["news/subscriptions/two"], "half of a fan-out"
    assert not set(texts["taken"]) & record.taken, "received and deleted, and there again"
    work, dead = set(texts["work"]), set(texts["work/$deadletterqueue"])
    assert not work & dead
    assert record.sent["work"] <= work | dead | record.requested, "accepted, and lost"
    states = {text: m.annotations.get("x-opt-message-state", 0) for text, m in there["work"]}
    for text, what in record.settled.items():
        if what == "completed":
            assert text not in work | dead, "completed, and there again"
        elif what == "dead":
            assert text in dead, "dead-lettered, and not there"
        elif what == "deferred":
            assert states.get(text) == DEFERRED
    dropped = {record.scheduled[sequence] for sequence in record.cancelled}
    assert not dropped & set(texts["later"]), "cancelled, and there again"
    unsure = {record.scheduled[sequence] for sequence in record.dropping}
    assert record.sent["later"] - unsure <= set(texts["later"]), "scheduled, and lost"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_acknowledgements_hold_after_kills(tmp_path: Path) -> None:
    """Batches, fan-out, settlements, receive-and-delete, schedules and session state: all acknowledgements hold."""
    record = Acknowledged()
    with LocalBus(store=tmp_path / "bus.db") as bus:
        with administer(bus) as admin:
            for queue in ("work", "taken", "later"):
                admin.create_queue(queue, max_delivery_count=100)
            admin.create_queue("sessions", requires_session=True)
            admin.create_topic("news")
            for subscription in ("one", "two"):
                admin.create_subscription("news", subscription)
        lives = 0
        while lives < 5 or (
            lives < 30 and not (record.taken and record.cancelled and len(record.settlement_kinds) == 4)
        ):
            lives += 1
            life(bus, record, random.uniform(0.6, 1.4))
            bus.restart()
            verify(bus, record)
    assert record.taken
    assert record.cancelled
    assert {"completed", "dead", "deferred", "released"} == record.settlement_kinds


# --- what these have found -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_deleted_queue_refuses_requests(tmp_path: Path) -> None:
    """Clients with an open `$management` link to it are refused, and the store can be opened again."""
    message = encoded("x", annotations={symbol("x-opt-scheduled-enqueue-time"): timestamp(4_000_000_000_000)})
    wanted = {"messages": [{"message": message}]}
    with LocalBus(store=tmp_path / "bus.db") as bus:
        with administer(bus) as admin, RawClient(bus) as raw:
            admin.create_queue("q")
            raw.put_token("")
            assert raw.request("q", "com.microsoft:schedule-message", wanted)[0] == 200
            admin.delete_queue("q")
            assert raw.request("q", "com.microsoft:schedule-message", wanted)[0] == 404
            bus.kill()
        bus.restart()
        with administer(bus) as admin, RawClient(bus) as raw:
            raw.put_token("")
            admin.create_queue("q")
            assert peeked(raw, "q") == []
            admin.delete_queue("q")
            admin.create_queue("q")
            assert raw.request("q", "com.microsoft:schedule-message", wanted)[0] == 200, "its name is another's now"
            assert admin.get_queue_runtime_properties("q").scheduled_message_count == 1


def test_a_received_and_deleted_message_has_its_state() -> None:
    """The flag of a removed message is not delivered: an active one is active, a deferred one deferred."""
    broker = Broker("test")
    queue = broker.create_queue(QueueSettings("q"))
    broker.send(queue, [read_message(encoded("a")), read_message(encoded("b"))], 1.0)
    (first,) = queue.acquire(1.0, 1, delete=True)
    (second,) = queue.acquire(1.0, 1)
    queue.defer(second.lock.tag, 1.0)
    queue.receive_deferred([second.sequence], 1.0, delete=True)
    states = []
    for message in (first, second):
        _, decoded = body_of(message.delivered(broker.payloads([message])[0]))
        states.append(decoded.annotations.get("x-opt-message-state", 0))
    assert states == [0, DEFERRED]


def test_filter_values_of_every_type_are_stored() -> None:
    """Values of types that JSON lacks are the same after a restart."""
    values = {"u": uuid.uuid4(), "b": b"\x00\xff", "d": Decimal("1.50"), "t": timedelta(microseconds=7), "f": 0.5}
    rule = RuleSettings("r", CorrelationFilter(properties=values))
    text = dump_subscription("t", QueueSettings("s"), [(rule, 1.0)])
    assert load_subscription(text)[2] == [(rule, 1.0)]


def test_a_clock_set_back_does_not_prolong_the_duplicate_window() -> None:
    """Each id is known for the length of the window, and no longer."""
    broker = Broker("test")
    queue = broker.create_queue(
        QueueSettings("q", requires_duplicate_detection=True, duplicate_detection_history_time_window=WINDOW)
    )
    for id, now, fresh in (("a", 500.0, 1), ("b", 100.0, 1), ("b", 120.0, 0), ("b", 140.0, 1), ("a", 141.0, 0)):
        assert len(broker.send(queue, [read_message(encoded("x", id=id))], now)) == fresh, (id, now)
