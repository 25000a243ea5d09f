"""Limits of a drain: messages and bytes in flight, and locks that never end while a message is held."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import LinkError, Receiver, Sender
from pairbus.syphon.drain.drain_pass import DrainPass
from pairbus.syphon.drain.in_flight import InFlightMessage
from tests.support.backlog import Backlog, encoded, numbered
from tests.support.pairing import Pair

#: The shortest that Service Bus allows.
LOCK = timedelta(seconds=10)


class Watch:
    """The messages, bytes and credit of a drain, counted from outside."""

    def __init__(self) -> None:
        #: How many messages might still come each time that more were asked for; the most that came to or might.
        self.credits: list[int] = []
        self.most_messages = 0
        #: The most bytes of messages that were kept at a time.
        self.most_bytes = 0
        #: What the backlog said of settlements that came too late.
        self.locks_lost: list[str] = []
        self._kept: list[InFlightMessage] = []

    def asked(self, receiver: Receiver) -> None:
        self.credits.append(receiver.credit)
        self.most_messages = max(self.most_messages, receiver.credit + len(receiver.unsettled()))

    def came(self, message: InFlightMessage) -> None:
        self._kept = [each for each in (*self._kept, message) if each.message]
        self.most_bytes = max(self.most_bytes, sum(len(each.message) for each in self._kept))

    def confirmed(self, error: LinkError | None) -> None:
        if error is not None:
            self.locks_lost.append(str(error))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Record the credit, messages and confirmations of the drains of a test."""
    made = Watch()
    allow, on_message, on_confirmed = Receiver.allow, DrainPass.on_message, DrainPass.on_confirmed

    def allowed(self: Receiver, more: int) -> None:
        allow(self, more)
        if isinstance(self._events, DrainPass):
            made.asked(self)

    def came(self: DrainPass, delivery: Any, raw: bytes) -> InFlightMessage:
        message = on_message(self, delivery, raw)
        made.came(message)
        return message

    def confirmed(self: DrainPass, message: InFlightMessage, state: int, error: LinkError | None) -> None:
        made.confirmed(error)
        on_confirmed(self, message, state, error)

    monkeypatch.setattr(Receiver, "allow", allowed)
    monkeypatch.setattr(DrainPass, "on_message", came)
    monkeypatch.setattr(DrainPass, "on_confirmed", confirmed)
    return made


# --- messages and bytes --------------------------------------------------------------------------------------------


def test_messages_in_flight_stay_within_the_window(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """Messages received and credit together never exceed the window, and all of it is used."""
    queue = pair.queue()
    backlog.park(queue, *numbered(300))
    pair.primary.faults.latency(0.02, queue)
    summary = backlog.drain(window_messages=50)
    assert (summary.delivered, summary.error) == (300, None)
    assert watch.most_messages == 50


def test_bytes_in_memory_stay_within_the_window(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """The socket is paused while a destination takes nothing: memory follows the window, not the queue."""
    queue = pair.queue()
    backlog.park(queue, *(encoded(b"x" * 200_000, id=f"m{number}") for number in range(40)))
    pair.primary.faults.black_hole(queue)
    summary = backlog.drain(window_bytes=1_000_000, answer_timeout=6.0)
    assert (summary.received, summary.held, summary.error) == (40, 40, None)
    assert 1_000_000 < watch.most_bytes < 3_000_000
    pair.primary.faults.clear()
    assert backlog.drain(window_bytes=1_000_000).delivered == 40
    assert watch.most_bytes < 3_000_000


def test_credit_stays_within_the_window_of_bytes(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """Once the size of messages is known, credit is granted for those that have room; no others are locked."""
    queue = pair.queue()
    backlog.park(queue, *(encoded(b"x" * 20_000, id=f"m{number}") for number in range(150)))
    summary = backlog.drain(window_bytes=100_000)
    assert (summary.delivered, summary.error) == (150, None)
    _, *others = watch.credits
    assert 1 <= max(others) <= 5


# --- locks ---------------------------------------------------------------------------------------------------------


def test_held_messages_are_given_back_before_their_locks_end(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """A long pass over other messages outlasts the locks of held ones: none of them is lost."""
    ill, well = pair.queue(), pair.queue()
    backlog.make(lock_duration=LOCK)
    backlog.park(ill, *numbered(3))
    backlog.park(well, *numbered(24))
    pair.primary.faults.quota_exceeded(ill)
    summary = backlog.drain(max_rate=2.0, budget=60.0)
    assert (summary.delivered, summary.held, summary.in_doubt, summary.error) == (24, 3, 0, None)
    assert summary.seconds > LOCK.total_seconds() + 1
    assert watch.locks_lost == []
    pair.primary.faults.clear()
    assert backlog.drain().delivered == 3
    assert pair.bodies(ill) == ["m0", "m1", "m2"]
    assert pair.arrived(well) == 24


def test_a_pass_that_receives_only_held_messages_ends(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """A destination was busy once, and more messages are held than are received in a lock's time: the pass ends without
    a budget, and the next one delivers."""
    queue = pair.queue()
    backlog.make(lock_duration=LOCK)
    backlog.park(queue, *numbered(150))
    pair.primary.faults.busy(queue, count=1)
    began = time.monotonic()
    summary = backlog.drain(max_rate=20.0, budget=None, stop=lambda: time.monotonic() > began + 60.0)
    assert (summary.delivered, summary.held, summary.empty, summary.error) == (150, 0, True, None)
    assert watch.locks_lost == []


def test_waiting_messages_are_given_back_before_their_locks_end(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """A destination opens no link: its messages are given back in time, and none arrives twice."""
    queue = pair.queue()
    backlog.make(lock_duration=LOCK)
    backlog.park(queue, *numbered(6))
    pair.primary.faults.black_hole(queue)
    summary = backlog.drain(answer_timeout=30.0)
    assert (summary.delivered, summary.held, summary.in_doubt) == (0, 6, 0)
    (held,) = summary.held_for
    assert "more slowly than their locks last" in held.reason
    assert watch.locks_lost == []
    pair.primary.faults.clear()
    assert backlog.drain().delivered == 6
    assert pair.bodies(queue) == [f"m{number}" for number in range(6)]


def test_unanswered_messages_are_given_back_before_their_locks_end(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """A destination answers nothing: its messages are in doubt, and given back in time."""
    queue = pair.queue()
    backlog.make(lock_duration=2 * LOCK)  # given back when three seconds of it are left
    backlog.park(queue, *numbered(6))
    pair.primary.faults.lost_accept(queue)
    summary = backlog.drain(answer_timeout=30.0)
    assert (summary.delivered, summary.held, summary.in_doubt) == (0, 6, 6)
    assert watch.locks_lost == []
    assert len(backlog.journal.of("in doubt")) == 6
    pair.primary.faults.clear()
    assert backlog.drain().delivered == 6


def test_a_slow_destination_gets_no_message_twice(pair: Pair, backlog: Backlog, watch: Watch) -> None:
    """A session takes longer than its messages may wait: answers to those in flight are waited for, the rest follows in
    the next pass, and nothing is in doubt."""
    slow, well = pair.queue(), pair.queue()
    backlog.make(lock_duration=2 * LOCK)
    backlog.park(well, *numbered(300))  # so that much is let come
    backlog.park(slow, *(encoded(b"x" * 110_000, id=f"s{number}", session="one") for number in range(16)))
    pair.primary.faults.latency(0.5, slow)  # a second for each of them, and twelve are the time to be sent in
    summary = backlog.drain(budget=90.0)
    assert (summary.delivered, summary.in_doubt, summary.error, summary.empty) == (316, 0, None, True)
    assert watch.locks_lost == []
    pair.primary.faults.clear()
    assert (pair.arrived(slow), pair.arrived(well)) == (16, 300)


# --- held messages -------------------------------------------------------------------------------------------------


def test_too_many_held_messages_end_a_drain(pair: Pair, backlog: Backlog) -> None:
    """The queue is not called empty, as messages behind them were not received; the error names the destination."""
    ill, well = pair.queue(), pair.queue()
    backlog.park(ill, *numbered(30))
    backlog.park(well, *numbered(5))
    pair.primary.faults.busy(ill)
    summary = backlog.drain(held_messages=10, window_messages=10)
    assert (summary.delivered, summary.in_doubt, summary.empty) == (0, 0, False)
    assert 10 <= summary.held < 30
    (held,) = summary.held_for
    assert held.destination == ill
    said = summary.error or ""
    assert "messages are held back" in said
    assert ill in said
    assert "messages behind them were not checked" in said
    assert backlog.depth() == 35
    pair.primary.faults.clear()
    summary = backlog.drain(held_messages=10, window_messages=10)
    assert (summary.delivered, summary.empty, summary.error) == (35, True, None)


def test_a_defect_while_a_link_is_opened_holds_its_messages_and_no_others(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are held at once, not when their locks end, and the reason names the exception."""
    ill, well = pair.queue(), pair.queue()
    for number in range(5):
        backlog.park(ill, encoded(f"ill{number}"))
        backlog.park(well, encoded(f"well{number}"))
    sender = Connection.sender

    async def defective(self: Connection, address: str, *others: Any, **more: Any) -> Sender:
        if address == ill:
            raise ValueError("a defect of ours")
        return await sender(self, address, *others, **more)

    with monkeypatch.context() as defect:
        defect.setattr(Connection, "sender", defective)
        summary = backlog.drain(budget=60.0)
    assert (summary.delivered, summary.held, summary.in_doubt, summary.error) == (5, 5, 0, None)
    (held,) = summary.held_for
    assert held.destination == ill
    assert "ValueError: a defect of ours" in held.reason
    assert summary.seconds < 20  # locks last a minute, and are given back after the better part of it
    assert pair.bodies(well) == [f"well{number}" for number in range(5)]
    assert backlog.drain().delivered == 5
    assert pair.bodies(ill) == [f"ill{number}" for number in range(5)]
