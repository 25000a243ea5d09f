"""The order in which receivers get messages: in turn for each queue, and first come, first served for sessions."""

from __future__ import annotations

import heapq
import logging
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session

if TYPE_CHECKING:
    from .consumers import Consumer
    from .session_waiter import SessionWaiter

log = logging.getLogger("pairbus.localbus.dispatch")


@dataclass(eq=False)
class _Receivers:
    """The receivers of one queue."""

    consumers: dict[Consumer, None] = field(default_factory=dict)
    #: Consumers without a session that have credit, the next one first.
    with_credit: OrderedDict[Consumer, None] = field(default_factory=OrderedDict)
    session_holders: dict[Session, Consumer] = field(default_factory=dict)
    waiters: deque[SessionWaiter] = field(default_factory=deque)


class Dispatcher:
    """The receivers of all queues. `run` serves each receiver of a queue once before it serves one twice."""

    def __init__(self) -> None:
        self._queues: dict[Queue, _Receivers] = {}
        #: Consumers to serve in the next run, whether or not their queue has changed.
        self._woken: dict[Consumer, None] = {}
        #: A heap of waiters' deadlines; it may hold those of waiters that were served.
        self._deadlines: list[float] = []

    def _receivers(self, queue: Queue) -> _Receivers:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Receivers()
        return found

    def add(self, consumer: Consumer) -> None:
        found = self._receivers(consumer.queue)
        found.consumers[consumer] = None
        if consumer.session is not None:
            found.session_holders[consumer.session] = consumer

    def remove(self, consumer: Consumer) -> None:
        self._woken.pop(consumer, None)
        found = self._queues.get(consumer.queue)
        if found is not None and consumer in found.consumers:
            del found.consumers[consumer]
            found.with_credit.pop(consumer, None)
            if consumer.session is not None:
                found.session_holders.pop(consumer.session, None)
            self._remove_if_empty(consumer.queue)

    def add_waiter(self, queue: Queue, waiter: SessionWaiter) -> None:
        """Let a receiver wait for a session until its deadline."""
        self._receivers(queue).waiters.append(waiter)
        heapq.heappush(self._deadlines, waiter.deadline)

    def remove_waiter(self, queue: Queue, waiter: SessionWaiter) -> None:
        found = self._queues.get(queue)
        if found is not None and waiter in found.waiters:
            found.waiters.remove(waiter)
            self._remove_if_empty(queue)

    def wake(self, consumer: Consumer) -> None:
        """Serve a receiver in the next run: it has new credit, or its connection is writable again."""
        self._woken[consumer] = None
        found = self._queues.get(consumer.queue)
        if consumer.session is None and found is not None and consumer in found.consumers:
            found.with_credit[consumer] = None
        consumer.connection.server.schedule()

    def consumers(self, queue: Queue) -> list[Consumer]:
        found = self._queues.get(queue)
        return [] if found is None else list(found.consumers)

    def run(self, ready: Iterable[Queue], now: float) -> bool:
        """Serve the receivers of queues with messages, and those woken; return True if another run is needed."""
        more = False
        woken, self._woken = self._woken, {}
        for queue in ready:
            found = self._queues.get(queue)
            if found is None:
                continue
            while found.waiters and found.waiters[0].offer(now):
                found.waiters.popleft()
            for consumer in self._candidates(queue, found):
                woken.pop(consumer, None)
                if self._serve(consumer, now):
                    self._woken[consumer] = None
                    more = True
        for consumer in woken:
            if consumer.open and self._serve(consumer, now):
                self._woken[consumer] = None
                more = True
        return more

    def _candidates(self, queue: Queue, found: _Receivers) -> Iterator[Consumer]:
        """Yield the receivers that may take messages; each is served before the next is chosen."""
        if queue.sessions is not None:
            for session in queue.sessions.take_updated():
                if session in found.session_holders:
                    yield found.session_holders[session]
            return
        with_credit = found.with_credit
        for _ in range(len(with_credit)):
            if not with_credit or not queue.has_ready():
                return  # the next run begins with the next receiver
            consumer = next(iter(with_credit))
            with_credit.move_to_end(consumer)
            yield consumer

    def _serve(self, consumer: Consumer, now: float) -> bool:
        more = False
        try:
            more = consumer.pull(now)
        except sqlite3.Error:
            raise  # a failing store concerns every client
        except Exception:
            log.exception("a receiver could not be served; its connection is dropped")
            consumer.connection.drop()
        if not consumer.can_pull:
            found = self._queues.get(consumer.queue)
            if found is not None:
                found.with_credit.pop(consumer, None)
        return more

    def expire(self, now: float) -> None:
        """Refuse the receivers for which no session became free before their deadline."""
        if not self._deadlines or self._deadlines[0] > now:
            return
        while self._deadlines and self._deadlines[0] <= now:
            heapq.heappop(self._deadlines)
        for queue, found in list(self._queues.items()):
            for waiter in [each for each in found.waiters if each.deadline <= now]:
                found.waiters.remove(waiter)
                waiter.refuse(
                    BusError(
                        bus_errors.TIMEOUT,
                        f"No session of '{queue.path}' became free within the time the receiver allowed.",
                    )
                )
            self._remove_if_empty(queue)

    def next_deadline(self) -> float:
        """Return the time at which `expire` must run."""
        return self._deadlines[0] if self._deadlines else float("inf")

    def remove_queue(self, queue: Queue) -> tuple[list[Consumer], list[SessionWaiter]]:
        """Remove a deleted queue; return the receivers and waiters that it had."""
        found = self._queues.pop(queue, None)
        return ([], []) if found is None else (list(found.consumers), list(found.waiters))

    def _remove_if_empty(self, queue: Queue) -> None:
        found = self._queues.get(queue)
        if found is not None and not found.consumers and not found.waiters:
            del self._queues[queue]
