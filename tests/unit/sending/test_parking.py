"""Parking: the queue of each attempt, the size of each part, and the error of a call that fails, without I/O."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus import BacklogUnavailableError, NotParkableError, PairingOptions
from pairbus.domain.backlog import SenderQueue
from pairbus.sending import backlog as backlog_module
from pairbus.sending.backlog import Backlog
from pairbus.sending.connections import ConnectionWatchdog
from pairbus.sending.parcel import Parcel
from pairbus.sending.provisioning import BacklogQueue, Provisioned
from pairbus.sending.sdk import connection_patches
from pairbus.sending.sdk.batches import BATCH_OVERHEAD, MESSAGE_OVERHEAD
from pairbus.sending.sdk.encoding import encoded_members
from pairbus.sending.status import Operations

A, B = "a", "b"
LIMIT = 100_000


class Sender:
    """A sender to one backlog queue; its sends do as the test says."""

    def __init__(self, park: Park, queue: str) -> None:
        self._park = park
        self._queue = queue
        self._running = True

    def __enter__(self) -> Sender:
        return self

    def create_message_batch(self) -> Any:
        return SimpleNamespace(max_size_in_bytes=self._park.limits[self._queue])

    def send_messages(self, batch: Any, timeout: float) -> None:
        self._park.sends.append((self._queue, len(batch)))
        self._park.timeouts.append(timeout)
        errors = self._park.errors[self._queue]
        if errors:
            raise errors.pop(0)
        self._park.parked[self._queue] += encoded_members(batch)

    def close(self) -> None:
        self._running = False


class Park:
    """A backlog of queues without I/O: what was sent to which, and the errors of the next sends."""

    def __init__(self, watchdog: ConnectionWatchdog, monkeypatch: pytest.MonkeyPatch, *queues: str) -> None:
        self.limits: dict[str, int] = dict.fromkeys(queues, LIMIT)
        self.errors: dict[str, list[Exception]] = defaultdict(list)
        self.parked: dict[str, list[bytes]] = defaultdict(list)
        self.sends: list[tuple[str, int]] = []
        self.timeouts: list[float] = []
        self.events: list[tuple[str, str]] = []
        self.closing = threading.Event()
        self.sender_queue = SenderQueue()
        monkeypatch.setattr(backlog_module, "sender_to", lambda client, path: Sender(self, path))
        provisioned = Provisioned(tuple(BacklogQueue(path, {}, LIMIT) for path in queues), {})
        options = PairingOptions(server_busy_wait=0)
        client: Any = None
        self.backlog = Backlog(client, provisioned, options, watchdog, Operations(), self.emit, self.closing)
        self.backlog.rotation.choose = min

    def emit(self, kind: str, *, queue: str, **details: Any) -> None:
        self.events.append((kind, queue))

    def park(self, *sizes: int, timeout: float = 30.0, stop: Callable[[], bool] = lambda: False) -> Parcel:
        """Park messages of so many bytes; `self.parcel` is theirs, also when this raises."""
        self.sends.clear()
        self.parcel = Parcel("orders", [ServiceBusMessage(b"x" * size) for size in sizes])
        self.backlog.park(self.parcel, self.sender_queue, timeout, stop)
        return self.parcel


@pytest.fixture
def park(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Park]]:
    monkeypatch.setattr(connection_patches, "abort", lambda sender: None)
    watchdog = ConnectionWatchdog()
    yield lambda *queues: Park(watchdog, monkeypatch, *queues)
    watchdog.stop(0.0)


def down() -> Exception:
    return ServiceBusError("an error of the service", condition=b"amqp:internal-error")


def test_a_list_is_parked_in_parts_that_fit(park: Callable[..., Park]) -> None:
    """As many messages in each batch as the queue takes, in their order, in one queue."""
    made = park(A, B)
    made.park(*[30_000] * 7)
    assert made.sends == [(A, 3), (A, 3), (A, 1)]
    assert made.parked[A] == made.parcel.parked
    assert made.parcel.rest == []
    assert made.backlog.status()[A].parked == 7


def test_a_queue_that_fails_is_left_and_another_one_takes_the_messages(park: Callable[..., Park]) -> None:
    """It leaves the rotation for all senders, with an event; the sender stays with the other one."""
    made = park(A, B)
    made.errors[A] = [down()]
    made.park(10)
    assert made.sends == [(A, 1), (B, 1)]
    assert made.events == [("queue left rotation", A)]
    assert not made.backlog.status()[A].in_rotation
    assert made.sender_queue.queue == B


def test_without_a_queue_the_error_has_what_was_not_parked(park: Callable[..., Park]) -> None:
    """And the reason of each queue."""
    made = park(A, B)
    made.errors[A] = [down()]
    made.errors[B] = [down()]
    with pytest.raises(BacklogUnavailableError, match="internal-error") as raised:
        made.park(10, 20)
    assert raised.value.messages == made.parcel.messages
    assert set(raised.value.reasons) == {A, B}


def test_an_error_between_two_parts_has_only_the_rest(park: Callable[..., Park]) -> None:
    """`done` says how many messages the backlog has."""
    made = park(A)
    made.backlog.attempt(A, [b""], 5.0)  # so the link is open: a failure on it would be retried on a new one
    made.park(50_000)
    made.errors[A] = [down(), down()]
    with pytest.raises(BacklogUnavailableError) as raised:
        made.park(60_000, 60_000)
    assert (made.parcel.done, len(raised.value.messages)) == (0, 2)


def test_a_stale_link_is_replaced_once(park: Callable[..., Park]) -> None:
    """The same queue on a new connection: it does not leave the rotation."""
    made = park(A, B)
    made.park(10)
    made.errors[A] = [down()]
    made.park(10)
    assert made.sends == [(A, 1), (A, 1)]
    assert made.events == []


def test_a_queue_that_returns_is_told(park: Callable[..., Park]) -> None:
    """Once it accepts a message again."""
    made = park(A)
    made.backlog.take_out(A, down())
    made.backlog.take_out(A, down())
    made.backlog.attempt(A, [b"x"], 5.0)
    assert made.events == [("queue left rotation", A), ("queue back in rotation", A)]


def test_a_short_time_out_takes_no_queue_out(park: Callable[..., Park]) -> None:
    """Too little time to open a link says nothing about the queue; with enough of it, a time-out does."""
    made = park(A)
    made.errors[A] = [OperationTimeoutError(message="no answer")]
    with pytest.raises(BacklogUnavailableError):
        made.park(10, timeout=1.0)
    assert made.events == []
    made.errors[A] = [OperationTimeoutError(message="no answer")]
    with pytest.raises(BacklogUnavailableError):
        made.park(10, timeout=10.0)
    assert made.events == [("queue left rotation", A)]


def test_one_of_several_queues_has_half_of_the_time(park: Callable[..., Park]) -> None:
    """So that another can be tried; the last one has all that is left."""
    made = park(A, B)
    made.errors[A] = [down()]
    made.park(10, timeout=30.0)
    assert made.timeouts == [pytest.approx(15.0, abs=2.0), pytest.approx(30.0, abs=2.0)]


def test_parts_are_halved_while_a_queue_takes_less_than_it_says(park: Callable[..., Park]) -> None:
    """Its refusal of a single message is the message's fault."""
    made = park(A)
    made.errors[A] = [MessageSizeExceededError(message="too large"), MessageSizeExceededError(message="too large")]
    made.park(10, 10, 10, 10)
    assert made.sends == [(A, 4), (A, 2), (A, 1), (A, 1), (A, 1), (A, 1)]
    assert made.events == []


def test_a_single_message_that_every_queue_finds_too_large_is_refused(park: Callable[..., Park]) -> None:
    """With its sizes; no queue leaves the rotation for it."""
    made = park(A, B)
    made.errors[A] = [MessageSizeExceededError(message="too large")]
    made.errors[B] = [MessageSizeExceededError(message="too large")]
    with pytest.raises(NotParkableError, match="should take") as raised:
        made.park(1000)
    assert made.sends == [(A, 1), (B, 1)]
    assert raised.value.limit == LIMIT
    assert raised.value.size is not None
    assert raised.value.size > 1000
    assert made.events == []


def test_a_message_larger_than_the_limit_is_refused_before_anything_is_sent(park: Callable[..., Park]) -> None:
    """A list with one such message is refused as a whole."""
    made = park(A)
    with pytest.raises(NotParkableError) as raised:
        made.park(10, LIMIT)
    assert made.sends == []
    assert len(raised.value.messages) == 2


def test_a_limit_that_a_link_tells_counts_from_then_on(park: Callable[..., Park]) -> None:
    """The smallest one of all queues, before anything is sent."""
    made = park(A, B)
    made.limits[A] = 5_000
    made.park(10)
    assert made.backlog.limit == 5_000
    with pytest.raises(NotParkableError):
        made.park(5_000)


def test_a_busy_queue_is_asked_again_and_stays_in_the_rotation(park: Callable[..., Park]) -> None:
    """Once more the same, then the other; after the first wait not more often than every 0.2 s."""
    made = park(A, B)
    made.errors[A] = [ServiceBusServerBusyError(message="throttled") for _ in range(2)]
    began = time.monotonic()
    made.park(10)
    assert made.sends == [(A, 1), (A, 1), (B, 1)]
    assert time.monotonic() - began >= 0.2
    assert made.events == []


def test_busy_queues_end_a_call_whose_time_is_over(park: Callable[..., Park]) -> None:
    """The error says that they are busy, and is caused by the service's."""
    made = park(A)
    busy = [ServiceBusServerBusyError(message="throttled") for _ in range(9)]
    made.errors[A] = list(busy)
    with pytest.raises(BacklogUnavailableError, match="it is busy") as raised:
        made.park(10, timeout=0.5)
    assert raised.value.__cause__ in busy
    assert set(raised.value.reasons) == {A}
    assert made.events == []


def test_a_shortage_of_this_process_is_raised_as_it_is(park: Callable[..., Park]) -> None:
    """No queue is to blame, and no other would do better."""
    made = park(A, B)
    made.errors[A] = [MemoryError("no more")]
    with pytest.raises(MemoryError):
        made.park(10)
    assert made.sends == [(A, 1)]
    assert made.events == []


def test_a_message_that_every_queue_refuses_is_raised_with_the_services_error(park: Callable[..., Park]) -> None:
    """The refusal of a message is not one of the queue: none leaves the rotation."""
    made = park(A, B)
    for queue in (A, B):
        made.errors[queue] = [ServiceBusError("refused", condition=b"amqp:not-allowed")]
    with pytest.raises(ServiceBusError, match="refused") as raised:
        made.park(10)
    assert not isinstance(raised.value, BacklogUnavailableError)
    assert made.sends == [(A, 1), (B, 1)]
    assert made.events == []


def test_a_refusal_is_forgotten_once_the_message_is_parked(park: Callable[..., Park]) -> None:
    """If all queues are down for the messages behind it, that is the error."""
    made = park(A, B)
    made.errors[A] = [ServiceBusError("refused", condition=b"amqp:not-allowed")]

    def fail_after_the_first() -> bool:
        if made.parcel.done:
            made.errors.update({queue: [down(), down()] for queue in (A, B)})
        return False

    with pytest.raises(BacklogUnavailableError) as raised:
        made.park(60_000, 60_000, stop=fail_after_the_first)
    assert made.sends[:2] == [(A, 1), (B, 1)]
    assert len(raised.value.messages) == 1


def test_a_part_fits_to_the_byte() -> None:
    """With what the batch and each message in it add."""
    parcel = Parcel("orders", [ServiceBusMessage(b"x" * 100) for _ in range(3)])
    two = BATCH_OVERHEAD + sum(len(each) + MESSAGE_OVERHEAD for each in parcel.parked[:2])
    assert [len(parcel.part(limit, 3)) for limit in (two - 1, two)] == [1, 2]


@pytest.mark.parametrize("end", ["stop", "closing"])
def test_parking_ends_early_between_two_parts(park: Callable[..., Park], end: str) -> None:
    """When the primary is back, or the pairing closes: what is not parked yet stays with the caller."""
    made = park(A)
    if end == "closing":
        made.closing.set()
    parcel = made.park(60_000, 60_000, stop=lambda: end == "stop" and len(made.sends) == 1)
    assert (len(parcel.rest), parcel.done) == ((1, 1) if end == "stop" else (2, 0))
