"""Claims-based security: a token for an entity is put to `$cbs` before a link is opened, and renewed before it expires.

`token_for` makes the token, for every kind of credential that a `Namespace` may have.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_plus

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus.domain.conditions import ENTITY_CONDITIONS, Refusal, refusal_of
from pairbus.options import Namespace
from pairbus.runtime.backoff import Backoff
from pairbus.runtime.bounded_call import ANSWER_SECONDS, call_in_thread, deadline

from .link import ConnectionLost, LinkError
from .request_response import RequestClient, RequestRefused

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("pairbus.syphon.authority")

SAS_TYPE = "servicebus.windows.net:sastoken"
JWT_TYPE = "jwt"
_SCOPES = {False: "https://servicebus.azure.net/.default", True: "https://eventhubs.azure.net/.default"}
#: The lifetime of a token that is made here.
LIFETIME_SECONDS = 3600.0
_EXPIRY = re.compile(r"(?:^|[&\s])se=(\d+)")
#: A token is renewed after this part of its lifetime.
_RENEWAL_SHARE = 0.75
#: The pause after a renewal that failed.
_RENEWAL_BACKOFF = Backoff(first=10.0, longest=10.0)
#: The shortest time to a renewal: a clock ahead of the service's shows a token as expired that the service accepts.
_SHORTEST_SECONDS = 0.5


class Token(NamedTuple):
    """A token for `$cbs`. Its `repr` hides the text."""

    text: str
    kind: str
    #: Seconds since 1970.
    expires_at: float

    def __repr__(self) -> str:
        return f"Token({self.kind}, expires_at={self.expires_at:.0f})"


def audience_of(namespace: Namespace, path: str) -> str:
    return f"sb://{namespace.host}/{path}"


def token_for(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
    """Return a token for one entity; blocks as long as the credential does: not for the event loop."""
    credential: Any = namespace.credential
    now = time.time()
    if isinstance(credential, AzureNamedKeyCredential):
        return _signed_token(audience_of(namespace, path), *credential.named_key, now + LIFETIME_SECONDS)
    if isinstance(credential, AzureSasCredential):
        signature = credential.signature
        expiry = _EXPIRY.search(signature)
        return Token(signature, SAS_TYPE, float(expiry.group(1)) if expiry else now + LIFETIME_SECONDS)
    # Imported here because it imports the SDK. All links share one call to a credential that hangs.
    from pairbus.runtime.credential import deadline_credential

    found = deadline_credential(credential).get_token(_SCOPES[event_hubs])
    return Token(str(found.token), JWT_TYPE, float(found.expires_on))


def _signed_token(audience: str, name: str, key: str, expires_at: float) -> Token:
    resource, expiry = quote_plus(audience), int(expires_at)
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    text = f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"
    # The service reads the whole seconds in the text.
    return Token(text, SAS_TYPE, float(expiry))


class CbsClient:
    """The tokens of one connection."""

    def __init__(self, connection: Connection, *, event_hubs: bool) -> None:
        self._connection = connection
        self._event_hubs = event_hubs
        #: Entity path -> the timer of its next renewal.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._renewals: set[asyncio.Task[None]] = set()
        self._requests = RequestClient(connection, "$cbs")

    def open_links(self, timeout: float = ANSWER_SECONDS) -> None:
        self._requests.open_links(timeout)

    async def authorize(self, path: str, timeout: float = ANSWER_SECONDS) -> None:
        """Put a token for an entity, and renew it until the connection ends; raises `LinkError` if it is refused."""
        token = await self._new_token(path, timeout)
        await self._put(path, token, timeout)
        lifetime = max(token.expires_at - time.time(), 0.0)
        self._schedule_renewal(path, max(lifetime * _RENEWAL_SHARE, _SHORTEST_SECONDS))

    def close(self, error: LinkError) -> None:
        """Fail the requests that have no answer, and renew no token any more: the connection has ended."""
        self._requests.fail_pending(error)
        for timer in self._timers.values():
            timer.cancel()
        for task in self._renewals:
            task.cancel()

    async def _new_token(self, path: str, timeout: float) -> Token:
        call_credential = partial(token_for, self._connection.namespace, path, event_hubs=self._event_hubs)
        try:
            async with deadline(timeout):
                return await call_in_thread(call_credential, "pairbus-token")
        except asyncio.TimeoutError:
            raise LinkError(
                "com.microsoft:timeout", f"the credential gave no token for {path} within {timeout:g} s"
            ) from None
        except Exception as error:  # a credential may raise anything, with a secret in its text
            raise LinkError(
                "com.microsoft:auth-failed", f"no token could be had for {path}: {type(error).__name__}"
            ) from error

    def _schedule_renewal(self, path: str, seconds: float) -> None:
        if (earlier := self._timers.pop(path, None)) is not None:
            earlier.cancel()
        self._timers[path] = self._connection.loop.call_later(seconds, self._start_renewal, path)

    def _start_renewal(self, path: str) -> None:
        task = self._connection.loop.create_task(self._renew(path))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def _renew(self, path: str) -> None:
        try:
            await self.authorize(path)
        except LinkError as error:
            if self._connection.lost is None:
                pause = _RENEWAL_BACKOFF.pause(0)
                log.warning("the token for %s could not be renewed: %s; next attempt in %g s", path, error, pause)
                self._schedule_renewal(path, pause)

    async def _put(self, path: str, token: Token, timeout: float) -> None:
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience_of(self._connection.namespace, path),
        }
        try:
            await self._requests.request(properties, token.text, path, timeout)
        except LinkError as error:
            if (reclassified := _reclassified(error)) is error:
                raise
            raise reclassified from error


def _reclassified(error: LinkError) -> LinkError:
    """Return an error of `$cbs` with a condition that says if messages for the entity can be given up."""
    # Only a refusal that names the entity is about messages: others are of the token, or of the links to `$cbs`.
    if isinstance(error, ConnectionLost) or refusal_of(error.condition) is not Refusal.DEAD_LETTER:
        return error
    if not isinstance(error, RequestRefused):
        return LinkError("amqp:internal-error", f"$cbs: {error}")
    return error if error.condition in ENTITY_CONDITIONS else LinkError("com.microsoft:auth-failed", str(error))
