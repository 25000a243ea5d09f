"""Every fault, and the errors that the SDK raises under it, which are those of Azure."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionLockLostError,
)
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Message

from pairbus.localbus import LocalBus
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.faults.client import FaultClient
from pairbus.localbus.faults.faults import KINDS, FaultError
from tests.support.expected_errors import NOT_RETRIED, RAISED
from tests.support.process_fixtures import (
    FORGETS_SOCKETS,
    active,
    bodies,
    connect,
    counts,
    is_retryable,
    queue_of,
    sas_token,
    take,
    with_key,
)
from tests.support.raw_client import RawClient, RawError, data_of
from tests.support.waiting import wait_until

pytestmark = FORGETS_SOCKETS

ENTITIES = """
[[queues]]
name = "rejecting"
[[queues]]
name = "orders/archive"
[[queues]]
name = "orders/partitions/1"
[[event_hubs]]
name = "telemetry"
[[queues]]
name = "sessions"
requires_session = true
[[topics]]
name = "news"
[[topics.subscriptions]]
name = "all"
"""

HELLO = Message(body=b"hello", inferred=True).encode()
PEEK = "com.microsoft:peek-message"


@pytest.fixture(autouse=True)
def _fresh(bus: LocalBus, admin_client: ServiceBusAdministrationClient) -> Iterator[None]:
    """Start each test without faults and with new queues `orders` and `other`."""
    for queue in ("orders", "other"):
        admin_client.create_queue(queue)
    yield
    bus.faults.clear()
    for queue in ("orders", "other"):
        admin_client.delete_queue(queue)


@pytest.fixture
def faults(bus: LocalBus) -> FaultClient:
    return bus.faults


@pytest.fixture(scope="module")
def client(bus: LocalBus) -> Iterator[ServiceBusClient]:
    with connect(bus.connection_string) as opened:
        yield opened


@pytest.fixture
def sender(client: ServiceBusClient) -> Iterator[ServiceBusSender]:
    """Open a sender to `orders`."""
    with client.get_queue_sender("orders") as opened:
        yield opened


@pytest.fixture
def receiver(client: ServiceBusClient) -> Iterator[ServiceBusReceiver]:
    """Open a receiver of `orders`."""
    with client.get_queue_receiver("orders") as opened:
        yield opened


@pytest.fixture
def raw(bus: LocalBus) -> Iterator[RawClient]:
    """Open a raw client that may use every entity."""
    with RawClient(bus) as opened:
        for entity in ("orders", "other", "news", "news/Subscriptions/all", "sessions"):
            opened.put_token(entity)
        yield opened


def put(raw: RawClient, *texts: str, queue: str = "orders") -> None:
    link = raw.sender(queue)
    for text in texts:
        raw.send(link, Message(body=text.encode(), inferred=True).encode())


@contextmanager
def taking(least: float, most: float = 12.0) -> Iterator[None]:
    """Check that the with block takes at least that long, and no longer than a call that ends by itself."""
    begun = time.monotonic()
    yield
    assert least <= time.monotonic() - begun <= most


# --- unavailable, black hole, drop ---------------------------------------------------------------------------


def test_an_unavailable_entity_refuses_new_links_and_detaches_open_ones(
    client: ServiceBusClient, sender: ServiceBusSender, faults: FaultClient, bus: LocalBus
) -> None:
    """An open sender's next send fails and a new one cannot attach; afterwards the same sender works again."""
    sender.send_messages(ServiceBusMessage("before"))
    with faults.during("unavailable", "orders"):
        with pytest.raises(ServiceBusError) as refused:
            sender.send_messages(ServiceBusMessage("open"))
        assert is_retryable(refused.value)
        with pytest.raises(ServiceBusError, match="unavailable"), client.get_queue_sender("orders") as other:
            other.send_messages(ServiceBusMessage("new"))
        with pytest.raises(ServiceBusError, match="unavailable"), client.get_queue_receiver("orders") as other:
            other.receive_messages(1, max_wait_time=1)
    sender.send_messages(ServiceBusMessage("after"))
    assert active(bus, "orders") == 2


@pytest.mark.parametrize(
    ("condition", "raised"),
    [(conditions.SERVER_BUSY, ServiceBusServerBusyError), (conditions.ENTITY_DISABLED, MessagingEntityDisabledError)],
)
def test_the_condition_of_unavailability_can_be_set(
    client: ServiceBusClient, faults: FaultClient, condition: str, raised: type[Exception]
) -> None:
    """A refused attach has the given condition."""
    faults.unavailable("orders", condition=condition)
    with pytest.raises(raised), client.get_queue_sender("orders") as other:
        other.send_messages(ServiceBusMessage("x"))


def test_a_black_hole_does_not_answer(
    client: ServiceBusClient,
    sender: ServiceBusSender,
    receiver: ServiceBusReceiver,
    faults: FaultClient,
    raw: RawClient,
    bus: LocalBus,
) -> None:
    """Sends time out, receivers get nothing, new links do not open; afterwards all of them work."""
    with faults.during("black-hole", "orders"):
        with taking(0.8), pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("lost"), timeout=1)
        assert receiver.receive_messages(1, max_wait_time=1) == []
        impatient = client.get_queue_sender("orders")
        with taking(0.3), pytest.raises(OperationTimeoutError):
            impatient.send_messages(ServiceBusMessage("lost"), timeout=1)
        put(raw, "elsewhere", queue="other")
    impatient.close()
    with (
        connect(bus.connection_string, retry_total=2, retry_backoff_factor=0.1) as patient,
        patient.get_queue_sender("orders") as again,
    ):
        again.send_messages(ServiceBusMessage("found"))
    assert bodies(receiver.receive_messages(5, max_wait_time=60)) == ["found"]


def test_a_black_hole_for_all_does_not_answer_connections(bus: LocalBus, faults: FaultClient, raw: RawClient) -> None:
    """Not even an open is answered; at its end the connections that it affected are cut."""
    link, idle = raw.sender("orders"), RawClient(bus)
    idle.put_token("orders")
    with taking(4), pytest.raises(OSError, match=r"closed|reset|[Bb]roken"):  # noqa: PT012 - from before it is set
        faults.black_hole(seconds=4)
        raw.send(link, HELLO)
    # The error depends on the step of the SDK's handshake, for which it has no timeout.
    either = (OperationTimeoutError, ServiceBusConnectionError)
    with connect(bus.connection_string) as client, taking(4), pytest.raises(either):  # noqa: PT012
        faults.black_hole(seconds=4)
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    idle.sender("orders")  # it sent nothing while the black hole lasted, so its connection is intact
    idle.drop()
    with RawClient(bus) as other:
        other.put_token("orders")
        other.send(other.sender("orders"), HELLO)
    assert active(bus, "orders") == 1


def test_receivers_are_served_again_when_a_black_hole_ends_by_itself(
    faults: FaultClient, raw: RawClient, bus: LocalBus
) -> None:
    """A receiver that waited through it gets the messages of before and after."""
    link = raw.receiver("orders", 10)
    faults.black_hole("orders", seconds=0.5)
    faults.black_hole("orders", seconds=0.2)
    with RawClient(bus) as other:
        other.put_token("orders")
        with pytest.raises(TimeoutError):
            other.wait(lambda: False, "nothing", 0.3)
    wait_until(lambda: not faults.list())
    put(raw, "afterwards")
    assert raw.receive(link).payload


def test_connections_can_be_dropped_now(sender: ServiceBusSender, faults: FaultClient, raw: RawClient) -> None:
    """The next send on a dropped connection raises a connection error; the one after that uses a new connection."""
    faults.drop("orders")
    with pytest.raises(ServiceBusConnectionError):
        sender.send_messages(ServiceBusMessage("x"))
    sender.send_messages(ServiceBusMessage("y"))
    put(raw, "z", queue="other")
    assert faults.list() == []


def test_connections_are_dropped_after_a_number_of_messages(
    sender: ServiceBusSender, faults: FaultClient, bus: LocalBus
) -> None:
    """The sender of the third message loses its connection; the message is kept. All messages of a batch count."""
    faults.drop("orders", after=3)
    sender.send_messages(ServiceBusMessage("1"))
    sender.send_messages(ServiceBusMessage("2"))
    with pytest.raises(ServiceBusConnectionError):
        sender.send_messages(ServiceBusMessage("3"))
    assert active(bus, "orders") == 3
    with pytest.raises(ServiceBusConnectionError):
        sender.send_messages([ServiceBusMessage(str(n)) for n in range(5)])
    assert active(bus, "orders") == 8


def test_receivers_are_dropped_after_a_number_of_messages(faults: FaultClient, raw: RawClient, bus: LocalBus) -> None:
    """A receiver's connection is cut with messages locked; they can be received again later."""
    put(raw, "1", "2")
    faults.drop("orders", after=2, count=1)
    with RawClient(bus) as other:
        other.put_token("orders")
        link = other.receiver("orders", 10)
        with pytest.raises((ConnectionError, OSError)):  # noqa: PT012
            for _ in range(3):
                other.receive(link, 3)
    assert active(bus, "orders") == 2


# --- sends refused ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rejected(client: ServiceBusClient) -> Iterator[ServiceBusSender]:
    with client.get_queue_sender("rejecting") as opened:
        yield opened


@pytest.mark.parametrize("condition", list(RAISED))
def test_a_rejected_send_raises_the_class_of_its_condition(
    bus: LocalBus, rejected: ServiceBusSender, condition: str
) -> None:
    """The error has the rejection's condition and text and the class that belongs to it; nothing was enqueued."""
    fault = bus.faults.during("reject", "rejecting", condition=condition, description="Because of a test.")
    with fault, pytest.raises(ServiceBusError) as refused:
        rejected.send_messages(ServiceBusMessage("x"))
    assert type(refused.value) is RAISED[condition]
    assert "Because of a test." in str(refused.value)
    assert condition in str(refused.value)
    if condition != conditions.TIMEOUT:  # the SDK replaces this one by a new error without it
        assert is_retryable(refused.value) is (condition not in NOT_RETRIED)
    assert active(bus, "rejecting") == 0


def test_every_condition_can_be_set(raw: RawClient, faults: FaultClient) -> None:
    """Each condition that localbus knows arrives unchanged, with its text."""
    link = raw.sender("orders")
    for condition in conditions.STATUS:
        with faults.during("reject", "orders", condition=condition):
            with pytest.raises(RawError) as refused:
                raw.send(link, HELLO)
            assert refused.value.condition == condition
    raw.send(link, HELLO)


def test_a_rejection_can_have_a_rate(raw: RawClient, faults: FaultClient) -> None:
    """About half of many sends are rejected at a rate of 0.5, none at 0."""
    link = raw.sender("orders")

    def failures(sends: int) -> int:
        failed = 0
        for _ in range(sends):
            try:
                raw.send(link, HELLO)
            except RawError as error:
                failed += error.condition == conditions.SERVER_BUSY
        return failed

    with faults.during("busy", "orders", rate=0.5):
        assert 20 <= failures(100) <= 80
    with faults.during("reject", "orders", condition=conditions.SERVER_BUSY, rate=0):
        assert failures(20) == 0


def test_a_busy_service_recovers(client: ServiceBusClient, sender: ServiceBusSender, faults: FaultClient) -> None:
    """While it is busy, sends, new links and requests are refused with server-busy; then all work."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    sender.schedule_messages(ServiceBusMessage("opens the management link"), soon)
    with faults.during("busy", "orders"):
        with pytest.raises(ServiceBusServerBusyError, match="10 seconds"):
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusServerBusyError), client.get_queue_receiver("orders") as other:
            other.receive_messages(1, max_wait_time=60)
        with pytest.raises(ServiceBusServerBusyError):
            sender.schedule_messages(ServiceBusMessage("x"), soon)
    sender.send_messages(ServiceBusMessage("y"))


def test_an_internal_error(sender: ServiceBusSender, receiver: ServiceBusReceiver, faults: FaultClient) -> None:
    """Sends and requests fail with the service's internal error and can be tried again."""
    with faults.during("internal-error", "orders"):
        with pytest.raises(ServiceBusError, match="amqp:internal-error") as refused:
            sender.send_messages(ServiceBusMessage("x"))
        assert type(refused.value) is ServiceBusError
        with pytest.raises(ServiceBusError, match="internal-error"):
            receiver.peek_messages()
    sender.send_messages(ServiceBusMessage("y"))
    assert bodies(receiver.peek_messages()) == ["y"]


def test_a_full_entity(sender: ServiceBusSender, faults: FaultClient, bus: LocalBus) -> None:
    """Sent and scheduled messages are refused with quota exceeded."""
    with faults.during("quota", "orders"):
        with pytest.raises(ServiceBusQuotaExceededError, match="maximum entity size"):
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.schedule_messages(ServiceBusMessage("x"), datetime.now(timezone.utc) + timedelta(hours=1))
    assert counts(bus, "orders") == (0, 0, 0)


def test_a_size_limit(client: ServiceBusClient, faults: FaultClient, bus: LocalBus) -> None:
    """Messages above the limit are too large for links that attach under it; smaller ones pass."""
    faults.size_limit(2000, "orders")
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x" * 1000))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage("x" * 3000))
        batch = sender.create_message_batch()
        with pytest.raises(MessageSizeExceededError):  # noqa: PT012
            for _ in range(10):
                batch.add_message(ServiceBusMessage("x" * 500))
    assert active(bus, "orders") == 1


def test_a_size_limit_holds_for_scheduled_messages(
    client: ServiceBusClient, faults: FaultClient, bus: LocalBus
) -> None:
    """It holds at once and for each message of a request; if one is too large, none is enqueued."""
    when = datetime.now(timezone.utc) + timedelta(hours=1)
    with client.get_queue_sender("orders") as sender:
        sender.schedule_messages(ServiceBusMessage("x" * 3000), when)
        faults.size_limit(2000, "orders")
        sender.schedule_messages([ServiceBusMessage("x" * 1000) for _ in range(3)], when)
        with pytest.raises(MessageSizeExceededError):
            sender.schedule_messages([ServiceBusMessage("x"), ServiceBusMessage("x" * 3000)], when)
        faults.clear()
        sender.schedule_messages(ServiceBusMessage("x" * 3000), when)
    assert counts(bus, "orders") == (0, 0, 5)


def test_a_lost_acceptance(sender: ServiceBusSender, faults: FaultClient, bus: LocalBus) -> None:
    """The message is in the queue and its sender gets a timeout: on a link and for a scheduled message."""
    soon = datetime.now(timezone.utc) + timedelta(hours=1)
    sender.schedule_messages(ServiceBusMessage("opens the management link"), soon)
    faults.lost_accept("orders", count=2)
    with pytest.raises(OperationTimeoutError):
        sender.send_messages(ServiceBusMessage("1"), timeout=3)
    with pytest.raises(OperationTimeoutError):
        sender.schedule_messages(ServiceBusMessage("2"), soon, timeout=3)
    sender.send_messages(ServiceBusMessage("3"))
    assert counts(bus, "orders") == (2, 0, 2)


# --- settling --------------------------------------------------------------------------------------------------


def test_a_lost_message_lock(receiver: ServiceBusReceiver, faults: FaultClient, raw: RawClient) -> None:
    """Settling and renewing raise lock lost; the message is delivered again, and counted."""
    put(raw, "x")
    (message,) = receiver.receive_messages(1, max_wait_time=60)
    faults.lock_lost("orders", count=2)
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(message)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)
    (again,) = receiver.receive_messages(1, max_wait_time=60)
    assert (str(again), again.delivery_count) == ("x", 1)
    receiver.complete_message(again)


def test_a_lost_session_lock(client: ServiceBusClient, faults: FaultClient, bus: LocalBus) -> None:
    """On a session's receiver the session lock is lost."""
    with client.get_queue_sender("sessions") as sender:
        sender.send_messages(ServiceBusMessage("x", session_id="a"))
    with client.get_queue_receiver("sessions", session_id="a") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=60)
        with faults.during("lock-lost", "sessions"), pytest.raises(SessionLockLostError):
            receiver.complete_message(message)


def test_a_late_settlement(receiver: ServiceBusReceiver, faults: FaultClient, raw: RawClient, bus: LocalBus) -> None:
    """The outcome is applied at once and answered later."""
    put(raw, "x")
    (message,) = receiver.receive_messages(1, max_wait_time=60)
    faults.late_settle(0.8, "orders")
    with taking(0.75):
        receiver.complete_message(message)
    faults.clear()
    faults.late_settle(300, "orders")  # longer than the test waits for the effect
    put(raw, "y")
    link = raw.receiver("orders", 1)
    got = raw.receive(link)
    got.delivery.update(got.delivery.ACCEPTED)
    raw.flush()
    wait_until(lambda: active(bus, "orders") == 0)


def test_a_lost_settlement(faults: FaultClient, raw: RawClient, bus: LocalBus) -> None:
    """The outcome is applied; the SDK repeats it over the management link and gets lock lost."""
    put(raw, "x", "y")
    with (
        connect(bus.connection_string) as client,
        client.get_queue_receiver("orders", timeout=0.7) as receiver,  # its wait for an outcome, instead of 60 s
    ):
        first, second = take(receiver, 2)
        faults.lost_settle("orders", count=1)
        with taking(0.6), pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        assert active(bus, "orders") == 1
        faults.lost_settle("orders")
        receiver._config.try_timeout = 1.5  # the answer that follows never comes
        with pytest.raises(OperationTimeoutError):
            receiver.complete_message(second)
        assert active(bus, "orders") == 0


# --- latency ---------------------------------------------------------------------------------------------------


def test_latency_is_added_in_both_directions(
    sender: ServiceBusSender, receiver: ServiceBusReceiver, faults: FaultClient, bus: LocalBus
) -> None:
    """A send, a settlement and a request each take the delay twice; all of them succeed."""
    with faults.during("latency", "orders", delay=0.3):
        with taking(0.6):
            sender.send_messages(ServiceBusMessage("x"))
        with taking(0.3):
            (message,) = receiver.receive_messages(1, max_wait_time=60)
        with taking(0.6):
            receiver.renew_message_lock(message)
        with taking(0.6):
            receiver.complete_message(message)
    lasted = []
    for _ in range(5):
        begun = time.monotonic()
        sender.send_messages(ServiceBusMessage("y"))
        lasted.append(time.monotonic() - begun)
    assert min(lasted) < 0.6


def test_latency_does_not_limit_throughput(faults: FaultClient, raw: RawClient, bus: LocalBus) -> None:
    """Many sends on their way arrive together and in order, and a receiver gets no more than its credit."""
    sender, receiver = raw.sender("orders"), raw.receiver("orders")
    faults.latency(0.25, "orders")
    deliveries = []
    with taking(0.5):
        for number in range(200):
            deliveries.append(sender.delivery(f"many-{number}"))
            sender.stream(Message(body=str(number).encode()).encode())
            sender.advance()
        raw.wait(lambda: all(each.remote_state for each in deliveries), "all outcomes")
    receiver.flow(20)
    first = [raw.receive(receiver) for _ in range(20)]
    texts = []
    for each in first:
        message = Message()
        message.decode(each.payload)
        texts.append(data_of(message).decode())
    assert texts == [str(number) for number in range(20)]
    with pytest.raises(TimeoutError):
        raw.wait(lambda: receiver.current, "one too many", 0.6)
    assert receiver.credit == 0
    faults.clear()
    # If more messages than the credit were locked, another receiver would not get the next one.
    other = raw.receiver("orders", 1)
    message = Message()
    message.decode(raw.receive(other).payload)
    assert data_of(message) == b"20"


def test_latency_beyond_a_lock_delivers_the_message_again(faults: FaultClient, raw: RawClient, bus: LocalBus) -> None:
    """A message whose lock ends on the way is not delivered with that lock, but again under a new one."""
    with queue_of(bus, "short-locks", lock_duration=timedelta(seconds=1)):
        raw.put_token("short-locks")
        put(raw, "x", queue="short-locks")
        faults.latency(1.6, "short-locks")
        link = raw.receiver("short-locks", 1)
        with pytest.raises(TimeoutError):
            raw.receive(link, 0.4)
        faults.clear()
        received = raw.receive(link)
        message = Message()
        message.decode(received.payload)
        assert (data_of(message), message.delivery_count) == (b"x", 1)
        assert raw.settle(link, received) is None, "its lock holds"
        assert active(bus, "short-locks") == 0


def test_latency_of_all_entities_delays_connections(
    bus: LocalBus, faults: FaultClient, sender: ServiceBusSender
) -> None:
    """All bytes are delayed: a send takes the delay twice, opening a connection many times."""
    sender.send_messages(ServiceBusMessage("its link is open"))
    with faults.during("latency", delay=0.2):
        with taking(0.4):
            sender.send_messages(ServiceBusMessage("x"))
        with taking(1.6), connect(bus.connection_string) as client, client.get_queue_sender("orders") as other:
            other.send_messages(ServiceBusMessage("y"))
    assert active(bus, "orders") == 3


def test_reduced_latency_keeps_the_order(faults: FaultClient, raw: RawClient) -> None:
    """Data that is on its way when the latency ends arrives before the data that is sent after it."""
    sender, receiver = raw.sender("orders"), raw.receiver("orders", 300)
    deliveries = []

    def send(numbers: range) -> None:
        for number in numbers:
            deliveries.append(sender.delivery(f"many-{number}"))
            sender.stream(Message(body=str(number).encode()).encode())
            sender.advance()
        with suppress(TimeoutError):  # puts them on their way without waiting for their outcomes
            raw.wait(lambda: deliveries[-1].remote_state, "what is still under way", 0.05)

    faults.latency(0.5)
    send(range(100))
    faults.clear()
    faults.latency(0.2)
    send(range(100, 200))
    faults.clear()
    raw.wait(lambda: all(each.remote_state for each in deliveries), "all outcomes")
    texts = []
    for _ in range(200):
        message = Message()
        message.decode(raw.receive(receiver).payload)
        texts.append(data_of(message).decode())
    assert texts == [str(number) for number in range(200)]


# --- where a fault strikes -------------------------------------------------------------------------------------


def test_a_fault_applies_to_an_entity_and_its_subscriptions(raw: RawClient, faults: FaultClient) -> None:
    """Names match in any case, other entities are untouched, and `*` is all entities."""
    faults.reject(conditions.SERVER_BUSY, "ORDERS")
    with pytest.raises(RawError):
        raw.send(raw.sender("orders"), HELLO)
    raw.send(raw.sender("other"), HELLO)
    faults.unavailable("news")
    for open_link in (lambda: raw.sender("news"), lambda: raw.receiver("news/Subscriptions/all")):
        with pytest.raises(RawError):
            open_link()
    faults.clear()
    faults.unavailable("news/subscriptions/all")
    raw.sender("news")
    with pytest.raises(RawError):
        raw.receiver("news/Subscriptions/all")
    faults.clear()
    faults.busy()
    for entity in ("orders", "other", "news"):
        with pytest.raises(RawError, match="server-busy"):
            raw.sender(entity)


def test_a_fault_does_not_apply_to_an_entity_with_a_longer_path(
    bus: LocalBus, raw: RawClient, faults: FaultClient
) -> None:
    """`orders/archive` is another queue: a fault on `orders` affects neither it nor its connections."""
    others = ("orders/archive", "orders/partitions/1")
    for other in others:
        raw.put_token(other)
    open_links = [raw.sender(other) for other in others]
    faults.unavailable("orders")
    for link, other in zip(open_links, others, strict=True):
        raw.send(link, HELLO)
        raw.send(raw.sender(other), HELLO)
        raw.receive(raw.receiver(other))
    with pytest.raises(RawError):
        raw.sender("orders")
    with RawClient(bus) as untouched:
        untouched.put_token(others[0])
        link = untouched.sender(others[0])
        faults.drop("orders")
        untouched.send(link, HELLO)


@pytest.mark.parametrize(
    ("entity", "struck"),
    [
        ("orders", ("orders", "orders/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue")),
        ("orders/$deadletterqueue", ("orders/$DeadLetterQueue",)),
        ("orders/$Transfer/$DeadLetterQueue", ("orders/$Transfer/$DeadLetterQueue",)),
        ("NEWS", ("news/Subscriptions/all", "news/Subscriptions/all/$DeadLetterQueue")),
        ("news/Subscriptions/all", ("news/Subscriptions/all", "news/Subscriptions/all/$DeadLetterQueue")),
        ("telemetry", ("telemetry/ConsumerGroups/$Default/Partitions/0",)),
    ],
)
def test_a_fault_applies_to_sub_queues_and_partitions(
    raw: RawClient, faults: FaultClient, entity: str, struck: tuple[str, ...]
) -> None:
    """It applies to subscriptions, dead-letter queues and partitions; a fault on one of them applies to it alone."""
    everything = (
        "orders", "orders/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue", "news/Subscriptions/all",
        "news/Subscriptions/all/$DeadLetterQueue", "telemetry/ConsumerGroups/$Default/Partitions/0",
    )  # fmt: skip
    raw.put_token("telemetry")
    faults.unavailable(entity)
    refused = []
    for path in everything:
        try:
            raw.receiver(path)
        except RawError:
            refused.append(path)
    assert tuple(refused) == struck


def test_a_fault_applies_to_management_requests(raw: RawClient, faults: FaultClient) -> None:
    """`$management` requests fail with their entity, and so do those of its dead-letter queue."""
    raw.request("orders", PEEK, {"from-sequence-number": 0, "message-count": 1})
    raw.request("orders/$DeadLetterQueue", PEEK, {"from-sequence-number": 0, "message-count": 1})
    faults.internal_error("orders")
    for path in ("orders", "orders/$DeadLetterQueue"):
        status, _, condition = raw.request(path, PEEK, {"from-sequence-number": 0, "message-count": 1})
        assert (status, condition) == (500, conditions.INTERNAL_ERROR)


@pytest.mark.parametrize("kind", ["busy", "internal-error", "unavailable"])
def test_faults_of_all_entities_accept_tokens(faults: FaultClient, raw: RawClient, bus: LocalBus, kind: str) -> None:
    """A token is accepted and does not use up a count that is meant for the next send or link."""
    with faults.during(kind, count=1), RawClient(bus) as other:
        other.put_token("orders")
        with pytest.raises(RawError):
            other.send(other.sender("orders"), HELLO)
        assert faults.list() == []


def test_the_end_of_faults(raw: RawClient, faults: FaultClient) -> None:
    """A count limits the occurrences, seconds end a fault, an id ends one, clear() all, and during() its block."""
    link = raw.sender("orders")

    def fails() -> bool:
        try:
            raw.send(link, HELLO)
        except RawError:
            return True
        return False

    id = faults.reject(conditions.TIMEOUT, "orders", count=2)
    assert [fails() for _ in range(4)] == [True, True, False, False]
    assert faults.list() == []
    faults.clear(id)  # it has ended already, which is no error
    faults.internal_error("orders", seconds=5)
    assert fails()
    wait_until(lambda: not fails())
    first, second = faults.quota_exceeded("orders"), faults.busy("other")
    listed = [(f["id"], f["kind"], f["entity"]) for f in faults.list()]
    assert listed == [(first, "quota", "orders"), (second, "busy", "other")]
    faults.clear(first)
    assert not fails()
    assert [f["id"] for f in faults.list()] == [second]
    with pytest.raises(ZeroDivisionError), faults.during("busy", "orders"):  # noqa: PT012
        assert fails()
        1 / 0  # noqa: B018
    assert not fails()
    assert [f["id"] for f in faults.list()] == [second]
    with faults.during("drop", "news"):
        pass
    faults.clear()
    assert faults.list() == []


# --- setting them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("set_it", "expected"),
    [
        (lambda f: f._set("flood", "*", {}, {}), "unknown fault 'flood'; there are: unavailable, black-hole"),
        (lambda f: f.busy("orders", second=3), "'busy' does not take second; it takes rate, entity, count, seconds"),
        (lambda f: f.busy(rate=1.5), "rate of 'busy' must be a number from 0 to 1, not 1.5"),
        (lambda f: f.busy(rate="often"), "rate of 'busy' must be a number"),
        (lambda f: f.busy(seconds=0), "seconds must be a number above 0"),
        (lambda f: f.busy(seconds="3"), "seconds must be a number above 0"),
        (lambda f: f.busy(seconds=True), "seconds must be a number above 0"),
        (lambda f: f.busy(count=0), "count must be a whole number from 1"),
        (lambda f: f.busy(count=1.5), "count must be a whole number from 1"),
        (lambda f: f.black_hole(count=3), "'black-hole' lasts: it takes seconds, not count"),
        (lambda f: f.busy(entity=""), "entity must be a path or '*'"),
        (lambda f: f.busy(entity=7), "entity must be a path or '*'"),
        (lambda f: f.busy("nobody"), "there is no entity 'nobody'"),
        (lambda f: f.busy("orders/$management"), "set it on 'orders', not on 'orders/$management'"),
        (lambda f: f.busy("telemetry/Partitions/0"), "set it on 'telemetry', not on 'telemetry/partitions/0'"),
        (lambda f: f.busy("telemetry/ConsumerGroups/x"), "set it on 'telemetry'"),
        (lambda f: f.reject("com.microsoft:tired"), "unknown condition 'com.microsoft:tired'; there are: amqp:"),
        (lambda f: f.reject(["amqp:not-found"]), "unknown condition"),
        (lambda f: f._set("reject", "*", {}, {}), "a rejection needs a condition"),
        (lambda f: f.reject("amqp:not-found", description=3), "description of 'reject' must be text"),
        (lambda f: f.unavailable(condition="x"), "unknown condition 'x'"),
        (lambda f: f.latency(-1), "delay of 'latency' must be a number from 0"),
        (lambda f: f.late_settle("long"), "delay of 'late-settle' must be a number"),
        (lambda f: f.size_limit(0), "limit of 'size-limit' must be a whole number of at least 1"),
        (lambda f: f.drop(after=-1), "after of 'drop' must be a whole number"),
        (lambda f: f.drop(after=1.5), "after of 'drop' must be a whole number"),
        (lambda f: f.drop(seconds=3), "dropped once"),
        (lambda f: f.drop("orders", entyti=3), "'drop' does not take entyti"),
        (lambda f: f._request("POST", "", []), "a fault is a JSON object"),
        (lambda f: f._request("DELETE", "?id=x"), "id must be a number"),
        (lambda f: f._request("PATCH", ""), "use GET, POST or DELETE"),
    ],
)
def test_invalid_faults_are_refused(faults: FaultClient, set_it: Callable[[FaultClient], Any], expected: str) -> None:
    """FaultError names the mistake, and no fault is set."""
    with pytest.raises(FaultError) as refused:
        set_it(faults)
    assert expected in str(refused.value)
    assert faults.list() == []


def test_setting_faults_needs_manage(bus: LocalBus, faults: FaultClient) -> None:
    """Without a token or with a wrong key the answer is 401, and no fault is set."""
    context = ssl.create_default_context(cafile=bus.ca_file)
    body = json.dumps({"kind": "busy"})
    wrong = sas_token(f"https://{bus.host}:{bus.port}/", "RootManageSharedAccessKey", "d3Jvbmc=", time.time() + 60)
    for headers in ({}, {"Authorization": wrong}):
        for method in ("GET", "POST", "DELETE"):
            connection = http.client.HTTPSConnection(bus.host, bus.port, context=context, timeout=60)
            try:
                connection.request(method, "/$localbus/faults", body if method == "POST" else None, headers)
                assert connection.getresponse().status == 401
            finally:
                connection.close()
    stranger = FaultClient(bus.host, bus.port, with_key(bus.connection_string, "me", "bWU="), bus.ca_file)
    with pytest.raises(FaultError, match="401"):
        stranger.busy()
    assert faults.list() == []


def test_every_kind_has_its_method() -> None:
    """Every kind of fault that the management API accepts has a method in Python."""
    methods = {name.replace("_", "-") for name in vars(FaultClient) if not name.startswith("_")}
    assert {kind for kind in KINDS if kind not in methods} == {"quota"}  # quota_exceeded
