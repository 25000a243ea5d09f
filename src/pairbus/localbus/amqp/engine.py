"""Proton as an AMQP engine without I/O: received bytes in, events and bytes to send out.

The hot path calls Proton's C functions (`cproton_ffi`): its Python wrappers keep a dictionary per object, and read
delivery tags as UTF-8, which a lock token is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cproton_ffi
from proton import SASL as Sasl
from proton import Connection, Described, Transport, symbol, ulong
from proton import _data as _proton_data

from pairbus.domain.amqp import codec as values
from pairbus.localbus.bus_errors import BusError

_data: Any = _proton_data
ffi: Any = cproton_ffi.ffi
lib: Any = cproton_ffi.lib

IDLE_TIMEOUT_SECONDS = 240
CHANNEL_MAX = 4999  # as the service has it: several SDKs open a session for every link

ACCEPTED = lib.PN_ACCEPTED
REJECTED = lib.PN_REJECTED
RELEASED = lib.PN_RELEASED
MODIFIED = lib.PN_MODIFIED


class Engine:
    """The server's side of one AMQP connection."""

    def __init__(self, container: str, max_frame: int) -> None:
        self._connection = Connection()
        self._connection.container = container
        self._collector = lib.pn_collector()
        self.connection = self._connection._impl
        lib.pn_connection_collect(self.connection, self._collector)
        self._wrapper = Transport(Transport.SERVER)
        self._wrapper.max_frame_size = max_frame
        self._wrapper.channel_max = CHANNEL_MAX
        self._wrapper.idle_timeout = IDLE_TIMEOUT_SECONDS
        sasl: Sasl = self._wrapper.sasl()
        sasl.allowed_mechs("ANONYMOUS EXTERNAL")
        self._wrapper.require_auth(False)
        self.transport = self._wrapper._impl
        self._wrapper.bind(self._connection)
        self.closed = False

    def push(self, data: bytes) -> None:
        """Give Proton received bytes, which it makes events of."""
        view = memoryview(data)
        while view:
            room = lib.pn_transport_capacity(self.transport)
            if room <= 0:
                return  # Proton takes no more input; the error is among the events
            piece = view[:room]
            taken = lib.pn_transport_push(self.transport, ffi.from_buffer(piece), len(piece))
            if taken <= 0:
                return
            view = view[taken:]

    def events(self) -> Iterator[tuple[int, Any]]:
        """Yield the type and the pointer of each event; a pointer is valid until the next one is taken."""
        collector = self._collector
        while True:
            event = lib.pn_collector_peek(collector)
            if event == ffi.NULL:
                return
            yield lib.pn_event_type(event), event
            lib.pn_collector_pop(collector)

    def output(self) -> bytes:
        transport = self.transport
        pieces = []
        while True:
            pending = lib.pn_transport_pending(transport)
            if pending <= 0:
                break
            buffer = bytearray(pending)
            got = lib.pn_transport_peek(transport, ffi.from_buffer(buffer), pending)
            pieces.append(bytes(buffer[:got]) if got != pending else bytes(buffer))
            lib.pn_transport_pop(transport, got)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def is_finished(self) -> bool:
        return bool(lib.pn_transport_pending(self.transport) < 0)

    def close_input(self) -> None:
        """Let Proton know that the client sends nothing more."""
        lib.pn_transport_close_tail(self.transport)

    def tick(self, milliseconds: int) -> None:
        """Let Proton enforce idle time-outs: it sends keep-alive frames, and closes a dead connection."""
        lib.pn_transport_tick(self.transport, milliseconds)

    def close(self, error: BusError | None = None) -> None:
        if error is not None:
            set_condition(lib.pn_connection_condition(self.connection), error)
        lib.pn_connection_close(self.connection)

    def free(self) -> None:
        """Free the connection; no pointer of it may be used afterwards."""
        if not self.closed:
            self.closed = True
            lib.pn_collector_release(self._collector)
            self._wrapper.unbind()
            lib.pn_collector_free(self._collector)
            del self._wrapper, self._connection


def set_condition(condition: Any, error: BusError) -> None:
    """Write an error into a Proton condition, always with all three fields: the SDKs rely on them."""
    lib.pn_condition_set_name(condition, error.condition.encode())
    lib.pn_condition_set_description(condition, error.description.encode())
    info = lib.pn_condition_info(condition)
    lib.pn_data_clear(info)
    _data.obj2dat({symbol("com.microsoft:localbus"): True}, info)


def text(pointer: Any) -> str | None:
    return None if pointer == ffi.NULL else bytes(ffi.string(pointer)).decode(errors="replace")


def address(terminus: Any) -> str | None:
    return text(lib.pn_terminus_get_address(terminus))


def receive(link: Any, size: int) -> bytes:
    """Return the pending bytes of a link's current delivery."""
    buffer = bytearray(size)
    got = lib.pn_link_recv(link, ffi.from_buffer(buffer), size)
    return bytes(buffer) if got == size else bytes(buffer[: max(got, 0)])


def tag(delivery: Any) -> bytes:
    found = lib.pn_delivery_tag(delivery)
    return bytes(ffi.buffer(found.start, found.size))


def send(link: Any, name: bytes, message: bytes, *, settled: bool = False) -> Any:
    """Send one message on a link with the next output; return its delivery."""
    delivery = lib.pn_delivery(link, (len(name), ffi.from_buffer(name)))
    lib.pn_link_send(link, message, len(message))
    if settled:
        lib.pn_delivery_settle(delivery)
    lib.pn_link_advance(link)
    return delivery


def settle(delivery: Any, outcome: int, error: BusError | None = None) -> None:
    if error is not None:
        set_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), error)
    lib.pn_delivery_update(delivery, outcome)
    lib.pn_delivery_settle(delivery)


def read(data: Any) -> Any:
    """Return a Proton data object as values of `pairbus.domain.amqp.codec`; raise AmqpDecodeError if it is invalid."""
    try:
        return _to_codec(_data.dat2obj(data))
    except Exception as error:  # Proton's decoder raises exceptions of many types
        raise values.AmqpDecodeError(f"unreadable data: {error}") from None


def write(data: Any, value: Any) -> None:
    lib.pn_data_clear(data)
    _data.obj2dat(value, data)


def _to_codec(value: Any) -> Any:
    if isinstance(value, Described):
        return values.Described(_to_codec(value.descriptor), _to_codec(value.value))
    if isinstance(value, dict):
        return {_to_codec(key): _to_codec(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_codec(each) for each in value]
    convert = _TYPES.get(type(value).__name__)
    if isinstance(value, memoryview):
        return bytes(value)
    return value if convert is None else convert(value)


#: Name of Proton's type (a subclass of Python's) -> the codec's type.
_TYPES: dict[str, Any] = {
    "symbol": values.Symbol,
    "char": values.Char,
    "ubyte": values.UByte,
    "ushort": values.UShort,
    "uint": values.UInt,
    "ulong": values.ULong,
    "byte": values.Byte,
    "short": values.Short,
    "int32": int,
    "int": values.Long,
    "timestamp": values.Timestamp,
    "float32": values.Float,
}

__all__ = [
    "ACCEPTED", "MODIFIED", "REJECTED", "RELEASED", "Described", "Engine", "address", "ffi", "lib", "read", "receive",
    "send", "set_condition", "settle", "symbol", "tag", "text", "ulong", "write",
]  # fmt: skip
