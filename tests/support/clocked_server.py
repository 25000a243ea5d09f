"""The real server on a real socket, in a thread of the test, with a clock that the test puts forward.

Everything is as `pairbus localbus` builds it but for the clock, so that what the service does in minutes and hours can
be seen through the SDK. The clock runs as fast as ever and is only ahead: tokens and locks work as usual.
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
    """The time of day, and as much later as it was told."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    def pass_minutes(self, minutes: float) -> None:
        self.ahead += minutes * 60


@dataclass
class ClockedBus:
    """What a client must know, and the clock."""

    connection_string: str
    ca_file: str
    port: int
    host: str = HOST
    clock: Clock = field(default_factory=Clock)


@contextmanager
def clocked_bus(folder: Path, store: Path | None = None) -> Iterator[ClockedBus]:
    """A namespace whose clock the caller holds; nothing of it is left behind."""
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
