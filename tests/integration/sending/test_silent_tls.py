"""A peer that takes connections and says nothing, over TLS: no thread and no socket stays with it.

The SDK waits for a handshake without a bound, and has no socket in hand that could be cut meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub import EventData
from azure.servicebus import ServiceBusMessage

from pairbus import (
    BacklogUnavailableError,
    Namespace,
    PairedNamespace,
    PairingOptions,
    ProvisioningError,
    pair_namespaces,
)
from pairbus.domain.conditions import Meaning
from pairbus.sending import credential_check as credentials
from pairbus.sending.connections import ConnectionWatchdog, SenderConnection
from pairbus.sending.sdk import clients, connection_patches, event_hub_sender, handshake
from pairbus.sending.sdk.classification import at_opening, meaning_of
from tests.support.pairing import IMPATIENT, Pair, pairbus_threads
from tests.support.waiting import wait_until

#: Attempts that fail before anything is counted: far more than may be under way at once.
ATTEMPTS = 5


pytestmark = pytest.mark.usefixtures("quick_pings")


def sockets() -> int:
    """Return the number of sockets that this process has open. (A bus that is paused takes a pipe.)"""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of looking there, too
            found += os.readlink(each).startswith("socket:")
    return found


def opening() -> int:
    """Return the number of links that are being opened."""
    return sum(name.startswith("pairbus-open") for name in pairbus_threads())


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that takes connections, and nobody says anything there."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server


def at(server: socket.socket, **options: Any) -> Namespace:
    host = f"127.0.0.1:{server.getsockname()[1]}"
    return Namespace(host, credential=AzureNamedKeyCredential("k", "c2VjcmV0"), name="silent", **options)


def assert_bounded(before: int) -> None:
    """One attempt may be under way, and its socket; whatever came before it is gone."""
    wait_until(lambda: opening() <= 1 and sockets() <= before + 2, 30, lambda: (pairbus_threads(), sockets(), before))


def assert_nothing_left(bus: PairedNamespace, before: int) -> None:
    """Closed while the peer is as silent as ever."""
    bus.close()
    wait_until(
        lambda: not pairbus_threads() and sockets() <= before, 30, lambda: (pairbus_threads(), sockets(), before)
    )


# --- a pairing -------------------------------------------------------------------------------------------------------


def test_pings_of_a_silent_primary_pile_up_nothing(pair: Pair) -> None:
    """Each ping that is given up takes its thread and its socket along, for as long as the outage lasts."""
    queue = pair.queue()
    before = sockets()
    primary = pair.primary_namespace(pair.primary.tls_connection_string)
    bus = pair.pairing(primary=primary, send_timeout=30, ping_timeout=0.5, ping_primary_interval=0.5)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("direct"))
    pair.primary.pause()
    sender.send_messages(ServiceBusMessage("parked"), timeout=3)
    during = sockets()
    wait_until(lambda: len(pair.told("ping failed")) >= ATTEMPTS)
    assert_bounded(during)
    assert_nothing_left(bus, before)


def test_parking_in_a_silent_secondary_piles_up_nothing(pair: Pair) -> None:
    """So does each try of a backlog queue: the callers have their messages back, and nothing else is left."""
    queue = pair.queue()
    before = sockets()
    secondary = pair.secondary_namespace(pair.secondary.tls_connection_string)
    bus = pair.pairing(secondary=secondary, backlog_queue_count=4)
    sender = bus.get_queue_sender(queue)
    pair.secondary.pause()
    pair.declare_down(bus, queue)
    during = sockets()
    for _ in range(ATTEMPTS):
        with pytest.raises(BacklogUnavailableError) as raised:
            sender.send_messages(ServiceBusMessage("x"), timeout=0.5)
        assert len(raised.value.messages) == 1
    assert_bounded(during)
    assert_nothing_left(bus, before)


def test_pings_of_a_silent_event_hub_pile_up_nothing(pair: Pair, silent: socket.socket) -> None:
    """azure-eventhub has a TLS transport of its own, with the same gap."""
    before = sockets()
    given = {**IMPATIENT, "ping_timeout": 0.5, "ping_primary_interval": 0.5}
    chosen = PairingOptions(**given, on_event=pair.events.append)
    hubs = at(silent)
    with pair_namespaces(pair.primary_namespace(), pair.secondary_namespace(), chosen, event_hubs=hubs) as bus:
        producer = bus.get_event_hub_producer("telemetry")
        producer._sender(None)
        pair.declare_down(bus, f"sb://{hubs.host}/telemetry")
        producer.send_event(EventData(b"parked"), timeout=60)
        during = sockets()
        wait_until(lambda: len(pair.told("ping failed")) >= ATTEMPTS)
        assert_bounded(during)
        assert_nothing_left(bus, before)


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_a_key_that_is_shown_to_a_silent_primary_leaves_nothing(
    pair: Pair, silent: socket.socket, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """A pairing opens all the same, and the thread that asked ends soon."""
    monkeypatch.setattr(credentials, "_ANSWER_SECONDS", 1.0)
    before = sockets()
    bus = pair.pairing(primary=at(silent, use_tls=tls))
    wait_until(lambda: not any("credential" in name for name in pairbus_threads()), 30, pairbus_threads)
    assert_nothing_left(bus, before)


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_nor_does_one_when_the_secondary_is_dead_as_well(
    pair: Pair, silent: socket.socket, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """An application that tries again and again to open its pairing, while both are down, gathers nothing."""
    monkeypatch.setattr(credentials, "_ANSWER_SECONDS", 1.0)
    before = sockets()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = at(closed)
    for _ in range(2):
        with pytest.raises(ProvisioningError):
            pair.pairing(primary=at(silent, use_tls=tls), secondary=nobody, backlog_queue_count=1)
    wait_until(lambda: not pairbus_threads() and sockets() <= before, 30, lambda: (pairbus_threads(), sockets()))


# --- what it is made of ----------------------------------------------------------------------------------------------


def service_bus(namespace: Namespace) -> Any:
    return clients.sender_to(clients.service_bus_client(namespace), "any")


def event_hub(namespace: Namespace) -> Any:
    return event_hub_sender.HubSender(namespace, "any", None)


SDKS = pytest.mark.parametrize("make", [service_bus, event_hub])


def open_link(sender: Any) -> tuple[threading.Thread, list[BaseException]]:
    """Open a link on a thread; what came of it."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            sender.__enter__()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, caught


@SDKS
def test_a_handshake_is_ended_from_outside(silent: socket.socket, make: Callable[[Namespace], Any]) -> None:
    """`shut` reaches a connection while TLS shakes hands; it is closed, and the error is one of a lost connection."""
    sender = make(at(silent))
    thread, caught = open_link(sender)
    silent.settimeout(60)
    peer, _ = silent.accept()
    with peer:
        peer.settimeout(30)
        assert peer.recv(1)  # it has said hello, and waits for an answer
        connection_patches.abort(sender)
        thread.join(30)
        assert not thread.is_alive()
        while peer.recv(4096):
            pass
    assert meaning_of(at_opening(caught[0])) is Meaning.OUTAGE


@SDKS
def test_a_handshake_that_nobody_ends_has_an_end(
    silent: socket.socket, make: Callable[[Namespace], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it is never cut, it is an outage after a minute."""
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.1)
    thread, caught = open_link(make(at(silent)))
    thread.join(30)
    assert not thread.is_alive()
    assert meaning_of(at_opening(caught[0])) is Meaning.OUTAGE


@SDKS
def test_a_link_that_is_cut_after_the_handshake_leaves_no_socket(
    pair: Pair, make: Callable[[Namespace], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer has shaken hands and then says nothing: the SDK by itself would leave the socket to be collected."""
    bus = pair.primary
    namespace = Namespace.from_connection_string(bus.tls_connection_string, name="silent", ca_file=bus.ca_file)
    before = sockets()
    shaken = threading.Event()
    wrap = handshake.BoundedHandshake.wrap_socket

    def pause_then(self: Any, *args: Any, **named: Any) -> Any:
        found = wrap(self, *args, **named)
        bus.pause()
        shaken.set()
        return found

    monkeypatch.setattr(handshake.BoundedHandshake, "wrap_socket", pause_then)
    sender = make(namespace)
    thread, caught = open_link(sender)
    assert shaken.wait(60)

    def ended() -> bool:
        connection_patches.abort(sender)
        return not thread.is_alive()

    wait_until(ended, 30)
    assert isinstance(caught[0], Exception)
    wait_until(lambda: sockets() <= before, 30, "a socket is left")


def test_a_link_that_was_cut_before_it_had_a_socket_is_cut_again(
    pair: Pair, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog repeats a cut that came too early, also once the pairing is closed."""
    early = 2  # by the caller that gave up, and as the pairing closes
    cuts: list[Any] = []

    real = connection_patches.abort

    def abort(sender: Any) -> None:
        cuts.append(sender)
        if len(cuts) > early:
            real(sender)

    monkeypatch.setattr(connection_patches, "abort", abort)
    before = sockets()
    watchdog = ConnectionWatchdog()
    connection = SenderConnection(service_bus(at(silent, use_tls=False)), watchdog)
    with pytest.raises(Exception, match="within"):
        connection.open(0.1)
    watchdog.stop(0.0)
    wait_until(lambda: not pairbus_threads() and sockets() <= before, 30, pairbus_threads)
    assert len(cuts) > early
