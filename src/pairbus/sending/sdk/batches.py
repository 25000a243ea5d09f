"""Batches that are made without a link: of encoded messages, or empty for a caller to fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from .encoding import SpanAttributes
from .tried_versions import private_names_of

with private_names_of("azure-servicebus"):
    from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

    _USED = PyamqpTransport.build_batch_message, PyamqpTransport.set_batch_envelope_properties

#: Bytes that a batch takes beyond its messages, and a message in it beyond itself: never less than the SDK reckons.
BATCH_OVERHEAD, MESSAGE_OVERHEAD = 64, 8
#: Bytes that every entity takes at least; used until a link is open, which knows the entity's own limit.
STANDARD_LIMIT = 256 * 1024
#: Bytes that no batch may exceed, however large single messages may be.
PREMIUM_BATCH_LIMIT = 1024 * 1024


def raw_batch(messages: Sequence[bytes], objects: Sequence[Any] = ()) -> ServiceBusMessageBatch:
    """Return encoded messages as a batch to send; of `objects`, the first gives it id, session and partition key."""
    batch = _RawBatch(messages)
    # A tracer stumbles over objects of other classes.
    batch._messages = [each for each in objects if isinstance(each, ServiceBusMessage)]
    if objects:
        first = objects[0]
        if isinstance(first, AmqpAnnotatedMessage):
            first = ServiceBusMessage(None, message=first, raw_amqp_message=first)
        PyamqpTransport.set_batch_envelope_properties(
            batch._message, first.message_id, first.session_id, first.partition_key
        )
    return batch


class _RawBatch(ServiceBusMessageBatch):
    """A batch of messages that are encoded already. It does not count bytes: its maker has done so."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._amqp_transport = PyamqpTransport
        self._tracing_attributes = {}
        self._max_size_in_bytes = 2**31
        self._message = PyamqpTransport.build_batch_message(list(messages))
        self._size = 0
        self._count = len(messages)
        self._messages = []
        self._uamqp_message = None


def empty_batch(limit: int, traced: SpanAttributes | None = None) -> ServiceBusMessageBatch:
    """Return a batch of at most so many bytes for a caller to fill; no link is needed."""
    return ServiceBusMessageBatch(max_size_in_bytes=limit, tracing_attributes=traced or {})
