"""The backlog queue that a sender uses: its choice, its leaving the rotation, and its return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError
from azure.servicebus.management import EntityStatus

from pairbus import BacklogUnavailableError, NotParkableError
from pairbus.domain.backlog import queue_path
from pairbus.domain.conditions import MESSAGE_CONDITIONS
from pairbus.localbus import bus_errors as localbus_conditions
from pairbus.sending.sdk.classification import amqp_condition
from tests.support.pairing import (
    Pair,
    backlog_queue_of,
    entity_of_sender,
    on_parking,
    returned_messages,
    use_backlog_queue,
)
from tests.support.send_ledger import Ledger
from tests.support.waiting import wait_until

QUICK: dict[str, Any] = {"send_timeout": 16.0}


@pytest.fixture
def ledger(pair: Pair) -> Ledger:
    return Ledger(pair)


def change(pair: Pair, path: str, **changes: Any) -> None:
    with pair.admin(pair.secondary) as admin:
        found = admin.get_queue(path)
        for name, value in changes.items():
            setattr(found, name, value)
        admin.update_queue(found)


def delete(pair: Pair, path: str) -> None:
    with pair.admin(pair.secondary) as admin:
        admin.delete_queue(path)


REFUSALS: dict[str, Callable[[Pair, str], Any]] = {
    "not found": delete,
    "disabled": lambda pair, path: change(pair, path, status=EntityStatus.DISABLED),
    "sending disabled": lambda pair, path: change(pair, path, status=EntityStatus.SEND_DISABLED),
    "full": lambda pair, path: pair.secondary.faults.quota_exceeded(path),
    "unauthorised": lambda pair, path: pair.secondary.faults.unavailable(
        path, condition="amqp:unauthorized-access"
    ),
    "internal error": lambda pair, path: pair.secondary.faults.internal_error(path),
    "unavailable": lambda pair, path: pair.secondary.faults.unavailable(path),
    "black hole": lambda pair, path: pair.secondary.faults.black_hole(path),
}  # fmt: skip


def test_senders_spread_over_all_queues_and_each_stays_with_its_own(pair: Pair, ledger: Ledger) -> None:
    """Forty senders use all four queues between them, and each parks everything in one."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=4, **QUICK)
    senders = [bus.get_queue_sender(queue) for _ in range(40)]
    ledger.fail_over(senders[0])
    keys: list[list[str | None]] = []
    for sender in senders:
        keys.append([])
        for _ in range(3):
            message = ledger.message()
            keys[-1].append(message.subject)
            ledger.must_send(sender, message)
    found = ledger.check(but=0)
    used = [{found[key][0].place for key in each} for each in keys]
    assert all(len(each) == 1 for each in used)
    assert set().union(*used) == {queue_path(pair.name, index) for index in range(4)}


def test_a_queue_that_refuses_leaves_for_all_senders(pair: Pair, ledger: Ledger) -> None:
    """Whatever a backlog queue refuses a send with, if it is not the message's fault: it leaves the rotation of every
    sender and the send goes on to another."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=len(REFUSALS) + 1, **QUICK)
    first, second = (bus.get_queue_sender(queue) for _ in range(2))
    good = queue_path(pair.name, len(REFUSALS))
    bad = {kind: queue_path(pair.name, index) for index, kind in enumerate(REFUSALS)}
    use_backlog_queue(first, good)
    # Each send meets one bad queue: by chance it might meet all ten, one after the other, in the time that it has.
    bus.backlog.rotation.choose = lambda left: good if good in left else left[0]
    ledger.fail_over(first)
    for kind, path in bad.items():
        REFUSALS[kind](pair, path)
    for kind, path in bad.items():
        for each in (first, second):
            use_backlog_queue(each, path)  # what they might have picked
        ledger.must_send(first, ledger.messages(2))
        assert not bus.status().queues[path].in_rotation, kind
        assert bus.status().queues[path].why, kind
        ledger.must_send(second, ledger.message())
    assert [path for path, status in bus.status().queues.items() if status.in_rotation] == [good]
    found = ledger.check(but=0)
    assert {each.place for places in found.values() for each in places} == {good}
    # Each was found out once, by whichever sender came first.
    left = wait_until(lambda: len(pair.told("queue left rotation")) >= len(bad) and pair.told("queue left rotation"))
    assert sorted(event.queue for event in left) == sorted(bad.values())


@pytest.mark.parametrize("condition", sorted(MESSAGE_CONDITIONS & set(localbus_conditions.STATUS)))
def test_a_message_that_all_queues_refuse_takes_none_from_the_others(
    pair: Pair, ledger: Ledger, condition: str
) -> None:
    """The refusal itself is raised, with the messages; no queue leaves, and other messages are
    parked where they would have been."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=3, **QUICK)
    first, second = (bus.get_queue_sender(queue) for _ in range(2))
    for sender in (first, second):
        ledger.fail_over(sender)
    used = [backlog_queue_of(first), backlog_queue_of(second)]
    with pair.secondary.faults.during("reject", condition=condition):
        given = ledger.messages(3)
        error = ledger.send(first, given)
    assert isinstance(error, ServiceBusError)
    assert not isinstance(error, BacklogUnavailableError)
    assert amqp_condition(error) == condition or isinstance(error, NotParkableError)
    assert returned_messages(error) == given
    assert all(found.in_rotation for found in bus.status().queues.values())
    for sender in (first, second):
        ledger.must_send(sender, ledger.message())
    assert [backlog_queue_of(first), backlog_queue_of(second)] == used
    assert not pair.told("queue left rotation")
    ledger.check(but=0)


def test_a_message_that_one_queue_refuses_is_parked_in_another(pair: Pair, ledger: Ledger) -> None:
    """If only some queues take the message, one of them is found, and none leaves."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=2, **QUICK)
    sender = bus.get_queue_sender(queue)
    ledger.fail_over(sender)
    assert backlog_queue_of(sender) is not None
    pair.secondary.faults.reject("amqp:not-allowed", backlog_queue_of(sender))
    refusing = backlog_queue_of(sender)
    ledger.must_send(sender, ledger.message())
    assert backlog_queue_of(sender) != refusing
    assert all(found.in_rotation for found in bus.status().queues.values())
    ledger.check(but=0)


@pytest.mark.parametrize("then", ["all fail", "the other fails"])
def test_a_refusal_says_nothing_about_the_messages_after_it(pair: Pair, then: str) -> None:
    """A queue refuses the first part of a list, another takes it and then fails: the first is asked about the rest, and
    if it fails as well the error is that the backlog is unavailable, not what it had said about what is parked."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=2, **QUICK)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    first, second = (queue_path(pair.name, index) for index in range(2))
    use_backlog_queue(sender, first)
    faults = pair.secondary.faults
    refusal = faults.reject("amqp:not-allowed", first)

    def then_down(path: str) -> None:
        if path == second:
            faults.clear(refusal)
            faults.unavailable(second)
            if then == "all fail":
                faults.unavailable(first)

    on_parking(bus, after=then_down)
    given = [ServiceBusMessage(f"{number}" + "x" * 100_000) for number in range(4)]
    if then == "the other fails":
        sender.send_messages(given)
        assert pair.parked_by_queue() == {first: 2, second: 2}
        return
    with pytest.raises(BacklogUnavailableError) as raised:
        sender.send_messages(given)
    assert raised.value.messages == given[2:]
    assert set(raised.value.reasons) == {first, second}
    assert pair.parked_by_queue() == {first: 0, second: 2}


def test_a_key_that_may_not_send_moves_to_a_queue_where_it_may(pair: Pair, ledger: Ledger) -> None:
    """A queue whose link is refused while another's is not costs no message."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=3, **QUICK)
    for index in (0, 1):
        REFUSALS["unauthorised"](pair, queue_path(pair.name, index))
    with bus.get_queue_sender(queue) as sender:
        ledger.fail_over(sender)
        for _ in range(3):
            ledger.must_send(sender, ledger.messages(2))
    found = ledger.check(but=0)
    assert {each.place for places in found.values() for each in places} == {queue_path(pair.name, 2)}


def test_a_queue_is_tried_again_after_the_ping_interval(pair: Pair, ledger: Ledger) -> None:
    """A queue that had left is used again when its time is over, and a long outage cannot use the rotation up."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1, ping_primary_interval=10.0, **QUICK)
    only = queue_path(pair.name, 0)
    pair.primary.faults.unavailable(queue)
    with bus.get_queue_sender(queue) as sender:
        ledger.fail_over(sender)
        full = pair.secondary.faults.quota_exceeded(only)
        error = ledger.send(sender, ledger.message())
        assert isinstance(error, BacklogUnavailableError)
        assert not bus.status().queues[only].in_rotation
        pair.secondary.faults.clear(full)
        # While it is away nobody asks it.
        error = ledger.send(sender, ledger.message())
        assert isinstance(error, BacklogUnavailableError)
        wait_until(lambda: bus.status().queues[only].in_rotation)
        ledger.must_send(sender, ledger.messages(2))
        assert bus.status().queues[only].in_rotation
        wait_until(lambda: [event.queue for event in pair.told("queue back in rotation")] == [only])
    ledger.check(but=0)


def test_no_queue_left_is_an_error_that_carries_messages_and_reasons(pair: Pair, ledger: Ledger) -> None:
    """`BacklogUnavailableError` has the caller's messages in order and says of every queue why it refused."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=3, **QUICK)
    paths = [queue_path(pair.name, index) for index in range(3)]
    for path, kind in zip(paths, ("full", "disabled", "not found"), strict=True):
        REFUSALS[kind](pair, path)
    sender = bus.get_queue_sender(queue)
    entity_of_sender(sender).failed(OperationTimeoutError(message="a failure that counts"), time.monotonic())
    given = ledger.messages(4)
    error = ledger.send(sender, given)
    assert isinstance(error, BacklogUnavailableError)
    assert error.messages == given
    assert set(error.reasons) == set(paths)
    assert "ServiceBusQuotaExceededError" in error.reasons[paths[0]]
    assert "MessagingEntityDisabledError" in error.reasons[paths[1]]
    assert "ServiceBusAuthenticationError" in error.reasons[paths[2]]
    assert str(len(given)) in str(error)
    assert not any(found.in_rotation for found in bus.status().queues.values())
    # Told at once, now that it is known.
    batch = sender.create_message_batch()
    batch.add_message(ledger.message())
    error = ledger.send(sender, batch)
    assert isinstance(error, BacklogUnavailableError)
    assert set(error.reasons) == set(paths)
    ledger.check(but=0)


def test_threads_that_share_a_sender_share_its_queue(pair: Pair, ledger: Ledger) -> None:
    """Whichever of them parks first picks one for all, also when that one refuses: what each parks for a session
    stays in order."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=8, **QUICK)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)

    def park_together() -> None:
        together = threading.Barrier(8)

        def park() -> None:
            together.wait()
            for _ in range(3):
                ledger.must_send(sender, ledger.message())

        threads = [threading.Thread(target=park) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    park_together()
    assert sorted(pair.parked_by_queue().values()) == [0] * 7 + [24]
    (full,) = (path for path, count in pair.parked_by_queue().items() if count)
    pair.secondary.faults.quota_exceeded(full)
    park_together()
    assert sorted(pair.parked_by_queue().values()) == [0] * 6 + [24, 24]
