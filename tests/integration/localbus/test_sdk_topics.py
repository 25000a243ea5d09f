"""Topics, subscriptions and rules with Microsoft's Python clients, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusQuotaExceededError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from proton import Message

from tests.support.raw_client import RawClient
from tests.support.scenarios import scenario
from tests.support.sdk_clients import AsyncFacade, SdkClients, bodies, soon, text_properties

SECOND = timedelta(seconds=1)


def deleting(at: SdkClients, topic: str, subscription: str = "all") -> AsyncFacade:
    return at.receiver(topic, subscription, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)


async def publish(at: SdkClients, topic: str, *messages: ServiceBusMessage | str) -> None:
    await at.send(topic, *messages, topic=True)


async def peeked(at: SdkClients, topic: str, subscriptions: Sequence[str]) -> dict[str, list[str]]:
    """Return the message ids in each subscription, read without the SDK on one connection."""

    def look() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with RawClient(at.bus) as raw:
            for name in subscriptions:
                path = f"{topic}/Subscriptions/{name}"
                raw.put_token(path)
                body = {"from-sequence-number": 0, "message-count": 100}
                status, reply, _ = raw.request(path, "com.microsoft:peek-message", body)
                found[name] = []
                for each in reply["messages"] if status == 200 else ():
                    message = Message()
                    message.decode(bytes(each["message"]))
                    found[name].append(str(message.id))
        return found

    return await asyncio.to_thread(look)


async def filtered(
    at: SdkClients, filters: dict[str, Any], messages: Sequence[ServiceBusMessage]
) -> dict[str, list[str]]:
    """Create one subscription per filter; return the ids of the messages in each."""
    topic = await at.topic()
    for name, chosen in filters.items():
        await at.subscription(topic, name)
        await at.only_rule(topic, name, filter=chosen)
    await publish(at, topic, *messages)
    return await peeked(at, topic, list(filters))


# --- copies --------------------------------------------------------------------------------------------------


@scenario()
async def test_every_subscription_gets_its_own_copy(at: SdkClients) -> None:
    """By default a subscription gets every message; settling one copy does not affect the others."""
    topic = await at.topic()
    for name in ("one", "two"):
        await at.subscription(topic, name)
    await publish(at, topic, ServiceBusMessage("a", message_id="m", application_properties={"p": 1}), "b")
    one = at.receiver(topic, "one")
    first, second = await at.take(one, 2)
    assert bodies([first, second]) == ["a", "b"]
    assert (first.message_id, text_properties(first), first.delivery_count) == ("m", {"p": 1}, 0)
    await one.complete_message(first)
    await one.abandon_message(second)
    assert (await at.take_one(one)).delivery_count == 1
    await at.settled(topic, "one", active=1)
    await at.settled(topic, "two", active=2)
    assert [m.delivery_count for m in await at.take(deleting(at, topic, "two"), 2)] == [0, 0]


@scenario()
async def test_a_batch_to_a_topic(at: SdkClients) -> None:
    """Messages of a batch are filtered and copied one by one, in order."""
    topic = await at.topic()
    await at.subscription(topic)
    await at.subscription(topic, "even")
    await at.only_rule(topic, "even", filter=SqlRuleFilter("n % 2 = 0"))
    messages = [ServiceBusMessage(str(n), application_properties={"n": n}) for n in range(6)]
    await at.sender(topic, topic=True).send_messages(messages)
    assert bodies(await at.take(deleting(at, topic), 6)) == list("012345")
    assert bodies(await at.take(deleting(at, topic, "even"), 3)) == list("024")


@scenario()
async def test_a_subscription_gets_messages_sent_after_its_creation(at: SdkClients) -> None:
    """Earlier messages are not copied; without subscriptions a message is dropped."""
    topic = await at.topic()
    await publish(at, topic, "before")
    await at.subscription(topic)
    await publish(at, topic, "after")
    assert bodies(await at.take(deleting(at, topic), 1)) == ["after"]
    await at.settled(topic, "all")


# --- filters -------------------------------------------------------------------------------------------------


@scenario("sync")
async def test_true_and_false_filters(at: SdkClients) -> None:
    """A true filter matches all messages, a false filter none."""
    found = await filtered(
        at, {"true": TrueRuleFilter(), "false": FalseRuleFilter()}, [ServiceBusMessage("x", message_id="m")]
    )
    assert found == {"true": ["m"], "false": []}


@scenario("sync")
async def test_correlation_filters_on_system_properties(at: SdkClients) -> None:
    """Each system property of a correlation filter is compared for equality, including case."""
    fields = {
        "correlation_id": "correlation_id", "message_id": "message_id", "to": "to", "reply_to": "reply_to",
        "label": "subject", "session_id": "session_id", "reply_to_session_id": "reply_to_session_id",
        "content_type": "content_type",
    }  # fmt: skip
    filters = {}
    for name in fields:
        wanted: dict[str, Any] = {name: "Wanted"}
        filters[name] = CorrelationRuleFilter(**wanted)
    messages = []
    for name, field in fields.items():
        for value in ("Wanted", "wanted"):
            settings: dict[str, Any] = {"message_id": f"{name}-{value}", field: value}
            messages.append(ServiceBusMessage("x", **settings))
    found = await filtered(at, filters, messages)
    expected = {name: [f"{name}-Wanted"] for name in fields} | {"message_id": ["Wanted"]}
    assert found == expected


@scenario("sync")
async def test_correlation_filters_on_application_properties(at: SdkClients) -> None:
    """Application properties are compared with their type; several conditions must all match."""
    when = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
    filters = {
        "text": CorrelationRuleFilter(properties={"p": "1"}),
        "number": CorrelationRuleFilter(properties={"p": 1}),
        "half": CorrelationRuleFilter(properties={"p": 0.5}),
        "yes": CorrelationRuleFilter(properties={"p": True}),
        "when": CorrelationRuleFilter(properties={"p": when}),
        "both": CorrelationRuleFilter(label="s", properties={"p": 1, "q": "x"}),
    }
    values: dict[str, Any] = {"text": "1", "number": 1, "half": 0.5, "yes": True}
    values["when"] = {"TYPE": "TIMESTAMP", "VALUE": int(when.timestamp() * 1000)}
    values["long"] = {"TYPE": "LONG", "VALUE": 1}
    messages = [
        ServiceBusMessage("x", message_id=name, application_properties={"p": value}) for name, value in values.items()
    ]
    both: dict[str | bytes, Any] = {"p": 1, "q": "x"}
    messages += [
        ServiceBusMessage("x", message_id="both", subject="s", application_properties=dict(both)),
        ServiceBusMessage("x", message_id="no subject", application_properties=dict(both)),
        ServiceBusMessage("x", message_id="other q", subject="s", application_properties={"p": 1, "q": "y"}),
        ServiceBusMessage("x", message_id="none"),
    ]
    numbers = ["number", "long", "both", "no subject", "other q"]
    assert await filtered(at, filters, messages) == {
        "text": ["text"], "number": numbers, "half": ["half"], "yes": ["yes"], "when": ["when"],
        "both": ["both"],
    }  # fmt: skip


@scenario("sync")
async def test_sql_filters(at: SdkClients) -> None:
    """Comparison, arithmetic, LIKE, IN, EXISTS, null, system properties and parameters match as documented."""
    filters = {
        "comparison": SqlRuleFilter("amount > 10 AND colour <> 'red'"),
        "either": SqlRuleFilter("colour = 'red' OR NOT (amount >= 1)"),
        "arithmetic": SqlRuleFilter("(amount + 2) * 2 = 24"),
        "like": SqlRuleFilter("colour LIKE '%lue' OR colour LIKE 'r_d'"),
        "in": SqlRuleFilter("colour IN ('red', 'green')"),
        "exists": SqlRuleFilter("EXISTS(user.extra)"),
        "null": SqlRuleFilter("extra IS NULL AND amount IS NOT NULL"),
        "system": SqlRuleFilter("sys.Label = 'urgent' AND sys.CorrelationId = 'c'"),
        "parameters": SqlRuleFilter("amount = @limit", parameters={"@limit": 10}),
    }

    def message(name: str, subject: str | None = None, **properties: Any) -> ServiceBusMessage:
        return ServiceBusMessage(
            "x", message_id=name, subject=subject, correlation_id="c", application_properties=dict(properties.items())
        )

    messages = [
        message("red10", colour="red", amount=10),
        message("blue20", colour="blue", amount=20.0),
        message("extra", subject="urgent", extra=True),
        message("green0", colour="green", amount=0),
    ]
    assert await filtered(at, filters, messages) == {
        "comparison": ["blue20"],
        "either": ["red10", "green0"],
        "arithmetic": ["red10"],
        "like": ["red10", "blue20"],
        "in": ["red10", "green0"],
        "exists": ["extra"],
        "null": ["red10", "blue20", "green0"],
        "system": ["extra"],
        "parameters": ["red10"],
    }


@scenario("sync")
async def test_filters_on_the_broker_s_own_fields(at: SdkClients) -> None:
    """Enqueued time, delivery count, size, sequence number, and the shorter time to live of message and topic."""
    topic = await at.topic(default_message_time_to_live=timedelta(minutes=10))
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    now = datetime.now(timezone.utc)
    filters = {
        "enqueued": SqlRuleFilter("sys.EnqueuedTimeUtc > @from AND sys.EnqueuedTimeUtc < @to",
            parameters={"@from": now - minute, "@to": now + hour}),
        "never": SqlRuleFilter("sys.EnqueuedTimeUtc > @to", parameters={"@to": now + hour}),
        "expires": SqlRuleFilter("sys.ExpiresAtUtc > @now AND sys.ExpiresAtUtc < @soon",
            parameters={"@now": now, "@soon": now + 3 * minute}),
        "undelivered": SqlRuleFilter("sys.DeliveryCount = 0 AND sys.SequenceNumber > 0"),
        "large": SqlRuleFilter("sys.Size > 1000"),
        "brief": SqlRuleFilter("sys.TimeToLive <= @minute", parameters={"@minute": minute}),
        "capped": SqlRuleFilter("sys.TimeToLive = @most", parameters={"@most": timedelta(minutes=10)}),
    }  # fmt: skip
    for name, chosen in filters.items():
        await at.subscription(topic, name)
        await at.only_rule(topic, name, filter=chosen)
    await publish(
        at,
        topic,
        ServiceBusMessage("x", message_id="brief", time_to_live=minute),
        ServiceBusMessage("x", message_id="long", time_to_live=hour),
        ServiceBusMessage("x" * 1000, message_id="large"),
    )
    everything = ["brief", "long", "large"]
    assert await peeked(at, topic, list(filters)) == {
        "enqueued": everything,
        "never": [],
        "expires": ["brief"],
        "undelivered": everything,
        "large": ["large"],
        "brief": ["brief"],
        "capped": ["long", "large"],
    }


@scenario("sync")
async def test_a_filter_that_divides_by_zero(at: SdkClients) -> None:
    """Its message is dead-lettered in that subscription, or dropped by its setting; other subscriptions get it."""
    topic = await at.topic()
    filter = SqlRuleFilter("10 / amount > 1 OR 10 % amount = 3")
    await at.subscription(topic, "kept", dead_lettering_on_filter_evaluation_exceptions=True)
    await at.subscription(topic, "dropped", dead_lettering_on_filter_evaluation_exceptions=False)
    for name in ("kept", "dropped"):
        await at.only_rule(topic, name, filter=filter)
    await at.subscription(topic, "all")
    for amount in (0, 2, "a text"):
        await publish(at, topic, ServiceBusMessage(f"{amount}", application_properties={"amount": amount}))
    await at.settled(topic, "all", active=3)
    await at.settled(topic, "kept", active=1, dead_letter=1)
    await at.settled(topic, "dropped", active=1)
    dead = await at.take_one(at.receiver(topic, "kept", sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (str(dead), dead.dead_letter_reason) == ("0", "FilterEvaluationException")
    assert "divided by zero" in dead.dead_letter_error_description


@scenario("sync")
async def test_an_invalid_filter_is_refused(at: SdkClients) -> None:
    """A rule with invalid SQL is not created."""
    topic = await at.topic()
    await at.subscription(topic)
    with pytest.raises(HttpResponseError) as refused:
        await at.rule(topic, "all", "bad", filter=SqlRuleFilter("a = = 1"))
    assert refused.value.status_code == 400
    with pytest.raises(HttpResponseError):
        await at.rule(topic, "all", "bad", filter=TrueRuleFilter(), action=SqlRuleAction("SET"))


# --- actions and several rules -------------------------------------------------------------------------------


@scenario()
async def test_a_rule_s_action_changes_the_copy(at: SdkClients) -> None:
    """SET and REMOVE change application and system properties of this subscription's copy alone."""
    topic = await at.topic()
    for name in ("plain", "changed"):
        await at.subscription(topic, name)
    action = SqlRuleAction("SET added = 'new'; SET n = n + 1; REMOVE gone; SET sys.Label = 'subject ' + colour")
    await at.only_rule(topic, "changed", "my-rule", filter=SqlRuleFilter("n = 1"), action=action)
    properties: dict[str | bytes, Any] = {"n": 1, "gone": "x", "colour": "red", "kept": 0.5}
    await publish(at, topic, ServiceBusMessage("body", subject="old", application_properties=properties))
    plain = await at.take_one(deleting(at, topic, "plain"))
    assert (plain.subject, text_properties(plain)) == ("old", properties)
    changed = await at.take_one(deleting(at, topic, "changed"))
    assert (changed.subject, str(changed)) == ("subject red", "body")
    assert text_properties(changed) == {
        "added": "new", "n": 2, "colour": "red", "kept": 0.5, "RuleName": "my-rule",
    }  # fmt: skip


@scenario()
async def test_several_rules(at: SdkClients) -> None:
    """Matching rules without an action make one copy together; each with an action makes one of its own."""
    topic = await at.topic()
    await at.subscription(topic)
    await at.only_rule(topic, "all", "plain-1", filter=SqlRuleFilter("n = 1"))
    await at.rule(topic, "all", "plain-2", filter=TrueRuleFilter())
    for name in ("first", "second"):
        await at.rule(topic, "all", name, filter=SqlRuleFilter("n = 1"), action=SqlRuleAction(f"SET by = '{name}'"))
    await at.rule(topic, "all", "other", filter=SqlRuleFilter("n = 2"), action=SqlRuleAction("SET by = 'other'"))
    await publish(at, topic, ServiceBusMessage("x", application_properties={"n": 1}))
    got = await at.take(deleting(at, topic), 3)
    assert sorted(text_properties(m).get("by", "") for m in got) == ["", "first", "second"]
    await at.settled(topic, "all")


@scenario()
async def test_rules_apply_from_their_creation_to_their_deletion(at: SdkClients) -> None:
    """A subscription without rules gets no message; a new rule applies to messages sent afterwards."""
    topic = await at.topic()
    await at.subscription(topic)
    await asyncio.to_thread(at.admin.delete_rule, topic, "all", "$Default")
    await publish(at, topic, "none")
    await at.rule(topic, "all", "mine", filter=CorrelationRuleFilter(label="yes"))
    await publish(at, topic, ServiceBusMessage("yes", subject="yes"), ServiceBusMessage("no", subject="no"))
    rule = await asyncio.to_thread(at.admin.get_rule, topic, "all", "mine")
    rule.filter = CorrelationRuleFilter(label="no")
    await asyncio.to_thread(at.admin.update_rule, topic, "all", rule)
    await publish(at, topic, ServiceBusMessage("yes 2", subject="yes"), ServiceBusMessage("no 2", subject="no"))
    assert bodies(await at.take(deleting(at, topic), 2)) == ["yes", "no 2"]
    await at.settled(topic, "all")


# --- subscriptions as queues ---------------------------------------------------------------------------------


@scenario()
async def test_each_subscription_has_its_own_dead_letters(at: SdkClients) -> None:
    """A copy that is dead-lettered in one subscription is in that dead-letter queue alone."""
    topic = await at.topic()
    for name in ("one", "two"):
        await at.subscription(topic, name, max_delivery_count=1)
    await publish(at, topic, "x")
    one = at.receiver(topic, "one")
    await one.abandon_message(await at.take_one(one))
    await at.settled(topic, "one", dead_letter=1)
    await at.settled(topic, "two", active=1)
    dead = await at.take_one(at.receiver(topic, "one", sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


@scenario()
async def test_a_subscription_can_forward(at: SdkClients) -> None:
    """To a queue, or to another topic, whose own rules apply then."""
    queue, second = await at.queue(), await at.topic()
    await at.subscription(second, "picked")
    await at.only_rule(second, "picked", filter=CorrelationRuleFilter(label="yes"))
    first = await at.topic()
    await at.subscription(first, "to-queue", forward_to=queue)
    await at.subscription(first, "to-topic", forward_to=second)
    await publish(at, first, ServiceBusMessage("a", subject="yes"), ServiceBusMessage("b", subject="no"))
    assert bodies(await at.take(at.receiver(queue), 2)) == ["a", "b"]
    assert bodies(await at.take(deleting(at, second, "picked"), 1)) == ["a"]
    await at.settled(first, "to-queue")
    await at.settled(first, "to-topic")


@scenario()
async def test_a_subscription_with_sessions(at: SdkClients) -> None:
    """A session subscription delivers by session; a message without a session id is dead-lettered there."""
    topic = await at.topic()
    await at.subscription(topic, requires_session=True)
    await publish(at, topic, ServiceBusMessage("1", session_id="s"), "none", ServiceBusMessage("2", session_id="s"))
    receiver = at.receiver(topic, "all", session_id="s")
    assert bodies(await at.take(receiver, 2)) == ["1", "2"]
    dead = await at.take_one(at.receiver(topic, "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (str(dead), dead.dead_letter_reason) == ("none", "Session ID is null.")


@scenario()
async def test_scheduled_on_a_topic(at: SdkClients) -> None:
    """A scheduled message stays in the topic and is copied at its time; it can be cancelled before."""
    topic = await at.topic()
    await at.subscription(topic)
    sender = at.sender(topic, topic=True)
    await sender.__aenter__()
    when = soon(12)
    numbers = await sender.schedule_messages([ServiceBusMessage("cancelled"), ServiceBusMessage("kept")], when)
    await sender.cancel_scheduled_messages(numbers[0])
    runtime = await asyncio.to_thread(at.admin.get_topic_runtime_properties, topic)
    assert runtime.scheduled_message_count == 1
    message = await at.take_one(deleting(at, topic))
    assert (str(message), datetime.now(timezone.utc) >= when) == ("kept", True)
    await at.settled(topic, "all")


@scenario()
async def test_duplicates_on_a_topic(at: SdkClients) -> None:
    """A topic with duplicate detection copies a message id once."""
    topic = await at.topic(requires_duplicate_detection=True)
    await at.subscription(topic)
    for body, id in (("1", "a"), ("2", "a"), ("3", "b")):
        await publish(at, topic, ServiceBusMessage(body, message_id=id))
    assert bodies(await at.take(deleting(at, topic), 2)) == ["1", "3"]
    await at.settled(topic, "all")


@scenario("async")
async def test_time_to_live_of_topic_and_subscription(at: SdkClients) -> None:
    """The shortest time to live applies; each subscription dead-letters or drops by its own setting."""
    topic = await at.topic(default_message_time_to_live=timedelta(hours=1))
    await at.subscription(topic, "long")
    await at.subscription(topic, "drops", default_message_time_to_live=SECOND)
    await at.subscription(
        topic, "buries", default_message_time_to_live=SECOND, dead_lettering_on_message_expiration=True
    )
    short = await at.topic(default_message_time_to_live=SECOND)
    await at.subscription(short)
    await publish(at, topic, "x")
    await publish(at, short, ServiceBusMessage("y", time_to_live=timedelta(hours=1)))
    await at.settled(topic, "drops")
    await at.settled(topic, "buries", dead_letter=1)
    await at.settled(short, "all")
    await at.settled(topic, "long", active=1)


@scenario("sync")
async def test_a_topic_s_limits_and_status(at: SdkClients) -> None:
    """A topic's quota counts its subscriptions' messages; a disabled topic accepts none."""
    topic = await at.topic(max_size_in_megabytes=1)
    await at.subscription(topic)
    big = ServiceBusMessage(b"x" * 250_000)
    await publish(at, topic, *[big] * 4)
    with pytest.raises(ServiceBusQuotaExceededError):
        await publish(at, topic, big)
    await at.take(deleting(at, topic), 4)
    await publish(at, topic, big)
    found = await asyncio.to_thread(at.admin.get_topic, topic)
    found.status = "SendDisabled"
    await asyncio.to_thread(at.admin.update_topic, found)
    with pytest.raises(MessagingEntityDisabledError):
        await publish(at, topic, "x")


@scenario("sync")
async def test_a_subscription_s_status(at: SdkClients) -> None:
    """A subscription that is disabled for receiving collects messages, and delivers them when it is active."""
    topic = await at.topic()
    await at.subscription(topic)
    found = await asyncio.to_thread(at.admin.get_subscription, topic, "all")
    found.status = "ReceiveDisabled"
    await asyncio.to_thread(at.admin.update_subscription, topic, found)
    await publish(at, topic, "x")
    with pytest.raises(MessagingEntityDisabledError):
        await deleting(at, topic).receive_messages(1, max_wait_time=60)
    found.status = "Active"
    await asyncio.to_thread(at.admin.update_subscription, topic, found)
    assert bodies(await at.take(deleting(at, topic), 1)) == ["x"]


@scenario()
async def test_pings_are_not_copied(at: SdkClients) -> None:
    """A ping to a topic is accepted, and no subscription gets it, whatever its rules."""
    topic = await at.topic()
    await at.subscription(topic)
    await publish(at, topic, ServiceBusMessage(b"", content_type="application/vnd.ms-servicebus-ping"), "real")
    message = await at.take_one(deleting(at, topic))
    assert (str(message), message.sequence_number) == ("real", 1)
    await at.settled(topic, "all")
