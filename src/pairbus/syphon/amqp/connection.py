"""One AMQP connection on Proton: bytes from asyncio in, bytes out; links are opened on it, tokens put and renewed.

connection = await Connection.open(namespace)
await connection.authorize("orders")          # $cbs; renewed before it ends
sender = await connection.sender("orders", events)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from proton import Connection as Engine
from proton import Transport

from pairbus.options import Namespace
from pairbus.runtime.bounded_call import ANSWER_SECONDS, deadline

from .cbs import Authority
from .link import (
    ConnectionLost,
    Link,
    LinkError,
    Receiver,
    ReceiverEvents,
    Sender,
    SenderEvents,
    condition_of,
    ffi,
    lib,
)

L = TypeVar("L", bound=Link)

_MAX_FRAME = 65_536
#: A peer from which nothing is heard for so long is gone; it is asked to say something twice as often.
IDLE_SECONDS = 60.0
#: Bytes that may wait for the socket before nothing more is sent.
_UNWRITTEN = 4 * 1024 * 1024
_PORTS = {True: 5671, False: 5672}


class Connection(asyncio.Protocol):
    """A connection to one namespace. `on_turn` is called once after everything that came together was told."""

    def __init__(self, namespace: Namespace, *, event_hubs: bool = False) -> None:
        self.namespace = namespace
        self.loop = asyncio.get_running_loop()
        self.on_turn: Callable[[], None] | None = None
        self.writable = True
        self.lost: ConnectionLost | None = None
        #: A batch must be told from a message by a number that Proton does not let be set. Tags of batches begin with
        #: this, padded by as many bytes as the number is longer than Proton's: see `_with_formats`. Once there was one
        #: all output is looked through: what the session's window holds back goes out later, and in pieces.
        self.batch_mark = b"\0\0\0\0" + os.urandom(8)
        self.has_batches = False
        self._batch_tag = b"\xa0\x10" + self.batch_mark
        self._authority = Authority(self, event_hubs=event_hubs)
        self._links: dict[Any, Link] = {}
        self._socket: asyncio.Transport | None = None
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._flushing = False
        self._closing = False
        self._ticking: asyncio.TimerHandle | None = None

        self._engine = Engine()
        self._engine.container = f"pairbus-{uuid.uuid4()}"
        self._engine.hostname = _host_and_port(namespace)[0]
        self._collector: Any = lib.pn_collector()
        lib.pn_connection_collect(self._engine._impl, self._collector)
        self._wrapper = Transport()
        self._wrapper.max_frame_size = _MAX_FRAME
        self._wrapper.idle_timeout = IDLE_SECONDS
        self._wrapper.sasl().allowed_mechs("ANONYMOUS")
        self._transport: Any = self._wrapper._impl
        self._wrapper.bind(self._engine)
        self._engine.open()
        self._session = self._engine.session()
        self._session.open()

    # --- opening and closing -----------------------------------------------------------------------------

    @classmethod
    async def open(
        cls, namespace: Namespace, *, event_hubs: bool = False, timeout: float = ANSWER_SECONDS
    ) -> Connection:
        """Connect and say hello; raises `ConnectionLost` if that cannot be done in time."""
        made = cls(namespace, event_hubs=event_hubs)
        host, port = _host_and_port(namespace)
        try:
            tls = _tls(namespace) if namespace.use_tls else None
            async with deadline(timeout):
                made._authority.begin(timeout)
                await made.loop.create_connection(
                    lambda: made, host, port, ssl=tls, server_hostname=host if tls is not None else None
                )
                await made._opened
        except LinkError:
            made._drop()
            raise
        except (OSError, asyncio.TimeoutError) as error:
            made._drop()
            said = str(error) or f"no answer within {timeout:g} s"
            raise ConnectionLost(None, f"{namespace.host}: {said}") from error
        except BaseException:
            made._drop()
            raise
        return made

    async def close(self, timeout: float = 2.0) -> None:
        """Say goodbye, and wait a little for the answer."""
        if self.lost is None:
            self._closing = True
            self._engine.close()
            self.wants_output()
            with contextlib.suppress(asyncio.TimeoutError):
                async with deadline(timeout):
                    while self.lost is None:
                        await asyncio.sleep(0.005)
        self._drop()

    def _drop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        if self._socket is not None:
            self._socket.abort()
            self._socket = None
        self._end(ConnectionLost(None, f"{self.namespace.host}: the connection was closed by this side"))
        if self._collector is not None:
            lib.pn_collector_release(self._collector)
            lib.pn_collector_free(self._collector)
            self._collector = None

    def _end(self, error: ConnectionLost) -> None:
        """Nothing comes or goes any more: everybody is told."""
        if self.lost is not None:
            return
        self.lost = error
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()
        for link in list(self._links.values()):
            link.end(error)
        self._authority.end(error)
        if self.on_turn is not None:
            self.on_turn()

    # --- links -------------------------------------------------------------------------------------------

    async def sender(self, address: str, events: SenderEvents, *, timeout: float = ANSWER_SECONDS) -> Sender:
        """A link to send on; raises `LinkError` if it is refused."""
        wrapper = self._session.sender(f"pairbus-{uuid.uuid4()}")
        wrapper.target.address = address
        wrapper.source.address = self._engine.container
        return await self._attach(Sender(self, wrapper, events), timeout)

    async def receiver(
        self, address: str, events: ReceiverEvents, *, timeout: float = ANSWER_SECONDS, name: str | None = None
    ) -> Receiver:
        """A link to receive on, in peek-lock mode and without credit at first."""
        wrapper = self._session.receiver(name or f"pairbus-{uuid.uuid4()}")
        wrapper.source.address = address
        wrapper.target.address = name or self._engine.container
        wrapper.snd_settle_mode = 0
        wrapper.rcv_settle_mode = 1  # the service confirms each settlement
        return await self._attach(Receiver(self, wrapper, events), timeout)

    async def authorize(self, path: str, *, timeout: float = ANSWER_SECONDS) -> None:
        """Put a token for an entity, which is renewed from then on; raises `LinkError` if it is refused."""
        await self._authority.authorize(path, timeout)

    async def _attach(self, link: L, timeout: float) -> L:
        if self.lost is not None:
            raise self.lost
        self._links[link.pointer] = link
        link._wrapper.open()
        self.wants_output()
        try:
            async with deadline(timeout):
                await link.opened()
        except asyncio.TimeoutError:
            link.close()
            raise LinkError("com.microsoft:timeout", f"the link was not answered within {timeout:g} s") from None
        return link

    def forget(self, link: Link) -> None:
        self._links.pop(link.pointer, None)

    # --- moving bytes ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        if self.lost is not None:  # given up meanwhile
            transport.abort()
            return
        transport.set_write_buffer_limits(_UNWRITTEN)
        self._tick()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._socket = None
        self._end(ConnectionLost(None, f"{self.namespace.host}: {error or 'the connection was closed'}"))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for link in list(self._links.values()):
            link.on_flow()
        if self.on_turn is not None:
            self.on_turn()

    def pause_reading(self) -> None:
        """Take nothing more from the socket for now."""
        if self._socket is not None and self._socket.is_reading():
            self._socket.pause_reading()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is taken from the socket."""
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
                break  # by an error that is among the events
            piece = view[:room]
            taken = lib.pn_transport_push(transport, ffi.from_buffer(piece), len(piece))
            if taken <= 0:
                break
            view = view[taken:]
        self._tell()
        if self.on_turn is not None:
            self.on_turn()
        self._flush()

    def _tell(self) -> None:
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
                self._happened(kind, event)
            pop(collector)

    def _happened(self, kind: int, event: Any) -> None:
        """Everything that is rare."""
        if kind == lib.PN_CONNECTION_REMOTE_OPEN:
            if not self._opened.done():
                self._opened.set_result(None)
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            link = self._links.get(lib.pn_event_link(event))
            if link is not None:
                link.remote_opened()
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            link = self._links.pop(lib.pn_event_link(event), None)
            if link is not None:
                link.end(
                    condition_of(lib.pn_link_remote_condition(link.pointer)) or LinkError(None, "the link was closed")
                )
                link._wrapper.close()
                self.wants_output()
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            self._fail(
                condition_of(lib.pn_session_remote_condition(lib.pn_event_session(event))), "the session was closed"
            )
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            self._fail(
                condition_of(lib.pn_connection_remote_condition(self._engine._impl)), "the connection was closed"
            )
        elif kind == lib.PN_TRANSPORT_ERROR:
            self._fail(condition_of(lib.pn_transport_condition(self._transport)), "the connection broke")

    def _fail(self, error: LinkError | None, said: str) -> None:
        condition, description = (error.condition, error.description) if error is not None else (None, said)
        self._end(ConnectionLost(condition, f"{self.namespace.host}: {description}"))
        if self._socket is not None:
            self._flush()
            if self._socket is not None:
                self._socket.close()

    def wants_output(self) -> None:
        """Something is to be written; it goes out once for all at the end of this turn of the loop."""
        if not self._flushing and self._socket is not None:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
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
            socket.write(self._with_formats(output) if self.has_batches else output)

    def _with_formats(self, output: bytes | bytearray) -> bytes:
        """Give the transfers of batches their message-format; the tag gives up as many bytes as that takes."""
        pieces: list[bytes | memoryview] = []
        whole, at = memoryview(output), 0
        while (found := output.find(self._batch_tag, at)) >= 0:
            if output[found + 18 : found + 19] == b"\x43":
                pieces += (whole[at:found], b"\xa0\x0c", whole[found + 6 : found + 18], b"\x70\x80\x01\x37\x00")
                at = found + 19
            else:
                pieces.append(whole[at : found + 2])
                at = found + 2
        pieces.append(whole[at:])
        return b"".join(pieces)

    def _tick(self) -> None:
        """Let Proton see the time: it keeps the connection alive, and sees that the other side is gone."""
        lib.pn_transport_tick(self._transport, int(self.loop.time() * 1000))
        self._tell()
        self._flush()
        if self.lost is None:
            self._ticking = self.loop.call_later(IDLE_SECONDS / 60, self._tick)


def _host_and_port(namespace: Namespace) -> tuple[str, int]:
    found = re.fullmatch(r"(\[.+\]|[^:]+)(?::(\d+))?", namespace.host)
    assert found is not None, "a Namespace has checked its host"
    return found.group(1).strip("[]"), int(found.group(2) or _PORTS[namespace.use_tls])


def _tls(namespace: Namespace) -> ssl.SSLContext:
    """TLS as the service wants it: 1.2 or newer, the host's name checked, a private authority where one is given."""
    context = ssl.create_default_context()
    if namespace.ca_file is not None:
        context.load_verify_locations(str(namespace.ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
