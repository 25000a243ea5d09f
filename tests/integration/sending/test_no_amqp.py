"""An open link that answers with what is no AMQP, as a front end does whose service is gone: a lost connection."""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.eventhub.exceptions import EventHubError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

from pairbus.sending.connections import ConnectionPool, SenderConnection
from pairbus.sending.sdk.classification import is_unnamed
from tests.support.event_hubs import Hubs, event, hubs, hubs_bus  # noqa: F401  # fixtures
from tests.support.pairing import Pair, backlog_queue_of, entity_of, returned_messages
from tests.support.waiting import wait_until

PERFORMATIVE = struct.pack(">IBBH", 12, 2, 0, 0) + b"\x00\x53"
#: What the SDK stumbles over, by the error that it stumbles with.
ANSWERS = {
    "ValueError": b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
    "ValueError of a length": b"\0" * 64,
    "IndexError": struct.pack(">IBBH", 16, 2, 0, 0) + b"\x00\x53\x15\xc0\xff\x05\x41\x43",
    "TypeError": PERFORMATIVE + b"\x13\x45",
    "AttributeError": PERFORMATIVE + b"\x12\x45",
}
NO_AMQP = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())


def spoil(pool: ConnectionPool, answer: bytes, times: float = float("inf")) -> list[SenderConnection]:
    """The next sends on these pool have that for an answer; the pool that they went through."""
    spoiled: list[SenderConnection] = []

    def spoiling(take: Callable[[], SenderConnection]) -> Callable[[], SenderConnection]:
        def taken() -> SenderConnection:
            connection = take()
            if "send" in vars(connection):
                return connection
            send = connection.send

            def spoiled_send(message: Any, timeout: float) -> None:
                connection.open(timeout)
                if len(spoiled) < times:
                    spoiled.append(connection)
                    connection.sender._handler._connection._transport._read_buffer = BytesIO(answer)
                send(message, timeout)

            connection.send = spoiled_send  # type: ignore[method-assign]
            return connection

        return taken

    pool.take = spoiling(pool.take)  # type: ignore[method-assign]
    pool.take_new = spoiling(pool.take_new)  # type: ignore[method-assign]
    return spoiled


@NO_AMQP
def test_a_link_that_answers_nonsense_is_replaced(pair: Pair, answer: bytes) -> None:
    """Once: nobody hears of it, and it is no failure of the entity."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue).__enter__()
    spoiled = spoil(entity_of(bus, queue).pool, answer, 1)
    sender.send_messages(ServiceBusMessage("x"))
    assert spoiled[0].was_cut
    assert bus.status().entities[queue].state == "available"
    assert not pair.told("entity suspected")
    assert set(pair.bodies(queue)) == {"x"}  # the broker has it, and maybe twice: its answer was not understood


@NO_AMQP
def test_an_entity_that_answers_nonsense_fails_over(pair: Pair, answer: bytes) -> None:
    """Again and again: it counts like no answer at all, and the message is parked. To a ping it is no refusal."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60, ping_primary_interval=1, ping_timeout=60)
    sender = bus.get_queue_sender(queue).__enter__()
    spoiled = spoil(entity_of(bus, queue).pool, answer)
    sender.send_messages(ServiceBusMessage("x"))
    assert len(spoiled) == 2
    assert pair.parked_bodies() == ["x"]
    wait_until(lambda: pair.told("ping failed"))
    assert bus.status().entities[queue].state == "failed over"
    assert not pair.told("entity unusable")


def test_before_the_failover_it_is_an_error_that_counts(pair: Pair) -> None:
    """The SDK's error, with the message; the entity is suspect."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=5, failover_interval=3000)
    sender = bus.get_queue_sender(queue).__enter__()
    spoil(entity_of(bus, queue).pool, ANSWERS["ValueError"])
    message = ServiceBusMessage("x")
    with pytest.raises(ServiceBusError) as caught:
        sender.send_messages(message)
    assert returned_messages(caught.value) == [message]
    assert bus.status().entities[queue].state == "suspect"
    assert pair.parked() == 0


@pytest.mark.parametrize("many", [False, True])
def test_what_cannot_be_encoded_is_the_callers_also_then(pair: Pair, many: bool) -> None:
    """The proof decides: whatever the entity would have answered."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue).__enter__()
    spoil(entity_of(bus, queue).pool, ANSWERS["ValueError"])
    bad: Any = ServiceBusMessage("x", application_properties={"number": 2**80})
    with pytest.raises((ServiceBusError, TypeError, ValueError, OverflowError)):
        sender.send_messages([bad] if many else bad)
    assert bus.status().entities[queue].state == "available"
    assert pair.parked() == 0


def test_a_backlog_queue_that_answers_nonsense_is_left_for_another(pair: Pair) -> None:
    """Its link is replaced once, then the queue leaves the rotation and the message is in another."""
    queue = pair.queue()
    bus = pair.pairing(send_timeout=60)
    sender = bus.get_queue_sender(queue)
    pair.declare_down(bus, queue)
    sender.send_messages(ServiceBusMessage("1"))
    bad = backlog_queue_of(sender)
    assert bad is not None
    spoiled = spoil(bus.backlog.pools[bad], ANSWERS["ValueError"])
    sender.send_messages(ServiceBusMessage("2"))
    assert len(spoiled) == 2
    assert backlog_queue_of(sender) != bad
    assert [path for path, found in bus.status().queues.items() if not found.in_rotation] == [bad]


def test_a_hub_that_answers_nonsense_fails_over(hubs: Hubs) -> None:  # noqa: F811
    """azure-eventhub wraps it in an error of its own."""
    hub = hubs.hub()
    bus = hubs.pairing(send_timeout=60)
    with bus.get_event_hub_producer(hub) as producer:
        producer.send_event(event("fine"))
        spoiled = spoil(entity_of(bus, hubs.name(hub)).pool, ANSWERS["ValueError"])
        producer.send_event(event("parked"))
        assert len(spoiled) >= 2
        assert hubs.state(bus, hub) == "failed over"
    assert hubs.pair.parked_bodies() == ["parked"]


def hub_error(inner: Exception) -> EventHubError:
    error = EventHubError("wrapped")
    error.inner_exception = inner  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("wrapped", [lambda inner: ServiceBusError("Handler failed", error=inner), hub_error])
def test_which_errors_only_the_message_can_explain(wrapped: Callable[[Exception], Exception]) -> None:
    """Generic ones around what is neither the SDK's nor the network's nor a want of this process."""
    for inner in (ValueError(), TypeError(), AttributeError(), IndexError(), struct.error()):
        assert is_unnamed(wrapped(inner))
        assert not is_unnamed(inner)
        assert not is_unnamed(ServiceBusConnectionError(error=inner))
    for other in (OSError(), TimeoutError(), RuntimeError(), MemoryError(), ServiceBusError("x"), ValueError()):
        assert is_unnamed(wrapped(other)) is isinstance(other, ValueError)
    assert not is_unnamed(wrapped(ClientAuthenticationError()))
    assert not is_unnamed(ServiceBusError("an error of the service"))
    assert not is_unnamed(ServiceBusError("x", condition="amqp:not-found", error=ValueError()))
