"""Clients that connect and send nothing or too little: each is disconnected, after times that are short here."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Message

from pairbus.localbus import listener
from pairbus.localbus.amqp import connection
from pairbus.localbus.faults.client import FaultClient
from tests.support.clocked_server import ClockedBus, clocked_bus
from tests.support.raw_client import RawClient

HELLO = Message(body=b"hello", inferred=True).encode()
SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
#: The client's SASL init with ANONYMOUS, as its frame.
_INIT = b"\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
INIT = (8 + len(_INIT)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + _INIT
SHORT = {
    "a letter": b"A",
    "no version": b"AMQP",
    "SASL's header": SASL,
    "SASL's header and half a size": SASL + b"\x00\x00\x01",
    "SASL and nothing then": SASL + INIT,
    "SASL and half an open": SASL + INIT + AMQP + b"\x00\x00\x01",
    "AMQP's header": AMQP,
    "AMQP's header and half a size": AMQP + b"\x00\x00\x01",
}


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[ClockedBus]:
    with clocked_bus(tmp_path / "tls") as running:
        yield running


def test_a_client_without_an_open_is_disconnected(bus: ClockedBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends at any step before the open; a client that has sent its open may stay silent."""
    admin = ServiceBusAdministrationClient.from_connection_string(bus.connection_string, connection_verify=bus.ca_file)
    with admin, RawClient(bus) as patient:  # type: ignore[arg-type]
        admin.create_queue("orders")
        monkeypatch.setattr(connection, "_OPENING_TICKS", 1)
        monkeypatch.setattr(listener, "_FIRST_BYTE_SECONDS", 1.0)
        silent = {name: socket.create_connection((bus.host, bus.port), timeout=10) for name in SHORT}
        for name, client in silent.items():
            client.sendall(SHORT[name])
        for name, client in silent.items():
            with client:
                assert is_ended(client), name
        patient.put_token("orders")
        patient.send(patient.sender("orders"), HELLO)


def is_ended(client: socket.socket) -> bool:
    """Read until the server closes the connection; raise TimeoutError if it does not."""
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_black_hole_disconnects_no_client(bus: ClockedBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is answered, a client without an open stays connected."""
    monkeypatch.setattr(connection, "_OPENING_TICKS", 1)
    faults = FaultClient(bus.host, bus.port, bus.connection_string, bus.ca_file)
    faults.black_hole()
    with socket.create_connection((bus.host, bus.port), timeout=60) as client:
        client.sendall(SASL)
        time.sleep(3)  # on a slow machine the check is only weaker
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(5)
        faults.clear()
        assert is_ended(client)  # bytes are missing from its stream
