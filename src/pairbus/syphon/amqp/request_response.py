"""Request and response over a pair of links, as `$cbs` and `$management` of an entity speak it."""

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

#: How a refusal's status reads as a condition, where none is given.
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
_NULL = b"\x40"
#: How many answers may come beyond those that are waited for: one that comes too late takes its place, too.
_SPARE = 100


class Refused(LinkError):
    """A request was answered, with a refusal: that is about what was asked for, and not about the way to it."""


class Reply(NamedTuple):
    """What was answered: whose request it is, what is said of it, and the body."""

    number: str
    properties: dict[str, Any]
    body: Any


class Requests:
    """The requests to one node of a connection. Its links are opened for the first of them."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._address = address
        self._reply_to = f"pairbus-{uuid.uuid4()}"
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._links: asyncio.Task[tuple[Sender, Receiver]] | None = None
        self._receiver: Receiver | None = None

    def begin(self, timeout: float = ANSWER_SECONDS) -> asyncio.Task[tuple[Sender, Receiver]]:
        """Ask for the links. Called while the connection is being opened, they come with it, without a round trip of
        their own."""
        if self._links is None:
            self._links = self._connection.loop.create_task(self._open(timeout))
            self._links.add_done_callback(self._opened)
        return self._links

    async def _open(self, timeout: float) -> tuple[Sender, Receiver]:
        receiver, sender = await asyncio.gather(
            self._connection.receiver(self._address, self, timeout=timeout, name=self._reply_to),
            self._connection.sender(self._address, self, timeout=timeout),
        )
        self._receiver = receiver
        self._allow_answers()
        return sender, receiver

    def _allow_answers(self) -> None:
        """However many ask at once, each of them can be answered."""
        receiver = self._receiver
        if receiver is not None and (spare := receiver.credit - len(self._waiting)) < _SPARE // 10:
            receiver.allow(_SPARE - spare)

    def _opened(self, links: asyncio.Task[tuple[Sender, Receiver]]) -> None:
        # Who waits for them is told; nobody may, where the connection is lost. The next one to ask tries again.
        if (links.cancelled() or links.exception() is not None) and self._links is links:
            self._links = None

    async def ask(self, properties: dict[str, Any], body: Any, said: str, timeout: float = ANSWER_SECONDS) -> Any:
        """The body of the answer to one request; raises `Refused` if it is refused, naming what was `said`, and another
        `LinkError` if there is no answer."""
        sender, _ = await asyncio.shield(self.begin(timeout))  # others wait for them, too
        number = str(uuid.uuid4())
        answer = self._waiting[number] = self._connection.loop.create_future()
        self._allow_answers()
        try:
            async with deadline(timeout):
                while not sender.credit:
                    if sender.closed is not None:
                        raise sender.closed
                    await asyncio.sleep(0.002)
                sender.send(_encoded(number, self._reply_to, properties, body), number)
                reply = await answer
        except asyncio.TimeoutError:
            raise LinkError("com.microsoft:timeout", f"{self._address} did not answer within {timeout:g} s") from None
        finally:
            self._waiting.pop(number, None)
        found = reply.properties
        status = int(found.get("status-code") or found.get("statusCode") or 0)
        if not 200 <= status < 300:
            why = found.get("status-description") or found.get("statusDescription")
            condition = found.get("error-condition") or found.get("errorCondition")
            raise Refused(str(condition or _STATUSES.get(status, "amqp:internal-error")), f"{said}: {status} {why}")
        return reply.body

    def end(self, error: LinkError) -> None:
        """Nothing is answered any more."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waits gets it; nobody may

    # --- what its links tell -----------------------------------------------------------------------------

    def on_message(self, delivery: Any, message: bytes) -> None:
        lib.pn_delivery_update(delivery, ACCEPTED)
        lib.pn_delivery_settle(delivery)
        try:
            reply = _decoded(message)
        except AmqpDecodeError as error:  # nobody knows whose it is
            self.end(LinkError("amqp:decode-error", f"the answer of {self._address} cannot be read: {error}"))
            return
        answer = self._waiting.get(reply.number)
        if answer is not None and not answer.done():
            answer.set_result(reply)
        self._allow_answers()

    def on_outcome(self, context: str, state: int, error: LinkError | None) -> None:
        answer = self._waiting.get(context)
        if error is not None and answer is not None and not answer.done():
            answer.set_exception(error)

    def on_closed(self, error: LinkError) -> None:
        self._links = self._receiver = None
        self.end(error)

    def on_confirmed(self, context: Any, state: int, error: LinkError | None) -> None: ...

    def on_credit(self) -> None: ...

    def on_drained(self, all_was_sent: bool) -> None: ...


def _encoded(number: str, reply_to: str, properties: dict[str, Any], body: Any) -> bytes:
    listed = encode_list([encode(number), _NULL, _NULL, _NULL, encode(reply_to)])
    mapped = encode_map([encode(part) for pair in properties.items() for part in pair])
    return b"".join(
        (
            sections.section(sections.PROPERTIES, listed),
            sections.section(sections.APPLICATION_PROPERTIES, mapped),
            sections.section(sections.VALUE, encode(body)),
        )
    )


def _decoded(message: bytes) -> Reply:
    """An answer. Messages in its body are binaries, which are not looked into."""
    number, properties, body = None, {}, None
    for found in sections.split(message):
        if found.code == sections.PROPERTIES:
            number = sections.field(message, found.value, sections.CORRELATION_ID)
        elif found.code == sections.APPLICATION_PROPERTIES:
            properties = decode(message, found.value)[0]
        elif found.code == sections.VALUE:
            body = decode(message, found.value)[0]
    return Reply(str(number), {str(key): value for key, value in properties.items()}, body)
