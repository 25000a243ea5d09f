"""Pings: what they are on the wire, when there are any, who sends them, and what their answers do."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AzureSasCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus import Namespace, PairedNamespace, PairedSender
from pairbus.domain.amqp import sections as amqp
from pairbus.domain.amqp.codec import decode
from pairbus.localbus import LocalBus
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from tests.support.pairing import SLACK, Pair, entity_of, entity_of_sender, idle_connection, pairbus_threads, pairing_of
from tests.support.process_fixtures import create, key_of, sas_token
from tests.support.waiting import wait_until

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
INTERVAL = 0.3


pytestmark = pytest.mark.usefixtures("quick_pings")


class Wire:
    """A relay before a namespace that keeps what clients say."""

    def __init__(self, bus: LocalBus) -> None:
        self._target = (bus.host, bus.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.said: list[bytearray] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                record = bytearray()
                self.said.append(record)
                threading.Thread(target=self._carry, args=(near, far, record), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, bytearray()), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                record += data
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def transfers(self) -> list[bytes]:
        """The payload of every transfer that a client has sent so far."""
        return [payload for record in list(self.said) for payload in _transfers(bytes(record))]

    def pings(self) -> list[bytes]:
        return [payload for payload in self.transfers() if CONTENT_TYPE.encode() in payload]

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()


def _transfers(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at + 8 <= len(stream):
        if stream[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = int.from_bytes(stream[at : at + 4], "big")
        frame = stream[at : at + size]
        body = stream[at + 4 * frame[4] : at + size]
        if body[:3] == b"\x00\x53\x14":
            _, end = decode(body, 0)
            yield body[end:]
        at += size


@pytest.fixture
def wire(pair: Pair) -> Iterator[Wire]:
    """A relay before the primary."""
    made = Wire(pair.primary)
    yield made
    pair.close_pairings()
    made.close()


def through(pair: Pair, wire: Wire) -> Namespace:
    """The primary behind the relay, with a signature that is good for the primary."""
    key = key_of(pair.primary.connection_string)
    signature = sas_token(f"sb://127.0.0.1:{pair.primary.port}/", DEFAULT_KEY_NAME, key, time.time() + 600)
    return Namespace(f"127.0.0.1:{wire.port}", credential=AzureSasCredential(signature), name=pair.name, use_tls=False)


def take_down(pair: Pair, sender: PairedSender) -> int:
    """Fail one entity over while its namespace runs; the fault's id."""
    fault = pair.primary.faults.unavailable(sender.entity_name)
    pair.declare_down(pairing_of(sender), sender.entity_name)
    sender.send_messages(ServiceBusMessage("parked", session_id="1"))
    return fault


def state(sender: PairedSender) -> str:
    return str(pairing_of(sender).status().entities[sender.entity_name].state)


def await_state(sender: PairedSender, wanted: str, seconds: float = 60.0) -> None:
    wait_until(lambda: state(sender) == wanted, seconds, lambda: pairing_of(sender).status().entities)


def ping_threads() -> list[str]:
    return [name for name in pairbus_threads() if name.startswith("pairbus-ping")]


# --- what a ping is ----------------------------------------------------------------------------------------------


def test_a_ping_is_exactly_as_specified_and_never_delivered(pair: Pair, wire: Wire) -> None:
    """On the wire: an empty body, the ping content type, 1 s to live, a random session id; a session queue takes it."""
    queue = pair.queue(requires_session=True)
    bus = pair.pairing(primary=through(pair, wire), ping_primary_interval=INTERVAL)
    sender = bus.get_queue_sender(queue)
    sessions = set()
    for round_ in (1, 2):
        pair.primary.faults.clear(take_down(pair, sender))
        await_state(sender, "available")
        assert len(wire.pings()) == round_, "one ping, the first that could be answered"
    for raw in wire.pings():
        by_code, body, _ = amqp.layout(raw)
        assert amqp.field(raw, by_code[amqp.HEADER].value, 2) == 1000
        properties = by_code[amqp.PROPERTIES].value
        assert amqp.field(raw, properties, amqp.CONTENT_TYPE) == CONTENT_TYPE
        sessions.add(str(uuid.UUID(amqp.field(raw, properties, amqp.GROUP_ID))))
        assert amqp.APPLICATION_PROPERTIES not in by_code
        assert body == b"\x00\x53\x75\xa0\x00", "one data section without a byte in it"
    assert len(sessions) == 2, "a new session id for each"
    assert bus.status().operations["ping"] == 2
    assert pair.arrived(queue) == 0
    assert pair.parked() == 2


def test_ping_attach_sends_no_message(pair: Pair, wire: Wire) -> None:
    """`ping="attach"` finds the entity well again without sending anything to it, and nothing is billed as a ping."""
    queue = pair.queue()
    bus = pair.pairing(primary=through(pair, wire), ping_primary_interval=INTERVAL, ping="attach")
    sender = bus.get_queue_sender(queue)
    fault = take_down(pair, sender)
    wait_until(lambda: pair.told("ping failed"), why="an attach that is refused is a failed ping")
    assert state(sender) == "failed over"
    pair.primary.faults.clear(fault)
    await_state(sender, "available")
    assert wire.pings() == []
    assert "ping" not in bus.status().operations
    assert bus.status().entities[queue].last_ping_error is None
    sender.send_messages(ServiceBusMessage("direct"))
    assert pair.bodies(queue) == ["direct"]


# --- when, and how many --------------------------------------------------------------------------------------------


def test_there_are_pings_only_while_an_entity_is_failed_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Available and suspect: no task, no ping. Failed over: one task. After failback: none, and no further ping."""
    queue = pair.queue()
    monkeypatch.setattr("pairbus.sending.sender._RETRIES", 0)  # what the service answers counts at once
    bus = pair.pairing(ping_primary_interval=INTERVAL, failover_interval=1, send_timeout=20)
    sender = bus.get_queue_sender(queue).__enter__()
    sender.send_messages(ServiceBusMessage("direct"))
    assert ping_threads() == []
    fault = pair.primary.faults.unavailable(queue)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("refused"))
    assert state(sender) == "suspect"
    time.sleep(1)  # longer than an interval: nothing must have come of it
    assert ping_threads() == []
    sender.send_messages(ServiceBusMessage("parked"))
    assert state(sender) == "failed over"
    assert ping_threads() == [f"pairbus-ping {queue}"]
    assert "ping" not in bus.status().operations
    pair.primary.faults.clear(fault)
    await_state(sender, "available")
    wait_until(lambda: not ping_threads(), 30, ping_threads)
    assert bus.status().operations["ping"] == 1
    time.sleep(3 * INTERVAL)
    assert bus.status().operations["ping"] == 1


def test_one_task_pings_an_entity_for_all_senders_and_threads(pair: Pair) -> None:
    """Eight threads with senders of their own find the outage at once: there is one task, with one ping an interval."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL)
    senders = [bus.get_queue_sender(queue.upper() if index % 2 else queue).__enter__() for index in range(8)]
    pair.primary.kill()
    gate = threading.Barrier(8)

    def send(sender: PairedSender) -> None:
        gate.wait(10)
        for _ in range(5):
            sender.send_messages(ServiceBusMessage("parked"))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ping_threads()) == 1
    assert pair.parked() == 40
    wait_until(lambda: len(pair.told("ping failed")) >= 6)
    times = [event.at for event in pair.told("ping failed")]
    # All in all: a ping that was told late makes the gap after it shorter. Two tasks would make it half as long.
    assert (times[-1] - times[0]).total_seconds() >= 0.8 * INTERVAL * (len(times) - 1)
    assert len(pair.told("failed over")) == 1


def test_two_entities_have_two_tasks_and_heal_one_by_one(pair: Pair) -> None:
    """Each entity that is down is pinged by itself; one coming back ends its task and leaves the other's alone."""
    first, second = pair.queue(), pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL)
    senders = [bus.get_queue_sender(name) for name in (first, second)]
    faults = [take_down(pair, sender) for sender in senders]
    assert ping_threads() == sorted(f"pairbus-ping {name}" for name in (first, second))
    pair.primary.faults.clear(faults[0])
    await_state(senders[0], "available")
    wait_until(lambda: ping_threads() == [f"pairbus-ping {second}"], 2, ping_threads)
    assert state(senders[1]) == "failed over"


def test_a_failover_while_the_failback_is_being_told_has_one_task(pair: Pair) -> None:
    """A log handler is slow to write "failed back" and the entity fails again meanwhile: still one task pings it."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL)
    sender = bus.get_queue_sender(queue)
    reached, go_on = threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "pairbus", {}).get("kind") == "failed back":
                reached.set()
                go_on.wait(10)

    handler = Slow()
    log = logging.getLogger("pairbus")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        pair.fail_over(sender, bus)
        pair.primary.restart()
        assert reached.wait(10)
        pair.primary.kill()
        # The handler's own lock would hold other records: the state is what counts here.
        failing = threading.Thread(target=sender.send_messages, args=(ServiceBusMessage("again"),))
        failing.start()
        await_state(sender, "failed over")
        assert len(ping_threads()) == 2, "the old one, still telling, and the new one"
        go_on.set()
        failing.join(10)
        wait_until(lambda: len(ping_threads()) == 1, 2, ping_threads)
        time.sleep(2 * INTERVAL)
        assert len(ping_threads()) == 1
    finally:
        go_on.set()
        log.removeHandler(handler)
        log.setLevel(level)
    assert pair.parked() == 2


# --- bounds ----------------------------------------------------------------------------------------------------------


def ping_is_under_way(sender: PairedSender) -> Any:
    return entity_of_sender(sender)._ping_connection


@pytest.mark.parametrize("end", ["pairing", "half"])
@pytest.mark.parametrize("phase", ["opening", "sending"])
def test_close_cuts_a_ping_that_hangs_within_a_second(pair: Pair, phase: str, end: str) -> None:
    """The primary does not answer a ping: after the end of the pairing, or of a half, its thread is gone within a
    second, and the ping does not count as a failed one."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL, ping_timeout=60, send_timeout=1.5)
    sender = bus.get_queue_sender(queue).__enter__()
    if phase == "opening":
        pair.primary.pause()
    else:
        pair.primary.faults.lost_accept(queue)
    pair.declare_down(bus, queue)
    wait_until(lambda: ping_is_under_way(sender))
    if phase == "sending":
        wait_until(lambda: ping_is_under_way(sender).opened)
    closing = threading.Thread(target=bus.close if end == "pairing" else bus.primary.close)
    closing.start()
    wait_until(lambda: not ping_threads(), 1 + SLACK, ping_threads)
    closing.join(60)
    assert not closing.is_alive()
    bus.close()
    assert not pair.told("ping failed")
    assert bus.status().entities[queue].last_ping_error is None


def test_close_stops_a_ping_that_cannot_even_connect_within_a_second(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not resolved for minutes, so that there is no socket to cut, does not hold a task either."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL, ping_timeout=60)
    sender = bus.get_queue_sender(queue)
    pair.fail_over(sender, bus)
    resolving, resolved = threading.Event(), threading.Event()
    real = socket.create_connection

    def connect(address: Any, *args: Any, **options: Any) -> socket.socket:
        if address[1] == pair.primary.port:
            resolving.set()
            resolved.wait(120)
            raise OSError("no address")
        return real(address, *args, **options)

    monkeypatch.setattr(socket, "create_connection", connect)
    try:
        assert resolving.wait(60)
        bus.close()
        wait_until(lambda: not ping_threads(), 1 + SLACK, ping_threads)
    finally:
        resolved.set()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_close_stops_a_task_between_two_pings_within_a_second(pair: Pair) -> None:
    """A task that waits for its next ping, ten minutes from now, ends with the pairing."""
    bus = pair.pairing(ping_primary_interval=600)
    pair.fail_over(bus.get_queue_sender(pair.queue()), bus)
    assert len(ping_threads()) == 1
    bus.close()
    wait_until(lambda: not ping_threads(), 1 + SLACK, ping_threads)


def test_a_ping_may_take_its_time_out_and_no_longer(pair: Pair) -> None:
    """A ping without an answer is given up after `ping_timeout`, and the next one is sent."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL, ping_timeout=1, send_timeout=1.5)
    sender = bus.get_queue_sender(queue).__enter__()
    pair.primary.pause()
    pair.declare_down(bus, queue)
    wait_until(lambda: len(pair.told("ping failed")) >= 2, 30)
    found = bus.status().entities[queue]
    assert "OperationTimeoutError" in found.last_ping_error
    assert found.state == "failed over"
    pair.primary.resume()
    await_state(sender, "available")


def test_pings_start_every_interval_however_long_one_takes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """From start to start it is the interval; while one is under way no other starts, and those that were due then are
    one, which starts as it ends."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=1)
    bus.get_queue_sender(queue)
    entity = entity_of(bus, queue)
    starts: list[float] = []
    lengths = iter([0.7, 0.7, 2.5, 0.1, 0.1])
    now = [0.0]

    class Closing:
        def wait(self, seconds: float) -> bool:
            now[0] += seconds
            return len(starts) == 5

        def is_set(self) -> bool:
            return False

    def slow() -> None:
        starts.append(now[0])
        now[0] += next(lengths)  # a ping against a peer that takes its time
        raise ConnectionError("no answer")

    monkeypatch.setattr("pairbus.sending.entity.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(entity, "_closing", Closing())
    monkeypatch.setattr(entity, "_ping", slow)
    entity.health = entity.health.failed(0.0, 0.0, 0.0)
    entity._ping_until_back()
    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses == pytest.approx([1.0, 1.0, 2.5, 1.0])


# --- what answers do -------------------------------------------------------------------------------------------------


def assert_refused(pair: Pair, sender: PairedSender, kinds: Any) -> None:
    """Sends raise the SDK's error with the messages, one and many, and nothing is parked by them."""
    parked = pair.parked()
    one = ServiceBusMessage("one")
    many = [ServiceBusMessage("two"), ServiceBusMessage("three")]
    with pytest.raises(kinds) as raised:
        sender.send_messages(one)
    assert raised.value.messages == [one]
    with pytest.raises(kinds) as raised:
        sender.send_messages(many)
    assert raised.value.messages == many
    assert pair.parked() == parked


def test_a_deleted_entity_becomes_unusable_and_heals_when_it_is_back(pair: Pair) -> None:
    """Failed over and then deleted: senders raise the SDK's error instead of parking, until somebody makes it again."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL)
    sender = bus.get_queue_sender(queue)
    fault = take_down(pair, sender)
    pair.delete_queue(queue)
    pair.primary.faults.clear(fault)
    await_state(sender, "unusable")
    # The SDK says of an entity that is not there that it could not be authorised for it.
    assert_refused(pair, sender, (ServiceBusAuthenticationError, ServiceBusConnectionError))
    found = bus.status().entities[queue]
    assert found.last_ping_error
    (event,) = wait_until(lambda: pair.told("entity unusable"))
    assert (event.entity, event.details["error"]) == (queue, found.last_ping_error)
    create(pair.primary, queue)
    await_state(sender, "available")
    sender.send_messages(ServiceBusMessage("direct"))
    assert pair.bodies(queue) == ["direct"]
    assert bus.status().entities[queue].last_ping_error is None
    wait_until(lambda: pair.told("failed back"))
    bus.close()
    assert len(pair.told("failed back")) == 1


def disabled(pair: Pair) -> tuple[str, PairedSender]:
    """A queue that was found disabled when its outage was over, and a sender to it."""
    queue = pair.queue()
    sender = pair.pairing(ping_primary_interval=INTERVAL).get_queue_sender(queue)
    fault = take_down(pair, sender)
    pair.update_queue(queue, status="Disabled")
    pair.primary.faults.clear(fault)
    await_state(sender, "unusable")
    return queue, sender


def test_a_disabled_entity_becomes_unusable_and_may_be_down_again(pair: Pair) -> None:
    """Disabled by its owner: the SDK's error. If then the namespace is down it parks again: it may be mended there."""
    queue, sender = disabled(pair)
    assert_refused(pair, sender, MessagingEntityDisabledError)
    pair.primary.kill()
    await_state(sender, "failed over")
    sender.send_messages(ServiceBusMessage("parked"))
    assert pair.parked() == 2
    assert len(ping_threads()) == 1
    pair.primary.restart()
    pair.update_queue(queue, status="Active")
    await_state(sender, "available")


@pytest.mark.parametrize("trouble", ["throttled", "short of memory"])
def test_an_entity_that_is_unusable_stays_so_while_pings_say_nothing_of_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A throttled namespace, or a process that can make no ping, is no outage: what was refused is not parked for."""
    queue, sender = disabled(pair)
    told = len(pair.told("ping failed"))
    with monkeypatch.context() as patched:
        if trouble == "throttled":
            pair.primary.faults.busy(queue)
        else:
            patched.setattr(entity_of_sender(sender), "_ping", lambda: (_ for _ in ()).throw(MemoryError()))
        wait_until(lambda: len(pair.told("ping failed")) >= told + 2)
        assert state(sender) == "unusable"
    pair.primary.faults.clear()
    pair.update_queue(queue, status="Active")
    await_state(sender, "available")
    assert pair.parked() == 1


def test_a_key_that_was_changed_in_the_outage_makes_the_entity_unusable(pair: Pair, tmp_path: Path) -> None:
    """The primary comes back with another key: its refusal is raised, not hidden in the backlog."""
    store = tmp_path / "primary.db"
    with LocalBus("rotating", store=store, key="first-key=") as before:
        create(before, "orders")
        place = Namespace.from_connection_string(before.connection_string, name=pair.name, ca_file=before.ca_file)
        bus: PairedNamespace = pair.pairing(primary=place, ping_primary_interval=INTERVAL)
        sender = bus.get_queue_sender("orders")
        before.kill()
        sender.send_messages(ServiceBusMessage("parked"))
        with LocalBus("rotating", store=store, key="second-key=", port=before.port):
            await_state(sender, "unusable")
            assert_refused(pair, sender, (ServiceBusAuthenticationError, ServiceBusAuthorizationError))
        before.restart()
        await_state(sender, "available")
        sender.send_messages(ServiceBusMessage("direct"))
        assert pair.count(before, "orders") == 1
        bus.close()


def test_failback_is_seen_by_all_senders_at_once(pair: Pair) -> None:
    """After the first ping that is answered no sender of the pairing parks any more."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL)
    senders = [bus.get_queue_sender(queue).__enter__() for _ in range(5)]
    pair.primary.kill()
    for sender in senders:
        sender.send_messages(ServiceBusMessage("parked"))
    pair.primary.restart()
    await_state(senders[0], "available")
    for sender in senders:
        sender.send_messages(ServiceBusMessage("direct"))
    assert pair.parked() == 5
    assert pair.bodies(queue) == ["direct"] * 5


def test_failback_is_seen_by_a_send_that_is_about_to_park(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A send waits for a busy backlog queue; the primary comes back meanwhile and gets its message."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL, server_busy_wait=2, send_timeout=20, backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    fault = take_down(pair, sender)
    pair.secondary.faults.busy(pair.backlog()[0])
    waiting, go_on = threading.Event(), threading.Event()

    def pause(seconds: float) -> bool:
        waiting.set()
        return not go_on.wait(60)

    monkeypatch.setattr(bus.backlog, "closing", SimpleNamespace(wait=pause, is_set=bus.closing.is_set))
    sending = threading.Thread(target=sender.send_messages, args=(ServiceBusMessage("late"),))
    sending.start()
    assert waiting.wait(60)
    pair.primary.faults.clear(fault)
    await_state(sender, "available")
    assert sending.is_alive(), "it is still waiting to park"
    go_on.set()
    sending.join(60)
    assert not sending.is_alive()
    assert pair.bodies(queue) == ["late"]
    assert pair.parked() == 1
    found = bus.status().entities[queue]
    assert (found.sent, found.parked) == (1, 1)


def test_failback_is_seen_by_a_message_that_was_made_ready(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary comes back after a send has found it down, and before its message was given to the backlog."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("parked"))
    make = sender._parcel

    def meanwhile(message: Any) -> Any:
        parcel = make(message)
        entity = entity_of(bus, queue)
        entity._change(entity.health.ping_answered(time.monotonic()))
        return parcel

    monkeypatch.setattr(sender, "_parcel", meanwhile)
    sender.send_messages(ServiceBusMessage("direct"))
    assert pair.bodies(queue) == ["direct"]
    assert pair.parked() == 1


def test_a_straggler_of_before_the_failback_fails_nothing_over(pair: Pair) -> None:
    """A send whose answer never came ends long after the entity failed over and back: it is parked, nobody else is."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=INTERVAL, send_timeout=8)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    connection = idle_connection(entity_of(bus, queue).pool)
    real, under_way, go_on = connection.sender.send_messages, threading.Event(), threading.Event()

    def unanswered(message: Any, timeout: float) -> None:
        real(message, timeout=timeout)
        under_way.set()
        go_on.wait(60)
        raise OperationTimeoutError(message="no answer")

    connection.sender.send_messages = unanswered
    straggler = threading.Thread(target=sender.send_messages, args=(ServiceBusMessage("straggler"),))
    straggler.start()
    assert under_way.wait(60)
    pair.primary.faults.clear(take_down(pair, sender))
    await_state(sender, "available")
    sender.send_messages(ServiceBusMessage("direct"))
    assert straggler.is_alive()
    wait_until(lambda: connection.was_cut, why="its time is not over")
    go_on.set()
    straggler.join(60)
    assert not straggler.is_alive()
    assert state(sender) == "available"
    sender.send_messages(ServiceBusMessage("direct too"))
    bus.close()
    assert len(pair.told("failed over")) == 1
    assert sorted(pair.parked_bodies()) == ["parked", "straggler"]
    # Its answer was lost: at least once.
    assert sorted(pair.bodies(queue)) == sorted(["before", "straggler", "direct", "direct too"])


def test_a_straggler_of_before_another_success_starts_no_timer(pair: Pair) -> None:
    """With an interval it is the SDK's error, as before any failover, and the entity is not even suspect."""
    queue = pair.queue()
    bus = pair.pairing(failover_interval=60)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pair.primary.faults.lost_accept(queue, count=1)
    errors: list[BaseException] = []

    def straggle() -> None:
        try:
            sender.send_messages(ServiceBusMessage("straggler"), timeout=3)
        except ServiceBusError as error:
            errors.append(error)

    straggler = threading.Thread(target=straggle)
    straggler.start()
    wait_until(lambda: pair.arrived(queue) == 2, why="its answer is not lost yet")
    sender.send_messages(ServiceBusMessage("direct"))
    straggler.join(15)
    assert [type(error) for error in errors] == [OperationTimeoutError]
    assert state(sender) == "available"
    assert pair.parked() == 0


def test_a_failback_while_the_refusal_is_read_parks_the_message(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unusable when a send looks, and well again as it looks once more: it goes on, and stumbles over nothing."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=600)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    entity = entity_of(bus, queue)

    class Flickering(type(entity)):  # type: ignore[misc]
        """Its refusal is forgotten as soon as somebody has read it, as by a ping that answers in between."""

        told = [ServiceBusError("refused")]  # noqa: RUF012 - one entity's

        @property
        def refusal(self) -> Exception | None:
            return self.told.pop() if self.told else None

        @refusal.setter
        def refusal(self, value: Exception | None) -> None:
            self.told.clear()

    with entity._lock:
        entity._change(entity.health.ping_refused(time.monotonic()))
    monkeypatch.setattr(entity, "__class__", Flickering)
    with pytest.raises(ServiceBusError, match="refused"):
        sender.send_messages(ServiceBusMessage("refused"))
    sender.send_messages(ServiceBusMessage("parked"))
    assert pair.parked_bodies() == ["parked"]
