"""Which messages lie in the backlog queues, seen without taking any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from azure.servicebus import ServiceBusClient, TransportType

from ..domain.backlog import queue_path
from ..errors import PairbusError
from ..options import Namespace
from .depths import backlog_depths, none_exists_text

#: As many as one peek may ask for; the service answers with fewer if they are large.
_AT_ONCE = 1000


def backlog_sequence_numbers(
    secondary: Namespace, primary_name: str, indexes: Iterable[int] | None = None, *, timeout: float = 30.0
) -> dict[int, list[int]]:
    """Queue index → the sequence numbers of all messages that are in the queue, those that somebody has locked
    included; of all backlog queues of that primary, unless indexes are given.

    A queue that does not exist has none; if not one exists it raises `PairbusError`: then a name is wrong. Peeking is
    billed like receiving.
    """
    depths = backlog_depths(secondary, primary_name, indexes, timeout)
    if depths.none_exists:
        raise PairbusError(none_exists_text(depths, secondary, primary_name))
    with _client(secondary, timeout) as client:
        return {
            index: [] if depth is None else _peeked(client, queue_path(primary_name, index))
            for index, depth in depths.by_index.items()
        }


def _peeked(client: ServiceBusClient, path: str) -> list[int]:
    found: list[int] = []
    with client.get_queue_receiver(path) as receiver:
        first = 1
        while messages := receiver.peek_messages(_AT_ONCE, sequence_number=first):
            found += [int(message.sequence_number or 0) for message in messages]
            first = found[-1] + 1
    return found


def _client(namespace: Namespace, timeout: float) -> ServiceBusClient:
    options: dict[str, Any] = {"retry_total": 1, "try_timeout": timeout, "use_tls": namespace.use_tls}
    if namespace.ca_file is not None:
        options["connection_verify"] = str(namespace.ca_file)
    if namespace.use_tls and ":" in namespace.host.rpartition("]")[2]:
        # Over TLS the SDK dials 5671 whatever the host says, unless it is told so here.
        options |= {"custom_endpoint_address": f"sb://{namespace.host}", "transport_type": TransportType.Amqp}
    return ServiceBusClient(namespace.host, namespace.credential, **options)
