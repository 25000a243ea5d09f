"""Tokens: made for each kind of credential, put to `$cbs`, renewed in time, and never shown."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus import Namespace
from pairbus.localbus import LocalBus
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.runtime.backoff import Backoff
from pairbus.syphon.amqp import cbs
from pairbus.syphon.amqp.cbs import Token, token_for
from pairbus.syphon.amqp.link import LinkError
from pairbus.syphon.amqp.request_response import RequestRefused
from tests.support.amqp_connections import LinkEvents, connected, plain_namespace
from tests.support.entra_credential import EntraCredential
from tests.support.process_fixtures import key_of, sas_token
from tests.support.scripted_peer import Peer
from tests.support.waiting import wait_until_async


async def test_a_credential_that_hangs_is_called_once(bus: LocalBus) -> None:
    """Each attempt waits for its own deadline, and all share one call to the credential."""
    wake = threading.Event()
    calls: list[str] = []

    class Silent(EntraCredential):
        def get_token(self, *scopes: str, **kwargs: Any) -> Any:
            calls.append(scopes[0])
            wake.wait(60.0)
            return super().get_token(*scopes, **kwargs)

    try:
        async with connected(
            Namespace(f"127.0.0.1:{bus.port}", credential=Silent(), name="n", use_tls=False)
        ) as connection:
            for _ in range(3):
                with pytest.raises(LinkError, match="gave no token"):
                    await connection.authorize("q", timeout=0.2)
        assert len(calls) == 1
    finally:
        wake.set()


async def test_the_error_of_a_wrong_key_shows_no_secret(bus: LocalBus, caplog: pytest.LogCaptureFixture) -> None:
    """It names the entity. Neither key nor signature is in the error, the log or a repr."""
    caplog.set_level(logging.DEBUG)
    wrong = "d3JvbmcgYnV0IHNlY3JldCBhbnl3YXk="
    host = f"127.0.0.1:{bus.port}"
    namespace = Namespace(host, credential=AzureNamedKeyCredential(DEFAULT_KEY_NAME, wrong), name="n", use_tls=False)
    async with connected(namespace) as connection:
        with pytest.raises(LinkError) as raised:
            await connection.authorize("some/q", timeout=30.0)
        assert raised.value.condition == "com.microsoft:auth-failed"
        assert "some/q" in str(raised.value)
        token = token_for(namespace, "some/q")
        texts = [str(raised.value), repr(raised.value), caplog.text, repr(connection), repr(namespace), repr(token)]
        signature = token.text.split("sig=")[1].split("&")[0]
        assert not [text for text in texts if wrong in text or signature in text]


async def test_the_error_of_a_credential_is_not_repeated(bus: LocalBus) -> None:
    """Its text may hold a secret: only its class is named."""

    class Broken:
        def get_token(self, *scopes: str, **kwargs: Any) -> Any:
            raise RuntimeError("the client secret hunter2 was refused")

    namespace = Namespace(f"127.0.0.1:{bus.port}", credential=Broken(), name="n", use_tls=False)
    async with connected(namespace) as connection:
        with pytest.raises(LinkError, match="no token could be had for q: RuntimeError") as raised:
            await connection.authorize("q", timeout=30.0)
    assert raised.value.condition == "com.microsoft:auth-failed"
    assert "hunter2" not in str(raised.value)


async def test_localbus_closes_links_whose_token_has_expired(bus: LocalBus) -> None:
    """So that the test of renewal proves something."""
    events = LinkEvents()
    text = sas_token(f"sb://127.0.0.1:{bus.port}/q", DEFAULT_KEY_NAME, key_of(bus.connection_string), time.time() + 8)
    namespace = plain_namespace(bus.port)
    object.__setattr__(namespace, "credential", AzureSasCredential(text))
    async with connected(namespace) as connection:
        await connection.authorize("q", timeout=30.0)
        await connection.sender("q", events, timeout=30.0)
        await wait_until_async(lambda: events.closed)
    assert events.closed[0].condition == "amqp:unauthorized-access"


def test_a_signed_token_expires_at_the_second_in_its_text() -> None:
    """The service reads whole seconds there, and the renewal uses the same time."""
    namespace = Namespace("contoso.servicebus.windows.net", credential=AzureNamedKeyCredential("name", "a2V5"))
    token = token_for(namespace, "q")
    assert f"&se={token.expires_at:.0f}&" in token.text
    assert token.expires_at == int(token.expires_at)


async def test_a_token_that_looks_expired_is_not_renewed_in_a_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock here may be ahead of the service's, which accepts the token."""
    calls: list[str] = []

    def expired_token(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
        calls.append(path)
        return Token("text", "jwt", time.time() - 100)

    monkeypatch.setattr(cbs, "token_for", expired_token)
    with Peer() as peer:
        async with connected(peer.namespace) as connection:
            await connection.authorize("q", timeout=30.0)
            await wait_until_async(lambda: len(calls) >= 2)
            assert len(calls) <= 3


async def test_a_renewal_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the entity and no secret, and the connection stays open."""
    monkeypatch.setattr(cbs, "_RENEWAL_BACKOFF", Backoff(0.05, 0.05))
    calls: list[str] = []

    def fails_once(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
        calls.append(path)
        if len(calls) == 2:
            raise RuntimeError("hunter2")
        return Token("text", "jwt", time.time() + (0.5 if len(calls) == 1 else 100))

    monkeypatch.setattr(cbs, "token_for", fails_once)
    with Peer() as peer:
        async with connected(peer.namespace) as connection:
            await connection.authorize("q", timeout=30.0)
            await wait_until_async(lambda: len(calls) == 3)
            assert connection.lost is None
    assert "the token for q could not be renewed" in caplog.text
    assert "next attempt in 0.05 s" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "condition", "kind"),
    [
        ({"grant": 404}, "amqp:not-found", RequestRefused),
        ({"grant": 410}, "amqp:resource-deleted", RequestRefused),
        ({"grant": 400}, "com.microsoft:auth-failed", LinkError),
        ({"grant": 401}, "amqp:unauthorized-access", RequestRefused),
        ({"grant": 503}, "com.microsoft:server-busy", RequestRefused),
        ({"grant": b"\x00\x53\x77\xff"}, "amqp:internal-error", LinkError),
        ({"refuse_cbs": ("amqp:not-found", "no such node")}, "amqp:internal-error", LinkError),
    ],
)
async def test_the_condition_of_a_token_that_is_not_accepted(
    answer: dict[str, Any], condition: str, kind: type[LinkError]
) -> None:
    """It names a missing entity only if the response does. A refused token and a broken node are no missing entity."""
    with Peer(**answer) as peer:
        async with connected(peer.namespace) as connection:
            with pytest.raises(LinkError) as raised:
                await connection.authorize("q", timeout=30.0)
    assert raised.value.condition == condition
    assert type(raised.value) is kind


async def test_no_token_is_renewed_after_the_end_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer of the renewal ends with the connection, and nothing is logged."""
    calls: list[str] = []

    def short_token(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
        calls.append(path)
        return Token("text", "jwt", time.time() + 1.0)

    monkeypatch.setattr(cbs, "token_for", short_token)
    with Peer() as peer:
        async with connected(peer.namespace) as connection:
            await connection.authorize("q", timeout=30.0)
        await asyncio.sleep(1.2)  # longer than the time to the renewal
    assert calls == ["q"]


async def test_a_second_authorization_replaces_the_renewal_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer for each entity, however often a link to it is opened."""
    calls: list[str] = []

    def token(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
        calls.append(path)
        return Token("text", "jwt", time.time() + (1.0 if len(calls) <= 3 else 1000.0))

    monkeypatch.setattr(cbs, "token_for", token)
    with Peer() as peer:
        async with connected(peer.namespace) as connection:
            for _ in range(3):
                await connection.authorize("q", timeout=30.0)
            await wait_until_async(lambda: len(calls) == 4)
            await asyncio.sleep(0.5)
    assert len(calls) == 4


def test_a_shared_access_signature_is_passed_on_with_its_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expiry is read from it; one without an expiry counts as valid for the default lifetime."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    for text, expires_at in (("SharedAccessSignature sr=x&se=1700&sig=y", 1700.0), ("opaque", 4600.0)):
        namespace = Namespace("contoso.servicebus.windows.net", credential=AzureSasCredential(text))
        assert token_for(namespace, "q") == Token(text, "servicebus.windows.net:sastoken", expires_at)


@pytest.mark.parametrize("event_hubs", [False, True])
def test_a_token_of_entra_has_the_scope_of_its_service(event_hubs: bool) -> None:
    """Service Bus and Event Hubs have their own."""
    scopes: list[str] = []

    class Recording(EntraCredential):
        def get_token(self, *given: str, **kwargs: Any) -> Any:
            scopes.extend(given)
            return super().get_token(*given, **kwargs)

    namespace = Namespace("contoso.servicebus.windows.net", credential=Recording())
    assert token_for(namespace, "q", event_hubs=event_hubs).kind == "jwt"
    assert scopes == [f"https://{'eventhubs' if event_hubs else 'servicebus'}.azure.net/.default"]
