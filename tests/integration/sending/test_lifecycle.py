"""The end of a pairing: close, half a close, a fault, a fork, a pickle; and nothing left behind."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import (
    Namespace,
    OptionError,
    PairedNamespace,
    PairedNamespaceClosedError,
    PairingOptions,
    pair_namespaces,
)
from pairbus.sending import pairing as pairing_module
from tests.support.pairing import SLACK, Pair, pairbus_threads, watchdog_of
from tests.support.process_fixtures import is_up
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_pings")


def hosts(pair: Pair) -> tuple[str, str]:
    return f"127.0.0.1:{pair.primary.port}", f"127.0.0.1:{pair.secondary.port}"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def assert_closed(pair: Pair, use: Any, *args: Any) -> PairedNamespaceClosedError:
    """Using it raises the error that names both halves."""
    with pytest.raises(PairedNamespaceClosedError) as raised:
        use(*args)
    primary, secondary = hosts(pair)
    assert (raised.value.primary, raised.value.secondary) == (primary, secondary)
    assert primary in str(raised.value)
    assert secondary in str(raised.value)
    return raised.value


@pytest.fixture
def half_second(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time that a half may stay open, shortened."""
    assert pairing_module._HALF_SECONDS == 5.0, "the contract says 5 s"
    monkeypatch.setattr(pairing_module, "_HALF_SECONDS", 0.5)
    return 0.5


# --- close -------------------------------------------------------------------------------------------------------


def test_close_closes_both_halves_once(pair: Pair) -> None:
    """After close both halves are closed; a second close does nothing and says nothing."""
    bus = pair.pairing()
    bus.close()
    bus.close()
    bus.primary.close()
    bus.secondary.close()
    assert bus.primary.closed
    assert bus.secondary.closed
    assert bus.status().closed
    assert len(pair.told("pairing closed")) == 1


def test_every_use_after_close_names_both_namespaces(pair: Pair) -> None:
    """Sender, batch, size check, a new sender, a with statement: all raise PairedNamespaceClosedError, a ValueError."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue).__enter__()
    sender.send_messages(ServiceBusMessage("before"))
    bus.close()
    message = ServiceBusMessage("after")
    uses = [
        (sender.send_messages, message),
        (sender.send_messages, [message]),
        (sender.create_message_batch,),
        (sender.can_park, message),
        (sender.__enter__,),
        (bus.get_queue_sender, queue),
        (bus.get_topic_sender, queue),
        (bus.__enter__,),
    ]
    for use, *args in uses:
        assert isinstance(assert_closed(pair, use, *args), ValueError)
    sender.close()
    assert pair.bodies(queue) == ["before"]


def test_a_with_statement_closes_and_lets_errors_through(pair: Pair) -> None:
    """Leaving the block closes the pairing, also when an error leaves it, and the error arrives unchanged."""
    bus = pair.pairing()
    with pytest.raises(KeyError, match="mine"), bus:
        raise KeyError("mine")
    assert bus.status().closed


def test_close_works_in_an_outage_of_both_namespaces(pair: Pair) -> None:
    """With both namespaces killed under open connections, close returns soon and raises nothing."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue).__enter__()
    sender.send_messages(ServiceBusMessage("direct"))
    pair.fail_over(sender, bus)
    pair.secondary.kill()
    began = time.monotonic()
    bus.close()
    assert time.monotonic() - began < 5 + SLACK


@pytest.mark.parametrize("frozen", ["primary", "both"])
def test_close_in_the_middle_of_a_send_is_bounded(pair: Pair, frozen: str) -> None:
    """A send hangs on a frozen namespace: close returns within 5 s and its bound, and the send's caller hears of it."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=2, failover_interval=60 if frozen == "primary" else 0)
    sender = bus.get_queue_sender(queue).__enter__()
    sender.send_messages(ServiceBusMessage("direct"))
    pair.primary.pause()
    if frozen == "both":
        pair.secondary.pause()
    outcome: list[Any] = []
    message = ServiceBusMessage("in flight")

    def send() -> None:
        try:
            outcome.append(sender.send_messages(message))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: watchdog_of(bus).running_calls, why="the send is under way")
    began = time.monotonic()
    bus.close()
    assert time.monotonic() - began < 5 + 2 + SLACK
    thread.join(10)
    assert not thread.is_alive()
    assert getattr(outcome[0], "messages", None) == [message], "it was not accepted, and its caller has it back"
    assert_closed(pair, sender.send_messages, message)


def test_nothing_is_left_after_close(pair: Pair) -> None:
    """No thread and no socket of pairbus outlives a pairing by more than a moment, after an outage with pings too."""
    queue = pair.queue()
    gc.collect()
    files = open_files()
    bus = pair.pairing(ping_primary_interval=0.5)
    senders = [bus.get_queue_sender(queue).__enter__() for _ in range(3)]

    def send(index: int) -> None:
        for _ in range(5):
            senders[index].send_messages(ServiceBusMessage("x"))

    for _ in range(2):
        threads = [threading.Thread(target=send, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if is_up(pair.primary):
            pair.primary.kill()
    wait_until(lambda: any(name.startswith("pairbus-ping") for name in pairbus_threads()))
    bus.close()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)
    wait_until(lambda: gc.collect() is not None and open_files() <= files, 3, open_files)


def test_fifty_pairings_leak_nothing(pair: Pair) -> None:
    """Opened, used and closed 50 times: as many threads and files as before, and pairings are not kept alive. (Two have
    been seen to be, now and then, and nobody knows yet by whom; a leak would be of all fifty.)"""
    queue = pair.queue()
    made: list[weakref.ref[PairedNamespace]] = []

    def cycle() -> None:
        with pair_namespaces(
            pair.primary_namespace(), pair.secondary_namespace(), PairingOptions(backlog_queue_count=2)
        ) as bus:
            made.append(weakref.ref(bus))
            bus.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))

    def alive() -> list[PairedNamespace]:
        gc.collect()
        return [bus for each in made if (bus := each()) is not None]

    cycle()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)
    gc.collect()
    files, threads = open_files(), threading.active_count()
    with ThreadPoolExecutor(10) as pool:  # closing takes the SDK half a second
        for done in [pool.submit(cycle) for _ in range(50)]:
            done.result()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)
    wait_until(lambda: gc.collect() is not None and open_files() <= files, 3, open_files)
    assert threading.active_count() <= threads
    assert len(made) == 51
    wait_until(lambda: len(alive()) <= 3, 10, alive)
    assert pair.arrived(queue) == 51


# --- halves ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["primary", "secondary"])
def test_half_a_close_faults_the_other_half_in_time(pair: Pair, half_second: float, closed: str) -> None:
    """One half closed and the other not within 5 s: the other is faulted, with an error that names both."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    other = bus.secondary if closed == "primary" else bus.primary
    began = time.monotonic()
    getattr(bus, closed).close()
    assert_closed(pair, sender.send_messages, ServiceBusMessage("x"))
    assert other.error is None or time.monotonic() - began >= half_second - 0.1
    wait_until(lambda: other.error)
    assert time.monotonic() - began >= half_second - 0.1
    assert isinstance(other.error, PairedNamespaceClosedError)
    error = assert_closed(pair, sender.send_messages, ServiceBusMessage("x"))
    assert str(error) == str(other.error)
    assert error is not other.error, "each caller has one of its own"
    assert other.role in str(error)
    assert not other.closed
    assert not bus.status().closed
    (event,) = wait_until(lambda: pair.told("half faulted"))
    assert event.details["half"] == other.role
    bus.close()
    assert bus.status().closed


def test_closing_the_other_half_in_time_is_a_close(pair: Pair) -> None:
    """Both halves closed within 5 s: the pairing is closed, and nothing is faulted, then or later."""
    bus = pair.pairing()
    bus.primary.close()
    bus.secondary.close()
    assert bus.status().closed
    assert bus.secondary.error is None
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)
    assert not pair.told("half faulted")
    assert len(pair.told("pairing closed")) == 1


def test_closing_the_pairing_after_a_half_is_a_close(pair: Pair) -> None:
    """`with` around a pairing of which the program has closed one half: no fault."""
    with pair.pairing() as bus:
        bus.secondary.close()
    assert bus.primary.error is None
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)
    assert not pair.told("half faulted")


@pytest.mark.parametrize("half", ["primary", "secondary"])
def test_a_faulted_half_raises_its_error_from_then_on(pair: Pair, half: str) -> None:
    """Every use raises the error that it was faulted with; the first fault counts; close still works."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    fault = RuntimeError("it broke")
    getattr(bus, half).fault(fault)
    getattr(bus, half).fault(RuntimeError("again"))
    for use, args in ((sender.send_messages, (ServiceBusMessage("x"),)), (bus.get_queue_sender, (queue,))):
        with pytest.raises(RuntimeError, match="it broke") as raised:
            use(*args)
        assert raised.value is not fault, "each caller has one of its own"
    (event,) = wait_until(lambda: pair.told("half faulted"))
    assert event.details == {"half": half, "error": "RuntimeError: it broke"}
    assert "it broke" in repr(bus)
    bus.close()
    assert_closed(pair, sender.send_messages, ServiceBusMessage("x"))


@pytest.mark.parametrize("given", [None, "text", OSError, KeyboardInterrupt("it broke")], ids=repr)
def test_a_half_is_faulted_with_an_exception_only(pair: Pair, given: Any) -> None:
    """Anything else could not be raised by sends: it is refused, and the pairing goes on as if nothing was said."""
    queue = pair.queue()
    bus = pair.pairing()
    with pytest.raises(TypeError, match=r"fault\(\) takes the exception that sends are to raise, .* not a \w+$"):
        bus.secondary.fault(given)
    assert bus.ended is None
    assert not bus.closing.is_set()
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("sent"))
    assert pair.bodies(queue) == ["sent"]
    assert not pair.told("half faulted")


@pytest.mark.parametrize("end", ["closed", "faulted"])
def test_a_pairing_that_cannot_be_used_does_not_ping(pair: Pair, end: str) -> None:
    """Half closed or faulted, nobody could use what a ping finds out: the pings stop, nothing is billed for them."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=0.5)
    pair.fail_over(bus.get_queue_sender(queue), bus)
    assert f"pairbus-ping {queue}" in pairbus_threads()
    bus.secondary.close() if end == "closed" else bus.secondary.fault(RuntimeError("it broke"))
    wait_until(lambda: f"pairbus-ping {queue}" not in pairbus_threads(), 1, pairbus_threads)


# --- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_pairing_and_its_senders_cannot_be_pickled(pair: Pair) -> None:
    """Pickling raises TypeError and says where to open one instead."""
    bus = pair.pairing()
    for each in (bus, bus.get_queue_sender("orders")):
        with pytest.raises(TypeError, match="pair_namespaces where it is used"):
            pickle.dumps(each)


def test_use_after_a_fork_is_refused_and_harms_nobody(pair: Pair, tmp_path: Path) -> None:
    """In a forked child every use says what to do, closing there leaves the parent's connections alone."""
    queue = pair.queue()
    script = tmp_path / "forks.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from functools import partial
            from azure.servicebus import ServiceBusMessage
            from pairbus import Namespace, PairingError, PairingOptions, pair_namespaces

            first, second, queue, name, ca1, ca2 = sys.argv[1:]
            bus = pair_namespaces(
                Namespace.from_connection_string(first, name=name, ca_file=ca1),
                Namespace.from_connection_string(second, name="backup", ca_file=ca2),
                PairingOptions(backlog_queue_count=2, failover_interval=0, send_timeout=5),
            )
            sender = bus.get_queue_sender(queue).__enter__()
            sender.send_messages(ServiceBusMessage("before"))
            pool = sender._entity.pool
            pool.give_back(connection := pool.take())
            bus._lock.acquire()  # as another thread may hold it at a fork: nobody waits for it there
            child = os.fork()
            if child:
                bus._lock.release()
            else:
                said = []
                try:
                    with bus:
                        pass
                except PairingError as error:
                    said.append(str(error))
                try:
                    with sender:
                        pass
                except PairingError as error:
                    said.append(str(error))
                try:
                    sender.send_messages(ServiceBusMessage("child"))
                except PairingError as error:
                    said.append(str(error))
                for use in (bus.status, *(partial(half.fault, OSError()) for half in (bus.primary, bus.secondary))):
                    try:
                        use()
                    except PairingError as error:
                        said.append(str(error))
                sender.close()
                bus.primary.close()
                bus.secondary.close()
                bus.close()
                bus.__exit__(None, None, None)
                assert len(said) == 6 and len(set(said)) == 1, said
                assert bus.ended is None and not bus.closing.is_set() and not bus.primary.closed
                print(said[0], flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            sender.send_messages(ServiceBusMessage("after"))
            assert pool.take() is connection, "the parent's connection has survived"
            pool.give_back(connection)
            assert bus.status().entities[queue].sent == 2
            bus.close()
            """
        )
    )
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            pair.primary.connection_string,
            pair.secondary.connection_string,
            queue,
            pair.name,
            pair.primary.ca_file,
            pair.secondary.ca_file,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "fork" in done.stdout
    assert "Call pair_namespaces in the process that sends" in done.stdout
    assert pair.bodies(queue) == ["before", "after"]


# --- what is refused before anything begins --------------------------------------------------------------------------


def test_a_namespace_cannot_be_its_own_backlog(pair: Pair) -> None:
    """Primary and secondary on one host are refused, whatever their names and the host's spelling."""
    twin = Namespace.from_connection_string(pair.primary.connection_string, name="other", ca_file=pair.primary.ca_file)
    with pytest.raises(OptionError, match="same namespace"):
        pair.pairing(secondary=twin)
    upper = Namespace("CONTOSO.servicebus.windows.net", credential=twin.credential)
    lower = Namespace("contoso.servicebus.windows.net", credential=twin.credential)
    with pytest.raises(OptionError, match="same namespace"):
        pair_namespaces(upper, lower)


def test_wrong_arguments_are_refused_by_name_and_type(pair: Pair) -> None:
    """A connection string where a Namespace belongs, and a dict where PairingOptions belong; no secret is quoted."""
    secret = pair.primary.connection_string
    good = pair.secondary_namespace()
    for args, name in (((secret, good), "primary"), ((good, secret), "secondary")):
        with pytest.raises(OptionError, match=rf"{name} must be a Namespace, not str") as raised:
            pair_namespaces(*args)
        assert secret not in str(raised.value)
    with pytest.raises(OptionError, match="options must be PairingOptions, not dict"):
        pair_namespaces(pair.primary_namespace(), good, {"failover_interval": 1})  # type: ignore[arg-type]


def test_a_sender_needs_the_name_of_an_entity(pair: Pair) -> None:
    """No name, no sender: ValueError, before anything is opened."""
    bus = pair.pairing()
    for name in (None, "", "/", "  ", 3):
        with pytest.raises(ValueError, match="name of a queue or topic"):
            bus.get_queue_sender(name)
    assert bus.status().entities == {}
