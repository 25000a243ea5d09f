"""Everything that pairbus must know of azure-eventhub beyond its documented surface; imported only where it is needed.

Its producer is made to look like a sender of Service Bus's SDK, so that lanes, guard and health need not know which of
the two they serve. Three things about it are not as one would wish, and are mended here:

- it changes the events that it is given (annotations, tracing properties): it is given copies;
- it opens links of its own accord and without a bound, and asks the service for all partitions before it sends to one:
  here a link is opened once, by `__enter__`, straight to where it leads;
- it leaves the AMQP error behind one of its own to Python, which forgets it when the error is raised again elsewhere:
  it is kept as `inner_exception`, where Service Bus's SDK has it.

`tests/integration/sending/test_hubs.py` pins what is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient, TransportType
from azure.eventhub._constants import JWT_TOKEN_SCOPE
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
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import (
    ClientClosedError,
    ConnectionLostError,
    EventHubError,
    OperationTimeoutError,
)

from pairbus.domain.cost import operations_of
from pairbus.options import Namespace
from pairbus.runtime.credential import deadline_credential

from .prepared import Prepared
from .service_bus import mend, port_of

#: What a credential is asked to give a token for.
TOKEN_SCOPE = JWT_TOKEN_SCOPE
#: For a batch that nobody has said a limit for.
UNLIMITED = 2**31 - 1
#: What the SDK says of a list that is too large.
_TOO_LARGE = (
    "The combined size of EventData or AmqpAnnotatedMessage collection exceeds the Event Hub frame size limit. "
    "Please send a smaller collection of EventData or use EventDataBatch, which is guaranteed to be under the "
    "frame size limit"
)


# --- links -------------------------------------------------------------------------------------------------------


class HubSender:
    """A producer's link to an event hub, or to one partition of it, with what a lane uses of a sender."""

    def __init__(self, namespace: Namespace, hub: str, partition_id: str | None) -> None:
        options: dict[str, Any] = {
            # The SDK pauses after a try even if it was the last.
            "retry_total": 0,
            "retry_backoff_factor": 0,
            "keep_alive": None,
            "use_tls": namespace.use_tls,
        }
        if namespace.ca_file is not None:
            options["connection_verify"] = str(namespace.ca_file)
        if namespace.use_tls and port_of(namespace.host) is not None:
            # Over TLS the SDK dials 5671 whatever the host says, unless it is told so here.
            options |= {"custom_endpoint_address": f"sb://{namespace.host}", "transport_type": TransportType.Amqp}
        self._client: Any = EventHubProducerClient(
            namespace.host, hub, deadline_credential(namespace.credential), **options
        )
        self._producer: Any = self._client._create_producer(partition_id)
        mend(self._producer)

    @property
    def _handler(self) -> Any:
        """The AMQP client, which `sdk.shut` and `sdk.tend` reach into."""
        return self._producer._handler

    @property
    def _running(self) -> bool:
        """Whether the link was opened and not closed since, for `sdk.is_running`."""
        return bool(self._producer.running)

    def __enter__(self) -> HubSender:
        try:
            self._producer._open_with_retry()
        except EventHubError as error:
            _keep_inner(error)
            raise
        return self

    def create_message_batch(self) -> EventDataBatch:
        """An empty batch; what is asked of it is the largest size that the link takes."""
        return EventDataBatch(max_size_in_bytes=self._producer._max_message_size_on_link)

    def send_messages(self, message: Outgoing, *, timeout: float) -> None:
        """Send and wait for the answer; a link that is gone is an error and not opened again."""
        producer = self._producer
        if not producer.running or producer._handler._link.state is not LinkState.ATTACHED:
            raise _said_here(ConnectionLostError("The link is detached."))
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
        """What a lane raises when there is no answer in time."""
        return _said_here(OperationTimeoutError(message))

    def close(self) -> None:
        self._producer.close()


def _keep_inner(error: EventHubError) -> None:
    error.inner_exception = error.__cause__ or error.__context__  # type: ignore[attr-defined]


def _said_here(error: EventHubError) -> EventHubError:
    """An error of our own: whatever Python takes for its context is not behind it."""
    error.inner_exception = None  # type: ignore[attr-defined]
    return error


# --- events ------------------------------------------------------------------------------------------------------


class Outgoing(Prepared):
    """What one call sends: as the SDK puts it on the wire, and the caller's events that it came from."""

    def __init__(self, events: Sequence[Any], outgoing: Any, batch: EventDataBatch | None, size: int = 0) -> None:
        self.count = len(events)
        self.outgoing = outgoing
        #: What a link must take; 0 where the SDK leaves it to the service.
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
        except Exception as error:  # the SDK gives its own class to this when it sends
            raise EventHubError(str(error), error) from error  # type: ignore[arg-type]
        return [bytes(output)]

    def billed(self) -> int:
        if self._batch is None:
            return operations_of(sum(map(len, self.outgoing[5] or ())))
        return sum(operations_of(len(each)) for each in self.outgoing[5])

    def rest(self, start: int) -> Outgoing:
        """The same without the first events."""
        if self._batch is None or not start:
            return self
        batch: Any = EventDataBatch(UNLIMITED, self._batch._partition_id, self._batch._partition_key)
        batch._message[5].extend(self.outgoing[5][start:])
        batch._internal_events = self._batch._internal_events[start:]
        batch._count = self.count - start
        return Outgoing(self._events[start:], batch._message, batch)

    def links(self) -> list[Any]:
        """What a tracer's span links this send to."""
        if not is_tracing_enabled():  # type: ignore[no-untyped-call]
            return []
        if self._batch is not None:
            return get_span_links_from_batch(self._batch)
        link = get_span_link_from_message(self.outgoing)
        return [link] if link else []


def one_event(event: Any, host: str, hub: str, partition_key: Any) -> Outgoing:
    """A single event, made ready as the SDK's `send_event` does."""
    made: Any = transform_outbound_single_message(_twin(event), EventData, PyamqpTransport.to_outgoing_amqp_message)
    if partition_key:
        # It is in the annotations then. The message that this returns has a header besides, which the SDK forgets.
        PyamqpTransport.set_message_partition_key(made._message, partition_key)
    outgoing = trace_message(made._message, PyamqpTransport, _attributes(host, hub))  # type: ignore[arg-type]
    return Outgoing([event], outgoing, None)


def several_events(
    events: Sequence[Any], host: str, hub: str, partition_id: str | None, partition_key: Any, limit: int
) -> Outgoing:
    """A list of events, made ready as the SDK's `send_batch` does; too many of them for one batch are refused."""
    batch: Any = new_batch(host, hub, partition_id, partition_key, limit)
    batch._load_events([_twin(each) for each in events])
    return Outgoing(events, batch._message, batch, batch.size_in_bytes)


def whole_batch(batch: EventDataBatch) -> Outgoing:
    """A batch that the caller has filled: it is sent as it is."""
    given: Any = batch
    return Outgoing(given._internal_events, given._message, batch)


def new_batch(host: str, hub: str, partition_id: str | None, partition_key: Any, limit: int) -> EventDataBatch:
    return EventDataBatch(limit, partition_id, partition_key, tracing_attributes=_attributes(host, hub))


def _attributes(host: str, hub: str) -> dict[str, Any]:
    return {
        TraceAttributes.TRACE_NET_PEER_NAME_ATTRIBUTE: host,
        TraceAttributes.TRACE_MESSAGING_DESTINATION_ATTRIBUTE: f"/{hub}",
    }


def _twin(event: Any) -> Any:
    """A copy whose maps are its own. One without annotations gets empty ones, or the SDK would lose a partition key."""
    raw = event.raw_amqp_message if isinstance(event, EventData) else event
    if not isinstance(raw, AmqpAnnotatedMessage):
        return event  # the SDK says what is wrong with it
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
    """As `copy.copy` would do it, in a third of the time."""
    twin = object.__new__(type(given))
    twin.__dict__.update(given.__dict__)
    return twin


__all__ = [
    "TOKEN_SCOPE",
    "UNLIMITED",
    "ClientClosedError",
    "EventDataBatch",
    "HubSender",
    "Outgoing",
    "new_batch",
    "one_event",
    "several_events",
    "whole_batch",
]
