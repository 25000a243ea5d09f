"""Deadlines of a call: what does not answer is cut in time, and a caller's time-out is checked."""

from __future__ import annotations

import time
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import BacklogUnavailableError
from pairbus.sending.sdk.connection_patches import socket_of
from tests.support.pairing import SLACK, Pair, Sending, entity_of, idle_connection


def test_an_entity_that_is_found_well_and_fails_again_holds_no_caller(pair: Pair) -> None:
    """Pings by attach succeed, sends fail, the secondary is silent: the call still ends, with its message."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=2, ping="attach", ping_primary_interval=1)
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("fine"))
        pair.secondary.pause()
        pair.primary.faults.reject("amqp:internal-error", queue)
        message = ServiceBusMessage("nowhere")
        begun = time.monotonic()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - which of the two ends it first is a matter of time
            sender.send_messages(message)
        assert time.monotonic() - begun < 2 * 2 + SLACK
        assert raised.value.messages == [message]  # type: ignore[attr-defined]


def test_a_call_that_the_sdk_does_not_bound_is_cut(pair: Pair) -> None:
    """The SDK waits for ever, as it does after answers that it does not understand: the guard ends it in time."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=6, backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    connection = idle_connection(entity_of(bus, queue).pool)
    sock = socket_of(connection.sender)

    def wait_for_ever(message: Any, timeout: float) -> None:
        sock.settimeout(None)
        while sock.recv(1000):
            pass
        raise ConnectionError("cut")

    connection.sender.send_messages = wait_for_ever
    sending = Sending(sender, ServiceBusMessage("parked"))
    sending.join(60)
    assert not sending.is_alive()
    assert sending.error is None
    assert "No answer to a send within 6 s" in (bus.status().entities[queue].last_error or "")
    assert pair.parked_bodies() == ["parked"]


def test_an_entity_that_comes_and_goes_is_tried_twice_and_then_parked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found well each time the message is about to be parked, and down each time it is sent: the backlog gets it."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    entity = entity_of(bus, queue)
    tries = []
    send = sender._to_primary

    def back(parcel: Any) -> bool:
        entity.health = entity.health.ping_answered(time.monotonic())
        return True

    def counted(*args: Any) -> bool:
        tries.append(args)
        return bool(send(*args))

    monkeypatch.setattr(sender, "_is_back", back)
    monkeypatch.setattr(sender, "_to_primary", counted)
    pair.primary.kill()
    sender.send_messages(ServiceBusMessage("parked"))
    assert len(tries) == 2
    assert pair.parked_bodies() == ["parked"]


def test_a_short_time_out_of_one_caller_takes_no_queue_from_the_others(pair: Pair) -> None:
    """A time-out too short to open a link says nothing about a backlog queue."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    with pytest.raises(BacklogUnavailableError):
        sender.send_messages(ServiceBusMessage("in a hurry"), timeout=0.01)
    assert all(each.in_rotation for each in bus.status().queues.values())
    sender.send_messages(ServiceBusMessage("parked"))
    assert pair.parked_bodies() == ["parked"]


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_a_time_out_may_be_longer_than_a_thread_can_wait(pair: Pair, timeout: float) -> None:
    """As long as anybody likes means for ever."""
    queue = pair.queue()
    sender = pair.pairing().get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("sent"), timeout=timeout)
    assert pair.bodies(queue) == ["sent"]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_bad_time_out_is_refused_with_the_message(pair: Pair, timeout: float) -> None:
    """The SDK's error, and whose it is."""
    message = ServiceBusMessage("unsent")
    sender = pair.pairing().get_queue_sender(pair.queue())
    with pytest.raises(ValueError, match=r"The timeout must be greater than 0\.") as raised:
        sender.send_messages(message, timeout=timeout)
    assert raised.value.messages == [message]  # type: ignore[attr-defined]


def test_a_callers_time_out_may_be_longer_than_the_usual_one(pair: Pair) -> None:
    """An answer after 2.5 s, with a `send_timeout` of 1 s and a `timeout` of 30 s: accepted once, and no outage."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=1)
    with bus.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("opens the link"), timeout=30)
        pair.primary.faults.latency(2.5, queue)
        sender.send_messages(ServiceBusMessage("slow"), timeout=30)
        pair.primary.faults.clear()
        assert bus.status().entities[queue].state == "available"
    assert pair.count(pair.primary, queue) == 2
