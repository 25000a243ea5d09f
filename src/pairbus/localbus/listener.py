"""The listener on the single port: a client's first bytes select AMQP, TLS or HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

log = logging.getLogger(__name__)

_TLS_HANDSHAKE = 0x16
_FIRST_BYTE_SECONDS = 60.0
_ACCEPT_RETRY_SECONDS = 0.1
BACKLOG = 1024

ProtocolFactory = Callable[[], asyncio.Protocol]


class Sniffer(asyncio.Protocol):
    """A protocol that waits for a connection's first bytes and then switches to AMQP or HTTP."""

    def __init__(self, amqp: ProtocolFactory, http: ProtocolFactory) -> None:
        self._amqp = amqp
        self._http = http
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_FIRST_BYTE_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        if len(self._received) < 4 and b"AMQP".startswith(self._received):
            return
        if self._timer is not None:
            self._timer.cancel()
        factory = self._amqp if self._received[:4] == b"AMQP" else self._http
        if factory is self._http and not self._received[:1].isalpha():
            # Neither AMQP nor HTTP: answer with the supported AMQP header, as the protocol demands, and close.
            self._transport.write(b"AMQP\x03\x01\x00\x00")
            self._transport.close()
            return
        protocol = factory()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Listener:
    """An acceptor of connections on a loopback socket, which starts the protocol of each."""

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext, amqp: ProtocolFactory, http: ProtocolFactory) -> None:
        self._socket = sock
        self._tls = tls
        self._amqp = amqp
        self._http = http
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._accepting = self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                # Most likely out of file descriptors: open connections go on, new ones wait.
                log.error("a connection could not be accepted: %s; next attempt in %g s", error, _ACCEPT_RETRY_SECONDS)
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            task = self._loop.create_task(self._take(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await asyncio.wait_for(self._first_byte(client), _FIRST_BYTE_SECONDS)
            if first is None:
                client.close()
                return
            await self._loop.connect_accepted_socket(
                lambda: Sniffer(self._amqp, self._http),
                client,
                ssl=self._tls if first == _TLS_HANDSHAKE else None,
                ssl_handshake_timeout=15.0 if first == _TLS_HANDSHAKE else None,
            )
        except (OSError, asyncio.TimeoutError) as error:  # ssl.SSLError is an OSError
            log.debug("a connection ended before its first request: %s", error)
            client.close()

    async def _first_byte(self, client: socket.socket) -> int | None:
        """Return the first byte without consuming it, because TLS needs it; None at the end of input."""
        readable = asyncio.Event()
        self._loop.add_reader(client, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(client)
        peeked = client.recv(1, socket.MSG_PEEK)
        return peeked[0] if peeked else None

    async def close(self) -> None:
        for task in (self._accepting, *self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._socket.close()
