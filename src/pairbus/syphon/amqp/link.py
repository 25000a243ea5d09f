"""Links of an AMQP connection. Messages come and go as encoded bytes, and a settlement is done once it is confirmed.

Proton is the engine without I/O. Events of single messages are calls, not futures: a drain has thousands of messages
in flight. The code that runs for each message uses Proton's C functions directly: their Python wrappers read delivery
tags as text, and a lock token is binary.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import cproton_ffi
from proton import _data as _proton_data
from proton import symbol

from .message_format import encode_batch

if TYPE_CHECKING:
    from .connection import Connection

ffi: Any = cproton_ffi.ffi
lib: Any = cproton_ffi.lib
_data: Any = _proton_data

ACCEPTED: int = lib.PN_ACCEPTED
REJECTED: int = lib.PN_REJECTED
RELEASED: int = lib.PN_RELEASED
MODIFIED: int = lib.PN_MODIFIED
#: The state of a delivery that was settled without an outcome.
NO_OUTCOME = 0
_OUTCOMES = {ACCEPTED: "accepted", REJECTED: "rejected", RELEASED: "released", MODIFIED: "modified"}

_DEAD_LETTER = b"com.microsoft:dead-letter"


class LinkError(Exception):
    """An error that the service reported, with its AMQP condition and description."""

    def __init__(self, condition: str | None, description: str | None) -> None:
        super().__init__(": ".join(filter(None, (condition, description))) or "no reason given")
        self.condition = condition
        self.description = description


class ConnectionLost(LinkError):
    """The host could not be reached, or the connection has ended."""


class SenderEvents(Protocol):
    """The callbacks of a sender."""

    def on_outcome(self, context: Any, state: int, error: LinkError | None) -> None:
        """Take the outcome of a message that was sent: an AMQP state or `NO_OUTCOME`, with an error unless accepted."""

    def on_credit(self) -> None:
        """Send more: there may be credit."""

    def on_closed(self, error: LinkError) -> None:
        """Take note that the peer has closed the link, or the connection has ended."""


class ReceiverEvents(Protocol):
    """The callbacks of a receiver."""

    def on_message(self, delivery: Any, message: bytes) -> Any:
        """Take a message; return the context that the other callbacks get for it."""

    def on_confirmed(self, context: Any, state: int, error: LinkError | None) -> None:
        """Take the answer to a settlement: the state that holds, with an error unless it is the requested one."""

    def on_drained(self, all_was_sent: bool) -> None:
        """Take the end of a drain; `all_was_sent` unless the service has used up the credit, and may have more."""

    def on_closed(self, error: LinkError) -> None:
        """Take note that the peer has closed the link, or the connection has ended."""


class Link:
    """A link in one direction: its opening, and its end."""

    _sends = False

    def __init__(self, connection: Connection, wrapper: Any, events: Any) -> None:
        self._connection = connection
        self._wrapper = wrapper
        self.pointer: Any = wrapper._impl
        self._events = events
        self._opened: asyncio.Future[None] = connection.loop.create_future()
        #: The reason why the link is closed.
        self.closed: LinkError | None = None

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message that the peer takes; 0 if it set no limit."""
        return int(lib.pn_link_remote_max_message_size(self.pointer))

    async def open(self) -> None:
        """Open the link; raises `LinkError` if the peer refuses it."""
        self._wrapper.open()
        self._connection.schedule_flush()
        await self._opened

    def on_remote_open(self) -> None:
        # A refused link is opened without a terminus, and closed with the reason in the next frame.
        terminus = (lib.pn_link_remote_target if self._sends else lib.pn_link_remote_source)(self.pointer)
        if lib.pn_terminus_get_type(terminus) != lib.PN_UNSPECIFIED and not self._opened.done():
            self._opened.set_result(None)

    def on_remote_close(self) -> None:
        condition = lib.pn_link_remote_condition(self.pointer)
        self.fail(error_of_condition(condition) or LinkError(None, "the link was closed"))
        self._wrapper.close()
        self._connection.schedule_flush()

    def fail(self, error: LinkError) -> None:
        """End the link: the peer has closed it, or the connection has ended."""
        if self.closed is None:
            self.closed = error
            if not self._opened.done():
                self._opened.set_exception(error)
                self._opened.exception()  # marks it as retrieved: the caller may have stopped waiting
            else:
                self._events.on_closed(error)

    def close(self) -> None:
        """Close the link from this side; its owner gets no callback."""
        if self.closed is None:
            self.closed = LinkError("amqp:link:closed", "closed by this side")
            self._connection.remove_link(self)
            self._wrapper.close()
            self._connection.schedule_flush()

    def on_flow(self) -> None: ...

    def on_delivery(self, delivery: Any) -> None: ...


class Sender(Link):
    """A link that sends encoded messages, and passes each outcome on with the context that came with the message."""

    _sends = True

    def __init__(self, connection: Connection, wrapper: Any, events: SenderEvents) -> None:
        super().__init__(connection, wrapper, events)
        #: Delivery -> context of everything without an outcome, the oldest first.
        self._unanswered: dict[Any, Any] = {}
        self._count = 0

    @property
    def credit(self) -> int:
        """The number of messages that may be sent now."""
        if not self._connection.writable or self.closed is not None:
            return 0
        return int(lib.pn_link_credit(self.pointer))

    def send(self, message: bytes, context: Any) -> None:
        self._count += 1
        self._transfer(self._count.to_bytes(4, "big"), message, context)

    def send_batch(self, head: bytes, messages: list[bytes], context: Any) -> None:
        """Send several messages as one: the service accepts all of them, in this order, or none."""
        self._count += 1
        self._transfer(self._connection.batch_format.tag(self._count), encode_batch(head, messages), context)

    def _transfer(self, tag: bytes, message: bytes, context: Any) -> None:
        pointer = self.pointer
        self._unanswered[lib.pn_delivery(pointer, (len(tag), ffi.from_buffer(tag)))] = context
        lib.pn_link_send(pointer, message, len(message))
        lib.pn_link_advance(pointer)
        self._connection.schedule_flush()

    def on_flow(self) -> None:
        self._events.on_credit()

    def on_delivery(self, delivery: Any) -> None:
        state = lib.pn_delivery_remote_state(delivery)
        if state not in _OUTCOMES:
            if not lib.pn_delivery_settled(delivery):
                return  # a state on the way to the outcome
            state = NO_OUTCOME
        context = self._unanswered.pop(delivery, None)
        error = None if state == ACCEPTED else _error_of_outcome(delivery)
        lib.pn_delivery_settle(delivery)
        if context is not None:
            self._events.on_outcome(context, state, error)

    def loop_time(self) -> float:
        return self._connection.loop.time()

    def oldest_unanswered(self) -> Any:
        """Return the context that has waited longest for an outcome, or None."""
        return next(iter(self._unanswered.values()), None)

    def abandon_unanswered(self) -> list[Any]:
        """Return the contexts of everything without an outcome. Their outcomes are ignored from now on."""
        contexts = list(self._unanswered.values())
        self._unanswered.clear()
        return contexts


class Receiver(Link):
    """A link that receives encoded messages in peek-lock mode, and confirms their settlements."""

    def __init__(self, connection: Connection, wrapper: Any, events: ReceiverEvents) -> None:
        super().__init__(connection, wrapper, events)
        #: Delivery -> context of every message whose settlement is not confirmed.
        self._unsettled: dict[Any, Any] = {}
        self._buffer = bytearray(1 << 17)
        self._view = ffi.from_buffer(self._buffer)
        self._draining = False

    @property
    def credit(self) -> int:
        """The number of messages that the service may still send."""
        return int(lib.pn_link_credit(self.pointer))

    def allow(self, more: int) -> None:
        self._draining = False
        lib.pn_link_flow(self.pointer, more)
        self._connection.schedule_flush()

    def drain(self) -> None:
        """Ask the service to use its credit now, and to return the rest. `on_drained` follows."""
        self._draining = True
        lib.pn_link_drained(self.pointer)  # resets the count of returned credit
        lib.pn_link_drain(self.pointer, 0)
        self._connection.schedule_flush()

    def complete(self, delivery: Any) -> None:
        """Settle a message: the service deletes it."""
        lib.pn_delivery_update(delivery, ACCEPTED)
        self._connection.schedule_flush()

    def abandon(self, delivery: Any) -> None:
        """Give a message back; the service adds one to its delivery count."""
        lib.pn_disposition_set_failed(lib.pn_delivery_local(delivery), True)
        lib.pn_delivery_update(delivery, MODIFIED)
        self._connection.schedule_flush()

    def dead_letter(self, delivery: Any, reason: str, description: str) -> None:
        """Settle a message: the service moves it to the dead-letter queue."""
        condition = lib.pn_disposition_condition(lib.pn_delivery_local(delivery))
        lib.pn_condition_set_name(condition, _DEAD_LETTER)
        info = lib.pn_condition_info(condition)
        lib.pn_data_clear(info)
        fields = {symbol("DeadLetterReason"): reason, symbol("DeadLetterErrorDescription"): description}
        _data.obj2dat(fields, info)
        lib.pn_delivery_update(delivery, REJECTED)
        self._connection.schedule_flush()

    def on_flow(self) -> None:
        if self._draining and not lib.pn_link_credit(self.pointer):
            self._draining = False
            # If no credit was returned, the service has used it up and may have more.
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
            received = max(lib.pn_link_recv(self.pointer, self._view, size), 0)
            message = ffi.buffer(self._view, received)[:]
            lib.pn_link_advance(self.pointer)
            self._unsettled[delivery] = self._events.on_message(delivery, message)
            self.on_flow()  # a service that drains its last credit with this message sends no flow frame
        elif delivery in self._unsettled:
            if not lib.pn_delivery_settled(delivery) or not lib.pn_delivery_local_state(delivery):
                return  # the service has settled a message that was not settled here: keep it, it may be in flight
            context = self._unsettled.pop(delivery)
            state = lib.pn_delivery_remote_state(delivery)
            wanted = lib.pn_delivery_local_state(delivery)
            error = (
                None if state == ACCEPTED or (state == wanted and state != REJECTED) else _error_of_outcome(delivery)
            )
            if error is not None and state == REJECTED == wanted and error.condition is None:
                error = None  # dead-lettered, as requested
            lib.pn_delivery_settle(delivery)
            self._events.on_confirmed(context, state, error)
        elif lib.pn_delivery_settled(delivery):
            lib.pn_delivery_settle(delivery)

    def unsettled(self) -> list[Any]:
        """Return the contexts of the messages whose settlement is not confirmed."""
        return list(self._unsettled.values())


def error_of_condition(condition: Any) -> LinkError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    return LinkError(_text(lib.pn_condition_get_name(condition)), _text(lib.pn_condition_get_description(condition)))


def _error_of_outcome(delivery: Any) -> LinkError:
    remote = lib.pn_delivery_remote(delivery)
    is_rejected = lib.pn_disposition_type(remote) == REJECTED
    error = error_of_condition(lib.pn_disposition_condition(remote)) if is_rejected else None
    return error or LinkError(None, f"the outcome was {_OUTCOMES.get(lib.pn_delivery_remote_state(delivery), 'none')}")


def _text(pointer: Any) -> str | None:
    return None if pointer == ffi.NULL else bytes(ffi.string(pointer)).decode(errors="replace")
