"""Authorization: shared access keys, the tokens signed with them, and the grants of a connection."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from urllib.parse import unquote, unquote_plus, urlsplit

from . import bus_errors
from .addresses import Address, Entities, locate, parse_address
from .bus_errors import BusError

SEND, LISTEN, MANAGE = "Send", "Listen", "Manage"
RIGHTS = (SEND, LISTEN, MANAGE)
DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
_PREFIX = "SharedAccessSignature "
_LATEST = 1 << 53


@dataclass(frozen=True)
class Key:
    """A shared access key; its repr does not show the secret."""

    name: str
    secret: str = field(repr=False)
    rights: frozenset[str] = frozenset(RIGHTS)

    @classmethod
    def random(cls, name: str = DEFAULT_KEY_NAME) -> Key:
        return cls(name, base64.b64encode(secrets.token_bytes(32)).decode())


@dataclass(frozen=True)
class Grant:
    """The rights that one token gives on a path and the paths below it, until it expires."""

    path: str
    rights: frozenset[str]
    expires_at: float

    def allows(self, right: str | None) -> bool:
        return right is None or right in self.rights or MANAGE in self.rights

    def covers(self, path: str, right: str | None) -> bool:
        return _within(path, self.path) and self.allows(right)


def unauthorized(why: str) -> BusError:
    return BusError(bus_errors.UNAUTHORIZED, f"Unauthorized access. {why}")


def bad_token(why: str) -> BusError:
    return BusError(bus_errors.AUTH_FAILED, why)


class Authorizer:
    """A validator of tokens, by the keys of the namespace and the entities' own keys."""

    def __init__(
        self,
        keys: list[Key],
        *,
        hosts: frozenset[str],
        port: int = 0,
        accept_any_jwt: bool = False,
        entities: Entities | None = None,
    ) -> None:
        self.keys = {key.name: key for key in keys}
        self.hosts = hosts
        self.port = port
        self.accept_any_jwt = accept_any_jwt
        self._entities = entities

    def grant(self, token: str, audience: str, now: float) -> Grant:
        """Return the grant of a token for an audience (a URL or a path); raise `BusError` if it is not valid for it."""
        path = self._address(audience).path.lower()
        if not token.startswith(_PREFIX):
            return self._jwt(token, path)
        fields = dict(part.partition("=")[::2] for part in token[len(_PREFIX) :].split("&"))
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise bad_token(f"MalformedToken: The token lacks {', '.join(missing)}.")
        key = self._signer(fields, path)
        try:
            expires_at = int(unquote(fields["se"]))
        except ValueError:
            raise bad_token("MalformedToken: The token's expiry is no number of seconds.") from None
        if expires_at <= now:
            when = datetime.fromtimestamp(max(expires_at, 0), timezone.utc)
            raise bad_token(f"ExpiredToken: The token is expired. Expiration time: '{when:%Y-%m-%dT%H:%M:%SZ}'.")
        scope = self._scope(unquote_plus(fields["sr"]))
        if not _within(path, scope):
            raise bad_token(f"InvalidAudience: The token is for '{scope}', not for '{path}'.")
        return Grant(path, key.rights, float(min(expires_at, _LATEST)))

    def log_in(self, grants: dict[str, Grant], name: str, secret: str) -> bool:
        """Add the grant of a key of the namespace, without an expiry; return False if name or secret is wrong."""
        key = self.keys.get(name)
        if key is None or not hmac.compare_digest(key.secret.encode(), secret.encode()):
            return False
        grants[""] = Grant("", key.rights, float("inf"))
        return True

    def _signer(self, fields: dict[str, str], path: str) -> Key:
        """Return the key that signed a token, of the namespace or of an entity; raise `BusError` if there is none."""
        try:
            given = base64.b64decode(unquote(fields["sig"]), validate=True)
        except (binascii.Error, ValueError):
            given = b""
        signed = f"{fields['sr']}\n{fields['se']}".encode()
        known = False
        for key in self._keys(unquote_plus(fields["skn"]), path):
            known = True
            if hmac.compare_digest(hmac.new(key.secret.encode(), signed, hashlib.sha256).digest(), given):
                return key
        if known:
            raise bad_token("InvalidSignature: The token has an invalid signature.")
        raise bad_token("InvalidSignature: The token names a key that does not exist here.")

    def _keys(self, name: str, path: str) -> Iterator[Key]:
        if name in self.keys:
            yield self.keys[name]
        parts = path.split("/") if self._entities is not None else []
        for end in range(1, len(parts) + 1):
            above = "/".join(parts[:end])
            assert self._entities is not None
            entity = self._entities.queue(above) or self._entities.topic(above)
            for rule in () if entity is None else entity.settings.authorization_rules:
                if rule.get("key_name") == name:
                    rights = frozenset(rule.get("rights") or ())
                    for secret in (rule.get("primary_key"), rule.get("secondary_key")):
                        if secret:
                            yield Key(name, str(secret), rights)

    def _jwt(self, token: str, path: str) -> Grant:
        if not self.accept_any_jwt:
            raise bad_token("InvalidIssuer: Entra (JWT) tokens are refused here; start localbus with --accept-any-jwt.")
        if not token.strip():
            raise bad_token("MalformedToken: The token is empty.")
        return Grant(path, frozenset(RIGHTS), float("inf"))

    def _scope(self, resource: str) -> str:
        """Return the path that a token was signed for; raise `BusError` if its host or port is not this server's."""
        parts = urlsplit(resource if "://" in resource else f"sb://{resource}")
        try:
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise bad_token("MalformedToken: The token's resource is no URL.") from None
        if host not in self.hosts or (port is not None and port != self.port):
            raise bad_token(f"InvalidAudience: The token is for another host ('{host}').")
        return self._address(parts.path).path.lower()

    def _address(self, text: str) -> Address:
        return parse_address(text) if self._entities is None else locate(text, self._entities)

    def check_rest(self, header: str | None, path: str, right: str, now: float) -> None:
        """Raise `BusError` if the Authorization header of a management request does not give the right on the path."""
        if not header:
            raise bad_token("MissingToken: The request has no Authorization header.")
        token = header[7:] if header[:7].lower() == "bearer " else header
        if not self.grant(token, path, now).allows(right):
            raise unauthorized(f"The key does not hold the {right} claim that '{path}' asks for.")


def _within(path: str, scope: str) -> bool:
    path, scope = path.lower().strip("/"), scope.lower().strip("/")
    return not scope or path == scope or path.startswith(scope + "/")
