"""Closing a pairing or a sender while sends run: what is accepted, what is raised, and no connection is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import PairedNamespace, PairedNamespaceClosedError, PairedSender
from tests.support.pairing import (
    Pair,
    Sending,
    entity_of,
    idle_connection,
    is_closed,
    on_parking,
    pairbus_threads,
    state_of,
    watchdog_of,
)
from tests.support.waiting import wait_until


@pytest.mark.parametrize("open_first", [True, False], ids=["under way", "opening"])
def test_nothing_new_is_begun_once_the_pairing_is_closed(pair: Pair, open_first: bool) -> None:
    """A send that hangs when the pairing closes ends soon after, raises with its message, and is not parked later."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)
    if open_first:
        sender.send_messages(ServiceBusMessage("fine"))
    pair.primary.pause()
    message = ServiceBusMessage("late")
    sending = Sending(sender, message)
    wait_until(lambda: watchdog_of(bus).running_calls)
    bus.close()
    sending.join(50)
    assert not sending.is_alive()
    assert sending.error.messages == [message]
    assert pair.parked() == 0
    assert state_of(bus, queue) == "available", "what the pairing's end cut off says nothing about the entity"
    wait_until(lambda: not pairbus_threads(), 20, pairbus_threads)


def close_during_a_send(
    pair: Pair, bus: PairedNamespace, queue: str, sender: PairedSender, close: Callable[[], None]
) -> None:
    """Close while a send waits for an answer that takes half a second; the send ends well."""
    with pair.primary.faults.during("latency", queue, delay=0.5):
        sending = Sending(sender, ServiceBusMessage("slow"))
        wait_until(lambda: watchdog_of(bus).running_calls or not sending.is_alive())
        close()
        sending.join(50)
    assert sending.error is None


def test_a_send_that_ends_well_while_the_pairing_closes_leaves_no_connection(pair: Pair) -> None:
    """Its answer takes a while, `close` waits for it: the message has arrived, and its connection is closed too."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=30)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pool = entity_of(bus, queue).pool
    connection = idle_connection(pool)
    close_during_a_send(pair, bus, queue, sender, bus.close)
    assert pool.idle_count == 0
    wait_until(lambda: is_closed(connection.sender), why="the connection is left open")
    assert pair.bodies(queue) == ["before", "slow"]


def test_a_close_while_a_list_is_parked_leaves_the_rest_with_its_caller(pair: Pair) -> None:
    """The messages that a backlog queue took are parked; the error has exactly the others, and says that it closed."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    on_parking(bus, after=lambda path: bus.close())
    messages = [ServiceBusMessage(f"{number}" + "x" * 100_000) for number in range(5)]
    with pytest.raises(PairedNamespaceClosedError) as raised:
        sender.send_messages(messages)
    rest = raised.value.messages  # type: ignore[attr-defined]
    assert rest == messages[len(messages) - len(rest) :]
    assert [body[0] for body in pair.parked_bodies()] == [str(number) for number in range(5 - len(rest))]
    assert 0 < len(rest) < 5


def test_an_error_that_cannot_be_made_again_is_raised_as_it_is(pair: Pair) -> None:
    """A half is faulted with an exception of a caller's own class, which cannot be made again without its arguments."""

    class Odd(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one + two)

    bus = pair.pairing()
    sender = bus.get_queue_sender(pair.queue())
    bus.primary.fault(Odd("broke", "n"))
    with pytest.raises(Odd, match="broken"):
        sender.send_messages(ServiceBusMessage("x"))


def test_a_close_that_was_interrupted_can_be_done_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in `close` leaves nothing that could not be closed."""
    bus = pair.pairing()
    real = watchdog_of(bus).stop

    def interrupted(deadline: float) -> None:
        monkeypatch.setattr(watchdog_of(bus), "stop", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(watchdog_of(bus), "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.close()
    bus.close()
    wait_until(lambda: not pairbus_threads(), 10, pairbus_threads)
    assert len(pair.told("pairing closed")) == 1


def test_a_closed_pairing_says_whose_messages_it_refuses(pair: Pair) -> None:
    """Each caller gets an error of its own with its own messages."""
    sender = pair.pairing().get_queue_sender(pair.queue())
    pair.close_pairings()
    errors = []
    for body in ("a", "b"):
        message = ServiceBusMessage(body)
        with pytest.raises(PairedNamespaceClosedError) as raised:
            sender.send_messages(message)
        assert raised.value.messages == [message]  # type: ignore[attr-defined]
        assert raised.value.secondary == pair.secondary_namespace().host
        errors.append(raised.value)
    assert errors[0] is not errors[1]


def test_a_sender_that_is_closed_in_the_midst_of_its_send_leaves_no_connection(pair: Pair) -> None:
    """The last one to an entity: what it was sending on is closed when its answer has come; another opens anew."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=30)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pool = entity_of(bus, queue).pool
    connection = idle_connection(pool)
    close_during_a_send(pair, bus, queue, sender, sender.close)
    assert pool.idle_count == 0
    wait_until(lambda: is_closed(connection.sender), why="the connection is left open")
    other = bus.get_queue_sender(queue)
    other.send_messages(ServiceBusMessage("after"))
    assert pool.idle_count == 1, "it is kept for a sender that is open"
    assert pair.bodies(queue) == ["before", "slow", "after"]
