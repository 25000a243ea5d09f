"""An AMQP connection on Proton, with asyncio for the I/O.

::

    connection = await Connection.open(namespace)
    await connection.authorize("orders")  # puts a token to $cbs, and renews it before it expires
    sender = await connection.sender("orders", events)
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from proton import Connection as Engine
from proton import Transport

from pairbus.options import Namespace
from pairbus.runtime.bounded_call import ANSWER_SECONDS, deadline

from .cbs import CbsClient
from .link import (
    ConnectionLost,
    Link,
    LinkError,
    Receiver,
    ReceiverEvents,
    Sender,
    SenderEvents,
    error_of_condition,
    ffi,
    lib,
)
from .message_format import BatchFormat

L = TypeVar("L", bound=Link)

_MAX_FRAME_BYTES = 65_536
#: The connection is lost if nothing was received for so long. The peer is asked for a frame twice as often.
IDLE_SECONDS = 60.0
#: Proton's timers are checked so often within that time.
_TICKS = 60
#: Output that may wait for the socket before senders pause.
_WRITE_BUFFER_BYTES = 4 * 1024 * 1024
#: TLS or not -> AMQP's port.
_PORTS = {True: 5671, False: 5672}


class Connection(asyncio.Protocol):
    """A connection to one namespace."""

    def __init__(self, namespace: Namespace, *, event_hubs: bool = False) -> None:
        self.namespace = namespace
        self.loop = asyncio.get_running_loop()
        #: Called once after the events of all input that arrived together.
        self.on_input_handled: Callable[[], None] | None = None
        #: False while the socket's write buffer is full.
        self.writable = True
        #: The reason why the connection has ended.
        self.lost: ConnectionLost | None = None
        self.batch_format = BatchFormat()
        self._cbs = CbsClient(self, event_hubs=event_hubs)
        self._links: dict[Any, Link] = {}
        self._socket: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._flush_scheduled = False
        self._tick_timer: asyncio.TimerHandle | None = None

        self._engine = Engine()
        self._engine.container = f"pairbus-{uuid.uuid4()}"
        self._engine.hostname = _host_and_port(namespace)[0]
        self._collector: Any = lib.pn_collector()
        lib.pn_connection_collect(self._engine._impl, self._collector)
        self._wrapper = Transport()
        self._wrapper.max_frame_size = _MAX_FRAME_BYTES
        self._wrapper.idle_timeout = IDLE_SECONDS
        self._wrapper.sasl().allowed_mechs("ANONYMOUS")
        self._transport: Any = self._wrapper._impl
        self._wrapper.bind(self._engine)
        self._engine.open()
        self._session = self._engine.session()
        self._session.open()

    # --- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls, namespace: Namespace, *, event_hubs: bool = False, timeout: float = ANSWER_SECONDS
    ) -> Connection:
        """Return an open connection; raises `ConnectionLost` if the host refuses it, or does not answer in time."""
        connection = cls(namespace, event_hubs=event_hubs)
        host, port = _host_and_port(namespace)
        try:
            tls = _tls_context(namespace) if namespace.use_tls else None
            async with deadline(timeout):
                connection._cbs.open_links(timeout)
                await connection.loop.create_connection(
                    lambda: connection, host, port, ssl=tls, server_hostname=host if tls is not None else None
                )
                await connection._opened
        except (OSError, asyncio.TimeoutError) as error:
            connection._release()
            reason = str(error) or f"no answer within {timeout:g} s"
            raise ConnectionLost(None, f"{namespace.host}: {reason}") from error
        except BaseException:
            connection._release()
            raise
        return connection

    async def close(self, timeout: float = 2.0) -> None:
        """Close the connection, and wait a little for the peer to confirm."""
        if self.lost is None:
            self._engine.close()
            self.schedule_flush()
            with contextlib.suppress(asyncio.TimeoutError):
                async with deadline(timeout):
                    while self.lost is None:
                        await asyncio.sleep(0.005)
        self._release()

    def _release(self) -> None:
        """End the connection without the peer, and free its socket and Proton's memory."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._socket is not None:
            self._socket.abort()
            self._socket = None
        self._mark_lost(ConnectionLost(None, f"{self.namespace.host}: the connection was closed by this side"))
        if self._collector is not None:
            lib.pn_collector_release(self._collector)
            lib.pn_collector_free(self._collector)
            self._collector = None

    def _mark_lost(self, error: ConnectionLost) -> None:
        """Pass the end of the connection on to its links, to `$cbs` and to its owner, once."""
        if self.lost is not None:
            return
        self.lost = error
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()
        for link in list(self._links.values()):
            link.fail(error)
        self._cbs.close(error)
        if self.on_input_handled is not None:
            self.on_input_handled()

    # --- links -------------------------------------------------------------------------------------------------------

    async def sender(self, address: str, events: SenderEvents, *, timeout: float = ANSWER_SECONDS) -> Sender:
        """Return an open link that sends; raises `LinkError` if the peer refuses it."""
        wrapper = self._session.sender(f"pairbus-{uuid.uuid4()}")
        wrapper.target.address = address
        wrapper.source.address = self._engine.container
        return await self._attach(Sender(self, wrapper, events), timeout)

    async def receiver(
        self, address: str, events: ReceiverEvents, *, timeout: float = ANSWER_SECONDS, name: str | None = None
    ) -> Receiver:
        """Return an open link that receives in peek-lock mode, without credit; raises `LinkError` if it is refused."""
        wrapper = self._session.receiver(name or f"pairbus-{uuid.uuid4()}")
        wrapper.source.address = address
        wrapper.target.address = name or self._engine.container
        wrapper.snd_settle_mode = 0
        wrapper.rcv_settle_mode = 1  # the service confirms each settlement
        return await self._attach(Receiver(self, wrapper, events), timeout)

    async def authorize(self, path: str, *, timeout: float = ANSWER_SECONDS) -> None:
        """Put a token for an entity, and renew it from then on; raises `LinkError` if it is refused."""
        await self._cbs.authorize(path, timeout)

    async def _attach(self, link: L, timeout: float) -> L:
        if self.lost is not None:
            raise self.lost
        self._links[link.pointer] = link
        try:
            async with deadline(timeout):
                await link.open()
        except asyncio.TimeoutError:
            link.close()
            raise LinkError("com.microsoft:timeout", f"the link was not answered within {timeout:g} s") from None
        return link

    def remove_link(self, link: Link) -> None:
        self._links.pop(link.pointer, None)

    # --- input and output --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        if self.lost is not None:  # abandoned while it was opening
            transport.abort()
            return
        transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)
        self._tick()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        self._mark_lost(ConnectionLost(None, f"{self.namespace.host}: {error or 'the connection was closed'}"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for link in list(self._links.values()):
            link.on_flow()
        if self.on_input_handled is not None:
            self.on_input_handled()

    def pause_reading(self) -> None:
        if self._socket is not None and self._socket.is_reading():
            self._socket.pause_reading()

    @property
    def is_paused(self) -> bool:
        return self._socket is not None and not self._socket.is_reading()

    def resume_reading(self) -> None:
        if self._socket is not None and not self._socket.is_reading() and not self._socket.is_closing():
            self._socket.resume_reading()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        view = memoryview(data)
        while view:
            room = lib.pn_transport_capacity(transport)
            if room <= 0:
                break  # Proton has failed; the error is among its events
            piece = view[:room]
            taken = lib.pn_transport_push(transport, ffi.from_buffer(piece), len(piece))
            if taken <= 0:
                break
            view = view[taken:]
        self._dispatch_events()
        if self.on_input_handled is not None:
            self.on_input_handled()
        self._flush()

    def _dispatch_events(self) -> None:
        collector, links = self._collector, self._links
        if collector is None:
            return
        peek, pop, kind_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        delivery_event, null = lib.PN_DELIVERY, ffi.NULL
        handled = (delivery_event, lib.PN_LINK_FLOW)
        while (event := peek(collector)) != null:
            kind = kind_of(event)
            if kind in handled:
                link = links.get(lib.pn_event_link(event))
                if link is not None:
                    if kind == delivery_event:
                        link.on_delivery(lib.pn_event_delivery(event))
                    else:
                        link.on_flow()
            else:
                self._dispatch_rare_event(kind, event)
            pop(collector)

    def _dispatch_rare_event(self, kind: int, event: Any) -> None:
        if kind == lib.PN_CONNECTION_REMOTE_OPEN:
            if not self._opened.done():
                self._opened.set_result(None)
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            if (link := self._links.get(lib.pn_event_link(event))) is not None:
                link.on_remote_open()
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            if (link := self._links.pop(lib.pn_event_link(event), None)) is not None:
                link.on_remote_close()
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            self._fail(lib.pn_session_remote_condition(lib.pn_event_session(event)), "the session was closed")
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            self._fail(lib.pn_connection_remote_condition(self._engine._impl), "the connection was closed")
        elif kind == lib.PN_TRANSPORT_ERROR:
            self._fail(lib.pn_transport_condition(self._transport), "the connection broke")

    def _fail(self, remote_condition: Any, description: str) -> None:
        """End the connection with the condition of the peer, or with a description if it gave none."""
        error = error_of_condition(remote_condition) or LinkError(None, description)
        self._mark_lost(ConnectionLost(error.condition, f"{self.namespace.host}: {error.description}"))
        if self._socket is not None:
            self._flush()
            if self._socket is not None:
                self._socket.close()

    def schedule_flush(self) -> None:
        """Write the output once, at the end of this turn of the event loop."""
        if not self._flush_scheduled and self._socket is not None:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        socket = self._socket
        if socket is None or socket.is_closing():
            return
        transport = self._transport
        pieces = []
        while (pending := lib.pn_transport_pending(transport)) > 0:
            buffer = bytearray(pending)
            got = lib.pn_transport_peek(transport, ffi.from_buffer(buffer), pending)
            pieces.append(buffer if got == pending else buffer[:got])
            lib.pn_transport_pop(transport, got)
        if pieces:
            output: bytes | bytearray = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            socket.write(self.batch_format.apply(output) if self.batch_format.is_used else output)

    def _tick(self) -> None:
        """Let Proton send a frame if the connection is idle, and end it if the peer has been silent for too long."""
        lib.pn_transport_tick(self._transport, int(self.loop.time() * 1000))
        self._dispatch_events()
        self._flush()
        if self.lost is None:
            self._tick_timer = self.loop.call_later(IDLE_SECONDS / _TICKS, self._tick)


def _host_and_port(namespace: Namespace) -> tuple[str, int]:
    found = re.fullmatch(r"(\[.+\]|[^:]+)(?::(\d+))?", namespace.host)
    assert found is not None, "Namespace checks its host"
    return found.group(1).strip("[]"), int(found.group(2) or _PORTS[namespace.use_tls])


def _tls_context(namespace: Namespace) -> ssl.SSLContext:
    """Return TLS 1.2 or newer, with the host name checked, and the namespace's own certificate authority if any."""
    context = ssl.create_default_context()
    if namespace.ca_file is not None:
        context.load_verify_locations(str(namespace.ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
