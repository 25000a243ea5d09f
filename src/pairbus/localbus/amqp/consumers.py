"""A client that receives: it gets what the broker hands out while it has credit, and settles it.

A settlement is confirmed when it is durable. Faults are asked at each point where the real service could fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.auth import LISTEN
from pairbus.localbus.bus_errors import SETTLING, BusError
from pairbus.localbus.entities.locks import swap_guid
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session

from . import engine
from .engine import lib
from .fairness import ALONE_PULL, SHARED_PULL
from .links import Outgoing

if TYPE_CHECKING:
    from .connection import AmqpConnection

#: Bytes of messages that may lie ready for one client.
_BUFFERED = 2 * 1024 * 1024


class Consumer(Outgoing):
    """A client that receives from a queue, a subscription or a dead-letter queue."""

    right = LISTEN

    def __init__(self, connection: AmqpConnection, link: Any, path: str, queue: Queue, session: Session | None) -> None:
        super().__init__(connection, link, path)
        self.queue = queue
        self.session = session
        self.delete = lib.pn_link_remote_snd_settle_mode(link) == lib.PN_SND_SETTLED
        #: Whether it may be asked to take messages: it has credit, and nothing holds it up that wakes it afterwards.
        self.wants = False
        self._unsettled: dict[Any, bytes] = {}
        self._on_their_way = 0
        self._owner = object() if session is None else session.owner
        server = connection.server
        server.broker.attach(queue)
        server.dispatcher.add(self)

    def on_flow(self) -> None:
        self.connection.server.dispatcher.wake(self)

    def on_closed(self) -> None:
        server = self.connection.server
        server.dispatcher.remove(self)
        server.broker.detach(self.queue)
        if self.session is not None:
            self.queue.release_session(self.session, self._owner, server.now())
        # Messages that were not settled stay locked until their time: a token outlives its link.
        self._unsettled.clear()

    def lost_session(self, session: str, owner: Any) -> bool:
        """Whether this link held that session, whose lock has run out."""
        return self.session is not None and self.session.id == session and self._owner is owner

    def pull(self, now: float) -> bool:
        """Take what credit allows; says whether more could be had at once."""
        connection = self.connection
        server = connection.server
        self.wants = False
        if not connection.alive or not self.open:
            return False
        if not connection.writable:
            return False  # resumed by the transport
        try:
            server.broker.check_receive(self.queue)
        except BusError as error:
            self.refuse(error)  # its owner has disabled it since
            return False
        latency = 0.0
        if server.faults.active:
            if server.faults.is_silent(self.path):
                return False
            latency = server.faults.latency(self.path)
        if self.buffered() > _BUFFERED:
            connection.stalled.add(self)
            return False
        most = SHARED_PULL if server.talkers.others(connection) else ALONE_PULL
        room = min(self.credit() - self._on_their_way, most)
        if room > 0:
            messages = self.queue.acquire(
                now, room, self._owner, self.session, delete=self.delete, most_bytes=_BUFFERED
            )
            if messages:
                payloads = server.broker.payloads(messages)
                pairs = [(m, payload, m.lock) for m, payload in zip(messages, payloads, strict=True)]
                if latency:
                    self._on_their_way += len(pairs)
                    server.later(self, latency, lambda: self._arrive(pairs))
                else:
                    self._push(pairs)
                server.schedule()
            self.wants = self.credit() > self._on_their_way
            if messages and (len(messages) == room or sum(m.size for m in messages) >= _BUFFERED):
                return self.wants and self.queue.has_ready(self.session)
        if not self._on_their_way:
            self.finish_drain()
        return False

    def _arrive(self, pairs: list[Any]) -> None:
        """Messages that were held up by added latency."""
        self._on_their_way -= len(pairs)
        self._push(pairs)
        self.connection.server.dispatcher.wake(self)

    def _push(self, pairs: list[Any]) -> None:
        if not (self.connection.alive and self.open):
            return
        link, unsettled = self.link, self._unsettled
        for message, payload, lock in pairs:
            if not self.delete and message.lock is not lock:
                continue  # its lock ended on the way: it is somebody else's by now
            if lock is None:
                engine.send(link, message.sequence.to_bytes(16, "little"), message.delivered(payload), settled=True)
            else:
                tag = lock.tag
                body = message.delivered(payload, swap_guid(tag), lock.end)
                unsettled[engine.send(link, tag, body)] = tag
        self.connection.wants_output()
        server = self.connection.server
        if server.faults.active and server.faults.drops(self.path, len(pairs)):
            self.connection.after_commit(self.connection.drop)

    def on_delivery(self, delivery: Any) -> None:
        if not lib.pn_delivery_updated(delivery):
            return
        outcome = lib.pn_delivery_remote_state(delivery)
        settled = bool(lib.pn_delivery_settled(delivery))
        if not outcome and not settled:
            return
        tag = self._unsettled.pop(delivery, None)
        if tag is None:
            return  # answered already; it is settled in its turn
        if outcome not in (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED):
            lib.pn_delivery_settle(delivery)  # settled with no outcome: the lock runs on to its end
            return
        server = self.connection.server
        fault = None
        if server.faults.active:
            fault = server.faults.on_settle(self.path, session=self.session is not None)
        latency = 0.0
        if fault is not None:
            if fault.swallow:
                self.swallowed = True
                return
            latency = fault.latency
            if latency:
                server.later(self, latency, lambda: self._settle(delivery, tag, outcome, settled, fault))
                return
        self._settle(delivery, tag, outcome, settled, fault)

    def _settle(self, delivery: Any, tag: bytes, outcome: int, settled: bool, fault: Any) -> None:
        if not self.connection.alive or not self.open:
            return
        server = self.connection.server
        error: BusError | None = None
        try:
            server.broker.check_enabled(self.queue, SETTLING)
            if fault is not None and fault.error is not None:
                self.queue.abandon(tag, server.now())  # a lock that is lost: somebody else gets the message
                raise fault.error
            self._apply(delivery, tag, outcome, server.now())
        except BusError as refused:
            error = refused
        except AmqpDecodeError as bad:
            error = BusError(conditions.DECODE_ERROR, f"The outcome cannot be read: {bad}.")
        if fault is not None and fault.silent:
            return
        delay = 0.0 if fault is None else fault.latency + fault.late

        def confirm() -> None:
            if self.connection.alive and self.open:
                if settled:
                    lib.pn_delivery_settle(delivery)
                else:
                    engine.settle(delivery, outcome if error is None else engine.REJECTED, error)
                self.connection.wants_output()

        self.connection.after_commit(confirm if not delay else lambda: server.later(self, delay, confirm))

    def _apply(self, delivery: Any, tag: bytes, outcome: int, now: float) -> None:
        queue = self.queue
        if outcome == engine.ACCEPTED:
            queue.complete(tag, now)
            return
        remote = lib.pn_delivery_remote(delivery)
        if outcome == engine.RELEASED:
            queue.release(tag, now)
        elif outcome == engine.MODIFIED:
            properties = _texts(engine.read(lib.pn_disposition_annotations(remote)))
            if lib.pn_disposition_is_undeliverable(remote):
                queue.defer(tag, now, properties)
            else:
                queue.abandon(tag, now, properties)
        else:
            condition = lib.pn_disposition_condition(remote)
            info = _texts(engine.read(lib.pn_condition_info(condition)))
            reason, description = _take_text(info, "DeadLetterReason"), _take_text(info, "DeadLetterErrorDescription")
            if description is None and engine.text(lib.pn_condition_get_name(condition)) != conditions.DEAD_LETTER:
                reason = reason or engine.text(lib.pn_condition_get_name(condition))
                description = engine.text(lib.pn_condition_get_description(condition))
            queue.dead_letter(tag, now, reason, description, info)


class HubConsumer(Outgoing):
    """A client that reads an event hub's partition from a position on."""

    right = LISTEN

    def __init__(
        self,
        connection: AmqpConnection,
        link: Any,
        path: str,
        partition: Any,
        position: int,
        group: str,
        owner_level: int | None,
    ) -> None:
        super().__init__(connection, link, path)
        self.partition = partition
        self.position = position
        self.group = group
        self.owner_level = owner_level
        self._tells_newest = self.name.encode() in connection.curious
        connection.server.hub_readers.setdefault(partition, set()).add(self)

    def on_closed(self) -> None:
        self.connection.server.hub_readers.get(self.partition, set()).discard(self)

    def on_flow(self) -> None:
        self.pull()

    def pull(self) -> None:
        """Push the events that have come since, as far as credit goes."""
        if not (self.connection.alive and self.open and self.connection.writable):
            return
        if self.connection.server.faults.is_silent(self.path):
            return
        while self.credit() > 0 and self.position < len(self.partition.events):
            if self.buffered() > _BUFFERED:
                self.connection.stalled.add(self)
                break
            event = self.partition.events[self.position]
            self.position += 1
            newest = self.partition.events[-1] if self._tells_newest else None
            body = event.delivered(newest, self.connection.server.now())
            engine.send(self.link, self.position.to_bytes(8, "big"), body, settled=True)
        else:
            self.finish_drain()
        self.connection.wants_output()


def _texts(properties: Any) -> dict[str, Any]:
    """Keys as text: symbols from most SDKs, strings from Java's."""
    if not isinstance(properties, dict):
        return {}
    return {str(key): value for key, value in properties.items()}


def _take_text(info: dict[str, Any], name: str) -> str | None:
    """An entry, taken out; what is no text stays with the other properties, as it is."""
    return str(info.pop(name)) if isinstance(info.get(name), str) else None
