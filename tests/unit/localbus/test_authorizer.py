"""The authorizer: the grant of each kind of token, and the reasons for a refusal."""

from __future__ import annotations

import base64
import hashlib
import hmac
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import pytest

from pairbus.localbus.auth import LISTEN, MANAGE, SEND, Authorizer, Grant, Key
from pairbus.localbus.bus_errors import AUTH_FAILED, UNAUTHORIZED, BusError
from pairbus.localbus.settings import QueueSettings

NOW = 1_000_000.0
ROOT = Key("root", "cm9vdA==")
SENDER = Key("sender", "c2VuZA==", frozenset((SEND,)))
OWN_RULE = {"key_name": "own", "rights": ["Listen"], "primary_key": "cDE=", "secondary_key": "cDI="}


def token(resource: str, name: str, secret: str, expires_at: float = NOW + 60) -> str:
    quoted, expiry = quote_plus(resource), str(int(expires_at))
    digest = hmac.new(secret.encode(), f"{quoted}\n{expiry}".encode(), hashlib.sha256).digest()
    return f"SharedAccessSignature sr={quoted}&sig={quote_plus(base64.b64encode(digest))}&se={expiry}&skn={name}"


def authorizer(**options: Any) -> Authorizer:
    queue = SimpleNamespace(settings=QueueSettings("orders", authorization_rules=(OWN_RULE,)))
    entities: Any = SimpleNamespace(queue=lambda path: queue if path == "orders" else None, topic=lambda path: None)
    return Authorizer([ROOT, SENDER], hosts=frozenset(("127.0.0.1",)), port=5672, entities=entities, **options)


def test_a_token_grants_the_rights_of_its_key_on_its_audience() -> None:
    """The grant covers the audience and the paths below it, until the token expires."""
    grant = authorizer().grant(token("sb://127.0.0.1:5672/orders", "sender", SENDER.secret), "orders", NOW)
    assert grant == Grant("orders", frozenset((SEND,)), NOW + 60)
    assert grant.covers("Orders/Subscriptions/x", SEND)
    assert grant.covers("orders", None)
    assert not grant.covers("orders", LISTEN)
    assert not grant.covers("orders2", SEND)
    assert not grant.covers("other", SEND)


def test_manage_includes_all_rights() -> None:
    """A key with Manage may send and listen."""
    assert all(Grant("", frozenset((MANAGE,)), 0.0).covers("any", right) for right in (SEND, LISTEN, MANAGE))


@pytest.mark.parametrize("secret", ["cDE=", "cDI="])
def test_both_keys_of_an_entity_sign_for_it(secret: str) -> None:
    """They have the rule's rights on the entity, and sign for no other."""
    grant = authorizer().grant(token("sb://127.0.0.1/orders", "own", secret), "orders/$management", NOW)
    assert grant.rights == frozenset((LISTEN,))
    with pytest.raises(BusError, match="names a key that does not exist"):
        authorizer().grant(token("sb://127.0.0.1/other", "own", secret), "other", NOW)


@pytest.mark.parametrize(
    ("given", "audience", "reason"),
    [
        (token("sb://127.0.0.1/orders", "root", "d3Jvbmc="), "orders", "InvalidSignature"),
        (token("sb://127.0.0.1/orders", "nobody", ROOT.secret), "orders", "InvalidSignature"),
        (token("sb://127.0.0.1/orders", "root", ROOT.secret, NOW), "orders", "ExpiredToken"),
        (token("sb://127.0.0.1/other", "root", ROOT.secret), "orders", "InvalidAudience"),
        (token("sb://elsewhere/orders", "root", ROOT.secret), "orders", "InvalidAudience"),
        (token("sb://127.0.0.1:1/orders", "root", ROOT.secret), "orders", "InvalidAudience"),
        ("SharedAccessSignature sr=x&se=1&skn=root", "orders", "MalformedToken: The token lacks sig"),
        ("eyJ0.a.b", "orders", "--accept-any-jwt"),
    ],
    ids=["wrong key", "unknown key", "expired", "another entity", "another host", "another port", "incomplete", "JWT"],
)
def test_invalid_tokens_are_refused(given: str, audience: str, reason: str) -> None:
    """The error has the service's reason."""
    with pytest.raises(BusError, match=reason) as refused:
        authorizer().grant(given, audience, NOW)
    assert (refused.value.condition, refused.value.status) == (AUTH_FAILED, 401)


def test_a_jwt_is_accepted_with_the_option_unless_it_is_empty() -> None:
    """It grants all rights on its audience, for ever."""
    grant = authorizer(accept_any_jwt=True).grant("eyJ0.a.b", "orders", NOW)
    assert grant == Grant("orders", frozenset((SEND, LISTEN, MANAGE)), float("inf"))
    with pytest.raises(BusError, match="The token is empty"):
        authorizer(accept_any_jwt=True).grant(" ", "orders", NOW)


def test_a_login_grants_the_rights_of_a_key_on_everything() -> None:
    """A wrong name or secret grants nothing."""
    grants: dict[str, Grant] = {}
    assert not authorizer().log_in(grants, "sender", ROOT.secret)
    assert not authorizer().log_in(grants, "nobody", ROOT.secret)
    assert grants == {}
    assert authorizer().log_in(grants, "sender", SENDER.secret)
    assert [grant.covers("any/path", right) for grant in grants.values() for right in (SEND, LISTEN)] == [True, False]


def test_a_management_request_needs_the_right() -> None:
    """The header may have the word Bearer; a missing header and a missing right are refused."""
    signed = token("sb://127.0.0.1/", "root", ROOT.secret)
    authorizer().check_rest(signed, "orders", MANAGE, NOW)
    authorizer().check_rest(f"Bearer {signed}", "orders", MANAGE, NOW)
    with pytest.raises(BusError, match="MissingToken"):
        authorizer().check_rest(None, "orders", MANAGE, NOW)
    with pytest.raises(BusError) as refused:
        authorizer().check_rest(token("sb://127.0.0.1/", "sender", SENDER.secret), "orders", MANAGE, NOW)
    assert refused.value.condition == UNAUTHORIZED
