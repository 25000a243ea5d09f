"""Tokens on a connection: put to `$cbs` before a link is opened, and renewed before they end."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from pairbus.domain.conditions import ENTITY_CONDITIONS, Refusal, refusal_of
from pairbus.runtime.bounded_call import ANSWER_SECONDS, call_in_thread, deadline

from .link import ConnectionLost, LinkError
from .request_response import Refused, Requests
from .tokens import Token, audience_of, token_for

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("pairbus.syphon.authority")

#: When a renewal failed it is tried again after so long.
_AGAIN_SECONDS = 10.0
#: A token that has ended by this machine's clock, and that the service takes all the same, is not put without a pause.
_SOONEST_SECONDS = 0.5


class Authority:
    """The tokens of one connection."""

    def __init__(self, connection: Connection, *, event_hubs: bool) -> None:
        self._connection = connection
        self._event_hubs = event_hubs
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._renewing: set[asyncio.Task[None]] = set()
        self._requests = Requests(connection, "$cbs")

    async def authorize(self, path: str, timeout: float = ANSWER_SECONDS) -> None:
        """Put a token for an entity, and see to it that it is renewed; raises `LinkError` if it is refused."""
        token = await self._token(path, timeout)
        await self._put(path, token, timeout)
        left = max(token.ends_at - time.time(), 0.0)
        self._later(path, max(left * 0.75, _SOONEST_SECONDS))

    def end(self, error: LinkError) -> None:
        """The connection is gone: nothing is answered, nothing renewed."""
        self._requests.end(error)
        for timer in self._timers.values():
            timer.cancel()
        for task in self._renewing:
            task.cancel()

    async def _token(self, path: str, timeout: float) -> Token:
        def ask() -> Token:
            return token_for(self._connection.namespace, path, event_hubs=self._event_hubs)

        try:
            async with deadline(timeout):
                return await call_in_thread(ask, "pairbus-token")
        except asyncio.TimeoutError:
            raise LinkError(
                "com.microsoft:timeout", f"the credential gave no token for {path} within {timeout:g} s"
            ) from None
        except Exception as error:  # credentials raise what they like, and what they say may hold a secret
            raise LinkError(
                "com.microsoft:auth-failed", f"no token could be had for {path}: {type(error).__name__}"
            ) from error

    def _later(self, path: str, seconds: float) -> None:
        if (before := self._timers.pop(path, None)) is not None:
            before.cancel()
        self._timers[path] = self._connection.loop.call_later(seconds, self._renew, path)

    def _renew(self, path: str) -> None:
        task = self._connection.loop.create_task(self._renewed(path))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    async def _renewed(self, path: str) -> None:
        try:
            await self.authorize(path)
        except LinkError as error:
            if self._connection.lost is None:
                log.warning("the token for %s could not be renewed: %s", path, error)
                self._later(path, _AGAIN_SECONDS)

    def begin(self, timeout: float = ANSWER_SECONDS) -> None:
        """Ask for the links to `$cbs`, so that they come with a connection that is being opened."""
        self._requests.begin(timeout)

    async def _put(self, path: str, token: Token, timeout: float) -> None:
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience_of(self._connection.namespace, path),
        }
        try:
            await self._requests.ask(properties, token.text, path, timeout)
        except LinkError as error:
            if (meant := _as_it_is_meant(error)) is error:
                raise
            raise meant from error


def _as_it_is_meant(error: LinkError) -> LinkError:
    """What is said where tokens are put, as it is to be taken: that there is no such entity is about that. Any other
    refusal is of the token, and trouble with `$cbs` itself is the service's: no reason to give a message up."""
    if isinstance(error, ConnectionLost) or refusal_of(error.condition) is not Refusal.DEAD_LETTER:
        return error
    if not isinstance(error, Refused):
        return LinkError("amqp:internal-error", f"$cbs: {error}")
    return error if error.condition in ENTITY_CONDITIONS else LinkError("com.microsoft:auth-failed", str(error))
