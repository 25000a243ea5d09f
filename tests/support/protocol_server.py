"""An asyncio server on its own thread, for tests that talk to it with blocking clients."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def serving(protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the server's port on 127.0.0.1; assert that nothing of the server is left."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    ports: list[int] = []
    stop = asyncio.Event()
    transports: list[asyncio.Transport] = []

    def watched() -> asyncio.Protocol:
        made = protocol()
        connected = made.connection_made

        def connection_made(transport: asyncio.Transport) -> None:
            transports.append(transport)
            connected(transport)

        made.connection_made = connection_made  # type: ignore[method-assign, assignment]
        return made

    async def run() -> None:
        server = await loop.create_server(watched, "127.0.0.1", 0, ssl=tls)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        await stop.wait()
        server.close()
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0.02)  # aborting takes a turn or two

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="test server")
    thread.start()
    try:
        assert started.wait(10), "the server did not start"
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
