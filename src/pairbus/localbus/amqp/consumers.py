"""A client that receives: it gets a queue's messages while it has credit, and settles them durably."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors
from pairbus.localbus.auth import LISTEN
from pairbus.localbus.bus_errors import SETTLING, BusError
from pairbus.localbus.entities.locks import swap_guid
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session

from . import engine
from .engine import lib
from .fairness import ALONE_PULL, SHARED_PULL
from .links import OutgoingLink

if TYPE_CHECKING:
    from .connection import AmqpConnection

#: No message is sent to a client while this many bytes are buffered for its session.
MAX_BUFFERED_BYTES = 2 * 1024 * 1024


class Consumer(OutgoingLink):
    """A client's receiver; `can_pull` is True while new messages of its queue are to be offered to it."""

    right = LISTEN

    def __init__(self, connection: AmqpConnection, link: Any, path: str, queue: Queue, session: Session | None) -> None:
        super().__init__(connection, link, path)
        self.queue = queue
        self.session = session
        self._receive_and_delete = lib.pn_link_remote_snd_settle_mode(link) == lib.PN_SND_SETTLED
        self.can_pull = False
        #: Delivery -> lock tag of each message that the client has not settled.
        self._unsettled: dict[Any, bytes] = {}
        #: Messages that wait for the latency of a fault.
        self._delayed_count = 0
        self._owner = object() if session is None else session.owner
        server = connection.server
        server.broker.usage.attach(queue)
        server.dispatcher.add(self)

    def on_flow(self) -> None:
        self.connection.server.dispatcher.wake(self)

    def on_closed(self) -> None:
        server = self.connection.server
        server.dispatcher.remove(self)
        server.broker.usage.detach(self.queue)
        if self.session is not None:
            self.queue.release_session(self.session, self._owner, server.now())
        # Messages that were not settled stay locked until their locks expire: a lock outlives its link.
        self._unsettled.clear()

    def holds_session(self, session: str, owner: Any) -> bool:
        """Return True if this link accepted the session, and `owner` is the mark of that acceptance."""
        return self.session is not None and self.session.id == session and self._owner is owner

    def pull(self, now: float) -> bool:
        """Send the messages that credit allows; return True if more are ready at once."""
        connection = self.connection
        server = connection.server
        self.can_pull = False
        if not connection.alive or not self.open:
            return False
        if not connection.writable:
            return False  # `on_writable` continues
        try:
            server.broker.check_receive(self.queue)
        except BusError as error:
            self.detach(error)  # the entity has been disabled
            return False
        latency = 0.0
        if server.faults.active:
            if server.faults.is_black_hole(self.path):
                return False
            latency = server.faults.latency(self.path)
        if self.buffered_bytes() > MAX_BUFFERED_BYTES:
            connection.stalled.add(self)
            return False
        limit = SHARED_PULL if server.active_clients.has_others(connection) else ALONE_PULL
        room = min(self.credit() - self._delayed_count, limit)
        if room > 0:
            messages = self.queue.acquire(
                now, room, self._owner, self.session, delete=self._receive_and_delete, max_bytes=MAX_BUFFERED_BYTES
            )
            if messages:
                payloads = server.broker.payloads(messages)
                deliveries = [(m, payload, m.lock) for m, payload in zip(messages, payloads, strict=True)]
                if latency:
                    self._delayed_count += len(deliveries)
                    server.later(self, latency, lambda: self._send_delayed(deliveries))
                else:
                    self._send(deliveries)
                server.schedule()
            self.can_pull = self.credit() > self._delayed_count
            if messages and (len(messages) == room or sum(m.size for m in messages) >= MAX_BUFFERED_BYTES):
                return self.can_pull and self.queue.has_ready(self.session)
        if not self._delayed_count:
            self.finish_drain()
        return False

    def _send_delayed(self, deliveries: list[Any]) -> None:
        """Send messages after the latency of a fault."""
        self._delayed_count -= len(deliveries)
        if not self._receive_and_delete:
            # A lock that is shorter than the latency has ended, noticed or not: another receiver may get the message.
            now = self.connection.server.now()
            deliveries = [each for each in deliveries if each[0].lock is each[2] and each[2].end > now]
        self._send(deliveries)
        self.connection.server.dispatcher.wake(self)

    def _send(self, deliveries: list[Any]) -> None:
        if not (self.connection.alive and self.open):
            return
        link, unsettled = self.link, self._unsettled
        for message, payload, lock in deliveries:
            if lock is None:
                engine.send(link, message.sequence.to_bytes(16, "little"), message.delivered(payload), settled=True)
            else:
                tag = lock.tag
                body = message.delivered(payload, swap_guid(tag), lock.end)
                unsettled[engine.send(link, tag, body)] = tag
        self.connection.wants_output()
        server = self.connection.server
        if server.faults.active and server.faults.drops(self.path, len(deliveries)):
            self.connection.after_commit(self.connection.drop)

    def on_delivery(self, delivery: Any) -> None:
        """Settle a message with the client's outcome, as the faults allow."""
        if not lib.pn_delivery_updated(delivery):
            return
        outcome = lib.pn_delivery_remote_state(delivery)
        settled = bool(lib.pn_delivery_settled(delivery))
        if not outcome and not settled:
            return
        tag = self._unsettled.pop(delivery, None)
        if tag is None:
            return  # its outcome is known: the confirmation settles it
        if outcome not in (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED):
            lib.pn_delivery_settle(delivery)  # settled without an outcome: the lock runs to its end
            return
        server = self.connection.server
        fault = server.faults.on_settle(self.path, session=self.session is not None) if server.faults.active else None
        if fault is not None and fault.swallow:
            self.swallowed = True
        elif fault is not None and fault.latency:
            server.later(self, fault.latency, lambda: self._settle(delivery, tag, outcome, settled, fault))
        else:
            self._settle(delivery, tag, outcome, settled, fault)

    def _settle(self, delivery: Any, tag: bytes, outcome: int, settled: bool, fault: Any) -> None:
        if not self.connection.alive or not self.open:
            return
        server = self.connection.server
        error: BusError | None = None
        try:
            server.broker.check_enabled(self.queue, SETTLING)
            if fault is not None and fault.error is not None:
                self.queue.abandon(tag, server.now())  # the fault loses the lock: the message can be received again
                raise fault.error
            self._apply_outcome(delivery, tag, outcome, server.now())
        except BusError as refused:
            error = refused
        except AmqpDecodeError as invalid:
            error = BusError(bus_errors.DECODE_ERROR, f"The outcome cannot be read: {invalid}.")
        if fault is not None and fault.no_reply:
            return
        delay = 0.0 if fault is None else fault.latency + fault.reply_delay

        def confirm() -> None:
            if self.connection.alive and self.open:
                if settled:
                    lib.pn_delivery_settle(delivery)
                else:
                    engine.settle(delivery, outcome if error is None else engine.REJECTED, error)
                self.connection.wants_output()

        self.connection.after_commit(confirm if not delay else lambda: server.later(self, delay, confirm))

    def _apply_outcome(self, delivery: Any, tag: bytes, outcome: int, now: float) -> None:
        queue = self.queue
        if outcome == engine.ACCEPTED:
            queue.complete(tag, now)
            return
        remote = lib.pn_delivery_remote(delivery)
        if outcome == engine.RELEASED:
            queue.release(tag, now)
        elif outcome == engine.MODIFIED:
            properties = _text_keys(engine.read(lib.pn_disposition_annotations(remote)))
            if lib.pn_disposition_is_undeliverable(remote):
                queue.defer(tag, now, properties)
            else:
                queue.abandon(tag, now, properties)
        else:
            condition = lib.pn_disposition_condition(remote)
            info = _text_keys(engine.read(lib.pn_condition_info(condition)))
            reason, description = _take_text(info, "DeadLetterReason"), _take_text(info, "DeadLetterErrorDescription")
            if description is None and engine.text(lib.pn_condition_get_name(condition)) != bus_errors.DEAD_LETTER:
                reason = reason or engine.text(lib.pn_condition_get_name(condition))
                description = engine.text(lib.pn_condition_get_description(condition))
            queue.dead_letter(tag, now, reason, description, info)


def _text_keys(properties: Any) -> dict[str, Any]:
    """Return a map with text keys: most SDKs send symbols, Java's sends strings."""
    if not isinstance(properties, dict):
        return {}
    return {str(key): value for key, value in properties.items()}


def _take_text(info: dict[str, Any], name: str) -> str | None:
    """Remove and return an entry that is text; any other value stays among the properties."""
    return str(info.pop(name)) if isinstance(info.get(name), str) else None
