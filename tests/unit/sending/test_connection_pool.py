"""The pool of connections to one entity, and the watchdog that ends calls past their deadline, without I/O."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.sending import connections
from pairbus.sending.connections import ConnectionPool, ConnectionWatchdog, SenderConnection
from pairbus.sending.sdk import connection_patches
from tests.support.waiting import wait_until

LIMIT = 1000


class Sender:
    """An SDK's sender whose sends do as the test says."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.aborted = threading.Event()
        self.closed = threading.Event()
        self.is_silent = False
        self.alive = True
        self.opening_seconds = 0.0
        #: The time limit of the last send.
        self.timeout = 0.0
        self._running = False

    def __enter__(self) -> Sender:
        time.sleep(self.opening_seconds)
        self._running = True
        return self

    def create_message_batch(self) -> Any:
        return SimpleNamespace(max_size_in_bytes=LIMIT)

    def send_messages(self, message: Any, timeout: float) -> None:
        self.timeout = timeout
        if self.is_silent:
            assert self.aborted.wait(30)
            raise ConnectionError("cut")
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self._running = False
        self.closed.set()

    def stop(self) -> None:
        """Close the link, as the SDK does after some errors."""
        self._running = False


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborting and keeping alive reach the sender instead of its socket."""

    def keep_alive(sender: Sender) -> None:
        if not sender.alive:
            raise ConnectionError("dead")

    monkeypatch.setattr(connection_patches, "abort", lambda sender: sender.aborted.set())
    monkeypatch.setattr(connection_patches, "keep_alive", keep_alive)


@pytest.fixture
def watchdog() -> Iterator[ConnectionWatchdog]:
    made = ConnectionWatchdog()
    yield made
    made.stop(0.0)


@pytest.fixture
def pool(watchdog: ConnectionWatchdog) -> ConnectionPool:
    return ConnectionPool(Sender, watchdog)


def test_a_success_keeps_the_connection_for_the_next_send(pool: ConnectionPool) -> None:
    """The first attempt opens the link, the next one finds it open; the entity's limit is known from then on."""
    first = pool.attempt("message", 5.0)
    assert (first.error, first.was_open, pool.idle_count, pool.limit) == (None, False, 1, LIMIT)
    second = pool.attempt("message", 5.0)
    assert (second.error, second.was_open) == (None, True)
    assert second.connection is first.connection
    assert second.began >= first.began


def test_the_time_of_opening_counts_for_the_send(watchdog: ConnectionWatchdog) -> None:
    """A call takes no longer than its time limit, even if most of it was needed to open the link."""
    sender = Sender()
    sender.opening_seconds = 0.2
    SenderConnection(sender, watchdog).send("message", 5.0)
    assert 0.0 < sender.timeout <= 4.8


def test_a_link_that_was_opened_has_no_deadline(watchdog: ConnectionWatchdog) -> None:
    """The watchdog would cut it while it is idle."""
    connection = SenderConnection(Sender(), watchdog)
    connection.open(5.0)
    assert (connection.opened, watchdog.running_calls) == (True, 0)


def test_a_failed_attempt_holds_its_connection(pool: ConnectionPool) -> None:
    """No other send may take it before its error was read."""
    connection = pool.attempt("message", 5.0).connection
    connection.sender.error = error = ConnectionError("lost")
    failed = pool.attempt("message", 5.0)
    assert failed.error is error
    assert failed.connection is connection
    assert pool.idle_count == 0


def test_a_connection_whose_link_is_open_after_an_error_is_kept(pool: ConnectionPool) -> None:
    """As after a refusal; one whose link the SDK has closed is dropped, for the next send would open another."""
    connection = pool.attempt("message", 5.0).connection
    connection.sender.error = ValueError("refused")
    pool.give_back(pool.attempt("message", 5.0).connection)
    assert (pool.idle_count, connection.was_cut) == (1, False)
    connection.sender.stop()
    pool.give_back(pool.attempt("message", 5.0).connection)
    assert (pool.idle_count, connection.was_cut) == (0, True)
    assert connection.sender.closed.wait(30)


def test_an_interrupted_attempt_drops_its_connection(pool: ConnectionPool) -> None:
    """Ctrl-C leaves a send behind whose answer would be taken for the next one's."""
    connection = pool.attempt("message", 5.0).connection
    connection.sender.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pool.attempt("message", 5.0)
    assert connection.was_cut
    assert pool.idle_count == 0
    assert connection.sender.closed.wait(30)


def test_a_connection_that_was_cut_is_not_kept(pool: ConnectionPool) -> None:
    """Although its link was open: the watchdog may cut it just as its answer arrives."""
    connection = pool.attempt("message", 5.0).connection
    assert pool.take() is connection
    connection.cut()
    pool.give_back(connection)
    assert pool.idle_count == 0


@pytest.mark.parametrize("end", ["closed", "unwanted"])
def test_a_connection_that_comes_back_after_the_end_is_closed(pool: ConnectionPool, end: str) -> None:
    """Of a pool that was closed, or of an entity whose last sender was."""
    pool.give_back(connection := pool.attempt("message", 5.0).connection)
    taken = pool.take()
    if end == "closed":
        pool.close()
    else:
        pool.wanted = False
    pool.give_back(taken)
    assert pool.idle_count == 0
    assert connection.sender.closed.wait(30)


def test_closing_a_pool_closes_its_idle_connections_in_order(pool: ConnectionPool) -> None:
    """On threads that are returned, so that the caller can wait for them; they are not cut."""
    connection = pool.attempt("message", 5.0).connection
    for thread in pool.close():
        thread.join(30)
    assert connection.sender.closed.is_set()
    assert not connection.was_cut


def test_the_last_used_connection_is_taken_first(pool: ConnectionPool) -> None:
    """The others stay idle, and are the first to be kept alive."""
    older, newer = two_idle(pool)
    assert pool.take() is newer
    assert pool.take() is older


def two_idle(pool: ConnectionPool) -> list[SenderConnection]:
    """Return two idle connections of a pool, the one that was used last at the end."""
    found = [pool.take_new() for _ in range(2)]
    for connection in found:
        connection.open(5.0)
        pool.give_back(connection)
        time.sleep(0.01)
    return found


def test_an_idle_connection_is_kept_alive_if_it_was_used_before(pool: ConnectionPool) -> None:
    """The least recently used first; afterwards it counts as used."""
    older, newer = two_idle(pool)
    between = (older.used_at + newer.used_at) / 2
    assert not pool.has_idle(older.used_at)
    assert pool.has_idle(between)
    assert pool.keep_alive(between)
    assert older.used_at > newer.used_at
    assert not pool.keep_alive(between), "the other one was used since"
    assert pool.idle_count == 2


def test_a_dead_idle_connection_is_dropped(pool: ConnectionPool) -> None:
    """Before a send would find out."""
    (older, newer) = two_idle(pool)
    older.sender.alive = False
    assert pool.keep_alive(time.monotonic())
    assert older.was_cut
    assert pool.take() is newer
    assert not pool.keep_alive(time.monotonic())


def test_the_watchdog_cuts_a_call_past_its_deadline(pool: ConnectionPool) -> None:
    """A send that the SDK does not bound ends with a time-out, within a second of its deadline."""
    connection = pool.attempt("message", 5.0).connection
    connection.sender.is_silent = True
    began = time.monotonic()
    failed = pool.attempt("message", 0.2)
    assert isinstance(failed.error, OperationTimeoutError)
    assert "within 0.2 s" in str(failed.error)
    assert 0.2 <= time.monotonic() - began < 0.2 + 1 + 2
    assert connection.was_cut


def test_the_watchdog_does_not_cut_a_call_in_time(pool: ConnectionPool, watchdog: ConnectionWatchdog) -> None:
    """A call that ends is forgotten: its connection is used for as long as it lives."""
    connection = pool.attempt("message", 0.1).connection
    assert watchdog.running_calls == 0
    time.sleep(1.2)  # longer than deadline, grace and look together
    assert not connection.was_cut


def test_a_watchdog_that_stops_waits_for_calls_until_its_deadline(
    pool: ConnectionPool, watchdog: ConnectionWatchdog
) -> None:
    """Then it cuts those that are left, and its thread ends."""
    connection = pool.attempt("message", 5.0).connection
    connection.sender.is_silent = True
    running = threading.Thread(target=pool.attempt, args=("message", 60.0))
    running.start()
    wait_until(lambda: watchdog.running_calls == 1)
    began = time.monotonic()
    watchdog.stop(began + 0.5)
    assert time.monotonic() - began >= 0.5
    assert connection.was_cut
    running.join(30)
    assert watchdog.running_calls == 0
    wait_until(lambda: not any(each.name == "pairbus-watchdog" for each in threading.enumerate()))


def test_a_watchdog_without_calls_stops_at_once(watchdog: ConnectionWatchdog) -> None:
    """Whatever its deadline."""
    began = time.monotonic()
    watchdog.stop(began + 60)
    assert time.monotonic() - began < 2


def test_the_watchdog_goes_on_after_an_error_of_its_own(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it no call would have a deadline."""
    failing = [RuntimeError("can't start new thread")]

    def has_idle(before: float) -> bool:
        if failing:
            raise failing.pop()
        return False

    monkeypatch.setattr(pool, "has_idle", has_idle)
    wait_until(lambda: not failing)
    connection = pool.attempt("message", 5.0).connection
    connection.sender.is_silent = True
    assert isinstance(pool.attempt("message", 0.1).error, OperationTimeoutError)
    assert "the watchdog of the connections failed" in caplog.text


@pytest.mark.usefixtures("watchdog")
def test_idle_connections_are_kept_alive_by_the_watchdog(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were idle for longer than that."""
    connection = pool.attempt("message", 5.0).connection
    used = connection.used_at
    monkeypatch.setattr(connections, "_IDLE_SECONDS", 0.1)
    wait_until(lambda: connection.used_at > used)
    assert not connection.was_cut
