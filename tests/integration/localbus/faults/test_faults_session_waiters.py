"""Faults and receivers that wait for a session, whose links are not open yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Endpoint, Message, Receiver, int32

from pairbus.localbus import LocalBus
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.faults.client import FaultClient
from tests.support.raw_client import RawClient, session_filter

ENTITIES = '[[queues]]\nname = "orders"\n'
PEEK = "com.microsoft:peek-message"


@pytest.fixture
def faults(bus: LocalBus) -> FaultClient:
    return bus.faults


@pytest.fixture
def raw(bus: LocalBus) -> Iterator[RawClient]:
    with RawClient(bus) as opened:
        opened.put_token("orders")
        yield opened


@pytest.fixture
def holder(bus: LocalBus, admin_client: ServiceBusAdministrationClient) -> Iterator[tuple[RawClient, Receiver]]:
    """Return a client with a link that holds the only session of a new queue `waited`, in which a message is ready."""
    admin_client.create_queue("waited", requires_session=True)
    with RawClient(bus) as opened:
        opened.put_token("waited")
        opened.send(opened.sender("waited"), Message(body=b"x", group_id="a").encode())
        yield opened, opened.receiver("waited", filters=session_filter("a"))
    bus.faults.clear()
    if any(queue.name == "waited" for queue in admin_client.list_queues()):
        admin_client.delete_queue("waited")


@pytest.fixture
def waiter(raw: RawClient, holder: tuple[RawClient, Receiver]) -> Receiver:
    """Return a link that waits for any session of that queue."""
    raw.put_token("waited")
    link: Receiver = raw._session.receiver("waiter")
    link.source.address, link.target.address = "waited", "here"
    link.source.filter.put_dict(session_filter(None))
    link.open()
    requests_are_handled(raw)
    return link


def requests_are_handled(raw: RawClient) -> None:
    """Wait until the server has handled all earlier requests."""
    raw.request("orders", PEEK, {"from-sequence-number": 0, "message-count": int32(1)})


def is_answered(link: Receiver) -> bool:
    return bool(link.state & (Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED))


def close_condition(raw: RawClient, link: Receiver) -> str | None:
    """Return the condition with which a link is closed."""
    raw.wait(lambda: link.state & Endpoint.REMOTE_CLOSED, "the link's end")
    return None if link.remote_condition is None else str(link.remote_condition.name)


def test_a_waiting_receiver_is_refused_when_its_queue_is_unavailable(
    raw: RawClient, faults: FaultClient, waiter: Receiver
) -> None:
    """It is refused at once, as an open link is detached."""
    assert not is_answered(waiter)
    faults.unavailable("waited", condition=conditions.SERVER_BUSY)
    assert close_condition(raw, waiter) == conditions.SERVER_BUSY


def test_a_busy_service_refuses_a_waiting_receiver(
    raw: RawClient, faults: FaultClient, waiter: Receiver, holder: tuple[RawClient, Receiver]
) -> None:
    """When a session becomes free, the link is refused like a new one, and the fault's count goes down."""
    faults.busy("waited", count=1)
    requests_are_handled(raw)
    assert not is_answered(waiter)
    holder[0].close_link(holder[1])
    assert close_condition(raw, waiter) == conditions.SERVER_BUSY
    assert faults.list() == []


def test_a_waiting_receiver_in_a_black_hole_gets_no_answer(
    raw: RawClient, faults: FaultClient, waiter: Receiver, holder: tuple[RawClient, Receiver]
) -> None:
    """A session that became free is accepted when the black hole ends."""
    faults.black_hole("waited")
    holder[0].close_link(holder[1])
    requests_are_handled(raw)
    assert not is_answered(waiter)
    faults.clear()
    raw.wait(lambda: waiter.state & Endpoint.REMOTE_ACTIVE, "the session")
    assert raw.receive(waiter).payload


def test_a_wait_that_ends_in_a_black_hole_is_answered_after_it(
    raw: RawClient, faults: FaultClient, waiter: Receiver, admin_client: ServiceBusAdministrationClient
) -> None:
    """The queue is deleted meanwhile: the receiver is refused when the black hole ends."""
    faults.black_hole("waited")
    admin_client.delete_queue("waited")
    requests_are_handled(raw)
    assert not is_answered(waiter)
    faults.clear()
    assert close_condition(raw, waiter) == conditions.DETACH_FORCED
