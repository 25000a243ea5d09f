"""What a reviewer and a saboteur broke once: bounds, closing, broken handlers, flapping, odd answers."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

from pairbus import (
    BacklogUnavailableError,
    Namespace,
    PairedNamespace,
    PairedNamespaceClosedError,
    PairedSender,
    PairingError,
)
from pairbus.domain.backlog import queue_path
from pairbus.runtime import bounded_call
from pairbus.runtime.backoff import Backoff
from pairbus.sending import connections as lanes_module
from pairbus.sending import provisioning
from pairbus.sending.connections import SenderConnection
from pairbus.sending.sdk.connection_patches import socket_of
from tests.support.pairing import (
    SLACK,
    Pair,
    entity_of,
    idle_connection,
    is_closed,
    pairbus_threads,
    wait_until,
    watchdog_of,
)


def state(bus: PairedNamespace, queue: str) -> str:
    return bus.status().entities[queue].state


class Sending(threading.Thread):
    """One send on a thread of its own, and how it ended."""

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


# --- bounds ------------------------------------------------------------------------------------------------------


def test_an_entity_that_is_found_well_and_fails_again_holds_no_caller(pair: Pair) -> None:
    """Pings by attach succeed, sends fail, the secondary is silent: the call still ends, with its message."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=2, ping="attach", ping_primary_interval=1)
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("fine"))
        pair.secondary.pause()
        pair.primary.faults.reject("amqp:internal-error", queue)
        message = ServiceBusMessage("nowhere")
        begun = time.monotonic()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - which of the two ends it first is a matter of time
            sender.send_messages(message)
        assert time.monotonic() - begun < 2 * 2 + SLACK
        assert raised.value.messages == [message]  # type: ignore[attr-defined]


def test_a_call_that_the_sdk_does_not_bound_is_cut(pair: Pair) -> None:
    """The SDK waits for ever, as it does after answers that it does not understand: the guard ends it in time."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=6, backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    connection = idle_connection(entity_of(bus, queue).pool)
    sock = socket_of(connection.sender)

    def wait_for_ever(message: Any, timeout: float) -> None:
        sock.settimeout(None)
        while sock.recv(1000):
            pass
        raise ConnectionError("cut")

    connection.sender.send_messages = wait_for_ever
    sending = Sending(sender, ServiceBusMessage("parked"))
    sending.join(60)
    assert not sending.is_alive()
    assert sending.error is None
    assert "No answer to a send within 6 s" in (bus.status().entities[queue].last_error or "")
    assert pair.parked_bodies() == ["parked"]


def test_an_entity_that_comes_and_goes_is_tried_twice_and_then_parked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found well each time the message is about to be parked, and down each time it is sent: the backlog gets it."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    entity = entity_of(bus, queue)
    tries = []
    send = sender._to_primary

    def back(parcel: Any) -> bool:
        entity.health = entity.health.ping_answered(time.monotonic())
        return True

    def counted(*args: Any) -> bool:
        tries.append(args)
        return send(*args)

    monkeypatch.setattr(sender, "_is_back", back)
    monkeypatch.setattr(sender, "_to_primary", counted)
    pair.primary.kill()
    sender.send_messages(ServiceBusMessage("parked"))
    assert len(tries) == 2
    assert pair.parked_bodies() == ["parked"]


def test_a_short_time_out_of_one_caller_takes_no_queue_from_the_others(pair: Pair) -> None:
    """What does not even leave time to open a link says nothing about a backlog queue."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    with pytest.raises(BacklogUnavailableError):
        sender.send_messages(ServiceBusMessage("in a hurry"), timeout=0.01)
    assert all(each.in_rotation for each in bus.status().queues.values())
    sender.send_messages(ServiceBusMessage("parked"))
    assert pair.parked_bodies() == ["parked"]


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_a_time_out_may_be_longer_than_a_thread_can_wait(pair: Pair, timeout: float) -> None:
    """As long as anybody likes means for ever."""
    queue = pair.queue()
    sender = pair.pairing().get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("sent"), timeout=timeout)
    assert pair.bodies(queue) == ["sent"]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_bad_time_out_is_refused_with_the_message(pair: Pair, timeout: float) -> None:
    """The SDK's error, and whose it is."""
    message = ServiceBusMessage("unsent")
    sender = pair.pairing().get_queue_sender(pair.queue())
    with pytest.raises(ValueError, match=r"The timeout must be greater than 0\.") as raised:
        sender.send_messages(message, timeout=timeout)
    assert raised.value.messages == [message]  # type: ignore[attr-defined]


# --- answers that are none -----------------------------------------------------------------------------------------


@contextmanager
def answering(text: bytes) -> Iterator[int]:
    """A port where something else than Service Bus answers, such as the front end of a service that is down."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(text)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"AMQP\x00\x00\x09\x01", b""],
    ids=["http", "amqp 0.9", "none"],
)
def test_a_front_end_that_speaks_no_amqp_is_an_outage(pair: Pair, text: bytes) -> None:
    """No message has to do with it: sends are parked."""
    with answering(text) as port:
        text_of = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        primary = Namespace.from_connection_string(text_of, name=pair.name)
        bus = pair.pairing(primary=primary)
        bus.get_queue_sender("orders").send_messages(ServiceBusMessage("parked"))
        assert state(bus, "orders") == "failed over"
    assert pair.parked_bodies() == ["parked"]


# --- closing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_first", [True, False], ids=["under way", "opening"])
def test_nothing_new_is_begun_once_the_pairing_is_closed(pair: Pair, open_first: bool) -> None:
    """A send that hangs when the pairing closes ends soon after, raises with its message, and is not parked later."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)
    if open_first:
        sender.send_messages(ServiceBusMessage("fine"))
    pair.primary.pause()
    message = ServiceBusMessage("late")
    sending = Sending(sender, message)
    wait_until(lambda: watchdog_of(bus).running_calls)
    bus.close()
    sending.join(50)
    assert not sending.is_alive()
    assert sending.error.messages == [message]
    assert pair.parked() == 0
    assert state(bus, queue) == "available", "what the pairing's end cut off says nothing about the entity"
    wait_until(lambda: not pairbus_threads(), 20, pairbus_threads)


def test_a_send_that_ends_well_while_the_pairing_closes_leaves_no_connection(pair: Pair) -> None:
    """Its answer takes a while, `close` waits for it: the message has arrived, and its connection is closed too."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=30)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pool = entity_of(bus, queue).pool
    connection = idle_connection(pool)
    with pair.primary.faults.during("latency", queue, delay=0.5):
        sending = Sending(sender, ServiceBusMessage("slow"))
        wait_until(lambda: watchdog_of(bus).running_calls or not sending.is_alive())
        bus.close()
        sending.join(50)
    assert sending.error is None
    assert pool.idle_count == 0
    wait_until(lambda: is_closed(connection.sender), why="the connection is left open")
    assert pair.bodies(queue) == ["before", "slow"]


def test_a_close_while_a_list_is_parked_leaves_the_rest_with_its_caller(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a backlog queue has taken is parked, the error has exactly the others, and says that the pairing closed."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    real = bus.backlog.attempt

    def then_close(*args: Any) -> Any:
        found = real(*args)
        bus.close()
        return found

    monkeypatch.setattr(bus.backlog, "attempt", then_close)
    messages = [ServiceBusMessage(f"{number}" + "x" * 100_000) for number in range(5)]
    with pytest.raises(PairedNamespaceClosedError) as raised:
        sender.send_messages(messages)
    rest = raised.value.messages  # type: ignore[attr-defined]
    assert rest == messages[len(messages) - len(rest) :]
    assert [body[0] for body in pair.parked_bodies()] == [str(number) for number in range(5 - len(rest))]
    assert 0 < len(rest) < 5


def test_an_error_that_cannot_be_made_again_is_raised_as_it_is(pair: Pair) -> None:
    """A half is faulted with somebody's own class, which asks for arguments that nobody has kept."""

    class Odd(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one + two)

    bus = pair.pairing()
    sender = bus.get_queue_sender(pair.queue())
    bus.primary.fault(Odd("broke", "n"))
    with pytest.raises(Odd, match="broken"):
        sender.send_messages(ServiceBusMessage("x"))


def test_a_close_that_was_interrupted_can_be_done_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in `close` leaves nothing that could not be closed."""
    bus = pair.pairing()
    real = watchdog_of(bus).stop

    def interrupted(deadline: float) -> None:
        monkeypatch.setattr(watchdog_of(bus), "stop", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(watchdog_of(bus), "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.close()
    bus.close()
    wait_until(lambda: not pairbus_threads(), 10, pairbus_threads)
    assert len(pair.told("pairing closed")) == 1


def test_a_closed_pairing_says_whose_messages_it_refuses(pair: Pair) -> None:
    """Each caller gets an error of its own with its own messages."""
    sender = pair.pairing().get_queue_sender(pair.queue())
    pair.close_pairings()
    errors = []
    for body in ("a", "b"):
        message = ServiceBusMessage(body)
        with pytest.raises(PairedNamespaceClosedError) as raised:
            sender.send_messages(message)
        assert raised.value.messages == [message]  # type: ignore[attr-defined]
        assert raised.value.secondary == pair.secondary_namespace().host
        errors.append(raised.value)
    assert errors[0] is not errors[1]


@pytest.mark.parametrize("when", ["open", "opening", "parking"])
def test_a_send_that_is_interrupted_leaves_nothing_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Ctrl-C in a send: it carries the message, its connection is not used again, and the next send goes well."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    if when == "open":
        sender.send_messages(ServiceBusMessage("before"))
    elif when == "parking":
        pair.declare_down(bus, queue)
    used: list[SenderConnection] = []

    def interrupted(connection: SenderConnection, *args: Any) -> None:
        used.append(connection)
        raise KeyboardInterrupt

    message = ServiceBusMessage("interrupted")
    with monkeypatch.context() as patched:
        patched.setattr(SenderConnection, "send", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            sender.send_messages(message)
    assert raised.value.messages == [message]  # type: ignore[attr-defined]
    assert [connection.was_cut for connection in used] == [True]
    sender.send_messages(ServiceBusMessage("after"))
    found = pair.parked_bodies() if when == "parking" else pair.bodies(queue)
    assert found[-1] == "after"


@pytest.mark.parametrize("when", ["being opened", "opened"])
def test_a_sender_whose_opening_is_interrupted_leaves_no_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Ctrl-C while a sender is opened: its connection is not kept, and closed, if need be when it is open at last."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    used: list[SenderConnection] = []
    as_ever = SenderConnection.open

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    def interrupted(connection: SenderConnection, timeout: float) -> None:
        used.append(connection)
        as_ever(connection, timeout)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SenderConnection, "open", interrupted)
        if when == "being opened":
            patched.setattr(lanes_module, "threading", SimpleNamespace(**{**vars(threading), "Event": Interrupted}))
        with pytest.raises(KeyboardInterrupt), bus.get_queue_sender(queue):
            raise AssertionError("not reached")
    (connection,) = used
    assert connection.was_cut
    assert entity_of(bus, queue).pool.idle_count == 0
    wait_until(lambda: is_closed(connection.sender), why="the connection is left open")
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("after"))
    assert pair.bodies(queue) == ["after"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_send_that_is_interrupted_when_it_is_parked_names_no_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Ctrl-C behind a backlog queue's answer: the error carries what was accepted nowhere, and that is nothing."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("before"))

    def interrupted(messages: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entity_of(bus, queue), "was_parked", interrupted)
    given = [ServiceBusMessage("parked") for _ in range(count)]
    with pytest.raises(KeyboardInterrupt) as raised:
        sender.send_messages(given[0] if count == 1 else given)
    assert raised.value.messages == []  # type: ignore[attr-defined]
    assert pair.parked_bodies() == ["before"] + ["parked"] * count


def test_a_send_that_is_interrupted_as_a_link_begins_to_open_leaves_nothing_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C just when the thread that opens has begun, to a peer that says nothing: it is cut as soon as can be."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            if self.name == "pairbus-open":
                raise KeyboardInterrupt

    pair.primary.pause()
    with monkeypatch.context() as patched:
        patched.setattr(bounded_call, "threading", SimpleNamespace(**{**vars(threading), "Thread": Interrupted}))
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                sender.send_messages(ServiceBusMessage("interrupted"))
    wait_until(lambda: pairbus_threads() == ["pairbus-events", "pairbus-watchdog"], 20, pairbus_threads)
    assert not watchdog_of(bus).running_calls


def test_a_sender_that_is_closed_in_the_midst_of_its_send_leaves_no_connection(pair: Pair) -> None:
    """The last one to an entity: what it was sending on is closed when its answer has come; another opens anew."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=30)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pool = entity_of(bus, queue).pool
    connection = idle_connection(pool)
    with pair.primary.faults.during("latency", queue, delay=0.5):
        sending = Sending(sender, ServiceBusMessage("slow"))
        wait_until(lambda: watchdog_of(bus).running_calls or not sending.is_alive())
        sender.close()
        sending.join(50)
    assert sending.error is None
    assert pool.idle_count == 0
    wait_until(lambda: is_closed(connection.sender), why="the connection is left open")
    other = bus.get_queue_sender(queue)
    other.send_messages(ServiceBusMessage("after"))
    assert pool.idle_count == 1, "it is kept for a sender that is open"
    assert pair.bodies(queue) == ["before", "slow", "after"]


# --- broken surroundings -------------------------------------------------------------------------------------------


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk of the log is full")


def test_a_broken_log_handler_breaks_neither_sends_nor_pings(pair: Pair) -> None:
    """Failover, parking and failback go on; no accepted send raises."""
    handler = Broken()
    logging.getLogger("pairbus").addHandler(handler)
    try:
        queue = pair.queue()
        bus = pair.pairing(ping_primary_interval=1)
        sender = bus.get_queue_sender(queue)
        with pair.primary.faults.during("unavailable", queue):
            sender.send_messages(ServiceBusMessage("parked"))
            wait_until(lambda: pair.told("ping failed"))
        wait_until(lambda: state(bus, queue) == "available")
        sender.send_messages(ServiceBusMessage("sent"))
    finally:
        logging.getLogger("pairbus").removeHandler(handler)
    assert (pair.bodies(queue), pair.parked_bodies()) == (["sent"], ["parked"])


def test_without_a_thread_to_ping_nothing_fails_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entity that nobody would ever find back does not fail over; once there are threads again it does."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("pairbus-ping"):
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pair.primary.faults.during("unavailable", queue):
        with pytest.raises(RuntimeError) as raised:
            sender.send_messages(ServiceBusMessage("unsent"))
        assert len(raised.value.messages) == 1  # type: ignore[attr-defined]
        assert state(bus, queue) == "available"
        monkeypatch.setattr(threading.Thread, "start", real)
        sender.send_messages(ServiceBusMessage("parked"))
    assert pair.parked_bodies() == ["parked"]


@pytest.mark.parametrize("shortage", [RuntimeError("can't start new thread"), MemoryError()], ids=["thread", "memory"])
def test_a_ping_that_this_process_could_not_make_says_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, shortage: Exception
) -> None:
    """No thread or no memory for it: the entity is neither back nor unusable, and the next ping finds it."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=1)
    bus.get_queue_sender(queue)
    entity = entity_of(bus, queue)

    def short() -> None:
        raise shortage

    with monkeypatch.context() as patched:
        patched.setattr(entity, "_ping", short)
        pair.declare_down(bus, queue)
        wait_until(lambda: pair.told("ping failed"))
        assert state(bus, queue) == "failed over"
    wait_until(lambda: state(bus, queue) == "available")
    assert not pair.told("entity unusable")


@contextmanager
def out_of(number: int) -> Iterator[None]:
    """No socket can be had in this process."""

    def refuse(*args: Any, **named: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "create_connection", refuse)
        yield


NUMBERS = pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS], ids=errno.errorcode.__getitem__
)


@NUMBERS
def test_without_a_socket_to_be_had_nothing_fails_over(pair: Pair, number: int) -> None:
    """No file descriptors or no memory: the error and the messages are the caller's, a ping says nothing, and an open
    link is used as ever."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=1)
    sender = bus.get_queue_sender(queue)
    message = ServiceBusMessage("unsent")
    with out_of(number):
        with pytest.raises(ServiceBusError, match=re.escape(os.strerror(number))) as raised:
            sender.send_messages(message)
        assert raised.value.messages == [message]  # type: ignore[attr-defined]
        with pytest.raises(ServiceBusError):
            sender.__enter__()
        assert (state(bus, queue), bus.status().entities[queue].last_error) == ("available", None)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    with out_of(number):
        sender.send_messages(ServiceBusMessage("2"))
        pair.declare_down(bus, queue)
        wait_until(lambda: pair.told("ping failed"))
        assert state(bus, queue) == "failed over"
    wait_until(lambda: state(bus, queue) == "available")
    assert not pair.told("entity unusable")
    assert (pair.bodies(queue), pair.parked()) == (["1", "2"], 0)


@NUMBERS
def test_without_a_socket_to_be_had_no_queue_leaves_the_rotation(pair: Pair, number: int) -> None:
    """The first queue says nothing about itself, and no other would do better: the error is raised as it is."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=3)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    given = [ServiceBusMessage("unsent"), ServiceBusMessage("nor this")]
    with out_of(number), pytest.raises(ServiceBusError, match=re.escape(os.strerror(number))) as raised:
        sender.send_messages(given)
    assert not isinstance(raised.value, BacklogUnavailableError)
    assert raised.value.messages == given  # type: ignore[attr-defined]
    assert all(found.in_rotation for found in bus.status().queues.values())
    assert not pair.told("queue left rotation")
    sender.send_messages(ServiceBusMessage("parked"), timeout=60)
    assert pair.parked_bodies() == ["parked"]


def test_a_lane_that_was_cut_is_not_used_again(pair: Pair) -> None:
    """The guard cuts a call just as its answer arrives: the next send gets another connection, no outage is seen."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    pool = entity_of(bus, queue).pool
    connection = pool.take()
    connection.cut()
    pool.give_back(connection)
    sender.send_messages(ServiceBusMessage("2"))
    assert state(bus, queue) == "available"
    assert pair.bodies(queue) == ["1", "2"]


def test_idle_connections_do_not_outlive_a_failover(pair: Pair) -> None:
    """What led to the dead primary is not taken up again after the failback."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    assert entity_of(bus, queue).pool.idle_count
    pair.declare_down(bus, queue)
    assert entity_of(bus, queue).pool.idle_count == 0


@pytest.mark.parametrize("condition", ["amqp:unauthorized-access", "com.microsoft:auth-failed"])
def test_a_token_that_ran_out_is_replaced(pair: Pair, condition: str) -> None:
    """A link that was open is refused once: a new connection with a new token sends the message, nobody hears of it."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pair.primary.faults.reject(condition, queue, count=1)
    sender.send_messages(ServiceBusMessage("after"))
    assert pair.bodies(queue) == ["before", "after"]
    assert bus.status().entities[queue].last_error is None


def test_a_stale_connection_to_a_backlog_queue_is_replaced(pair: Pair) -> None:
    """Cut while nobody used it: the message is parked in the same queue, which does not leave the rotation."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    for _ in range(3):
        sender.send_messages(ServiceBusMessage("parked"))
        pair.secondary.faults.drop()
    assert sorted(pair.parked_by_queue().values()) == [0, 3]
    assert all(each.in_rotation for each in bus.status().queues.values())
    assert not pair.told("queue left rotation")


def test_a_failback_does_not_make_a_long_list_too_large(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long for one batch to the primary, which comes back midway: the rest goes there once it fits."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))  # the link has told its limit
    pair.declare_down(bus, queue)
    entity, send = entity_of(bus, queue), bus.backlog.attempt

    def then_back(*args: Any) -> Any:
        found = send(*args)
        entity.health = entity.health.ping_answered(time.monotonic())
        return found

    monkeypatch.setattr(bus.backlog, "attempt", then_back)
    sender.send_messages([ServiceBusMessage(f"{number}" + "x" * 100_000) for number in range(8)])
    assert [body[0] for body in pair.parked_bodies()] == ["0", "1", "2", "3", "4", "5"]
    assert [body[0] for body in pair.bodies(queue)] == ["b", "6", "7"]


def test_one_service_error_while_a_sender_is_opened_is_no_failover(pair: Pair) -> None:
    """It counts after retries, and those are the first send's: by then the service is well again."""
    queue = pair.queue()
    bus = pair.pairing()
    pair.primary.faults.unavailable(queue)
    with bus.get_queue_sender(queue) as sender:
        assert state(bus, queue) == "available"
        pair.primary.faults.clear()
        sender.send_messages(ServiceBusMessage("sent"))
    assert pair.bodies(queue) == ["sent"]


# --- provisioning ---------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, paths: set[str], make: Callable[[], Exception]) -> None:
    """Creating these queues fails."""
    real = provisioning.administration_client

    def client(*args: Any) -> Any:
        made = real(*args)
        create = made.create_queue

        def create_queue(path: str, **properties: Any) -> Any:
            if path in paths:
                raise make()
            return create(path, **properties)

        made.create_queue = create_queue  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(provisioning, "administration_client", client)
    monkeypatch.setattr(provisioning, "_BACKOFF", Backoff(first=0.01, longest=0.01))


def test_a_namespace_that_is_full_is_not_a_wrong_key(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service answers 403 when a namespace has as many queues as it may: those that are there are used."""
    pair.pairing(backlog_queue_count=2)

    def full() -> Exception:
        error = HttpResponseError("The maximum number of resources of type `Queue` has been reached or exceeded.")
        error.status_code = 403
        return error

    failing(monkeypatch, {queue_path(pair.name, index) for index in (2, 3)}, full)
    bus = pair.pairing(backlog_queue_count=4)
    assert bus.backlog_queue_count == 2
    assert set(bus.status().missing) == {queue_path(pair.name, 2), queue_path(pair.name, 3)}


def test_who_may_not_even_look_is_refused_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """403 to a look, as a firewall's: no queue is asked for twice."""
    asked = []
    real = provisioning.administration_client

    def client(*args: Any) -> Any:
        made = real(*args)

        def get_queue(path: str) -> Any:
            asked.append(path)
            error = HttpResponseError("Ip has been prevented to connect to the endpoint.")
            error.status_code = 403
            raise error

        made.get_queue = get_queue  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(provisioning, "administration_client", client)
    with pytest.raises(PairingError, match="Ip has been prevented"):
        pair.pairing(backlog_queue_count=10)
    assert asked == [queue_path(pair.name, 0)]


def test_the_first_queue_does_not_decide_for_all(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard about queue 0: the others are used."""
    failing(monkeypatch, {queue_path(pair.name, 0)}, lambda: ServiceRequestError("the connection was reset"))
    bus = pair.pairing(backlog_queue_count=3)
    assert bus.backlog_queue_count == 2
    assert list(bus.status().missing) == [queue_path(pair.name, 0)]


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["get_queue_sender", "get_topic_sender"])
def test_a_sender_is_asked_for_as_in_the_sdk(name: str) -> None:
    """Every named argument of the SDK is there, by the same name and kind."""
    theirs = inspect.signature(getattr(ServiceBusClient, name)).parameters
    ours = inspect.signature(getattr(PairedNamespace, name)).parameters
    named = {key: (each.kind, each.default) for key, each in theirs.items() if each.kind is not each.VAR_KEYWORD}
    assert {key: (each.kind, each.default) for key, each in ours.items()} == named


def test_a_sender_has_the_sdks_names_and_arguments(pair: Pair) -> None:
    """Every public name of the SDK's sender is there; what it does is called with the same arguments."""
    sender = pair.pairing().get_queue_sender("any")
    theirs = ServiceBusSender
    assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(sender))
    for name in ("send_messages", "create_message_batch", "close", "__enter__"):
        expected = inspect.signature(getattr(theirs, name)).parameters
        given = inspect.signature(getattr(PairedSender, name)).parameters
        assert [(each.name, each.kind, each.default) for each in given.values()] == [
            (each.name, each.kind, each.default) for each in expected.values()
        ]


def test_a_sender_has_the_sdks_properties(pair: Pair) -> None:
    """Its identifier is the one that was given, or one of its own; a socket's time-out is passed on."""
    queue = pair.queue()
    bus = pair.pairing()
    given = bus.get_queue_sender(queue, client_identifier="shop-7", socket_timeout=3)
    assert given.client_identifier == "shop-7"
    assert bus.get_queue_sender(queue).client_identifier
    given.send_messages(ServiceBusMessage("sent"))
    connection = idle_connection(entity_of(bus, queue).pool)
    assert connection.sender._config.socket_timeout == 3
    assert (given.entity_name, given.fully_qualified_namespace) == (queue, pair.primary_namespace().host)


def test_another_spelling_of_a_name_makes_no_other_entity(pair: Pair) -> None:
    """Slashes around it and capital letters reach the same queue, so they have the same health."""
    queue = pair.queue()
    bus = pair.pairing()
    for name in (queue, f"/{queue}", f"{queue}/", queue.upper()):
        bus.get_queue_sender(name).send_messages(ServiceBusMessage("sent"))
    assert list(bus.status().entities) == [queue]
    assert pair.bodies(queue) == ["sent"] * 4


@pytest.mark.parametrize("down", [False, True], ids=["healthy", "failed over"])
@pytest.mark.parametrize("nothing", [[], (), {}], ids=["list", "tuple", "dictionary"])
def test_nothing_is_sent_as_the_sdk_sends_it(pair: Pair, nothing: Any, down: bool) -> None:
    """Not at all, and it is not counted; an empty dictionary is no message without a body but nothing, too."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    if down:
        pair.declare_down(bus, queue)
    sender.send_messages(nothing)
    found = bus.status().entities[queue]
    assert (found.sent, found.parked) == (0, 0)


def test_nothing_can_always_be_parked(pair: Pair) -> None:
    """An empty list fits."""
    assert pair.pairing().get_queue_sender(pair.queue()).can_park([])


def test_a_key_that_is_revoked_is_told_when_a_sender_is_opened(pair: Pair) -> None:
    """Before the first send, and whatever the failover interval is: a fault of the set-up is no outage."""
    primary = pair.primary_namespace()
    bus = pair.pairing(primary=primary)
    queue = pair.queue()
    primary.credential.update("RootManageSharedAccessKey", "d3Jvbmc=")
    sender = bus.get_queue_sender(queue)
    with pytest.raises(ServiceBusAuthenticationError), sender:
        raise AssertionError("not reached")
    assert state(bus, queue) == "available"


def test_a_sender_that_could_not_be_opened_is_closed(pair: Pair) -> None:
    """A `with` that does not begin leaves nothing open."""
    bus = pair.pairing()
    sender = bus.get_queue_sender("no-such-queue")
    with pytest.raises(Exception, match=r"[Ee]rror condition"), sender:
        raise AssertionError("not reached")
    with pytest.raises(ValueError, match="already been closed"):
        sender.send_messages(ServiceBusMessage("x"))
