"""Event hubs as destinations: a producer with the SDK's names, whose events are parked while the hub is down.

A hub, and each partition that is sent to by its id, is an entity of its own. azure-eventhub is an extra: nothing of it
is imported before a pairing is made with a namespace of event hubs.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pairbus.errors import NotSupportedError, OptionError
from pairbus.options import Namespace

from .parcel import Parkable
from .sdk.batches import STANDARD_LIMIT
from .sdk.prepared_send import PreparedSend
from .sender import PairedSender, bound

if TYPE_CHECKING:
    from azure.eventhub import EventDataBatch

    from .pairing import PairedNamespace


def check_event_hubs(event_hubs: Namespace, primary: Namespace, secondary: Namespace) -> None:
    """Raise OptionError if this cannot be a namespace of event hubs beside these two, or its SDK is not installed."""
    for role, other in (("primary", primary), ("secondary", secondary)):
        if event_hubs.host.lower() == other.host.lower():
            raise OptionError(
                f"event_hubs and {role} are the same namespace, {other.host}: event_hubs must be a namespace "
                "of Event Hubs, not one of Service Bus"
            )
    event_hub_sender()


def event_hub_sender() -> Any:
    """Return the module that uses azure-eventhub; raise OptionError if that cannot be imported."""
    try:
        return importlib.import_module(".sdk.event_hub_sender", __package__)
    except ImportError as error:
        raise OptionError(
            f"event_hubs needs azure-eventhub, 5.15 or later, which could not be imported ({error}): install pairbus "
            "with its extra 'eventhubs'"
        ) from error


class _PartitionSender(PairedSender):
    """The paired sender to a hub or to one partition of it."""

    @property
    def fully_qualified_namespace(self) -> str:
        host = self._entity.event_hubs
        assert host is not None
        return host

    def send(self, prepared: PreparedSend, timeout: float) -> None:
        """Send prepared events, or park them while the hub is down."""
        self._deliver(prepared, timeout, prepared.count)

    def limit(self) -> int:
        """Return the largest batch that the hub takes; while it is down the last known, or what every hub takes."""
        if not self.known_limit:
            self._open()
        return self.known_limit or STANDARD_LIMIT

    @property
    def known_limit(self) -> int:
        """The largest batch that the hub takes; 0 if no link was open yet."""
        return self._entity.pool.limit


class PairedEventHubProducer:
    """Sends to one event hub; drops in where azure-eventhub's `EventHubProducerClient` was.

    Made by `PairedNamespace.get_event_hub_producer`. It may be shared between threads.
    """

    def __init__(self, pairing: PairedNamespace, eventhub_name: str) -> None:
        given: Any = eventhub_name
        if not isinstance(given, str) or not given.strip() or "/" in given:
            raise ValueError(f"the name of an event hub must be a string that is not empty, without /, not {given!r}")
        if pairing.event_hubs is None:
            raise OptionError(
                f"this pairing knows no namespace that the event hub {eventhub_name} could be in: pass it, "
                "pair_namespaces(primary, secondary, options, event_hubs=Namespace(…))"
            )
        self.eventhub_name = eventhub_name
        self._pairing = pairing
        self._namespace = pairing.event_hubs
        self._sdk = event_hub_sender()
        self._senders: dict[str | None, _PartitionSender] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def fully_qualified_namespace(self) -> str:
        """The event hubs namespace's host."""
        return self._namespace.host

    def __repr__(self) -> str:
        return f"<PairedEventHubProducer to {self.eventhub_name} of {self._namespace.host}>"

    def send_event(
        self,
        event_data: Any,
        *,
        timeout: float | None = None,
        partition_id: str | None = None,
        partition_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Send one event; return when the hub or a backlog queue has accepted it.

        `timeout` bounds the send to either namespace, instead of `send_timeout`. An error carries the events that were
        not accepted anywhere in its attribute `messages`.
        """
        _warn_of(kwargs)
        with self._carrying([event_data]):
            sender, seconds = self._sender(partition_id), self._bound(timeout)
            prepared = self._one(event_data, partition_key)
        sender.send(prepared, seconds)

    def send_batch(
        self,
        event_data_batch: Any,
        *,
        timeout: float | None = None,
        partition_id: str | None = None,
        partition_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Send a batch, or a list of events as one; return when the hub or backlog queues have accepted all of it.

        See `send_event`.
        """
        _warn_of(kwargs)
        given = event_data_batch if isinstance(event_data_batch, self._sdk.EventDataBatch) else []
        with self._carrying(given):
            if given is not event_data_batch:
                for each in event_data_batch:  # one by one: an error of the iterable carries those before it
                    given.append(each)
            prepared, sender = self._several(given, partition_id, partition_key)
            seconds = self._bound(timeout)
        if prepared.count:
            sender.send(prepared, seconds)

    def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
        **kwargs: Any,
    ) -> EventDataBatch:
        """Return a batch to add events to, with the hub's limit; the last known one while the hub is down."""
        _warn_of(kwargs)
        _check_partition(partition_id)
        limit = self._sender(None).limit()
        if max_size_in_bytes and max_size_in_bytes > limit:
            raise ValueError(
                f"Max message size: {max_size_in_bytes} is too large, acceptable max batch size is: {limit} bytes."
            )
        batch: EventDataBatch = self._sdk.new_batch(
            self._namespace.host, self.eventhub_name, partition_id, partition_key, max_size_in_bytes or limit
        )
        return batch

    def can_park(
        self, event_data: Any, *, partition_id: str | None = None, partition_key: str | None = None
    ) -> Parkable:
        """Return whether an event could be parked, should the hub fail: its sizes and, if not, the reason.

        Of several events, the answer is for the largest.
        """
        if isinstance(event_data, (list, tuple, self._sdk.EventDataBatch)):
            prepared, sender = self._several(event_data, partition_id, partition_key)
        else:
            sender = self._sender(partition_id)
            prepared = self._one(event_data, partition_key)
        return sender.can_park(prepared)

    @contextmanager
    def _carrying(self, events: Any) -> Iterator[None]:
        """Attach all events to an error that is raised before anything is sent."""
        try:
            yield
        except Exception as error:
            error.messages = self._sdk.events_of(events)  # type: ignore[attr-defined]
            raise

    def _one(self, event: Any, partition_key: Any) -> PreparedSend:
        prepared: PreparedSend = self._sdk.one_event(event, self._namespace.host, self.eventhub_name, partition_key)
        return prepared

    def _several(self, events: Any, partition_id: Any, partition_key: Any) -> tuple[PreparedSend, _PartitionSender]:
        sdk, host = self._sdk, self._namespace.host
        if isinstance(events, sdk.EventDataBatch):
            if partition_id or partition_key:
                raise TypeError(
                    "partition_id and partition_key should be None when sending an EventDataBatch "
                    "because type EventDataBatch itself may have partition_id or partition_key"
                )
            return sdk.whole_batch(events), self._sender(sdk.partition_of(events))
        sender = self._sender(partition_id)
        # Before a link is open the limit is unknown; the link that opens checks it.
        limit = sender.known_limit or sdk.UNLIMITED
        return sdk.several_events(list(events), host, self.eventhub_name, partition_id, partition_key, limit), sender

    def _bound(self, timeout: float | None) -> float:
        """Return the seconds that a send may take. As in the SDK, 0 stands for the default."""
        return bound(self._pairing.options.seconds("send_timeout") if timeout is None or timeout == 0 else timeout)

    def _sender(self, partition_id: str | None) -> _PartitionSender:
        self._check()
        _check_partition(partition_id)
        partition_id = partition_id or None
        with self._lock:
            sender = self._senders.get(partition_id)
            if sender is None:
                self._check()  # again: `close` would miss one that is made after it
                hub = self.eventhub_name
                make = partial(self._sdk.HubSender, self._namespace, hub, partition_id)
                path = hub if partition_id is None else f"{hub}/Partitions/{partition_id}"
                entity = self._pairing.entity(path, make, self._namespace.host)
                sender = self._senders[partition_id] = _PartitionSender(self._pairing, entity)
        return sender

    def get_eventhub_properties(self) -> NoReturn:
        """Raise NotSupportedError: only the hub itself can answer, and it may be down."""
        raise _not_supported("get_eventhub_properties")

    def get_partition_ids(self) -> NoReturn:
        """Raise NotSupportedError: only the hub itself can answer, and it may be down."""
        raise _not_supported("get_partition_ids")

    def get_partition_properties(self, partition_id: str) -> NoReturn:
        """Raise NotSupportedError: only the hub itself can answer, and it may be down."""
        raise _not_supported("get_partition_properties")

    def flush(self, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Do nothing: nothing is buffered, and a send that has returned was accepted."""

    def __enter__(self) -> PairedEventHubProducer:
        """Open nothing yet: the first send to each partition opens its link, as in the SDK."""
        self._check()
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self, *, flush: bool = True, timeout: float | None = None, **kwargs: Any) -> None:
        """Close this producer; sends that run end as they would have."""
        with self._lock:
            self._closed = True
            senders = list(self._senders.values())
        for sender in senders:
            sender.close()

    def __reduce__(self) -> NoReturn:
        self._pairing.__reduce__()

    def _check(self) -> None:
        if self._closed:
            raise self._sdk.CLOSED_ERROR(
                f"The producer to {self.eventhub_name} has been closed. Get a new one from the pairing."
            )
        self._pairing.check()


def _check_partition(partition_id: Any) -> None:
    if partition_id is not None and not isinstance(partition_id, str):
        raise TypeError(f"partition_id must be a string such as '0', not {partition_id!r}")


def _not_supported(name: str) -> NotSupportedError:
    return NotSupportedError(
        f"{name} is not available on a paired producer: only the hub itself can answer, and it may be down. Ask "
        "with an EventHubProducerClient of its namespace"
    )


def _warn_of(kwargs: dict[str, Any]) -> None:
    if kwargs:
        warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=3)
