"""The goods: destinations with their rules, and messages of many forms, each with a record of what was sent."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient, SqlRuleFilter

from pairbus.sending.sdk.encoding import encoded

from .wire import digest

#: Destination → its share of the messages, in percent.
SHARES = {"orders": 35, "invoices": 20, "carts": 20, "prices": 20, "faxes": 5}
SESSIONS, TOPIC, DOOMED = "carts", "prices", "faxes"
#: Subscription of the topic → its rule. `audit` keeps its default rule, which matches everything.
RULES: dict[str, Any] = {
    "big": SqlRuleFilter("amount > 1000 AND currency IN ('EUR', 'USD')"),
    "gold": CorrelationRuleFilter(label="gold"),
}
AUDIT = "audit"
#: Sessions per shop.
CARTS = 4

_CURRENCIES = ("EUR", "USD", "GBP")
_KINDS = ("gold", "silver", "tin")
_LIFE = timedelta(hours=2)
_SOON = timedelta(seconds=2)

Message = ServiceBusMessage | AmqpAnnotatedMessage


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it was given to a sender."""

    message_id: str
    destination: str
    #: Position in the order of its session.
    number: int
    session_id: str | None
    scheduled: datetime | None
    digest: bytes
    #: Subscriptions whose rules match it; for the topic only.
    wanted_by: tuple[str, ...] = ()


def create_destinations(admin: ServiceBusAdministrationClient) -> None:
    for name in SHARES:
        if name == TOPIC:
            admin.create_topic(name)
        else:
            admin.create_queue(name, requires_session=name == SESSIONS)
    admin.create_subscription(TOPIC, AUDIT)
    for name, rule in RULES.items():
        admin.create_subscription(TOPIC, name)
        admin.delete_rule(TOPIC, name, "$Default")
        admin.create_rule(TOPIC, name, "wanted", filter=rule)


def parcel(destination: str, shop: int, turn: int, numbers: range) -> tuple[list[Message], list[Sent]]:
    """Return the next messages of a shop for a destination; those of one turn share a session."""
    made = [_MAKERS[destination](shop, number, turn) for number in numbers]
    return [message for message, _ in made], [sent for _, sent in made]


def _order(shop: int, number: int, turn: int) -> tuple[Message, Sent]:
    """Return an order: every third one has a time to live, every seventh is scheduled two seconds ahead."""
    scheduled = datetime.now(timezone.utc) + _SOON if number % 7 == 0 else None
    properties = {
        "amount": _typed("LONG", 10**12 + number),
        "placed": _typed("TIMESTAMP", 1_794_871_800_000 + number),
        "customer": uuid.UUID(int=number),
        "weight": number / 8,
        "vip": number % 2 == 0,
        "shop": shop,
    }
    message = ServiceBusMessage(
        json.dumps({"order": number, "shop": shop, "lines": ["bolts", "nuts"] * (number % 4)}).encode(),
        content_type="application/json",
        correlation_id=f"basket-{number}",
        reply_to="receipts",
        time_to_live=_LIFE if number % 3 == 0 else None,
        scheduled_enqueue_time_utc=scheduled,
        application_properties=properties,  # type: ignore[arg-type]
        message_id=_id("order", shop, number),
    )
    return message, _sent("orders", message, number, scheduled=scheduled)


def _invoice(shop: int, number: int, turn: int) -> tuple[Message, Sent]:
    """Return an invoice whose body is, in turn, two data sections, a map, or a sequence."""
    properties = {"total": number * 1.25, "flags": _typed("UBYTE", number % 256), "note": "grüße ☂"}
    header, known = (
        AmqpMessageHeader(time_to_live=7_200_000),
        AmqpMessageProperties(message_id=_id("invoice", shop, number), subject="invoice"),
    )
    body: dict[str, Any] = {"data_body": [b"invoice ", bytes(range(number % 200))]}
    if number % 3 == 1:
        body = {"value_body": {"invoice": number, "paid": False, "lines": ["bolts", "nuts"]}}
    elif number % 3 == 2:
        body = {"sequence_body": [["invoice", number], [shop]]}
    message = AmqpAnnotatedMessage(**body, header=header, properties=known, application_properties=properties)
    return message, _sent("invoices", message, number)


def _cart(shop: int, number: int, turn: int) -> tuple[Message, Sent]:
    session = f"shop-{shop}-cart-{turn % CARTS}"
    message = ServiceBusMessage(
        f"step {number}", session_id=session, message_id=_id("cart", shop, number), reply_to_session_id="till"
    )
    return message, _sent("carts", message, number, session=session)


def _price(shop: int, number: int, turn: int) -> tuple[Message, Sent]:
    amount, currency, kind = number * 37 % 2000, _CURRENCIES[number % 3], _KINDS[number // 2 % 3]
    message = ServiceBusMessage(
        f"{kind} at {amount} {currency}",
        subject=kind,
        message_id=_id("price", shop, number),
        partition_key=f"shop-{shop}",
        application_properties={"amount": _typed("LONG", amount), "currency": currency},
    )
    wanted = [AUDIT]
    if amount > 1000 and currency in ("EUR", "USD"):
        wanted.append("big")
    if kind == "gold":
        wanted.append("gold")
    return message, _sent("prices", message, number, wanted=wanted)


def _fax(shop: int, number: int, turn: int) -> tuple[Message, Sent]:
    message = ServiceBusMessage(f"fax {number}", message_id=_id("fax", shop, number))
    return message, _sent("faxes", message, number)


_MAKERS: dict[str, Callable[[int, int, int], tuple[Message, Sent]]] = {
    "orders": _order,
    "invoices": _invoice,
    "carts": _cart,
    "prices": _price,
    "faxes": _fax,
}


def _typed(kind: str, value: int) -> Any:
    """Return a value with an AMQP type that Python's types cannot express."""
    return {"TYPE": kind, "VALUE": value}


def _id(kind: str, shop: int, number: int) -> str:
    return f"{kind}-{shop}-{number}"


def _sent(
    destination: str,
    message: Message,
    number: int,
    *,
    session: str | None = None,
    scheduled: datetime | None = None,
    wanted: Sequence[str] = (),
) -> Sent:
    holder = message.properties if isinstance(message, AmqpAnnotatedMessage) else message
    known = holder.message_id  # type: ignore[union-attr]
    return Sent(str(known), destination, number, session, scheduled, digest(encoded(message)), tuple(wanted))
