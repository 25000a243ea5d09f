"""Parking: messages go to a backlog queue of the secondary, as bytes, and are restored by the syphon.

All senders of a pairing share the rotation and the connections to the backlog queues.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.domain import envelope
from pairbus.domain.backlog import Rotation
from pairbus.domain.conditions import MESSAGE_CONDITIONS, Meaning
from pairbus.domain.cost import operations_of
from pairbus.options import PairingOptions
from pairbus.runtime.redaction import describe_error

from . import events
from .connections import Guard, Lane, Lanes
from .errors import BacklogUnavailableError, NotParkableError
from .provisioning import Provisioned
from .sdk.classification import condition_of, is_shortage, is_timeout, means
from .sdk.prepared import Prepared
from .sdk.service_bus import (
    BATCH_OVERHEAD,
    MESSAGE_OVERHEAD,
    Destination,
    encoded_members,
    members,
    raw_batch,
    sender_to,
    single_messages,
)
from .status import Operations, QueueStatus

#: One queue that does not answer may take half of the time that is left, so that another can be tried; but no less
#: than opening a link may take.
_SHARE = 0.5
_LEAST_SECONDS = 2.0
_SHORTEST_SECONDS = 0.001
#: Who waits for a throttled queue again and again asks no more often than that, however short `server_busy_wait` is.
_LEAST_WAIT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Parkable:
    """Whether a message could be parked, and why not. True or false by itself."""

    fits: bool
    size: int
    limit: int
    added: int
    why: str | None = None

    def __bool__(self) -> bool:
        return self.fits


class Tried(NamedTuple):
    """A send to a backlog queue that has failed: how long it might take, and when it began."""

    queue: str
    error: Exception
    patience: float
    began: float


class Choice:
    """The backlog queue that one sender stays with. Whichever of its threads needs one first picks it for all of them:
    else messages of one session would be parked here and there. Changed under the backlog's lock, read without it."""

    def __init__(self) -> None:
        self.queue: str | None = None


class Ids:
    """Ids for messages that have none: no two are the same, wherever they were made. An iterator without end."""

    def __init__(self) -> None:
        self._mine = os.urandom(10).hex()
        self._counted = itertools.count()

    def __iter__(self) -> Ids:
        return self

    def __next__(self) -> str:
        return f"{self._mine}{next(self._counted):012x}"


class Parcel:
    """Messages on their way to the backlog: each with the caller's object, and the bytes that are parked."""

    def __init__(
        self,
        path: str,
        message: Any,
        namespace: str | None = None,
        traced: Destination | None = None,
        ids: Ids | None = None,
    ) -> None:
        ids = ids or Ids()
        self.messages = members(message)
        self._prepared: Prepared | None = None
        if type(message) is ServiceBusMessage:  # what most calls are
            self._sent: list[Any] = [message]
        elif isinstance(message, Prepared):
            self._prepared, self._sent = message, []
        else:
            self._sent = single_messages(message)
        self.originals = encoded_members(message, traced)
        #: How many of them, from the first on, a backlog queue has accepted.
        self.done = 0
        self.parked: list[bytes] = []
        for raw in self.originals:
            try:
                self.parked.append(envelope.park(raw, path, next(ids), namespace))
            except envelope.NotParkableError as taken:
                raise NotParkableError(
                    f"A message cannot be parked, since it could not be restored: its {taken.property!r} "
                    f"{taken.reason}.",
                    self.messages,
                    property_name=taken.property,
                ) from None

    @property
    def size(self) -> int:
        """Bytes that what is not parked yet would be as one batch for the primary."""
        rest = self.originals[self.done :]
        return sum(map(len, rest)) + MESSAGE_OVERHEAD * len(rest) + BATCH_OVERHEAD

    @property
    def rest(self) -> list[Any]:
        """The caller's messages that are not parked yet."""
        return self.messages[self.done :]

    def unparked(self) -> Any:
        """The same for the SDK's sender, as bytes: the caller may have changed the objects since."""
        if self._prepared is not None:
            return self._prepared.rest(self.done)
        return raw_batch(self.originals[self.done :], self._sent[self.done :])

    def check(self, index: int, limit: int) -> Parkable:
        """Whether a message fits a backlog queue's limit."""
        size = len(self.parked[index]) + MESSAGE_OVERHEAD + BATCH_OVERHEAD
        added = size - len(self.originals[index])
        if size <= limit:
            return Parkable(True, size, limit, added)
        why = (
            f"A message of {size - added:,} bytes cannot be parked: with the {added:,} bytes that parking adds it has "
            f"{size:,}, and a backlog queue takes {limit:,}."
        )
        return Parkable(False, size, limit, added, why)

    def refuse_too_large(self, limit: int) -> None:
        """Refuse before anything more is sent if a message does not fit."""
        room = limit - MESSAGE_OVERHEAD - BATCH_OVERHEAD
        if max(map(len, self.parked), default=0) <= room:
            return
        for index in range(self.done, len(self.parked)):
            found = self.check(index, limit)
            if not found:
                assert found.why is not None
                raise NotParkableError(found.why, self.rest, size=found.size, limit=limit, added=found.added)

    def part(self, limit: int, most: int) -> list[bytes]:
        """The next messages that fit one batch, at least one and at most so many."""
        if len(self.parked) == 1:
            return self.parked
        room, end = limit - BATCH_OVERHEAD, self.done
        while end < min(len(self.parked), self.done + most) and len(self.parked[end]) + MESSAGE_OVERHEAD <= room:
            room -= len(self.parked[end]) + MESSAGE_OVERHEAD
            end += 1
        return self.parked[self.done : max(end, self.done + 1)]


def examine(path: str, message: Any, namespace: str | None, limit: int, traced: Destination | None = None) -> Parkable:
    """Whether a message could be parked; of several, the one that fits least tells."""
    try:
        parcel = Parcel(path, message, namespace, traced)
    except NotParkableError as error:
        return Parkable(False, 0, limit, 0, str(error))
    found = [parcel.check(index, limit) for index in range(len(parcel.parked))]
    return max(found, key=lambda each: each.size, default=Parkable(True, 0, limit, 0))


class Backlog:
    """The backlog queues of a pairing, as its senders use them."""

    def __init__(
        self,
        client: ServiceBusClient,
        provisioned: Provisioned,
        options: PairingOptions,
        guard: Guard,
        operations: Operations,
        tell: Callable[..., None],
        closing: threading.Event,
    ) -> None:
        self._queues = {queue.path: queue for queue in provisioned.queues}
        self._rotation = Rotation(tuple(self._queues), options.seconds("ping_primary_interval"))
        self._limit_of_all = min(queue.limit for queue in provisioned.queues)
        self._lanes = {path: Lanes(partial(sender_to, client, path), guard) for path in self._queues}
        self._parked = dict.fromkeys(self._queues, 0)
        #: For messages without one. Of a pairing, since a process that a fork has made must have others.
        self.ids = Ids()
        self._busy_wait = options.seconds("server_busy_wait")
        self._operations = operations
        self._tell = tell
        self._closing = closing
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """The largest batch that every backlog queue takes, as far as is known."""
        return self._limit_of_all

    def _learn(self, lanes: Lanes, lane: Lane) -> None:
        """An open link has told its limit."""
        if lane.limit and lane.limit != lanes.limit:
            lanes.limit = lane.limit
            self._limit_of_all = min(self._limit(path) for path in self._queues)

    def _limit(self, path: str) -> int:
        return self._lanes[path].limit or self._queues[path].limit

    def park_as_before(self, parcel: Parcel, queue: str, timeout: float) -> Tried | None:
        """Park a single message where the last one went, if nothing is out of the ordinary: what most calls are.

        `parcel.done` says whether it is parked. If it is not, `park` does the rest, and is to be told what came of it.
        """
        if (
            not self._rotation.is_whole
            or len(parcel.parked[0]) > self._limit_of_all - MESSAGE_OVERHEAD - BATCH_OVERHEAD
        ):
            return None
        began = time.monotonic()
        others = len(self._queues) > 1
        patience = max(timeout * _SHARE, min(_LEAST_SECONDS, timeout)) if others else timeout
        error = self._send(queue, parcel.parked, patience)
        if error is None:
            parcel.done = 1
            return None
        return Tried(queue, error, patience, began)

    def park(
        self,
        parcel: Parcel,
        choice: Choice,
        timeout: float,
        stop: Callable[[], bool],
        tried_before: Tried | None = None,
    ) -> None:
        """Park what is left of a parcel until all is, or until `stop` says that the primary is back, or the pairing
        closes; its sender stays with the queue that it used last.

        `parcel.done` says how far it came, also when this raises.
        """
        parcel.refuse_too_large(self.limit)
        current = home = choice.queue
        deadline = (time.monotonic() if tried_before is None else tried_before.began) + timeout
        tried: set[str] = set()
        #: The queues that take others than the next message, and what the last of them has said to it.
        refusing: set[str] = set()
        refused: Exception | None = None
        most = len(parcel.parked)
        #: The queues that are throttled, and what they have said: none of them leaves the rotation for it.
        busy: dict[str, Exception] = {}
        waits = 0
        while tried_before is not None or (
            parcel.done < len(parcel.parked) and not stop() and not self._closing.is_set()
        ):
            error: Exception | None
            if tried_before is not None:
                queue, error, patience, _ = tried_before
                part, tried_before = parcel.parked, None
            else:
                now = time.monotonic()
                left = deadline - now
                with self._lock:
                    if current == home:
                        current = home = choice.queue = self._rotation.pick(choice.queue, now) or choice.queue
                    found = self._rotation.pick(current, now, tried | refusing | (busy.keys() - {current}))
                    found = found or self._rotation.pick(None, now, tried | refusing)
                    others = self._rotation.left(now, tried | refusing) > 1
                if found is None and refused is not None:
                    raise refused
                if found is None or left <= 0:
                    raise self.unavailable(parcel.rest, busy)
                queue = found
                part = parcel.part(self._limit(queue), most)
                patience = max(left * _SHARE, min(_LEAST_SECONDS, left)) if others else left
                error = self._send(queue, part, patience)
            if error is None:
                parcel.done += len(part)
                current = queue
                if queue != home:
                    with self._lock:
                        if choice.queue == home:  # else another thread has picked a new one for all of them
                            home = choice.queue = queue
                busy.clear()
                refused = None  # it was about a message that is parked by now
                refusing.clear()
                continue
            if isinstance(error, MessageSizeExceededError):
                parcel.refuse_too_large(self._limit(queue))  # the link has told its limit meanwhile
                if len(part) > 1:
                    most = len(part) // 2  # it takes less than it says
                else:
                    # The message is to blame, not the queue: others may be parked there.
                    refusing.add(queue)
                    refused = self._too_large(parcel, queue, error)
                continue
            if is_shortage(error):
                raise error  # of this process: no queue is to blame, and no other would do better
            if _blames_the_message(error):
                refusing.add(queue)
                refused = error
                continue
            if means(error) is Meaning.BUSY:
                current = None if queue in busy else queue  # the same once more, then another
                busy[queue] = error
                wait = max(self._busy_wait, _LEAST_WAIT_SECONDS) if waits else self._busy_wait
                waits += 1
                if time.monotonic() + wait >= deadline:
                    raise self.unavailable(parcel.rest, busy)
                self._closing.wait(wait)
                continue
            tried.add(queue)
            if patience >= _LEAST_SECONDS or not is_timeout(error):  # too little time says nothing about the queue
                self._leave(queue, error)

    def _send(self, queue: str, messages: Sequence[bytes], timeout: float) -> Exception | None:
        """Send one batch to one queue; the error, if it was not accepted. A stale connection is replaced."""
        lanes = self._lanes[queue]
        deadline = time.monotonic() + timeout
        batch = raw_batch(messages)
        while True:
            lane = lanes.take()
            stale = lane.opened
            try:
                lane.send(batch, timeout)
            except Exception as error:
                self._learn(lanes, lane)
                if not _may_be_stale(error):
                    lanes.put_back(lane)
                    return error
                lanes.drop(lane)
                timeout = deadline - time.monotonic()
                if stale and timeout > _SHORTEST_SECONDS:
                    lanes.drop_idle()
                    continue
                return error
            except BaseException:  # Ctrl-C
                lanes.drop(lane)
                raise
            self._learn(lanes, lane)
            lanes.give(lane)
            break
        with self._lock:
            self._parked[queue] += len(messages)
            back = self._rotation.took(queue)
        if back:
            self._tell(events.QUEUE_BACK, queue=queue)
        self._operations.add("park", sum(map(operations_of, map(len, messages))))
        return None

    def _leave(self, queue: str, error: Exception) -> None:
        with self._lock:
            news = self._rotation.leave(queue, time.monotonic(), describe_error(error))
        if news:
            self._tell(events.QUEUE_LEFT, queue=queue, error=describe_error(error))

    def unavailable(
        self, messages: list[Any], busy: Mapping[str, Exception] = MappingProxyType({})
    ) -> BacklogUnavailableError:
        with self._lock:
            left = self._rotation.reasons()
        throttled = {queue: f"it is busy: {describe_error(error)}" for queue, error in busy.items()}
        reasons = throttled | {queue: why for queue, why in left.items() if queue not in busy}
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

    def _too_large(self, parcel: Parcel, queue: str, error: Exception) -> NotParkableError:
        found = parcel.check(parcel.done, self._limit(queue))
        return NotParkableError(
            f"A message of {found.size - found.added:,} bytes cannot be parked: with the {found.added:,} bytes that "
            f"parking adds it is too large for {queue}, which should take {found.limit:,}: {describe_error(error)}",
            parcel.rest,
            size=found.size,
            limit=found.limit,
            added=found.added,
        )

    def status(self) -> dict[str, QueueStatus]:
        now = time.monotonic()
        found = {}
        for path, queue in self._queues.items():
            absence = self._rotation.absence(path, now)
            found[path] = QueueStatus(
                path, absence is None, absence.why if absence else None, self._parked[path], queue.differences
            )
        return found

    def close(self) -> list[threading.Thread]:
        return [thread for lanes in self._lanes.values() for thread in lanes.close()]


def _may_be_stale(error: Exception) -> bool:
    """Whether a new connection may mend it."""
    return means(error) is not Meaning.BUSY and not _blames_the_message(error)


def _blames_the_message(error: Exception) -> bool:
    """Whether a queue that takes others has refused these messages."""
    return isinstance(error, MessageSizeExceededError) or condition_of(error) in MESSAGE_CONDITIONS
