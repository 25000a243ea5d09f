"""Tokens on a connection: put to `$cbs` before a link is opened, and renewed before they end."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from proton import Message

from .bounds import ANSWER_SECONDS, aside, bounded
from .link import ACCEPTED, LinkError, Receiver, Sender, lib
from .tokens import Token, audience_of, token_for

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger(__name__)

#: How a refused token's status reads as a condition.
_STATUSES = {
    400: "com.microsoft:argument-error",
    401: "amqp:unauthorized-access",
    403: "amqp:unauthorized-access",
    404: "amqp:not-found",
    408: "com.microsoft:timeout",
    410: "amqp:resource-deleted",
    429: "com.microsoft:server-busy",
    503: "com.microsoft:server-busy",
}
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
        self._requests: dict[str, asyncio.Future[Any]] = {}
        self._links: asyncio.Task[tuple[Sender, Receiver]] | None = None

    async def authorize(self, path: str, timeout: float = ANSWER_SECONDS) -> None:
        """Put a token for an entity, and see to it that it is renewed; raises `LinkError` if it is refused."""
        token = await self._token(path, timeout)
        await self._put(path, token, timeout)
        left = max(token.ends_at - time.time(), 0.0)
        self._later(path, max(left * 0.75, _SOONEST_SECONDS))

    def end(self, error: LinkError) -> None:
        """The connection is gone: nothing is answered, nothing renewed."""
        for request in self._requests.values():
            if not request.done():
                request.set_exception(error)
                request.exception()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._renewing:
            task.cancel()

    async def _token(self, path: str, timeout: float) -> Token:
        def ask() -> Token:
            return token_for(self._connection.namespace, path, event_hubs=self._event_hubs)

        try:
            async with bounded(timeout):
                return await aside(ask, "pairbus-token")
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

    def begin(self, timeout: float = ANSWER_SECONDS) -> asyncio.Task[tuple[Sender, Receiver]]:
        """Ask for the links to `$cbs`. Called while the connection is being opened, they come with it, without a round
        trip of their own."""
        if self._links is None:
            self._links = self._connection.loop.create_task(self._open(timeout))
            self._links.add_done_callback(self._opened)
        return self._links

    async def _open(self, timeout: float) -> tuple[Sender, Receiver]:
        receiver, sender = await asyncio.gather(
            self._connection.receiver("$cbs", self, timeout=timeout, name=self._reply_to),
            self._connection.sender("$cbs", self, timeout=timeout),
        )
        receiver.allow(100)
        return sender, receiver

    def _opened(self, links: asyncio.Task[tuple[Sender, Receiver]]) -> None:
        # Who waits for them is told; nobody may, where the connection is lost. The next one to ask tries again.
        if (links.cancelled() or links.exception() is not None) and self._links is links:
            self._links = None

    @property
    def _reply_to(self) -> str:
        return f"pairbus-cbs-{id(self):x}"

    async def _put(self, path: str, token: Token, timeout: float) -> None:
        sender, receiver = await asyncio.shield(self.begin(timeout))  # others wait for them, too
        if receiver.credit < 10:
            receiver.allow(100)
        number = str(uuid.uuid4())
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience_of(self._connection.namespace, path),
        }
        request = Message(id=number, reply_to=self._reply_to, body=token.text, properties=properties, inferred=False)
        answer = self._requests[number] = self._connection.loop.create_future()
        try:
            async with bounded(timeout):
                while not sender.credit:
                    if sender.closed is not None:
                        raise sender.closed
                    await asyncio.sleep(0.002)
                sender.send(bytes(request.encode()), number)
                found = await answer
        except asyncio.TimeoutError:
            raise LinkError("com.microsoft:timeout", f"$cbs did not answer within {timeout:g} s") from None
        finally:
            self._requests.pop(number, None)
        status = int(found.get("status-code") or found.get("statusCode") or 0)
        if not 200 <= status < 300:
            said = found.get("status-description") or found.get("statusDescription")
            condition = found.get("error-condition") or found.get("errorCondition")
            raise LinkError(str(condition or _STATUSES.get(status, "amqp:internal-error")), f"{path}: {status} {said}")

    # --- what its links tell -----------------------------------------------------------------------------

    def on_message(self, delivery: Any, message: bytes) -> None:
        lib.pn_delivery_update(delivery, ACCEPTED)
        lib.pn_delivery_settle(delivery)
        reply: Any = Message()
        reply.decode(message)
        answer = self._requests.get(str(reply.correlation_id))
        if answer is not None and not answer.done():
            answer.set_result(reply.properties or {})

    def on_outcome(self, context: str, state: int, error: LinkError | None) -> None:
        answer = self._requests.get(context)
        if error is not None and answer is not None and not answer.done():
            answer.set_exception(error)

    def on_closed(self, error: LinkError) -> None:
        self._links = None

    def on_confirmed(self, context: Any, state: int, error: LinkError | None) -> None: ...

    def on_credit(self) -> None: ...

    def on_drained(self, all_was_sent: bool) -> None: ...
