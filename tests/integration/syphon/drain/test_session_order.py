"""Messages of a session arrive in the order in which they were in the backlog queue."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from proton import symbol

from pairbus.domain.outcome import Rows
from pairbus.syphon.amqp.link import Sender
from pairbus.syphon.drain import flow_control
from pairbus.syphon.drain.in_flight import InFlightMessage
from tests.support.backlog import Backlog, Remembering, encoded
from tests.support.counting import (
    arrivals,
    assert_conserved,
    assert_in_order,
    dead_letters,
    ids,
    in_sessions,
    park_many,
    repeats,
)
from tests.support.pairing import Pair


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of messages in each transfer of a `Sender`."""
    carried: list[int] = []
    send, send_batch = Sender.send, Sender.send_batch

    def one(self: Sender, message: bytes, context: Any) -> None:
        if isinstance(context, InFlightMessage):
            carried.append(1)
        send(self, message, context)

    def many(self: Sender, head: bytes, messages: list[bytes], context: Any) -> None:
        carried.append(len(messages))
        send_batch(self, head, messages, context)

    monkeypatch.setattr(Sender, "send", one)
    monkeypatch.setattr(Sender, "send_batch", many)
    return carried


@pytest.mark.parametrize(
    "options",
    [{}, {"window_messages": 7}, {"window_messages": 1}, {"window_bytes": 2000}, {"max_rate": 4000.0}],
    ids=lambda options: " ".join(options) or "usual",
)
def test_many_sessions_interleaved(pair: Pair, backlog: Backlog, options: dict[str, Any]) -> None:
    """Each session in its order, each message once, and none in doubt, for any window."""
    queue = pair.queue()
    parked = in_sessions(20, 100 if not options else 10)
    park_many(backlog, queue, parked)
    summary = backlog.drain(**options)
    assert (summary.delivered, summary.error, summary.in_doubt) == (len(parked), None, 0)
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert_conserved(backlog, ids(parked), came)


@pytest.mark.parametrize("first", [1, 3, 20])
def test_a_small_send_window(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Waiting messages are not overtaken by later ones, and none is left waiting."""
    monkeypatch.setattr(flow_control, "FIRST_WINDOW", first)
    queue = pair.queue()
    parked = in_sessions(30, 10) + [encoded("x", id=f"free-{number}") for number in range(100)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.005, queue)
    summary = backlog.drain()
    assert (summary.delivered, summary.error, summary.held) == (len(parked), None, 0)
    assert_in_order(parked[:300], [each for each in arrivals(backlog, queue) if each.session is not None])


@pytest.mark.parametrize(
    ("fault", "parameters"),
    [
        ("busy", {"rate": 0.2, "count": 12}),
        ("busy", {"rate": 1.0, "count": 4}),
        ("reject", {"condition": "com.microsoft:timeout", "rate": 0.2, "count": 8}),
        ("reject", {"condition": "com.microsoft:session-lock-lost", "rate": 0.3, "count": 8}),
        ("internal_error", {"rate": 0.2, "count": 8}),
    ],
)
def test_a_destination_that_refuses_for_a_while(
    pair: Pair, backlog: Backlog, fault: str, parameters: dict[str, Any]
) -> None:
    """A refused message is sent again before any later one of its session; none arrives twice."""
    queue = pair.queue()
    parked = in_sessions(10, 40)
    park_many(backlog, queue, parked)
    getattr(pair.primary.faults, fault)(entity=queue, **parameters)
    for _ in range(20):
        summary = backlog.drain(retry_interval=0.01)
        assert summary.error is None
        if not summary.held:
            break
    pair.primary.faults.clear()  # by chance some of it may be left
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert_conserved(backlog, ids(parked), came)
    assert backlog.journal.of("in doubt") == []


def test_a_held_session_does_not_hold_up_others(pair: Pair, backlog: Backlog) -> None:
    """Sessions for a full destination wait; the same sessions for another destination go on."""
    full, well = pair.queue(), pair.queue()
    parked = in_sessions(5, 20)
    backlog.make()
    for message in parked:
        park_many(backlog, full, [message])
        park_many(backlog, well, [message])
    pair.primary.faults.quota_exceeded(full)
    assert backlog.drain().delivered == 100
    assert_in_order(parked, arrivals(backlog, well))
    pair.primary.faults.clear()
    assert backlog.drain().delivered == 100
    assert_in_order(parked, arrivals(backlog, full))


def test_a_poison_message_in_the_midst_of_a_session(pair: Pair, backlog: Backlog) -> None:
    """It is dead-lettered; those before and behind it arrive in their order."""
    queue = pair.queue()
    pair.primary.faults.size_limit(50_000, queue)
    parked = in_sessions(3, 60)
    parked[90] = encoded(b"x" * 60_000, id="poison", session="s0")
    park_many(backlog, queue, parked)
    summary = backlog.drain()
    assert (summary.delivered, summary.dead_lettered) == (179, 1)
    assert_in_order(parked, arrivals(backlog, queue), missing=["poison"])
    assert [each.id for each in dead_letters(backlog)] == ["poison"]


def test_a_long_session_goes_in_batches(pair: Pair, backlog: Backlog, transfers: list[int]) -> None:
    """Far fewer transfers than messages; each message arrives once and whole."""
    queue = pair.queue()
    parked = [encoded(f"m{number}", id=f"m{number}", session="one") for number in range(500)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.005, queue)
    assert backlog.drain().delivered == 500
    assert sum(transfers) == 500
    assert len(transfers) < 100
    assert pair.bodies(queue) == [f"m{number}" for number in range(500)]


@pytest.mark.parametrize("session", [None, "one"])
def test_a_message_with_a_partition_key_goes_alone(
    pair: Pair, backlog: Backlog, transfers: list[int], session: str | None
) -> None:
    """A batch goes to one partition. Messages of one session all go to the same one, so they are batched."""
    queue = pair.queue()
    keyed = {symbol("x-opt-partition-key"): session or "k"}
    parked = [encoded("x", id=f"k{number}", session=session, annotations=keyed) for number in range(20)]
    parked += [encoded("x-opt-partition-key", id=f"m{number}", session=session) for number in range(60)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.02, queue)
    assert backlog.drain().delivered == 80
    assert sum(transfers) == 80
    alone = transfers.count(1)
    assert alone >= 20 if session is None else alone < 5
    assert max(transfers) > 20
    assert sorted(came.id for came in arrivals(backlog, queue)) == sorted(ids(parked))


def test_batches_of_large_messages_are_no_larger_than_a_link_allows(
    pair: Pair, backlog: Backlog, transfers: list[int]
) -> None:
    """Messages that fit singly fit in batches, for any limit of the destination."""
    queue = pair.queue()
    pair.primary.faults.size_limit(21_000, queue)
    parked = [encoded(b"x" * 9_900, id=f"m{number}", session="one") for number in range(20)]
    parked += [encoded(b"x" * 20_000, id=f"n{number}", session="one") for number in range(3)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.01, queue)
    summary = backlog.drain()
    assert (summary.delivered, summary.dead_lettered) == (23, 0)
    assert max(transfers) == 2
    assert_in_order(parked, arrivals(backlog, queue))


def test_a_batch_is_larger_than_a_frame(pair: Pair, backlog: Backlog, transfers: list[int]) -> None:
    """A batch of several frames arrives as the messages that it was made of, every byte of them."""
    queue = pair.queue()
    bodies = [f"{number:02}" * 4500 for number in range(40)]
    parked = [encoded(body, session="one") for body in bodies]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.1, queue)
    assert backlog.drain().delivered == 40
    assert max(transfers) * 9000 > 2 * 65_536
    assert pair.bodies(queue) == bodies


def _refuse_batches(monkeypatch: pytest.MonkeyPatch, pair: Pair, condition: str, queue: str, most: int) -> list[int]:
    """Have sends rejected, `most` times, from the first batch on; return the sizes of all batches."""
    sizes: list[int] = []
    send_batch = Sender.send_batch

    def refused(self: Sender, head: bytes, messages: list[bytes], context: Any) -> None:
        if not sizes:
            pair.primary.faults.reject(condition, queue, count=most)
        sizes.append(len(messages))
        send_batch(self, head, messages, context)

    monkeypatch.setattr(Sender, "send_batch", refused)
    return sizes


def test_a_batch_that_is_refused_is_split(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message is to blame: all are sent singly, in order, and one that is refused alone is dead-lettered."""
    queue = pair.queue()
    parked = [encoded("x", id=f"m{number}", session="one") for number in range(60)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.01, queue)
    sizes = _refuse_batches(monkeypatch, pair, "com.microsoft:argument-error", queue, 2)
    summary = backlog.drain()
    assert sizes[0] > 1
    assert (summary.delivered, summary.dead_lettered, summary.error) == (59, 1, None)
    (dead,) = dead_letters(backlog)
    assert_in_order(parked, arrivals(backlog, queue), missing=[dead.id])


def test_a_batch_that_is_not_taken_now_is_held_whole(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again in another pass, before all messages behind it."""
    queue = pair.queue()
    parked = [encoded("x", id=f"m{number}", session="one") for number in range(60)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.01, queue)
    _refuse_batches(monkeypatch, pair, "com.microsoft:server-busy", queue, 1)
    first, second = backlog.drain(), backlog.drain()
    assert first.delivered + second.delivered == 60
    assert (first.in_doubt, first.dead_lettered, second.held) == (0, 0, 0)
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert not repeats(came)


def test_a_lost_connection_to_the_primary(pair: Pair, backlog: Backlog) -> None:
    """Messages in flight are in doubt and may arrive twice; nothing overtakes them."""
    queue = pair.queue()
    parked = in_sessions(10, 60)
    park_many(backlog, queue, parked)
    pair.primary.faults.drop(queue, after=150, count=3)
    summary = backlog.drain(window_messages=100)
    assert summary.empty
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert_conserved(backlog, ids(parked), came, most_repeats=3 * 100)


def test_a_lost_connection_to_the_backlog(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that stay locked by the lost link are waited for: later ones of their sessions do not overtake them, and
    the queue is not called empty before."""
    monkeypatch.setattr(flow_control.ServiceClock, "RANGE", (1.0, 60.0))
    queue = pair.queue()
    parked = in_sessions(10, 30) + [encoded("x", id=f"free-{number}") for number in range(20)]
    park_many(backlog, queue, parked, lock_duration=timedelta(seconds=5))
    pair.primary.faults.latency(0.02, queue)
    pair.secondary.faults.drop(backlog.path(), after=150, count=1)
    summary = backlog.drain(window_messages=60)
    assert summary.empty
    came = arrivals(backlog, queue)
    assert_in_order(parked[:300], [each for each in came if each.session is not None])
    assert_conserved(backlog, ids(parked), came, most_repeats=120)


def test_many_short_drains_with_held_messages(pair: Pair, backlog: Backlog) -> None:
    """The order is that of the queue, over all drains."""
    queue = pair.queue()
    parked = in_sessions(8, 40)
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.01, queue)
    pair.primary.faults.busy(queue, rate=0.3, count=20)
    for _ in range(200):
        backlog.drain(budget=0.3, window_messages=10)
        if not backlog.depth():
            break
    pair.primary.faults.clear()
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert_conserved(backlog, ids(parked), came)


def test_one_entity_by_many_spellings(pair: Pair, backlog: Backlog) -> None:
    """Paths are the same in any case, with and without the primary's host name: one entity, one order."""
    queue = pair.queue()
    parked = in_sessions(2, 60)
    backlog.make()
    host = pair.primary_namespace().host
    names = ((queue, None), (queue.upper(), None), (queue, host), (queue.upper(), host.upper()))
    for number, message in enumerate(parked):
        path, namespace = names[number % len(names)]
        backlog.park(path, message, namespace=namespace)
    pair.primary.faults.latency(0.005, queue)
    pair.primary.faults.busy(queue, rate=0.1, count=5)
    for _ in range(20):
        if not backlog.drain().held:
            break
    pair.primary.faults.clear()
    assert_in_order(parked, arrivals(backlog, queue))


def test_a_slow_journal(pair: Pair, backlog: Backlog) -> None:
    """The order does not depend on when rows become durable."""
    queue = pair.queue()
    parked = in_sessions(5, 40)
    park_many(backlog, queue, parked)

    def slow(rows: Rows) -> None:
        time.sleep(0.05)  # a disk far away

    journal = Remembering(slow)
    assert backlog.drain(journal=journal, window_messages=50).delivered == 200
    assert_in_order(parked, arrivals(backlog, queue))
