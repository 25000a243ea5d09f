"""The backlog queues of a pairing, with the rotation and connections that all its senders share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.domain.backlog import LEAST_SECONDS, QueueChooser, Rotation, SenderQueue
from pairbus.domain.conditions import MESSAGE_CONDITIONS, Meaning
from pairbus.domain.cost import operations_of
from pairbus.options import PairingOptions
from pairbus.runtime.redaction import describe_error

from . import events
from .connections import Attempt, ConnectionPool, ConnectionWatchdog, SenderConnection
from .errors import BacklogUnavailableError, NotParkableError
from .parcel import Ids, Parcel
from .provisioning import Provisioned
from .sdk.batches import raw_batch
from .sdk.classification import amqp_condition, is_shortage, is_timeout, meaning_of
from .sdk.clients import sender_to
from .status import Operations, QueueStatus

#: Seconds below which no attempt is begun.
_SHORTEST_SECONDS = 0.001
#: Seconds between two attempts while every queue is throttled, however short `server_busy_wait` is.
_LEAST_BUSY_WAIT_SECONDS = 0.2


class Backlog:
    """The backlog queues of a pairing, as its senders use them."""

    def __init__(
        self,
        client: ServiceBusClient,
        provisioned: Provisioned,
        options: PairingOptions,
        watchdog: ConnectionWatchdog,
        operations: Operations,
        emit: Callable[..., None],
        closing: threading.Event,
    ) -> None:
        self._queues = {queue.path: queue for queue in provisioned.queues}
        #: Shared by all senders; read and changed under the lock.
        self.rotation = Rotation(tuple(self._queues), options.seconds("ping_primary_interval"))
        self.lock = threading.Lock()
        #: Backlog queue -> the largest batch that it takes, as far as is known.
        self._limits = {queue.path: queue.limit for queue in provisioned.queues}
        #: The largest batch that every backlog queue takes, as far as is known.
        self.limit = min(self._limits.values())
        #: Backlog queue -> the connections to it.
        self.pools = {path: ConnectionPool(partial(sender_to, client, path), watchdog) for path in self._queues}
        self._parked = dict.fromkeys(self._queues, 0)
        #: For messages without an id. One for each pairing: a process that was forked must make others.
        self.ids = Ids()
        self.busy_wait = options.seconds("server_busy_wait")
        self._operations = operations
        self._emit = emit
        self.closing = closing

    def limit_of(self, queue: str) -> int:
        """Return the largest batch that one backlog queue takes, as far as is known."""
        return self._limits[queue]

    def park(self, parcel: Parcel, sender_queue: SenderQueue, timeout: float, stop: Callable[[], bool]) -> None:
        """Park what is left of a parcel until `stop` returns True; raise if no queue accepts a message in time."""
        parcel.refuse_too_large(self.limit)
        parking = _Parking(self, parcel, sender_queue, time.monotonic() + timeout)
        while parcel.rest and not stop() and not self.closing.is_set():
            parking.step()

    def attempt(self, queue: str, messages: Sequence[bytes], seconds: float) -> Attempt:
        """Send one batch to one queue, and return the record of it. A stale connection is replaced once."""
        pool = self.pools[queue]
        deadline = time.monotonic() + seconds
        batch = raw_batch(messages)
        while True:
            attempt = pool.attempt(batch, seconds)
            self._learn_limit(queue, attempt.connection)
            if attempt.error is None:
                self._accepted(queue, messages)
                return attempt
            if not _may_be_stale(attempt.error):
                pool.give_back(attempt.connection)
                return attempt
            pool.drop(attempt.connection)
            seconds = deadline - time.monotonic()
            if not attempt.was_open or seconds <= _SHORTEST_SECONDS:
                return attempt
            pool.drop_idle()

    def _learn_limit(self, queue: str, connection: SenderConnection) -> None:
        """Adopt the limit that the service has given an open link."""
        if connection.limit and connection.limit != self._limits[queue]:
            self._limits[queue] = connection.limit
            self.limit = min(self._limits.values())

    def _accepted(self, queue: str, messages: Sequence[bytes]) -> None:
        with self.lock:
            self._parked[queue] += len(messages)
            is_back = self.rotation.took(queue)
        if is_back:
            self._emit(events.QUEUE_BACK, queue=queue)
        self._operations.add("park", sum(map(operations_of, map(len, messages))))

    def take_out(self, queue: str, error: Exception) -> None:
        """Take a queue that failed a send out of the rotation for a while."""
        with self.lock:
            was_in = self.rotation.leave(queue, time.monotonic(), describe_error(error))
        if was_in:
            self._emit(events.QUEUE_LEFT, queue=queue, error=describe_error(error))

    def unavailable(
        self, messages: list[Any], busy: Mapping[str, Exception] = MappingProxyType({})
    ) -> BacklogUnavailableError:
        """Return the error for messages that no backlog queue has accepted, with each queue's reason."""
        with self.lock:
            absent = self.rotation.reasons()
        throttled = {queue: f"it is busy: {describe_error(error)}" for queue, error in busy.items()}
        reasons = throttled | {queue: why for queue, why in absent.items() if queue not in busy}
        said = "; ".join(f"{queue}: {why}" for queue, why in list(reasons.items())[:3])
        if len(reasons) > 3:
            said += f"; and {len(reasons) - 3} more, see `reasons`"
        found = BacklogUnavailableError(
            f"{len(messages)} message(s) were not accepted anywhere: the primary is failed over and no backlog queue "
            f"took them ({said or 'none answered in time'}). They are in the error's `messages`.",
            messages,
            reasons,
        )
        found.__cause__ = next(reversed(list(busy.values())), None)
        return found

    def status(self) -> dict[str, QueueStatus]:
        now = time.monotonic()
        found = {}
        for path, queue in self._queues.items():
            absence = self.rotation.absence(path, now)
            found[path] = QueueStatus(
                path, absence is None, absence.why if absence else None, self._parked[path], queue.differences
            )
        return found

    def close(self) -> list[threading.Thread]:
        """Close all idle connections, on threads that are returned."""
        return [thread for pool in self.pools.values() for thread in pool.close()]


class _Parking:
    """The parking of one call's parcel: attempt by attempt, each at the queue that is chosen after the last one."""

    def __init__(self, backlog: Backlog, parcel: Parcel, sender_queue: SenderQueue, deadline: float) -> None:
        self._backlog = backlog
        self._parcel = parcel
        self._deadline = deadline
        self._chooser = QueueChooser(backlog.rotation, sender_queue)
        #: The most messages in one batch: halved while a queue takes less than it says.
        self._most = len(parcel.parked)
        #: The last refusal of the next message by a queue that takes others.
        self._refusal: Exception | None = None
        #: Queue -> its error, for the queues that are throttled. None of them leaves the rotation.
        self._busy: dict[str, Exception] = {}
        self._waits = 0

    def step(self) -> None:
        """Make one attempt; raise if there is no queue or no time left for it."""
        queue, seconds = self._choose()
        part = self._parcel.part(self._backlog.limit_of(queue), self._most)
        attempt = self._backlog.attempt(queue, part, seconds)
        if attempt.error is None:
            self._parcel.done += len(part)
            with self._backlog.lock:
                self._chooser.accepted(queue)
            self._busy.clear()
            self._refusal = None
        else:
            self._classify(queue, len(part), seconds, attempt.error)

    def _choose(self) -> tuple[str, float]:
        """Return the queue for the next attempt, and the seconds that it may take."""
        now = time.monotonic()
        left = self._deadline - now
        with self._backlog.lock:
            queue = self._chooser.choose(now)
            seconds = self._chooser.time_limit(now, left)
        if queue is None and self._refusal is not None:
            raise self._refusal
        if queue is None or left <= 0:
            raise self._backlog.unavailable(self._parcel.rest, self._busy)
        return queue, seconds

    def _classify(self, queue: str, count: int, seconds: float, error: Exception) -> None:
        """Note what a failed attempt says about the queue or the message; raise if it ends the call."""
        if isinstance(error, MessageSizeExceededError):
            self._too_large(queue, count, error)
        elif is_shortage(error):
            raise error  # of this process: no queue is to blame, and no other would do better
        elif _blames_the_message(error):
            self._chooser.refused(queue)
            self._refusal = error
        elif meaning_of(error) is Meaning.BUSY:
            self._wait_while_busy(queue, error)
        else:
            self._chooser.failed(queue)
            if seconds >= LEAST_SECONDS or not is_timeout(error):  # too little time says nothing about the queue
                self._backlog.take_out(queue, error)

    def _too_large(self, queue: str, count: int, error: Exception) -> None:
        """Make the batches smaller; a single message is to blame itself, and its queue may take others."""
        self._parcel.refuse_too_large(self._backlog.limit_of(queue))  # the link that was opened meanwhile knows it
        if count > 1:
            self._most = count // 2
            return
        self._chooser.refused(queue)
        found = self._parcel.check(self._parcel.done, self._backlog.limit_of(queue))
        self._refusal = NotParkableError(
            f"A message of {found.size - found.added:,} bytes cannot be parked: with the {found.added:,} bytes that "
            f"parking adds it is too large for {queue}, which should take {found.limit:,}: {describe_error(error)}",
            self._parcel.rest,
            size=found.size,
            limit=found.limit,
            added=found.added,
        )

    def _wait_while_busy(self, queue: str, error: Exception) -> None:
        """Wait as the service asks; raise if the call has no more time than that."""
        self._chooser.busy(queue)
        self._busy[queue] = error
        wait = self._backlog.busy_wait
        if self._waits:
            wait = max(wait, _LEAST_BUSY_WAIT_SECONDS)
        self._waits += 1
        if time.monotonic() + wait >= self._deadline:
            raise self._backlog.unavailable(self._parcel.rest, self._busy)
        self._backlog.closing.wait(wait)


def _may_be_stale(error: Exception) -> bool:
    """Return True if the send might succeed on a new connection."""
    return meaning_of(error) is not Meaning.BUSY and not _blames_the_message(error)


def _blames_the_message(error: Exception) -> bool:
    """Return True if a queue that takes others has refused these messages."""
    return isinstance(error, MessageSizeExceededError) or amqp_condition(error) in MESSAGE_CONDITIONS
