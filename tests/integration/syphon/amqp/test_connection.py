"""Connections: every kind of credential, hosts that misbehave, idle time, and use after the end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus import Namespace
from pairbus.localbus import LocalBus
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.syphon.amqp import connection as connection_module
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import ACCEPTED, ConnectionLost
from tests.support.amqp_connections import LinkEvents, connected, plain_namespace
from tests.support.backlog import encoded
from tests.support.entra_credential import EntraCredential
from tests.support.process_fixtures import create, key_of, sas_token
from tests.support.scripted_peer import Peer
from tests.support.waiting import wait_until_async


async def send_one(namespace: Namespace, path: str) -> None:
    """Connect, authorize, send one message, and check that it was accepted."""
    events = LinkEvents()
    async with connected(namespace) as connection:
        await connection.authorize(path, timeout=30.0)
        sender = await connection.sender(path, events, timeout=30.0)
        await wait_until_async(lambda: sender.credit)
        sender.send(encoded("hello"), "it")
        await wait_until_async(lambda: events.outcomes)
    assert events.outcomes == [("it", ACCEPTED, None)]


def _named_key(bus: LocalBus) -> Any:
    return AzureNamedKeyCredential(DEFAULT_KEY_NAME, key_of(bus.connection_string))


def _signature(bus: LocalBus) -> Any:
    text = sas_token(f"sb://127.0.0.1:{bus.port}/", DEFAULT_KEY_NAME, key_of(bus.connection_string), time.time() + 600)
    return AzureSasCredential(text)


@pytest.mark.parametrize("use_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "credential", [_named_key, _signature, lambda _: EntraCredential()], ids=["key", "signature", "entra"]
)
async def test_a_message_is_sent_with_every_kind_of_credential(
    bus: LocalBus, use_tls: bool, credential: Callable[[LocalBus], Any]
) -> None:
    """A key, a signature and a token of Entra; plain, and over TLS with the certificate authority of localbus."""
    host = f"127.0.0.1:{bus.port}"
    await send_one(Namespace(host, credential=credential(bus), name="n", ca_file=bus.ca_file, use_tls=use_tls), "q")


async def test_a_missing_file_of_the_certificate_authority(bus: LocalBus, tmp_path: Path) -> None:
    """It existed when the namespace was made. The connection cannot be opened, and the error names the file."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(bus.ca_file).read_bytes())
    namespace = Namespace(f"127.0.0.1:{bus.port}", credential=_named_key(bus), name="n", ca_file=file)
    file.unlink()
    with pytest.raises(ConnectionLost, match="No such file"):
        await Connection.open(namespace, timeout=30.0)


async def test_a_certificate_of_an_unknown_authority_is_refused(bus: LocalBus, tmp_path: Path) -> None:
    """The error names the host and the certificate."""
    namespace = Namespace(f"127.0.0.1:{bus.port}", credential=_named_key(bus), name="n")
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{bus.port}.*certificate verify failed"):
        await Connection.open(namespace, timeout=30.0)
    with LocalBus("other") as other:
        wrong = Namespace(f"127.0.0.1:{bus.port}", credential=_named_key(bus), name="n", ca_file=other.ca_file)
        with pytest.raises(ConnectionLost, match="certificate verify failed"):
            await Connection.open(wrong, timeout=30.0)


async def test_a_certificate_of_another_host_is_refused(bus: LocalBus) -> None:
    """The name is checked as well as the authority."""
    named = Namespace(f"localhost.localdomain:{bus.port}", credential=_named_key(bus), name="n", ca_file=bus.ca_file)
    with pytest.raises(ConnectionLost):
        await Connection.open(named, timeout=30.0)


async def test_a_port_without_a_listener() -> None:
    """The connection is lost at once, and the error names the host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await Connection.open(plain_namespace(port), timeout=30.0)


@contextmanager
def listener(says: bytes | None) -> Iterator[int]:
    """Accept connections; send some bytes to each, if there are any, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        over, kept = threading.Event(), list[socket.socket]()

        def serve() -> None:
            while not over.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                kept.append(client)
                if says is not None:
                    client.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()
            for client in kept:
                client.close()


@pytest.mark.parametrize("use_tls", [False, True])
async def test_a_host_that_accepts_and_sends_nothing(use_tls: bool) -> None:
    """The opening ends with its deadline."""
    with listener(None) as port:
        begun = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"no answer within 0\.3 s"):
            await Connection.open(plain_namespace(port, use_tls=use_tls), timeout=0.3)
        assert time.monotonic() - begun < 3.0


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, b"AMQP\x00\x00\x09\x09" * 4])
@pytest.mark.parametrize("use_tls", [False, True])
async def test_a_host_that_does_not_speak_amqp(garbage: bytes, use_tls: bool) -> None:
    """The connection is lost within its deadline, and the error names the host."""
    with listener(garbage) as port, pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await Connection.open(plain_namespace(port, use_tls=use_tls), timeout=3.0)


async def test_a_connection_to_a_frozen_host_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its links are closed once nothing was received for the idle time."""
    monkeypatch.setattr(connection_module, "IDLE_SECONDS", 5.0)
    events = LinkEvents()
    with LocalBus("frozen") as frozen:
        create(frozen, "q")
        connection = await Connection.open(
            Namespace.from_connection_string(frozen.connection_string, name="n"), timeout=30.0
        )
        await connection.authorize("q", timeout=30.0)
        await connection.sender("q", events, timeout=30.0)
        frozen.pause()
        await wait_until_async(lambda: events.closed)
        frozen.resume()
        assert isinstance(events.closed[0], ConnectionLost)
        assert connection.lost is not None
        await connection.close()


async def test_an_idle_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides send empty frames often enough that neither ends the connection."""
    monkeypatch.setattr(connection_module, "IDLE_SECONDS", 5.0)
    events = LinkEvents()
    with Peer(idle=5.0) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await asyncio.sleep(6.5)  # longer than the idle time
            assert (connection.lost, events.closed, peer.connections) == (None, [], 1)
            sender.send(encoded("still here"), "it")
            await wait_until_async(lambda: events.outcomes)


async def test_a_closed_connection_opens_no_link(bus: LocalBus) -> None:
    """Each attempt raises the reason at once; closing twice is allowed."""
    connection = await Connection.open(Namespace.from_connection_string(bus.connection_string, name="n"), timeout=30.0)
    await connection.close()
    await connection.close()
    for attempt in (connection.sender("q", LinkEvents()), connection.authorize("q")):
        with pytest.raises(ConnectionLost):
            await attempt
