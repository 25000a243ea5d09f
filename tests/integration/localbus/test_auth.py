"""Authorization: tokens, keys and rights, with the official SDK and with a raw AMQP client."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient
from proton import ConnectionException, Message
from proton.utils import BlockingConnection, LinkDetached

from pairbus.localbus import LocalBus, LocalBusError
from pairbus.localbus.auth import LISTEN, MANAGE, SEND, Authorizer, Key
from pairbus.localbus.bus_errors import UNAUTHORIZED, BusError
from tests.support import amqp_frames as amqp
from tests.support.process_fixtures import (
    QUICK,
    Command,
    active,
    administer,
    bodies,
    connect,
    create,
    drain,
    key_of,
    sas_token,
    send,
    with_key,
)
from tests.support.raw_client import RawClient, RawError

ROOT = "RootManageSharedAccessKey"
KEYS = {"sender": "c2VuZA==", "listener": "bGlzdGVu", "manager": "bWFuYWdl", "both": "Ym90aA=="}


@pytest.fixture(scope="module")
def bus() -> Iterator[Command]:
    """Start a process with keys of all kinds of rights, and a queue `orders`."""
    arguments: list[object] = ["--key-name", ROOT, "--key", "cm9vdA=="]
    rights = {"sender": "Send", "listener": "Listen", "manager": "Manage", "both": "Send,Listen"}
    for name, key in KEYS.items():
        arguments += ["--key-name", f"{name}:{rights[name]}", "--key", key]
    with Command(*arguments) as running:
        with administer(running) as admin:
            admin.create_queue("orders")
            admin.create_queue("other")
            admin.create_queue("signed")
            admin.create_queue("secure")
            admin.create_topic("news")
            admin.create_subscription("news", "all")
        yield running


@pytest.fixture(scope="module")
def strings(bus: Command) -> dict[str, str]:
    return {name: with_key(bus.connection_string, name, key) for name, key in KEYS.items()}


@pytest.fixture
def raw(bus: Command) -> Iterator[RawClient]:
    with RawClient(bus) as client:  # type: ignore[arg-type]
        yield client


def put_token(raw: RawClient, audience: str, token: Any, **properties: Any) -> tuple[int, str]:
    """Return the status and description of a put-token request."""
    given = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience, **properties}
    reply = raw.exchange("$cbs", Message(properties=given, body=token))
    return reply.properties["status-code"], reply.properties["status-description"]


def over_tls(bus: Command | LocalBus) -> dict[str, Any]:
    """Return the options with which this SDK uses TLS on another port than 5671, its fixed default."""
    endpoint = f"sb://{bus.host}:{bus.port}"
    return {
        **QUICK,
        "connection_verify": bus.ca_file,
        "custom_endpoint_address": endpoint,
        "transport_type": TransportType.Amqp,
    }


def url(bus: Command, path: str = "") -> str:
    return f"sb://{bus.host}:{bus.port}/{path}"


# --- names and keys without tokens --------------------------------------------------------------------------


def plain(bus: Command, name: str, key: str) -> BlockingConnection:
    """Return the receiver of a general AMQP client, which knows nothing of tokens."""
    return BlockingConnection(
        f"amqp://{bus.host}:{bus.port}",
        user=name,
        password=key,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
        timeout=10,
    )


def test_sasl_plain_grants_the_rights_of_a_key(bus: Command) -> None:
    """A general AMQP client logs in with a key's name and secret, and may then use every entity as the key allows."""
    with closing(plain(bus, "both", KEYS["both"])) as client:
        sender = client.create_sender("signed")
        sender.send(Message(body="hello"))
        receiver = client.create_receiver("signed", credit=1)
        assert receiver.receive().body == "hello"
        receiver.accept()
    with closing(plain(bus, "sender", KEYS["sender"])) as client:
        client.create_sender("other")
        with pytest.raises(LinkDetached, match="'Listen' claim"):
            client.create_receiver("other")


@pytest.mark.parametrize(("name", "key"), [("both", KEYS["sender"]), ("nobody", KEYS["both"]), ("", "")])
def test_sasl_plain_refuses_a_wrong_name_or_key(bus: Command, name: str, key: str) -> None:
    """The login fails before the connection is opened."""
    with pytest.raises(ConnectionException, match="Authentication failed"):
        plain(bus, name or " ", key or " ")


def answer_to(bus: Command, mechanism: str) -> list[tuple[int, list[Any]]]:
    """Return the server's performatives up to the outcome of a client's first bytes."""
    with socket.create_connection((bus.host, bus.port), timeout=10) as client:
        client.sendall(amqp.SASL_HEADER + amqp.sasl_init(mechanism))
        said = b""
        while b"\x00\x53\x44" not in said:
            said += client.recv(4096) or b"\x00\x53\x44"
    frames = [raw for raw in amqp.split_frames(said) if raw[:4] != b"AMQP"]
    return [(code, list(fields)) for code, _, fields, _ in map(amqp.read_performative, frames)]


def test_the_sasl_mechanisms_are_those_of_the_service(bus: Command) -> None:
    """The SDKs of .NET and Rust choose MSSBCBS and no other; it gives the same rights as ANONYMOUS."""
    for mechanism, outcome in {"MSSBCBS": 0, "ANONYMOUS": 0, "PLAIN": 1, "SCRAM-SHA-256": 1}.items():
        (_, (offered, *_)), (_, (code, *_)) = answer_to(bus, mechanism)
        assert list(offered) == ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
        assert code == outcome, mechanism


# --- tokens, one by one ------------------------------------------------------------------------------------


def test_a_valid_token_opens_only_its_entity(bus: Command, raw: RawClient) -> None:
    """A token is accepted with 202 and opens links on its audience only."""
    token = sas_token(url(bus, "orders"), ROOT, "cm9vdA==", time.time() + 60)
    assert put_token(raw, url(bus, "orders"), token)[0] == 202
    raw.send(raw.sender("orders"), Message(body=b"hello").encode())
    with pytest.raises(RawError) as refused:
        raw.sender("other")
    assert refused.value.condition == UNAUTHORIZED


@pytest.mark.parametrize("direction", ["sender", "receiver", "management"])
def test_a_link_without_a_token_is_refused(raw: RawClient, direction: str) -> None:
    """Without a token a client gets no sender, receiver or `$management` link."""
    attach = raw.sender if direction == "sender" else raw.receiver
    with pytest.raises(RawError) as refused:
        attach("orders/$management" if direction == "management" else "orders")
    assert refused.value.condition == UNAUTHORIZED


def test_invalid_tokens_get_401_with_the_reason(bus: Command, raw: RawClient) -> None:
    """This holds for wrong and unknown keys, expired or altered tokens, and those of another entity or host."""
    audience, soon = url(bus, "orders"), time.time() + 60
    good = sas_token(audience, ROOT, "cm9vdA==", soon)
    wrong = {
        "wrong key": (sas_token(audience, ROOT, "bm90IGl0", soon), "InvalidSignature"),
        "unknown key": (sas_token(audience, "nobody", "cm9vdA==", soon), "InvalidSignature"),
        "expired": (sas_token(audience, ROOT, "cm9vdA==", time.time() - 1), "ExpiredToken"),
        "prolonged": (good.replace(f"se={int(soon)}", f"se={int(soon) + 1000}"), "InvalidSignature"),
        "no number": (sas_token(audience, ROOT, "cm9vdA==", soon).replace("se=", "se=x"), "InvalidSignature"),
        "another entity": (sas_token(url(bus, "other"), ROOT, "cm9vdA==", soon), "InvalidAudience"),
        "half a name": (sas_token(url(bus, "order"), ROOT, "cm9vdA==", soon), "InvalidAudience"),
        "another host": (sas_token("sb://example.com/orders", ROOT, "cm9vdA==", soon), "InvalidAudience"),
        "another port": (sas_token("sb://127.0.0.1:1/orders", ROOT, "cm9vdA==", soon), "InvalidAudience"),
        "no signature": (good.replace("&sig=", "&gis="), "MalformedToken"),
        "empty": ("", "InvalidIssuer"),
        "no text": (7, "MalformedToken"),
    }
    for what, (token, reason) in wrong.items():
        status, said = put_token(raw, audience, token)
        assert (status, reason in said) == (401, True), (what, status, said)
    with pytest.raises(RawError):
        raw.sender("orders")  # none of these tokens was accepted


def test_audiences_are_accepted_in_the_form_of_every_sdk(bus: Command, raw: RawClient) -> None:
    """An audience may have any scheme, case, port or percent-encoding, and name the namespace or an entity."""
    soon, host = time.time() + 60, f"{bus.host}:{bus.port}"
    for resource in (
        f"sb://{host}/orders", f"amqp://{host}/orders", f"amqp://{bus.host}/orders", f"amqps://{host}/Orders",
        f"https://{host}/orders/", f"sb://{host}/", f"sb://{host}", f"{host}/orders", "sb://localhost/orders",
        "sb://contoso.servicebus.windows.net/orders",
    ):  # fmt: skip
        token = sas_token(resource, ROOT, "cm9vdA==", soon)
        assert put_token(raw, f"amqps://{host}/orders", token)[0] == 202, resource


def test_invalid_put_token_requests_are_refused(bus: Command, raw: RawClient) -> None:
    """A missing entity gets 404, another operation 501, a request without an audience 401."""
    token = sas_token(url(bus), ROOT, "cm9vdA==", time.time() + 60)
    assert put_token(raw, url(bus, "missing"), token)[0] == 404
    assert put_token(raw, url(bus, "news/Subscriptions/missing"), token)[0] == 404
    assert put_token(raw, url(bus, "news/Subscriptions/all"), token)[0] == 202
    assert put_token(raw, url(bus, "orders"), token, operation="get-token")[0] == 501
    assert put_token(raw, None, token)[0] == 401  # type: ignore[arg-type]


def test_a_link_is_closed_when_its_token_expires(bus: Command, raw: RawClient) -> None:
    """A new token that arrives in time keeps the link open."""
    for entity, life in (("orders", 8), ("other", 8)):
        token = sas_token(url(bus, entity), ROOT, "cm9vdA==", int(time.time()) + 1 + life)
        assert put_token(raw, url(bus, entity), token)[0] == 202
    ending, kept = raw.receiver("orders"), raw.receiver("other")
    renewed = sas_token(url(bus, "other"), ROOT, "cm9vdA==", time.time() + 60)
    assert put_token(raw, url(bus, "other"), renewed)[0] == 202

    def closed() -> bool:
        raw.check(ending)
        return False

    with pytest.raises(RawError) as refused:
        raw.wait(closed, "the link's end", 60)
    assert refused.value.condition == UNAUTHORIZED
    assert "ExpiredToken" in str(refused.value)
    raw.check(kept)
    with pytest.raises(RawError):
        raw.receiver("orders")


# --- the SDK ---------------------------------------------------------------------------------------------


def test_the_sdk_raises_the_same_errors_as_against_azure(bus: Command) -> None:
    """A wrong key is an authentication error; in this SDK so is a missing entity (404 from `$cbs`)."""
    wrong = with_key(bus.connection_string, ROOT, "d3Jvbmc=")
    with connect(wrong) as client, pytest.raises(ServiceBusAuthenticationError):
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    with connect(bus.connection_string) as client, pytest.raises(ServiceBusAuthenticationError):
        client.get_queue_sender("missing").send_messages(ServiceBusMessage("x"))
    with administer(bus, wrong) as admin, pytest.raises(ClientAuthenticationError):
        admin.get_queue("orders")


def test_rights_of_a_key_hold_on_links(bus: Command, strings: dict[str, str]) -> None:
    """Send cannot receive, Listen cannot send, Manage can do both."""
    with connect(strings["sender"]) as client, pytest.raises(ServiceBusAuthorizationError):
        client.get_queue_receiver("orders").receive_messages(1, max_wait_time=60)
    with connect(strings["listener"]) as client, pytest.raises(ServiceBusAuthorizationError):
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    rights = {"sender": {SEND}, "listener": {LISTEN}, "manager": {SEND, LISTEN}, "both": {SEND, LISTEN}}
    for name, may in rights.items():
        for right in (SEND, LISTEN):
            with RawClient(bus) as raw:  # type: ignore[arg-type]
                token = sas_token(url(bus, "other"), name, KEYS[name], time.time() + 60)
                assert put_token(raw, url(bus, "other"), token)[0] == 202
                allowed = contextlib.nullcontext() if right in may else pytest.raises(RawError, match=UNAUTHORIZED)
                with allowed:
                    raw.sender("other") if right == SEND else raw.receiver("other")


def test_rights_of_a_key_hold_on_management_links(bus: Command, strings: dict[str, str]) -> None:
    """A key with Send can schedule and cancel but not peek; with Listen it is the reverse."""
    from datetime import datetime, timedelta, timezone

    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with connect(strings["sender"]) as client, client.get_queue_sender("other") as sender:
        numbers = sender.schedule_messages(ServiceBusMessage("later"), later)
        sender.cancel_scheduled_messages(numbers)
    token = sas_token(url(bus, "other"), "sender", KEYS["sender"], time.time() + 60)
    with RawClient(bus) as raw:  # type: ignore[arg-type]
        assert put_token(raw, url(bus, "other"), token)[0] == 202
        status, _, condition = raw.request(
            "other", "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 1}
        )
        assert (status, condition) == (401, UNAUTHORIZED)
    token = sas_token(url(bus, "other"), "listener", KEYS["listener"], time.time() + 60)
    with RawClient(bus) as raw:  # type: ignore[arg-type]
        assert put_token(raw, url(bus, "other"), token)[0] == 202
        status, _, condition = raw.request("other", "com.microsoft:schedule-message", {"messages": []})
        assert (status, condition) == (401, UNAUTHORIZED)
        status, _, _ = raw.request(
            "other", "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 1}
        )
        assert status == 204


def test_the_management_rest_api_needs_manage(bus: Command, strings: dict[str, str]) -> None:
    """Send and Listen, alone or together, can neither read nor change an entity."""
    for name in ("sender", "listener", "both"):
        with administer(bus, strings[name]) as admin:
            with pytest.raises(ClientAuthenticationError):
                admin.get_queue("orders")
            with pytest.raises(ClientAuthenticationError):
                admin.create_queue(f"by-{name}")
    with administer(bus, strings["manager"]) as admin:
        admin.create_queue("by/a.manager~of-ours")
        assert "by/a.manager~of-ours" in [queue.name for queue in admin.list_queues()]
        assert admin.get_queue("by/a.manager~of-ours").name == "by/a.manager~of-ours"
        admin.delete_queue("by/a.manager~of-ours")


def test_the_management_rest_api_refuses_invalid_tokens(bus: Command) -> None:
    """A missing header, an expired token and a token for another host get 401."""
    context = ssl.create_default_context(cafile=bus.ca_file)
    for header in (
        None,
        "",
        "Basic abc",
        sas_token(f"https://{bus.host}:{bus.port}/", ROOT, "cm9vdA==", time.time() - 5),
        sas_token("https://example.com/", ROOT, "cm9vdA==", time.time() + 60),
        sas_token(f"https://{bus.host}:{bus.port}/other", ROOT, "cm9vdA==", time.time() + 60),
    ):
        connection = http.client.HTTPSConnection(bus.host, bus.port, context=context, timeout=30)
        try:
            connection.request("GET", "/orders", headers={} if header is None else {"Authorization": header})
            assert connection.getresponse().status == 401, header
        finally:
            connection.close()


def test_keys_of_an_entity_open_only_that_entity(bus: Command) -> None:
    """Both keys of a queue's or topic's authorization rule have its rights, on that entity only."""
    rules = [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=rights,
            key_name=name,
            primary_key=first,
            secondary_key=second,
        )
        for name, rights, first, second in (
            ("in", ["Send"], "MQ==", "Mg=="),
            ("out", ["Listen"], "Mw==", "NA=="),
            ("all", ["Manage", "Send", "Listen"], "NQ==", "Ng=="),
        )
    ]
    with administer(bus) as admin:
        admin.create_queue("guarded", authorization_rules=rules)
        admin.create_topic("guarded-news", authorization_rules=rules)
        admin.create_subscription("guarded-news", "all")

    def status(name: str, key: str, path: str, right: str) -> int | str:
        with RawClient(bus) as raw:  # type: ignore[arg-type]
            code, _ = put_token(raw, url(bus, path), sas_token(url(bus, path), name, key, time.time() + 60))
            if code == 202:
                try:
                    raw.sender(path) if right == SEND else raw.receiver(path)
                except RawError as error:
                    return str(error.condition)
            return code

    assert status("in", "MQ==", "guarded", SEND) == 202
    assert status("in", "Mg==", "guarded", SEND) == 202
    assert status("in", "MQ==", "guarded", LISTEN) == UNAUTHORIZED
    assert status("in", "Mw==", "guarded", SEND) == 401
    assert status("out", "Mw==", "guarded", LISTEN) == 202
    assert status("out", "Mw==", "guarded/$DeadLetterQueue", LISTEN) == 202
    assert status("out", "NA==", "guarded-news/Subscriptions/all", LISTEN) == 202
    assert status("in", "MQ==", "orders", SEND) == 401
    owner = with_key(bus.connection_string, "all", "NQ==")
    with administer(bus, owner) as admin:
        assert admin.get_queue("guarded").name == "guarded"
        with pytest.raises(ClientAuthenticationError):
            admin.get_queue("orders")
        with pytest.raises(ClientAuthenticationError):
            list(admin.list_queues())


def test_named_key_and_sas_credentials(bus: Command) -> None:
    """AzureNamedKeyCredential and AzureSasCredential work over TLS; an expired token is refused."""
    host = f"{bus.host}:{bus.port}"
    soon = sas_token(f"sb://{host}/signed", "both", KEYS["both"], time.time() + 60)
    past = sas_token(f"sb://{host}/orders", "both", KEYS["both"], time.time() - 60)
    with ServiceBusClient(host, AzureNamedKeyCredential("both", KEYS["both"]), **over_tls(bus)) as client:
        send(client, "signed", "hello")
    with (
        ServiceBusClient(host, AzureSasCredential(soon), **over_tls(bus)) as client,
        client.get_queue_receiver("signed") as receiver,
    ):
        assert bodies(receiver.receive_messages(1, max_wait_time=60)) == ["hello"]
    with (
        ServiceBusClient(host, AzureSasCredential(past), **over_tls(bus)) as client,
        pytest.raises(ServiceBusError) as refused,
    ):
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    assert "CBS Token authentication failed" in str(refused.value.inner_exception)


class FakeCredential:
    """An Entra credential with a meaningless token."""

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("eyJhbGciOiJub25lIn0.eyJzdWIiOiJ0ZXN0In0.", int(time.time()) + 3600)


def test_entra_tokens_are_refused_by_default(bus: Command) -> None:
    """A JWT is refused; the text names the option that accepts it."""
    host = f"{bus.host}:{bus.port}"
    with ServiceBusClient(host, FakeCredential(), **over_tls(bus)) as client, pytest.raises(ServiceBusError) as refused:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    assert "CBS Token authentication failed" in str(refused.value.inner_exception)
    with (
        ServiceBusAdministrationClient(host, FakeCredential(), connection_verify=bus.ca_file) as admin,
        pytest.raises(ClientAuthenticationError, match="--accept-any-jwt"),
    ):
        admin.get_queue("orders")


def test_entra_tokens_are_accepted_with_the_option() -> None:
    """With accept_any_jwt any token opens everything, and keys are still checked."""
    with LocalBus(accept_any_jwt=True) as bus:
        host = f"{bus.host}:{bus.port}"
        with ServiceBusAdministrationClient(host, FakeCredential(), connection_verify=bus.ca_file) as admin:
            admin.create_queue("orders")
        with ServiceBusClient(host, FakeCredential(), **over_tls(bus)) as client:
            send(client, "orders", "with a token")
        assert active(bus, "orders") == 1
        wrong = with_key(bus.connection_string, ROOT, "d3Jvbmc=")
        with connect(wrong) as client, pytest.raises(ServiceBusAuthenticationError):
            client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))


# --- TLS -------------------------------------------------------------------------------------------------


def without_flag(bus: Command) -> str:
    return bus.connection_string.replace("UseDevelopmentEmulator=true;", "")


def test_the_sdk_uses_tls_without_the_emulator_flag(bus: Command) -> None:
    """The connection string without the flag works for a client that trusts the CA file."""
    with connect(without_flag(bus), **over_tls(bus)) as client:
        send(client, "secure", "over TLS")
        with client.get_queue_receiver("secure") as receiver:
            assert bodies(drain(receiver, 60, 1)) == ["over TLS"]


async def test_async_clients_use_tls(bus: Command) -> None:
    """The async SDK works over TLS with the CA file."""
    async with AsyncServiceBusClient.from_connection_string(without_flag(bus), **over_tls(bus)) as client:
        async with client.get_queue_sender("other") as sender:
            await sender.send_messages(ServiceBusMessage("over TLS"))
        async with client.get_queue_receiver("other") as receiver:
            found = await receiver.receive_messages(1, max_wait_time=60)
            await receiver.complete_message(found[0])
            assert bodies(found) == ["over TLS"]


def test_on_port_5671_a_client_needs_only_the_ca_file() -> None:
    """With `port=5671` a client needs `bus.tls_connection_string` and `connection_verify=bus.ca_file` only."""
    try:
        started = LocalBus(port=5671).start()
    except LocalBusError as error:
        pytest.skip(f"somebody else has the port: {error}")
    with contextlib.closing(started) as bus:
        create(bus, "orders")
        with connect(bus.tls_connection_string, connection_verify=bus.ca_file) as client:
            send(client, "orders", "over TLS")
        assert active(bus, "orders") == 1


def test_a_client_without_the_ca_file_refuses_the_server(bus: Command) -> None:
    """The client refuses the certificate, and the server goes on serving others."""
    trusting = over_tls(bus)
    wary = {name: value for name, value in trusting.items() if name != "connection_verify"}
    with connect(without_flag(bus), **wary) as client, pytest.raises(ServiceBusError) as refused:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value.inner_exception)
    with connect(without_flag(bus), **trusting) as client:
        send(client, "secure", "still here")


async def test_an_async_client_without_the_ca_file_refuses_the_server(bus: Command) -> None:
    """The async SDK verifies the certificate as well."""
    wary = {name: value for name, value in over_tls(bus).items() if name != "connection_verify"}
    async with AsyncServiceBusClient.from_connection_string(without_flag(bus), **wary) as client:
        with pytest.raises(ServiceBusError):
            async with client.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("x"))


# --- pure ------------------------------------------------------------------------------------------------


def test_secrets_are_not_shown() -> None:
    """Neither a key's repr nor an error about a token contains a secret."""
    key = Key("name", "c2VjcmV0")
    assert "c2VjcmV0" not in repr(key)
    authorizer = Authorizer([key], hosts=frozenset(["h"]))
    with pytest.raises(BusError) as refused:
        authorizer.grant(sas_token("sb://h/q", "name", "bm90", time.time() + 9), "sb://h/q", time.time())
    assert "c2VjcmV0" not in str(refused.value)
    assert "bm90" not in str(refused.value)


def test_random_keys_have_the_form_of_the_service() -> None:
    """They have 44 characters of base64, and no two are the same."""
    first, second = Key.random(), Key.random()
    assert first.secret != second.secret
    assert len(first.secret) == 44
    assert first.rights == {SEND, LISTEN, MANAGE}


def test_a_very_late_expiry_is_accepted() -> None:
    """A token with an expiry beyond all dates is valid."""
    authorizer = Authorizer([Key("k", "a2V5")], hosts=frozenset(["h"]))
    far = sas_token("sb://h/q", "k", "a2V5", 10**30)
    assert authorizer.grant(far, "sb://h/q", time.time()).expires_at < 1e17


def test_a_given_key_is_in_the_ready_line(bus: Command) -> None:
    """The key of the command line is the key of the connection string."""
    assert key_of(bus.connection_string) == "cm9vdA=="
