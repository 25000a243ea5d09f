"""Connections: used again only if the link is open; keeping idle ones alive delays no send."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError, ServiceBusServerBusyError

from pairbus import PairedNamespace, PairedSender
from pairbus.localbus import LocalBus
from pairbus.sending import connections
from pairbus.sending.connections import ConnectionPool, SenderConnection
from pairbus.sending.sdk.connection_patches import socket_of
from tests.support.pairing import SLACK, Pair, entity_of, idle_connection, pairbus_threads
from tests.support.waiting import wait_until

#: The SDK cannot encode it, and closes the link when it finds out.
UNENCODABLE: dict[str | bytes, Any] = {"number": 2**80}


def pool_of(bus: PairedNamespace, queue: str) -> ConnectionPool:
    pool: ConnectionPool = entity_of(bus, queue).pool
    return pool


def close_link(sender: PairedSender) -> None:
    """Have the SDK close the link of the sender's idle connection."""
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("x", application_properties=UNENCODABLE))


@contextmanager
def in_its_place(bus: LocalBus, text: bytes) -> Iterator[None]:
    """A server without AMQP answers at the port of a namespace that was killed, as a front end does."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(text)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    with Server(("127.0.0.1", bus.port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


# --- links that the SDK has closed -------------------------------------------------------------------------------


@pytest.mark.parametrize("parked", [False, True], ids=["primary", "backlog"])
def test_the_socket_of_a_connection_that_was_lost_is_closed(pair: Pair, parked: bool) -> None:
    """At once, not when Python's garbage collector comes by: where connections break all the time there are many."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    if parked:
        pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("before"))
    pool = bus.backlog.pools[pair.backlog()[0]] if parked else pool_of(bus, queue)
    connection = idle_connection(pool)
    sock = socket_of(connection.sender)
    server = pair.secondary if parked else pair.primary
    server.faults.drop(pair.backlog()[0] if parked else queue)
    sender.send_messages(ServiceBusMessage("after"))
    wait_until(lambda: sock.fileno() == -1, why="its socket is left open")
    assert (pair.parked_bodies() if parked else pair.bodies(queue)) == ["before", "after"]


def test_a_connection_whose_link_the_sdk_has_closed_is_not_kept(pair: Pair) -> None:
    """After an error with which the SDK closes the link the connection goes; after a mere refusal it is used again."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    pool = pool_of(bus, queue)
    first = idle_connection(pool)
    with pair.primary.faults.during("busy", queue), pytest.raises(ServiceBusServerBusyError):
        sender.send_messages(ServiceBusMessage("refused"))
    assert idle_connection(pool) is first
    close_link(sender)
    assert pool.idle_count == 0
    assert first.was_cut
    sender.send_messages(ServiceBusMessage("2"))
    assert pair.bodies(queue) == ["1", "2"]


def test_without_threads_a_pairing_closes_all_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its idle connections are cut instead of being closed in order, and everything else of it ends, too."""
    queue = pair.queue()
    bus = pair.pairing()
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("1"))
    connection = idle_connection(pool_of(bus, queue))
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("pairbus-close"):
            raise RuntimeError("can't start new thread")
        real(self)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        bus.close()
    assert connection.was_cut
    assert bus.closing.is_set()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_a_front_end_is_an_outage_after_a_message_that_could_not_be_encoded(pair: Pair) -> None:
    """One bad message, and then the service is replaced by something that speaks no AMQP: sends are parked."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("fine"))
    close_link(sender)
    pair.primary.kill()
    with in_its_place(pair.primary, b"HTTP/1.1 503 Service Unavailable\r\n\r\n"):
        sender.send_messages(ServiceBusMessage("parked"))
    assert bus.status().entities[queue].state == "failed over"
    assert pair.parked_bodies() == ["parked"]


def test_a_send_is_bounded_after_a_message_that_could_not_be_encoded(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that takes its time holds the thread that opens the next link, not the caller."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=6)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("fine"))
    close_link(sender)
    released = threading.Event()
    real = socket.create_connection

    def slow(address: Any, *args: Any, **named: Any) -> Any:
        if address[1] == pair.primary.port:
            released.wait(120)
            raise socket.gaierror("no such name")
        return real(address, *args, **named)

    monkeypatch.setattr(socket, "create_connection", slow)
    begun = time.monotonic()
    try:
        sender.send_messages(ServiceBusMessage("parked"))
        assert time.monotonic() - begun < 2 * 6 + SLACK
    finally:
        released.set()
    assert pair.parked_bodies() == ["parked"]


def test_a_connection_that_failed_just_as_another_thread_failed_the_entity_over_is_dropped(pair: Pair) -> None:
    """Its message is parked, and its connection is neither kept nor forgotten."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("fine"))
    connection = idle_connection(pool_of(bus, queue))

    def meanwhile(message: Any, timeout: float) -> None:
        pair.declare_down(bus, queue)
        raise ConnectionError("gone")

    connection.sender.send_messages = meanwhile
    sender.send_messages(ServiceBusMessage("parked"))
    assert connection.was_cut
    assert pool_of(bus, queue).idle_count == 0
    assert pair.parked_bodies() == ["parked"]


# --- idle ones -------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is tended once it was idle for a tenth of a second."""
    monkeypatch.setattr(connections, "_IDLE_SECONDS", 0.1)


@pytest.mark.usefixtures("soon_idle")
def test_idle_connections_are_tended_and_the_dead_are_dropped(pair: Pair) -> None:
    """Each that lies idle is listened to again and again; one that was cut is found out before anybody sends on it."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    pool = pool_of(bus, queue)
    wait_until(lambda: pool.idle_count)
    connection = idle_connection(pool)
    used = connection.used_at
    wait_until(lambda: connection.used_at > used + 1, why="it is not kept alive")
    assert connection.opened
    pair.primary.faults.drop(queue)
    wait_until(lambda: connection.was_cut, why="its end was not noticed")
    sender.send_messages(ServiceBusMessage("2"))
    assert pair.bodies(queue) == ["1", "2"]


@pytest.mark.usefixtures("soon_idle")
def test_a_long_socket_time_out_does_not_hold_up_tending(pair: Pair) -> None:
    """However long a socket may wait by its user's word: idle connections are listened to briefly, and get it back."""
    queue = pair.queue()
    bus = pair.pairing()
    bus.get_queue_sender(queue, socket_timeout=60).send_messages(ServiceBusMessage("1"))
    pool = pool_of(bus, queue)
    wait_until(lambda: pool.idle_count)
    connection = idle_connection(pool)
    sock = socket_of(connection.sender)
    used = connection.used_at
    wait_until(lambda: connection.used_at > used + 1, 20, "it takes as long as its socket")
    pool = pool_of(bus, queue)
    wait_until(lambda: pool.idle_count and sock.gettimeout() == 60)


@pytest.mark.usefixtures("soon_idle")
def test_tending_a_connection_that_hangs_holds_up_nobody(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening to an idle connection takes for ever: a call past its deadline is cut all the same."""
    idle, silent = pair.queue(), pair.queue()
    released = threading.Event()
    tended = threading.Event()

    def hang(connection: SenderConnection) -> None:
        tended.set()
        released.wait(30)

    monkeypatch.setattr(SenderConnection, "keep_alive", hang)
    bus = pair.pairing(send_timeout=2, failover_interval=60)
    try:
        bus.get_queue_sender(idle).send_messages(ServiceBusMessage("1"), timeout=30)
        assert tended.wait(60)
        sender = bus.get_queue_sender(silent, socket_timeout=20)  # so the SDK by itself would wait for that long
        pair.primary.faults.lost_accept(silent)
        begun = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("unanswered"))
        assert time.monotonic() - begun < 2 + SLACK
        assert pairbus_threads().count("pairbus-keep-alive") == 1
    finally:
        released.set()
    wait_until(
        lambda: "pairbus-keep-alive" not in pairbus_threads() or not pool_of(bus, idle).idle_count, why=pairbus_threads
    )
