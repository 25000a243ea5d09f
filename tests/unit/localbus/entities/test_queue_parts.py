"""The parts of a queue: ready lists, sessions, turns between receivers, duplicates, expiry, schedules and addresses."""

from __future__ import annotations

import random
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from pairbus.localbus.addresses import Address, parse_address
from pairbus.localbus.amqp.dispatch import Dispatcher
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.message import Draft, Message, read_message
from pairbus.localbus.entities.payload import MessageView
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import REMOVED, ReadyList, Session, SessionTable
from pairbus.localbus.settings import QueueSettings
from tests.support import amqp_frames as amqp
from tests.support.recorded_effects import RecordedEffects, queue_with_dead_letters


def queue_of(**changes: Any) -> tuple[Queue, RecordedEffects]:
    effects = RecordedEffects()
    settings = QueueSettings("q", **{"lock_duration": timedelta(seconds=10), **changes})
    return queue_with_dead_letters(effects, settings), effects


def put(queue: Queue, now: float, body: bytes = b"x", **facts: Any) -> Message:
    draft = read_message(amqp.message(body))
    for name, value in facts.items():
        setattr(draft, name, value)
    message = queue.enqueue(draft, now)
    assert message is not None
    return message


# --- ready lists ----------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(("add", "pop", "back", "leave", "lock")), max_size=60), st.randoms())
def test_a_ready_list_is_in_order_of_sequence_numbers(steps: list[str], rng: random.Random) -> None:
    """The head is the ready message with the lowest number, also when messages return, leave or are locked."""
    ready, waiting, out, number = ReadyList(), {}, [], 0
    for step in steps:
        if step == "add":
            number += 1
            waiting[number] = Message(number, number, 0.0, Draft(b"", 0))
            ready.add(waiting[number])
        elif step == "pop":
            head = ready.pop()
            assert (None if head is None else head.sequence) == min(waiting, default=None)
            if head is not None:
                out.append(waiting.pop(head.sequence))
        elif step == "back" and out:
            back = out.pop(rng.randrange(len(out)))
            waiting[back.sequence] = back
            ready.put_back(back)
        elif step == "leave" and waiting:
            waiting.pop(rng.choice(sorted(waiting))).state = REMOVED
            ready.note_removal()
        elif step == "lock" and waiting:
            waiting.pop(rng.choice(sorted(waiting))).lock = object()
            ready.note_removal()
        assert (ready.head() is None) == (not waiting)


def test_a_ready_list_drops_removed_messages() -> None:
    """A hundred thousand messages expire behind one that stays: the list does not keep them."""
    ready = ReadyList()
    first = Message(0, 0, 0.0, Draft(b"", 0))
    ready.add(first)
    for number in range(1, 100_001):
        message = Message(number, number, 0.0, Draft(b"", 0))
        ready.add(message)
        message.state = REMOVED
        ready.note_removal()
    assert ready.head() is first
    assert len(ready) < 5_000


# --- sessions -------------------------------------------------------------------------------------------------------


def test_free_sessions_are_accepted_in_order_of_arrival() -> None:
    """The next session is the one that has been free longest; an empty one is skipped."""
    table = SessionTable()
    for name in "abc":
        session = table.open(name)
        session.messages[1] = Message(1, 1, 0.0, Draft(b"", 0))
        session.ready.add(session.messages[1])
        assert table.offer(session)
    first = table.next_free()
    assert first is not None
    assert first.id == "a"
    table.lock(first, "me", 10.0)
    assert not table.offer(first), "it is held"
    second = table.get("b")
    assert second is not None
    second.ready.pop()
    third = table.next_free()
    assert third is not None
    assert third.id == "c"


def test_a_session_lock_expires_once_at_its_renewed_end() -> None:
    """A renewed lock does not expire at its old end, and an expired one is reported once."""
    table = SessionTable()
    session = table.open("a")
    session.messages[1] = Message(1, 1, 0.0, Draft(b"", 0))
    table.lock(session, "me", 10.0)
    table.extend(session, 20.0)
    assert list(table.expired(15.0)) == []
    assert table.next_expiry() <= 20.0
    assert [s.id for s in table.expired(20.0)] == ["a"]
    table.unlock(session)
    assert list(table.expired(100.0)) == []


def test_an_idle_session_is_removed() -> None:
    """A session without messages, state and owner takes no memory."""
    table = SessionTable()
    session = table.open("a")
    table.lock(session, "me", 10.0)
    table.unlock(session)
    assert table.get("a") is None
    kept = table.open("b")
    kept.state = b"state"
    table.remove_if_idle(kept)
    assert table.get("b") is kept


def test_peeking_in_a_session_reads_only_its_messages() -> None:
    """Messages come in order and in any state, from a number on; messages of other sessions are not read."""
    queue, _ = queue_of(requires_session=True)
    for number in range(3_000):
        put(queue, 0.0, session_id="big" if number % 1_000 else "small")
    put(queue, 0.0, session_id="small", scheduled_at=99.0)
    session = queue.accept_session("small", "me", 0.0)
    queue.defer(queue.acquire(0.0, 1, "me", session)[0].lock.tag, 0.0)
    looked_at = Counting(queue.messages)
    queue.messages = looked_at
    assert [m.sequence for m in queue.peek(0, 9, "small")] == [1, 1001, 2001, 3001]
    assert [m.sequence for m in queue.peek(1002, 1, "small")] == [2001]
    assert queue.peek(0, 9, "nobody's") == []
    assert looked_at.reads == 0
    assert len(queue.peek(0, 9)) == 9


# --- turns ----------------------------------------------------------------------------------------------------------


class Counting(SortedDict):  # type: ignore[misc]  # it has no types
    """A queue's messages that count how often one is read."""

    reads = 0

    def __getitem__(self, number: int) -> Message:
        self.reads += 1
        found: Message = super().__getitem__(number)
        return found


class Receiver:
    """A receiver that takes some messages at each pull."""

    def __init__(self, queue: Queue, appetite: int, most: int = 10**9) -> None:
        self.queue, self.appetite, self.most = queue, appetite, most
        self.got: list[int] = []
        self.open = True
        self.session: Session | None = None
        self.connection = SimpleNamespace(server=SimpleNamespace(schedule=lambda: None))
        self.asked = 0

    @property
    def can_pull(self) -> bool:
        return self.appetite > 0 and len(self.got) < self.most

    def pull(self, now: float) -> bool:
        self.asked += 1
        room = min(self.appetite, self.most - len(self.got))
        taken = self.queue.acquire(now, room, self, self.session, delete=True) if room > 0 else []
        self.got += [m.sequence for m in taken]
        return len(self.got) < self.most and self.queue.has_ready(self.session)


def test_receivers_take_turns() -> None:
    """No receiver is served twice before all were served once, and the next round continues after the last one."""
    queue, _ = queue_of()
    for _ in range(90):
        put(queue, 0.0)
    dispatcher = Dispatcher()
    receivers: list[Any] = [Receiver(queue, 10) for _ in range(3)]
    for each in receivers:
        dispatcher.add(each)
        dispatcher.wake(each)
    more = dispatcher.run([queue], 0.0)
    assert [len(each.got) for each in receivers] == [10, 10, 10]
    while more:
        more = dispatcher.run([], 0.0)
    assert [len(each.got) for each in receivers] == [30, 30, 30]
    assert sorted(number for each in receivers for number in each.got) == list(range(1, 91))


def test_single_messages_go_to_the_receivers_in_turn() -> None:
    """A served receiver goes to the end of the ready."""
    queue, _ = queue_of()
    dispatcher = Dispatcher()
    receivers: list[Any] = [Receiver(queue, 10) for _ in range(3)]
    for each in receivers:
        dispatcher.add(each)
        dispatcher.wake(each)
    for _ in range(30):
        put(queue, 0.0)
        dispatcher.run([queue], 0.0)
    assert [len(each.got) for each in receivers] == [10, 10, 10]


def test_a_removed_receiver_gets_no_message() -> None:
    """A receiver that was woken and then removed is not served; the next one is."""
    queue, _ = queue_of()
    dispatcher = Dispatcher()
    gone, stays = Receiver(queue, 1), Receiver(queue, 1)
    for each in (gone, stays):
        dispatcher.add(each)  # type: ignore[arg-type]
        dispatcher.wake(each)  # type: ignore[arg-type]
    dispatcher.remove(gone)  # type: ignore[arg-type]
    put(queue, 0.0)
    dispatcher.run([queue], 0.0)
    assert (gone.got, stays.got) == ([], [1])


def test_receivers_without_credit_are_not_pulled() -> None:
    """A message is offered only to receivers with credit; one whose credit is used up is not pulled again."""
    queue, _ = queue_of()
    dispatcher = Dispatcher()
    idle: list[Any] = [Receiver(queue, 0) for _ in range(1000)]
    one: Any = Receiver(queue, 10, most=5)
    for each in [*idle[:500], one, *idle[500:]]:
        dispatcher.add(each)
    dispatcher.wake(one)
    for number in range(1, 9):
        put(queue, 0.0)
        dispatcher.run([queue], 0.0)
        assert one.asked == min(number, 5)
    assert one.got == [1, 2, 3, 4, 5]
    assert sum(each.asked for each in idle) == 0
    idle[3].appetite = 10
    dispatcher.wake(idle[3])
    dispatcher.run([], 0.0)
    assert idle[3].got == [6, 7, 8]
    put(queue, 0.0)
    dispatcher.run([queue], 0.0)
    assert idle[3].got == [6, 7, 8, 9]


def test_a_message_of_a_session_wakes_only_its_owner() -> None:
    """The owners of other sessions are not pulled, and the owner is pulled once for a message."""
    queue, _ = queue_of(requires_session=True)
    dispatcher = Dispatcher()
    holders: list[Any] = []
    for number in range(1000):
        holder: Any = Receiver(queue, 10)
        holder.session = queue.accept_session(str(number), holder, 0.0)
        holders.append(holder)
        dispatcher.add(holder)
    for _ in range(3):
        put(queue, 0.0, session_id="77")
        dispatcher.run([queue], 0.0)
    assert holders[77].got == [1, 2, 3]
    assert sum(each.asked for each in holders) == holders[77].asked == 3
    dispatcher.remove(holders[77])
    queue.release_session(holders[77].session, holders[77], 0.0)
    put(queue, 0.0, session_id="77")
    put(queue, 0.0, session_id="78")
    dispatcher.run([queue], 0.0)
    assert (holders[77].got, holders[78].got) == ([1, 2, 3], [5])


class Waiter:
    def __init__(self, deadline: float, takes: bool = False) -> None:
        self.deadline, self.takes = deadline, takes
        self.error: BusError | None = None

    def offer(self, now: float) -> bool:
        return self.takes

    def refuse(self, error: BusError) -> None:
        self.error = error


def test_a_wait_for_a_session_times_out_at_its_deadline() -> None:
    """A waiter is refused with the service's timeout at its deadline, not before, and not after it was served."""
    queue, _ = queue_of(requires_session=True)
    dispatcher = Dispatcher()
    impatient, patient, served = Waiter(5.0), Waiter(50.0), Waiter(5.0, takes=True)
    waiters: list[Any] = [served, impatient, patient]
    for each in waiters:
        dispatcher.add_waiter(queue, each)
    assert dispatcher.next_deadline() == 5.0
    dispatcher.run([queue], 1.0)
    dispatcher.expire(4.0)
    assert impatient.error is None
    dispatcher.expire(5.0)
    assert impatient.error is not None
    assert impatient.error.condition == "com.microsoft:timeout"
    assert (served.error, patient.error) == (None, None)
    assert dispatcher.next_deadline() == 50.0


# --- deliveries that count -------------------------------------------------------------------------------------------


def test_deferring_counts_as_a_delivery() -> None:
    """A message deferred at its last allowed delivery is dead-lettered with the reason."""
    queue, effects = queue_of(max_delivery_count=2)
    put(queue, 0.0)
    put(queue, 0.0)
    for _ in range(2):
        queue.defer(queue.acquire(0.0, 1)[0].lock.tag, 0.0)
    assert list(queue.messages) == [1, 2]
    first, second = queue.receive_deferred([1, 2], 1.0)
    queue.abandon(first.lock.tag, 1.0)
    assert queue.dead_letters is not None
    assert list(queue.dead_letters.messages) == [1], "abandoned"
    queue.advance(second.lock.until)
    assert list(queue.dead_letters.messages) == [1, 2], "its lock has ended"
    assert len(queue.messages) == 0
    for dead in queue.dead_letters.messages.values():
        assert dead.delivery_count == 2
        assert MessageView(effects.payloads([dead])[0]).user["DeadLetterReason"] == "MaxDeliveryCountExceeded"


# --- duplicates, lives, schedules ---------------------------------------------------------------------------------


def test_an_id_is_a_duplicate_within_the_window() -> None:
    """A repeated id of any type is dropped within the window; at its end the id is new again."""
    queue, effects = queue_of(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(seconds=60)
    )
    put(queue, 0.0, message_id="a")
    for now in (0.0, 30.0, 59.9):
        assert queue.enqueue(Draft(b"", 1, message_id="a"), now) is None
    put(queue, 59.9, message_id="b")
    put(queue, 60.0, message_id="a")
    assert queue.enqueue(Draft(b"", 1, message_id="b"), 119.8) is None
    put(queue, 119.9, message_id="b")
    assert len(queue.messages) == 4
    assert [(id, at) for _, id, at in effects.history] == [("a", 0.0), ("b", 59.9), ("a", 60.0), ("b", 119.9)]


def test_the_duplicate_history_drops_ids_beyond_its_window() -> None:
    """New ids push out the ids that are older than the window."""
    queue, _ = queue_of(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(seconds=10)
    )
    for number in range(2_000):
        put(queue, float(number), message_id=f"{number}")
    assert len(queue.history) <= 11


def test_a_locked_message_expires_when_it_is_given_back() -> None:
    """A locked message can be completed after its time to live; one that is given back after it has expired."""
    for dead_letters in (True, False):
        queue, effects = queue_of(dead_lettering_on_message_expiration=dead_letters)
        put(queue, 0.0, time_to_live=5.0)
        put(queue, 0.0, time_to_live=5.0)
        first, second = queue.acquire(1.0, 2)
        queue.advance(6.0)
        assert len(queue.messages) == 2
        queue.complete(first.lock.tag, 7.0)
        queue.abandon(second.lock.tag, 8.0)
        assert len(queue.messages) == 0
        assert queue.dead_letters is not None
        assert len(queue.dead_letters.messages) == dead_letters
        for dead in queue.dead_letters.messages.values():
            assert MessageView(effects.payloads([dead])[0]).user["DeadLetterReason"] == "TTLExpiredException"


def test_an_expired_message_is_not_delivered_before_a_timer_has_run() -> None:
    """The time to live is checked when a message is taken, not only by a timer."""
    queue, _ = queue_of()
    put(queue, 0.0, time_to_live=5.0)
    put(queue, 0.0, time_to_live=50.0)
    assert [m.sequence for m in queue.acquire(10.0, 5)] == [2]
    assert list(queue.messages) == [2]


def test_a_due_scheduled_message_gets_a_new_number() -> None:
    """Its first number finds it until it is due and can cancel it; its time to live begins when it is enqueued."""
    queue, effects = queue_of()
    scheduled = put(queue, 0.0, scheduled_at=10.0, time_to_live=5.0)
    put(queue, 1.0)
    assert [m.sequence for m in queue.acquire(2.0, 5)] == [2]
    assert effects.advance_at[0] <= 10.0
    queue.advance(10.0)
    (active,) = queue.acquire(10.0, 5)
    assert active.sequence == 3
    assert active.enqueue_sequence == scheduled.sequence == 1
    assert active.enqueued_at == 10.0
    assert active.expires_at == 15.0
    with pytest.raises(BusError) as refused:
        queue.cancel_scheduled([1])
    assert refused.value.condition == "com.microsoft:message-not-found"


def test_one_unknown_sequence_number_refuses_all() -> None:
    """Receiving deferred messages and cancelling scheduled ones by number is all or nothing."""
    queue, _ = queue_of()
    scheduled = put(queue, 0.0, scheduled_at=10.0)
    put(queue, 0.0)
    (taken,) = queue.acquire(0.0, 1)
    queue.defer(taken.lock.tag, 0.0)
    with pytest.raises(BusError):
        queue.cancel_scheduled([scheduled.sequence, 99])
    with pytest.raises(BusError):
        queue.receive_deferred([taken.sequence, 99], 0.0, delete=True)
    assert len(queue.messages) == 2
    assert [m.sequence for m in queue.receive_deferred([2, 2], 0.0)] == [2], "named twice, meant once"


@pytest.mark.parametrize("delete", [False, True])
def test_receiving_deferred_messages_has_a_size_limit(delete: bool) -> None:
    """Several messages above the limit are neither locked nor removed; a single one may have any size."""
    queue, _ = queue_of()
    for _ in range(3):
        put(queue, 0.0, b"x" * 1000)
    for message in queue.acquire(0.0, 3):
        queue.defer(message.lock.tag, 0.0)
    with pytest.raises(BusError) as refused:
        queue.receive_deferred([1, 2, 3], 1.0, delete=delete, max_bytes=2500)
    assert refused.value.condition == "amqp:link:message-size-exceeded"
    assert [m.lock for m in queue.messages.values()] == [None, None, None]
    assert len(queue.receive_deferred([1], 1.0, delete=delete, max_bytes=10)) == 1
    assert len(queue.receive_deferred([2, 3], 1.0, delete=delete, max_bytes=2500)) == 2


def test_acquiring_stops_at_the_byte_limit() -> None:
    """At least one message is taken, and none after the one that reaches the limit."""
    queue, _ = queue_of()
    for _ in range(10):
        put(queue, 0.0, b"x" * 1000)
    assert len(queue.acquire(0.0, 10, max_bytes=1)) == 1
    assert len(queue.acquire(0.0, 10, max_bytes=2500)) == 3
    assert len(queue.acquire(0.0, 10)) == 6


def test_the_last_allowed_delivery_dead_letters() -> None:
    """After its last allowed delivery a message is dead-lettered with the service's reason and its delivery count."""
    queue, effects = queue_of(max_delivery_count=3)
    put(queue, 0.0)
    for count in range(3):
        (message,) = queue.acquire(float(count), 1)
        assert message.delivery_count == count
        queue.abandon(message.lock.tag, float(count))
    assert len(queue.messages) == 0
    assert queue.dead_letters is not None
    (dead,) = queue.dead_letters.messages.values()
    assert dead.delivery_count == 3
    assert MessageView(effects.payloads([dead])[0]).user["DeadLetterReason"] == "MaxDeliveryCountExceeded"


# --- addresses -------------------------------------------------------------------------------------------------------

ADDRESSES = {
    "q": Address("q"),
    "/q/": Address("q"),
    "amqps://127.0.0.1:5671/q": Address("q"),
    "sb://host/a/b/c": Address("a/b/c"),
    "amqp://host": Address(""),
    "q/$management": Address("q", management=True),
    "q/$DeadLetterQueue": Address("q", sub_queue="dead"),
    "q/$deadletterqueue/$management": Address("q", sub_queue="dead", management=True),
    "q/$Transfer/$DeadLetterQueue": Address("q", sub_queue="transfer"),
    "t/Subscriptions/s": Address("t", "s"),
    "t/SUBSCRIPTIONS/S/$DeadLetterQueue": Address("t", "S", "dead"),
    "t/subscriptions/s/$management": Address("t", "s", None, True),
    "h/Partitions/3": Address("h", partition="3"),
    "h/ConsumerGroups/$Default/Partitions/0": Address("h", partition="0", consumer_group="$Default"),
    "h/Partitions/3/$DeadLetterQueue": Address("h", sub_queue="dead", partition="3"),
    "a%20b": Address("a b"),
}


@pytest.mark.parametrize(("text", "wanted"), ADDRESSES.items(), ids=ADDRESSES)
def test_addresses_are_parsed_in_every_form(text: str, wanted: Address) -> None:
    """URLs and paths are parsed with suffixes in any case and any combination."""
    assert parse_address(text) == wanted


@given(st.text(max_size=200))
def test_any_text_can_be_parsed_as_an_address(text: str) -> None:
    """Odd texts name an entity that does not exist; none raises."""
    parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "/$management" * 5_000,
        "/partitions/" * 5_000,
        "/consumergroups/" * 4_000,
        "a/subscriptions/" * 4_000,
        "%" * 60_000,
    ],
    ids=lambda text: text[:20],
)
def test_a_long_address_is_parsed_quickly(text: str) -> None:
    """The longest text that fits into a frame does not slow the parser down."""
    started = time.process_time()
    parse_address(text)
    assert time.process_time() - started < 1.0


# --- settling after the end of a lock -------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [None, "s"], ids=["no session", "session"])
@pytest.mark.parametrize("operation", ["complete", "abandon", "release", "defer", "dead_letter", "renew"])
def test_an_expired_lock_settles_nothing_before_a_timer_has_run(operation: str, session: str | None) -> None:
    """At the end of its lock a message is refused with lock lost; it stays, and is ready after the timer."""
    queue, _ = queue_of(requires_session=session is not None)
    put(queue, 0.0, session_id=session)
    held = None if session is None else queue.accept_session(session, "owner", 0.0)
    (message,) = queue.acquire(0.0, 1, "owner", held)
    end = message.lock.end
    assert end == 10.0
    with pytest.raises(BusError) as refused:
        getattr(queue, operation)(message.lock.tag, end)
    expected = "com.microsoft:message-lock-lost" if session is None else "com.microsoft:session-lock-lost"
    assert refused.value.condition == expected
    assert (queue.counts().active, queue.counts().dead_letter) == (1, 0)
    queue.advance(end)
    assert message.delivery_count == 1
    held = None if session is None else queue.accept_session(session, "other", end)
    assert queue.acquire(end, 1, "other", held) == [message]


@pytest.mark.parametrize("operation", ["complete", "abandon", "release", "defer", "dead_letter", "renew"])
def test_a_lock_holds_until_its_end(operation: str) -> None:
    """Just before its end a lock still allows every settlement."""
    queue, _ = queue_of()
    put(queue, 0.0)
    (message,) = queue.acquire(0.0, 1, "owner")
    getattr(queue, operation)(message.lock.tag, 9.999)


def test_an_expired_session_lock_is_lost_before_a_timer_has_run() -> None:
    """Its state cannot be set, it cannot be renewed, and another receiver may accept it."""
    queue, _ = queue_of(requires_session=True)
    put(queue, 0.0, session_id="s")
    session = queue.accept_session("s", "owner", 0.0)
    assert session is not None
    for refused in (lambda: queue.renew_session("s", 10.0), lambda: queue.set_session_state("s", b"x", 10.0)):
        with pytest.raises(BusError, match="session lock has expired"):
            refused()
    accepted = queue.accept_session("s", "other", 10.0)
    assert accepted is not None
    assert accepted.owner == "other"


# --- deleting the oldest messages -----------------------------------------------------------------------------------


def test_deleting_the_oldest_messages_leaves_locked_and_newer_ones() -> None:
    """Active messages go, lowest numbers first, up to the limit; locked, deferred and newer ones stay."""
    queue, _ = queue_of()
    for second in range(6):
        put(queue, float(second))
    locked, deferred = queue.acquire(0.0, 2)
    queue.defer(deferred.lock.tag, 0.0)
    assert queue.delete_oldest(2) == 2
    assert list(queue.messages) == [1, 2, 5, 6]
    assert queue.delete_oldest(10, before=5000.0) == 1
    assert list(queue.messages) == [1, 2, 6]
    assert locked.lock is not None
    assert [message.sequence for message in queue.acquire(6.0, 10)] == [6]


def test_deleting_the_oldest_messages_leaves_locked_sessions() -> None:
    """Messages of a locked session go only if the session is given."""
    queue, _ = queue_of(requires_session=True)
    for session in ("a", "b", "a"):
        put(queue, 0.0, session_id=session)
    assert queue.accept_session("a", "owner", 0.0) is not None
    assert queue.delete_oldest(10) == 1
    assert list(queue.messages) == [1, 3]
    assert queue.delete_oldest(1, session="a") == 1
    assert list(queue.messages) == [3]


def test_a_deferred_message_that_is_locked_cannot_be_received_again() -> None:
    """One receiver has it until it is settled, or its lock ends."""
    queue, _ = queue_of()
    put(queue, 0.0)
    (taken,) = queue.acquire(0.0, 1)
    queue.defer(taken.lock.tag, 0.0)
    (held,) = queue.receive_deferred([1], 1.0)
    token = held.lock.tag
    with pytest.raises(BusError, match="not deferred"):
        queue.receive_deferred([1], 2.0)
    queue.complete(token, 3.0)
    assert not queue.messages


def test_a_session_that_is_released_counts_no_delivery() -> None:
    """A receiver that closes its link has not failed to process the messages that it still holds."""
    queue, _ = queue_of(requires_session=True)
    put(queue, 0.0, session_id="a")
    owner = object()
    session = queue.accept_session("a", owner, 0.0)
    assert session is not None
    (taken,) = queue.acquire(0.0, 1, owner, session)
    queue.release_session(session, owner, 1.0)
    assert (taken.lock, taken.delivery_count) == (None, 0)
