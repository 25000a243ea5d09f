"""The paired sender: the SDK's sender while all is well, the backlog while the primary is down."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from enum import Enum
from functools import partial
from os import getpid
from typing import TYPE_CHECKING, Any, NoReturn

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from pairbus.domain.conditions import Meaning
from pairbus.domain.health import State
from pairbus.errors import NotSupportedError

from .backlog import Choice, Parcel, Parkable, Tried, examine
from .sdk.classification import condition_of, is_timeout, is_unnamed, may_be_stale, means
from .sdk.service_bus import (
    STANDARD_LIMIT,
    again,
    billed,
    destination,
    empty_batch,
    encoded_members,
    is_many,
    members,
    unshared,
)

if TYPE_CHECKING:
    from .entity import Entity
    from .pairing import PairedNamespace

#: The SDK's own way of trying again: three times, after 1.6, 3.2 and 6.4 s.
_RETRIES, _BACKOFF_SECONDS = 3, 0.8
#: How often one call goes to the primary, should it come back and fail again while the call is under way.
_ROUNDS = 2
#: Conditions that the SDK reports when nothing was heard from the service: trying again soon tells nothing new.
_UNHEARD = {"amqp:socket-error", "amqp:unknown-error", "amqp:client-error"}


class _Primary(Enum):
    """What has become of a message that was to go to the primary."""

    ACCEPTED = "accepted"
    #: Failed over: it is parked, unless the primary comes back first.
    AWAY = "away"
    #: It has used up its time, but began before the primary was last seen well, so it fails nothing over: it is parked.
    LATE = "late"


class PairedSender:
    """Sends to one entity of the primary; drops in where the SDK's `ServiceBusSender` was.

    Made by `PairedNamespace.get_queue_sender` and `get_topic_sender`. It may be shared between threads.
    """

    def __init__(self, pairing: PairedNamespace, entity: Entity, client_identifier: str | None = None) -> None:
        self._pairing = pairing
        #: As in the SDK: who is sending, for people. Connections are shared, so the service sees names of their own.
        self.client_identifier = client_identifier or f"PairedSender-{uuid.uuid4()}"
        self._entity = entity
        self._options = pairing.options
        self._timeout = min(pairing.options.seconds("send_timeout"), threading.TIMEOUT_MAX / 4)
        self._backlog = pairing.backlog
        self._destination = destination(self.fully_qualified_namespace, entity.path)
        self._pid = getpid()
        self._choice = Choice()
        self._closing_lock = threading.Lock()
        self._closed = False
        entity.join()

    @property
    def entity_name(self) -> str:
        return self._entity.path

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's host."""
        return self._pairing.primary.namespace.host

    def __repr__(self) -> str:
        state = self._entity.health.state.value
        return f"<PairedSender to {self._entity.path} of {self.fully_qualified_namespace}: {state}>"

    # --- sending -----------------------------------------------------------------------------------------

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, several, or a batch; returns when the primary or a backlog queue has accepted all of it.

        `timeout` bounds the send to either namespace, instead of `send_timeout`. An error carries the messages that
        were not accepted anywhere in its attribute `messages`.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        given: Any = message
        try:
            self._check()
            timeout = self._timeout if timeout is None else bound(timeout)
            if is_many(message) and not isinstance(message, ServiceBusMessageBatch):
                given = []
                for each in message:  # one by one: an error midway carries those that came before it
                    given.append(each)
            ready, count = _ready(given)
        except BaseException as error:
            error.messages = members(given)  # type: ignore[attr-defined]
            raise
        if count:
            self._deliver(ready, timeout, count)

    def _deliver(self, message: Any, timeout: float, count: int) -> None:
        """Send what is ready to be sent, the usual way first: on an open link to a primary that answers."""
        entity = self._entity
        if entity.health.goes_to_primary:
            lane = entity.lanes.take()
            if lane.opened:
                began = time.monotonic()
                try:
                    lane.send(message, timeout)
                except Exception as error:
                    self._send(message, timeout, count, (lane, error, began))
                    return
                except BaseException as error:  # Ctrl-C: what goes on on this lane is nobody's any more
                    entity.lanes.drop(lane)
                    error.messages = members(message)  # type: ignore[attr-defined]
                    raise
                entity.lanes.give(lane)
                entity.accepted(count, billed(message))
                return
            entity.lanes.give(lane)
        elif self._choice.queue and type(message) is ServiceBusMessage and entity.health.state is State.FAILED_OVER:
            self._park(message, timeout)
            return
        self._send(message, timeout, count, None)

    def _park(self, message: Any, timeout: float) -> None:
        """The usual way while failed over: one message, to the queue that took the one before it."""
        parcel = tried = None
        try:
            parcel = self._parcel(message)
            # What may have changed while it was encoded is looked at as late as can be.
            queue = self._choice.queue
            if queue is not None and self._entity.health.state is State.FAILED_OVER and not self._pairing.ended:
                tried = self._backlog.park_as_before(parcel, queue, timeout)
                if parcel.done:
                    self._entity.was_parked(1)
                    return
        except BaseException as error:
            error.messages = members(message) if parcel is None else parcel.rest  # type: ignore[attr-defined]
            raise
        self._send(message, timeout, 1, None, parcel, tried)

    def _parcel(self, message: Any) -> Parcel:
        namespace = self._pairing.namespace_of(self._entity)
        return Parcel(self._entity.path, message, namespace, self._destination, self._backlog.ids)

    def _send(
        self,
        message: Any,
        timeout: float,
        count: int,
        tried: Any,
        parcel: Parcel | None = None,
        parking_tried: Tried | None = None,
    ) -> None:
        """All that is not a send on an open link to a primary that answers, or to the backlog while it does not."""
        # Once to the primary and once to the backlog. If the primary comes back meanwhile there is another round, then
        # the backlog it is, and no more time: an entity that is found well and fails again must not hold a caller.
        began = time.monotonic() if parking_tried is None else parking_tried.began
        ends = (began if tried is None else tried[2]) + 2 * timeout
        try:
            for rounds in itertools.count(1):
                timeout = min(timeout, max(ends - time.monotonic(), 0.001))
                is_away = rounds > _ROUNDS or parking_tried is not None
                primary = _Primary.AWAY if is_away else self._to_primary(message, timeout, tried)
                if primary is _Primary.ACCEPTED:
                    self._entity.accepted(count, billed(message))
                    return
                tried = None
                self._pairing.check()  # nothing new is begun once it is closed
                refusal = self._entity.refusal  # once: a failback forgets it
                if self._entity.health.state is State.UNUSABLE and refusal is not None:
                    raise again(refusal)
                if parcel is None:
                    parcel = self._parcel(message)
                before = parcel.done
                try:
                    timeout = min(timeout, max(ends - time.monotonic(), 0.001))
                    is_last = rounds >= _ROUNDS or primary is _Primary.LATE
                    stop = _never if is_last else partial(self._is_back, parcel)
                    self._backlog.park(parcel, self._choice, timeout, stop, parking_tried)
                finally:
                    self._entity.was_parked(parcel.done - before)
                parking_tried = None
                if not parcel.rest:
                    return
                # The pairing was closed; or the primary is back, and what is not parked yet goes there.
                self._pairing.check()
                if time.monotonic() >= ends:
                    raise self._backlog.unavailable(parcel.rest)
                if parcel.done:
                    message, count = parcel.unparked(), len(parcel.rest)
        except BaseException as error:  # Ctrl-C too
            error.messages = members(message) if parcel is None else parcel.rest  # type: ignore[attr-defined]
            raise

    def _is_back(self, parcel: Parcel) -> bool:
        """Whether what is left of a parcel can go to the primary, which refuses what is too large for one batch."""
        if not self._entity.health.goes_to_primary:
            return False
        return not parcel.done or parcel.size <= (self._entity.lanes.limit or STANDARD_LIMIT)

    def _to_primary(self, message: Any, timeout: float, tried: Any) -> _Primary:
        """Send to the primary, or raise the SDK's error. `tried` is a send on an open lane that has failed already."""
        entity, lanes = self._entity, self._entity.lanes
        deadline = (tried[2] if tried is not None else time.monotonic()) + timeout
        failures = 0
        replaced = waited = False
        while entity.health.goes_to_primary:
            if tried is not None:
                (lane, error, began), tried, was_open = tried, None, True
            else:
                lane = lanes.take()
                was_open, began = lane.opened, time.monotonic()
                try:
                    lane.send(message, max(deadline - time.monotonic(), 0.001))
                except Exception as failure:
                    error = failure
                except BaseException:
                    lanes.drop(lane)
                    raise
                else:
                    lanes.give(lane)
                    return _Primary.ACCEPTED
            meaning = means(error)
            if is_unnamed(error) and self._encodes(message):
                meaning = Meaning.OUTAGE  # an answer that is no AMQP
            if meaning is Meaning.CONFIGURATION and not may_be_stale(error):
                lanes.put_back(lane)
                raise error
            if meaning is Meaning.BUSY:
                lanes.put_back(lane)
                wait = self._options.seconds("server_busy_wait")
                if waited or time.monotonic() + wait >= deadline or self._pairing.closing.wait(wait):
                    raise error
                waited = True
                continue
            lanes.drop(lane)
            unanswered = is_timeout(error) and _is_unheard(error)
            in_time = time.monotonic() < deadline and not unanswered
            if was_open and not replaced and in_time:
                # Links that nobody used are detached, tokens run out, connections go stale: no failure yet.
                replaced = True
                lanes.drop_idle()
                continue
            if meaning is Meaning.CONFIGURATION:
                raise error
            if self._pairing.ended is not None:
                raise error  # cut off by the pairing's end, which says nothing about the entity
            self._prove(message, error)
            failures += 1
            pause = _BACKOFF_SECONDS * 2**failures
            last = failures > _RETRIES or time.monotonic() + pause >= deadline
            if last or _is_unheard(error):
                if not entity.failed(error, began).goes_to_primary:
                    return _Primary.AWAY
                if last and not self._options.seconds("failover_interval"):
                    return _Primary.LATE  # any other failure would have failed it over
            if last or self._pairing.closing.wait(pause):
                raise error
        if tried is not None:
            lanes.drop(tried[0])  # like all that were idle when another thread failed the entity over
        return _Primary.AWAY

    def _encodes(self, message: Any) -> bool:
        try:
            encoded_members(message)
        except Exception:
            return False
        return True

    def _prove(self, message: Any, error: Exception) -> None:
        """A failure counts only if the message can be encoded: the SDK reports what it cannot encode like an outage."""
        try:
            encoded_members(message)
        except Exception as unencodable:
            raise unencodable from error

    # --- batches, sizes ----------------------------------------------------------------------------------

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """A batch to add messages to, with the primary's limit; the last known one while the primary is down."""
        self._check()
        limit = self._entity.lanes.limit or self._ask_limit()
        if max_size_in_bytes and max_size_in_bytes > limit:
            raise ValueError(
                f"Max message size: {max_size_in_bytes} is too large, acceptable max batch size is: {limit} bytes."
            )
        return empty_batch(max_size_in_bytes or limit, self._destination)

    def _ask_limit(self) -> int:
        self._open()
        return self._entity.lanes.limit or min(STANDARD_LIMIT, self._backlog.limit)

    def can_park(self, message: Any) -> Parkable:
        """Whether a single message could be parked, should the primary fail; tells sizes and, if not, why."""
        self._check()
        namespace = self._pairing.namespace_of(self._entity)
        return examine(self._entity.path, message, namespace, self._backlog.limit, self._destination)

    # --- what a paired sender never had --------------------------------------------------------------------

    def schedule_messages(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available: a message that is parked has no sequence number in the primary."""
        raise NotSupportedError(
            "schedule_messages is not available on a paired sender: a parked message has no sequence number to return. "
            "Set scheduled_enqueue_time_utc on the message and send it with send_messages; it may be parked and is "
            "still enqueued at its time."
        )

    def cancel_scheduled_messages(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not available, as scheduling by call is not."""
        raise NotSupportedError(
            "cancel_scheduled_messages is not available on a paired sender: a message may be in a backlog queue, where "
            "it cannot be cancelled. Use a ServiceBusClient of the primary for messages that must be cancelled."
        )

    # --- open and close ------------------------------------------------------------------------------------

    def __enter__(self) -> PairedSender:
        """Open the link to the primary. A configuration error is raised, an outage is not: sends may be parked."""
        self._check()
        try:
            self._open()
        except BaseException:
            self.close()  # as after any `with` that does not begin: nobody else will
            raise
        return self

    def _open(self) -> None:
        entity = self._entity
        if not entity.health.goes_to_primary:
            return
        lane, began = entity.lanes.take(), time.monotonic()
        try:
            lane.open(self._options.seconds("send_timeout"))
        except Exception as error:
            entity.lanes.drop(lane)
            meaning = means(error)
            if meaning is Meaning.CONFIGURATION:
                raise
            if meaning is Meaning.OUTAGE and _is_unheard(error):
                entity.failed(error, began)  # what the service has answered counts after retries: by the first send
        except BaseException:  # Ctrl-C: the thread that opens it closes it
            entity.lanes.drop(lane)
            raise
        else:
            entity.lanes.give(lane)

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this sender; sends that are under way end as they would have."""
        if self._pairing.forked:
            return
        with self._closing_lock:
            if self._closed:
                return
            self._closed = True
        for thread in self._entity.part():
            thread.join(5.0)

    def __reduce__(self) -> NoReturn:
        self._pairing.__reduce__()

    def _check(self) -> None:
        if self._closed:
            raise ValueError(
                f"The sender to {self._entity.path} has already been closed. Get a new one from the pairing."
            )
        if self._pairing.ended or getpid() != self._pid:
            self._pairing.check()


def _ready(message: Any) -> tuple[Any, int]:
    """What can be sent more than once without changing what was given; and how many messages it is."""
    if isinstance(message, ServiceBusMessageBatch):
        return message, len(message)
    if isinstance(message, list):
        return [unshared(each) for each in message], len(message)
    if isinstance(message, Mapping) and not message:
        return message, 0  # to the SDK an empty dictionary is nothing, like an empty list
    return unshared(message), 1


def _never() -> bool:
    return False


def bound(timeout: float) -> float:
    """A caller's time-out, as the SDK checks it, and no longer than a thread can wait."""
    if not timeout > 0:
        raise ValueError("The timeout must be greater than 0.")
    return min(timeout, threading.TIMEOUT_MAX / 4)


def _is_unheard(error: Exception) -> bool:
    """Whether the service was not heard at all: no connection, or no answer in time."""
    condition = condition_of(error)
    return condition is None or condition in _UNHEARD
