"""The paired sender: the SDK's sender while all is well, the backlog while the primary is down."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
import warnings
from collections.abc import Mapping
from enum import Enum
from os import getpid
from typing import TYPE_CHECKING, Any, NoReturn

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

from pairbus.domain.backlog import SenderQueue
from pairbus.domain.conditions import Meaning
from pairbus.domain.health import State
from pairbus.errors import NotSupportedError
from pairbus.runtime.backoff import Backoff

from .parcel import Parcel, Parkable, examine
from .sdk.batches import STANDARD_LIMIT, empty_batch
from .sdk.classification import amqp_condition, is_timeout, is_unnamed, may_be_stale, meaning_of
from .sdk.clone_error import clone_error
from .sdk.encoding import billed, encoded_members, is_many, members, span_attributes, unshared

if TYPE_CHECKING:
    from .connections import Attempt
    from .entity import Entity
    from .pairing import PairedNamespace

#: Retries as the SDK makes them by default: three, after 1.6, 3.2 and 6.4 s.
_RETRIES, _RETRY_BACKOFF = 3, Backoff(first=1.6, longest=6.4)
#: Times that one call goes to the primary, should it come back and fail again while the call runs.
_ROUNDS = 2
#: The least seconds that an attempt is given.
_SHORTEST_SECONDS = 0.001
#: Conditions of the SDK's own, for a service that was not heard: trying again soon would tell nothing new.
_UNHEARD = {"amqp:socket-error", "amqp:unknown-error", "amqp:client-error"}


class _Primary(Enum):
    """The outcome of a send to the primary that raised nothing."""

    ACCEPTED = "accepted"
    #: The entity is failed over: the message is parked, unless the primary comes back first.
    AWAY = "away"
    #: The time is used up. The send began before the primary was last seen well, so it fails nothing over, and is
    #: parked.
    LATE = "late"


class PairedSender:
    """Sends to one entity of the primary; drops in where the SDK's `ServiceBusSender` was.

    Made by `PairedNamespace.get_queue_sender` and `get_topic_sender`. It may be shared between threads.
    """

    def __init__(self, pairing: PairedNamespace, entity: Entity, client_identifier: str | None = None) -> None:
        self._pairing = pairing
        #: As in the SDK, a name for logs. Connections are shared, so the service sees other names.
        self.client_identifier = client_identifier or f"PairedSender-{uuid.uuid4()}"
        self._entity = entity
        self._options = pairing.options
        self._timeout = min(pairing.options.seconds("send_timeout"), threading.TIMEOUT_MAX / 4)
        self._backlog = pairing.backlog
        self._span_attributes = span_attributes(self.fully_qualified_namespace, entity.path)
        self._pid = getpid()
        self._sender_queue = SenderQueue()
        self._closing_lock = threading.Lock()
        self._closed = False
        entity.join()

    @property
    def entity_name(self) -> str:
        """The entity's path."""
        return self._entity.path

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's host."""
        return self._pairing.primary.namespace.host

    def __repr__(self) -> str:
        state = self._entity.health.state.value
        return f"<PairedSender to {self._entity.path} of {self.fully_qualified_namespace}: {state}>"

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send a message, several, or a batch; return when the primary or a backlog queue has accepted all of it.

        Parameters
        ----------
        message
            All that the SDK's `send_messages` takes.
        timeout
            Seconds for the send to either namespace, instead of `send_timeout`.

        Raises
        ------
        Exception
            The SDK's errors, `NotParkableError`, `BacklogUnavailableError` or `PairedNamespaceClosedError`. The
            attribute `messages` holds the messages that were not accepted anywhere.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        given: Any = message
        try:
            self._check()
            timeout = self._timeout if timeout is None else bound(timeout)
            if is_many(message) and not isinstance(message, ServiceBusMessageBatch):
                given = []
                for each in message:  # one by one: an error of the iterable carries those that came before it
                    given.append(each)
            ready, count = _ready(given)
        except BaseException as error:
            error.messages = members(given)  # type: ignore[attr-defined]
            raise
        if count:
            self._deliver(ready, timeout, count)

    def _deliver(self, message: Any, timeout: float, count: int) -> None:
        """Send what is ready to the primary, or park it while the primary is down, until all of it is accepted.

        Each namespace has `timeout` once. After `_ROUNDS` rounds only the backlog is tried: an entity that is found
        well and fails again must not hold a caller for longer.
        """
        parcel: Parcel | None = None
        ends = time.monotonic() + 2 * timeout
        try:
            for rounds in itertools.count(1):
                outcome = _Primary.AWAY
                if rounds <= _ROUNDS and self._entity.health.goes_to_primary:
                    outcome = self._to_primary(message, _until(ends, timeout))
                if outcome is _Primary.ACCEPTED:
                    self._entity.accepted(count, billed(message))
                    return
                self._refuse()
                if parcel is None:
                    parcel = self._parcel(message)
                self._park(parcel, _until(ends, timeout), rounds >= _ROUNDS or outcome is _Primary.LATE)
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

    def _refuse(self) -> None:
        """Raise if nothing may be parked: the pairing is closed, or the entity cannot be used at all."""
        self._pairing.check()
        refusal = self._entity.refusal  # read once: a failback removes it
        if self._entity.health.state is State.UNUSABLE and refusal is not None:
            raise clone_error(refusal)

    def _parcel(self, message: Any) -> Parcel:
        return Parcel(self._entity.path, message, self._entity.event_hubs, self._span_attributes, self._backlog.ids)

    def _park(self, parcel: Parcel, timeout: float, is_last: bool) -> None:
        """Park what is left of a parcel; unless this is the last round, until the primary is back."""
        before = parcel.done
        try:
            self._backlog.park(parcel, self._sender_queue, timeout, lambda: not is_last and self._is_back(parcel))
        finally:
            self._entity.was_parked(parcel.done - before)

    def _is_back(self, parcel: Parcel) -> bool:
        """Return True if the primary can take what is left of a parcel: it refuses what is too large for one batch."""
        if not self._entity.health.goes_to_primary:
            return False
        return not parcel.done or parcel.size <= (self._entity.pool.limit or STANDARD_LIMIT)

    def _to_primary(self, message: Any, timeout: float) -> _Primary:
        """Send to the primary, with retries; raise the SDK's error where it is the caller's."""
        pool = self._entity.pool
        deadline = time.monotonic() + timeout
        failures = 0
        replaced = waited = False
        while self._entity.health.goes_to_primary:
            attempt = pool.attempt(message, _until(deadline))
            error = attempt.error
            if error is None:
                return _Primary.ACCEPTED
            meaning = self._meaning_of(error, message)
            if meaning is Meaning.BUSY or (meaning is Meaning.CONFIGURATION and not may_be_stale(error)):
                pool.give_back(attempt.connection)
                if meaning is not Meaning.BUSY or waited or not self._wait_while_busy(deadline):
                    raise error
                waited = True
                continue
            pool.drop(attempt.connection)
            if not replaced and _is_stale(attempt, deadline):
                # Links that are idle for long are detached, tokens run out, connections go stale: no failure yet.
                replaced = True
                pool.drop_idle()
                continue
            if meaning is Meaning.CONFIGURATION:
                raise error
            failures += 1
            outcome = self._count_failure(error, attempt.began, message, failures, deadline)
            if outcome is not None:
                return outcome
        return _Primary.AWAY

    def _count_failure(
        self, error: Exception, began: float, message: Any, failures: int, deadline: float
    ) -> _Primary | None:
        """Count a failure toward failover; return the outcome of the send, or wait and return None to try again."""
        if self._pairing.ended is not None:
            raise error  # cut off by the pairing's end, which says nothing about the entity
        _prove_encodable(message, error)
        pause = _RETRY_BACKOFF.pause(failures - 1)
        is_last = failures > _RETRIES or time.monotonic() + pause >= deadline
        if is_last or _is_unheard(error):
            if not self._entity.failed(error, began).goes_to_primary:
                return _Primary.AWAY
            if is_last and not self._options.seconds("failover_interval"):
                return _Primary.LATE  # any other failure would have failed it over
        if is_last or self._pairing.closing.wait(pause):
            raise error
        return None

    def _wait_while_busy(self, deadline: float) -> bool:
        """Wait as a throttled service asks; return False if there is no time for that, or the pairing closes."""
        wait = self._options.seconds("server_busy_wait")
        return time.monotonic() + wait < deadline and not self._pairing.closing.wait(wait)

    def _meaning_of(self, error: Exception, message: Any) -> Meaning:
        """Return the meaning of an error; encode the message again where only that tells whether it is to blame."""
        if is_unnamed(error) and _encodes(message):
            return Meaning.OUTAGE
        return meaning_of(error)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Return a batch to add messages to, with the primary's limit; the last known one while the primary is down."""
        self._check()
        if not self._entity.pool.limit:
            self._open()
        limit = self._entity.pool.limit or min(STANDARD_LIMIT, self._backlog.limit)
        if max_size_in_bytes and max_size_in_bytes > limit:
            raise ValueError(
                f"Max message size: {max_size_in_bytes} is too large, acceptable max batch size is: {limit} bytes."
            )
        return empty_batch(max_size_in_bytes or limit, self._span_attributes)

    def can_park(self, message: Any) -> Parkable:
        """Return whether a message could be parked, should the primary fail: its sizes and, if not, the reason."""
        self._check()
        entity = self._entity
        return examine(entity.path, message, entity.event_hubs, self._backlog.limit, self._span_attributes)

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

    def __enter__(self) -> PairedSender:
        """Open the link to the primary. A configuration error is raised, an outage is not: sends may be parked."""
        self._check()
        try:
            self._open()
        except BaseException:
            self.close()  # Python does not call __exit__ after a failed __enter__
            raise
        return self

    def _open(self) -> None:
        """Open a link to the primary unless the entity is failed over; raise a configuration error."""
        entity = self._entity
        if not entity.health.goes_to_primary:
            return
        connection, began = entity.pool.take(), time.monotonic()
        try:
            connection.open(self._options.seconds("send_timeout"))
        except Exception as error:
            entity.pool.drop(connection)
            meaning = meaning_of(error)
            if meaning is Meaning.CONFIGURATION:
                raise
            if meaning is Meaning.OUTAGE and _is_unheard(error):
                entity.failed(error, began)  # an error of the service counts after retries, which the first send makes
        except BaseException:  # Ctrl-C: the thread that opens it closes it
            entity.pool.drop(connection)
            raise
        else:
            entity.pool.give_back(connection)

    def __exit__(self, *args: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this sender; sends that run end as they would have."""
        if self._pairing.forked:
            return
        with self._closing_lock:
            if self._closed:
                return
            self._closed = True
        for thread in self._entity.leave():
            thread.join(5.0)

    def __reduce__(self) -> NoReturn:
        self._pairing.__reduce__()

    def _check(self) -> None:
        """Refuse use after the end of the sender or the pairing, or in a process that was forked."""
        if self._closed:
            raise ValueError(
                f"The sender to {self._entity.path} has already been closed. Get a new one from the pairing."
            )
        if self._pairing.ended or getpid() != self._pid:
            self._pairing.check()


def _ready(message: Any) -> tuple[Any, int]:
    """Return what can be sent more than once without changing the caller's objects, and the number of messages."""
    if isinstance(message, ServiceBusMessage):
        return unshared(message), 1
    if isinstance(message, ServiceBusMessageBatch):
        return message, len(message)
    if isinstance(message, list):
        return [unshared(each) for each in message], len(message)
    if isinstance(message, Mapping) and not message:
        return message, 0  # the SDK sends nothing for an empty dictionary, as for an empty list
    return unshared(message), 1


def bound(timeout: float) -> float:
    """Return a caller's time-out, no longer than a thread can wait; refuse it as the SDK does."""
    if not timeout > 0:
        raise ValueError("The timeout must be greater than 0.")
    return min(timeout, threading.TIMEOUT_MAX / 4)


def _is_unheard(error: Exception) -> bool:
    """Return True if the service was not heard at all: no connection, or no answer in time."""
    condition = amqp_condition(error)
    return condition is None or condition in _UNHEARD


def _until(deadline: float, longest: float = threading.TIMEOUT_MAX) -> float:
    """Return the seconds until a deadline, at most `longest`; never so few that an SDK would refuse them."""
    return min(longest, max(deadline - time.monotonic(), _SHORTEST_SECONDS))


def _is_stale(attempt: Attempt, deadline: float) -> bool:
    """Return True if a failed attempt may be the fault of a link that was open: the service did answer, in time."""
    error = attempt.error
    if error is None or not attempt.was_open or time.monotonic() >= deadline:
        return False
    return not (is_timeout(error) and _is_unheard(error))


def _encodes(message: Any) -> bool:
    try:
        encoded_members(message)
    except Exception:
        return False
    return True


def _prove_encodable(message: Any, error: Exception) -> None:
    """Raise if the message cannot be encoded: the SDK reports that like an outage, and it must not count as one."""
    try:
        encoded_members(message)
    except Exception as unencodable:
        raise unencodable from error
