"""`$cbs` and `$management`: the two nodes of the service that answer requests over a pair of links."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.addresses import Address, locate
from pairbus.localbus.auth import bad_token
from pairbus.localbus.broker.broker import size_exceeded
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic
from pairbus.localbus.faults.faults import Decision

from . import engine
from .engine import lib
from .links import Incoming, Outgoing
from .requests import Reply, Request, read_head, read_request, write_reply

if TYPE_CHECKING:
    from .connection import AmqpConnection

log = logging.getLogger("pairbus.localbus.nodes")

#: What a request is answered with: it, and the fault that strikes it.
_Respond = Callable[[Request, BusError | None], Reply]

#: A request may have so many bytes, or hold one message of the entity's and what belongs to it.
_MAX_REQUEST = 1024 * 1024
_AROUND_A_MESSAGE = 64 * 1024


class Replies(Outgoing):
    """The client's receiving half: replies to it are found by its address, its name, or its node."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str) -> None:
        super().__init__(connection, link, path)
        self.reply_to = engine.address(lib.pn_link_remote_target(link))
        self._sent = 0
        connection.replies.append(self)

    def on_closed(self) -> None:
        self.connection.replies.remove(self)

    def send(self, message: bytes) -> None:
        if self.connection.alive and self.open and not self.connection.closing:
            self._sent += 1
            self.connection.answering.given += len(message)
            engine.send(self.link, self._sent.to_bytes(4, "big"), message, settled=True)
            self.connection.wants_output()


class Requests(Incoming):
    """The client's sending half: each message is a request."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, limit: int = _MAX_REQUEST) -> None:
        super().__init__(connection, link, path, limit)

    def on_message(self, delivery: Any, raw: bytes, number: int) -> None:
        self.answer(delivery)
        if not self.connection.closing:
            self.connection.answering.ask(lambda: self._carry_out(raw), len(raw))

    def renew_credit(self) -> None:
        if self.connection.answering.is_behind:
            self.connection.answering.withhold_credit(self)
        else:
            super().renew_credit()

    def _carry_out(self, raw: bytes) -> None:
        try:
            request = read_request(raw)
        except AmqpDecodeError as error:
            self.refuse(BusError(conditions.DECODE_ERROR, f"The request cannot be read: {error}."))
            return
        self._answer(request, len(raw), self.respond)

    def on_oversize(self, delivery: Any, error: BusError, head: bytes) -> None:
        """Answered like any request: an SDK's sender does not survive that its request is rejected."""
        request = read_head(head)
        if request is None:
            super().on_oversize(delivery, error, head)
            return
        self.answer(delivery)
        if not self.connection.closing:
            refused: _Respond = lambda request, fault: Reply.of(fault or error)  # noqa: E731
            self.connection.answering.ask(lambda: self._answer(request, len(head), refused), len(head))

    def _answer(self, request: Request, size: int, respond: _Respond) -> None:
        """Answer a request, as the faults allow."""
        server, answering = self.connection.server, self.connection.answering
        fault = self.fault(request) if server.faults.active else Decision()
        if fault.swallow:
            self.swallowed = True
        elif fault.latency:
            reply = lambda: self._reply(request, fault, respond)  # noqa: E731
            server.later(self, fault.latency, lambda: answering.ask(reply, size))
        else:
            self._reply(request, fault, respond)

    def _reply(self, request: Request, fault: Decision, respond: _Respond) -> None:
        server = self.connection.server
        reply = write_reply(request, respond(request, fault.error))
        if fault.silent:
            return
        delay = fault.latency + fault.late
        connection = self.connection
        connection.answering.owed += len(reply)

        def send() -> None:
            connection.answering.owed -= len(reply)
            connection.wants_output()  # others may wait for it
            link = self._reply_link(request)
            if link is not None:
                link.send(reply)

        connection.after_commit(send if not delay else lambda: server.later(self, delay, send))

    def fault(self, request: Request) -> Decision:
        """What the faults make of a request."""
        return self.connection.server.faults.on_request(self.path, request.operation)

    def respond(self, request: Request, fault: BusError | None) -> Reply:
        raise NotImplementedError

    def _reply_link(self, request: Request) -> Replies | None:
        links: list[Replies] = self.connection.replies
        for link in links:
            if request.reply_to is not None and request.reply_to in (link.reply_to, link.name):
                return link
        return next((link for link in reversed(links) if link.path == self.path), None)


class CbsRequests(Requests):
    """Takes tokens. Faults do not keep anybody from showing one, and it uses none of them up; only a black hole for
    all swallows it.
    """

    def fault(self, request: Request) -> Decision:
        return Decision(swallow=self.connection.server.faults.is_silent(self.path))

    def respond(self, request: Request, fault: BusError | None) -> Reply:
        connection = self.connection
        server = connection.server
        if request.operation != "put-token":
            return Reply.of(BusError(conditions.NOT_IMPLEMENTED, f"'{request.operation}' is not 'put-token'."))
        audience = request.properties.get("name")
        try:
            if not isinstance(audience, str) or not isinstance(request.body, str):
                raise bad_token("MalformedToken: put-token needs a 'name' and a token as text.")
            address = locate(audience, server.broker)
            target = server.find_or_none(address)
            grant = server.authorizer.grant(request.body, audience, server.now())
            if address.entity and target is None:
                log.warning("a token was asked for '%s', which does not exist here", address.name[:200])
                raise conditions.not_found(address.name)
        except BusError as error:
            return Reply.of(error)
        connection.grants[grant.path] = grant
        server.expect_expiry(grant.expires_at)
        return Reply(202, "Accepted")


class ManagementRequests(Requests):
    """Works on one entity: the one that has its name when it is asked, since the first may be deleted by then."""

    def __init__(
        self, connection: AmqpConnection, link: Any, path: str, address: Address, target: Queue | Topic | Hub
    ) -> None:
        limit = 0 if isinstance(target, Hub) else target.settings.max_message_size_in_kilobytes * 1024
        super().__init__(connection, link, path, max(_MAX_REQUEST, limit + _AROUND_A_MESSAGE))
        self._address = address

    def respond(self, request: Request, fault: BusError | None) -> Reply:
        server = self.connection.server
        try:
            self.connection.authorize(self.path, server.operations.right(request))
            if fault is not None:
                raise fault
            target = server.broker.find(self._address)
            if server.faults.active:
                self._check_sizes(request)
        except BusError as error:
            return Reply.of(error)
        return server.operations.handle(target, request)

    def _check_sizes(self, request: Request) -> None:
        """A fault's limit holds for each message that is scheduled, as it does for those that are sent."""
        scheduled = request.body.get("messages") if isinstance(request.body, dict) else None
        for each in scheduled if isinstance(scheduled, list) else ():
            raw = each.get("message") if isinstance(each, dict) else None
            size = len(raw) if isinstance(raw, bytes) else 0
            limit = self.connection.server.faults.size_limit(self.path, size)
            if size > limit:
                raise size_exceeded(self.path, size, limit)


class NamespaceRequests(Requests):
    """Works on the entity that each request names."""

    def respond(self, request: Request, fault: BusError | None) -> Reply:
        server = self.connection.server
        address = locate(str(request.properties.get("name", "")), server.broker)
        try:
            self.connection.authorize(address.path, server.operations.right(request))
            if fault is not None:
                raise fault
            target = server.broker.find(address)
        except BusError as error:
            return Reply.of(error)
        return server.operations.handle(target, request)
