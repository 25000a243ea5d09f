"""Tokens: made for each kind of credential, put to `$cbs`, renewed in time, and never shown."""

from __future__ import annotations

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
from tests.integration.sending.test_credentials import Entra
from tests.support.amqp_connections import LinkEvents, connected, plain_namespace, until
from tests.support.process_fixtures import key_of, sas_token
from tests.support.scripted_peer import Peer


async def test_a_credential_that_hangs_is_called_once(bus: LocalBus) -> None:
    """Each attempt waits for its own deadline, and all share one call to the credential."""
    wake = threading.Event()
    calls: list[str] = []

    class Silent(Entra):
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
        await until(lambda: events.closed)
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
            await until(lambda: len(calls) >= 2)
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
            await until(lambda: len(calls) == 3)
            assert connection.lost is None
    assert "the token for q could not be renewed" in caplog.text
    assert "next attempt in 0.05 s" in caplog.text
    assert "hunter2" not in caplog.text
