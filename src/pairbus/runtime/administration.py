"""The SDK's administration client for a `Namespace`, whichever credential it has."""

from __future__ import annotations

from typing import Any

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.management import QueueRuntimeProperties, ServiceBusAdministrationClient

from pairbus.options import Namespace

from .bounded_credential import bounded


def administration_client(namespace: Namespace, timeout: float) -> ServiceBusAdministrationClient:
    """An administration client that tries once, and not for ever; nor does it wait so for its credential."""
    options: dict[str, Any] = {"retry_total": 0, "connection_timeout": timeout, "read_timeout": timeout}
    if namespace.ca_file is not None:
        options["connection_verify"] = str(namespace.ca_file)
    credential = namespace.credential
    if isinstance(credential, AzureNamedKeyCredential):
        credential = ServiceBusSharedKeyCredential(*credential.named_key)
    elif isinstance(credential, AzureSasCredential):
        credential = _SignatureCredential(credential)
    return ServiceBusAdministrationClient(namespace.host, bounded(credential), **options)


def max_delivery_count(queue: QueueRuntimeProperties) -> int | None:
    """How often a queue of a list gives a message out: the SDK has read it, and does not show it."""
    described: Any = getattr(queue, "_internal_qr", None)
    count = getattr(described, "max_delivery_count", None)
    return None if count is None else int(count)


class _SignatureCredential(ServiceBusSharedKeyCredential):
    """A shared access signature for the administration client, which by itself would send it as a bearer token."""

    def __init__(self, credential: AzureSasCredential) -> None:
        self._signature = credential

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken(self._signature.signature, 0)  # 0: asked for each time, so a renewed one is seen
