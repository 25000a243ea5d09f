"""`make demo-localbus`: localbus in half a minute, including a kill -9 that loses no message.

All clients here are azure-servicebus from PyPI, connected over a real socket to a server process on this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient, SqlRuleFilter

from pairbus.localbus import LocalBus

Row = tuple[str, str, str]


def main() -> int:
    argparse.ArgumentParser(prog="make demo-localbus", description="Show localbus with the Azure SDK.").parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-demo-")))
        print("Starting localbus with a SQLite file as its store ...", flush=True)
        bus = stack.enter_context(LocalBus(name="contoso", store=folder / "contoso.db"))
        print(f"It listens on {bus.host}:{bus.port}. The Azure SDK connects to it:\n", flush=True)
        admin = stack.enter_context(
            ServiceBusAdministrationClient.from_connection_string(bus.connection_string, connection_verify=bus.ca_file)
        )
        steps: list[Callable[[LocalBus, ServiceBusAdministrationClient], Row]] = [
            queue,
            session,
            topic,
            dead_letter,
            fault,
            restart,
        ]
        rows = []
        for step in steps:
            began = time.perf_counter()
            rows.append((*step(bus, admin), f"{time.perf_counter() - began:.1f} s"))
        print(table(("feature", "sent", "result", "time"), rows))
    print("\nDone: localbus has stopped and its files are removed. For your own code, see README.md.")
    return 0


def client(bus: LocalBus) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0)


def queue(bus: LocalBus, admin: ServiceBusAdministrationClient) -> Row:
    admin.create_queue("orders")
    with client(bus) as bus_client:
        with bus_client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"order {n}") for n in range(1, 4)])
        with bus_client.get_queue_receiver("orders") as receiver:
            received = receiver.receive_messages(3, max_wait_time=30)
            for message in received:
                receiver.complete_message(message)
    bodies = ", ".join(str(m) for m in received)
    expect(bodies == "order 1, order 2, order 3", bodies)
    return "a queue", "a batch of 3", f"{bodies}: completed, none left"


def session(bus: LocalBus, admin: ServiceBusAdministrationClient) -> Row:
    admin.create_queue("carts", requires_session=True)
    with client(bus) as bus_client:
        with bus_client.get_queue_sender("carts") as sender:
            for n in range(1, 4):
                sender.send_messages(ServiceBusMessage(f"step {n}", session_id="cart-42"))
        with bus_client.get_queue_receiver("carts", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30) as receiver:
            receiver.session.set_state(b"paid")
            steps = [str(m) for m in receiver.receive_messages(3, max_wait_time=30)]
            state = bytes(receiver.session.get_state()).decode()
            name = receiver.session.session_id
    expect(steps == ["step 1", "step 2", "step 3"] and name == "cart-42", steps)
    return "a session", "3 messages of cart-42", f"{name}: {', '.join(steps)}; state: {state}"


def topic(bus: LocalBus, admin: ServiceBusAdministrationClient) -> Row:
    admin.create_topic("prices")
    for name, chosen in (
        ("big", SqlRuleFilter("amount > 1000 AND currency IN ('EUR', 'USD')")),
        ("gold", CorrelationRuleFilter(label="gold")),
    ):
        admin.create_subscription("prices", name)
        admin.delete_rule("prices", name, "$Default")
        admin.create_rule("prices", name, "wanted", filter=chosen)
    with client(bus) as bus_client:
        with bus_client.get_topic_sender("prices") as sender:
            for amount, subject in ((50, "gold"), (5000, "tin"), (9000, "gold")):
                properties: dict[str | bytes, Any] = {"amount": amount, "currency": "EUR"}
                sender.send_messages(
                    ServiceBusMessage(f"{subject} {amount}", subject=subject, application_properties=properties)
                )
        got = {}
        for name in ("big", "gold"):
            with bus_client.get_subscription_receiver("prices", name) as receiver:
                got[name] = [str(m) for m in receiver.receive_messages(5, max_wait_time=30)]
    expect(got == {"big": ["tin 5000", "gold 9000"], "gold": ["gold 50", "gold 9000"]}, got)
    return "a topic with filters", "3 prices", "; ".join(f"{k}: {', '.join(v)}" for k, v in got.items())


def dead_letter(bus: LocalBus, admin: ServiceBusAdministrationClient) -> Row:
    admin.create_queue("bills")
    with client(bus) as bus_client:
        with bus_client.get_queue_sender("bills") as sender:
            sender.send_messages(ServiceBusMessage("bill 7"))
        with bus_client.get_queue_receiver("bills") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=30)
            receiver.dead_letter_message(message, reason="unreadable", error_description="no amount on it")
        with bus_client.get_queue_receiver("bills", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = receiver.receive_messages(1, max_wait_time=30)
            receiver.complete_message(dead)
    expect(dead.dead_letter_reason == "unreadable", dead.dead_letter_reason)
    return (
        "a dead letter",
        "1 message",
        f"{dead}: {dead.dead_letter_reason} ({dead.dead_letter_error_description})",
    )


def fault(bus: LocalBus, admin: ServiceBusAdministrationClient) -> Row:
    admin.create_queue("fragile")
    bus.faults.reject("amqp:resource-limit-exceeded", "fragile", count=1)
    raised = "nothing"
    with client(bus) as bus_client, bus_client.get_queue_sender("fragile") as sender:
        try:
            sender.send_messages(ServiceBusMessage("too much"))
        except Exception as error:
            raised = type(error).__name__
        sender.send_messages(ServiceBusMessage("fits again"))
    bus.faults.clear()
    expect(raised == "ServiceBusQuotaExceededError", raised)
    return "a fault: quota", "1 refused, 1 sent", f"the SDK raised {raised}, then sent"


def restart(bus: LocalBus, admin: ServiceBusAdministrationClient) -> Row:
    admin.create_queue("kept")
    count = 100
    with client(bus) as bus_client, bus_client.get_queue_sender("kept") as sender:
        sender.send_messages([ServiceBusMessage(f"kept {n}") for n in range(count)])
    bus.kill()
    bus.restart()
    found = 0
    with client(bus) as bus_client, bus_client.get_queue_receiver("kept") as receiver:
        while found < count:
            received = receiver.receive_messages(count, max_wait_time=30)
            if not received:
                break
            for message in received:
                receiver.complete_message(message)
            found += len(received)
    expect(found == count, found)
    return "kill -9 and restart", f"{count} messages", f"{found} of {count} still there"


def expect(right: bool, found: object) -> None:
    """Exit with a message unless a step had the expected result."""
    if not right:
        raise SystemExit(f"make demo-localbus: unexpected result: {found!r}")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("make demo-localbus: interrupted; localbus has stopped and its files are removed")
