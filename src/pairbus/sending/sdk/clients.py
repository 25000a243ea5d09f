"""Clients and senders of azure-servicebus that try once, and a sender that only presents a token."""

from __future__ import annotations

import re
import time
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusSender, TransportType

from pairbus.options import Namespace
from pairbus.runtime.credential import deadline_credential

from .connection_patches import patch_connection
from .handshake import BoundedHandshake
from .tried_versions import private_names_of

with private_names_of("azure-servicebus"):
    from azure.servicebus._common.constants import JWT_TOKEN_SCOPE
    from azure.servicebus._common.utils import create_authentication

#: The scope for which a credential of azure-identity is asked for a token.
TOKEN_SCOPE = JWT_TOKEN_SCOPE


def connection_options(namespace: Namespace) -> dict[str, Any]:
    """Return the options about TLS and the port that the clients of both SDKs take."""
    options: dict[str, Any] = {"use_tls": namespace.use_tls}
    if namespace.use_tls:
        options["ssl_context"] = BoundedHandshake(namespace.ca_file)
        if re.search(r":\d+$", namespace.host):
            # Over TLS the SDKs dial 5671 whatever the host says, unless a custom endpoint names the port.
            options["custom_endpoint_address"] = f"sb://{namespace.host}"
    return options


def service_bus_client(namespace: Namespace) -> ServiceBusClient:
    """Return a client that tries once: the paired sender decides when to try again, and how long a try may take."""
    return ServiceBusClient(
        namespace.host,
        deadline_credential(namespace.credential),
        retry_total=0,
        transport_type=TransportType.Amqp,
        **connection_options(namespace),
    )


def sender_to(client: ServiceBusClient, path: str, socket_timeout: float | None = None) -> ServiceBusSender:
    """Return a sender without the SDK's keep-alive thread; the connections' watchdog keeps it alive instead."""
    sender: ServiceBusSender = client.get_queue_sender(path, keep_alive=None, socket_timeout=socket_timeout)
    patch_connection(sender)
    return sender


def token_sender(namespace: Namespace, seconds: float) -> ServiceBusSender:
    """Return a sender whose token is for the whole namespace; for `put_token` only."""
    sender: Any = sender_to(service_bus_client(namespace), "any", socket_timeout=seconds)
    sender._auth_uri = f"sb://{namespace.host}/"
    found: ServiceBusSender = sender
    return found


def put_token(sender: Any, seconds: float) -> None:
    """Present a token, and close the connection; return without an error if no answer comes in time."""
    deadline = time.monotonic() + seconds
    sender._create_handler(create_authentication(sender))
    handler = sender._handler
    try:
        handler.open()  # until another thread calls `abort`, if the peer does not even greet
        while not handler.auth_complete() and time.monotonic() < deadline:
            pass  # each call waits for the socket
    finally:
        connection = handler._connection
        handler.close()
        if connection is not None:  # the SDK leaves the socket of a connection that has not come to a session
            connection._transport.close()
