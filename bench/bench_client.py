"""A minimal AMQP client on Proton's engine and a socket, so that a benchmark measures the broker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import select
import socket
import time
from typing import Any
from urllib.parse import quote_plus

import cproton_ffi
from proton import Connection, Message, Transport

ffi: Any = cproton_ffi.ffi
lib: Any = cproton_ffi.lib


def message_of(size: int) -> bytes:
    """Return an encoded message with an id and a body of this size, as the SDKs send it."""
    body = b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + b"x" * size
    return b"\x00\x53\x73\xc0\x27\x01\xa1\x24" + b"3354bf53-58d1-427a-b81b-fa9648b7e05a" + body


class BenchClient:
    """A connection to localbus, authorised for one entity."""

    def __init__(self, connection_string: str, entity: str) -> None:
        parts = dict(part.partition("=")[::2] for part in connection_string.split(";") if part)
        host, _, port = parts["Endpoint"].removeprefix("sb://").partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._connection = Connection()
        self._connection.container = "bench"
        self._connection.hostname = host
        self._collector = lib.pn_collector()
        lib.pn_connection_collect(self._connection._impl, self._collector)
        self._transport = Transport()
        self._transport.max_frame_size = 65536
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._transport.bind(self._connection)
        self._connection.open()
        self.session = self._connection.session()
        self.session.open()
        self._pending = b""
        self.entity = entity
        self._authorize(parts, host, port)

    # --- moving bytes ------------------------------------------------------------------------------------

    def pump(self, timeout: float = 1.0) -> bool:
        """Write pending bytes and read those that arrived. Return False if none arrived in time."""
        transport = self._transport._impl
        while True:
            size = lib.pn_transport_pending(transport)
            if size > 0:
                buffer = bytearray(size)
                got = lib.pn_transport_peek(transport, ffi.from_buffer(buffer), size)
                lib.pn_transport_pop(transport, got)
                self._pending += bytes(buffer[:got])
            elif not self._pending:
                break
            try:
                sent = self._socket.send(self._pending)
                self._pending = self._pending[sent:]
            except BlockingIOError:
                break
            if self._pending:
                break
        readable, _, _ = select.select([self._socket], [self._socket] if self._pending else [], [], timeout)
        if not readable:
            return bool(self._pending)
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("localbus closed the connection")
        view = memoryview(data)
        while view:
            room = lib.pn_transport_capacity(transport)
            if room <= 0:
                raise ConnectionError("Proton refused the server's bytes")
            taken = lib.pn_transport_push(transport, ffi.from_buffer(view[:room]), min(room, len(view)))
            view = view[taken:]
        return True

    def events(self) -> Any:
        """Yield the type and the event of everything that has happened."""
        while True:
            event = lib.pn_collector_peek(self._collector)
            if event == ffi.NULL:
                return
            yield lib.pn_event_type(event), event
            lib.pn_collector_pop(self._collector)

    # --- links -------------------------------------------------------------------------------------------

    def sender(self, address: str) -> Any:
        link = self.session.sender(f"send-{address}-{time.monotonic_ns()}")
        link.target.address = address
        link.source.address = "bench"
        link.open()
        return link

    def receiver(self, address: str, *, delete: bool = False) -> Any:
        link = self.session.receiver(f"receive-{address}-{time.monotonic_ns()}")
        link.source.address = address
        link.target.address = f"bench-{time.monotonic_ns()}"
        if delete:
            link.snd_settle_mode = 1
        link.open()
        return link

    def _authorize(self, parts: dict[str, str], host: str, port: str) -> None:
        audience = f"sb://{host}:{port}/{self.entity}"
        resource, expiry = quote_plus(audience), int(time.time()) + 3600
        signed = hmac.new(parts["SharedAccessKey"].encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
        signature = quote_plus(base64.b64encode(signed.digest()))
        token = f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={parts['SharedAccessKeyName']}"
        request = Message(
            id=1, reply_to="cbs", body=token,
            properties={"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience},
        )  # fmt: skip
        request.inferred = False
        sender, receiver = self.sender("$cbs"), self.session.receiver("cbs")
        receiver.source.address = "$cbs"
        receiver.target.address = "cbs"
        receiver.open()
        receiver.flow(10)
        while not lib.pn_link_credit(sender._impl):
            self.pump()
            for _ in self.events():
                pass
        sender.delivery("token")
        sender.send(request.encode())
        sender.advance()
        for _ in range(100):
            self.pump()
            for kind, event in self.events():
                if kind == lib.PN_DELIVERY and lib.pn_event_link(event) == receiver._impl:
                    raw = receiver.recv(65536)
                    reply = Message()
                    reply.decode(bytes(raw or b""))
                    answer: Any = reply.properties
                    if answer["status-code"] != 202:
                        raise ConnectionError(f"the token was refused: {answer}")
                    return
        raise ConnectionError("no answer to the token")

    def close(self) -> None:
        self._socket.close()


def send_many(client: BenchClient, count: int, message: bytes) -> float:
    """Send messages as fast as credit allows. Return the seconds until the last was accepted."""
    link = client.sender(client.entity)
    pointer = link._impl
    sent = accepted = 0
    start = time.perf_counter()
    while accepted < count:
        room = min(lib.pn_link_credit(pointer), count - sent)
        for _ in range(room):
            tag = sent.to_bytes(4, "big")
            lib.pn_delivery(pointer, (4, ffi.from_buffer(tag)))
            lib.pn_link_send(pointer, message, len(message))
            lib.pn_link_advance(pointer)
            sent += 1
        if not client.pump(10):
            raise TimeoutError(f"{accepted} of {count} were accepted, then no answer came")
        for kind, event in client.events():
            if kind == lib.PN_DELIVERY and lib.pn_event_link(event) == pointer:
                delivery = lib.pn_event_delivery(event)
                if lib.pn_delivery_settled(delivery):
                    if lib.pn_delivery_remote_state(delivery) != lib.PN_ACCEPTED:
                        raise RuntimeError("a message was not accepted")
                    lib.pn_delivery_settle(delivery)
                    accepted += 1
            elif kind == lib.PN_LINK_REMOTE_CLOSE and lib.pn_event_link(event) == pointer:
                raise RuntimeError(f"detached: {link.remote_condition}")
    elapsed = time.perf_counter() - start
    link.close()
    return elapsed


def receive_many(client: BenchClient, count: int, *, window: int = 1000) -> float:
    """Receive and complete messages. Return the seconds until the last completion was confirmed."""
    link = client.receiver(client.entity)
    pointer = link._impl
    lib.pn_link_flow(pointer, min(window, count))
    got = confirmed = 0
    granted = min(window, count)
    buffer = bytearray(1 << 17)
    view = ffi.from_buffer(buffer)
    start = time.perf_counter()
    while confirmed < count:
        if not client.pump(10):
            raise TimeoutError(f"{got} received, {confirmed} of {count} were confirmed, then no answer came")
        for kind, event in client.events():
            if kind == lib.PN_DELIVERY and lib.pn_event_link(event) == pointer:
                delivery = lib.pn_event_delivery(event)
                if lib.pn_delivery_settled(delivery):
                    lib.pn_delivery_settle(delivery)
                    confirmed += 1
                elif lib.pn_delivery_readable(delivery) and not lib.pn_delivery_partial(delivery):
                    lib.pn_link_recv(pointer, view, len(buffer))
                    lib.pn_link_advance(pointer)
                    lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
                    got += 1
            elif kind == lib.PN_LINK_REMOTE_CLOSE and lib.pn_event_link(event) == pointer:
                raise RuntimeError(f"detached: {link.remote_condition}")
        credit = lib.pn_link_credit(pointer)
        if credit < window // 2 and granted < count:
            more = min(window - credit, count - granted)
            lib.pn_link_flow(pointer, more)
            granted += more
    elapsed = time.perf_counter() - start
    link.close()
    return elapsed
