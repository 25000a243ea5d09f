"""azure-eventhub's producer behind the interface of a Service Bus sender; imported only where it is needed.

It differs from azure-eventhub in three things: it sends copies, since the SDK changes events; `__enter__` opens one
link straight to its target, since the SDK opens links unbounded; and it keeps the AMQP error as `inner_exception`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient, TransportType
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import ClientClosedError, ConnectionLostError, EventHubError, OperationTimeoutError

from pairbus.domain.cost import operations_of
from pairbus.options import Namespace
from pairbus.runtime.credential import deadline_credential

from .clients import connection_options
from .connection_patches import patch_connection
from .prepared_send import PreparedSend
from .tried_versions import private_names_of

with private_names_of("azure-eventhub"):
    from azure.eventhub._constants import JWT_TOKEN_SCOPE
    from azure.eventhub._producer import EventHubProducer
    from azure.eventhub._pyamqp._encode import encode_payload
    from azure.eventhub._pyamqp.constants import LinkState
    from azure.eventhub._tracing import (
        TraceAttributes,
        get_span_link_from_message,
        get_span_links_from_batch,
        is_tracing_enabled,
        send_context_manager,
        trace_message,
    )
    from azure.eventhub._transport._pyamqp_transport import PyamqpTransport
    from azure.eventhub._utils import transform_outbound_single_message

    _USED = (
        EventDataBatch._load_events,
        EventHubProducer._create_handler,
        EventHubProducer._open_with_retry,
        EventHubProducer._send_event_data_with_retry,
        EventHubProducerClient._create_producer,
        PyamqpTransport.set_message_partition_key,
        PyamqpTransport.to_outgoing_amqp_message,
    )

#: The scope for which a credential of azure-identity is asked for a token.
TOKEN_SCOPE = JWT_TOKEN_SCOPE
#: The SDK's class of the error for a closed producer.
CLOSED_ERROR = ClientClosedError
#: Bytes of a batch whose limit is not known yet.
UNLIMITED = 2**31 - 1
#: The SDK's own text for a list that is too large.
_TOO_LARGE = (
    "The combined size of EventData or AmqpAnnotatedMessage collection exceeds the Event Hub frame size limit. "
    "Please send a smaller collection of EventData or use EventDataBatch, which is guaranteed to be under the "
    "frame size limit"
)


class HubSender:
    """A producer's link to an event hub, or to one partition of it, with those methods of a sender that are used."""

    def __init__(self, namespace: Namespace, hub: str, partition_id: str | None) -> None:
        self._client: Any = EventHubProducerClient(
            namespace.host,
            hub,
            deadline_credential(namespace.credential),
            # The SDK pauses after a try even if it was the last.
            retry_total=0,
            retry_backoff_factor=0,
            keep_alive=None,
            transport_type=TransportType.Amqp,
            **connection_options(namespace),
        )
        self._producer: Any = self._client._create_producer(partition_id)
        patch_connection(self._producer)

    @property
    def _handler(self) -> Any:
        """Return the AMQP client, which `abort` and `keep_alive` reach into."""
        return self._producer._handler

    @property
    def _running(self) -> bool:
        """Return True if the link was opened and not closed since; for `is_running`."""
        return bool(self._producer.running)

    def __enter__(self) -> HubSender:
        try:
            self._producer._open_with_retry()
        except EventHubError as error:
            _keep_inner(error)
            raise
        return self

    def create_message_batch(self) -> EventDataBatch:
        """Return an empty batch, whose limit is the largest size that the link takes."""
        return EventDataBatch(max_size_in_bytes=self._producer._max_message_size_on_link)

    def send_messages(self, message: PreparedEvents, *, timeout: float) -> None:
        """Send and wait for the answer; raise if the link is detached, and do not open it again."""
        producer = self._producer
        if not producer.running or producer._handler._link.state is not LinkState.ATTACHED:
            raise _without_inner(ConnectionLostError("The link is detached."))
        if message.size > producer._max_message_size_on_link:
            raise ValueError(_TOO_LARGE)
        producer._unsent_events = [message.outgoing]
        try:
            with send_context_manager(self._client, links=message.links()):
                producer._send_event_data_with_retry(timeout=timeout)
        except EventHubError as error:
            _keep_inner(error)
            raise

    @staticmethod
    def timeout_error(message: str) -> Exception:
        """Return the error for a call that has no answer in time."""
        return _without_inner(OperationTimeoutError(message))

    def close(self) -> None:
        self._producer.close()


def _keep_inner(error: EventHubError) -> None:
    """Keep the AMQP error behind one of the SDK's, before Python drops it."""
    error.inner_exception = error.__cause__ or error.__context__  # type: ignore[attr-defined]


def _without_inner(error: EventHubError) -> EventHubError:
    """Return an error of our own, marked so that the context which Python gives it does not count as its cause."""
    error.inner_exception = None  # type: ignore[attr-defined]
    return error


class PreparedEvents(PreparedSend):
    """The events of one call: as the SDK puts them on the wire, and the caller's objects that they came from."""

    def __init__(self, events: Sequence[Any], outgoing: Any, batch: EventDataBatch | None, size: int = 0) -> None:
        self.count = len(events)
        self.outgoing = outgoing
        #: Bytes that a link must take; 0 where the SDK leaves the check to the service.
        self.size = size
        self._events = list(events)
        self._batch = batch

    def members(self) -> list[Any]:
        return self._events

    def encoded(self) -> list[bytes]:
        if self._batch is not None:
            return [bytes(each) for each in self.outgoing[5]]
        output = bytearray()
        try:
            encode_payload(output, self.outgoing)
        except Exception as error:  # as the SDK raises it when it sends
            raise EventHubError(str(error), error) from error  # type: ignore[arg-type]
        return [bytes(output)]

    def billed(self) -> int:
        if self._batch is None:
            return operations_of(sum(map(len, self.outgoing[5] or ())))
        return sum(operations_of(len(each)) for each in self.outgoing[5])

    def rest(self, start: int) -> PreparedEvents:
        """Return the same send without its first `start` events."""
        if self._batch is None or not start:
            return self
        batch: Any = EventDataBatch(UNLIMITED, self._batch._partition_id, self._batch._partition_key)
        batch._message[5].extend(self.outgoing[5][start:])
        batch._internal_events = self._batch._internal_events[start:]
        batch._count = self.count - start
        return PreparedEvents(self._events[start:], batch._message, batch)

    def links(self) -> list[Any]:
        """Return the links of a tracer's span to the traces of the events."""
        if not is_tracing_enabled():  # type: ignore[no-untyped-call]
            return []
        if self._batch is not None:
            return get_span_links_from_batch(self._batch)
        link = get_span_link_from_message(self.outgoing)
        return [link] if link else []


def one_event(event: Any, host: str, hub: str, partition_key: Any) -> PreparedEvents:
    """Prepare a single event as the SDK's `send_event` does."""
    made: Any = transform_outbound_single_message(_twin(event), EventData, PyamqpTransport.to_outgoing_amqp_message)
    if partition_key:
        # This writes the annotations. The message that it returns has a header besides, which the SDK drops, too.
        PyamqpTransport.set_message_partition_key(made._message, partition_key)
    outgoing = trace_message(made._message, PyamqpTransport, _attributes(host, hub))  # type: ignore[arg-type]
    return PreparedEvents([event], outgoing, None)


def several_events(
    events: Sequence[Any], host: str, hub: str, partition_id: str | None, partition_key: Any, limit: int
) -> PreparedEvents:
    """Prepare a list of events as the SDK's `send_batch` does; raise ValueError if one batch cannot hold them."""
    batch: Any = new_batch(host, hub, partition_id, partition_key, limit)
    batch._load_events([_twin(each) for each in events])
    return PreparedEvents(events, batch._message, batch, batch.size_in_bytes)


def whole_batch(batch: EventDataBatch) -> PreparedEvents:
    """Prepare a batch that the caller has filled; it is sent as it is."""
    given: Any = batch
    return PreparedEvents(given._internal_events, given._message, batch)


def partition_of(batch: EventDataBatch) -> str | None:
    """Return the id of the partition that a caller's batch is for, if it is for one."""
    given: Any = batch
    found: str | None = given._partition_id
    return found


def events_of(events: Any) -> list[Any]:
    return list(getattr(events, "_internal_events", events))


def new_batch(host: str, hub: str, partition_id: str | None, partition_key: Any, limit: int) -> EventDataBatch:
    """Return an empty batch of at most so many bytes, traced as going to that hub."""
    return EventDataBatch(limit, partition_id, partition_key, tracing_attributes=_attributes(host, hub))


def _attributes(host: str, hub: str) -> dict[str, Any]:
    """Return the attributes with which the SDK traces an event to that hub."""
    return {
        TraceAttributes.TRACE_NET_PEER_NAME_ATTRIBUTE: host,
        TraceAttributes.TRACE_MESSAGING_DESTINATION_ATTRIBUTE: f"/{hub}",
    }


def _twin(event: Any) -> Any:
    """Return a copy with maps of its own; without annotations the SDK would lose a partition key."""
    raw = event.raw_amqp_message if isinstance(event, EventData) else event
    if not isinstance(raw, AmqpAnnotatedMessage):
        return event  # the SDK refuses it
    twin = _copy(raw)
    twin.annotations = dict(raw.annotations or {})
    if raw.application_properties is not None:
        twin.application_properties = dict(raw.application_properties)
    if raw is event:
        return twin
    wrapped = _copy(event)
    wrapped._raw_amqp_message = twin
    return wrapped


def _copy(given: Any) -> Any:
    """Return what `copy.copy` would, in a third of the time."""
    twin = object.__new__(type(given))
    twin.__dict__.update(given.__dict__)
    return twin
