"""The message counts that the administration API reports."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from pairbus.localbus import LocalBus
from tests.support.process_fixtures import take


def test_message_counts_and_size(bus: LocalBus, admin_client: ServiceBusAdministrationClient) -> None:
    """Active (deferred and locked messages included), dead-letter and scheduled counts, and the size, are right."""
    admin_client.create_queue("counted")
    with ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client:
        with client.get_queue_sender("counted") as sender:
            sender.send_messages([ServiceBusMessage(b"x" * 1000) for _ in range(5)])
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(timezone.utc) + timedelta(hours=1))
        with client.get_queue_receiver("counted") as receiver:
            first, second, third = take(receiver, 3)
            receiver.complete_message(first)
            receiver.defer_message(second)
            receiver.dead_letter_message(third)
            receiver.receive_messages(1, max_wait_time=60)
            found = admin_client.get_queue_runtime_properties("counted")
    counts = (found.active_message_count, found.dead_letter_message_count, found.scheduled_message_count)
    assert counts == (3, 1, 1)
    assert found.total_message_count == 5
    assert 4000 < found.size_in_bytes < 6000


def test_messages_that_cannot_be_forwarded_are_counted(
    bus: LocalBus, admin_client: ServiceBusAdministrationClient
) -> None:
    """If the destination is disabled, they are in the source's transfer dead letters."""
    target = admin_client.create_queue("full-target")
    admin_client.create_queue("forwards", forward_to="full-target")
    target.status = EntityStatus.DISABLED
    admin_client.update_queue(target)
    with (
        ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client,
        client.get_queue_sender("forwards") as sender,
    ):
        sender.send_messages([ServiceBusMessage("stuck") for _ in range(3)])
    found = admin_client.get_queue_runtime_properties("forwards")
    assert found.transfer_dead_letter_message_count == 3
    assert found.active_message_count == 0


def test_subscriptions_have_their_own_counts(bus: LocalBus, admin_client: ServiceBusAdministrationClient) -> None:
    """Each subscription has its counts, and a topic counts the messages that are scheduled."""
    admin_client.create_topic("news")
    for name in ("one", "two"):
        admin_client.create_subscription("news", name)
    with ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client:
        with client.get_topic_sender("news") as sender:
            sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(timezone.utc) + timedelta(hours=1))
        with client.get_subscription_receiver("news", "one") as receiver:
            for message in take(receiver, 2):
                receiver.complete_message(message)
    assert admin_client.get_subscription_runtime_properties("news", "one").active_message_count == 0
    assert admin_client.get_subscription_runtime_properties("news", "two").active_message_count == 2
    topic = admin_client.get_topic_runtime_properties("news")
    assert (topic.scheduled_message_count, topic.subscription_count) == (1, 2)
