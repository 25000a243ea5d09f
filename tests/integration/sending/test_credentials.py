"""Every way in: each credential for provisioning, for sending and for parking, plain and over TLS."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError, ServiceResponseError
from azure.identity import (
    ChainedTokenCredential,
    ClientSecretCredential,
    CredentialUnavailableError,
    EnvironmentCredential,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import Namespace, PairingError, ProvisioningError, pair_namespaces
from pairbus.localbus import LocalBus
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.sending import credential_check as credentials
from pairbus.sending.pairing import _check_credentials
from pairbus.sending.sdk.clients import put_token, token_sender
from tests.support.entra_credential import EntraCredential
from tests.support.pairing import SLACK, Pair, pairbus_threads
from tests.support.process_fixtures import create, key_of, sas_token
from tests.support.waiting import wait_until


def signature(bus: LocalBus) -> str:
    """A signature for the whole namespace."""
    return sas_token(f"sb://127.0.0.1:{bus.port}/", DEFAULT_KEY_NAME, key_of(bus.connection_string), time.time() + 600)


def by_key(bus: LocalBus, name: str) -> Namespace:
    return Namespace.from_connection_string(bus.connection_string, name=name, ca_file=bus.ca_file)


def by_signature(bus: LocalBus, name: str) -> Namespace:
    text = f"Endpoint=sb://127.0.0.1:{bus.port};SharedAccessSignature={signature(bus)};UseDevelopmentEmulator=true"
    return Namespace.from_connection_string(text, name=name, ca_file=bus.ca_file)


def by_sas_credential(bus: LocalBus, name: str) -> Namespace:
    host = f"127.0.0.1:{bus.port}"
    return Namespace(host, credential=AzureSasCredential(signature(bus)), name=name, ca_file=bus.ca_file, use_tls=False)


def by_named_key(bus: LocalBus, name: str) -> Namespace:
    named = AzureNamedKeyCredential(DEFAULT_KEY_NAME, key_of(bus.connection_string))
    return Namespace(f"127.0.0.1:{bus.port}", credential=named, name=name, ca_file=bus.ca_file, use_tls=False)


def by_token(bus: LocalBus, name: str) -> Namespace:
    return Namespace(
        f"127.0.0.1:{bus.port}", credential=EntraCredential(), name=name, ca_file=bus.ca_file, use_tls=False
    )


def over_tls(bus: LocalBus, name: str) -> Namespace:
    return Namespace.from_connection_string(bus.tls_connection_string, name=name, ca_file=bus.ca_file)


def over_tls_by_token(bus: LocalBus, name: str) -> Namespace:
    return Namespace(f"127.0.0.1:{bus.port}", credential=EntraCredential(), name=name, ca_file=bus.ca_file)


WAYS = [by_key, by_signature, by_sas_credential, by_named_key, by_token, over_tls, over_tls_by_token]


def story(pair: Pair, way: Callable[[LocalBus, str], Namespace]) -> tuple[int, int, list[Namespace]]:
    """Provision, send, park, wait for the failback, send again: what is where, and the namespaces that were used."""
    queue = pair.queue()
    places = [way(pair.primary, pair.name), way(pair.secondary, "backup")]
    with (
        pair.pairing(primary=places[0], secondary=places[1], ping_primary_interval=1) as bus,
        bus.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("direct"))
        fault = pair.primary.faults.unavailable(queue)
        pair.declare_down(bus, queue)
        sender.send_messages(ServiceBusMessage("parked"))
        pair.primary.faults.clear(fault)
        wait_until(lambda: bus.status().entities[queue].state == "available")
        sender.send_messages(ServiceBusMessage("again"))
    return pair.arrived(queue), pair.parked(), places


@pytest.fixture(scope="module")
def stories() -> Iterator[dict[Any, Future[tuple[int, int, list[Namespace]]]]]:
    """The story with each credential, side by side, in two namespaces that take Entra tokens as well."""
    with (
        LocalBus("contoso", accept_any_jwt=True) as primary,
        LocalBus("backup", accept_any_jwt=True) as secondary,
        ThreadPoolExecutor(4) as pool,
    ):
        yield {way: pool.submit(story, Pair(primary, secondary), way) for way in WAYS}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
def test_each_credential_opens_provisioning_sending_and_parking(
    stories: dict[Any, Future[tuple[int, int, list[Namespace]]]], way: Callable[[LocalBus, str], Namespace]
) -> None:
    """One and the same credential makes the backlog queues, sends, parks, and pings the primary back."""
    arrived, parked, places = stories[way].result(60)
    assert (arrived, parked) == (2, 1)
    for place in places:
        if isinstance(place.credential, EntraCredential):
            asked = {scope for scopes in place.credential.scopes for scope in scopes}
            assert {scope.replace("net//", "net/") for scope in asked} == {"https://servicebus.azure.net/.default"}


def test_a_token_that_is_refused_is_no_outage(pair: Pair) -> None:
    """Entra tokens where none are taken: provisioning says so at once; for the primary the send raises, unparked."""
    with pytest.raises(PairingError, match="does not let this credential") as raised:
        pair.pairing(secondary=by_token(pair.secondary, "backup"))
    assert not isinstance(raised.value, ProvisioningError)
    queue = pair.queue()
    bus = pair.pairing(primary=by_token(pair.primary, pair.name))
    with pytest.raises(ServiceBusError):
        bus.get_queue_sender(queue).send_messages(ServiceBusMessage("refused"))
    assert bus.status().entities[queue].state == "available"
    assert pair.parked() == 0


class Refusing:
    """A credential that gives no token, for a reason of its own, while it has one in `error`.

    `held`: it does not even answer until this is set."""

    def __init__(self, error: Exception | None, cause: Exception | None = None) -> None:
        self._entra = EntraCredential()
        self.error = error
        self.cause = cause
        self.held: threading.Event | None = None

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        if self.held is not None:
            self.held.wait(60)
        if self.error is not None:
            raise self.error from self.cause
        return self._entra.get_token(*scopes, **kwargs)


def of(bus: LocalBus, name: str, credential: Any) -> Namespace:
    return Namespace(f"127.0.0.1:{bus.port}", credential=credential, name=name, ca_file=bus.ca_file, use_tls=False)


def unavailable() -> Exception:
    return CredentialUnavailableError(message="please run 'az login'; token=SECRET1")


def unreachable() -> ChainedTokenCredential:
    """A chain of real credentials, whose last one finds nobody at its authority's address."""
    missing = EnvironmentCredential()
    secret = ClientSecretCredential(
        "00000000-0000-0000-0000-000000000000",
        "client",
        "secret",
        authority="https://127.0.0.1:1",
        disable_instance_discovery=True,
        retry_total=0,
    )
    return ChainedTokenCredential(missing, secret)


@pytest.mark.parametrize("kind", [ClientAuthenticationError, CredentialUnavailableError])
def test_a_credential_that_gives_no_token_is_told_when_the_pairing_is_opened(pair: Pair, kind: type[Exception]) -> None:
    """The primary's, by the namespace's name and without anything secret; no thread is left of it."""
    place = of(pair.primary, pair.name, Refusing(kind("please run 'az login'; token=SECRET1")))
    with pytest.raises(PairingError, match="credential of the primary") as raised:
        pair.pairing(primary=place)
    assert place.host in str(raised.value)
    assert "az login" in str(raised.value)
    assert "SECRET" not in str(raised.value)
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_so_is_that_of_the_event_hubs(pair: Pair) -> None:
    """Asked for a token of Event Hubs."""
    entra = EntraCredential()
    places = pair.primary_namespace(), pair.secondary_namespace()
    with pytest.raises(PairingError, match="the event hubs namespace hubs"):
        pair_namespaces(*places, event_hubs=Namespace("hubs.example", credential=Refusing(unavailable())))
    with pair_namespaces(*places, event_hubs=Namespace("hubs.example", credential=entra)):
        assert entra.scopes == [("https://eventhubs.azure.net//.default",)]


def test_a_credential_is_asked_once_and_not_again_where_provisioning_asks_it(pair: Pair) -> None:
    """One that serves both namespaces is asked by provisioning alone: somebody might have to answer it by hand."""
    with LocalBus("backup", accept_any_jwt=True) as secondary:
        mine, shared = EntraCredential(), EntraCredential()
        pair.pairing(primary=of(pair.primary, pair.name, mine), secondary=by_token(secondary, "backup"))
        assert mine.scopes == [("https://servicebus.azure.net//.default",)]
        both = of(pair.primary, pair.name, shared), of(secondary, "backup", shared)
        before = threading.active_count()
        assert _check_credentials(*both, None) == []
        assert threading.active_count() == before
        pair.pairing(primary=both[0], secondary=both[1])
        pair.close_pairings()


@pytest.mark.parametrize("cause", [ServiceRequestError("unreachable"), ServiceResponseError("broke off")])
def test_a_network_that_fails_keeps_no_application_from_starting(pair: Pair, cause: Exception) -> None:
    """The authority cannot be reached, in azure-identity's words: the pairing opens, and sends are parked."""
    queue = pair.queue()
    place = of(pair.primary, pair.name, Refusing(ClientAuthenticationError("Authentication failed"), cause))
    bus = pair.pairing(primary=place)
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("parked"))
    assert bus.status().entities[queue].state == "failed over"
    assert pair.parked_bodies() == ["parked"]


def test_nor_does_one_behind_a_chain_of_credentials(pair: Pair) -> None:
    """A chain's own error does not tell what its members met: they are asked, one by one."""
    credential = unreachable()
    with pytest.raises(ClientAuthenticationError) as raised:
        credential.get_token("https://servicebus.azure.net//.default")
    assert raised.value.__cause__ is None
    pair.pairing(primary=of(pair.primary, pair.name, credential))
    with pytest.raises(PairingError, match="gives no token"):
        pair.pairing(primary=of(pair.primary, pair.name, ChainedTokenCredential(EnvironmentCredential())))


def test_a_credential_that_does_not_answer_is_not_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its time while backlog queues are looked for, and little more."""
    monkeypatch.setattr(credentials, "_TOKEN_SECONDS", 1.0)
    silent = Refusing(unavailable())
    silent.held = threading.Event()
    begun = time.monotonic()
    try:
        pair.pairing(primary=of(pair.primary, pair.name, silent))
        assert time.monotonic() - begun < 1 + SLACK
    finally:
        silent.held.set()


def wrong_key(pair: Pair) -> Any:
    return AzureNamedKeyCredential(DEFAULT_KEY_NAME, "c2VjcmV0IGtleSBvZiBhbm90aGVy")


def unknown_key(pair: Pair) -> Any:
    return AzureNamedKeyCredential("nobody", key_of(pair.primary.connection_string))


def signed(pair: Pair, path: str = "", *, ends_in: float = 600, key: str | None = None) -> AzureSasCredential:
    url = f"sb://127.0.0.1:{pair.primary.port}/{path}"
    secret = key or key_of(pair.primary.connection_string)
    return AzureSasCredential(sas_token(url, DEFAULT_KEY_NAME, secret, time.time() + ends_in))


BAD: dict[str, Callable[[Pair], Any]] = {
    "another's key": wrong_key,
    "an unknown key": unknown_key,
    "another's signature": lambda pair: signed(pair, key="c2VjcmV0"),
    "an expired signature": lambda pair: signed(pair, ends_in=-60),
    "no signature": lambda pair: AzureSasCredential(f"SharedAccessSignature sr=sb%3A%2F%2F127.0.0.1&skn=k&se={2**32}"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_key_or_signature_of_the_primary_is_told_when_the_pairing_is_opened(pair: Pair, bad: str) -> None:
    """By the service itself, without anything secret, and nothing is left of the attempt."""
    place = of(pair.primary, pair.name, BAD[bad](pair))
    with pytest.raises(PairingError, match="credential of the primary") as raised:
        pair.pairing(primary=place)
    said = str(raised.value)
    assert "401" in said
    assert "whole namespace" in said
    assert place.host in said
    assert not any(secret in said for secret in ("c2VjcmV0", "sig=", "sr="))
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_a_key_that_may_do_little_opens_a_pairing(pair: Pair) -> None:
    """A key that may not even send, and a signature for one entity: what they are good for is told by a send."""
    with LocalBus(pair.name, key_name="little:Listen", key="bGl0dGxl") as primary:
        pair.pairing(primary=of(primary, pair.name, AzureNamedKeyCredential("little", "bGl0dGxl")))
        pair.close_pairings()
    queue = pair.queue()
    bus = pair.pairing(primary=of(pair.primary, pair.name, signed(pair, queue)))
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("direct"))
    assert pair.bodies(queue) == ["direct"]


@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_a_primary_that_cannot_be_asked_keeps_no_application_from_starting(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its key is not judged: the pairing opens in time, sends are parked, and no thread waits for ever."""
    monkeypatch.setattr(credentials, "_ANSWER_SECONDS", 1.0)
    queue = pair.queue()
    pair.primary.kill() if way == "killed" else pair.primary.pause()
    begun = time.monotonic()
    bus = pair.pairing(primary=of(pair.primary, pair.name, wrong_key(pair)), backlog_queue_count=1)
    assert time.monotonic() - begun < 1 + SLACK
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("parked"), timeout=6)
    assert pair.parked_bodies() == ["parked"]
    wait_until(lambda: not any("credential" in name for name in pairbus_threads()), why=pairbus_threads)


def test_a_peer_of_another_protocol_is_left_alone_at_once() -> None:
    """The key could not be shown to it: the error says so, and the connection is closed, not left to be collected."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        credential = AzureNamedKeyCredential("k", "c2VjcmV0")
        sender = token_sender(Namespace(host, credential=credential, name="contoso", use_tls=False), 5)
        with ThreadPoolExecutor(1) as pool:
            trying = pool.submit(put_token, sender, 5)
            peer, _ = server.accept()
            with peer:
                peer.settimeout(30)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                while peer.recv(1024):
                    pass  # its greeting; then it hangs up, while we hold the sender
                refusal = trying.exception(60)
    assert refusal is not None
    assert "c2VjcmV0" not in f"{refusal!r} {sender!r}"


def test_a_credential_that_is_refused_later_is_no_outage(pair: Pair) -> None:
    """With the primary in good health: sends raise and nothing is parked; while it is failed over, it is unusable."""
    with LocalBus("contoso", accept_any_jwt=True) as primary:
        create(primary, "orders")
        credential = Refusing(None)
        bus = pair.pairing(primary=of(primary, pair.name, credential), ping_primary_interval=1)
        sender = bus.get_queue_sender("orders")
        credential.error = unavailable()
        for _ in range(2):
            with pytest.raises(ServiceBusError, match="az login") as raised:
                sender.send_messages(ServiceBusMessage("refused"))
            assert len(raised.value.messages) == 1  # type: ignore[attr-defined]
        assert bus.status().entities["orders"].state == "available"
        with pytest.raises(ServiceBusError, match="az login"), bus.get_queue_sender("orders"):
            raise AssertionError("not reached")
        pair.declare_down(bus, "orders")
        wait_until(lambda: bus.status().entities["orders"].state == "unusable", why=bus.status)
        with pytest.raises(ServiceBusError, match="az login"):
            sender.send_messages(ServiceBusMessage("refused"))
        credential.error = None
        wait_until(lambda: bus.status().entities["orders"].state == "available", why=bus.status)
        sender.send_messages(ServiceBusMessage("sent"))
        assert pair.count(primary, "orders") == 1
        assert pair.parked() == 0
        bus.close()


def test_an_expired_signature_is_no_outage(pair: Pair) -> None:
    """A shared access signature past its time: refused by both planes as a fault of the credential."""
    old = sas_token(
        f"sb://127.0.0.1:{pair.secondary.port}/",
        DEFAULT_KEY_NAME,
        key_of(pair.secondary.connection_string),
        time.time() - 60,
    )
    place = Namespace(
        f"127.0.0.1:{pair.secondary.port}",
        credential=AzureSasCredential(old),
        name="backup",
        ca_file=pair.secondary.ca_file,
        use_tls=False,
    )
    with pytest.raises(PairingError, match="ExpiredToken"):
        pair.pairing(secondary=place)


def test_a_renewed_signature_is_used_by_the_next_connection(pair: Pair) -> None:
    """`AzureSasCredential.update` while a pairing is open: what is opened from then on uses the new one."""
    queue = pair.queue()
    place = by_sas_credential(pair.primary, pair.name)
    good = place.credential.signature
    bus = pair.pairing(primary=place)
    place.credential.update(good.replace("sig=", "sig=AAAA"))
    with pytest.raises(ServiceBusError):
        bus.get_queue_sender(queue).send_messages(ServiceBusMessage("refused"))
    place.credential.update(good)
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("direct"))
    assert pair.bodies(queue) == ["direct"]


def test_a_secondary_signed_by_an_unknown_authority_is_refused_in_plain_words(pair: Pair) -> None:
    """The wrong CA file: pairing fails at once and says that the certificate could not be verified."""
    place = Namespace.from_connection_string(
        pair.secondary.connection_string, name="backup", ca_file=pair.primary.ca_file
    )
    with pytest.raises(ProvisioningError, match=r"(?i)certificate verify failed"):
        pair.pairing(secondary=place)


def test_a_primary_signed_by_an_unknown_authority_says_so(pair: Pair) -> None:
    """The wrong CA file for sends over TLS: the error that is raised, or counted, names the certificate."""
    queue = pair.queue()
    place = Namespace.from_connection_string(
        pair.primary.tls_connection_string, name=pair.name, ca_file=pair.secondary.ca_file
    )
    bus = pair.pairing(primary=place, failover_interval=60)
    with pytest.raises(ServiceBusError) as raised:
        bus.get_queue_sender(queue).send_messages(ServiceBusMessage("refused"), timeout=2)
    assert "certificate" in f"{raised.value}{raised.value.__cause__}{raised.value.inner_exception}".lower()
    assert pair.parked() == 0
