"""The SDK's administration client for a `Namespace`, and the list of its queues with their delivery counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.pipeline.transport import HttpRequest, RequestsTransport
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.options import Namespace

from .credential import deadline_credential

#: Namespaces of the service's Atom feed.
_ATOM = "{http://www.w3.org/2005/Atom}"
_SERVICE_BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


@dataclass(frozen=True, slots=True)
class ListedQueue:
    """One queue in the list of a namespace's queues."""

    name: str
    active_messages: int
    #: The deliveries after which the service dead-letters a message; None if the list does not say.
    max_delivery_count: int | None


def administration_client(namespace: Namespace, timeout: float) -> ServiceBusAdministrationClient:
    """Return an administration client that tries each request once, and waits `timeout` seconds for an answer."""
    options: dict[str, Any] = {"retry_total": 0, "connection_timeout": timeout, "read_timeout": timeout}
    if namespace.ca_file is not None:
        options["connection_verify"] = str(namespace.ca_file)
    credential = namespace.credential
    if isinstance(credential, AzureNamedKeyCredential):
        name, key = credential.named_key
        return ServiceBusAdministrationClient.from_connection_string(
            f"Endpoint=sb://{namespace.host};SharedAccessKeyName={name};SharedAccessKey={key};", **options
        )
    if isinstance(credential, AzureSasCredential):
        transport = _SignatureTransport(credential, **options)
        return ServiceBusAdministrationClient(namespace.host, _NoToken(), transport=transport, **options)
    return ServiceBusAdministrationClient(namespace.host, deadline_credential(credential), **options)


def list_queues(client: ServiceBusAdministrationClient, start_index: int) -> list[ListedQueue]:
    """Return the page of the namespace's queues that begins at an index: one billable operation."""
    limits: dict[str, int] = {}

    def read_limits(_: Any, feed: Any, __: Any) -> Any:
        for entry in feed.iterfind(f"{_ATOM}entry"):
            if (count := entry.findtext(f".//{_SERVICE_BUS}MaxDeliveryCount")) is not None:
                limits[entry.findtext(f"{_ATOM}title")] = int(count)
        return feed

    # `cls` is azure-core's hook for an answer: the service lists the delivery count, and the SDK does not show it.
    listed = client.list_queues_runtime_properties(start_index=start_index, cls=read_limits)
    page = list(next(listed.by_page(), ()))
    return [ListedQueue(queue.name, int(queue.active_message_count or 0), limits.get(queue.name)) for queue in page]


class _SignatureTransport(RequestsTransport):  # type: ignore[misc]  # azure-core loads it lazily
    """An HTTP transport that sends a shared access signature, which the client itself would send as a bearer token."""

    def __init__(self, credential: AzureSasCredential, **options: Any) -> None:
        super().__init__(**options)
        self._credential = credential

    def send(self, request: HttpRequest, **kwargs: Any) -> Any:
        request.headers["Authorization"] = self._credential.signature  # read each time, since it may be renewed
        return super().send(request, **kwargs)


class _NoToken:
    """A credential whose token the transport replaces."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken("replaced by the transport", 0)
