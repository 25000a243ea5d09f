"""Disabled entities: their messages stay, whatever the way to take them out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError
from azure.servicebus.management import ServiceBusAdministrationClient
from proton import Delivery, Endpoint, Message

from pairbus.localbus import LocalBus
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.amqp.consumers import Consumer
from tests.support.clocked_server import clocked_bus
from tests.support.raw_client import RawClient, RawError, longs, uuids
from tests.support.scenarios import scenario
from tests.support.sdk_clients import SdkClients, bodies, unique

HELLO = Message(body=b"hello", inferred=True).encode()
NOT_RECEIVED_FROM = ("ReceiveDisabled", "Disabled")


def set_status(admin: ServiceBusAdministrationClient, queue: str, status: str) -> None:
    found = admin.get_queue(queue)
    found.status = status
    admin.update_queue(found)


# --- settling ------------------------------------------------------------------------------------------------


WAYS = ("complete_message", "abandon_message", "defer_message", "dead_letter_message", "renew_message_lock")


@scenario(cases=WAYS)
async def test_nothing_is_settled_in_a_disabled_queue(at: SdkClients, case: str) -> None:
    """Every settlement and renewal is refused; once enabled, the message can be settled under the same lock."""
    for status in NOT_RECEIVED_FROM:
        queue = await at.queue()
        await at.send(queue, "x")
        receiver = at.receiver(queue)
        message = await at.take_one(receiver)
        await at.update_queue(queue, status=status)
        with pytest.raises(MessagingEntityDisabledError):
            await getattr(receiver, case)(message)
        await at.settled(queue, active=1)
        await at.update_queue(queue, status="Active")
        assert await asyncio.to_thread(complete, at.bus, queue, message.lock_token) == 200
        await at.settled(queue)


def complete(bus: LocalBus, queue: str, token: Any) -> int:
    with RawClient(bus) as raw:
        raw.put_token(queue)
        body = {"lock-tokens": uuids(token), "disposition-status": "completed"}
        return raw.request(queue, "com.microsoft:update-disposition", body)[0]


@scenario("sync", cases=NOT_RECEIVED_FROM)
async def test_no_deferred_message_is_received_from_a_disabled_queue(at: SdkClients, case: str) -> None:
    """It is refused in both modes; the message is there when the queue is enabled again."""
    queue = await at.queue()
    await at.send(queue, "x")
    receiver = at.receiver(queue)
    message = await at.take_one(receiver)
    await receiver.defer_message(message)
    await at.update_queue(queue, status=case)
    with pytest.raises(MessagingEntityDisabledError):
        await receiver.receive_deferred_messages([message.sequence_number])
    await at.update_queue(queue, status="Active")
    assert bodies(await receiver.receive_deferred_messages([message.sequence_number])) == ["x"]


@pytest.mark.parametrize("status", NOT_RECEIVED_FROM)
def test_requests_to_a_disabled_queue_are_refused(
    bus: LocalBus, admin_client: ServiceBusAdministrationClient, status: str
) -> None:
    """`$management` requests that take or lock a message are refused with the condition."""
    queue = unique("q")
    admin_client.create_queue(queue)
    with RawClient(bus) as raw:
        raw.put_token(queue)
        raw.send(raw.sender(queue), HELLO)
        token = uuids(raw.receive(raw.receiver(queue)).token)
        set_status(admin_client, queue, status)
        asked: list[tuple[str, dict[str, Any]]] = [
            ("renew-lock", {"lock-tokens": token}),
            ("receive-by-sequence-number", {"sequence-numbers": longs(1), "receiver-settle-mode": 1}),
            ("receive-by-sequence-number", {"sequence-numbers": longs(1), "receiver-settle-mode": 0}),
        ]
        for outcome in ("completed", "abandoned", "defered", "suspended"):
            asked.append(("update-disposition", {"lock-tokens": token, "disposition-status": outcome}))
        for operation, body in asked:
            found = raw.request(queue, f"com.microsoft:{operation}", body)
            assert (found[0], found[2]) == (403, conditions.ENTITY_DISABLED), operation
    assert admin_client.get_queue_runtime_properties(queue).active_message_count == 1


@pytest.mark.parametrize("outcome", [Delivery.ACCEPTED, Delivery.RELEASED, Delivery.MODIFIED])
def test_a_settlement_on_its_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: int) -> None:
    """The link of a queue that is disabled is detached; a settlement sent before is rejected with the condition."""
    with clocked_bus(tmp_path / "tls") as bus:
        admin = ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        )
        with admin, RawClient(bus) as raw:  # type: ignore[arg-type]
            admin.create_queue("orders")
            raw.put_token("orders")
            raw.send(raw.sender("orders"), HELLO)
            link = raw.receiver("orders")
            received = raw.receive(link)
            monkeypatch.setattr(Consumer, "pull", lambda self, now: False)  # delays the detach
            set_status(admin, "orders", "ReceiveDisabled")
            assert raw.settle(link, received, outcome) == conditions.ENTITY_DISABLED
            assert admin.get_queue_runtime_properties("orders").active_message_count == 1


# --- links ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", NOT_RECEIVED_FROM)
def test_every_open_receiver_is_detached(
    bus: LocalBus, admin_client: ServiceBusAdministrationClient, status: str
) -> None:
    """Receivers of the queue and of its empty dead-letter queue are detached with the reason."""
    queue = unique("q")
    admin_client.create_queue(queue)
    with RawClient(bus) as raw:
        raw.put_token(queue)
        paths = (queue, queue, f"{queue}/$DeadLetterQueue", f"{queue}/$Transfer/$DeadLetterQueue")
        links = [raw.receiver(path, 1) for path in paths]
        set_status(admin_client, queue, status)
        for link in links:
            raw.wait(lambda link=link: link.state & Endpoint.REMOTE_CLOSED, "the detach")
            with pytest.raises(RawError, match=conditions.ENTITY_DISABLED):
                raw.check(link)


@scenario()
async def test_a_receiver_waiting_for_a_session_is_refused(at: SdkClients) -> None:
    """It is refused when the queue is disabled, and does not wait on."""
    queue = await at.queue(requires_session=True)
    receiver = at.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=200)
    waiting = asyncio.ensure_future(receiver.receive_messages(1))
    await asyncio.sleep(1)  # usually it waits by then; otherwise it is refused when it attaches
    await at.update_queue(queue, status="ReceiveDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        await waiting
    await at.send(queue, ServiceBusMessage("x", session_id="s"))
    await at.settled(queue, active=1)
