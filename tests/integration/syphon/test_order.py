"""Messages of one session reach their destination in the order in which they lay in the backlog queue."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import symbol

from pairbus.domain.outcome import Rows
from pairbus.syphon.amqp.link import ACCEPTED, REJECTED, ConnectionLost, LinkError, Sender
from pairbus.syphon.drain import destination as destinations
from pairbus.syphon.drain import drain_pass as passes
from pairbus.syphon.drain import flow_control as pace
from pairbus.syphon.drain.drain import DrainOptions
from pairbus.syphon.drain.drain_pass import DrainPass
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
    """How many messages each transfer to `Sender` carried."""
    carried: list[int] = []
    send, send_batch = Sender.send, Sender.send_batch

    def one(self: Sender, message: bytes, context: Any) -> None:
        if isinstance(context, destinations.InFlightMessage):
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
    """Each session in its order, each message once, and nothing in doubt; whatever the window is."""
    queue = pair.queue()
    parked = in_sessions(20, 100 if not options else 10)
    park_many(backlog, queue, parked)
    summary = backlog.drain(**options)
    assert (summary.delivered, summary.error, summary.in_doubt) == (len(parked), None, 0)
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert_conserved(backlog, ids(parked), came)


@pytest.mark.parametrize("first", [1, 3, 20])
def test_a_destination_that_is_fed_slowly(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """What waits in line for its destination is not overtaken by what comes later; and none is left waiting."""
    monkeypatch.setattr(pace, "FIRST", first)
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
    """A refused message is tried again before any of its session that lay behind it; none comes twice."""
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


def test_one_session_that_nobody_takes_does_not_hold_up_others(pair: Pair, backlog: Backlog) -> None:
    """Sessions for a destination that is full wait; the same sessions for another destination go on."""
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
    """Far fewer transfers than messages, no message twice, and each message whole: not one body in a batch is lost."""
    queue = pair.queue()
    parked = [encoded(f"m{number}", id=f"m{number}", session="one") for number in range(500)]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.005, queue)
    assert backlog.drain().delivered == 500
    assert sum(transfers) == 500
    assert len(transfers) < 100
    assert pair.bodies(queue) == [f"m{number}" for number in range(500)]


@pytest.mark.parametrize("session", [None, "one"])
def test_a_message_that_chose_its_partition_goes_by_itself(
    pair: Pair, backlog: Backlog, transfers: list[int], session: str | None
) -> None:
    """A batch goes to one partition of a partitioned entity. Of a session all go to the same: those are batched."""
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
    """Whatever the destination's limit is, a batch of messages that fit fits."""
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
    """A batch that takes several frames arrives as the messages that it was made of, every byte of them."""
    queue = pair.queue()
    bodies = [f"{number:02}" * 4500 for number in range(40)]
    parked = [encoded(body, session="one") for body in bodies]
    park_many(backlog, queue, parked)
    pair.primary.faults.latency(0.1, queue)
    assert backlog.drain().delivered == 40
    assert max(transfers) * 9000 > 2 * 65_536
    assert pair.bodies(queue) == bodies


def _refuse_batches(monkeypatch: pytest.MonkeyPatch, pair: Pair, condition: str, queue: str, most: int) -> list[int]:
    """From the first batch on sends are rejected, so many times; the sizes of the batches."""
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
    """One of it may be to blame: they go one by one, in their order; only what is refused alone is dead-lettered."""
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
    """It goes again in another pass, before all that lay behind it."""
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


def test_a_destination_that_is_dropped_in_the_middle(pair: Pair, backlog: Backlog) -> None:
    """What was in flight may come twice and is in doubt; nothing overtakes what was not answered."""
    queue = pair.queue()
    parked = in_sessions(10, 60)
    park_many(backlog, queue, parked)
    pair.primary.faults.drop(queue, after=150, count=3)
    summary = backlog.drain(window_messages=100)
    assert summary.empty
    came = arrivals(backlog, queue)
    assert_in_order(parked, came)
    assert_conserved(backlog, ids(parked), came, most_repeats=3 * 100)


def test_a_backlog_that_is_dropped_in_the_middle(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that stay locked by the link that was lost are waited for: nothing of their sessions overtakes them,
    and the queue is not said to be empty before they came."""
    monkeypatch.setattr(pace.ServiceClock, "RANGE", (1.0, 60.0))
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


def test_held_and_drained_again_and_again(pair: Pair, backlog: Backlog) -> None:
    """Budget after budget, hold after hold: the order is that of the queue."""
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


def test_one_entity_by_many_names(pair: Pair, backlog: Backlog) -> None:
    """Paths are the same whatever their case, and so is the primary named or not named: one entity, one order."""
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


def test_while_the_journal_is_slow(pair: Pair, backlog: Backlog) -> None:
    """Order does not depend on when rows become durable."""
    queue = pair.queue()
    parked = in_sessions(5, 40)
    park_many(backlog, queue, parked)

    def slow(rows: Rows) -> None:
        time.sleep(0.05)  # a disk far away

    journal = Remembering(slow)
    assert backlog.drain(journal=journal, window_messages=50).delivered == 200
    assert_in_order(parked, arrivals(backlog, queue))


# --- one destination, by its laws ------------------------------------------------------------------------------------


class FakeSender:
    """A link whose credit and answers a test decides on."""

    def __init__(self) -> None:
        self.credit = 0
        self.most_bytes = 1000
        self.now = 0.0
        self.pending: list[Any] = []
        self.closed = False

    def loop_time(self) -> float:
        return self.now

    def send(self, message: bytes, context: Any) -> None:
        assert self.credit > 0
        self.credit -= 1
        self.pending.append(context)

    def send_batch(self, head: bytes, messages: list[bytes], context: Any) -> None:
        assert self.credit > 0
        assert len(head) + sum(map(len, messages)) <= self.most_bytes
        self.credit -= 1
        self.pending.append(context)

    def oldest_unanswered(self) -> Any:
        return self.pending[0] if self.pending else None

    def abandon_unanswered(self) -> list[Any]:
        given_up, self.pending = self.pending, []
        return given_up

    def close(self) -> None:
        self.closed = True


class FakeHost:
    timeout = 1.0
    takes_batches = True


class Fates:
    """What a destination says of its messages; each must have one fate."""

    def __init__(self) -> None:
        self.fates: dict[int, str] = {}
        self.arrived: list[destinations.InFlightMessage] = []

    def _is(self, message: destinations.InFlightMessage, fate: str) -> None:
        assert message.sequence not in self.fates, f"{message.sequence} was {self.fates[message.sequence]}"
        self.fates[message.sequence] = fate

    def accepted(self, message: destinations.InFlightMessage) -> None:
        self._is(message, "accepted")
        self.arrived.append(message)

    def refused(self, message: destinations.InFlightMessage, reason: str, description: str) -> None:
        self._is(message, "refused")

    def held(self, message: destinations.InFlightMessage, destination: destinations.Destination) -> None:
        assert destination.held_for is not None
        self._is(message, "held")

    def doubtful(self, message: destinations.InFlightMessage, why: str) -> None:
        self._is(message, "in doubt")


_ANSWERS = ("accepted", "accepted", "accepted", "com.microsoft:argument-error", "amqp:link:message-size-exceeded",
            "com.microsoft:server-busy", "com.microsoft:session-lock-lost", "amqp:not-found", "nothing")  # fmt: skip
_STEPS = st.one_of(
    st.tuples(st.just("take"), st.sampled_from([None, "a", "a", "b"]), st.sampled_from([10, 10, 300, 1001])),
    st.tuples(st.just("credit"), st.integers(1, 3), st.none()),
    st.tuples(st.just("answer"), st.integers(0, 3), st.sampled_from(_ANSWERS)),
    st.tuples(st.just("pump"), st.none(), st.none()),
    st.tuples(st.just("answer"), st.just(0), st.just("accepted")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_STEPS, max_size=60), st.integers(1, 4), st.sampled_from(["end", "closed", "look", "finish"]))
def test_a_destination_by_its_laws(steps: list[Any], pace_limit: int, last: str) -> None:
    """Whatever is taken, answered and refused in whatever order: each message has one fate, what arrives of a session
    arrives in the order it was taken in, and nothing arrives behind one of its session that waits for another try."""
    fates, sender = Fates(), FakeSender()
    made_pace = pace.Pace(1000)
    made_pace.limit = pace_limit
    made = destinations.Destination("q", "q", FakeHost(), made_pace, fates)  # type: ignore[arg-type]
    made._sender = sender  # type: ignore[assignment]
    taken: list[destinations.InFlightMessage] = []

    def answer(context: Any, said: str) -> None:
        if said == "accepted":
            made.on_outcome(context, ACCEPTED, None)
        elif said == "nothing":
            made.on_outcome(context, 0, LinkError(None, "nobody says"))
        else:
            made.on_outcome(context, REJECTED, LinkError(said, "so"))

    for kind, one, other in steps:
        if kind == "take":
            message = destinations.InFlightMessage(None, other)
            message.sequence, message.session, message.size = len(taken), one, other
            message.message, message.ends_at = b"x" * other, 100.0
            taken.append(message)
            made.take(message)
        elif kind == "credit":
            sender.credit += one
            made.on_credit()
        elif kind == "pump":
            made.pump()
        elif sender.pending:
            answer(sender.pending.pop(one % len(sender.pending)), other)
    if last == "end":
        made.end(LinkError(None, "the end"))
    elif last == "closed":
        made.on_closed(LinkError("amqp:link:detach-forced", "gone"))
    elif last == "look":
        made.look(1000.0, 1.0)
        made.look(1000.0, 1.0)
    else:
        for _ in range(10 * len(taken) + 10):
            sender.credit += 1
            made.pump()
            if sender.pending:
                answer(sender.pending.pop(0), "accepted")
    assert sorted(fates.fates) == list(range(len(taken)))
    assert not made.is_waiting
    assert not made.is_busy
    for session in ("a", "b"):
        arrived = [each.sequence for each in fates.arrived if each.session == session]
        assert arrived == sorted(arrived)
        again = [each.sequence for each in taken if each.session == session and fates.fates[each.sequence] in _AGAIN]
        assert not again or not arrived or arrived[-1] < again[0]


_AGAIN = ("held", "in doubt")


def destination_with(*messages: destinations.InFlightMessage) -> tuple[destinations.Destination, FakeSender, Fates]:
    """One whose link is open and has no credit yet; the messages wait for it."""
    fates, sender = Fates(), FakeSender()
    made = destinations.Destination("q", "q", FakeHost(), pace.Pace(1000), fates)  # type: ignore[arg-type]
    made._sender = sender  # type: ignore[assignment]
    for number, message in enumerate(messages):
        message.sequence, message.message = number, b"x" * message.size
        made.take(message)
    return made, sender, fates


def moving(session: str | None = None, *, size: int = 600) -> destinations.InFlightMessage:
    """A message, too large to share a batch, that may be sent for 60 seconds and is waited for until the 85th."""
    message = destinations.InFlightMessage(None, size)
    message.session, message.size = session, size
    message.ends_at, message.answer_by = 60.0, 85.0
    return message


@pytest.mark.parametrize("session", [None, "a"])
def test_what_was_sent_late_is_waited_for_like_anything_else(session: str | None) -> None:
    """The end of the time in which a message may be sent says nothing of those that were: a healthy destination answers
    them. What was not sent by then is given back."""
    made, sender, fates = destination_with(moving(session), moving(session))
    sender.now, sender.credit = 59.0, 1
    made.on_credit()
    made.look(61.0, 15.0)
    assert fates.fates == {1: "held"}
    made.on_outcome(sender.pending.pop(), ACCEPTED, None)
    assert fates.fates == {0: "accepted", 1: "held"}
    assert not sender.closed


@pytest.mark.parametrize(("answered", "limit"), [(1.0, 4 * pace.FIRST), (4.0, pace.FIRST)])
def test_a_destination_that_takes_its_time_gets_no_more_at_once(answered: float, limit: int) -> None:
    """What is answered late because so much is in flight would be answered later still, and is given up in the end."""
    made, sender, _ = destination_with(*(moving() for _ in range(pace.FIRST)))
    made._pace = pace.Pace(10_000)
    sender.credit = pace.FIRST
    made.on_credit()
    assert len(sender.pending) == pace.FIRST
    sender.now += answered
    for context in sender.pending:
        made.on_outcome(context, ACCEPTED, None)
    assert made._pace.limit == limit


@pytest.mark.parametrize("outcome", ["accepted", "refused", "given up"])
def test_large_messages_are_few_at_once(outcome: str) -> None:
    """A megabyte is in flight, and one message more; what is answered, or given up, makes room again."""
    made, sender, _ = destination_with(*(moving(size=300_000) for _ in range(12)))
    made._pace = pace.Pace(10_000)
    sender.most_bytes, sender.credit = 2**20, 100
    made.on_credit()
    assert len(sender.pending) == 4
    if outcome == "given up":
        made.on_closed(ConnectionLost(None, "gone"))
        assert (made._in_flight, made._bytes_in_flight) == (0, 0)
        return
    error = None if outcome == "accepted" else LinkError("com.microsoft:argument-error", "so")
    made.on_outcome(sender.pending.pop(0), ACCEPTED if error is None else REJECTED, error)
    assert len(sender.pending) == 4


@pytest.mark.parametrize(("patience", "until"), [(15.0, 74.0), (60.0, 85.0)])
def test_an_answer_is_waited_for_only_while_it_is_of_use(patience: float, until: float) -> None:
    """For its time, and never until the lock has ended: what it says must be settled, too."""
    made, sender, fates = destination_with(moving())
    sender.now, sender.credit = 59.0, 1
    made.on_credit()
    made.look(until, patience)
    assert fates.fates == {}
    made.look(until + 0.1, patience)
    assert fates.fates == {0: "in doubt"}
    assert sender.closed


async def test_an_idle_link_that_is_ended_is_opened_again() -> None:
    """The service ends what was idle for ten minutes: that says nothing of the destination."""
    made, sender, fates = destination_with(moving())
    sender.credit = 1
    made.on_credit()
    made.on_outcome(sender.pending.pop(), ACCEPTED, None)
    again = FakeSender()
    again.credit = 1

    async def opened(*arguments: Any, **more: Any) -> FakeSender:
        return again

    host = SimpleNamespace(authorize=opened, sender=opened)

    async def connection() -> Any:
        return host

    made._host = SimpleNamespace(  # type: ignore[assignment]
        connection=connection, token_path=lambda path: path, timeout=1.0, takes_batches=True
    )
    made.on_closed(LinkError("amqp:link:detach-forced", "the link was idle for 600000 ms"))
    assert made.held_for is None
    following = moving()
    following.sequence, following.message = 1, b"x" * following.size
    made.take(following)
    while not again.pending:
        await asyncio.sleep(0)
        assert 1 not in fates.fates
    made.on_outcome(again.pending.pop(), ACCEPTED, None)
    assert fates.fates == {0: "accepted", 1: "accepted"}


@pytest.mark.parametrize("session", [None, "a"])
def test_nothing_is_sent_whose_time_is_over(session: str | None) -> None:
    """Were this process to stand still, another may have the lock by now: what is left of a session goes back whole."""
    made, sender, fates = destination_with(moving(session), moving(session), moving(session))
    sender.now, sender.credit = 59.0, 1
    made.on_credit()
    assert len(sender.pending) == 1
    sender.now, sender.credit = 61.0, 10
    made.on_outcome(sender.pending.pop(), ACCEPTED, None)
    assert sender.pending == []
    assert fates.fates == {0: "accepted", 1: "held", 2: "held"}


def beating(times: list[float], **more: Any) -> Any:
    """As much of a pass as its beat looks at; it is over when the times are."""
    left = iter(times)
    finished = asyncio.Event()

    def time() -> float:
        now = next(left)
        if now == times[-1]:
            finished.set()
        return now

    made = SimpleNamespace(
        _finished=finished, _loop=SimpleNamespace(time=time), _routes=SimpleNamespace(destinations=[]),
        _options=DrainOptions(answer_timeout=15.0), _connection=SimpleNamespace(is_paused=False), _settling=0,
        _confirmed_at=0.0, _failed=None, _give_back=lambda now: None, _turn=lambda: None,
    )  # fmt: skip
    vars(made).update(more)
    return made


async def test_after_a_standstill_what_has_come_is_read_before_it_is_missed() -> None:
    """A beat that comes late says nothing of the destinations: nobody is looked at before the next."""
    looked: list[float] = []
    destination = SimpleNamespace(look=lambda now, patience: looked.append(now))
    standing = beating([0.0, 20.0, 20.0, 20.1], _routes=SimpleNamespace(destinations=[destination]))
    await asyncio.wait_for(DrainPass._beat(standing), 60)
    assert looked == [20.1]


@pytest.mark.parametrize(("beats", "failed"), [(20, False), (34, False), (37, True)])
async def test_a_backlog_that_is_not_read_is_not_missed(
    beats: int, failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its socket is not read, for too many bytes, no confirmation can be heard: the time begins when it is."""
    monkeypatch.setattr(passes, "_BEAT_SECONDS", 0.0)
    paused = iter([True] * 20 + [False] * 20)

    class Connection:
        is_paused = property(lambda self: next(paused))

    times = [at for number in range(beats) for at in (number, number + 0.99)]  # one a second
    waiting = beating(times, _settling=5, _connection=Connection())
    await asyncio.wait_for(DrainPass._beat(waiting), 60)
    assert (waiting._failed is not None) is failed
