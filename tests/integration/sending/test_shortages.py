"""A process that is short of threads, memory or sockets, or has a broken log handler: no entity is blamed for it."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import (
    BacklogUnavailableError,
)
from tests.support.pairing import Pair, entity_of, state_of
from tests.support.waiting import wait_until


class Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk of the log is full")


def test_a_broken_log_handler_breaks_neither_sends_nor_pings(pair: Pair) -> None:
    """Failover, parking and failback go on; no accepted send raises."""
    handler = Broken()
    logging.getLogger("pairbus").addHandler(handler)
    try:
        queue = pair.queue()
        bus = pair.pairing(ping_primary_interval=1)
        sender = bus.get_queue_sender(queue)
        with pair.primary.faults.during("unavailable", queue):
            sender.send_messages(ServiceBusMessage("parked"))
            wait_until(lambda: pair.told("ping failed"))
        wait_until(lambda: state_of(bus, queue) == "available")
        sender.send_messages(ServiceBusMessage("sent"))
    finally:
        logging.getLogger("pairbus").removeHandler(handler)
    assert (pair.bodies(queue), pair.parked_bodies()) == (["sent"], ["parked"])


def test_without_a_thread_to_ping_nothing_fails_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread to ping it, an entity does not fail over; once threads can be started again, it does."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("pairbus-ping"):
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pair.primary.faults.during("unavailable", queue):
        with pytest.raises(RuntimeError) as raised:
            sender.send_messages(ServiceBusMessage("unsent"))
        assert len(raised.value.messages) == 1  # type: ignore[attr-defined]
        assert state_of(bus, queue) == "available"
        monkeypatch.setattr(threading.Thread, "start", real)
        sender.send_messages(ServiceBusMessage("parked"))
    assert pair.parked_bodies() == ["parked"]


@pytest.mark.parametrize("shortage", [RuntimeError("can't start new thread"), MemoryError()], ids=["thread", "memory"])
def test_a_ping_that_this_process_could_not_make_says_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, shortage: Exception
) -> None:
    """No thread or no memory for it: the entity is neither back nor unusable, and the next ping finds it."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=1)
    bus.get_queue_sender(queue)
    entity = entity_of(bus, queue)

    def short() -> None:
        raise shortage

    with monkeypatch.context() as patched:
        patched.setattr(entity, "_ping", short)
        pair.declare_down(bus, queue)
        wait_until(lambda: pair.told("ping failed"))
        assert state_of(bus, queue) == "failed over"
    wait_until(lambda: state_of(bus, queue) == "available")
    assert not pair.told("entity unusable")


@contextmanager
def out_of(number: int) -> Iterator[None]:
    """No socket can be had in this process."""

    def refuse(*args: Any, **named: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "create_connection", refuse)
        yield


NUMBERS = pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS], ids=errno.errorcode.__getitem__
)


@NUMBERS
def test_without_a_socket_to_be_had_nothing_fails_over(pair: Pair, number: int) -> None:
    """No file descriptors or no memory: the error and the messages are the caller's, a ping says nothing, and an open
    link is used as ever."""
    queue = pair.queue()
    bus = pair.pairing(ping_primary_interval=1)
    sender = bus.get_queue_sender(queue)
    message = ServiceBusMessage("unsent")
    with out_of(number):
        with pytest.raises(ServiceBusError, match=re.escape(os.strerror(number))) as raised:
            sender.send_messages(message)
        assert raised.value.messages == [message]  # type: ignore[attr-defined]
        with pytest.raises(ServiceBusError):
            sender.__enter__()
        assert (state_of(bus, queue), bus.status().entities[queue].last_error) == ("available", None)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    with out_of(number):
        sender.send_messages(ServiceBusMessage("2"))
        pair.declare_down(bus, queue)
        wait_until(lambda: pair.told("ping failed"))
        assert state_of(bus, queue) == "failed over"
    wait_until(lambda: state_of(bus, queue) == "available")
    assert not pair.told("entity unusable")
    assert (pair.bodies(queue), pair.parked()) == (["1", "2"], 0)


@NUMBERS
def test_without_a_socket_to_be_had_no_queue_leaves_the_rotation(pair: Pair, number: int) -> None:
    """The first queue says nothing about itself, and no other would do better: the error is raised as it is."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=3)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    given = [ServiceBusMessage("unsent"), ServiceBusMessage("nor this")]
    with out_of(number), pytest.raises(ServiceBusError, match=re.escape(os.strerror(number))) as raised:
        sender.send_messages(given)
    assert not isinstance(raised.value, BacklogUnavailableError)
    assert raised.value.messages == given  # type: ignore[attr-defined]
    assert all(found.in_rotation for found in bus.status().queues.values())
    assert not pair.told("queue left rotation")
    sender.send_messages(ServiceBusMessage("parked"), timeout=60)
    assert pair.parked_bodies() == ["parked"]
