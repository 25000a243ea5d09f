"""Requests and responses over a pair of links, as `$cbs` and the `$management` node of an entity expect them."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import AmqpDecodeError, decode, encode, encode_list, encode_map
from pairbus.runtime.bounded_call import ANSWER_SECONDS, deadline

from .link import ACCEPTED, LinkError, Receiver, Sender, lib

if TYPE_CHECKING:
    from .connection import Connection

#: The status of a refusal -> the AMQP condition, for responses without one.
_STATUS_CONDITIONS = {
    400: "com.microsoft:argument-error",
    401: "amqp:unauthorized-access",
    403: "amqp:unauthorized-access",
    404: "amqp:not-found",
    408: "com.microsoft:timeout",
    410: "amqp:resource-deleted",
    429: "com.microsoft:server-busy",
    503: "com.microsoft:server-busy",
}
_NULL = b"\x40"
#: Credit beyond one for each pending request: a response that comes after its deadline uses credit too.
_SPARE_CREDIT = 100
_CREDIT_POLL_SECONDS = 0.002


class RequestRefused(LinkError):
    """A response that refuses the request. It is about the subject of the request, not about the node's links."""


class Response(NamedTuple):
    """A response, decoded."""

    #: The message id of the request.
    request_id: str
    properties: dict[str, Any]
    body: Any


class RequestClient:
    """Requests to one node of a connection. Its links open with the first request, and again after they closed."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._address = address
        self._reply_to = ""
        #: Request id -> the response, while the caller waits for it.
        self._pending: dict[str, asyncio.Future[Response]] = {}
        self._links: asyncio.Task[tuple[Sender, Receiver]] | None = None
        self._receiver: Receiver | None = None

    def open_links(self, timeout: float = ANSWER_SECONDS) -> asyncio.Task[tuple[Sender, Receiver]]:
        """Open the links, if they are closed. With the connection's own opening they need no more round trips."""
        if self._links is None:
            self._links = self._connection.loop.create_task(self._open(timeout))
            self._links.add_done_callback(self._on_opened)
        return self._links

    async def _open(self, timeout: float) -> tuple[Sender, Receiver]:
        # A new name each time: the peer may still have a link of the earlier one.
        self._reply_to = f"pairbus-{uuid.uuid4()}"
        receiver, sender = await asyncio.gather(
            self._connection.receiver(self._address, self, timeout=timeout, name=self._reply_to),
            self._connection.sender(self._address, self, timeout=timeout),
        )
        self._receiver = receiver
        self._replenish_credit()
        return sender, receiver

    def _replenish_credit(self) -> None:
        receiver = self._receiver
        if receiver is not None and (spare := receiver.credit - len(self._pending)) < _SPARE_CREDIT // 10:
            receiver.allow(_SPARE_CREDIT - spare)

    def _on_opened(self, links: asyncio.Task[tuple[Sender, Receiver]]) -> None:
        # exception() marks the error as retrieved: no request may be waiting for it. The next request tries again.
        if (links.cancelled() or links.exception() is not None) and self._links is links:
            self._links = None

    async def request(
        self, properties: dict[str, Any], body: Any, subject: str, timeout: float = ANSWER_SECONDS
    ) -> Any:
        """Return the body of the response; raises `LinkError`, or `RequestRefused` if the status is not 2xx."""
        sender, _ = await asyncio.shield(self.open_links(timeout))  # other requests wait for the same links
        request_id = str(uuid.uuid4())
        pending = self._pending[request_id] = self._connection.loop.create_future()
        self._replenish_credit()
        try:
            async with deadline(timeout):
                while not sender.credit:
                    if sender.closed is not None:
                        raise self._connection.lost or sender.closed
                    await asyncio.sleep(_CREDIT_POLL_SECONDS)
                sender.send(_encode_request(request_id, self._reply_to, properties, body), request_id)
                response = await pending
        except asyncio.TimeoutError:
            raise LinkError("com.microsoft:timeout", f"{self._address} did not answer within {timeout:g} s") from None
        finally:
            self._pending.pop(request_id, None)
        found = response.properties
        status = int(found.get("status-code") or found.get("statusCode") or 0)
        if not 200 <= status < 300:
            reason = found.get("status-description") or found.get("statusDescription")
            condition = found.get("error-condition") or found.get("errorCondition")
            condition = str(condition or _STATUS_CONDITIONS.get(status, "amqp:internal-error"))
            raise RequestRefused(condition, f"{subject}: {status} {reason}")
        return response.body

    def fail_pending(self, error: LinkError) -> None:
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(error)
                pending.exception()  # marks it as retrieved: the caller may have stopped waiting

    # --- events of the links -----------------------------------------------------------------------------------------

    def on_message(self, delivery: Any, message: bytes) -> None:
        lib.pn_delivery_update(delivery, ACCEPTED)
        lib.pn_delivery_settle(delivery)
        try:
            response = _decode_response(message)
        except AmqpDecodeError as error:  # its request is unknown, so none waits on
            self.fail_pending(LinkError("amqp:decode-error", f"the answer of {self._address} cannot be read: {error}"))
            return
        pending = self._pending.get(response.request_id)
        if pending is not None and not pending.done():
            pending.set_result(response)
        self._replenish_credit()

    def on_outcome(self, context: str, state: int, error: LinkError | None) -> None:
        pending = self._pending.get(context)
        if error is not None and pending is not None and not pending.done():
            pending.set_exception(error)

    def on_closed(self, error: LinkError) -> None:
        links, self._links, self._receiver = self._links, None, None
        if links is not None and links.done() and not links.cancelled() and links.exception() is None:
            for link in links.result():  # one is closed already; it is useless without the other
                link.close()
        self.fail_pending(error)

    def on_confirmed(self, context: Any, state: int, error: LinkError | None) -> None: ...

    def on_credit(self) -> None: ...

    def on_drained(self, all_was_sent: bool) -> None: ...


def _encode_request(request_id: str, reply_to: str, properties: dict[str, Any], body: Any) -> bytes:
    message_properties = encode_list([encode(request_id), _NULL, _NULL, _NULL, encode(reply_to)])
    application_properties = encode_map([encode(part) for pair in properties.items() for part in pair])
    return b"".join(
        (
            sections.section(sections.PROPERTIES, message_properties),
            sections.section(sections.APPLICATION_PROPERTIES, application_properties),
            sections.section(sections.VALUE, encode(body)),
        )
    )


def _decode_response(message: bytes) -> Response:
    """Return a response. Messages inside its body are binaries, and are not decoded."""
    request_id, properties, body = None, {}, None
    for found in sections.split(message):
        if found.code == sections.PROPERTIES:
            request_id = sections.field(message, found.value, sections.CORRELATION_ID)
        elif found.code == sections.APPLICATION_PROPERTIES:
            properties = decode(message, found.value)[0]
        elif found.code == sections.VALUE:
            body = decode(message, found.value)[0]
    return Response(str(request_id), {str(key): value for key, value in properties.items()}, body)
