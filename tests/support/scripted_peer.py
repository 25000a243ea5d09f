"""A host that answers AMQP as a test wants it to: it closes links with a condition, or gives odd outcomes."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential
from proton import Collector, Condition, Connection, Delivery, Endpoint, Event, Message, Terminus, Transport

from pairbus import Namespace
from pairbus.domain.amqp.codec import decode

KEY = "c2VjcmV0LW9mLWEtdGVzdA=="
_FRAME = struct.Struct(">IBBH")
_TRANSFER = 0x14


class Peer:
    """A server of one connection after the other; `on_message` is called for each message, and answers it.

    A receiver gets what `gives` has, settled at once, and never an answer that this was all."""

    def __init__(
        self,
        on_message: Callable[[Peer, Any, bytes], None] | None = None,
        *,
        refuse: tuple[str, str] | None = None,
        refuse_cbs: tuple[str, str] | None = None,
        grant: bytes | int = 202,
        max_frame: int = 0,
        capacity: int = 0,
        idle: float = 0,
        credit: int = 100,
        gives: Sequence[bytes] = (),
    ) -> None:
        self._on_message = on_message or (lambda peer, delivery, payload: peer.settle(delivery, Delivery.ACCEPTED))
        self._refuse, self._refuse_cbs = refuse, refuse_cbs
        #: The status with which tokens are answered, or the bytes.
        self._grant_with = grant
        self._max_frame = max_frame
        self._capacity = capacity
        self._idle = idle
        self._credit = credit
        self._gives = list(gives)
        self._given: list[Any] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._replies: Any = None
        #: What came, whole, and each transfer frame's delivery tag and message-format.
        self.payloads: list[bytes] = []
        self.transfers: list[tuple[bytes, int]] = []
        self.connections = 0

    @property
    def namespace(self) -> Namespace:
        host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        return Namespace(host, credential=AzureNamedKeyCredential("key", KEY), name="peer", use_tls=False)

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(10)
        self._listener.close()

    # --- what a test may do to a message, its link, its session, its connection --------------------------------------

    def settle(self, delivery: Any, state: Any, condition: tuple[str, str] | None = None) -> None:
        if condition is not None:
            delivery.local.condition = Condition(*condition)
        if state is not None:
            delivery.update(state)
        delivery.settle()

    def close(self, what: Any, condition: str, description: str) -> None:
        what.condition = Condition(condition, description)
        what.close()

    # --- serving -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            with client:
                self._talk(client)

    def _transport(self) -> Transport:
        made = Transport(Transport.SERVER)
        if self._max_frame:
            made.max_frame_size = self._max_frame
        if self._idle:
            made.idle_timeout = self._idle
        made.sasl().allowed_mechs("ANONYMOUS")
        return made

    def _talk(self, client: socket.socket) -> None:
        client.settimeout(0.02)
        transport, connection, collector = self._transport(), Connection(), Collector()
        connection.collect(collector)
        transport.bind(connection)
        seen = bytearray()
        self._replies = None
        while not self._over.is_set():
            try:
                data = client.recv(1 << 16)
            except TimeoutError:
                data = None
            except OSError:
                break
            if data is not None:
                if not data:
                    break
                seen += data
                _push(transport, data)
            self._look_at(seen)
            transport.tick(time.monotonic())
            while (event := collector.peek()) is not None:
                self._happened(event)
                collector.pop()
            try:
                _write(transport, client)
                while self._given:  # a lock that is of no use
                    self._given.pop().settle()
                _write(transport, client)
            except OSError:
                break
            if transport.closed or connection.state & Endpoint.LOCAL_CLOSED:
                break
        transport.unbind()

    def _look_at(self, seen: bytearray) -> None:
        """Note the transfers in the whole frames that have arrived, and remove them."""
        while len(seen) >= 8:
            if seen.startswith(b"AMQP"):
                del seen[:8]
                continue
            size, offset, kind, _ = _FRAME.unpack_from(seen)
            if len(seen) < size:
                return
            body = bytes(seen[4 * offset : size])
            del seen[:size]
            if kind == 0 and body[:2] == b"\x00\x53" and body[2] == _TRANSFER:
                fields = decode(body, 3)[0]
                self.transfers.append((bytes(fields[2] or b""), int(fields[3] or 0)))

    def _happened(self, event: Any) -> None:
        kind, link = event.type, event.link
        if kind == Event.CONNECTION_REMOTE_OPEN:
            event.connection.open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            if self._capacity:
                event.session.incoming_capacity = self._capacity
            event.session.open()
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attached(link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            link.close()
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            event.connection.close()
        elif kind == Event.LINK_FLOW and not link.is_receiver and link.remote_source.address != "$cbs":
            while self._gives and link.credit > 0:
                given = link.delivery(f"tag-{len(self._gives)}")
                link.stream(self._gives.pop(0))
                link.advance()
                self._given.append(given)
        elif kind == Event.DELIVERY and event.delivery.readable:
            delivery = event.delivery
            piece = link.recv(delivery.pending) if delivery.pending else b""
            self._piece = getattr(self, "_piece", b"") + bytes(piece or b"")
            if not delivery.partial:
                payload, self._piece = self._piece, b""
                link.advance()
                if link.remote_target.address == "$cbs":
                    self._grant(delivery, payload)
                else:
                    self.payloads.append(payload)
                    self._on_message(self, delivery, payload)

    def _attached(self, link: Any) -> None:
        address = link.remote_target.address if link.is_receiver else link.remote_source.address
        refuse = self._refuse_cbs if address == "$cbs" else self._refuse
        if refuse is not None:
            link.source.type = link.target.type = Terminus.UNSPECIFIED  # as the service refuses
            link.open()
            self.close(link, *refuse)
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.open()
        if link.is_receiver:
            link.flow(100 if address == "$cbs" else self._credit)
        elif address == "$cbs":
            self._replies = link

    def _grant(self, delivery: Any, payload: bytes) -> None:
        """Accept any token, unless the test wants another answer."""
        self.settle(delivery, Delivery.ACCEPTED)
        request = Message()
        request.decode(payload)
        given = self._grant_with
        if isinstance(given, int):
            said = {"status-code": given, "status-description": "OK" if given < 300 else "no"}
            given = bytes(Message(correlation_id=request.id, properties=said).encode())
        answer = self._replies.delivery("reply")
        self._replies.stream(given)
        self._replies.advance()
        answer.settle()


def _push(transport: Transport, data: bytes) -> None:
    """Hand bytes to the engine, as many as it has room for."""
    while data and (room := transport.capacity()) > 0:
        transport.push(data[:room])
        data = data[room:]


def _write(transport: Any, client: socket.socket) -> None:
    while (pending := transport.pending()) > 0:
        client.sendall(transport.peek(pending))
        transport.pop(pending)
