"""A client that sends: its messages go to the broker and are accepted when they are durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import AmqpDecodeError
from pairbus.localbus import bus_errors
from pairbus.localbus.auth import SEND
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.message import BATCH_FORMAT, Draft, read_batch, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic

from .links import IncomingLink

if TYPE_CHECKING:
    from .connection import AmqpConnection

#: The largest message that an event hub takes.
_HUB_LIMIT = 1024 * 1024


class Producer(IncomingLink):
    """A client's sender to a queue, a topic, an event hub or one of a hub's partitions."""

    right = SEND

    def __init__(
        self, connection: AmqpConnection, link: Any, path: str, target: Queue | Topic | Hub, partition: str | None
    ) -> None:
        limit = _HUB_LIMIT if isinstance(target, Hub) else target.settings.max_message_size_in_kilobytes * 1024
        limit = connection.server.faults.size_limit(path, limit)
        super().__init__(connection, link, path, limit)
        self.target = target
        self.partition = partition
        self.queue = target if isinstance(target, Queue) else target.inbox if isinstance(target, Topic) else None
        if self.queue is not None:
            connection.server.broker.usage.attach(self.queue)

    def on_closed(self) -> None:
        super().on_closed()
        if self.queue is not None:
            self.connection.server.broker.usage.detach(self.queue)

    def on_message(self, delivery: Any, raw: bytes, message_format: int) -> None:
        server = self.connection.server
        fault = server.faults.on_send(self.path) if server.faults.active else None
        if fault is not None:
            if fault.swallow:
                self.swallowed = True
                return
            if fault.error is not None:
                server.later(self, fault.latency, lambda: self.settle_if_open(delivery, fault.error))
                return
            if fault.latency:
                enqueue = lambda: self._enqueue(delivery, raw, message_format, fault.latency, fault.no_reply)  # noqa: E731
                server.later(self, fault.latency, enqueue)
                return
        self._enqueue(delivery, raw, message_format, 0.0, fault is not None and fault.no_reply)

    def _enqueue(self, delivery: Any, raw: bytes, message_format: int, latency: float, no_reply: bool) -> None:
        """Give a message, or a batch of them, to the broker; settle the delivery after the commit."""
        server = self.connection.server
        error: BusError | None = None
        try:
            identify = self.queue is not None
            is_batch = message_format == BATCH_FORMAT
            drafts = read_batch(raw, identify=identify) if is_batch else [read_message(raw, identify=identify)]
            self._send_to_broker(drafts, raw, server.now())
            if server.faults.active and server.faults.drops(self.path, len(drafts)):
                # The messages are kept; the client does not get their outcome.
                self.connection.after_commit(self.connection.drop)
        except AmqpDecodeError as invalid:
            error = BusError(bus_errors.DECODE_ERROR, f"The message cannot be read: {invalid}.")
        except BusError as refused:
            error = refused
        if no_reply:
            return
        if latency:
            later = lambda: server.later(self, latency, lambda: self.settle_if_open(delivery, error))  # noqa: E731
            self.connection.after_commit(later)
        else:
            self.connection.after_commit(lambda: self.settle_if_open(delivery, error))

    def _send_to_broker(self, drafts: list[Draft], raw: bytes, now: float) -> None:
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

    def settle_if_open(self, delivery: Any, error: BusError | None) -> None:
        """Settle a delivery after a commit or a delay, unless the link has been closed since."""
        if self.connection.alive and self.open:
            self.settle(delivery, error)
