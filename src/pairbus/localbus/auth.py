"""Who may do what: shared access keys, the tokens signed with them, and what a connection has been granted."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from . import conditions
from .addresses import parse_address
from .conditions import BusError

SEND, LISTEN, MANAGE = "Send", "Listen", "Manage"
RIGHTS = (SEND, LISTEN, MANAGE)
DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
_PREFIX = "SharedAccessSignature "


@dataclass(frozen=True)
class Key:
    """A shared access key: never shown."""

    name: str
    secret: str = field(repr=False)
    rights: frozenset[str] = frozenset(RIGHTS)

    @classmethod
    def random(cls, name: str = DEFAULT_KEY_NAME) -> Key:
        return cls(name, base64.b64encode(secrets.token_bytes(32)).decode())

    def allows(self, right: str) -> bool:
        return right in self.rights or MANAGE in self.rights


@dataclass(frozen=True)
class Grant:
    """What one token allows: these rights, on this path and below, until then."""

    path: str
    rights: frozenset[str]
    expires_at: float

    def covers(self, path: str, right: str | None) -> bool:
        return _within(path, self.path) and (right is None or right in self.rights or MANAGE in self.rights)


def unauthorized(why: str) -> BusError:
    """The service's refusal of a token, or of a link without one."""
    return BusError(conditions.UNAUTHORIZED, f"Unauthorized access. {why}")


class Authorizer:
    """Checks tokens against the keys of the namespace."""

    def __init__(
        self, keys: list[Key], *, hosts: frozenset[str], port: int = 0, accept_any_jwt: bool = False
    ) -> None:
        self.keys = {key.name: key for key in keys}
        self.hosts = hosts
        self.port = port
        self.accept_any_jwt = accept_any_jwt

    def grant(self, token: str, audience: str, now: float, local: tuple[dict[str, Any], ...] = ()) -> Grant:
        """What a token allows on an audience (a URL or path); `local` are the entity's own keys."""
        path = parse_address(audience).path.lower()
        if not token.startswith(_PREFIX):
            return self._jwt(token, path)
        fields = dict(part.partition("=")[::2] for part in token[len(_PREFIX) :].split("&"))
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise unauthorized(f"MalformedToken: The token lacks {', '.join(missing)}.")
        key = self._key(unquote_plus(fields["skn"]), local)
        expected = hmac.new(key.secret.encode(), f"{fields['sr']}\n{fields['se']}".encode(), hashlib.sha256).digest()
        try:
            given = base64.b64decode(unquote(fields["sig"]), validate=True)
        except (binascii.Error, ValueError):
            given = b""
        if not hmac.compare_digest(expected, given):
            raise unauthorized("InvalidSignature: The token has an invalid signature.")
        try:
            expires_at = float(unquote(fields["se"]))
        except ValueError:
            raise unauthorized("MalformedToken: The token's expiry is no number.") from None
        if expires_at <= now:
            raise unauthorized("ExpiredToken: The token is expired.")
        scope = self._scope(unquote_plus(fields["sr"]))
        if not _within(path, scope):
            raise unauthorized(f"InvalidAudience: The token is for '{scope}', not for '{path}'.")
        return Grant(path, key.rights, expires_at)

    def _key(self, name: str, local: tuple[dict[str, Any], ...]) -> Key:
        key = self.keys.get(name)
        if key is not None:
            return key
        for rule in local:
            if rule.get("key_name") == name and rule.get("primary_key"):
                return Key(name, str(rule["primary_key"]), frozenset(rule.get("rights") or ()))
        raise unauthorized("InvalidSignature: The token names a key that does not exist here.")

    def _jwt(self, token: str, path: str) -> Grant:
        if not self.accept_any_jwt:
            raise unauthorized(
                "InvalidIssuer: Entra (JWT) tokens are refused here; start localbus with --accept-any-jwt."
            )
        if token.count(".") < 2 and not token.strip():
            raise unauthorized("MalformedToken: The token is empty.")
        return Grant(path, frozenset(RIGHTS), float("inf"))

    def _scope(self, resource: str) -> str:
        """The path a token was signed for; its host, and port if it names one, must be ours."""
        parts = urlsplit(resource if "://" in resource else f"sb://{resource}")
        try:
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise unauthorized("MalformedToken: The token's resource is no URL.") from None
        if host not in self.hosts or (port is not None and port != self.port):
            raise unauthorized(f"InvalidAudience: The token is for another host ('{host}').")
        return parse_address(parts.path).path.lower()

    def check_rest(self, header: str | None, path: str, right: str, now: float) -> None:
        """Refuse a management request that no key, or not the right one, has signed."""
        if not header:
            raise unauthorized("MissingToken: The request has no Authorization header.")
        token = header[7:] if header[:7].lower() == "bearer " else header
        if not self.grant(token, path, now).covers(path.lower(), right):
            raise unauthorized(f"The key does not hold the {right} claim that '{path}' asks for.")


def _within(path: str, scope: str) -> bool:
    path, scope = path.lower().strip("/"), scope.lower().strip("/")
    return not scope or path == scope or path.startswith(scope + "/")
