"""Messages as the SDK encodes them: the bytes that it would send, the caller's objects, and what a send is billed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.domain.cost import UNIT, operations_of

from .prepared_send import PreparedSend
from .tried_versions import private_names_of

with private_names_of("azure-servicebus"):
    from azure.servicebus._common.tracing import TraceAttributes, is_tracing_enabled, trace_message
    from azure.servicebus._common.utils import transform_outbound_messages
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    _USED = PyamqpTransport.encode_message, PyamqpTransport.to_outgoing_amqp_message

#: On a copy of a message: the caller's own object.
_ORIGINAL = "_pairbus_original"
#: Attributes of a tracer's span: the host and the entity that a message goes to.
SpanAttributes = dict[str, Any]


def is_many(message: Any) -> bool:
    """Return True if the SDK would take this as several messages: a batch, or another iterable."""
    if isinstance(message, (ServiceBusMessage, Mapping)):
        return False
    return isinstance(message, (ServiceBusMessageBatch, Iterable))


def members(message: Any) -> list[Any]:
    """Return the messages of a send, one by one: the caller's own objects, where `unshared` has made copies."""
    if type(message) is ServiceBusMessage:  # what most calls are
        return [getattr(message, _ORIGINAL, message)]
    if isinstance(message, PreparedSend):
        return message.members()
    return [getattr(each, _ORIGINAL, each) for each in single_messages(message)]


def single_messages(message: Any) -> list[Any]:
    """Return the messages of a send, one by one, as the SDK is given them."""
    if isinstance(message, ServiceBusMessageBatch):
        return list(message._messages)
    return list(message) if is_many(message) else [message]


def unshared(message: Any) -> Any:
    """Return a copy where the SDK or a tracer would change the caller's object; a dictionary becomes a message."""
    properties: Any
    twin: Any
    if not isinstance(message, ServiceBusMessage) and isinstance(message, Mapping):
        return _from_mapping(message)
    properties = getattr(message, "application_properties", None)
    if not properties or not hasattr(properties, "values"):
        return message  # none; or no mapping, which the SDK refuses
    has_bytes = any(isinstance(value, bytes) for value in properties.values())
    if not (has_bytes or is_tracing_enabled()):  # type: ignore[no-untyped-call]
        return message
    twin = copy.copy(message)
    if isinstance(twin, ServiceBusMessage):
        twin._raw_amqp_message = copy.copy(message._raw_amqp_message)
    twin.application_properties = dict(properties)
    setattr(twin, _ORIGINAL, message)
    return twin


def _from_mapping(message: Mapping[str, Any]) -> Any:
    """Return the message that the SDK makes of a dictionary; made again, it would have another message id."""
    properties = message.get("application_properties")
    try:
        twin = ServiceBusMessage(
            **{**message, "application_properties": dict(properties) if properties else properties}
        )
    except (TypeError, ValueError):
        return message  # the SDK refuses it
    setattr(twin, _ORIGINAL, message)
    return twin


def billed(message: Any) -> int:
    """Return the number of operations that a send is billed as, by the sizes of the bodies; nothing is encoded."""
    if isinstance(message, ServiceBusMessage):
        message = message._raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        body: Any = message._data_body
        if not body:
            return 1
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        return 1 if size <= UNIT else operations_of(size)
    if isinstance(message, ServiceBusMessageBatch):
        return sum(operations_of(len(each)) for each in message._message[5])
    if isinstance(message, PreparedSend):
        return message.billed()
    return sum(map(billed, message)) if is_many(message) else 1


def span_attributes(host: str, path: str) -> SpanAttributes:
    """Return the attributes with which the SDK traces a message to that entity."""
    return {
        TraceAttributes.TRACE_NET_PEER_NAME_ATTRIBUTE: host,
        TraceAttributes.TRACE_MESSAGING_DESTINATION_ATTRIBUTE: path,
    }


def encoded(message: Any, traced: SpanAttributes | None = None) -> bytes:
    """Return a message as the SDK would put it on the wire, with a trace if `traced` and there is a tracer."""
    return bytes(PyamqpTransport.encode_message(_outgoing(message, traced)))


def _outgoing(message: Any, traced: SpanAttributes | None) -> Any:
    """Return the message as the SDK's encoder takes it, with a trace if it is to have one."""
    made: Any
    (made,) = transform_outbound_messages(  # type: ignore[misc]
        [unshared(message)], ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message
    )
    if traced is not None and is_tracing_enabled():  # type: ignore[no-untyped-call]
        made._message = trace_message(made._message, PyamqpTransport, traced)  # type: ignore[arg-type]
    return made


def encoded_members(message: Any, traced: SpanAttributes | None = None) -> list[bytes]:
    """Return all messages of a send, encoded; a batch was traced when it was filled."""
    if type(message) is not ServiceBusMessage:
        if isinstance(message, ServiceBusMessageBatch):
            return [bytes(each) for each in message._message[5]]
        if isinstance(message, PreparedSend):
            return message.encoded()
        if is_many(message):
            return [encoded(each, traced) for each in message]
    outgoing = _outgoing(message, traced)
    try:
        return [bytes(PyamqpTransport.encode_message(outgoing))]
    except Exception as error:  # as the SDK raises it for a single message
        raise ServiceBusError(message=f"Handler failed: {error}.", error=error) from error
