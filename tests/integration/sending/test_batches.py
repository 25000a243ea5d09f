"""Forms, sizes and limits of sends in an outage, and the messages that their errors carry."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus import BacklogUnavailableError, NotParkableError, NotSupportedError, PairedSender
from pairbus.domain import envelope
from pairbus.domain.backlog import queue_path
from pairbus.sending.parcel import Ids
from pairbus.sending.sdk.encoding import encoded_members
from tests.support.pairing import Pair, come_back, on_parking, pairing_of
from tests.support.process_fixtures import connect
from tests.support.send_ledger import KEY, Ledger, key_of, peek

QUICK: dict[str, Any] = {"send_timeout": 20.0}


@pytest.fixture
def ledger(pair: Pair) -> Ledger:
    return Ledger(pair)


def rich(ledger: Ledger, **settings: Any) -> ServiceBusMessage:
    """A message with everything that the SDK lets one set."""
    return ledger.message(
        b"body",
        application_properties={
            "float": 1.5,
            "true": True,
            "large": 2**30,
            "uuid": uuid.UUID(int=7),
            b"bytes key": b"bytes value",
            "empty": "",
        },
        content_type="application/json",
        correlation_id="c",
        reply_to="r",
        reply_to_session_id="rs",
        to="t",
        **settings,
    )


def annotated(ledger: Ledger, **body: Any) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(
        **body,
        header=AmqpMessageHeader(priority=7, durable=True, time_to_live=60_000),
        properties=AmqpMessageProperties(
            message_id="annotated", user_id=b"me", group_id="session", group_sequence=3, content_encoding="gzip"
        ),
        application_properties={KEY: ledger.key(), "n": 1},
        annotations={"x-opt-mine": "a", "x-opt-partition-key": "session"},
        footer={"f": 1},
    )


def mapping(ledger: Ledger, **settings: Any) -> dict[str, Any]:
    key = ledger.key()
    return {"body": "b", "message_id": key, "application_properties": {KEY: key, b"k": b"v"}, **settings}


def received(pair: Pair, ledger: Ledger) -> list[Any]:
    """Messages that the SDK has received, to be sent on."""
    queue = pair.queue()
    with connect(pair.primary.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ledger.messages(2))
        with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
            found: list[Any] = []
            while len(found) < 2:
                found += receiver.receive_messages(2, max_wait_time=60)
    return found


FORMS: dict[str, Callable[[Pair, Ledger, PairedSender], Any]] = {
    "one": lambda pair, ledger, sender: ledger.message(),
    "rich": lambda pair, ledger, sender: rich(ledger, session_id="s", time_to_live=timedelta(minutes=5)),
    "list": lambda pair, ledger, sender: ledger.messages(3),
    "generator": lambda pair, ledger, sender: (each for each in ledger.messages(3)),
    "tuple": lambda pair, ledger, sender: tuple(ledger.messages(3)),
    "mapping": lambda pair, ledger, sender: mapping(ledger),
    "mappings": lambda pair, ledger, sender: [mapping(ledger), mapping(ledger, session_id="7")],
    "annotated data": lambda pair, ledger, sender: annotated(ledger, data_body=[b"one", b"two"]),
    "annotated value": lambda pair, ledger, sender: annotated(ledger, value_body={"a": [1, None, b"x"]}),
    "annotated sequence": lambda pair, ledger, sender: [annotated(ledger, sequence_body=[[1, "a"], [2.5]])],
    "received list": lambda pair, ledger, sender: received(pair, ledger),
    "batch": lambda pair, ledger, sender: filled(sender, ledger.messages(3)),
    "mixed batch": lambda pair, ledger, sender: filled(
        sender,
        [rich(ledger), annotated(ledger, data_body=[b"x"]), mapping(ledger)],
    ),
    "without ids": lambda pair, ledger, sender: ledger.messages(2, message_id=None),
    "scheduled": lambda pair, ledger, sender: ledger.message(
        session_id="s",
        time_to_live=timedelta(hours=2),
        scheduled_enqueue_time_utc=datetime.now(timezone.utc) + timedelta(hours=1),
    ),
}


def filled(sender: PairedSender, messages: list[Any]) -> Any:
    batch = sender.create_message_batch()
    for each in messages:
        batch.add_message(each)
    return batch


def test_every_form_arrives_unchanged_directly_and_parked(pair: Pair, ledger: Ledger) -> None:
    """Whatever the SDK's sender takes a paired one takes, healthy and failed over: same bytes, each message once."""
    queue = pair.queue()
    bus = pair.pairing(**QUICK)
    with bus.get_queue_sender(queue) as sender:
        for make in FORMS.values():
            ledger.must_send(sender, make(pair, ledger, sender))
        assert bus.status().entities[queue].parked == 0
        direct = set(ledger.entries)
        ledger.fail_over(sender)
        for make in FORMS.values():
            ledger.must_send(sender, make(pair, ledger, sender))
    found = ledger.check(but=0)
    assert {key for key, places in found.items() if places[0].place == queue} == direct


@pytest.mark.parametrize("down", [False, True])
def test_the_callers_objects_stay_as_they_were(pair: Pair, ledger: Ledger, down: bool) -> None:
    """Nothing that a caller can see of what was given changes, whether it is sent directly or parked."""
    queue = pair.queue()
    sender = pair.sender(queue, **QUICK)
    if down:
        ledger.fail_over(sender)
    for name, make in FORMS.items():
        if name in ("batch", "mixed batch", "generator", "received list"):
            continue
        given = make(pair, ledger, sender)
        before = visible(given)
        ledger.must_send(sender, given)
        assert visible(given) == before, name
    ledger.check(but=0)


def visible(given: Any) -> Any:
    """All that a caller sees of a message, as plain values that are not shared with it."""
    if isinstance(given, (list, tuple)):
        return [visible(each) for each in given]
    if isinstance(given, dict):
        return copy.deepcopy(given)
    raw = given if isinstance(given, AmqpAnnotatedMessage) else given.raw_amqp_message
    found: dict[str, Any] = {
        "body": copy.deepcopy([bytes(each) if isinstance(each, bytes) else each for each in _body(raw)])
    }
    for part in ("header", "properties"):
        found[part] = copy.deepcopy(dict(vars(getattr(raw, part)))) if getattr(raw, part) is not None else None
    for part in ("application_properties", "annotations", "delivery_annotations", "footer"):
        found[part] = copy.deepcopy(getattr(raw, part))
    return found


def _body(raw: AmqpAnnotatedMessage) -> list[Any]:
    return [raw.body] if raw.body_type.value == "value" else list(raw.body)


# --- ids, sessions, times --------------------------------------------------------------------------------------


def test_ids_sessions_and_times_survive_the_backlog(pair: Pair, ledger: Ledger) -> None:
    """A given id is kept, a missing one is made, and what would act on the backlog is cleared there and restored."""
    sender = pair.sender(pair.queue(), **QUICK)
    ledger.fail_over(sender)
    later = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=1)
    ledger.must_send(
        sender,
        [
            ledger.message(message_id="mine", session_id="42"),
            ledger.message(message_id=None, time_to_live=timedelta(seconds=90)),
            ledger.message(scheduled_enqueue_time_utc=later),
        ],
    )
    found = ledger.check(but=0)
    mine, none, scheduled = (envelope.restore(found[f"m{index}"][0].payload, 0) for index in (1, 2, 3))
    assert (mine.message_id, mine.session_id) == ("mine", "42")
    assert isinstance(none.message_id, str)
    assert str(uuid.UUID(none.message_id)) == none.message_id
    assert none.time_to_live == 90_000
    assert scheduled.scheduled == later.timestamp() * 1000
    # All three can be received from the backlog now: none waits, expires, or belongs to a session.
    assert pair.parked() == 4
    assert len(pair.take_parked()) == 4


# --- batches in an outage --------------------------------------------------------------------------------------


def test_a_large_batch_is_parked_in_parts_and_in_order(pair: Pair, ledger: Ledger) -> None:
    """A batch that fits the primary but not the backlog is divided; every message arrives once, in order."""
    queue = pair.queue(max_message_size_in_kilobytes=1024)
    sender = pair.sender(queue, backlog_queue_count=1, **QUICK)
    batch = sender.create_message_batch()
    assert batch.max_size_in_bytes == 1024 * 1024
    given = [ledger.message(b"x" * (1 + 5000 * (index % 17))) for index in range(24)]
    for each in given:
        batch.add_message(each)
    assert batch.size_in_bytes > 3 * 256 * 1024
    ledger.fail_over(sender)
    ledger.must_send(sender, batch)
    ledger.check(but=0)
    assert in_order(pair) == [f"m{index}" for index in [24, *range(24)]]


def test_a_batch_is_divided_by_the_limit_that_the_link_tells(pair: Pair, ledger: Ledger) -> None:
    """A backlog that takes less than its description says is no reason to give up: parts get smaller."""
    queue = pair.queue()
    sender = pair.sender(queue, backlog_queue_count=2, **QUICK)
    pair.secondary.faults.size_limit(5000)
    pair.primary.kill()
    ledger.must_send(sender, ledger.messages(20, b"x" * 1000))
    ledger.check(but=0)
    assert in_order(pair) == [f"m{index}" for index in range(20)]
    assert all(queue.in_rotation for queue in pairing_of(sender).status().queues.values())
    # It is known from now on: what does not fit is told before anything is sent.
    found = sender.can_park(ServiceBusMessage(b"x" * 6000))
    assert (found.fits, found.limit) == (False, 5000)


def test_a_backlog_for_large_messages_takes_no_larger_batches(pair: Pair, ledger: Ledger) -> None:
    """Large single messages (premium) do not make batches larger: parts stay below a megabyte."""
    with pair.admin(pair.secondary) as admin:
        admin.create_queue(queue_path(pair.name, 0), max_message_size_in_kilobytes=10 * 1024)
    queue = pair.queue(max_message_size_in_kilobytes=10 * 1024)
    sender = pair.sender(queue, backlog_queue_count=1, **QUICK)
    ledger.fail_over(sender)
    ledger.must_send(sender, ledger.messages(5, b"x" * 400_000))
    ledger.must_send(sender, ledger.messages(5, b"x" * 400_000))
    large = ledger.message(b"x" * 3_000_000)
    fits = sender.can_park(large)
    error = ledger.send(sender, large)
    assert bool(fits) is (error is None), (fits, error)
    ledger.check(but=0)


def in_order(pair: Pair) -> list[str]:
    """The keys of what is parked, queue by queue, as it would be received."""
    return [key_of(payload) for path in pair.backlog() for payload in peek(pair.secondary, path)]


def test_a_message_that_a_queue_calls_too_large_is_refused(pair: Pair, ledger: Ledger) -> None:
    """A message that all backlog queues find too large is the caller's to see; it takes no queue from the others."""
    queue = pair.queue()
    bus = pair.pairing(**QUICK)
    with bus.get_queue_sender(queue) as sender:
        pair.secondary.faults.size_limit(5000)
        ledger.fail_over(sender)
        given = [ledger.message(), ledger.message(b"x" * 6000), ledger.message()]
        error = ledger.send(sender, given)
        assert isinstance(error, NotParkableError)
        assert given[1] in error.messages
        assert error.size is not None
        assert error.size > 6000
        assert all(found.in_rotation for found in bus.status().queues.values())
        ledger.must_send(sender, ledger.message())
    ledger.check(but=0)


def test_a_batch_is_what_was_added_to_it(pair: Pair, ledger: Ledger) -> None:
    """An object that is changed and added again is as many messages, also when a failback divides their batch."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1, **QUICK)
    with bus.get_queue_sender(queue) as sender:
        pair.secondary.faults.size_limit(3000)
        ledger.fail_over(sender)
        batch = sender.create_message_batch()
        reused = ServiceBusMessage(b"x" * 800)
        for _ in range(8):
            reused.application_properties = {KEY: ledger.key()}
            reused.message_id = str(uuid.uuid4())
            batch.add_message(reused)
        on_parking(bus, after=lambda path: come_back(bus, queue))
        ledger.must_send(sender, batch)
    found = ledger.check(but=0)
    assert {each.place for places in found.values() for each in places} == {queue, *pair.backlog()}


def test_one_member_too_large_refuses_the_whole_batch(pair: Pair, ledger: Ledger) -> None:
    """A member that no backlog queue can hold is refused with all its figures, before anything of the batch is sent."""
    queue = pair.queue(max_message_size_in_kilobytes=1024)
    sender = pair.sender(queue, **QUICK)
    ledger.fail_over(sender)
    given = [ledger.message(), ledger.message(b"x" * 262_000), ledger.message()]
    error = ledger.send(sender, given)
    assert isinstance(error, NotParkableError)
    assert isinstance(error, MessageSizeExceededError)
    assert error.messages == given
    size = len(encoded_members(given[1])[0])
    assert error.limit == 256 * 1024
    assert error.size is not None
    assert error.size > error.limit
    assert error.added == error.size - size
    for figure in (error.size, error.limit, error.added):
        assert f"{figure:,}" in str(error)
    found = ledger.check(but=0)
    assert list(found) == ["m0"]
    assert pairing_of(sender).status().entities[queue].parked == 1


@pytest.mark.parametrize("name", [envelope.PATH, envelope.FORM])
def test_a_message_that_uses_a_name_of_parking_is_refused_by_name(pair: Pair, ledger: Ledger, name: str) -> None:
    """Two values cannot live under one name: the error names it, and the primary takes such a message as ever."""
    sender = pair.sender(pair.queue(), **QUICK)
    ledger.must_send(sender, ledger.message(application_properties={name: "mine"}))
    ledger.fail_over(sender)
    given = [ledger.message(), ledger.message(application_properties={name: "mine"})]
    can = sender.can_park(given[1])
    assert not can
    assert can.why is not None
    assert name in can.why
    error = ledger.send(sender, given)
    assert isinstance(error, NotParkableError)
    assert error.property_name == name
    assert name in str(error)
    assert error.messages == given
    ledger.check(but=0)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_that_is_taken_in_part_names_the_rest(pair: Pair, ledger: Ledger, count: int) -> None:
    """When every backlog queue refuses midway the error carries exactly what was not accepted, in order."""
    queue = pair.queue(max_message_size_in_kilobytes=1024)
    bus = pair.pairing(backlog_queue_count=count, **QUICK)
    with bus.get_queue_sender(queue) as sender:
        ledger.fail_over(sender)
        given = ledger.messages(9, b"x" * 100_000)
        # Two of them fit one part.
        used = next(path for path, found in bus.status().queues.items() if found.parked)
        with pair.admin(pair.secondary) as admin:
            for path in set(pair.backlog()) - {used}:
                admin.delete_queue(path)
        taken: list[str] = []

        def full_after_two_parts(path: str) -> None:
            if len(taken) == 2:
                pair.secondary.faults.quota_exceeded(used)
            taken.append(path)

        on_parking(bus, before=full_after_two_parts)
        error = ledger.send(sender, given)
        assert isinstance(error, BacklogUnavailableError)
        assert error.messages == given[4:]
        assert set(error.reasons) == set(bus.status().queues)
        assert bus.status().entities[queue].parked == 5
        assert bus.status().queues[used].parked == 5
    found = ledger.check(but=0)
    assert len(found) == 5


def test_an_error_midway_names_only_what_was_not_parked(pair: Pair, ledger: Ledger) -> None:
    """Whatever goes wrong between two parts, messages that are parked are not called lost."""
    queue = pair.queue(max_message_size_in_kilobytes=1024)
    bus = pair.pairing(backlog_queue_count=1, **QUICK)
    with bus.get_queue_sender(queue) as sender:
        ledger.fail_over(sender)
        given = ledger.messages(6, b"x" * 100_000)
        parts = []

        def breaks(path: str) -> None:
            parts.append(path)
            if len(parts) == 3:
                raise MemoryError("no more")

        on_parking(bus, before=breaks)
        error = ledger.send(sender, given)
        assert isinstance(error, MemoryError)
        assert error.messages == given[4:]  # type: ignore[attr-defined]
    ledger.check(but=0)


def test_errors_carry_the_callers_own_objects(pair: Pair, ledger: Ledger) -> None:
    """An error has the very objects that were given, to be sent again."""
    queue = pair.queue()
    sender = pair.sender(queue, **QUICK)
    pair.primary.faults.quota_exceeded(queue)
    one = ledger.message(application_properties={b"b": b"v"})
    several = [ledger.message(application_properties={b"b": b"v"}) for _ in range(2)]
    for given, wanted in ((one, [one]), (several, several), (iter(several[:0]), [])):
        if not wanted:
            sender.send_messages(given)
            continue
        error: Any = ledger.send(sender, given)
        assert [id(each) for each in error.messages] == [id(each) for each in wanted]
    pair.primary.kill()
    pair.secondary.kill()
    again = ledger.message(application_properties={b"b": b"v"})
    error = ledger.send(sender, again, timeout=1.0)
    assert isinstance(error, BacklogUnavailableError)
    assert error.messages[0] is again
    ledger.check(but=0)


# --- sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"session_id": "s" * 100, "message_id": None}])
def test_can_park_is_right_to_the_byte(pair: Pair, ledger: Ledger, settings: dict[str, Any]) -> None:
    """The largest body that `can_park` allows is parked and one byte more is refused, told healthy and failed over."""
    queue = pair.queue(max_message_size_in_kilobytes=1024)
    sender = pair.sender(queue, **QUICK)

    def can(size: int) -> bool:
        return bool(sender.can_park(ServiceBusMessage(b"x" * size, **fixed)))

    key = ledger.key()
    fixed = {"application_properties": {KEY: key}, "message_id": "m", **settings}
    low, high = 0, 300_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if can(middle) else (low, middle)
    ledger.fail_over(sender)
    assert (can(low), can(low + 1)) == (True, False)
    ledger.must_send(sender, ServiceBusMessage(b"x" * low, **fixed))
    fixed["application_properties"] = {KEY: key[:-1] + "z"}
    error = ledger.send(sender, ServiceBusMessage(b"x" * (low + 1), **fixed))
    assert isinstance(error, NotParkableError)
    assert error.size == error.limit + 1
    told = sender.can_park(ServiceBusMessage(b"x" * (low + 1), **fixed))
    assert (told.size, told.limit, told.added) == (error.size, error.limit, error.added)
    assert told.why == str(error)
    # Less than one kilobyte of what a backlog queue takes stays unused.
    assert 256 * 1024 - low < 1024
    ledger.check(but=0)


def test_a_batch_is_reckoned_as_the_sdk_does(pair: Pair, ledger: Ledger) -> None:
    """Limit, size and the moment of the size error are those of the SDK's own batch, healthy and failed over."""
    queue = pair.queue()
    sender = pair.sender(queue, **QUICK)
    with connect(pair.primary.connection_string) as client, client.get_queue_sender(queue) as plain:
        for size in (None, 3000):
            theirs, ours = plain.create_message_batch(size), sender.create_message_batch(size)
            assert ours.max_size_in_bytes == theirs.max_size_in_bytes
            limited = [ServiceBusMessage(b"x" * length, subject="s") for length in (10, 300, 2000, 300_000)]
            for each in limited:
                outcomes = []
                for batch in (theirs, ours):
                    try:
                        batch.add_message(each)
                        outcomes.append("added")
                    except MessageSizeExceededError:
                        outcomes.append("too large")
                assert outcomes[0] == outcomes[1]
                assert (ours.size_in_bytes, len(ours)) == (theirs.size_in_bytes, len(theirs))
        with pytest.raises(ValueError, match="too large"):
            plain.create_message_batch(10**9)
        with pytest.raises(ValueError, match="too large"):
            sender.create_message_batch(10**9)
        limit = plain.create_message_batch().max_size_in_bytes
    ledger.fail_over(sender)
    assert sender.create_message_batch().max_size_in_bytes == limit
    ledger.check(but=0)


# --- what there is not -----------------------------------------------------------------------------------------


def test_scheduling_by_call_says_what_to_use_instead(pair: Pair, ledger: Ledger) -> None:
    """`schedule_messages` and `cancel_scheduled_messages` raise an error that names them and the way to do it."""
    sender = pair.sender(pair.queue(), **QUICK)
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with pytest.raises(NotSupportedError, match=r"schedule_messages .* scheduled_enqueue_time_utc"):
        sender.schedule_messages(ledger.message(), later)
    with pytest.raises(NotSupportedError, match=r"cancel_scheduled_messages .* ServiceBusClient"):
        sender.cancel_scheduled_messages([1, 2])
    ledger.must_send(sender, ledger.message(scheduled_enqueue_time_utc=later))
    ledger.check(but=0)


# --- ids -------------------------------------------------------------------------------------------------------------


def test_ids_are_never_the_same() -> None:
    """Those of one pairing, taken by many threads, and those of another; all of one length, which sizes reckon with."""
    one, other = Ids(), Ids()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [next(one) for _ in range(1000)], range(4)))
    taken = [each for several in found for each in several] + [next(other) for _ in range(1000)]
    assert len(set(taken)) == len(taken) == 5000
    assert {len(each) for each in taken} == {32}


def test_messages_without_an_id_get_one_each(pair: Pair) -> None:
    """Of several senders of a pairing, single and in a list; one that has an id keeps it."""
    queue = pair.queue()
    bus = pair.pairing()
    bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    for sender in (bus.get_queue_sender(queue) for _ in range(2)):
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"one"))
        sender.send_messages([AmqpAnnotatedMessage(data_body=b"two"), AmqpAnnotatedMessage(data_body=b"three")])
    sender.send_messages(ServiceBusMessage("mine", message_id="mine"))
    ids = [each.message_id for each in pair.take_parked()]
    assert len(set(ids)) == 7
    assert "mine" in ids
