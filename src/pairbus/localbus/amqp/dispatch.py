"""Who gets the next message: the receivers of each queue in turn, and those that wait for a session.

However many receivers are open, only those are asked that have credit, and of a session only its holder.
"""

from __future__ import annotations

import heapq
import logging
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session

if TYPE_CHECKING:
    from .consumers import Consumer

log = logging.getLogger("pairbus.localbus.dispatch")


class Waiting(Protocol):
    """Someone who wants the next free session of a queue."""

    deadline: float

    def offer(self, now: float) -> bool:
        """Try to take a session; True when it did, or no longer wants one."""

    def give_up(self, error: BusError) -> None: ...


@dataclass(eq=False)
class _Receivers:
    #: All; those of them that have credit, in turn; and those that hold a session, by it.
    consumers: dict[Consumer, None] = field(default_factory=dict)
    hungry: OrderedDict[Consumer, None] = field(default_factory=OrderedDict)
    holders: dict[Session, Consumer] = field(default_factory=dict)
    waiting: deque[Waiting] = field(default_factory=deque)


class Dispatcher:
    """Receivers by queue. `run` hands out what there is; nobody is served twice before all were once."""

    def __init__(self) -> None:
        self._queues: dict[Queue, _Receivers] = {}
        self._woken: dict[Consumer, None] = {}
        #: When somebody's patience may be over; entries of those who were served meanwhile are passed over.
        self._deadlines: list[float] = []

    def _of(self, queue: Queue) -> _Receivers:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _Receivers()
        return found

    def add(self, consumer: Consumer) -> None:
        found = self._of(consumer.queue)
        found.consumers[consumer] = None
        if consumer.session is not None:
            found.holders[consumer.session] = consumer

    def remove(self, consumer: Consumer) -> None:
        self._woken.pop(consumer, None)
        found = self._queues.get(consumer.queue)
        if found is not None and consumer in found.consumers:
            del found.consumers[consumer]
            found.hungry.pop(consumer, None)
            if consumer.session is not None:
                found.holders.pop(consumer.session, None)
            self._tidy(consumer.queue)

    def wait(self, queue: Queue, waiting: Waiting) -> None:
        self._of(queue).waiting.append(waiting)
        heapq.heappush(self._deadlines, waiting.deadline)

    def stop_waiting(self, queue: Queue, waiting: Any) -> None:
        found = self._queues.get(queue)
        if found is not None and waiting in found.waiting:
            found.waiting.remove(waiting)
            self._tidy(queue)

    def wake(self, consumer: Consumer) -> None:
        """A receiver has new credit, or can be written to again."""
        self._woken[consumer] = None
        found = self._queues.get(consumer.queue)
        if consumer.session is None and found is not None and consumer in found.consumers:
            found.hungry[consumer] = None
        consumer.connection.server.schedule()

    def consumers(self, queue: Queue) -> list[Consumer]:
        found = self._queues.get(queue)
        return [] if found is None else list(found.consumers)

    def run(self, ready: Iterable[Queue], now: float) -> bool:
        """Serve the receivers of queues that have something, and those woken; says whether more is to do."""
        more = False
        woken, self._woken = self._woken, {}
        for queue in ready:
            found = self._queues.get(queue)
            if found is None:
                continue
            while found.waiting and found.waiting[0].offer(now):
                found.waiting.popleft()
            for consumer in self._asked(queue, found):
                woken.pop(consumer, None)
                if self._serve(consumer, now):
                    self._woken[consumer] = None
                    more = True
        for consumer in woken:
            if consumer.open and self._serve(consumer, now):
                self._woken[consumer] = None
                more = True
        return more

    def _asked(self, queue: Queue, found: _Receivers) -> Iterator[Consumer]:
        """Who may take something of a queue that has it; each is served before the next is named."""
        if queue.sessions is not None:
            for session in queue.sessions.take_stirred():
                if session in found.holders:
                    yield found.holders[session]
            return
        hungry = found.hungry
        for _ in range(len(hungry)):
            if not hungry or not queue.has_ready():
                return  # nothing is left: the next round begins with the next receiver
            consumer = next(iter(hungry))
            hungry.move_to_end(consumer)
            yield consumer

    def _serve(self, consumer: Consumer, now: float) -> bool:
        more = False
        try:
            more = consumer.pull(now)
        except sqlite3.Error:
            raise  # what the store does not give back concerns everybody
        except Exception:
            log.exception("a receiver could not be served; its connection is dropped")
            consumer.connection.drop()
        if not consumer.wants:
            found = self._queues.get(consumer.queue)
            if found is not None:
                found.hungry.pop(consumer, None)
        return more

    def expire(self, now: float) -> None:
        """Tell those who have waited long enough that there was no session for them."""
        if not self._deadlines or self._deadlines[0] > now:
            return
        while self._deadlines and self._deadlines[0] <= now:
            heapq.heappop(self._deadlines)
        for queue, found in list(self._queues.items()):
            for waiting in [w for w in found.waiting if w.deadline <= now]:
                found.waiting.remove(waiting)
                waiting.give_up(
                    BusError(
                        conditions.TIMEOUT,
                        f"No session of '{queue.path}' became free within the time the receiver allowed.",
                    )
                )
            self._tidy(queue)

    def next_deadline(self) -> float:
        return self._deadlines[0] if self._deadlines else float("inf")

    def forget(self, queue: Queue) -> list[Any]:
        """The queue is deleted: everyone on it."""
        found = self._queues.pop(queue, None)
        return [] if found is None else [*found.consumers, *found.waiting]

    def _tidy(self, queue: Queue) -> None:
        found = self._queues.get(queue)
        if found is not None and not found.consumers and not found.waiting:
            del self._queues[queue]
