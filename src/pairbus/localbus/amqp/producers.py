"""A client that sends: what it sends is given to the broker, and answered when it is durable.

Faults are asked at each point where the real service could fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.auth import SEND
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.message import BATCH_FORMAT, Draft, read_batch, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic

from .links import Incoming

if TYPE_CHECKING:
    from .connection import AmqpConnection


def _read_one(raw: bytes, *, identify: bool) -> list[Draft]:
    return [read_message(raw, identify=identify)]


class Producer(Incoming):
    """A client that sends to a queue, a topic, an event hub or one of its partitions."""

    right = SEND

    def __init__(
        self, connection: AmqpConnection, link: Any, path: str, target: Queue | Topic | Hub, partition: str | None
    ) -> None:
        limit = 1024 * 1024
        if not isinstance(target, Hub):
            limit = target.settings.max_message_size_in_kilobytes * 1024
        limit = connection.server.faults.size_limit(path, limit)
        super().__init__(connection, link, path, limit)
        self.target = target
        self.partition = partition
        self.queue = target if isinstance(target, Queue) else target.inbox if isinstance(target, Topic) else None
        if self.queue is not None:
            connection.server.broker.attach(self.queue)

    def on_closed(self) -> None:
        super().on_closed()
        if self.queue is not None:
            self.connection.server.broker.detach(self.queue)

    def on_message(self, delivery: Any, raw: bytes, number: int) -> None:
        server = self.connection.server
        fault = server.faults.on_send(self.path) if server.faults.active else None
        if fault is not None:
            if fault.swallow:
                self.swallowed = True
                return  # bytes accepted, nothing answered
            if fault.error is not None:
                server.later(self, fault.latency, lambda: self.answer_if_alive(delivery, fault.error))
                return
            if fault.latency:
                settled = lambda: self._take(delivery, raw, number, fault.latency, fault.silent)  # noqa: E731
                server.later(self, fault.latency, settled)
                return
        self._take(delivery, raw, number, 0.0, fault is not None and fault.silent)

    def _take(self, delivery: Any, raw: bytes, number: int, latency: float, silent: bool) -> None:
        server = self.connection.server
        error: BusError | None = None
        try:
            read = read_batch if number == BATCH_FORMAT else _read_one
            drafts = read(raw, identify=self.queue is not None)
            self._accept(drafts, raw, server.now())
            if server.faults.active and server.faults.drops(self.path, len(drafts)):
                # What was taken in is kept; its answer is not heard.
                self.connection.after_commit(self.connection.drop)
        except AmqpDecodeError as bad:
            error = BusError(conditions.DECODE_ERROR, f"The message cannot be read: {bad}.")
        except BusError as refused:
            error = refused
        if silent:
            return
        if latency:
            later = lambda: server.later(self, latency, lambda: self.answer_if_alive(delivery, error))  # noqa: E731
            self.connection.after_commit(later)
        else:
            self.connection.after_commit(lambda: self.answer_if_alive(delivery, error))

    def _accept(self, drafts: list[Draft], raw: bytes, now: float) -> None:
        broker = self.connection.server.broker
        if isinstance(self.target, Hub):
            hub = self.target
            if self.partition is not None:
                partition = hub.partition(self.partition)
            else:
                key = read_message(raw).partition_key if drafts else None
                key = key or (drafts[0].partition_key if drafts else None)
                partition = hub.choose(key)
            broker.publish(partition, hub, drafts, now)
            self.connection.server.hub_ready(partition)
        else:
            broker.send(self.target, drafts, now)

    def answer_if_alive(self, delivery: Any, error: BusError | None) -> None:
        if self.connection.alive and self.open:
            self.answer(delivery, error)
