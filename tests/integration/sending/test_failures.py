"""Failures that count toward failover and those that do not, and the caller's view of each, with the real SDK."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import (
    BacklogUnavailableError,
    Namespace,
    PairedNamespace,
    PairedNamespaceClosedError,
    PairedSender,
    PairingOptions,
)
from pairbus.localbus import LocalBus
from pairbus.sending import backlog as parking_module
from pairbus.sending.connections import SenderConnection
from tests.support.pairing import Pair, backlog_queue_of, entity_of, returned_messages
from tests.support.process_fixtures import sas_token
from tests.support.waiting import wait_until

#: How long a send to a silent primary takes; and one that is then parked, through a link that is not open yet.
BRIEF, BRIEF_PARKED = 1.5, 6.0
#: For all that is answered at once.
AMPLE = 30.0
LONG = 3000


@dataclass(frozen=True)
class Row:
    """One line of the table: how it comes about, the SDK's error, and whether it counts."""

    name: str
    happens: Callable[[Pair, str], Any]
    error: type[BaseException]
    counts: bool
    #: Whether the sender has an open link when it happens.
    link: bool = True
    message: Callable[[], Any] = lambda: ServiceBusMessage("x", message_id="1")
    settings: dict[str, Any] = field(default_factory=dict)
    primary: Callable[[Pair], Namespace] = Pair.primary_namespace
    #: How many of the message arrive at the primary although the caller hears of a failure.
    arrives: int = 0

    def __str__(self) -> str:
        return self.name if self.link else f"{self.name}-no-link"

    @property
    def silent(self) -> bool:
        """True if nothing is answered, so that every send takes as long as it may."""
        return self.error is TIMEOUT and self.name != "timeout-of-service"


def fault(kind: str, *first: Any, **parameters: Any) -> Callable[[Pair, str], int]:
    """A fault of localbus on the queue; it strikes nobody else."""

    def happen(pair: Pair, queue: str) -> int:
        found: int = getattr(pair.primary.faults, kind)(*first, queue, **parameters)
        return found

    return happen


def nothing(pair: Pair, queue: str) -> None:
    """The message itself is what is wrong."""


def killed(pair: Pair, queue: str) -> None:
    pair.primary.kill()


def stopped(pair: Pair, queue: str) -> None:
    pair.primary.stop()


def paused(pair: Pair, queue: str) -> None:
    pair.primary.pause()


#: These strike every queue: nothing else may go on meanwhile.
WHOLE_PROCESS = (killed, stopped, paused)


def deleted(pair: Pair, queue: str) -> None:
    pair.delete_queue(queue)


def disabled(pair: Pair, queue: str) -> None:
    pair.update_queue(queue, status="Disabled")


def send_disabled(pair: Pair, queue: str) -> None:
    pair.update_queue(queue, status="SendDisabled")


def wrong_signature(pair: Pair) -> Namespace:
    """Of one entity, so that no pairing can try it; a wrong key does not get as far as a send."""
    host = f"127.0.0.1:{pair.primary.port}"
    token = sas_token(f"sb://{host}/elsewhere", "RootManageSharedAccessKey", "d3Jvbmc=", time.time() + 600)
    return pair.primary_namespace(f"Endpoint=sb://{host};SharedAccessSignature={token};UseDevelopmentEmulator=true")


def large() -> ServiceBusMessage:
    return ServiceBusMessage(b"x" * 300_000)


def property_of(value: Any) -> Callable[[], Any]:
    return lambda: ServiceBusMessage("x", application_properties={"bad": value})


CONNECTION, TIMEOUT = exceptions.ServiceBusConnectionError, exceptions.OperationTimeoutError
COUNTING = [
    Row("killed", killed, CONNECTION, True),
    Row("killed", killed, CONNECTION, True, link=False),
    Row("stopped", stopped, CONNECTION, True),
    # What was sent lies in the kernel's hands, and is read when the process goes on.
    Row("paused", paused, TIMEOUT, True, arrives=1),
    Row("paused", paused, TIMEOUT, True, link=False),
    Row("black-hole", fault("black_hole"), TIMEOUT, True),
    Row("black-hole", fault("black_hole"), TIMEOUT, True, link=False),
    Row("latency", fault("latency", 20), TIMEOUT, True),
    Row("answer-lost", fault("lost_accept"), TIMEOUT, True, arrives=1),
    Row("internal-error", fault("internal_error"), ServiceBusError, True),
    Row("unavailable", fault("unavailable"), ServiceBusError, True),
    Row("unavailable", fault("unavailable"), ServiceBusError, True, link=False),
    Row("detached", fault("unavailable", condition="amqp:link:detach-forced"), CONNECTION, True),
    Row("timeout-of-service", fault("reject", "com.microsoft:timeout"), TIMEOUT, True),
    Row("cancelled", fault("reject", "com.microsoft:operation-cancelled"), ServiceBusError, True),
    # On the stale link and on the fresh one: the message came in twice, and the answer never out.
    Row("cut-at-each-message", fault("drop", after=1), CONNECTION, True, arrives=2),
]
AUTHENTICATION, AUTHORIZATION = exceptions.ServiceBusAuthenticationError, exceptions.ServiceBusAuthorizationError
NOT_FOUND, DISABLED = exceptions.MessagingEntityNotFoundError, exceptions.MessagingEntityDisabledError
TOO_LARGE, QUOTA = exceptions.MessageSizeExceededError, exceptions.ServiceBusQuotaExceededError
CONFIGURATION = [
    Row("wrong-signature", nothing, AUTHENTICATION, False, link=False, primary=wrong_signature),
    Row("unauthorised", fault("reject", "amqp:unauthorized-access"), AUTHORIZATION, False),
    Row("unauthorised-link", fault("unavailable", condition="amqp:unauthorized-access"), AUTHORIZATION, False),
    Row("auth-failed", fault("reject", "com.microsoft:auth-failed"), AUTHORIZATION, False),
    # The service refuses the token for an entity that does not exist: so the SDK's class says.
    Row("deleted", deleted, AUTHENTICATION, False),
    Row("deleted", deleted, AUTHENTICATION, False, link=False),
    Row("not-found", fault("reject", "amqp:not-found"), NOT_FOUND, False),
    Row("not-found-link", fault("unavailable", condition="amqp:not-found"), NOT_FOUND, False, link=False),
    Row("disabled", disabled, DISABLED, False),
    Row("disabled", disabled, DISABLED, False, link=False),
    Row("send-disabled", send_disabled, DISABLED, False),
    Row("too-large", nothing, TOO_LARGE, False, message=large),
    Row("too-large-list", nothing, TOO_LARGE, False, message=lambda: [large()]),
    Row("size-limit", fault("size_limit", 20), TOO_LARGE, False, link=False),
    Row("quota", fault("quota_exceeded"), QUOTA, False),
    Row("quota", fault("quota_exceeded"), QUOTA, False, link=False),
    Row("no-session-id", nothing, ServiceBusError, False, settings={"requires_session": True}),
    Row("argument-error", fault("reject", "com.microsoft:argument-error"), ServiceBusError, False),
    Row("not-allowed", fault("reject", "amqp:not-allowed"), ServiceBusError, False),
    Row("text", nothing, TypeError, False, message=lambda: "text"),
    Row("number", nothing, TypeError, False, message=lambda: 5, link=False),
    Row("dictionary", nothing, TypeError, False, message=lambda: {"no": "body"}),
    Row("unknown-type", nothing, ServiceBusError, False, message=property_of(object())),
    Row("unknown-type", nothing, ServiceBusError, False, message=property_of(object()), link=False),
    Row("timedelta", nothing, ServiceBusError, False, message=property_of(timedelta(1))),
    Row("beyond-int64", nothing, ServiceBusError, False, message=property_of(2**70)),
    Row("beyond-int64-list", nothing, ValueError, False, message=lambda: [property_of(2**70)()]),
    Row("bytes-not-utf8", nothing, UnicodeDecodeError, False, message=property_of(b"\xff")),
]


def begin(pair: Pair, row: Row, interval: float) -> tuple[PairedNamespace, str, PairedSender, Callable[[], None]]:
    """A pairing, a queue and its sender, after it has happened; and how to undo it."""
    queue = pair.queue(**row.settings)
    bus = pair.pairing(primary=row.primary(pair), failover_interval=interval, send_timeout=10, backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    if row.link:
        sender.__enter__()
    found = row.happens(pair, queue)
    return bus, queue, sender, pair.heal if found is None else lambda: pair.primary.faults.clear(found)


def state(bus: PairedNamespace, queue: str) -> str:
    return bus.status().entities[queue].state


def assert_parked(pair: Pair, count: int) -> None:
    found = pair.parked_by_queue()
    assert sum(found.values()) == count, f"{count} should be parked: {found}"


def raised_before_the_failover(pair: Pair, row: Row) -> None:
    bus, queue, sender, undo = begin(pair, row, LONG)
    message = row.message()
    with pytest.raises(ServiceBusError) as caught:
        sender.send_messages(message, timeout=BRIEF if row.silent else AMPLE)
    assert type(caught.value) is row.error
    assert returned_messages(caught.value) == [message]
    assert state(bus, queue) == "suspect"
    assert bus.status().entities[queue].last_error
    assert_parked(pair, 0)
    undo()
    sender.send_messages(ServiceBusMessage("healed"))
    assert state(bus, queue) == "available"
    wait_until(lambda: pair.arrived(queue) == 1 + row.arrives, why=lambda: pair.arrived(queue))


def parked_from_the_failover_on(pair: Pair, row: Row) -> None:
    bus, queue, sender, undo = begin(pair, row, 0)
    sender.send_messages(row.message(), timeout=BRIEF_PARKED if row.silent else AMPLE)
    assert state(bus, queue) == "failed over"
    assert pair.parked_bodies() == ["x"]
    assert bus.status().entities[queue].parked == 1
    undo()
    wait_until(lambda: pair.arrived(queue) == row.arrives, why=lambda: pair.arrived(queue))


def no_outage(pair: Pair, row: Row) -> None:
    bus, queue, sender, _ = begin(pair, row, 0)
    message = row.message()
    with pytest.raises(row.error) as caught:
        sender.send_messages(message)
    assert type(caught.value) is row.error
    assert len(returned_messages(caught.value)) == len(message if isinstance(message, (list, str)) else [message])
    entity = bus.status().entities[queue]
    assert (entity.state, entity.last_error, entity.parked, entity.sent) == ("available", None, 0, 0)
    assert_parked(pair, 0)


@contextmanager
def no_retries() -> Iterator[None]:
    """An answer of the service counts at once, and not after 1.6 and 3.2 s more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pairbus.sending.sender._RETRIES", 0)
        yield


#: Raises when a row of the table does not hold.
Check: TypeAlias = Callable[[Pair, Row], None]


class ConcurrentChecks:
    """All checks of rows that strike one queue only, run at once: each waits much and does little."""

    def __init__(self, both: tuple[LocalBus, LocalBus]) -> None:
        self._both = both
        Pair(*both).heal()
        wanted = [
            (check, row) for row in COUNTING for check in (raised_before_the_failover, parked_from_the_failover_on)
        ]
        wanted += [(no_outage, row) for row in CONFIGURATION]
        with no_retries(), ThreadPoolExecutor(10) as pool:
            self._found: dict[tuple[Check, str], Future[None]] = {
                (check, str(row)): pool.submit(self._run, check, row)
                for check, row in wanted
                if row.happens not in WHOLE_PROCESS
            }

    def _run(self, check: Check, row: Row) -> None:
        pair = Pair(*self._both)
        try:
            check(pair, row)
        finally:
            pair.close_pairings()

    def check(self, check: Check, row: Row, request: pytest.FixtureRequest) -> None:
        """Raise what the check has raised; run it now if it strikes the whole process."""
        found = self._found.get((check, str(row)))
        if found is None:
            with no_retries():
                check(request.getfixturevalue("pair"), row)
        else:
            found.result()


@pytest.fixture(scope="module")
def concurrent_checks(both: tuple[LocalBus, LocalBus]) -> ConcurrentChecks:
    return ConcurrentChecks(both)


@pytest.mark.parametrize("row", COUNTING, ids=str)
def test_what_counts_is_raised_before_the_failover(
    concurrent_checks: ConcurrentChecks, request: pytest.FixtureRequest, row: Row
) -> None:
    """An outage shorter than the interval: the caller sees the SDK's error, with the message; the entity is suspect."""
    concurrent_checks.check(raised_before_the_failover, row, request)


@pytest.mark.parametrize("row", COUNTING, ids=str)
def test_what_counts_is_parked_from_the_failover_on(
    concurrent_checks: ConcurrentChecks, request: pytest.FixtureRequest, row: Row
) -> None:
    """With an interval of 0 the first failure fails over: the call that finds it out returns, its message is parked."""
    concurrent_checks.check(parked_from_the_failover_on, row, request)


@pytest.mark.parametrize("row", CONFIGURATION, ids=str)
def test_a_configuration_fault_is_no_outage(
    concurrent_checks: ConcurrentChecks, request: pytest.FixtureRequest, row: Row
) -> None:
    """The SDK's error, with the messages; nothing counts (an interval of 0 would show it), nothing is parked."""
    concurrent_checks.check(no_outage, row, request)


def test_a_sender_goes_on_after_a_configuration_fault(pair: Pair) -> None:
    """A mistake of the caller does not spoil the connection for the next send."""
    queue = pair.queue()
    sender = pair.sender(queue)
    for wrong in (large(), property_of(object())(), "text", [property_of(2**70)()]):
        with pytest.raises((ServiceBusError, TypeError, ValueError)):
            sender.send_messages(wrong)
        sender.send_messages(ServiceBusMessage("right"))
    assert pair.bodies(queue) == ["right"] * 4


# --- what cannot be encoded ----------------------------------------------------------------------------------------

UNENCODABLE: dict[str, Callable[[], Any]] = {
    "unknown-type": property_of(object()),
    "timedelta": property_of(timedelta(1)),
    "beyond-int64": property_of(2**70),
    "ttl-beyond-uint": lambda: ServiceBusMessage("x", time_to_live=timedelta(days=60)),
    "bytes-not-utf8": property_of(b"\xff"),
    "in-a-list": lambda: [ServiceBusMessage("fine"), property_of(2**70)()],
    "no-message": lambda: "text",
}


@dataclass
class Down:
    """A pairing whose primary refuses connections: one entity that nobody has tried yet, one that is failed over."""

    pair: Pair
    bus: PairedNamespace
    untried: PairedSender
    failed: PairedSender


@pytest.fixture(scope="module")
def down(both: tuple[LocalBus, LocalBus]) -> Iterator[Down]:
    pair = Pair(*both)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        there = f"127.0.0.1:{taken.getsockname()[1]}"
        nowhere = pair.primary.connection_string.replace(f"127.0.0.1:{pair.primary.port}", there)
        bus = pair.pairing(primary=pair.primary_namespace(nowhere), send_timeout=10)
        untried, failed = bus.get_queue_sender("untried"), bus.get_queue_sender("failed")
        failed.send_messages(ServiceBusMessage("failover"))
        yield Down(pair, bus, untried, failed)
        pair.close_pairings()


@pytest.mark.parametrize("form", UNENCODABLE)
@pytest.mark.parametrize("which", ["untried", "failed"])
def test_what_cannot_be_encoded_is_no_outage_while_the_primary_is_down(down: Down, which: str, form: str) -> None:
    """Found down by this very message, or failed over long ago: an error, no count, nothing parked, messages kept."""
    message = UNENCODABLE[form]()
    sender: PairedSender = getattr(down, which)
    before = state(down.bus, which)
    with pytest.raises((ServiceBusError, TypeError, ValueError)) as caught:
        sender.send_messages(message)
    inside = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(inside, (TypeError, ValueError)), "the message is to blame, not the connection"
    assert len(returned_messages(caught.value)) == (len(message) if isinstance(message, (list, str)) else 1)
    assert state(down.bus, which) == before == {"untried": "available", "failed": "failed over"}[which]
    assert_parked(down.pair, 1)


def test_what_cannot_be_encoded_is_the_sdks_kind_of_error_when_failed_over(down: Down) -> None:
    """A program that catches the SDK's errors catches these too: the classes are those of a primary that is well."""
    with pytest.raises(ServiceBusError) as caught:
        down.failed.send_messages(property_of(2**70)())
    assert isinstance(caught.value.inner_exception, ValueError)
    with pytest.raises(ValueError, match="invalid") as plain:
        down.failed.send_messages([property_of(2**70)()])
    assert not isinstance(plain.value, ServiceBusError)
    with pytest.raises(TypeError):
        down.failed.send_messages("text")


def with_properties(properties: Any) -> ServiceBusMessage:
    message = ServiceBusMessage("x")
    message.application_properties = properties
    return message


def broken_off() -> Iterator[ServiceBusMessage]:
    yield ServiceBusMessage("first")
    yield ServiceBusMessage("second")
    raise LookupError("there is no third")


BAD: dict[str, tuple[Callable[[], Any], type[Exception], int]] = {
    "properties that are a list": (lambda: with_properties([1]), TypeError, 1),
    "properties that are a text": (lambda: with_properties("abc"), TypeError, 1),
    "one among several": (lambda: [ServiceBusMessage("x"), with_properties([1])], TypeError, 2),
    "annotated": (lambda: AmqpAnnotatedMessage(data_body=b"x", application_properties=5), TypeError, 1),  # type: ignore[arg-type]
    "a list in a list": (lambda: [[ServiceBusMessage("x")]], TypeError, 1),
    "nothing": (lambda: None, TypeError, 1),
    "a life that is none": (lambda: {"body": "x", "time_to_live": "abc"}, ValueError, 1),
    "a generator that breaks off": (broken_off, LookupError, 2),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_argument_is_the_sdks_error_and_carries_all_of_it(pair: Pair, down: Down, bad: str) -> None:
    """With the primary well, down or failed over: the class is the one that the SDK raises, and what was given,
    as far as it came, is in `messages`."""
    make, kind, count = BAD[bad]
    queue = pair.queue()
    with (
        pair.plain_client(pair.primary) as client,
        client.get_queue_sender(queue) as plain,
        pytest.raises(kind) as theirs,
    ):
        plain.send_messages(make())
    for sender in (pair.sender(queue), down.untried, down.failed):
        with pytest.raises(kind) as ours:
            sender.send_messages(make())
        assert type(ours.value) is type(theirs.value)
        assert len(ours.value.messages) == count  # type: ignore[attr-defined]
    assert (state(down.bus, "untried"), state(down.bus, "failed")) == ("available", "failed over")
    assert pair.arrived(queue) == 0


# --- errors from inside the SDK ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encodes", [True, False], ids=["message fine", "message unencodable"])
@pytest.mark.parametrize(
    "inside",
    [
        OSError("no route"),
        ConnectionResetError("reset"),
        TimeoutError("slow"),
        struct.error("format"),
        TypeError("type"),
        ValueError("value"),
        KeyError("a frame of no known kind"),
        RuntimeError("can't start new thread"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_without_a_name_counts_if_the_message_is_not_to_blame(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, inside: Exception, encodes: bool
) -> None:
    """The SDK's "Handler failed" is an outage, whatever its parser has stumbled over, if the message can be encoded; a
    message that cannot, or a want of this process, is the caller's."""
    counts = encodes and not isinstance(inside, RuntimeError)
    message = ServiceBusMessage("x", application_properties=None if encodes else {"number": 2**80})
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)

    def broken(connection: SenderConnection, message: Any, timeout: float) -> None:
        raise ServiceBusError(message=f"Handler failed: {inside}.", error=inside)

    real = SenderConnection.send
    monkeypatch.setattr(
        SenderConnection,
        "send",
        lambda connection, *given: (broken if connection.sender.entity_name == queue else real)(connection, *given),
    )
    if counts:
        sender.send_messages(message)
        assert state(bus, queue) == "failed over"
        assert_parked(pair, 1)
    else:
        with pytest.raises(ServiceBusError) as caught:
            sender.send_messages(message)
        assert returned_messages(caught.value) == [message]
        assert caught.value.inner_exception is inside or isinstance(inside, OSError)  # it has its proof's error
        assert state(bus, queue) == "available"
        assert_parked(pair, 0)


# --- what a fresh connection or a second try mends -----------------------------------------------------------------


def gone_stale(pair: Pair, queue: str) -> None:
    pair.primary.faults.drop(queue)


def detached_once(pair: Pair, queue: str) -> None:
    pair.primary.faults.clear(pair.primary.faults.unavailable(queue, condition="amqp:link:detach-forced"))


def restarted(pair: Pair, queue: str) -> None:
    pair.primary.kill()
    pair.primary.restart()


@pytest.mark.parametrize(
    "happens",
    [
        gone_stale,
        detached_once,
        restarted,
        fault("internal_error", count=1),
        fault("internal_error", count=2),
        fault("reject", "com.microsoft:timeout", count=1),
    ],
    ids=["dropped", "detached", "restarted", "internal-error", "internal-error-twice", "timeout-of-service"],
)
def test_a_single_failure_is_hidden_by_a_retry(pair: Pair, happens: Callable[[Pair, str], Any]) -> None:
    """Even with an interval of 0: what a second try mends is no failure, and the message is in the primary, once."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=10)
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("before"))
        happens(pair, queue)
        sender.send_messages(ServiceBusMessage("after"))
    assert state(bus, queue) == "available"
    assert bus.status().entities[queue].last_error is None
    assert pair.bodies(queue) == ["before", "after"]
    assert_parked(pair, 0)


def test_many_stale_connections_are_no_outage(pair: Pair) -> None:
    """All idle connections were cut at once: each is replaced without a failure."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=10)
    with bus.get_queue_sender(queue) as sender:
        pool = entity_of(bus, queue).pool
        opened = [pool.take_new() for _ in range(3)]
        for connection in opened:
            connection.open(5)
            pool.give_back(connection)
        pair.primary.faults.drop(queue)
        for number in range(5):
            sender.send_messages(ServiceBusMessage(str(number)))
    assert state(bus, queue) == "available"
    assert pair.bodies(queue) == list("01234")


# --- busy ------------------------------------------------------------------------------------------------------------


def noted_pauses(bus: PairedNamespace) -> list[float]:
    """The pauses that sends make from now on; nobody waits for them."""
    found: list[float] = []

    def wait(seconds: float) -> bool:
        found.append(seconds)
        return bus.closing.is_set()

    bus.closing.wait = wait  # type: ignore[method-assign,assignment]
    return found


@pytest.mark.parametrize("link", [True, False], ids=["link", "no-link"])
def test_busy_is_waited_for_and_tried_again(pair: Pair, link: bool) -> None:
    """Busy once: the send waits the 10 s that the service asks for, tries again, and arrives."""
    queue = pair.queue()
    bus = pair.pairing(server_busy_wait=PairingOptions().server_busy_wait, send_timeout=60)
    sender = bus.get_queue_sender(queue)
    if link:
        sender.__enter__()
    pair.primary.faults.busy(queue, count=1)
    pauses = noted_pauses(bus)
    sender.send_messages(ServiceBusMessage("x"))
    assert pauses == [10.0]
    assert state(bus, queue) == "available"
    assert pair.bodies(queue) == ["x"]
    assert pair.primary.faults.list() == []


@pytest.mark.parametrize("link", [True, False], ids=["link", "no-link"])
def test_busy_never_counts(pair: Pair, link: bool) -> None:
    """Busy twice: the SDK's error, with the message; no failover, nothing parked, and one pause only."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    if link:
        sender.__enter__()
    pair.primary.faults.busy(queue, count=2)
    pauses = noted_pauses(bus)
    message = ServiceBusMessage("x")
    with pytest.raises(exceptions.ServiceBusServerBusyError) as caught:
        sender.send_messages(message)
    assert pauses == [0.2]
    assert returned_messages(caught.value) == [message]
    assert state(bus, queue) == "available"
    assert_parked(pair, 0)
    assert pair.primary.faults.list() == []
    sender.send_messages(message)
    assert pair.arrived(queue) == 1


def test_busy_is_not_waited_for_when_there_is_no_time(pair: Pair) -> None:
    """A pause that would outlast the send is not begun: the error comes at once, without a second try."""
    queue = pair.queue()
    bus = pair.pairing(server_busy_wait=500)
    sender = bus.get_queue_sender(queue)
    pair.primary.faults.busy(queue, count=1)
    pauses = noted_pauses(bus)
    with pytest.raises(exceptions.ServiceBusServerBusyError):
        sender.send_messages(ServiceBusMessage("x"))
    assert pauses == []
    assert pair.arrived(queue) == 0


def test_a_busy_backlog_queue_is_waited_for_too(pair: Pair) -> None:
    """Busy once while a message is parked: a pause, a second try at the same queue, and no queue leaves."""
    queue = pair.queue()
    bus = pair.pairing(server_busy_wait=10, send_timeout=60)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("first"))
    assert backlog_queue_of(sender) is not None
    pair.secondary.faults.busy(backlog_queue_of(sender), count=1)
    pauses = noted_pauses(bus)
    sender.send_messages(ServiceBusMessage("second"))
    assert pauses == [10.0]
    assert bus.status().queues[backlog_queue_of(sender)].parked == 2
    assert all(each.in_rotation for each in bus.status().queues.values())


def parking(pair: Pair, **options: Any) -> tuple[PairedNamespace, PairedSender]:
    """A sender that parks, with an open link to a backlog queue."""
    queue = pair.queue()
    bus = pair.pairing(**options)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("first"), timeout=60)
    return bus, sender


def assert_rotation_whole(pair: Pair, bus: PairedNamespace) -> None:
    assert all(each.in_rotation for each in bus.status().queues.values())
    assert not pair.told("queue left rotation")


def test_a_backlog_that_stays_busy_is_waited_for_as_long_as_there_is_time(pair: Pair) -> None:
    """Throttled again after the first pause, and after the second: the message is parked once that has ended."""
    bus, sender = parking(pair, server_busy_wait=3, send_timeout=60, backlog_queue_count=1)
    pair.secondary.faults.busy(count=4)
    pauses = noted_pauses(bus)
    sender.send_messages(ServiceBusMessage("second"))
    assert pauses == [3.0] * 4
    assert pair.parked() == 2
    assert_rotation_whole(pair, bus)


def test_a_busy_backlog_queue_is_left_for_another_the_second_time(pair: Pair) -> None:
    """One queue is throttled for long: its senders wait as asked, try it once more, and then another."""
    bus, sender = parking(pair, send_timeout=60)
    busy = backlog_queue_of(sender)
    assert busy is not None
    pair.secondary.faults.busy(busy)
    pauses = noted_pauses(bus)
    sender.send_messages(ServiceBusMessage("second"))
    assert pauses == [0.2, 0.2]
    assert backlog_queue_of(sender) != busy
    assert sorted(pair.parked_by_queue().values()) == [1, 1]
    assert_rotation_whole(pair, bus)


@pytest.mark.parametrize(("wait", "waits"), [(500, 0), (100, 3)])
def test_a_throttled_secondary_takes_no_queue_from_anybody(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, wait: int, waits: int
) -> None:
    """When no further pause fits into a call, it ends with its messages and the reason; whoever comes after the
    throttling finds all queues as they were."""
    bus, sender = parking(pair, server_busy_wait=wait)
    throttling = pair.secondary.faults.busy()
    given = [ServiceBusMessage("one"), ServiceBusMessage("two")]
    pauses = noted_pauses(bus)
    # The clock of the parking, for whom the pauses are over at once.
    monkeypatch.setattr(parking_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + sum(pauses)))
    with pytest.raises(BacklogUnavailableError) as caught:
        sender.send_messages(given, timeout=350)
    error = caught.value
    assert pauses == [wait] * waits
    assert error.messages == given
    assert error.reasons
    assert set(error.reasons) <= set(bus.status().queues)
    assert all("busy" in why for why in error.reasons.values())
    assert all(each in str(error) for each in error.reasons)
    assert isinstance(error.__cause__, exceptions.ServiceBusServerBusyError)
    assert_rotation_whole(pair, bus)
    pair.secondary.faults.clear(throttling)
    for each in (sender, bus.get_queue_sender(sender.entity_name)):
        each.send_messages(ServiceBusMessage("after"), timeout=60)
    assert pair.parked() == 3


def test_busy_is_asked_again_with_pauses_also_where_the_first_is_none(pair: Pair) -> None:
    """`server_busy_wait=0` is for the second try: after it a throttled service is not asked without end."""
    bus, sender = parking(pair, server_busy_wait=0, send_timeout=60, backlog_queue_count=1)
    pair.secondary.faults.busy(count=3)
    pauses = noted_pauses(bus)
    sender.send_messages(ServiceBusMessage("second"))
    assert pauses == [0.0, 0.2, 0.2]


def test_closing_ends_the_wait_for_a_busy_backlog(pair: Pair) -> None:
    """However long the pause would be: close() returns in time, and the send raises with its message."""
    bus, sender = parking(pair, server_busy_wait=500, send_timeout=1000)
    pair.secondary.faults.busy(count=1)
    message = ServiceBusMessage("x")
    caught: list[Any] = []

    def send() -> None:
        try:
            sender.send_messages(message)
        except Exception as error:
            caught.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    wait_until(lambda: not pair.secondary.faults.list(), why="the queue was not asked")
    bus.close()
    sending.join(60)
    assert not sending.is_alive()
    assert isinstance(caught[0], PairedNamespaceClosedError)
    assert caught[0].messages == [message]  # type: ignore[attr-defined]


def test_a_busy_failed_over_entity_stays_failed_over(pair: Pair) -> None:
    """Busy answers a ping neither way: not back yet, and not unusable either."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=1)
    bus.get_queue_sender(queue)
    pair.primary.faults.busy(queue)
    pair.declare_down(bus, queue)
    wait_until(lambda: "busy" in (bus.status().entities[queue].last_ping_error or "").lower(), why=bus.status)
    assert state(bus, queue) == "failed over"


# --- what errors carry -----------------------------------------------------------------------------------------------


def test_errors_carry_the_callers_own_objects(pair: Pair) -> None:
    """`messages` holds what was not accepted, the very objects, in order: of a list, a generator, a dictionary."""
    queue = pair.queue()
    sender = pair.sender(queue)
    pair.primary.faults.quota_exceeded(queue)
    # The SDK would change the properties of these in place, so it gets copies; the caller gets the originals.
    several: list[Any] = [
        ServiceBusMessage("a"),
        ServiceBusMessage("b", application_properties={"raw": b"bytes"}),
        {"body": "c", "application_properties": {"raw": b"bytes"}},
    ]
    given: Any
    for given in (several, iter(several), *several):
        expected = [given] if any(given is each for each in several) else several
        with pytest.raises(QUOTA) as caught:
            sender.send_messages(given)
        assert [id(each) for each in returned_messages(caught.value)] == [id(each) for each in expected]
    assert several[1].application_properties == {"raw": b"bytes"}
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("a"))
    batch.add_message(ServiceBusMessage("b"))
    with pytest.raises(QUOTA) as caught:
        sender.send_messages(batch)
    assert [str(each) for each in returned_messages(caught.value)] == ["a", "b"]


def test_the_error_of_the_sdk_is_raised_as_it_is(pair: Pair) -> None:
    """Class, condition and text are what a plain sender of the SDK raises for the same."""
    queue = pair.queue()
    pair.primary.faults.reject("amqp:not-allowed", queue, description="No, thank you.")
    sender = pair.sender(queue)
    with pytest.raises(ServiceBusError) as ours:
        sender.send_messages(ServiceBusMessage("x"))
    with (
        pair.plain_client(pair.primary) as client,
        client.get_queue_sender(queue) as plain,
        pytest.raises(ServiceBusError) as theirs,
    ):
        plain.send_messages(ServiceBusMessage("x"))
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)
    assert ours.value._condition == theirs.value._condition == "amqp:not-allowed"
