"""Retries of a send to the primary: their number, their pauses and the failures that count, without I/O."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus import PairedSender, PairingOptions
from pairbus.sending.connections import ConnectionPool, ConnectionWatchdog
from pairbus.sending.entity import Entity
from pairbus.sending.sdk import connection_patches
from pairbus.sending.status import Operations


def internal() -> Exception:
    return ServiceBusError("an error of the service", condition=b"amqp:internal-error")


def refused() -> Exception:
    return ConnectionRefusedError("nothing listens there")


def busy() -> Exception:
    return ServiceBusServerBusyError(message="throttled")


def quota() -> Exception:
    return ServiceBusQuotaExceededError(message="full")


def unauthorised() -> Exception:
    return ServiceBusAuthenticationError(message="the token has expired")


class Sender:
    """An SDK's sender; its sends do as the bench says."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._running = False

    def __enter__(self) -> Sender:
        self._bench.opened += 1
        self._running = True
        return self

    def create_message_batch(self) -> Any:
        return SimpleNamespace(max_size_in_bytes=1000)

    def send_messages(self, message: Any, timeout: float) -> None:
        self._bench.sends += 1
        if self._bench.errors:
            raise self._bench.errors.pop(0)

    def close(self) -> None:
        self._running = False


class Bench:
    """A paired sender to one entity; `errors` are those of the next sends, and what is parked is noted."""

    def __init__(self, watchdog: ConnectionWatchdog, **options: Any) -> None:
        self.errors: list[Exception] = []
        self.sends = 0
        self.opened = 0
        self.pauses: list[float] = []
        self.parked: list[Any] = []
        chosen = PairingOptions(**{"failover_interval": 600, "send_timeout": 60, "ping": "attach", **options})
        closing: Any = SimpleNamespace(wait=self.wait, is_set=lambda: False)
        self.pool = ConnectionPool(self.sender_of_sdk, watchdog)
        #: Ends the thread that pings the entity once it has failed over.
        self.closed = threading.Event()
        self.entity = Entity("orders", self.pool, chosen, Operations(), lambda *args, **named: None, self.closed)
        pairing: Any = SimpleNamespace(
            options=chosen,
            backlog=SimpleNamespace(park=self.park, ids=None),
            primary=SimpleNamespace(namespace=SimpleNamespace(host="contoso")),
            ended=None,
            closing=closing,
            check=lambda: None,
            forked=False,
        )
        self.pairing = pairing
        self.sender = PairedSender(pairing, self.entity)

    def wait(self, seconds: float) -> bool:
        self.pauses.append(round(seconds, 3))
        return False

    def park(self, parcel: Any, *given: Any) -> None:
        self.parked += parcel.rest
        parcel.done = len(parcel.parked)

    def sender_of_sdk(self) -> Sender:
        return Sender(self)

    def send(self, *errors: Exception) -> None:
        """Send one message; the SDK's next sends raise these errors, and then succeed."""
        self.errors = list(errors)
        self.sends = 0
        self.sender.send_messages(ServiceBusMessage("x"))


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_patches, "abort", lambda sender: None)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    watchdog = ConnectionWatchdog()
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(watchdog, **options))
        return made[-1]

    yield make
    for each in made:
        each.closed.set()
    watchdog.stop(0.0)


def test_an_error_of_the_service_is_retried_as_the_sdk_does(bench: Callable[..., Bench]) -> None:
    """Three times, after 1.6, 3.2 and 6.4 s; then it counts once, and is raised."""
    made = bench()
    with pytest.raises(ServiceBusError, match="of the service"):
        made.send(*(internal() for _ in range(4)))
    assert (made.sends, made.pauses) == (4, [1.6, 3.2, 6.4])
    assert made.entity.health.state.value == "suspect"


def test_an_error_of_the_service_that_ends_counts_for_nothing(bench: Callable[..., Bench]) -> None:
    """The third retry succeeds: the message was accepted, and the entity is as available as ever."""
    made = bench()
    made.send(internal(), internal(), internal())
    assert (made.sends, made.pauses) == (4, [1.6, 3.2, 6.4])
    assert made.entity.health.state.value == "available"
    assert (made.entity.sent, made.parked) == (1, [])


def test_an_outage_counts_with_the_first_attempt(bench: Callable[..., Bench]) -> None:
    """Nothing was heard from the service: with an interval of 0 the message is parked without a retry."""
    made = bench(failover_interval=0)
    made.send(refused())
    assert (made.sends, made.pauses) == (1, [])
    assert made.entity.health.state.value == "failed over"
    assert (len(made.parked), made.entity.parked) == (1, 1)


def test_a_retry_that_the_time_does_not_allow_is_not_begun(bench: Callable[..., Bench]) -> None:
    """The pause after it would end past the caller's time-out."""
    made = bench(send_timeout=3)
    with pytest.raises(ServiceBusError, match="of the service"):
        made.send(*(internal() for _ in range(4)))
    assert (made.sends, made.pauses) == (2, [1.6]), "a fake pause takes no time, and 1.6 + 3.2 s is past it"


@pytest.mark.parametrize("error", [internal, refused, unauthorised])
def test_a_stale_link_is_replaced_without_a_failure(
    bench: Callable[..., Bench], error: Callable[[], Exception]
) -> None:
    """A link that was open fails once: a new connection sends the message, without a pause, and nothing counts."""
    made = bench()
    made.send()
    made.send(error())
    assert (made.sends, made.pauses, made.opened) == (2, [], 2)
    assert made.entity.status().last_error is None
    assert made.entity.sent == 2


def test_a_stale_link_is_replaced_once(bench: Callable[..., Bench]) -> None:
    """The new connection fails as well: that counts."""
    made = bench(failover_interval=0)
    made.send()
    made.send(refused(), refused())
    assert made.sends == 2
    assert made.entity.health.state.value == "failed over"


def test_with_a_stale_link_all_idle_ones_go(bench: Callable[..., Bench]) -> None:
    """They are as old: another thread's send must not find that out once more."""
    made = bench()
    for connection in [made.pool.take_new() for _ in range(3)]:
        connection.open(5.0)
        made.pool.give_back(connection)
    made.send(internal())
    assert made.pool.idle_count == 1


def test_a_link_that_was_just_opened_is_not_stale(bench: Callable[..., Bench]) -> None:
    """Its failure is one of the service."""
    made = bench()
    made.send(internal())
    assert made.pauses == [1.6]


def test_a_time_out_on_an_open_link_is_a_failure(bench: Callable[..., Bench]) -> None:
    """The service did not answer: another connection would wait as long."""
    made = bench(failover_interval=0)
    made.send()
    made.send(OperationTimeoutError(message="no answer"))
    assert (made.sends, len(made.parked)) == (1, 1)


def test_a_new_token_is_tried_once(bench: Callable[..., Bench]) -> None:
    """Refused on a new connection, too: the SDK's error, and no failure of the entity."""
    made = bench()
    made.send()
    with pytest.raises(ServiceBusAuthenticationError):
        made.send(unauthorised(), unauthorised())
    assert (made.sends, made.pauses) == (2, [])
    assert made.entity.status().last_error is None


def test_a_throttled_service_is_waited_for_once(bench: Callable[..., Bench]) -> None:
    """As it asks, on the same connection; then its error is raised, and nothing counts."""
    made = bench(server_busy_wait=7)
    made.send(busy())
    assert (made.sends, made.pauses, made.opened) == (2, [7.0], 1)
    with pytest.raises(ServiceBusServerBusyError):
        made.send(busy(), busy())
    assert (made.sends, made.pauses, made.opened) == (2, [7.0, 7.0], 1)
    assert made.entity.health.state.value == "available"


def test_a_throttled_service_is_not_waited_for_beyond_the_time_out(bench: Callable[..., Bench]) -> None:
    """A caller with no more time than that has the error at once."""
    made = bench(server_busy_wait=7, send_timeout=7)
    with pytest.raises(ServiceBusServerBusyError):
        made.send(busy())
    assert (made.sends, made.pauses) == (1, [])


def test_a_configuration_error_is_raised_at_once(bench: Callable[..., Bench]) -> None:
    """The connection is kept: others may send on it."""
    made = bench()
    with pytest.raises(ServiceBusQuotaExceededError):
        made.send(quota())
    assert (made.sends, made.pauses, made.pool.idle_count) == (1, [], 1)
    assert made.entity.health.state.value == "available"


# --- the entity ------------------------------------------------------------------------------------------------------


def test_failures_are_counted_from_the_first_one_after_a_success(bench: Callable[..., Bench]) -> None:
    """An entity that was well before fails over once it has failed for the whole interval."""
    made = bench(failover_interval=0.05)
    made.send()
    assert made.entity.failed(refused(), time.monotonic()).goes_to_primary
    time.sleep(0.06)
    assert not made.entity.failed(refused(), time.monotonic()).goes_to_primary


def test_a_failover_drops_the_idle_connections(bench: Callable[..., Bench]) -> None:
    """They lead to the dead primary, and would be used again after the failback."""
    made = bench(failover_interval=0)
    made.send()
    assert made.pool.idle_count == 1
    made.entity.failed(refused(), time.monotonic())
    assert made.pool.idle_count == 0


def test_the_last_sender_that_closes_leaves_no_connection(bench: Callable[..., Bench]) -> None:
    """One that is given back later, by a send that was running, is closed as well."""
    made = bench()
    other = PairedSender(made.pairing, made.entity)
    running = made.pool.take_new()
    running.open(5.0)
    made.send()
    made.sender.close()
    assert made.pool.idle_count == 1, "another sender uses it"
    other.close()
    assert made.pool.idle_count == 0
    made.pool.give_back(running)
    assert made.pool.idle_count == 0


def test_messages_that_a_backlog_queue_has_taken_do_not_count_as_sent(bench: Callable[..., Bench]) -> None:
    """The primary comes back after one of three messages was parked: the other two go there."""
    made = bench(failover_interval=0)
    made.entity.failed(refused(), time.monotonic())

    def park_one(parcel: Any, *given: Any) -> None:
        parcel.done = 1
        made.entity.health = made.entity.health.ping_answered(time.monotonic())

    made.pairing.backlog.park = park_one
    made.sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
    assert (made.entity.sent, made.entity.parked) == (2, 1)
