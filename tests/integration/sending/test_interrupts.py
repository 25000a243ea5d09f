"""Ctrl-C in a send: the error has the messages that were not accepted, and nothing is left behind."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.runtime import bounded_call
from pairbus.sending import connections
from pairbus.sending.connections import SenderConnection
from tests.support.pairing import Pair, entity_of, is_closed, pairbus_threads, watchdog_of
from tests.support.waiting import wait_until


@pytest.mark.parametrize("when", ["open", "opening", "parking"])
def test_a_send_that_is_interrupted_leaves_nothing_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Ctrl-C in a send: it carries the message, its connection is not used again, and the next send goes well."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    if when == "open":
        sender.send_messages(ServiceBusMessage("before"))
    elif when == "parking":
        pair.declare_down(bus, queue)
    used: list[SenderConnection] = []

    def interrupted(connection: SenderConnection, *args: Any) -> None:
        used.append(connection)
        raise KeyboardInterrupt

    message = ServiceBusMessage("interrupted")
    with monkeypatch.context() as patched:
        patched.setattr(SenderConnection, "send", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            sender.send_messages(message)
    assert raised.value.messages == [message]  # type: ignore[attr-defined]
    assert [connection.was_cut for connection in used] == [True]
    sender.send_messages(ServiceBusMessage("after"))
    found = pair.parked_bodies() if when == "parking" else pair.bodies(queue)
    assert found[-1] == "after"


@pytest.mark.parametrize("when", ["being opened", "opened"])
def test_a_sender_whose_opening_is_interrupted_leaves_no_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Ctrl-C while a sender is opened: its connection is not kept, and closed, if need be when it is open at last."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    used: list[SenderConnection] = []
    as_ever = SenderConnection.open

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    def interrupted(connection: SenderConnection, timeout: float) -> None:
        used.append(connection)
        as_ever(connection, timeout)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SenderConnection, "open", interrupted)
        if when == "being opened":
            patched.setattr(connections, "threading", SimpleNamespace(**{**vars(threading), "Event": Interrupted}))
        with pytest.raises(KeyboardInterrupt), bus.get_queue_sender(queue):
            raise AssertionError("not reached")
    (connection,) = used
    assert connection.was_cut
    assert entity_of(bus, queue).pool.idle_count == 0
    wait_until(lambda: is_closed(connection.sender), why="the connection is left open")
    bus.get_queue_sender(queue).send_messages(ServiceBusMessage("after"))
    assert pair.bodies(queue) == ["after"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_send_that_is_interrupted_when_it_is_parked_names_no_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Ctrl-C behind a backlog queue's answer: the error carries what was accepted nowhere, and that is nothing."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("before"))

    def interrupted(messages: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entity_of(bus, queue), "was_parked", interrupted)
    given = [ServiceBusMessage("parked") for _ in range(count)]
    with pytest.raises(KeyboardInterrupt) as raised:
        sender.send_messages(given[0] if count == 1 else given)
    assert raised.value.messages == []  # type: ignore[attr-defined]
    assert pair.parked_bodies() == ["before"] + ["parked"] * count


def test_a_send_that_is_interrupted_as_a_link_begins_to_open_leaves_nothing_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C just when the thread that opens has begun, to a peer that says nothing: it is cut as soon as can be."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            if self.name == "pairbus-open":
                raise KeyboardInterrupt

    pair.primary.pause()
    with monkeypatch.context() as patched:
        patched.setattr(bounded_call, "threading", SimpleNamespace(**{**vars(threading), "Thread": Interrupted}))
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                sender.send_messages(ServiceBusMessage("interrupted"))
    wait_until(lambda: pairbus_threads() == ["pairbus-events", "pairbus-watchdog"], 20, pairbus_threads)
    assert not watchdog_of(bus).running_calls
