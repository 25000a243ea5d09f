"""The forms in which a caller may give one message, and a comparable picture of such an object."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

WHEN = datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone.utc)


def full() -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {
        "text": "x",
        "number": 7,
        "raw": b"bytes",
        "when": WHEN,
        "flag": True,
        "id": uuid.UUID(int=5),
    }
    return ServiceBusMessage(
        b"body",
        application_properties=properties,
        session_id="s",
        message_id="m",
        scheduled_enqueue_time_utc=WHEN,
        content_type="text/plain",
        correlation_id="c",
        subject="l",
        partition_key="s",
        to="t",
        reply_to="r",
        reply_to_session_id="rs",
    )


def typed() -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {"long": {"TYPE": "LONG", "VALUE": 2**40}}
    return ServiceBusMessage("x", application_properties=properties)


def with_life() -> ServiceBusMessage:
    return ServiceBusMessage("x", message_id="m", time_to_live=timedelta(minutes=5))


def annotated(**body: Any) -> Callable[[], AmqpAnnotatedMessage]:
    return lambda: AmqpAnnotatedMessage(
        header=AmqpMessageHeader(priority=7, durable=True),
        properties=AmqpMessageProperties(message_id="m", subject="s", user_id=b"u", group_id="g"),
        application_properties={"raw": b"bytes", "deep": "x"},
        annotations={"x-opt-partition-key": "g", "x-own": 5},
        delivery_annotations={"x-hop": "y"},
        footer={"f": "z"},
        **body,
    )


SINGLE: dict[str, Callable[[], Any]] = {
    "plain": lambda: ServiceBusMessage("text"),
    "empty": lambda: ServiceBusMessage(None),
    "full": full,
    "typed": typed,
    "life": with_life,
    "data": annotated(data_body=[b"a", b"b"]),
    "value": annotated(value_body={"k": [1, "two", None]}),
    "sequence": annotated(sequence_body=[[1, 2], ["three"]]),
    "dictionary": lambda: {"body": "d", "message_id": "m", "application_properties": {"raw": b"bytes"}},
}


def picture(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """Everything inside an object, as plain data, to be compared later."""
    if id(value) in seen:
        return "…"
    seen = (*seen, id(value))
    if isinstance(value, dict):
        return [(picture(key, seen), picture(each, seen)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [picture(each, seen) for each in value]
    if type(value).__module__.startswith("azure.servicebus") and hasattr(value, "__dict__"):
        # `_message` is where the SDK keeps what it makes of a message to send it; `_receiver` is not the message.
        return {
            name: picture(each, seen) for name, each in vars(value).items() if name not in ("_message", "_receiver")
        }
    return type(value).__name__, repr(value)
