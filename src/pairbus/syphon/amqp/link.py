"""Links of an AMQP connection: messages come and go as the bytes they are, and a settlement counts when answered.

Proton is the engine without I/O. What happens to single messages is told by calls, not by futures: a drain has
thousands of them in flight. The hot path uses Proton's C functions directly; their Python wrappers read delivery tags
as text, which a lock token is not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import cproton_ffi
from proton import _data as _proton_data
from proton import symbol

from pairbus.domain.amqp.codec import encode
from pairbus.domain.amqp.sections import GROUP_ID, PROPERTIES, section

if TYPE_CHECKING:
    from .connection import Connection

ffi: Any = cproton_ffi.ffi
lib: Any = cproton_ffi.lib
_data: Any = _proton_data

ACCEPTED: int = lib.PN_ACCEPTED
REJECTED: int = lib.PN_REJECTED
RELEASED: int = lib.PN_RELEASED
MODIFIED: int = lib.PN_MODIFIED

_DEAD_LETTER = b"com.microsoft:dead-letter"


class LinkError(Exception):
    """The service refused or ended something: its AMQP condition, and what it said."""

    def __init__(self, condition: str | None, description: str | None) -> None:
        super().__init__(": ".join(filter(None, (condition, description))) or "no reason given")
        self.condition = condition
        self.description = description


class ConnectionLost(LinkError):
    """Nothing can be heard from the host, or nothing more."""


class SenderEvents(Protocol):
    """What a sender tells its owner."""

    def on_outcome(self, context: Any, state: int, error: LinkError | None) -> None: ...
    def on_credit(self) -> None: ...
    def on_closed(self, error: LinkError) -> None: ...


class ReceiverEvents(Protocol):
    """What a receiver tells its owner; `on_message` gives back what stands for the message from then on."""

    def on_message(self, delivery: Any, message: bytes) -> Any: ...
    def on_confirmed(self, context: Any, state: int, error: LinkError | None) -> None: ...
    def on_drained(self, all_was_sent: bool) -> None: ...
    def on_closed(self, error: LinkError) -> None: ...


class Link:
    """What senders and receivers share: being opened, and being closed by the other side."""

    def __init__(self, connection: Connection, wrapper: Any, events: Any) -> None:
        self._connection = connection
        self._wrapper = wrapper
        self.pointer: Any = wrapper._impl
        self._events = events
        self._opened: asyncio.Future[None] = connection.loop.create_future()
        self.closed: LinkError | None = None

    @property
    def most_bytes(self) -> int:
        """The largest message that the other side takes; 0 if it did not say."""
        return int(lib.pn_link_remote_max_message_size(self.pointer))

    async def opened(self) -> None:
        await self._opened

    def remote_opened(self) -> None:
        # A refusal is an answer without a terminus, and the reason follows it.
        terminus = (lib.pn_link_remote_target if self._sends else lib.pn_link_remote_source)(self.pointer)
        if lib.pn_terminus_get_type(terminus) != lib.PN_UNSPECIFIED and not self._opened.done():
            self._opened.set_result(None)

    _sends = False

    def end(self, error: LinkError) -> None:
        """The other side has closed it, or the connection is gone."""
        if self.closed is None:
            self.closed = error
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # whoever waits gets it; nobody may
            else:
                self._ended(error)

    def _ended(self, error: LinkError) -> None:
        if self._events is not None:
            self._events.on_closed(error)

    def close(self) -> None:
        if self.closed is None:
            self.closed = LinkError("amqp:link:closed", "closed by this side")
            self._connection.forget(self)
            self._wrapper.close()
            self._connection.wants_output()

    def on_flow(self) -> None: ...

    def on_delivery(self, delivery: Any) -> None: ...


class Sender(Link):
    """Sends encoded messages; each outcome is told with the context that was given."""

    _sends = True

    def __init__(self, connection: Connection, wrapper: Any, events: Any) -> None:
        super().__init__(connection, wrapper, events)
        self._pending: dict[Any, Any] = {}
        self._sent = 0

    @property
    def credit(self) -> int:
        """How many messages may be sent now."""
        if not self._connection.writable or self.closed is not None:
            return 0
        return int(lib.pn_link_credit(self.pointer))

    def send(self, message: bytes, context: Any) -> None:
        """Send one message."""
        self._sent += 1
        self._put(self._sent.to_bytes(4, "big"), message, context)

    def send_batch(self, head: bytes, messages: list[bytes], context: Any) -> None:
        """Send several messages as one: the service takes all of them, in this order, or none."""
        self._sent += 1
        self._connection.has_batches = True
        whole = head + b"".join([_data_section(each) for each in messages])
        self._put(self._connection.batch_mark + self._sent.to_bytes(4, "big"), whole, context)

    def _put(self, tag: bytes, message: bytes, context: Any) -> None:
        pointer = self.pointer
        self._pending[lib.pn_delivery(pointer, (len(tag), ffi.from_buffer(tag)))] = context
        lib.pn_link_send(pointer, message, len(message))
        lib.pn_link_advance(pointer)
        self._connection.wants_output()

    def on_flow(self) -> None:
        self._events.on_credit()

    def on_delivery(self, delivery: Any) -> None:
        state = lib.pn_delivery_remote_state(delivery)
        if state not in _OUTCOMES:
            if not lib.pn_delivery_settled(delivery):
                return  # under way
            state = 0  # nobody says what became of it
        context = self._pending.pop(delivery, None)
        error = None if state == ACCEPTED else _error_of(delivery)
        lib.pn_delivery_settle(delivery)
        if context is not None:
            self._events.on_outcome(context, state, error)

    def loop_time(self) -> float:
        return self._connection.loop.time()

    def oldest_unanswered(self) -> Any:
        """The context of what was sent first of all that is not answered."""
        return next(iter(self._pending.values()), None)

    def abandon_unanswered(self) -> list[Any]:
        """The contexts of what was sent and not answered; nothing of it is told any more."""
        contexts = list(self._pending.values())
        self._pending.clear()
        return contexts


class Receiver(Link):
    """Receives encoded messages, and settles them so that the answer to it is heard."""

    def __init__(self, connection: Connection, wrapper: Any, events: Any) -> None:
        super().__init__(connection, wrapper, events)
        self._unsettled: dict[Any, Any] = {}
        self._buffer = bytearray(1 << 17)
        self._view = ffi.from_buffer(self._buffer)
        self._draining = False

    @property
    def credit(self) -> int:
        """How many messages the service may still send."""
        return int(lib.pn_link_credit(self.pointer))

    def allow(self, more: int) -> None:
        """Let the service send so many more."""
        self._draining = False
        lib.pn_link_flow(self.pointer, more)
        self._connection.wants_output()

    def drain(self) -> None:
        """Ask the service to send what it has within the credit, and to take the rest of the credit back."""
        self._draining = True
        lib.pn_link_drained(self.pointer)  # begins to count what is taken back
        lib.pn_link_drain(self.pointer, 0)
        self._connection.wants_output()

    def complete(self, delivery: Any) -> None:
        lib.pn_delivery_update(delivery, ACCEPTED)
        self._connection.wants_output()

    def abandon(self, delivery: Any) -> None:
        """Give it back; the service counts one more delivery."""
        lib.pn_disposition_set_failed(lib.pn_delivery_local(delivery), True)
        lib.pn_delivery_update(delivery, MODIFIED)
        self._connection.wants_output()

    def dead_letter(self, delivery: Any, reason: str, description: str) -> None:
        condition = lib.pn_disposition_condition(lib.pn_delivery_local(delivery))
        lib.pn_condition_set_name(condition, _DEAD_LETTER)
        info = lib.pn_condition_info(condition)
        lib.pn_data_clear(info)
        said = {symbol("DeadLetterReason"): reason, symbol("DeadLetterErrorDescription"): description}
        _data.obj2dat(said, info)
        lib.pn_delivery_update(delivery, REJECTED)
        self._connection.wants_output()

    def on_flow(self) -> None:
        if self._draining and not lib.pn_link_credit(self.pointer):
            self._draining = False
            # A service that has used the credit up may have more.
            self._events.on_drained(lib.pn_link_drained(self.pointer) > 0)

    def on_delivery(self, delivery: Any) -> None:
        if lib.pn_delivery_readable(delivery):
            if lib.pn_delivery_aborted(delivery):
                lib.pn_link_advance(self.pointer)
                lib.pn_delivery_settle(delivery)
                return
            if lib.pn_delivery_partial(delivery):
                return
            size = lib.pn_delivery_pending(delivery)
            if size > len(self._buffer):
                self._buffer = bytearray(size)
                self._view = ffi.from_buffer(self._buffer)
            got = max(lib.pn_link_recv(self.pointer, self._view, size), 0)
            message = ffi.buffer(self._view, got)[:]
            lib.pn_link_advance(self.pointer)
            self._unsettled[delivery] = self._events.on_message(delivery, message)
            self.on_flow()  # with the last of its credit a service that drains it need not say that it is done
        elif delivery in self._unsettled:
            if not lib.pn_delivery_settled(delivery) or not lib.pn_delivery_local_state(delivery):
                return  # one that nobody has settled here may still be wanted: it is not let go of
            context = self._unsettled.pop(delivery)
            state = lib.pn_delivery_remote_state(delivery)
            wanted = lib.pn_delivery_local_state(delivery)
            error = None if state == ACCEPTED or (state == wanted and state != REJECTED) else _error_of(delivery)
            if error is not None and state == REJECTED == wanted and error.condition is None:
                error = None  # dead-lettered, as it was asked for
            lib.pn_delivery_settle(delivery)
            self._events.on_confirmed(context, state, error)
        elif lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)

    def unsettled(self) -> list[Any]:
        """The contexts of what was received and is not settled for good."""
        return list(self._unsettled.values())


def batch_head(session: str) -> bytes:
    """What stands before the messages of a batch: the service looks there for the session, to find its partition."""
    fields = b"\x40" * GROUP_ID + encode(session)
    if len(fields) < 255:
        return section(PROPERTIES, bytes((0xC0, len(fields) + 1, GROUP_ID + 1)) + fields)
    return section(PROPERTIES, b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + bytes((0, 0, 0, GROUP_ID + 1)) + fields)


def _data_section(message: bytes) -> bytes:
    size = len(message)
    head = b"\x00\x53\x75\xa0" + bytes((size,)) if size < 256 else b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")
    return head + message


def condition_of(condition: Any) -> LinkError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    return LinkError(_text(lib.pn_condition_get_name(condition)), _text(lib.pn_condition_get_description(condition)))


def _error_of(delivery: Any) -> LinkError:
    remote = lib.pn_delivery_remote(delivery)
    found = condition_of(lib.pn_disposition_condition(remote)) if lib.pn_disposition_type(remote) == REJECTED else None
    return found or LinkError(None, f"the outcome was {_OUTCOMES.get(lib.pn_delivery_remote_state(delivery), 'none')}")


_OUTCOMES = {ACCEPTED: "accepted", REJECTED: "rejected", RELEASED: "released", MODIFIED: "modified"}


def _text(pointer: Any) -> str | None:
    return None if pointer == ffi.NULL else bytes(ffi.string(pointer)).decode(errors="replace")
