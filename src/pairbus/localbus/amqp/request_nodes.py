"""`$cbs` and `$management`: the service's nodes that reply to requests, over a pair of links."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors
from pairbus.localbus.addresses import Address, locate
from pairbus.localbus.auth import bad_token
from pairbus.localbus.bus_errors import BusError, size_exceeded
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic
from pairbus.localbus.faults.faults import Decision

from . import engine
from .engine import lib
from .links import IncomingLink, OutgoingLink
from .requests import Reply, Request, read_address, read_request, write_reply

if TYPE_CHECKING:
    from .connection import AmqpConnection

log = logging.getLogger("pairbus.localbus.nodes")

#: Carries out a request, or replies with the error that a fault has made of it.
_Respond = Callable[[Request, BusError | None], Reply]

#: The largest request, unless the entity's messages are larger.
_MAX_REQUEST_BYTES = 1024 * 1024
#: Room in a request around one message of the largest size.
_MESSAGE_OVERHEAD_BYTES = 64 * 1024


class ReplyLink(OutgoingLink):
    """The client's receiver of replies; a reply finds it by its address, its name, or its node."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str) -> None:
        super().__init__(connection, link, path)
        self.reply_to = engine.address(lib.pn_link_remote_target(link))
        self._sent_count = 0
        connection.reply_links.append(self)

    def on_closed(self) -> None:
        self.connection.reply_links.remove(self)

    def send(self, message: bytes) -> None:
        """Send a reply, unless the link or its connection is closed."""
        if self.connection.alive and self.open and not self.connection.closing:
            self._sent_count += 1
            self.connection.request_throttle.buffered_bytes += len(message)
            engine.send(self.link, self._sent_count.to_bytes(4, "big"), message, settled=True)
            self.connection.wants_output()


class RequestLink(IncomingLink):
    """The client's sender of requests: each message is one."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, limit: int = _MAX_REQUEST_BYTES) -> None:
        super().__init__(connection, link, path, limit)

    def on_message(self, delivery: Any, raw: bytes, message_format: int) -> None:
        self.settle(delivery)
        if not self.connection.closing:
            self.connection.request_throttle.submit(lambda: self._carry_out(raw), len(raw))

    def renew_credit(self) -> None:
        if self.connection.request_throttle.has_waiting:
            self.connection.request_throttle.defer_credit(self)
        else:
            super().renew_credit()

    def _carry_out(self, raw: bytes) -> None:
        try:
            request = read_request(raw)
        except AmqpDecodeError as error:
            self.detach(BusError(bus_errors.DECODE_ERROR, f"The request cannot be read: {error}."))
            return
        self._answer(request, len(raw), self.respond)

    def on_oversize(self, delivery: Any, error: BusError, head: bytes) -> None:
        """Reply with the error: an SDK's request link does not survive a rejected request."""
        request = read_address(head)
        if request is None:
            super().on_oversize(delivery, error, head)
            return
        self.settle(delivery)
        if not self.connection.closing:
            respond: _Respond = lambda request, fault: Reply.of(fault or error)  # noqa: E731
            self.connection.request_throttle.submit(lambda: self._answer(request, len(head), respond), len(head))

    def _answer(self, request: Request, size: int, respond: _Respond) -> None:
        server, throttle = self.connection.server, self.connection.request_throttle
        fault = self.fault(request) if server.faults.active else Decision()
        if fault.swallow:
            self.swallowed = True
        elif fault.latency:
            reply = lambda: self._reply(request, fault, respond)  # noqa: E731
            server.later(self, fault.latency, lambda: throttle.submit(reply, size))
        else:
            self._reply(request, fault, respond)

    def _reply(self, request: Request, fault: Decision, respond: _Respond) -> None:
        """Carry out a request, and send the reply after the commit."""
        server = self.connection.server
        reply = write_reply(request, respond(request, fault.error))
        if fault.no_reply:
            return
        delay = fault.latency + fault.reply_delay
        connection = self.connection
        connection.request_throttle.pending_bytes += len(reply)

        def send() -> None:
            connection.request_throttle.pending_bytes -= len(reply)
            connection.wants_output()  # the next flush carries out waiting requests
            link = self._reply_link(request)
            if link is not None:
                link.send(reply)

        connection.after_commit(send if not delay else lambda: server.later(self, delay, send))

    def fault(self, request: Request) -> Decision:
        return self.connection.server.faults.on_request(self.path, request.operation)

    def respond(self, request: Request, fault: BusError | None) -> Reply:
        """Carry out a request; `fault` is the error that it is to fail with."""
        raise NotImplementedError

    def _reply_link(self, request: Request) -> ReplyLink | None:
        links = self.connection.reply_links
        for link in links:
            if request.reply_to is not None and request.reply_to in (link.reply_to, link.name):
                return link
        return next((link for link in reversed(links) if link.path == self.path), None)


class CbsLink(RequestLink):
    """Requests to `$cbs`: tokens. Faults neither refuse nor count them; only a black hole for all swallows them."""

    def fault(self, request: Request) -> Decision:
        return Decision(swallow=self.connection.server.faults.is_black_hole(self.path))

    def respond(self, request: Request, fault: BusError | None) -> Reply:
        connection = self.connection
        server = connection.server
        if request.operation != "put-token":
            return Reply.of(BusError(bus_errors.NOT_IMPLEMENTED, f"'{request.operation}' is not 'put-token'."))
        audience = request.properties.get("name")
        try:
            if not isinstance(audience, str) or not isinstance(request.body, str):
                raise bad_token("MalformedToken: put-token needs a 'name' and a token as text.")
            address = locate(audience, server.broker)
            target = server.find_or_none(address)
            grant = server.authorizer.grant(request.body, audience, server.now())
            if address.entity and target is None:
                name = address.name[:200]
                log.warning("token refused for '%s', which does not exist; create it, or check its name", name)
                raise bus_errors.not_found(address.name)
        except BusError as error:
            return Reply.of(error)
        connection.grants[grant.path] = grant
        server.expect_expiry(grant.expires_at)
        return Reply(202, "Accepted")


class EntityManagementLink(RequestLink):
    """Requests to an entity's `$management`, looked up by name each time: it may have been created again."""

    def __init__(
        self, connection: AmqpConnection, link: Any, path: str, address: Address, target: Queue | Topic | Hub
    ) -> None:
        limit = 0 if isinstance(target, Hub) else target.settings.max_message_size_in_kilobytes * 1024
        super().__init__(connection, link, path, max(_MAX_REQUEST_BYTES, limit + _MESSAGE_OVERHEAD_BYTES))
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
        """Apply a fault's size limit to each message that is scheduled, as to those that are sent."""
        scheduled = request.body.get("messages") if isinstance(request.body, dict) else None
        for each in scheduled if isinstance(scheduled, list) else ():
            raw = each.get("message") if isinstance(each, dict) else None
            size = len(raw) if isinstance(raw, bytes) else 0
            limit = self.connection.server.faults.size_limit(self.path, size)
            if size > limit:
                raise size_exceeded(self.path, size, limit)


class NamespaceManagementLink(RequestLink):
    """Requests to the namespace's `$management`, each of which names an entity (Event Hubs)."""

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
