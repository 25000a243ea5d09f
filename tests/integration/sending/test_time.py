"""No call takes longer than it may: against processes that are frozen, holes that swallow bytes, and the dead.

Upper bounds only, with slack: the machine that runs this may be busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus import BacklogUnavailableError, PairedNamespace, PairedSender
from tests.support.pairing import SLACK, Pair, pairbus_threads
from tests.support.waiting import wait_until

#: Long enough that a bound which is applied twice does not pass for one with slack.
TIMEOUT = 6.0


def took(call: Callable[[], Any]) -> tuple[float, BaseException | None]:
    """Return the seconds that a call took, and its error."""
    began = time.monotonic()
    try:
        call()
    except Exception as error:
        return time.monotonic() - began, error
    return time.monotonic() - began, None


def at_once(*calls: Callable[[], Any]) -> list[tuple[float, BaseException | None]]:
    """Several calls side by side."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(took, calls))


def paused(pair: Pair, *queues: str) -> None:
    pair.primary.pause()


def swallowed(pair: Pair, *queues: str) -> None:
    for queue in queues:
        pair.primary.faults.black_hole(queue)


SILENCE = pytest.mark.parametrize("silent", [paused, swallowed], ids=["paused", "black-hole"])


# --- the primary -----------------------------------------------------------------------------------------------------


@SILENCE
def test_a_send_to_a_silent_primary_ends_in_time(pair: Pair, silent: Callable[..., None]) -> None:
    """Before failover it raises, with an interval of 0 it is parked; both within the bound, with a link and without."""
    queues = [pair.queue() for _ in range(4)]
    patient = pair.pairing(send_timeout=TIMEOUT, failover_interval=3000)
    hasty = pair.pairing(send_timeout=TIMEOUT, failover_interval=0)
    senders = [bus.get_queue_sender(queue) for bus, queue in zip((patient, patient, hasty, hasty), queues, strict=True)]
    senders[0].__enter__()
    senders[2].__enter__()
    silent(pair, *queues)
    found = at_once(*(lambda s=sender: s.send_messages(ServiceBusMessage("x")) for sender in senders))
    for seconds, _ in found:
        assert seconds < TIMEOUT + SLACK
    assert [type(error) for _, error in found] == [OperationTimeoutError, OperationTimeoutError, type(None), type(None)]
    assert pair.parked() == 2
    states = [patient.status().entities[queue].state for queue in queues[:2]]
    states += [hasty.status().entities[queue].state for queue in queues[2:]]
    assert states == ["suspect", "suspect", "failed over", "failed over"]


@SILENCE
def test_the_timeout_argument_takes_the_place_of_the_option(pair: Pair, silent: Callable[..., None]) -> None:
    """A caller in a hurry waits no longer than that, with a link and without, however long `send_timeout` is."""
    linked, bare = pair.queue(), pair.queue()
    bus = pair.pairing(send_timeout=600, failover_interval=3000)
    senders = [bus.get_queue_sender(linked).__enter__(), bus.get_queue_sender(bare)]
    silent(pair, linked, bare)
    calls = [lambda s=sender: s.send_messages(ServiceBusMessage("x"), timeout=1) for sender in senders]
    for seconds, error in at_once(*calls):
        assert isinstance(error, OperationTimeoutError)
        assert seconds < 1 + SLACK


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_a_timeout_that_is_none_is_refused(pair: Pair, timeout: float) -> None:
    """As the SDK refuses it."""
    sender = pair.pairing().get_queue_sender("any")
    with pytest.raises(ValueError, match="greater than 0"):
        sender.send_messages(ServiceBusMessage("x"), timeout=timeout)


@SILENCE
def test_parked_at_once_when_failed_over(pair: Pair, silent: Callable[..., None]) -> None:
    """Sends after the failover do not wait for the primary at all."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    with bus.get_queue_sender(queue) as sender:
        silent(pair, queue)
        pair.declare_down(bus, queue)
        seconds, error = took(lambda: [sender.send_messages(ServiceBusMessage("x")) for _ in range(10)])
        assert error is None
        assert seconds < SLACK
    assert pair.parked() == 10


@SILENCE
def test_opening_a_sender_in_an_outage_does_not_raise(pair: Pair, silent: Callable[..., None]) -> None:
    """`with` on a sender to a primary that is silent goes on in time; what is sent in it is parked."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=1)
    silent(pair, queue)
    seconds, error = took(bus.get_queue_sender(queue).__enter__)
    assert error is None
    assert seconds < 1 + SLACK
    assert bus.status().entities[queue].state == "failed over"
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"), timeout=30)
    assert pair.parked() == 1


def test_opening_a_sender_to_the_dead_does_not_raise(pair: Pair) -> None:
    """Nor does it when connections are refused; before the interval is over the entity is only suspect."""
    queue = pair.queue()
    bus = pair.pairing(failover_interval=3000)
    pair.primary.kill()
    with bus.get_queue_sender(queue):
        assert bus.status().entities[queue].state == "suspect"


def send_until_parked(bus: PairedNamespace, sender: PairedSender, queue: str) -> None:
    """Send as a program that tries again does."""
    while bus.status().entities[queue].parked == 0:
        with suppress(ServiceBusError):  # before the failover
            sender.send_messages(ServiceBusMessage("x"))


def test_parked_within_the_interval_and_one_send(pair: Pair) -> None:
    """A dead primary: after failover_interval + send_timeout messages are parked, however the two compare."""
    short, whole = pair.queue(), pair.queue()
    # Sends that end before the interval is over raise; one that lasts longer than it is parked by itself.
    buses = [pair.pairing(failover_interval=2, send_timeout=2), pair.pairing(failover_interval=2, send_timeout=6)]
    senders = [bus.get_queue_sender(queue).__enter__() for bus, queue in zip(buses, (short, whole), strict=True)]
    pair.primary.kill()
    (first, one), (second, two) = at_once(
        lambda: send_until_parked(buses[0], senders[0], short),
        lambda: senders[1].send_messages(ServiceBusMessage("x")),
    )
    assert one is None
    assert two is None
    assert first < 2 + 2 + SLACK
    assert second < 2 + 6 + SLACK
    assert pair.parked() >= 2


# --- the secondary ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", [True, False], ids=["link", "no-link"])
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "black-hole"])
def test_parking_in_a_silent_secondary_ends_in_time(pair: Pair, paused: bool, linked: bool) -> None:
    """Neither namespace takes the message: an error carries it, within the bound."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    if linked:
        sender.send_messages(ServiceBusMessage("linked"))
    if paused:
        pair.secondary.pause()
    else:
        for path in bus.status().queues:
            pair.secondary.faults.black_hole(path)
    message = ServiceBusMessage("x")
    seconds, error = took(lambda: sender.send_messages(message, timeout=2))
    assert isinstance(error, BacklogUnavailableError)
    assert error.messages == [message]
    assert seconds < 2 + SLACK


def test_a_silent_backlog_queue_leaves_time_for_another(pair: Pair) -> None:
    """One backlog queue swallows everything: the message is in the other one, in the time of one send."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("first"))
    held = next(path for path, found in bus.status().queues.items() if found.parked)
    pair.secondary.faults.black_hole(held)
    seconds, error = took(lambda: sender.send_messages(ServiceBusMessage("second"), timeout=TIMEOUT))
    assert error is None
    assert seconds < TIMEOUT + SLACK
    assert not bus.status().queues[held].in_rotation
    pair.secondary.faults.clear()
    assert sorted(pair.parked_by_queue().values()) == [1, 1]


# --- the end ---------------------------------------------------------------------------------------------------


@SILENCE
def test_no_thread_is_left_behind(pair: Pair, silent: Callable[..., None]) -> None:
    """Links that could not be opened, sends that were cut, pings: all their threads end once the pairing is closed."""
    linked, bare = pair.queue(), pair.queue()
    bus = pair.pairing(send_timeout=0.7, ping_primary_interval=1, ping_timeout=60)
    senders = [bus.get_queue_sender(linked).__enter__(), bus.get_queue_sender(bare)]
    silent(pair, linked, bare)
    at_once(*(lambda s=sender: s.send_messages(ServiceBusMessage("x")) for sender in senders))
    wait_until(lambda: any(name.startswith("pairbus-open") for name in pairbus_threads()), why=pairbus_threads)
    assert any(name.startswith("pairbus-ping") for name in pairbus_threads())
    seconds, error = took(bus.close)
    assert error is None
    assert seconds < 5 + SLACK
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)


def test_threads_end_also_in_a_quiet_life(pair: Pair) -> None:
    """A pairing without trouble leaves nothing either, and no thread is kept for each connection."""
    queue = pair.queue()
    before = threading.active_count()
    bus = pair.pairing()
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))
        wait_until(lambda: pairbus_threads() == ["pairbus-events", "pairbus-watchdog"], why=pairbus_threads)
        assert threading.active_count() <= before + 2
    bus.close()
    wait_until(lambda: not pairbus_threads(), why=pairbus_threads)
