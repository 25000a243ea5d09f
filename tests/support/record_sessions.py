"""Record the bytes of the Azure SDK as seeds for the fuzzing: `python -m tests.support.record_sessions`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.localbus import LocalBus

SESSIONS = Path(__file__).parent.parent / "data" / "sessions"


@contextmanager
def recording() -> Iterator[list[bytearray]]:
    """Record what every socket of this process writes, by socket."""
    streams: dict[socket.socket, bytearray] = {}
    original = socket.socket.send

    def send(self: socket.socket, data: bytes, *flags: int) -> int:
        streams.setdefault(self, bytearray()).extend(data)
        return original(self, data, *flags)

    kept: list[bytearray] = []
    socket.socket.send = send  # type: ignore[assignment,method-assign]
    try:
        yield kept
    finally:
        socket.socket.send = original  # type: ignore[method-assign]
        kept += streams.values()


def main() -> None:
    SESSIONS.mkdir(parents=True, exist_ok=True)
    with LocalBus(key="SAS_KEY_VALUE") as bus:
        admin = ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        )
        admin.create_queue("orders")
        admin.create_queue("sessions", requires_session=True)
        admin.create_topic("news")
        admin.create_subscription("news", "all")
        client = ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0)
        with recording() as streams, client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage(b"one", application_properties={"a": 5, "b": "x"}))
                sender.send_messages([ServiceBusMessage(f"m{i}", subject="x") for i in range(6)])
                later = datetime.now(timezone.utc) + timedelta(hours=1)
                numbers = sender.schedule_messages([ServiceBusMessage("later")], later)
                sender.cancel_scheduled_messages(numbers)
            with client.get_queue_receiver("orders", max_wait_time=2) as receiver:
                got = receiver.receive_messages(7, max_wait_time=2)
                receiver.peek_messages(3)
                receiver.renew_message_lock(got[0])
                receiver.complete_message(got[0])
                receiver.abandon_message(got[1])
                receiver.defer_message(got[2])
                receiver.dead_letter_message(got[3], reason="r", error_description="d")
                again = receiver.receive_deferred_messages([got[2].sequence_number or 0])
                receiver.complete_message(again[0])
            with client.get_queue_sender("sessions") as sender:
                sender.send_messages([ServiceBusMessage("s", session_id="s")])
            with client.get_queue_receiver("sessions", session_id="s", max_wait_time=2) as receiver:
                receiver.session.set_state(b"state")
                receiver.session.get_state()
                receiver.session.renew_lock()
                for each in receiver.receive_messages(1, max_wait_time=2):
                    receiver.complete_message(each)
            with client.get_topic_sender("news") as sender:
                sender.send_messages(ServiceBusMessage("n", application_properties={"a": 2}))
            with client.get_subscription_receiver("news", "all", max_wait_time=2) as receiver:
                for each in receiver.receive_messages(1, max_wait_time=2):
                    receiver.complete_message(each)
        names = ("send", "receive", "session-send", "session-receive", "topic-send", "topic-receive")
        for name, stream in zip(names, streams, strict=False):
            (SESSIONS / f"{name}.amqp").write_bytes(bytes(stream))
            print(name, len(stream))


if __name__ == "__main__":
    main()
