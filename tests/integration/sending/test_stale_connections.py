"""Connections that have gone stale: they are replaced, and no failure is counted."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.pairing import Pair, come_back, entity_of, on_parking, state_of


def test_a_connection_that_was_cut_is_not_used_again(pair: Pair) -> None:
    """The guard cuts a call just as its answer arrives: the next send gets another connection, no outage is seen."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    pool = entity_of(bus, queue).pool
    connection = pool.take()
    connection.cut()
    pool.give_back(connection)
    sender.send_messages(ServiceBusMessage("2"))
    assert state_of(bus, queue) == "available"
    assert pair.bodies(queue) == ["1", "2"]


def test_idle_connections_do_not_outlive_a_failover(pair: Pair) -> None:
    """A connection to the dead primary is not used again after the failback."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("1"))
    assert entity_of(bus, queue).pool.idle_count
    pair.declare_down(bus, queue)
    assert entity_of(bus, queue).pool.idle_count == 0


@pytest.mark.parametrize("condition", ["amqp:unauthorized-access", "com.microsoft:auth-failed"])
def test_a_token_that_ran_out_is_replaced(pair: Pair, condition: str) -> None:
    """A link that was open is refused once: a new connection with a new token sends the message, without an error."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))
    pair.primary.faults.reject(condition, queue, count=1)
    sender.send_messages(ServiceBusMessage("after"))
    assert pair.bodies(queue) == ["before", "after"]
    assert bus.status().entities[queue].last_error is None


def test_a_stale_connection_to_a_backlog_queue_is_replaced(pair: Pair) -> None:
    """An idle connection is cut: the message is parked in the same queue, which does not leave the rotation."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    for _ in range(3):
        sender.send_messages(ServiceBusMessage("parked"))
        pair.secondary.faults.drop()
    assert sorted(pair.parked_by_queue().values()) == [0, 3]
    assert all(each.in_rotation for each in bus.status().queues.values())
    assert not pair.told("queue left rotation")


def test_a_failback_does_not_make_a_long_list_too_large(pair: Pair) -> None:
    """Too long for one batch to the primary, which comes back midway: the rest goes there once it fits."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("before"))  # the link has told its limit
    pair.declare_down(bus, queue)
    on_parking(bus, after=lambda path: come_back(bus, queue))
    sender.send_messages([ServiceBusMessage(f"{number}" + "x" * 100_000) for number in range(8)])
    assert [body[0] for body in pair.parked_bodies()] == ["0", "1", "2", "3", "4", "5"]
    assert [body[0] for body in pair.bodies(queue)] == ["b", "6", "7"]


def test_one_service_error_while_a_sender_is_opened_is_no_failover(pair: Pair) -> None:
    """It counts after retries, and those are the first send's: by then the service is well again."""
    queue = pair.queue()
    bus = pair.pairing()
    pair.primary.faults.unavailable(queue)
    with bus.get_queue_sender(queue) as sender:
        assert state_of(bus, queue) == "available"
        pair.primary.faults.clear()
        sender.send_messages(ServiceBusMessage("sent"))
    assert pair.bodies(queue) == ["sent"]
