"""The server: one loop that takes bytes in, lets the broker work, commits once a turn, and only then answers.

A turn of the event loop is: everything that was received is applied, one commit makes it durable, the answers that
waited for it go out, receivers get what is ready, and each connection is written once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from . import bus_errors as conditions
from .addresses import Address, locate
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
from .faults.delays import Delays
from .faults.faults import FaultError, Faults, covers, is_drop_now
from .rest.http import HttpProtocol, Request, Response
from .rest.management import Management
from .rest.websocket import WebSocket, upgrade

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_HOUSEKEEPING_TICKS = 5
#: After so many connections Python's collector looks at everything; see `serving` for why not more often.
_DEPARTED = 200
#: A fault's end is looked at a little later than its time, so that it has surely passed.
_A_MOMENT = 0.01
FAULTS_PATH = "$localbus/faults"


class Server:
    """Everything behind the port."""

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
        self._management = Management(broker, self._authorize_rest, self.committed, {FAULTS_PATH: self._handle_faults})
        self._callbacks = CommitCallbacks()
        self._delays = Delays(self.loop)
        self._scheduled = False
        self._patient = self._wanted = False
        self._patience: asyncio.TimerHandle | None = None
        self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._expiries: list[float] = []
        self._ticks = 0
        self._ticker = self.loop.call_later(_TICK_SECONDS, self._tick)
        self._stopped = False
        self.departed = 0
        broker.on_work = self.schedule
        broker.on_session_lost = self._session_lost
        broker.on_deleted = self._deleted
        broker.on_changed = self._changed
        self.schedule()

    # --- the turn --------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """A turn is wanted: it runs when everything received meanwhile has been applied."""
        if self._patient:
            self._wanted = True
        elif not self._scheduled and not self._stopped:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    @property
    def is_turn_due(self) -> bool:
        """Whether somebody is to be answered in the loop's next round."""
        return self._scheduled

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """What is done meanwhile asks for a turn, but not at once: more of its kind is coming."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False
            if self._wanted:
                self._turn_in_a_moment()

    def _turn_in_a_moment(self) -> None:
        wait = self._answered_at + GROUP_COMMIT_SECONDS - self.loop.time()
        if wait <= 0:
            self.schedule()
        elif self._patience is None:
            self._patience = self.loop.call_later(wait, self.schedule)

    def after_commit(self, callback: Callable[[], None], connection: AmqpConnection | None = None) -> None:
        """Call when everything applied so far is durable; a connection's calls keep their order."""
        self._callbacks.add(callback, connection, deferred=connection is not None and connection.served_in_shares)
        self.schedule()

    def later(self, handler: LinkHandler, seconds: float, callback: Callable[[], None]) -> None:
        """Call after a while (added latency); calls with the same delay keep their order."""

        def run() -> None:
            if handler.connection.alive:
                callback()
                self.schedule()

        self._delays.call(seconds, run)

    async def committed(self) -> None:
        """Returns when everything applied so far is durable."""
        done: asyncio.Future[None] = self.loop.create_future()
        self.after_commit(lambda: None if done.done() else done.set_result(None))
        await done

    def _turn(self) -> None:
        self._scheduled = self._wanted = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._stopped:
            return
        try:
            self._work()
        except Exception as error:
            # What could not be made durable must not be acknowledged: better no server than one that lies.
            log.critical("a turn failed; localbus stops without answering", exc_info=error)
            self._stopped = True
            if not self.failed.done():
                self.failed.set_exception(error)

    def _work(self) -> None:
        now = self.now()
        ready = self.broker.turn(now)
        self.broker.store.commit()
        everybody = self.loop.time() >= self._answered_at + GROUP_COMMIT_SECONDS
        for callback in self._callbacks.take(with_deferred=everybody):
            try:
                callback()
            except Exception:
                log.exception("an answer could not be given")  # the others get theirs
        if self._expiries and self._expiries[0] <= now:
            self._expire_tokens(now)
        self.dispatcher.expire(now)
        if self.dispatcher.run(ready, now):
            self.schedule()
        # Before a message leaves: that it is locked, or was received and deleted, must not be forgotten.
        self.broker.store.commit()
        unwritten, self.unwritten = self.unwritten, set()
        for connection in unwritten:
            if everybody or not connection.served_in_shares:
                connection.flush()
            else:
                self.unwritten.add(connection)
        self._set_timer()
        if everybody:
            self._answered_at = self.loop.time()
        elif self.unwritten or self._callbacks:
            self._turn_in_a_moment()

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
            if self.departed >= _DEPARTED:
                self.departed = 0
                gc.collect()

    # --- what links ask ----------------------------------------------------------------------------------

    def find_or_none(self, address: Address) -> Queue | Topic | Hub | None:
        try:
            return self.broker.find(address)
        except BusError:
            return None

    def expect_expiry(self, when: float) -> None:
        """A token runs out then: its links are looked at."""
        if when != float("inf"):
            heapq.heappush(self._expiries, when)
            self.schedule()

    def _expire_tokens(self, now: float) -> None:
        while self._expiries and self._expiries[0] <= now:
            heapq.heappop(self._expiries)
        for connection in list(self.connections):
            connection.close_expired(now)

    def hub_ready(self, partition: Partition) -> None:
        readers = self.hub_readers.get(partition)
        for reader in list(readers or ()):
            self.after_commit(reader.pull)

    def _session_lost(self, queue: Queue, session: str, owner: Any) -> None:
        for consumer in self.dispatcher.consumers(queue):
            if consumer.holds_session(session, owner):
                consumer.detach(
                    BusError(
                        conditions.SESSION_LOCK_LOST,
                        "The session lock has expired on the MessageSession. Accept a new MessageSession.",
                    )
                )

    def _changed(self, queue: Queue) -> None:
        """New settings: who may not receive any more is told, whether it waits for messages or not."""
        if queue.settings.forward_to is None:
            for consumer in self.dispatcher.consumers(queue):
                self.dispatcher.wake(consumer)

    def _deleted(self, entity: Queue | Hub) -> None:
        if isinstance(entity, Hub):
            for partition in entity.partitions:
                self.hub_readers.pop(partition, None)
        path = entity.path if isinstance(entity, Queue) else entity.settings.name
        error = conditions.not_found(path)
        if isinstance(entity, Queue):
            consumers, waiters = self.dispatcher.remove_queue(entity)
            for consumer in consumers:
                consumer.detach(error)
            for waiter in waiters:
                waiter.refuse(error)
        for handler in self._handlers():
            if (isinstance(handler, Producer) and entity in (handler.queue, handler.target)) or (
                isinstance(handler, HubConsumer) and isinstance(entity, Hub) and handler.partition in entity.partitions
            ):
                handler.detach(error)

    def _handlers(self) -> list[LinkHandler]:
        return [handler for connection in self.connections for handler in connection.handlers()]

    # --- management --------------------------------------------------------------------------------------

    def http_protocol(self) -> HttpProtocol:
        return HttpProtocol(self._management.handle, upgrade=self._upgrade)

    def _upgrade(self, request: Request) -> WebSocket | None:
        return upgrade(request, lambda: AmqpConnection(self))

    def _authorize_rest(self, header: str | None, path: str, right: str) -> None:
        self.authorizer.check_rest(header, path, right, self.now())

    async def _handle_faults(self, request: Request) -> Response:
        """GET lists the faults, POST sets one (JSON), DELETE removes one (`?id=`) or all."""
        if request.method == "GET":
            return _json(200, self.faults.listed())
        if request.method == "DELETE":
            if "id" not in request.query:
                self.faults.clear()
                self._recover()
                return _json(200, [])
            if not request.query["id"].isdecimal():
                return _json(400, {"error": f"id must be a number, not {request.query['id']!r}"})
            self.faults.remove(int(request.query["id"]))  # one that has ended by itself is no mistake
            self._recover()
            return _json(200, self.faults.listed())
        if request.method != "POST":
            return _json(405, {"error": "GET, POST and DELETE are known here"})
        try:
            wanted = json.loads(request.body)
            if not isinstance(wanted, dict):
                raise FaultError("a fault is a JSON object")
            fault = self.faults.read(wanted)
            if fault.entity != "*":
                fault.entity = self._place_of(fault.entity)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        if is_drop_now(fault.kind, fault.parameters):
            return _json(200, {"id": fault.id, "dropped": self.drop_connections(fault.entity)})
        self.faults.add(fault)
        if fault.until is not None:
            self.loop.call_later(max(fault.until - self.now(), 0.0) + _A_MOMENT, self._recover)
        if fault.kind == "unavailable":
            self._detach_unavailable(fault.entity)
        return _json(201, fault.describe())

    def _place_of(self, entity: str) -> str:
        """Where a fault on an entity strikes; a fault that would strike nothing is refused."""
        address = locate(entity, self.broker)
        if self.find_or_none(address) is None:
            raise FaultError(f"there is no entity '{entity}' to set a fault on; create it first, or use '*'")
        if address.management or address.is_part_of_hub:
            raise FaultError(f"a fault is of an entity as a whole: set it on '{address.full_path}', not on '{entity}'")
        return address.full_path.lower()

    def drop_connections(self, entity: str) -> int:
        """Cut every connection that has a link to an entity (or all), now."""
        entity = entity.lower()
        dropped = 0
        for connection in list(self.connections):
            if entity == "*" or any(covers(entity, h.path) for h in connection.handlers()):
                connection.drop()
                dropped += 1
        return dropped

    def _detach_unavailable(self, entity: str) -> None:
        for handler in self._handlers():
            if handler.right is not None and (entity == "*" or covers(entity, handler.path)):
                error = self.faults.on_attach(handler.path)
                if error is not None:
                    handler.detach(error)

    def _recover(self) -> None:
        """Faults ended: whoever was left without an answer is served again."""
        for connection in list(self.connections):
            connection.recover()
        self.schedule()

    # --- the end -----------------------------------------------------------------------------------------

    async def stop(self, grace: float = 1.0) -> None:
        """Say goodbye to every client, commit, close."""
        error = BusError(conditions.CONNECTION_FORCED, "localbus is stopping.")
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


def _json(status: int, body: Any) -> Response:
    return Response(status, json.dumps(body).encode(), {"content-type": "application/json"})


__all__ = ["FAULTS_PATH", "Server"]
