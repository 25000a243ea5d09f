"""`Destination` by its laws: order within a session, one fate for each message, deadlines. No socket is involved."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.syphon.amqp.link import ACCEPTED, REJECTED, ConnectionLost, LinkError
from pairbus.syphon.drain.destination import Destination
from pairbus.syphon.drain.flow_control import FIRST_WINDOW, SendWindow
from pairbus.syphon.drain.in_flight import InFlightMessage


class FakeSender:
    """A link whose credit and answers a test decides on."""

    def __init__(self, credit: int = 0) -> None:
        self.credit = credit
        self.max_message_bytes = 1000
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
        assert len(head) + sum(map(len, messages)) <= self.max_message_bytes
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
    """A namespace whose connection gives the links of a test, one after the other."""

    timeout = 1.0
    takes_batches = True

    def __init__(self, *links: FakeSender | Exception) -> None:
        self._links = list(links)
        self.authorized: list[str] = []

    def token_path(self, path: str) -> str:
        return f"token for {path}"

    async def connection(self) -> Any:
        return SimpleNamespace(authorize=self._authorize, sender=self._sender)

    async def _authorize(self, path: str, timeout: float) -> None:
        self.authorized.append(path)

    async def _sender(self, path: str, events: Any, timeout: float) -> FakeSender:
        link = self._links.pop(0)
        if isinstance(link, Exception):
            raise link
        return link


class Fates:
    """The fates of messages by sequence number; a message that gets two fails the test."""

    def __init__(self) -> None:
        self.fates: dict[int, str] = {}
        self.arrived: list[InFlightMessage] = []

    def _set(self, message: InFlightMessage, fate: str) -> None:
        assert message.sequence not in self.fates, f"{message.sequence} was {self.fates[message.sequence]}"
        self.fates[message.sequence] = fate

    def accepted(self, message: InFlightMessage) -> None:
        self._set(message, "accepted")
        self.arrived.append(message)

    def refused(self, message: InFlightMessage, reason: str, description: str) -> None:
        self._set(message, "refused")

    def held(self, message: InFlightMessage, destination: Destination) -> None:
        assert destination.hold_error is not None
        self._set(message, "held")

    def in_doubt(self, message: InFlightMessage, why: str) -> None:
        self._set(message, "in doubt")


def to_destination(fates: Fates, window: SendWindow | None = None, host: FakeHost | None = None) -> Destination:
    return Destination("q", "q", host or FakeHost(), window or SendWindow(1000), fates)  # type: ignore[arg-type]


def message(sequence: int, session: str | None = None, *, size: int = 600) -> InFlightMessage:
    """A message, too large to share a batch, that may be sent until 60 and is waited for until 85."""
    made = InFlightMessage(None, size)
    made.sequence, made.session, made.size, made.message = sequence, session, size, b"x" * size
    made.send_by, made.answer_by = 60.0, 85.0
    return made


def destination_with(
    *messages: InFlightMessage, window: SendWindow | None = None
) -> tuple[Destination, FakeSender, Fates]:
    """A destination whose link is open without credit, for which the messages wait."""
    fates, sender = Fates(), FakeSender()
    made = to_destination(fates, window)
    made.attach(sender)  # type: ignore[arg-type]
    for each in messages:
        made.enqueue(each)
    return made, sender, fates


def answer(destination: Destination, context: Any, condition: str) -> None:
    if condition == "accepted":
        destination.on_outcome(context, ACCEPTED, None)
    elif condition == "nothing":
        destination.on_outcome(context, 0, LinkError(None, "settled without an outcome"))
    else:
        destination.on_outcome(context, REJECTED, LinkError(condition, "so"))


# --- the laws --------------------------------------------------------------------------------------------------------

_ANSWERS = ("accepted", "accepted", "accepted", "com.microsoft:argument-error", "amqp:link:message-size-exceeded",
            "com.microsoft:server-busy", "com.microsoft:session-lock-lost", "amqp:not-found", "nothing")  # fmt: skip
_STEPS = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from([None, "a", "a", "b"]), st.sampled_from([10, 10, 300, 1001])),
    st.tuples(st.just("credit"), st.integers(1, 3), st.none()),
    st.tuples(st.just("answer"), st.integers(0, 3), st.sampled_from(_ANSWERS)),
    st.tuples(st.just("send"), st.none(), st.none()),
    st.tuples(st.just("answer"), st.just(0), st.just("accepted")),
)
_AGAIN = ("held", "in doubt")


@settings(max_examples=300, deadline=None)
@given(st.lists(_STEPS, max_size=60), st.integers(1, 4), st.sampled_from(["abandoned", "closed", "late", "answered"]))
def test_each_message_has_one_fate_and_sessions_keep_their_order(steps: list[Any], limit: int, last: str) -> None:
    """For any order of messages, answers and refusals: the messages of a session arrive in the order in which they were
    added, and none arrives behind one that is to be sent again."""
    window = SendWindow(1000)
    window.limit = limit
    made, sender, fates = destination_with(window=window)
    added: list[InFlightMessage] = []
    for kind, one, other in steps:
        if kind == "enqueue":
            added.append(message(len(added), one, size=other))
            made.enqueue(added[-1])
        elif kind == "credit":
            sender.credit += one
            made.on_credit()
        elif kind == "send":
            made.send_waiting()
        elif sender.pending:
            answer(made, sender.pending.pop(one % len(sender.pending)), other)
    _bring_to_an_end(made, sender, last, len(added))
    assert sorted(fates.fates) == list(range(len(added)))
    assert not made.is_waiting
    assert not made.is_busy
    for session in ("a", "b"):
        arrived = [each.sequence for each in fates.arrived if each.session == session]
        assert arrived == sorted(arrived)
        again = [each.sequence for each in added if each.session == session and fates.fates[each.sequence] in _AGAIN]
        assert not again or not arrived or arrived[-1] < again[0]


def _bring_to_an_end(made: Destination, sender: FakeSender, last: str, count: int) -> None:
    if last == "abandoned":
        made.abandon(LinkError(None, "the end"))
    elif last == "closed":
        made.on_closed(LinkError("amqp:link:detach-forced", "closed"))
    elif last == "late":
        made.check_deadlines(1000.0, 1.0)
        made.check_deadlines(1000.0, 1.0)
    else:
        for _ in range(10 * count + 10):
            sender.credit += 1
            made.send_waiting()
            if sender.pending:
                answer(made, sender.pending.pop(0), "accepted")


# --- the window ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answered_after", "limit"), [(1.0, 4 * FIRST_WINDOW), (4.0, FIRST_WINDOW)])
def test_a_slow_destination_gets_no_larger_window(answered_after: float, limit: int) -> None:
    """Messages whose answers are late because many are in flight would be given up in the end, were there more."""
    window = SendWindow(10_000)
    made, sender, _ = destination_with(*(message(number) for number in range(FIRST_WINDOW)), window=window)
    sender.credit = FIRST_WINDOW
    made.on_credit()
    assert len(sender.pending) == FIRST_WINDOW
    sender.now += answered_after
    for context in sender.pending:
        made.on_outcome(context, ACCEPTED, None)
    assert window.limit == limit


@pytest.mark.parametrize("condition", ["accepted", "com.microsoft:argument-error"])
def test_few_large_messages_are_in_flight(condition: str) -> None:
    """A megabyte, and one message more; an answer makes room for the next."""
    window = SendWindow(10_000)
    made, sender, _ = destination_with(*(message(number, size=300_000) for number in range(12)), window=window)
    sender.max_message_bytes, sender.credit = 2**20, 100
    made.on_credit()
    assert len(sender.pending) == 4
    answer(made, sender.pending.pop(0), condition)
    assert len(sender.pending) == 4


def test_a_lost_connection_leaves_nothing_in_flight() -> None:
    """Unanswered messages are in doubt, the others are held back."""
    made, sender, fates = destination_with(message(0), message(1))
    sender.credit = 1
    made.on_credit()
    made.on_closed(ConnectionLost(None, "lost"))
    assert fates.fates == {0: "in doubt", 1: "held"}
    assert (made.is_busy, made.is_waiting) == (False, False)


# --- deadlines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, "a"])
def test_a_message_that_was_sent_late_is_waited_for(session: str | None) -> None:
    """The time to send says nothing of the messages that were sent in it. Those that were not are held back."""
    made, sender, fates = destination_with(message(0, session), message(1, session))
    sender.now, sender.credit = 59.0, 1
    made.on_credit()
    made.check_deadlines(61.0, 15.0)
    assert fates.fates == {1: "held"}
    made.on_outcome(sender.pending.pop(), ACCEPTED, None)
    assert fates.fates == {0: "accepted", 1: "held"}
    assert not sender.closed


@pytest.mark.parametrize(("timeout", "until"), [(15.0, 74.0), (60.0, 85.0)])
def test_an_answer_is_waited_for_while_it_is_of_use(timeout: float, until: float) -> None:
    """For the timeout, and never until the lock has ended: the message must be settled, too."""
    made, sender, fates = destination_with(message(0))
    sender.now, sender.credit = 59.0, 1
    made.on_credit()
    made.check_deadlines(until, timeout)
    assert fates.fates == {}
    made.check_deadlines(until + 0.1, timeout)
    assert fates.fates == {0: "in doubt"}
    assert sender.closed


@pytest.mark.parametrize("session", [None, "a"])
def test_no_message_is_sent_after_its_time(session: str | None) -> None:
    """A process that was suspended may have lost its locks: the rest of a session is held back as a whole."""
    made, sender, fates = destination_with(*(message(number, session) for number in range(3)))
    sender.now, sender.credit = 59.0, 1
    made.on_credit()
    assert len(sender.pending) == 1
    sender.now, sender.credit = 61.0, 10
    made.on_outcome(sender.pending.pop(), ACCEPTED, None)
    assert sender.pending == []
    assert fates.fates == {0: "accepted", 1: "held", 2: "held"}


# --- the link --------------------------------------------------------------------------------------------------------


async def all_decided(fates: Fates, count: int) -> None:
    while len(fates.fates) < count:
        await asyncio.sleep(0)


async def test_a_link_that_was_closed_for_being_idle_is_opened_again() -> None:
    """The service closes a link after ten idle minutes: that says nothing of the destination."""
    fates, first, second = Fates(), FakeSender(credit=1), FakeSender(credit=1)
    host = FakeHost(first, second)
    made = to_destination(fates, host=host)
    for number, sender in enumerate((first, second)):
        made.enqueue(message(number))
        while not sender.pending:
            await asyncio.sleep(0)
            assert number not in fates.fates
        made.on_outcome(sender.pending.pop(), ACCEPTED, None)
        made.on_closed(LinkError("amqp:link:detach-forced", "the link was idle for 600000 ms"))
        assert made.hold_error is None
    assert fates.fates == {0: "accepted", 1: "accepted"}
    assert host.authorized == ["token for q"] * 2


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (LinkError("amqp:not-found", "no such queue"), "refused"),
        (LinkError("com.microsoft:server-busy", "busy"), "held"),
        (ConnectionLost("amqp:not-found", "the host is not there"), "held"),
        (ValueError("a defect"), "held"),
    ],
)
async def test_a_link_that_cannot_be_opened(error: Exception, fate: str) -> None:
    """The condition decides on the messages that wait, and on those that follow. A lost connection, or a defect, is
    never the destination's own fault."""
    fates = Fates()
    made = to_destination(fates, host=FakeHost(error))
    made.enqueue(message(0))
    made.enqueue(message(1, "a"))
    await asyncio.wait_for(all_decided(fates, 2), 10)
    made.enqueue(message(2))
    assert fates.fates == {0: fate, 1: fate, 2: fate}


@pytest.mark.parametrize("condition", ["amqp:link:message-size-exceeded", "com.example:odd"])
def test_a_link_that_one_message_has_ended_sends_the_next_messages_singly(condition: str) -> None:
    """The error does not say which message it was: all that was in flight is in doubt."""
    window = SendWindow(1000)
    made, sender, fates = destination_with(message(0), message(1), message(2), window=window)
    sender.credit = 2
    made.on_credit()
    made.on_closed(LinkError(condition, "too large"))
    assert fates.fates == {0: "in doubt", 1: "in doubt", 2: "held"}
    assert (window.is_isolating, window.limit) == (True, 1)


@pytest.mark.parametrize(
    ("condition", "deliveries", "fate"),
    [
        ("amqp:link:message-size-exceeded", 0, "refused"),
        ("com.example:odd", 9, "in doubt"),
        ("com.example:odd", 10, "refused"),
    ],
)
def test_a_message_that_ends_the_link_while_it_is_alone_is_to_blame(condition: str, deliveries: int, fate: str) -> None:
    """If the condition is one of a message, or after ten deliveries."""
    window = SendWindow(1000)
    window.isolate(5)
    single = message(0)
    single.delivery_count = deliveries
    made, sender, fates = destination_with(single, message(1), window=window)
    sender.credit = 5
    made.on_credit()
    assert len(sender.pending) == 1
    made.on_closed(LinkError(condition, "too large"))
    assert fates.fates == {0: fate, 1: "held"}


def test_a_message_behind_a_refused_one_is_not_to_blame() -> None:
    """The link may have ended because of the refused one: the message in flight is in doubt, and sent again."""
    window = SendWindow(1000)
    window.isolate(5)
    made, sender, fates = destination_with(message(0), message(1), window=window)
    sender.credit = 5
    made.on_credit()
    answer(made, sender.pending.pop(), "amqp:link:message-size-exceeded")
    assert len(sender.pending) == 1
    made.on_closed(LinkError("amqp:link:message-size-exceeded", "too large"))
    assert fates.fates == {0: "refused", 1: "in doubt"}


# --- batches ---------------------------------------------------------------------------------------------------------


def test_messages_without_a_session_share_a_batch_that_fits() -> None:
    """As many as the link's limit allows, in their order."""
    made, sender, _ = destination_with(*(message(number, size=300) for number in range(5)))
    sender.credit = 10
    made.on_credit()
    assert [[each.sequence for each in batch] for batch in sender.pending[:1]] == [[0, 1, 2]]
    assert sum(len(each) if isinstance(each, list) else 1 for each in sender.pending) == 5


def test_a_message_with_a_partition_key_goes_alone() -> None:
    """A batch goes to one partition."""
    keyed = message(1, size=10)
    keyed.sent_alone = True
    made, sender, _ = destination_with(message(0, size=10), keyed, message(2, size=10), message(3, size=10))
    sender.credit = 10
    made.on_credit()
    sent = [[each.sequence for each in context] if isinstance(context, list) else context.sequence
            for context in sender.pending]  # fmt: skip
    assert sent == [0, 1, [2, 3]]


def test_a_refused_batch_is_sent_singly() -> None:
    """One of its messages is to blame, the others arrive; in their order, of a session as without one."""
    for session in (None, "a"):
        made, sender, fates = destination_with(*(message(number, session, size=10) for number in range(3)))
        sender.credit = 20
        made.on_credit()
        assert len(sender.pending) == 1
        answer(made, sender.pending.pop(), "com.microsoft:argument-error")
        while sender.pending:
            context = sender.pending.pop(0)
            assert isinstance(context, InFlightMessage)
            answer(made, context, "com.microsoft:argument-error" if context.sequence == 1 else "accepted")
        assert fates.fates == {0: "accepted", 1: "refused", 2: "accepted"}
        assert [each.sequence for each in fates.arrived] == [0, 2]


def test_a_host_without_batches_gets_single_messages() -> None:
    """An event hub gives a batch to one partition."""
    host = FakeHost()
    host.takes_batches = False
    fates, sender = Fates(), FakeSender()
    made = to_destination(fates, host=host)
    made.attach(sender)  # type: ignore[arg-type]
    for number in range(4):
        made.enqueue(message(number, size=10))
    sender.credit = 10
    made.on_credit()
    assert [context.sequence for context in sender.pending] == [0, 1, 2, 3]


def test_an_unknown_condition_is_a_dead_letter_after_ten_deliveries() -> None:
    """Before that the message is held back, and so are the others."""
    for deliveries, expected in ((9, {0: "held", 1: "held"}), (10, {0: "refused", 1: "held"})):
        first = message(0)
        first.delivery_count = deliveries
        made, sender, fates = destination_with(first, message(1))
        sender.credit = 1
        made.on_credit()
        answer(made, sender.pending.pop(), "com.microsoft:session-lock-lost")
        assert fates.fates == expected


def test_a_batch_has_five_hundred_messages_at_most() -> None:
    """However small they are, and however large the window and the limit of the link are."""
    roomy = SendWindow(1000)
    roomy.limit = 1000
    made, sender, _ = destination_with(*(message(number, size=10) for number in range(600)), window=roomy)
    sender.max_message_bytes, sender.credit = 2**20, 10
    made.on_credit()
    assert [len(batch) for batch in sender.pending] == [500, 100]


def test_a_batch_that_is_refused_by_a_destination_on_hold_is_held_whole() -> None:
    """It would otherwise be sent again singly, to a destination that is busy."""
    made, sender, fates = destination_with(*(message(number, size=300) for number in range(6)))
    sender.credit = 2
    made.on_credit()
    assert [len(batch) for batch in sender.pending] == [3, 3]
    answer(made, sender.pending.pop(0), "com.microsoft:server-busy")
    sender.credit = 10
    answer(made, sender.pending.pop(0), "com.microsoft:argument-error")
    assert fates.fates == dict.fromkeys(range(6), "held")
    assert sender.pending == []
