"""Authorization through the async clients: keys, rights, shared access signatures, Entra tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from types import TracebackType
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError, ServiceBusError

from pairbus.localbus import LocalBus
from tests.support.process_fixtures import Command, sas_token, with_key
from tests.support.scenarios import scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients, bodies, soon

ROOT = "RootManageSharedAccessKey"
KEYS = {"sender": "c2VuZA==", "listener": "bGlzdGVu", "manager": "bWFuYWdl", "both": "Ym90aA=="}
RIGHTS = {"sender": "Send", "listener": "Listen", "manager": "Manage", "both": "Send,Listen"}
SENDERS = ("sender", "manager", "both")
LISTENERS = ("listener", "manager", "both")


@pytest.fixture(scope="module")
def bus() -> Iterator[Command]:
    """Start a process with keys of all kinds of rights."""
    arguments: list[object] = ["--key-name", ROOT, "--key", "cm9vdA=="]
    for name, key in KEYS.items():
        arguments += ["--key-name", f"{name}:{RIGHTS[name]}", "--key", key]
    with Command(*arguments) as running:
        yield running


class EntraCredential:
    """An async Entra credential with a meaningless token."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("eyJhbGciOiJub25lIn0.eyJzdWIiOiJ0ZXN0In0.", int(time.time()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> EntraCredential:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...


def host(bus: Any) -> str:
    return f"{bus.host}:{bus.port}"


def client_of(at: SdkClients, connection_string: str) -> AsyncFacade:
    """Open a data client of a connection string for the length of a scenario."""
    return at.keep_client(ServiceBusClient.from_connection_string(connection_string, retry_total=0))


def client_with_credential(at: SdkClients, credential: Any) -> AsyncFacade:
    """Open a data client with a credential; such clients use TLS, and another port than 5671 only if told so."""
    return at.keep_client(
        ServiceBusClient(
            host(at.bus),
            credential,
            retry_total=0,
            connection_verify=at.bus.ca_file,
            custom_endpoint_address=f"sb://{host(at.bus)}",
            transport_type=TransportType.Amqp,
        )
    )


def signed_in(at: SdkClients, key: str) -> AsyncFacade:
    return client_of(at, with_key(at.bus.connection_string, key, KEYS[key]))


def administration(at: SdkClients, connection_string: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, connection_verify=at.bus.ca_file, retry_total=0
    )


async def send(at: SdkClients, client: AsyncFacade, queue: str, text: str) -> None:
    await at.keep(client.get_queue_sender(queue)).send_messages(ServiceBusMessage(text))


async def receive(at: SdkClients, client: AsyncFacade, queue: str) -> list[str]:
    """Receive and complete one message; return its text."""
    receiver = at.keep(client.get_queue_receiver(queue))
    message = await at.take_one(receiver)
    await receiver.complete_message(message)
    return bodies([message])


# --- keys ----------------------------------------------------------------------------------------------------

WRONG = {
    "a wrong secret": (ROOT, "d3Jvbmc="),
    "an unknown name": ("nobody", "cm9vdA=="),
    "another's": ("both", "c2VuZA=="),
}


@scenario("async", cases=WRONG)
async def test_a_wrong_key_opens_nothing(at: SdkClients, case: str) -> None:
    """Sender, receiver and administration are refused as unauthenticated; the queue is unchanged."""
    queue = await at.queue()
    await at.send(queue, "there")
    wrong = with_key(at.bus.connection_string, *WRONG[case])
    client = client_of(at, wrong)
    with pytest.raises(ServiceBusAuthenticationError):
        await send(at, client, queue, "x")
    with pytest.raises(ServiceBusAuthenticationError):
        await at.keep(client.get_queue_receiver(queue)).receive_messages(1, max_wait_time=20)
    async with administration(at, wrong) as admin:
        with pytest.raises(ClientAuthenticationError):
            await admin.get_queue(queue)
        with pytest.raises(ClientAuthenticationError):
            await admin.delete_queue(queue)
    await at.settled(queue, active=1)
    assert [each.delivery_count for each in await at.receiver(queue).peek_messages(5)] == [0]


@scenario("async", cases=KEYS)
async def test_rights_of_a_key_hold(at: SdkClients, case: str) -> None:
    """Several keys at once send, schedule, receive and peek as far as their rights go, and no further."""
    queue = await at.queue()
    await at.send(queue, "there")
    client = signed_in(at, case)
    sender, receiver = at.keep(client.get_queue_sender(queue)), at.keep(client.get_queue_receiver(queue))
    if case in SENDERS:
        await sender.send_messages(ServiceBusMessage("sent"))
        await sender.schedule_messages(ServiceBusMessage("later"), soon(3600))
    else:
        with pytest.raises(ServiceBusAuthorizationError):
            await sender.send_messages(ServiceBusMessage("sent"))
        with pytest.raises(ServiceBusAuthorizationError):
            await sender.schedule_messages(ServiceBusMessage("later"), soon(3600))
    sent, scheduled = (2, 1) if case in SENDERS else (1, 0)
    await at.settled(queue, active=sent, scheduled=scheduled)
    if case in LISTENERS:
        assert bodies(await receiver.peek_messages()) == ["there"]
        await receiver.complete_message(await at.take_one(receiver))
        await at.settled(queue, active=sent - 1, scheduled=scheduled)
    else:
        with pytest.raises(ServiceBusAuthorizationError):
            await receiver.peek_messages()
        with pytest.raises(ServiceBusAuthorizationError):
            await receiver.receive_messages(1, max_wait_time=20)
        await at.settled(queue, active=sent, scheduled=scheduled)


@scenario("async", cases=KEYS)
async def test_the_administration_needs_manage(at: SdkClients, case: str) -> None:
    """Send and Listen, alone or together, can neither read nor change an entity."""
    queue, mine = await at.queue(), f"by-{case}"
    async with administration(at, with_key(at.bus.connection_string, case, KEYS[case])) as admin:
        if case == "manager":
            await admin.create_queue(mine)
            assert (await admin.get_queue(mine)).name == mine
            await admin.delete_queue(mine)
            return
        for asked in (admin.get_queue(queue), admin.create_queue(mine), admin.delete_queue(queue)):
            with pytest.raises(ClientAuthenticationError):
                await asked
    await at.settled(queue)
    assert mine not in [each.name for each in await asyncio.to_thread(lambda: list(at.admin.list_queues()))]


@scenario("async")
async def test_rights_hold_on_topics_and_subscriptions(at: SdkClients) -> None:
    """A key with Send can publish but not receive; with Listen it is the reverse."""
    topic = await at.topic()
    await at.subscription(topic, "all")
    publisher, subscriber = signed_in(at, "sender"), signed_in(at, "listener")
    await at.keep(publisher.get_topic_sender(topic)).send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusAuthorizationError):
        await at.keep(publisher.get_subscription_receiver(topic, "all")).receive_messages(1, max_wait_time=20)
    with pytest.raises(ServiceBusAuthorizationError):
        await at.keep(subscriber.get_topic_sender(topic)).send_messages(ServiceBusMessage("y"))
    await at.settled(topic, "all", active=1)
    assert bodies(await at.take(at.keep(subscriber.get_subscription_receiver(topic, "all")), 1)) == ["x"]


@scenario("async")
async def test_named_key_credential(at: SdkClients) -> None:
    """AzureNamedKeyCredential works over TLS; with a wrong key it is refused and no message arrives."""
    queue = await at.queue()
    await send(at, client_with_credential(at, AzureNamedKeyCredential("both", KEYS["both"])), queue, "hello")
    with pytest.raises(ServiceBusError):
        await send(at, client_with_credential(at, AzureNamedKeyCredential("both", "d3Jvbmc=")), queue, "x")
    await at.settled(queue, active=1)


# --- shared access signatures --------------------------------------------------------------------------------


def signature(at: SdkClients, path: str, life: float, key: str = "both") -> str:
    return sas_token(f"sb://{host(at.bus)}/{path}", key, KEYS[key], time.time() + life)


@scenario("async", cases=("credential", "connection string"))
async def test_a_sas_credential_opens_only_its_queue(at: SdkClients, case: str) -> None:
    """It sends to and receives from the queue that it was signed for."""
    queue, other = await at.queue(), await at.queue()
    token = signature(at, queue, 60)
    if case == "credential":
        client = client_with_credential(at, AzureSasCredential(token))
    else:
        endpoint = at.bus.connection_string.split(";")[0]
        client = client_of(at, f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true;")
    await send(at, client, queue, "hello")
    with pytest.raises(ServiceBusError):
        await send(at, client, other, "x")
    assert await receive(at, client, queue) == ["hello"]
    await at.settled(other)


@scenario("async", cases=("expired", "altered", "without the right"))
async def test_an_invalid_sas_credential_is_refused(at: SdkClients, case: str) -> None:
    """The message of an expired, an altered or a Listen-only signature does not arrive."""
    queue = await at.queue()
    token = signature(at, queue, -60) if case == "expired" else signature(at, queue, 60)
    if case == "altered":
        expiry = token.split("&se=")[1].split("&")[0]
        token = token.replace(expiry, str(int(expiry) + 1000))
    if case == "without the right":
        token = signature(at, queue, 60, "listener")
    with pytest.raises(ServiceBusError) as refused:
        await send(at, client_with_credential(at, AzureSasCredential(token)), queue, "x")
    if case == "without the right":
        assert isinstance(refused.value, ServiceBusAuthorizationError)
    else:
        assert "CBS Token authentication failed" in str(refused.value.inner_exception)
    await at.settled(queue)


@scenario("async")
async def test_a_receiver_is_closed_when_its_signature_expires(at: SdkClients) -> None:
    """Messages received before stay received; afterwards the link is closed and the token refused."""
    queue = await at.queue()
    await at.send(queue, "in time")
    client = client_with_credential(at, AzureSasCredential(signature(at, queue, 20)))
    receiver = at.keep(client.get_queue_receiver(queue))
    await receiver.complete_message(await at.take_one(receiver))

    await at.settled(queue)

    async def ended() -> bool:
        try:
            assert await receiver.receive_messages(1, max_wait_time=2) == []
        except ServiceBusError:
            return True
        return False

    await at.wait_until(ended, "the end of the link")
    await at.send(queue, "too late")
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(1, max_wait_time=20)
    await at.settled(queue, active=1)


# --- Entra ---------------------------------------------------------------------------------------------------


@scenario("async")
async def test_entra_tokens_are_refused_by_default(at: SdkClients) -> None:
    """A JWT opens neither links nor administration; the text names the option that accepts it."""
    queue = await at.queue()
    with pytest.raises(ServiceBusError) as refused:
        await send(at, client_with_credential(at, EntraCredential()), queue, "x")
    assert "CBS Token authentication failed" in str(refused.value.inner_exception)
    async with ServiceBusAdministrationClient(
        host(at.bus), EntraCredential(), connection_verify=at.bus.ca_file
    ) as admin:
        with pytest.raises(ClientAuthenticationError, match="--accept-any-jwt"):
            await admin.get_queue(queue)
    await at.settled(queue)


@scenario("async")
async def test_entra_tokens_are_accepted_with_the_option(at: SdkClients) -> None:
    """With accept_any_jwt any token opens everything, and keys are still checked."""
    started = await asyncio.to_thread(LocalBus(accept_any_jwt=True).start)
    with closing(started):
        there = SdkClients(started, "async")
        try:
            async with ServiceBusAdministrationClient(
                host(started), EntraCredential(), connection_verify=started.ca_file
            ) as admin:
                await admin.create_queue("orders")
            client = client_with_credential(there, EntraCredential())
            await send(there, client, "orders", "with a token")
            assert await receive(there, client, "orders") == ["with a token"]
            wrong = client_of(there, with_key(started.connection_string, ROOT, "d3Jvbmc="))
            with pytest.raises(ServiceBusAuthenticationError):
                await send(there, wrong, "orders", "x")
            await there.settled("orders")
        finally:
            await there.close()
