"""Messages as users of the Azure SDK make them, and the bytes that the SDK sends for them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusMessage
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties


def sdk(made: Any) -> bytes:
    """The message as the SDK encodes it for sending."""
    ready: Any = transform_outbound_messages(made, ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message)
    return bytes(PyamqpTransport.encode_message(ready))


TYPED = {
    "long": {"TYPE": "LONG", "VALUE": 5},
    "ulong": {"TYPE": "ULONG", "VALUE": 5},
    "uint": {"TYPE": "UINT", "VALUE": 300},
    "ubyte": {"TYPE": "UBYTE", "VALUE": 5},
    "short": {"TYPE": "SHORT", "VALUE": -5},
    "symbol": {"TYPE": "SYMBOL", "VALUE": "sym"},
    "timestamp": {"TYPE": "TIMESTAMP", "VALUE": 1_700_000_000_000},
    "binary": {"TYPE": "BINARY", "VALUE": b"\x00\xff"},
    "float": {"TYPE": "FLOAT", "VALUE": 0.5},
    "char": {"TYPE": "CHAR", "VALUE": "c"},
}
PLAIN: dict[str | bytes, Any] = {
    "int": 1,
    "big": 2**30,
    "none": None,
    "yes": True,
    "text": "hällo",
    "float": 1.5,
    "uuid": UUID(int=3),
}
#: The SDK takes names as bytes too, though its types do not say so.
MIXED_ANNOTATIONS: dict[Any, Any] = {
    b"x-opt-scheduled-enqueue-time": {"TYPE": "TIMESTAMP", "VALUE": 5},
    "a": 1,
    b"x-opt-partition-key": "pk",
}
WHEN = datetime(2030, 1, 1, tzinfo=timezone.utc)
SDK_MESSAGES: dict[str, Any] = {
    "bytes": lambda: ServiceBusMessage(b"abc"),
    "text": lambda: ServiceBusMessage("täxt", subject="s", to="t", reply_to="r", correlation_id="c"),
    "empty": lambda: ServiceBusMessage(None),
    "many data": lambda: AmqpAnnotatedMessage(
        data_body=[b"a", b"b"], properties=AmqpMessageProperties(group_id="s", reply_to_group_id="rs")
    ),
    "long session": lambda: ServiceBusMessage(b"", session_id="s" * 128, message_id="m" * 128, subject="x" * 200),
    "properties": lambda: ServiceBusMessage(b"x" * 1000, application_properties=dict(PLAIN), session_id=""),
    "many properties": lambda: ServiceBusMessage(b"", application_properties={f"p{n}": "v" * n for n in range(200)}),
    "scheduled": lambda: ServiceBusMessage(b"", scheduled_enqueue_time_utc=WHEN),
    "not scheduled": lambda: ServiceBusMessage(b"", scheduled_enqueue_time_utc=None),
    "scheduled, partition key": lambda: ServiceBusMessage(b"", scheduled_enqueue_time_utc=WHEN, partition_key="k"),
    "time to live": lambda: ServiceBusMessage(b"", time_to_live=timedelta(minutes=5)),
    "short life": lambda: ServiceBusMessage(b"", time_to_live=timedelta(milliseconds=7)),
    "long life": lambda: ServiceBusMessage(b"", time_to_live=timedelta(days=49)),
    "no life": lambda: ServiceBusMessage(b"", time_to_live=timedelta(0)),
    "all": lambda: ServiceBusMessage(
        b"", session_id="s", time_to_live=timedelta(hours=1), scheduled_enqueue_time_utc=WHEN, partition_key="s",
        application_properties=dict(PLAIN), content_type="c", message_id="m",
    ),
    "value": lambda: AmqpAnnotatedMessage(value_body={"k": [1, None, b"x"]}),
    "sequence": lambda: AmqpAnnotatedMessage(sequence_body=[[1, "a"], [2.5]]),
    "data": lambda: AmqpAnnotatedMessage(data_body=[b"a", b"b"]),
    "header": lambda: AmqpAnnotatedMessage(
        data_body=b"", header=AmqpMessageHeader(durable=True, priority=7, first_acquirer=True, delivery_count=3)
    ),
    "empty header": lambda: AmqpAnnotatedMessage(data_body=b"", header=AmqpMessageHeader()),
    "everything": lambda: AmqpAnnotatedMessage(
        data_body=b"d",
        header=AmqpMessageHeader(durable=False, priority=1, time_to_live=60_000),
        properties=AmqpMessageProperties(message_id=UUID(int=9), user_id=b"u", group_id="g", group_sequence=3),
        annotations=MIXED_ANNOTATIONS,
        delivery_annotations={"d": "v"},
        application_properties=dict(TYPED),
        footer={"f": 1},
    ),
    "its own expiry": lambda: AmqpAnnotatedMessage(
        value_body="v", properties=AmqpMessageProperties(absolute_expiry_time=5, creation_time=4)
    ),
    "number as id": lambda: AmqpAnnotatedMessage(
        value_body=1,
        properties=AmqpMessageProperties(message_id=77),  # type: ignore[arg-type]
    ),
    "both annotations": lambda: AmqpAnnotatedMessage(
        data_body=b"", annotations={"a": 1}, delivery_annotations={"d": 1}
    ),
    **{
        f"typed {name}": (lambda typed=typed: AmqpAnnotatedMessage(data_body=b"", application_properties={"p": typed}))
        for name, typed in TYPED.items()
    },
}  # fmt: skip
