"""Requests to `$management` that Python's SDK does not send, as the other SDKs write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient
from proton import Condition, Delivery, Message, int32, symbol, timestamp

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import decode
from pairbus.localbus import LocalBus
from pairbus.localbus import bus_errors as conditions
from tests.support.raw_client import RawClient, data_of, session_filter
from tests.support.sdk_clients import unique

ADD_RULE = "com.microsoft:add-rule"
DELETE = "com.microsoft:batch-delete-messages"
PEEK = "com.microsoft:peek-message"
#: A time that no message is enqueued after.
FAR = timestamp(4_000_000_000_000)


@pytest.fixture
def raw(bus: LocalBus) -> Iterator[RawClient]:
    with RawClient(bus) as opened:
        yield opened


@pytest.fixture
def queue(raw: RawClient, admin_client: ServiceBusAdministrationClient) -> str:
    """Create a queue; return its name."""
    return make(raw, admin_client)


@pytest.fixture
def sessions(raw: RawClient, admin_client: ServiceBusAdministrationClient) -> str:
    """Create a queue with sessions; return its name."""
    return make(raw, admin_client, requires_session=True)


def make(raw: RawClient, admin: ServiceBusAdministrationClient, **settings: Any) -> str:
    name = unique("q")
    admin.create_queue(name, **settings)
    raw.put_token(name)
    return name


def put(raw: RawClient, queue: str, *texts: str, session: str | None = None) -> None:
    link = raw.sender(queue)
    for text in texts:
        raw.send(link, Message(body=text.encode(), inferred=True, group_id=session).encode())
    raw.close_link(link)


def peek(raw: RawClient, path: str, **more: Any) -> list[Message]:
    """Return every message of an entity, decoded."""
    body = {"from-sequence-number": 0, "message-count": int32(1000), **more}
    _, found, _ = raw.request(path, PEEK, body)
    messages = []
    for each in (found or {}).get("messages", ()):
        message = Message()
        message.decode(each["message"])
        messages.append(message)
    return messages


def bodies(messages: list[Message]) -> list[str]:
    return [data_of(message).decode() for message in messages]


def delete(raw: RawClient, path: str, count: int, before: Any = FAR, **more: Any) -> tuple[int, int | None]:
    """Delete messages; return the status, and the number in the reply."""
    body = {"message-count": int32(count), "enqueued-time-utc": before, **more}
    status, found, _ = raw.request(path, DELETE, body)
    return status, None if found is None else found["message-count"]


# --- deleting many ---------------------------------------------------------------------------------------------


def test_the_oldest_messages_are_deleted_first(raw: RawClient, queue: str) -> None:
    """As many as requested, then as many as there are, then none: 204 and a count of 0."""
    put(raw, queue, *"abcde")
    assert delete(raw, queue, 2) == (200, 2)
    assert bodies(peek(raw, queue)) == ["c", "d", "e"]
    assert delete(raw, queue, 100) == (200, 3)
    assert delete(raw, queue, 100) == (204, 0)
    assert delete(raw, queue, 0) == (204, 0)


def test_only_messages_enqueued_before_a_time_are_deleted(raw: RawClient, queue: str) -> None:
    """The time is compared with the one that receivers see; a message enqueued at that time stays."""
    put(raw, queue, "a")
    (first,) = peek(raw, queue)
    put(raw, queue, "b")
    at = first.annotations["x-opt-enqueued-time"]
    assert delete(raw, queue, 10, timestamp(at)) == (204, 0)
    assert delete(raw, queue, 1, timestamp(at + 1)) == (200, 1)
    assert bodies(peek(raw, queue)) == ["b"]


def test_locked_and_deferred_messages_are_not_deleted(raw: RawClient, queue: str) -> None:
    """The holder of the lock can complete its message afterwards."""
    put(raw, queue, *"abc")
    link = raw.receiver(queue)
    deferred, locked = raw.receive(link), raw.receive(link)
    deferred.delivery.local.undeliverable = True
    raw.settle(link, deferred, Delivery.MODIFIED)
    assert delete(raw, queue, 10) == (200, 1)
    assert bodies(peek(raw, queue)) == ["a", "b"]
    assert raw.settle(link, locked) is None
    assert bodies(peek(raw, queue)) == ["a"]


def test_dead_letters_are_deleted(raw: RawClient, queue: str) -> None:
    """Microsoft's documentation names this use first."""
    put(raw, queue, *"ab")
    link = raw.receiver(queue)
    for _ in range(2):
        raw.settle(link, raw.receive(link), Delivery.REJECTED)
    assert delete(raw, f"{queue}/$DeadLetterQueue", 10) == (200, 2)
    assert peek(raw, f"{queue}/$DeadLetterQueue") == []


def test_no_more_than_4000_are_deleted_at_once(raw: RawClient, queue: str) -> None:
    """The service's limit for one request."""
    message = sections.section(sections.DATA, b"\xa0\x01x")
    batch = b"".join(sections.section(sections.DATA, b"\xa0" + bytes((len(message),)) + message) for _ in range(2001))
    link = raw.sender(queue)
    for _ in range(2):
        raw.send(link, batch, format=0x80013700)
    assert delete(raw, queue, 5000) == (200, 4000)
    assert delete(raw, queue, 5000) == (200, 2)


def test_a_session_s_messages_are_deleted_by_its_holder(raw: RawClient, sessions: str) -> None:
    """Only messages of the named session are deleted, and only with a lock on it."""
    put(raw, sessions, *"ab", session="one")
    put(raw, sessions, *"cd", session="two")
    body = {"message-count": int32(10), "enqueued-time-utc": FAR, "session-id": "one"}
    assert raw.request(sessions, DELETE, body)[::2] == (410, conditions.SESSION_LOCK_LOST)
    raw.receiver(sessions, filters=session_filter("one"))
    assert delete(raw, sessions, 10, **{"session-id": "one"}) == (200, 2)
    assert bodies(peek(raw, sessions)) == ["c", "d"]


def test_messages_of_a_held_session_are_not_deleted_by_others(raw: RawClient, sessions: str) -> None:
    """Without a session's name messages of free sessions are deleted: a session's lock covers all its messages."""
    put(raw, sessions, *"ab", session="held")
    put(raw, sessions, *"cd", session="free")
    link = raw.receiver(sessions, filters=session_filter("held"))
    assert delete(raw, sessions, 10) == (200, 2)
    assert [raw.receive(link).payload[-1:] for _ in range(2)] == [b"a", b"b"]


@pytest.mark.parametrize(
    "body",
    [
        {"enqueued-time-utc": FAR},
        {"message-count": "all", "enqueued-time-utc": FAR},
        {"message-count": int32(1), "enqueued-time-utc": "now"},
        {"message-count": int32(1), "enqueued-time-utc": FAR, "session-id": 7},
    ],
)
def test_an_invalid_deletion_deletes_nothing(raw: RawClient, queue: str, body: dict[str, Any]) -> None:
    """The reply names the error."""
    put(raw, queue, "a")
    assert raw.request(queue, DELETE, body)[::2] == (400, conditions.ARGUMENT_ERROR)
    assert bodies(peek(raw, queue)) == ["a"]


def test_nothing_is_deleted_in_a_disabled_queue(
    raw: RawClient, queue: str, admin_client: ServiceBusAdministrationClient
) -> None:
    """A deletion removes messages, as receiving does, and needs the same status."""
    put(raw, queue, "a")
    found = admin_client.get_queue(queue)
    found.status = "ReceiveDisabled"
    admin_client.update_queue(found)
    body = {"message-count": int32(1), "enqueued-time-utc": FAR}
    assert raw.request(queue, DELETE, body)[::2] == (403, conditions.ENTITY_DISABLED)


# --- peeking without bodies --------------------------------------------------------------------------------------

BODIES = {
    "data": sections.section(sections.DATA, b"\xa0\x03abc") * 2,
    "value": sections.section(sections.VALUE, b"\xa1\x03abc"),
    "sequence": sections.section(sections.SEQUENCE, b"\x45"),
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_message_can_be_peeked_without_its_body(raw: RawClient, queue: str, kind: str) -> None:
    """The other sections are the same as with the body."""
    head = Message(
        id="m", subject="s", durable=True, properties={"a": 1}, annotations={"mine": "x"}, body=None, inferred=True
    ).encode()
    kept = b"".join(head[s.start : s.end] for s in sections.split(head) if s.code <= sections.APPLICATION_PROPERTIES)
    raw.send(raw.sender(queue), kept + BODIES[kind])
    whole, bare = (decoded_sections(raw, queue, omit) for omit in (False, True))
    assert [code for code in whole if code > sections.APPLICATION_PROPERTIES]
    assert bare == {code: value for code, value in whole.items() if code <= sections.APPLICATION_PROPERTIES}
    assert {sections.HEADER, sections.MESSAGE_ANNOTATIONS, sections.PROPERTIES} < set(bare)


def decoded_sections(raw: RawClient, queue: str, omit: bool) -> dict[int, Any]:
    """Return the sections of the only message, decoded."""
    body = {"from-sequence-number": 0, "message-count": int32(1), "omit-message-body": omit}
    (found,) = raw.request(queue, PEEK, body)[1]["messages"]
    return {s.code: decode(found["message"], s.value)[0] for s in sections.split(found["message"])}


def test_more_messages_fit_into_a_reply_without_their_bodies(raw: RawClient, queue: str) -> None:
    """Messages whose bodies would exceed a reply fit without them; peeking does not change them."""
    put(raw, queue, *["x" * 200_000] * 5)
    assert len(peek(raw, queue)) < 5
    assert len(peek(raw, queue, **{"omit-message-body": True})) == 5
    assert len(raw.receive(raw.receiver(queue)).payload) > 200_000


# --- settling ----------------------------------------------------------------------------------------------------


def test_a_dead_letter_reason_that_is_not_text_is_a_property(raw: RawClient, queue: str) -> None:
    """.NET's receiver lets any property be modified: a reason that is a time is kept as a property."""
    put(raw, queue, "a", "b")
    link = raw.receiver(queue)
    for reason in (timestamp(1_600_000_000_000), "text"):
        received = raw.receive(link)
        info: dict[Any, Any] = {symbol("DeadLetterReason"): reason, symbol("DeadLetterErrorDescription"): 5}
        received.delivery.local.condition = Condition("com.microsoft:dead-letter", None, info)
        assert raw.settle(link, received, Delivery.REJECTED) is None
    found = [message.properties for message in peek(raw, f"{queue}/$DeadLetterQueue")]
    assert [(each["DeadLetterReason"], each["DeadLetterErrorDescription"]) for each in found] == [
        (timestamp(1_600_000_000_000), 5),
        ("text", 5),
    ]
    assert type(found[0]["DeadLetterReason"]) is timestamp


# --- rules -------------------------------------------------------------------------------------------------------


@pytest.fixture
def subscription(raw: RawClient, admin_client: ServiceBusAdministrationClient) -> str:
    """Create a topic with a subscription; return the subscription's path."""
    topic = unique("t")
    admin_client.create_topic(topic)
    admin_client.create_subscription(topic, "s")
    path = f"{topic}/Subscriptions/s"
    raw.put_token(path)
    return path


def rules(raw: RawClient, subscription: str, skip: int = 0, top: int = 100) -> list[str]:
    """Return the names on a page of rules."""
    _, found, _ = raw.request(subscription, "com.microsoft:enumerate-rules", {"skip": int32(skip), "top": int32(top)})
    return [each["rule-description"].value[2] for each in found["rules"]]


def test_rules_are_listed_by_name(raw: RawClient, subscription: str) -> None:
    """Pages are sorted by name, not by creation; the default rule is first."""
    for name in ("sql", "Correlation", "a"):
        raw.request(
            subscription, ADD_RULE, {"rule-name": name, "rule-description": {"sql-filter": {"expression": "1=2"}}}
        )
    assert rules(raw, subscription) == ["$Default", "a", "Correlation", "sql"]
    assert [rules(raw, subscription, skip, 1) for skip in (1, 2, 4)] == [["a"], ["Correlation"], []]


def test_an_existing_rule_is_refused_in_the_services_words(raw: RawClient, subscription: str) -> None:
    """JavaScript's tests read this text."""
    rule = {"rule-name": "mine", "rule-description": {"correlation-filter": {"label": "red"}}}
    assert raw.request(subscription, ADD_RULE, rule)[0] == 200
    status, _, condition = raw.request(subscription, ADD_RULE, rule)
    assert (status, condition) == (409, conditions.ENTITY_EXISTS)
    assert re.fullmatch("The messaging entity '.*/mine' already exists[.]", raw.said)


def test_values_of_rules_have_their_types(raw: RawClient, subscription: str, admin_client: Any) -> None:
    """Typed values are kept for rules created by REST and by AMQP."""
    topic = subscription.partition("/")[0]
    moment = datetime(2026, 11, 16, tzinfo=timezone.utc)
    given: dict[str, Any] = {
        "day": timedelta(days=1),
        "when": moment,
        "large": 2**63 + 5,
        "whole": 7,
        "half": 0.5,
        "yes": True,
    }
    admin_client.create_rule(topic, "s", "a", filter=CorrelationRuleFilter(properties=given))
    filter = {"properties": {"long": 3, "int": int32(3)}}
    raw.request(subscription, ADD_RULE, {"rule-name": "b", "rule-description": {"correlation-filter": filter}})
    _, found, _ = raw.request(subscription, "com.microsoft:enumerate-rules", {"skip": int32(0), "top": int32(9)})
    first, second = (each["rule-description"].value[0].value[8] for each in found["rules"][1:])
    day = first.pop("day")
    assert (day.descriptor, day.value) == ("com.microsoft:timespan", 864_000_000_000)
    kept = {"when": 1000 * moment.timestamp(), "large": str(2**63 + 5), "whole": 7, "half": 0.5, "yes": True}
    assert first == kept
    assert [type(second[name]) for name in ("long", "int")] == [int, int32]


@pytest.mark.parametrize(
    "description",
    [
        {"sql-filter": "1=2"},
        {"sql-filter": {}},
        {"correlation-filter": [1]},
        {"correlation-filter": {"properties": [1]}},
        {"correlation-filter": {"properties": {"a": [1]}}},
        {"sql-rule-action": "SET a = 1"},
    ],
    ids=str,
)
def test_an_invalid_rule_is_not_created(raw: RawClient, subscription: str, description: Any) -> None:
    """Read as a default it would match every message. The connection can be used afterwards."""
    rule = {"rule-name": "odd", "rule-description": description}
    assert raw.request(subscription, ADD_RULE, rule)[0] == 400
    assert rules(raw, subscription) == ["$Default"]
