"""The server: one event loop that reads, applies requests to the broker, commits, and only then answers.

A turn applies everything that was received, commits it, gives the answers that waited for the commit, hands ready
messages to receivers, commits their locks and removals, and writes to each connection once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import logging
from collections.abc import Callable, Iterator
from typing import Any

from . import bus_errors
from .addresses import Address
from .amqp.connection import AmqpConnection
from .amqp.dispatch import Dispatcher
from .amqp.fairness import GROUP_COMMIT_SECONDS, ActiveClients, CommitCallbacks
from .amqp.hub_consumer import HubConsumer
from .amqp.links import LinkHandler
from .amqp.operations import Operations
from .amqp.producers import Producer
from .auth import Authorizer
from .broker.broker import Broker
from .bus_errors import BusError
from .entities.hubs import Hub, Partition
from .entities.queues import Queue
from .entities.topics import Topic
from .faults.control import FAULTS_PATH, FaultControl
from .faults.delays import Delays
from .faults.faults import Faults
from .rest.http import HttpProtocol, Request
from .rest.management import Management
from .rest.websocket import WebSocket, upgrade

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_HOUSEKEEPING_TICKS = 5
#: Ended connections after which Python's garbage collector runs in full; see `server_process` for why not more often.
_COLLECT_AFTER = 200


class Server:
    """The state of a running localbus: its broker, connections, receivers, faults and timers."""

    def __init__(self, broker: Broker, authorizer: Authorizer) -> None:
        self.broker = broker
        self.authorizer = authorizer
        self.now = broker.clock
        self.loop = asyncio.get_running_loop()
        self.connections: set[AmqpConnection] = set()
        self.unwritten: set[AmqpConnection] = set()
        self.hub_readers: dict[Partition, set[HubConsumer]] = {}
        self.dispatcher = Dispatcher()
        self.active_clients = ActiveClients(self.loop.time)
        self.faults = Faults(broker.clock)
        self.operations = Operations(broker, broker.clock)
        self.failed: asyncio.Future[None] = self.loop.create_future()
        control = FaultControl(self.faults, broker, self.connections, self.schedule, self.loop.call_later)
        self._management = Management(broker, self._authorize_rest, self.committed, {FAULTS_PATH: control.handle})
        self._callbacks = CommitCallbacks()
        self._delays = Delays(self.loop)
        #: True if a turn runs in the event loop's next iteration.
        self.is_turn_due = False
        self._grouping = self._turn_wanted = False
        self._delayed_turn: asyncio.TimerHandle | None = None
        self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._expiries: list[float] = []
        self._ticks = 0
        self._ticker = self.loop.call_later(_TICK_SECONDS, self._tick)
        self._stopped = False
        self.ended_connections = 0
        broker.on_work = self.schedule
        broker.on_session_lost = self._session_lost
        broker.on_deleted = self._deleted
        broker.on_changed = self._changed
        self.schedule()

    def schedule(self) -> None:
        """Request a turn; it runs after the input that is being read has been applied."""
        if self._grouping:
            self._turn_wanted = True
        elif not self.is_turn_due and not self._stopped:
            self.is_turn_due = True
            self.loop.call_soon(self._turn)

    @contextlib.contextmanager
    def group_commit(self) -> Iterator[None]:
        """Postpone the turns requested in the with block a little, because more input follows."""
        self._grouping = True
        try:
            yield
        finally:
            self._grouping = False
            if self._turn_wanted:
                self._delay_turn()

    def _delay_turn(self) -> None:
        wait = self._answered_at + GROUP_COMMIT_SECONDS - self.loop.time()
        if wait <= 0:
            self.schedule()
        elif self._delayed_turn is None:
            self._delayed_turn = self.loop.call_later(wait, self.schedule)

    def after_commit(self, callback: Callable[[], None], connection: AmqpConnection | None = None) -> None:
        """Call back when everything applied so far is durable; callbacks of one connection keep their order."""
        self._callbacks.add(callback, connection, deferred=connection is not None and connection.served_in_shares)
        self.schedule()

    def later(self, handler: LinkHandler, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after that many seconds (added latency), unless the connection has ended by then."""

        def run() -> None:
            if handler.connection.alive:
                callback()
                self.schedule()

        self._delays.call(seconds, run)

    async def committed(self) -> None:
        """Return when everything applied so far is durable."""
        done: asyncio.Future[None] = self.loop.create_future()
        self.after_commit(lambda: None if done.done() else done.set_result(None))
        await done

    def _turn(self) -> None:
        self.is_turn_due = self._turn_wanted = False
        if self._delayed_turn is not None:
            self._delayed_turn.cancel()
            self._delayed_turn = None
        if self._stopped:
            return
        try:
            self._work()
        except Exception as error:
            # Changes that are not durable must not be acknowledged: the server stops.
            log.critical("a turn failed; localbus stops without answering", exc_info=error)
            self._stopped = True
            if not self.failed.done():
                self.failed.set_exception(error)

    def _work(self) -> None:
        now = self.now()
        ready = self.broker.turn(now)
        self.broker.store.commit()
        answer_all = self.loop.time() >= self._answered_at + GROUP_COMMIT_SECONDS
        for callback in self._callbacks.take(with_deferred=answer_all):
            try:
                callback()
            except Exception:
                log.exception("an answer could not be given; the other answers follow")
        if self._expiries and self._expiries[0] <= now:
            self._expire_tokens(now)
        self.dispatcher.expire(now)
        if self.dispatcher.run(ready, now):
            self.schedule()
        # A message must not be written before its lock or its removal (receive and delete) is durable.
        self.broker.store.commit()
        unwritten, self.unwritten = self.unwritten, set()
        for connection in unwritten:
            if answer_all or not connection.served_in_shares:
                connection.flush()
            else:
                self.unwritten.add(connection)
        self._set_timer()
        if answer_all:
            self._answered_at = self.loop.time()
        elif self.unwritten or self._callbacks:
            self._delay_turn()

    def _set_timer(self) -> None:
        due = min(self.broker.next_due(), self.dispatcher.next_deadline())
        if self._expiries:
            due = min(due, self._expiries[0])
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = due
        if due != float("inf"):
            self._timer = self.loop.call_later(max(due - self.now(), 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self.schedule()

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(_TICK_SECONDS, self._tick)
        self._ticks += 1
        milliseconds = int(self.loop.time() * 1000)
        for connection in list(self.connections):
            connection.tick(milliseconds)
        if self._ticks % _HOUSEKEEPING_TICKS == 0:
            self.broker.usage.delete_idle(self.now())
            if self.ended_connections >= _COLLECT_AFTER:
                self.ended_connections = 0
                gc.collect()

    def find_or_none(self, address: Address) -> Queue | Topic | Hub | None:
        try:
            return self.broker.find(address)
        except BusError:
            return None

    def expect_expiry(self, when: float) -> None:
        """Check the links of all connections when a token expires at that time."""
        if when != float("inf"):
            heapq.heappush(self._expiries, when)
            self.schedule()

    def _expire_tokens(self, now: float) -> None:
        while self._expiries and self._expiries[0] <= now:
            heapq.heappop(self._expiries)
        for connection in list(self.connections):
            connection.close_expired(now)

    def hub_ready(self, partition: Partition) -> None:
        for reader in self.hub_readers.get(partition, ()):
            self.after_commit(reader.pull)

    def _session_lost(self, queue: Queue, session: str, owner: Any) -> None:
        for consumer in self.dispatcher.consumers(queue):
            if consumer.holds_session(session, owner):
                consumer.detach(bus_errors.session_lock_lost())

    def _changed(self, queue: Queue) -> None:
        """Wake the receivers of a queue with new settings: those that may not receive any more are refused."""
        if queue.settings.forward_to is None:
            for consumer in self.dispatcher.consumers(queue):
                self.dispatcher.wake(consumer)

    def _deleted(self, entity: Queue | Hub) -> None:
        if isinstance(entity, Hub):
            for partition in entity.partitions:
                self.hub_readers.pop(partition, None)
        path = entity.path if isinstance(entity, Queue) else entity.settings.name
        error = bus_errors.not_found(path)
        if isinstance(entity, Queue):
            consumers, waiters = self.dispatcher.remove_queue(entity)
            for consumer in consumers:
                consumer.detach(error)
            for waiter in waiters:
                waiter.refuse(error)
        for handler in [each for connection in self.connections for each in connection.handlers()]:
            if (isinstance(handler, Producer) and entity in (handler.queue, handler.target)) or (
                isinstance(handler, HubConsumer) and isinstance(entity, Hub) and handler.partition in entity.partitions
            ):
                handler.detach(error)

    def http_protocol(self) -> HttpProtocol:
        return HttpProtocol(self._management.handle, upgrade=self._upgrade)

    def _upgrade(self, request: Request) -> WebSocket | None:
        return upgrade(request, lambda: AmqpConnection(self))

    def _authorize_rest(self, header: str | None, path: str, right: str) -> None:
        self.authorizer.check_rest(header, path, right, self.now())

    async def stop(self, grace: float = 1.0) -> None:
        """Close every connection, waiting up to `grace` seconds for the clients; then commit and close the store."""
        error = BusError(bus_errors.CONNECTION_FORCED, "localbus is stopping.")
        for connection in list(self.connections):
            connection.close(error)
        deadline = self.loop.time() + grace
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.drop()
        self._ticker.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._stopped = True
        self.broker.store.close()
