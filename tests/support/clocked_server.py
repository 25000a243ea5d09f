"""The real server on a real socket, in a thread of the test, with a clock that the test can set ahead.

Everything but the clock is as in `pairbus localbus`, so that effects after minutes and hours can be seen through the
SDK. The clock runs at normal speed: tokens and locks work as usual.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pairbus.localbus.amqp.connection import AmqpConnection
from pairbus.localbus.auth import Authorizer, Key
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.broker.store import SqliteStore
from pairbus.localbus.listener import Listener
from pairbus.localbus.options import HOST
from pairbus.localbus.server import Server
from pairbus.localbus.server_process import bind, connection_string
from pairbus.localbus.tls import server_context


@dataclass
class Clock:
    """A clock that is ahead of the time of day."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def pass_minutes(self, minutes: float) -> None:
        self.ahead += minutes * 60


@dataclass
class ClockedBus:
    """The address of the server, its credentials, and its clock."""

    connection_string: str
    ca_file: str
    port: int
    host: str = HOST
    clock: Clock = field(default_factory=Clock)


@contextmanager
def clocked_bus(folder: Path, store: Path | None = None) -> Iterator[ClockedBus]:
    """Run a namespace with a clock that the caller sets."""
    key = Key.random()
    sock = bind(0)
    port = sock.getsockname()[1]
    tls, ca_file = server_context(folder, "contoso")
    bus = ClockedBus(connection_string(port, key), str(ca_file), port)
    loop = asyncio.new_event_loop()
    stop, ready = asyncio.Event(), threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        broker = Broker("contoso", None if store is None else SqliteStore(store), clock=bus.clock)
        authorizer = Authorizer([key], hosts=frozenset((HOST,)), port=port, entities=broker)
        server = Server(broker, authorizer)
        server.failed.add_done_callback(lambda _: stop.set())
        listener = Listener(sock, tls, lambda: AmqpConnection(server), server.http_protocol)
        ready.set()
        await stop.wait()
        await listener.close()
        if server.failed.done():
            server.failed.result()
        await server.stop()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="clocked localbus")
    thread.start()
    try:
        assert ready.wait(10), "the server did not start"
        yield bus
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
        sock.close()
    assert not failures, failures
