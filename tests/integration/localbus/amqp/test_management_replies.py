"""Replies of `$management` to many or large requests: each request is answered, and its effect is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Message, int32, symbol, timestamp, uint

from pairbus.localbus import LocalBus
from tests.support.process_fixtures import connect, counts
from tests.support.raw_client import RawClient, RawError, longs, uuids
from tests.support.sdk_clients import unique

PEEK = "com.microsoft:peek-message"
RECEIVE = "com.microsoft:receive-by-sequence-number"
SCHEDULE = "com.microsoft:schedule-message"
DISPOSE = "com.microsoft:update-disposition"
MEGABYTE = 1024 * 1024


@pytest.fixture
def raw(bus: LocalBus) -> Iterator[RawClient]:
    with RawClient(bus) as opened:
        yield opened


@pytest.fixture
def queue(raw: RawClient, admin_client: ServiceBusAdministrationClient) -> str:
    """Create a queue for messages of any size; return its name."""
    name = unique("q")
    admin_client.create_queue(name, max_message_size_in_kilobytes=102_400)
    raw.put_token(name)
    return name


def put(raw: RawClient, queue: str, count: int, size: int) -> None:
    link = raw.sender(queue)
    payload = Message(body=b"x" * size, inferred=True).encode()
    for _ in range(count):
        raw.send(link, payload)
    raw.close_link(link)


def defer(raw: RawClient, queue: str, count: int) -> list[int]:
    """Defer the messages of a new queue; return their sequence numbers."""
    link = raw.receiver(queue)
    tokens = [raw.receive(link).token for _ in range(count)]
    assert raw.request(queue, DISPOSE, {"disposition-status": "defered", "lock-tokens": uuids(*tokens)})[0] == 200
    return list(range(1, count + 1))


def receive(raw: RawClient, queue: str, numbers: list[int]) -> tuple[int, Any, str | None]:
    """Receive deferred messages and delete them."""
    return raw.request(queue, RECEIVE, {"sequence-numbers": longs(*numbers), "receiver-settle-mode": uint(0)})


def test_deferred_messages_are_received_in_one_reply(raw: RawClient, queue: str, bus: LocalBus) -> None:
    """Seventeen megabytes of deferred messages, received and deleted, arrive in one reply."""
    put(raw, queue, 70, 250_000)
    status, found, _ = receive(raw, queue, defer(raw, queue, 70))
    assert (status, len(found["messages"])) == (200, 70)
    assert counts(bus, queue)[0] == 0


def test_a_large_message_is_peeked_and_received_by_number(raw: RawClient, queue: str) -> None:
    """One message fits into a reply whatever its size; several that are too large together stay where they are."""
    put(raw, queue, 2, 17 * MEGABYTE)
    status, found, _ = raw.request(queue, PEEK, {"from-sequence-number": 0, "message-count": int32(10)})
    assert status == 200
    assert [len(each["message"]) > 17 * MEGABYTE for each in found["messages"]] == [True]
    numbers = defer(raw, queue, 2)
    status, _, condition = receive(raw, queue, numbers)
    assert (status, condition) == (413, "amqp:link:message-size-exceeded")
    for number in numbers:
        assert receive(raw, queue, [number])[0] == 200


def test_a_schedule_that_is_too_large_is_refused_and_the_next_is_not(
    bus: LocalBus, admin_client: ServiceBusAdministrationClient
) -> None:
    """A request above a megabyte raises the SDK's size error; the sender can schedule and send afterwards."""
    queue, when = unique("q"), datetime.now(timezone.utc) + timedelta(hours=1)
    admin_client.create_queue(queue)
    message = ServiceBusMessage(b"x" * 20_000)
    with connect(bus.connection_string) as client, client.get_queue_sender(queue) as sender:
        for _ in range(2):
            with pytest.raises(MessageSizeExceededError):
                sender.schedule_messages([message] * 60, when)
            assert len(sender.schedule_messages([message] * 40, when)) == 40
        sender.send_messages(ServiceBusMessage("now"))
    assert counts(bus, queue) == (1, 0, 80)


def test_a_message_as_large_as_its_entity_allows_is_scheduled(raw: RawClient, queue: str, bus: LocalBus) -> None:
    """A request may be larger than a megabyte if the entity's messages may."""
    later = {symbol("x-opt-scheduled-enqueue-time"): timestamp(4_000_000_000_000)}
    payload = Message(body=b"x" * 3 * MEGABYTE, inferred=True, annotations=later).encode()
    status, found, _ = raw.request(queue, SCHEDULE, {"messages": [{"message-id": "m", "message": payload}]})
    assert (status, list(found["sequence-numbers"].elements)) == (200, [1])
    assert counts(bus, queue) == (0, 0, 1)


@pytest.mark.parametrize("before", [0, 20_000])
def test_an_oversized_request_gets_a_reply_if_it_has_an_address(raw: RawClient, before: int) -> None:
    """The reply goes to the address in the request's first bytes; without one, the request is rejected."""
    annotations = {symbol("a"): b"x" * before} if before else None
    message = Message(body={"a": b"x" * 2 * MEGABYTE}, annotations=annotations)
    for _ in range(2):
        if before:
            with pytest.raises(RawError, match="message-size-exceeded"):
                raw.exchange("$management", message)
        else:
            assert raw.exchange("$management", message).properties["statusCode"] == 413


def test_a_client_that_reads_late_gets_every_reply(raw: RawClient, queue: str) -> None:
    """Replies of 30 MB, requested at once and read one by one, all arrive; other requests are answered, too."""
    put(raw, queue, 6, 100_000)
    answers = raw.requests(queue, PEEK, [{"from-sequence-number": 0, "message-count": int32(6)}] * 60)
    assert [(status, len(found["messages"])) for status, found in answers] == [(200, 5)] * 60
    assert len(raw.request(queue, PEEK, {"from-sequence-number": 0, "message-count": int32(1)})[1]["messages"]) == 1
