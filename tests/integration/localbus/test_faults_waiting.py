"""Faults, and clients that wait for a session: they have asked, and their link is not open yet."""

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
    """A client with a link that holds the only session of a new queue `waited`, in which a message waits."""
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
    """A link that waits for any session of that queue."""
    raw.put_token("waited")
    link: Receiver = raw._session.receiver("waiter")
    link.source.address, link.target.address = "waited", "here"
    link.source.filter.put_dict(session_filter(None))
    link.open()
    everything_is_answered(raw)
    return link


def everything_is_answered(raw: RawClient) -> None:
    """What was asked before has its answer now, or gets none for the time being."""
    raw.request("orders", PEEK, {"from-sequence-number": 0, "message-count": int32(1)})


def is_answered(link: Receiver) -> bool:
    return bool(link.state & (Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED))


def the_end(raw: RawClient, link: Receiver) -> str | None:
    """The condition with which a link is closed."""
    raw.wait(lambda: link.state & Endpoint.REMOTE_CLOSED, "the link's end")
    return None if link.remote_condition is None else str(link.remote_condition.name)


def test_who_waits_for_a_session_is_told_that_it_is_unavailable(
    raw: RawClient, faults: FaultClient, waiter: Receiver
) -> None:
    """At once, as those are whose link is open."""
    assert not is_answered(waiter)
    faults.unavailable("waited", condition=conditions.SERVER_BUSY)
    assert the_end(raw, waiter) == conditions.SERVER_BUSY


def test_a_session_is_not_given_by_a_service_that_is_busy(
    raw: RawClient, faults: FaultClient, waiter: Receiver, holder: tuple[RawClient, Receiver]
) -> None:
    """Where there is one for who waits, the link is refused as a new one would be, and that counts."""
    faults.busy("waited", count=1)
    everything_is_answered(raw)
    assert not is_answered(waiter)
    holder[0].close_link(holder[1])
    assert the_end(raw, waiter) == conditions.SERVER_BUSY
    assert faults.list() == []


def test_who_waits_for_a_session_in_a_black_hole_hears_nothing(
    raw: RawClient, faults: FaultClient, waiter: Receiver, holder: tuple[RawClient, Receiver]
) -> None:
    """A session that becomes free is given when the black hole ends."""
    faults.black_hole("waited")
    holder[0].close_link(holder[1])
    everything_is_answered(raw)
    assert not is_answered(waiter)
    faults.clear()
    raw.wait(lambda: waiter.state & Endpoint.REMOTE_ACTIVE, "the session")
    assert raw.receive(waiter).payload


def test_in_a_black_hole_nobody_is_told_that_waiting_is_over(
    raw: RawClient, faults: FaultClient, waiter: Receiver, admin_client: ServiceBusAdministrationClient
) -> None:
    """The queue is deleted meanwhile: who waits hears of it when the black hole ends."""
    faults.black_hole("waited")
    admin_client.delete_queue("waited")
    everything_is_answered(raw)
    assert not is_answered(waiter)
    faults.clear()
    assert the_end(raw, waiter) == conditions.DETACH_FORCED
