"""A small blocking AMQP client on Proton's engine: sends and receives bytes as they are, and knows no SDK's habits."""

from __future__ import annotations

import base64
import hashlib
import hmac
import select
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote_plus

from proton import Collector, Connection, Data, Delivery, Endpoint, Link, Message, Receiver, Sender, Transport, symbol

from pairbus.domain.amqp.codec import skip
from pairbus.localbus import LocalBus
from pairbus.localbus.amqp import engine

_WAIT = 60.0
_FRAME = struct.Struct(">IBBH")
_TRANSFER = b"\x00\x53\x14\xc0"


class RawError(Exception):
    """The server closed what was asked for: its condition, and what it said."""

    def __init__(self, condition: str | None, description: str | None) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition


def data_of(message: Message) -> bytes:
    """Return the body of a message that has one data section."""
    body = message.body
    assert isinstance(body, bytes | memoryview)
    return bytes(body)


@dataclass(frozen=True)
class Received:
    """A delivery: the message's bytes and the lock token's, as they came."""

    payload: bytes
    tag: bytes
    delivery: Delivery

    @property
    def token(self) -> uuid.UUID:
        return uuid.UUID(bytes_le=self.tag)


class RawClient:
    """One connection."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._socket = socket.create_connection((bus.host, bus.port), timeout=_WAIT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = Transport()
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._connection = Connection()
        self._connection.container = f"raw-{uuid.uuid4()}"
        self._connection.hostname = bus.host
        self._collector = Collector()
        self._connection.collect(self._collector)
        self._transport.bind(self._connection)
        self._connection.open()
        self._session = self._connection.session()
        self._session.open()
        self._nodes: dict[str, tuple[Sender, Receiver]] = {}
        self._tags = 0
        self._format = 0
        #: What `$management` has said of the last request's status.
        self.said = ""
        self.wait(lambda: self._connection.state & Endpoint.REMOTE_ACTIVE, "the connection's open")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def drop(self) -> None:
        """Cut the connection without a word."""
        self._socket.close()
        self._transport.unbind()

    # --- pumping -----------------------------------------------------------------------------------------

    def wait(self, condition: Any, what: str, seconds: float = _WAIT) -> Any:
        """Exchange bytes until the condition's value is true."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{what} did not come within {seconds} s")
            self.pump(min(left, 0.5))
        return found

    def pump(self, seconds: float) -> None:
        """Exchange bytes with the server, waiting at most so long for input."""
        self.flush()
        if select.select([self._socket], [], [], seconds)[0]:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            while data:
                room = self._transport.capacity()
                self._transport.push(data[:room])
                data = data[room:]
        while self._collector.peek() is not None:
            self._collector.pop()
        self.flush()

    def flush(self) -> None:
        while (pending := self._transport.pending()) > 0:
            data = self._transport.peek(pending)
            assert data is not None  # there is something pending
            self._socket.sendall(with_format(data, self._format) if self._format else data)
            self._transport.pop(len(data))

    # --- links -------------------------------------------------------------------------------------------

    def sender(self, address: str) -> Sender:
        link = self._session.sender(f"s-{uuid.uuid4()}")
        link.target.address = address
        link.source.address = "here"
        self._open(link)
        self.wait(lambda: link.credit > 0, "credit")
        return link

    def receiver(
        self,
        address: str,
        credit: int = 0,
        *,
        filters: dict[Any, Any] | None = None,
        delete: bool = False,
        properties: dict[Any, Any] | None = None,
    ) -> Receiver:
        link = self._session.receiver(f"r-{uuid.uuid4()}")
        link.source.address = address
        link.target.address = "here"
        if filters is not None:
            link.source.filter.put_dict(filters)
        if properties is not None:
            link.properties = properties
        link.snd_settle_mode = Link.SND_SETTLED if delete else Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST if delete else Link.RCV_SECOND
        self._open(link)
        if credit:
            link.flow(credit)
        return link

    def _open(self, link: Link) -> None:
        link.open()
        self.wait(lambda: link.state & (Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED), "the link's attach")
        self.flush()
        # A refusal is an attach with a detach at its heels.
        if link.remote_source.address is None and link.remote_target.address is None:
            self.wait(lambda: link.state & Endpoint.REMOTE_CLOSED, "the link's detach")
        self.check(link)

    def check(self, link: Link) -> None:
        """Raise if the server has closed a link."""
        if link.state & Endpoint.REMOTE_CLOSED:
            condition = link.remote_condition
            raise RawError(condition.name if condition else None, condition.description if condition else None)

    def close_link(self, link: Link) -> None:
        link.close()
        self.wait(lambda: link.state & Endpoint.REMOTE_CLOSED, "the link's detach")

    # --- messages ----------------------------------------------------------------------------------------

    def send(self, link: Sender, payload: bytes, format: int = 0) -> None:
        """Send one message's bytes; raises if it is not accepted."""
        self._tags += 1
        delivery = link.delivery(str(self._tags))
        link.stream(payload)
        link.advance()
        self._format = format
        self.flush()
        self._format = 0
        self.wait(lambda: delivery.remote_state or link.state & Endpoint.REMOTE_CLOSED, "the send's outcome")
        self.check(link)
        if delivery.remote_state != Delivery.ACCEPTED:
            condition = delivery.remote.condition
            raise RawError(condition.name, condition.description)
        delivery.settle()

    def receive(self, link: Receiver, seconds: float = _WAIT) -> Received:
        """The next message; asks for one if the link has no credit."""
        if link.credit == 0 and link.current is None:
            link.flow(1)

        def whole() -> Delivery | None:
            self.check(link)
            found = link.current
            return found if found is not None and found.readable and not found.partial else None

        delivery = self.wait(whole, "a message", seconds)
        payload = link.recv(delivery.pending) or b""
        tag = engine.tag(delivery._impl)
        link.advance()
        return Received(bytes(payload), tag, delivery)

    def settle(self, link: Receiver, received: Received, outcome: int = Delivery.ACCEPTED) -> str | None:
        """Settle as the SDKs do, waiting for the server's word; the condition if it refuses."""
        delivery = received.delivery
        delivery.update(outcome)
        self.wait(lambda: delivery.settled or link.state & Endpoint.REMOTE_CLOSED, "the settlement's answer")
        condition = delivery.remote.condition
        refused = delivery.remote_state == Delivery.REJECTED and outcome != Delivery.REJECTED
        delivery.settle()
        return condition.name if refused and condition is not None else None

    # --- requests ----------------------------------------------------------------------------------------

    def put_token(self, entity: str) -> None:
        """Get the right to everything that this entity allows."""
        audience = f"sb://{self._bus.host}:{self._bus.port}/{entity}"
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
        reply = self.exchange("$cbs", Message(properties=properties, body=sas_token(self._bus, audience)))
        assert _properties(reply)["status-code"] == 202, _properties(reply)

    def request(self, entity: str, operation: str, body: dict[str, Any]) -> tuple[int, Any, str | None]:
        """Ask `$management`: status, body, condition."""
        reply = self.exchange(f"{entity}/$management", Message(properties={"operation": operation}, body=body))
        self.said = str(_properties(reply)["statusDescription"])
        condition = _properties(reply).get("errorCondition")
        return _properties(reply)["statusCode"], _owned(reply.body), None if condition is None else str(condition)

    def requests(self, entity: str, operation: str, bodies: list[dict[str, Any]]) -> Iterator[tuple[int, Any]]:
        """Ask all at once and then take the answers one by one, in order: status and body of each."""
        node = f"{entity}/$management"
        back = self._session.receiver(f"back-{uuid.uuid4()}")
        back.source.address = node
        back.target.address = f"reply-{uuid.uuid4()}"
        self._open(back)
        sender, ids = self.sender(node), []
        for body in bodies:
            ids.append(uuid.uuid4())
            message = Message(id=ids[-1], reply_to=back.target.address, properties={"operation": operation}, body=body)
            sender.delivery(str(ids[-1]))
            sender.stream(message.encode())
            sender.advance()
        for id in ids:
            received = self.receive(back)
            received.delivery.settle()
            reply = Message()
            reply.decode(received.payload)
            assert reply.correlation_id == id
            yield _properties(reply)["statusCode"], _owned(reply.body)

    def exchange(self, node: str, message: Message) -> Message:
        """Send a request to a node; return its reply."""
        if node not in self._nodes:
            back = self._session.receiver(f"back-{uuid.uuid4()}")
            back.source.address = node
            back.target.address = f"reply-{uuid.uuid4()}"
            self._open(back)
            back.flow(100)
            self._nodes[node] = (self.sender(node), back)
        sender, back = self._nodes[node]
        message.id = uuid.uuid4()
        message.reply_to = str(back.target.address)
        self.send(sender, message.encode())
        reply = Message()
        received = self.receive(back)
        received.delivery.settle()
        reply.decode(received.payload)
        assert reply.correlation_id == message.id
        return reply


def _owned(value: Any) -> Any:
    """A value without views into a message that is about to be freed."""
    if isinstance(value, dict):
        return {key: _owned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_owned(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def with_format(data: bytes, number: int) -> bytes:
    """Frames as Proton wrote them, each transfer given a message-format, which Proton cannot be told."""
    out, pos = [], 0
    while pos < len(data):
        size, offset, kind, channel = _FRAME.unpack_from(data, pos)
        frame, pos = data[pos : pos + size], pos + size
        body = frame[4 * offset :]
        if kind == 0 and body.startswith(_TRANSFER):
            at = 6  # behind the list's size and count
            for _ in range(3):
                at = skip(body, at)
            changed = body[6:at] + struct.pack(">BI", 0x70, number) + body[skip(body, at) :]
            grown = len(changed) + 6 - len(body)
            head = _TRANSFER + bytes((body[4] + grown, body[5]))
            frame = _FRAME.pack(size + grown, offset, kind, channel) + frame[8 : 4 * offset] + head + changed
        out.append(frame)
    return b"".join(out)


def sas_token(bus: LocalBus, audience: str) -> str:
    facts = dict(part.split("=", 1) for part in bus.connection_string.rstrip(";").split(";"))
    expiry, quoted = int(time.time()) + 300, quote_plus(audience)
    digest = hmac.new(facts["SharedAccessKey"].encode(), f"{quoted}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    name = facts["SharedAccessKeyName"]
    return f"SharedAccessSignature sr={quoted}&sig={signature}&se={expiry}&skn={name}"


def _properties(reply: Message) -> dict[str, Any]:
    """Return the application properties of a reply, which every reply has."""
    found: Any = reply.properties
    assert found is not None
    return dict(found)


def uuids(*values: uuid.UUID) -> Any:
    """An AMQP array of UUIDs."""
    from proton import UNDESCRIBED, Array

    array: Any = Array
    return array(UNDESCRIBED, Data.UUID, *values)


def longs(*values: int) -> Any:
    """An AMQP array of longs."""
    from proton import UNDESCRIBED, Array

    array: Any = Array
    return array(UNDESCRIBED, Data.LONG, *values)


def session_filter(name: str | None) -> dict[Any, Any]:
    return {symbol("com.microsoft:session-filter"): name}
