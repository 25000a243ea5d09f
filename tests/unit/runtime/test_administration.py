"""The administration client: its authorization for each kind of credential, its limits, and the list of queues."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import Namespace
from pairbus.runtime.administration import administration_client, list_queues

HOST = "contoso.servicebus.windows.net:5671"
SIGNATURE = "SharedAccessSignature sr=contoso&sig={}&se=1999999999&skn=Root"


class Token:
    """A credential as those of azure-identity."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken("eyJ0", int(time.time()) + 3600)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, RequestsTransport]]:
    """Every request that a client makes, with its transport; none is answered."""
    made: list[tuple[Any, RequestsTransport]] = []

    def send(self: RequestsTransport, request: Any, **kwargs: Any) -> Any:
        made.append((request, self))
        raise ServiceRequestError("no network")

    monkeypatch.setattr(RequestsTransport, "send", send)
    return made


def ask(client: ServiceBusAdministrationClient) -> None:
    with client, pytest.raises(ServiceRequestError):
        client.get_queue("orders")


def test_a_key_signs_each_request(requests: list[Any]) -> None:
    """With the key's name, for the host and its port."""
    ask(administration_client(Namespace(HOST, credential=AzureNamedKeyCredential("Root", "a2V5PT0=")), 3.0))
    ((request, _),) = requests
    assert request.url.startswith(f"https://{HOST}/orders")
    header = request.headers["Authorization"]
    assert header.startswith("SharedAccessSignature sr=")
    assert header.endswith("&skn=Root")


def test_a_signature_is_sent_as_it_is_and_as_it_is_renewed(requests: list[Any]) -> None:
    """Not as a bearer token, as the SDK by itself sends it."""
    credential = AzureSasCredential(SIGNATURE.format("first"))
    client = administration_client(Namespace(HOST, credential=credential), 3.0)
    for name in ("first", "second"):
        credential.update(SIGNATURE.format(name))
        with pytest.raises(ServiceRequestError):
            client.get_queue("orders")
        assert requests[-1][0].headers["Authorization"] == SIGNATURE.format(name)
    client.__exit__(None, None, None)
    assert requests[0][0].url.startswith(f"https://{HOST}/orders")


def test_a_token_is_sent_as_a_bearer_token(requests: list[Any]) -> None:
    """As the SDK does."""
    ask(administration_client(Namespace(HOST, credential=Token()), 3.0))
    assert requests[0][0].headers["Authorization"] == "Bearer eyJ0"


@pytest.mark.parametrize(
    "credential", [AzureNamedKeyCredential("Root", "a2V5"), AzureSasCredential(SIGNATURE.format("x")), Token()],
    ids=["key", "signature", "token"],
)  # fmt: skip
def test_a_request_is_made_once_within_its_limits(requests: list[Any], credential: Any, tmp_path: Path) -> None:
    """Time-outs and certificates of a private authority reach the transport, whichever the credential."""
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----")
    ask(administration_client(Namespace(HOST, credential=credential, ca_file=authority), 3.0))
    ((_, transport),) = requests
    limits = transport.connection_config
    assert (limits.timeout, limits.read_timeout, limits.verify) == (3.0, 3.0, str(authority))


FEED = """<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>orders</title><content>
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{}</QueueDescription>
</content></entry></feed>"""


@pytest.mark.parametrize(("described", "count"), [("<MaxDeliveryCount>7</MaxDeliveryCount>", 7), ("", None)])
def test_the_list_has_the_delivery_count_if_the_service_does(described: str, count: int | None) -> None:
    """The SDK reads it and does not show it."""
    from xml.etree import ElementTree

    class Client:
        """The SDK's client, as far as the list needs it: one page, handed through the hook."""

        def list_queues_runtime_properties(self, *, start_index: int, cls: Any) -> Any:
            cls(None, ElementTree.fromstring(FEED.format(described)), {})
            queue = type("Queue", (), {"name": "orders", "active_message_count": start_index})()
            return type("Pages", (), {"by_page": lambda self: iter([[queue]])})()

    (found,) = list_queues(Client(), 30)  # type: ignore[arg-type]
    assert (found.name, found.active_messages, found.max_delivery_count) == ("orders", 30, count)


def test_a_key_is_used_as_it_was_given(requests: list[Any]) -> None:
    """White space at its end is part of it, as on AMQP: a wrong key is refused when a pairing opens, not later."""
    keys = ("a2V5", "a2V5\n")
    for key in keys:
        ask(administration_client(Namespace(HOST, credential=AzureNamedKeyCredential("Root", key)), 3.0))
    first, second = (request.headers["Authorization"] for request, _ in requests)
    assert first.partition("&se=")[0] != second.partition("&se=")[0]
