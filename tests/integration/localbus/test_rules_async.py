"""Rules with the async clients: the administration client creates them, the data client sends through them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.support.scenarios import scenario
from tests.support.sdk_clients import SdkClients, bodies, text_properties, unique

WHEN = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)


@asynccontextmanager
async def administration(at: SdkClients) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with ServiceBusAdministrationClient.from_connection_string(
        at.bus.connection_string, connection_verify=at.bus.ca_file, retry_total=0
    ) as admin:
        yield admin


@asynccontextmanager
async def new_topic(at: SdkClients, *subscriptions: str) -> AsyncIterator[tuple[ServiceBusAdministrationClient, str]]:
    """Yield the async administration client, and a topic with these subscriptions."""
    async with administration(at) as admin:
        topic = unique("t")
        await admin.create_topic(topic)
        for name in subscriptions:
            await admin.create_subscription(topic, name)
        yield admin, topic


async def only_rule(admin: ServiceBusAdministrationClient, topic: str, name: str, rule: str, **settings: Any) -> None:
    """Replace the default rule."""
    await admin.delete_rule(topic, name, "$Default")
    await admin.create_rule(topic, name, rule, **settings)


async def received(at: SdkClients, topic: str, name: str, count: int) -> list[Any]:
    """Receive exactly this number of messages; assert that the subscription is empty then."""
    found: list[Any] = []
    if count:
        receiver = at.receiver(topic, name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        found = await at.take(receiver, count)
    await at.settled(topic, name)
    return found


async def passed(at: SdkClients, chosen: Any, messages: Iterable[ServiceBusMessage], expected: list[str]) -> None:
    """Assert that a subscription with this filter gets these ids, and one without a filter all of them."""
    sent = list(messages)
    async with new_topic(at, "filtered", "all") as (admin, topic):
        await only_rule(admin, topic, "filtered", "only", filter=chosen)
        await at.sender(topic, topic=True).send_messages(sent)
        # The neighbour was served from the same batch: what is not in the other subscription now never will be.
        assert len(await received(at, topic, "all", len(sent))) == len(sent)
        assert [each.message_id for each in await received(at, topic, "filtered", len(expected))] == expected


# --- the default rule ----------------------------------------------------------------------------------------


@scenario("async")
async def test_a_new_subscription_has_a_default_rule_that_matches_all(at: SdkClients) -> None:
    """`$Default` is a true filter without an action; without it the subscription gets no message."""
    async with new_topic(at, "all") as (admin, topic):
        (rule,) = [rule async for rule in admin.list_rules(topic, "all")]
        assert (rule.name, type(rule.filter), rule.action) == ("$Default", TrueRuleFilter, None)
        await at.send(topic, "one", "two", topic=True)
        assert bodies(await received(at, topic, "all", 2)) == ["one", "two"]
        await admin.delete_rule(topic, "all", "$Default")
        assert [rule async for rule in admin.list_rules(topic, "all")] == []
        await admin.create_subscription(topic, "witness")
        await at.send(topic, "three", topic=True)
        assert bodies(await received(at, topic, "witness", 1)) == ["three"]
        await at.settled(topic, "all")


# --- filters -------------------------------------------------------------------------------------------------


@scenario("async", cases=("true", "false"))
async def test_true_and_false_filters(at: SdkClients, case: str) -> None:
    """A true filter matches all messages, a false filter none."""
    chosen = TrueRuleFilter() if case == "true" else FalseRuleFilter()
    await passed(at, chosen, [ServiceBusMessage("x", message_id="m")], ["m"] if case == "true" else [])


#: Fields of a correlation filter, and what a message calls them.
FIELDS = {
    "correlation_id": "correlation_id", "message_id": "message_id", "to": "to", "reply_to": "reply_to",
    "label": "subject", "session_id": "session_id", "reply_to_session_id": "reply_to_session_id",
    "content_type": "content_type",
}  # fmt: skip


@scenario("async", cases=FIELDS)
async def test_correlation_filters_on_system_properties(at: SdkClients, case: str) -> None:
    """Each field is compared for equality, including case; other fields are ignored."""
    others = {field: "Wanted" for field in FIELDS.values() if field != FIELDS[case]}
    fields: list[dict[str, Any]] = [
        {"message_id": "other case", FIELDS[case]: "wanted"},
        {"message_id": "m", FIELDS[case]: "Wanted"},
        {"message_id": "others", **others},
    ]
    messages = [ServiceBusMessage("x", **each) for each in fields]
    expected = "Wanted" if case == "message_id" else "m"
    field: dict[str, Any] = {case: "Wanted"}
    await passed(at, CorrelationRuleFilter(**field), messages, [expected])


PROPERTIES: dict[str, tuple[Any, Any]] = {
    "text": ("1", "1"),
    "number": (1, 1),
    "long": (1, {"TYPE": "LONG", "VALUE": 1}),
    "half": (0.5, 0.5),
    "yes": (True, True),
    "time": (WHEN, {"TYPE": "TIMESTAMP", "VALUE": int(WHEN.timestamp() * 1000)}),
}


@scenario("async", cases=PROPERTIES)
async def test_correlation_filters_on_application_properties(at: SdkClients, case: str) -> None:
    """A value matches the same type and value; its text, another value or no property do not match."""
    wanted, sent = PROPERTIES[case]
    alike = "1.0" if case == "text" else str(wanted)
    given: dict[str, dict[str | bytes, Any]] = {
        "m": {"p": sent}, "alike": {"p": alike}, "elsewhere": {"q": sent}, "none": {},
    }  # fmt: skip
    messages = [
        ServiceBusMessage("x", message_id=name, application_properties=properties) for name, properties in given.items()
    ]
    await passed(at, CorrelationRuleFilter(properties={"p": wanted}), messages, ["m"])


@scenario("async")
async def test_the_case_of_a_property_s_name_does_not_matter(at: SdkClients) -> None:
    """Correlation and SQL filters ignore the case of a property's name, but not of its value."""
    given: dict[str, dict[str | bytes, Any]] = {
        "m": {"COLOUR": "red"}, "case": {"colour": "Red"}, "none": {"size": "red"},
    }  # fmt: skip
    messages = [
        ServiceBusMessage("x", message_id=name, application_properties=properties) for name, properties in given.items()
    ]
    await passed(at, CorrelationRuleFilter(properties={"Colour": "red"}), messages, ["m"])


@scenario("async")
async def test_all_conditions_of_a_correlation_filter_must_hold(at: SdkClients) -> None:
    """Label and both properties must match; two of three do not."""
    both: dict[Any, Any] = {"p": 1, "q": "x"}
    messages = [
        ServiceBusMessage("x", message_id="m", subject="s", application_properties={**both}),
        ServiceBusMessage("x", message_id="no label", application_properties={**both}),
        ServiceBusMessage("x", message_id="other q", subject="s", application_properties={"p": 1, "q": "y"}),
        ServiceBusMessage("x", message_id="no p", subject="s", application_properties={"q": "x"}),
    ]
    await passed(at, CorrelationRuleFilter(label="s", properties=both), messages, ["m"])


SQL: dict[str, list[str]] = {
    "amount > 10 AND colour <> 'red'": ["blue20"],
    "colour = 'red' OR NOT (amount >= 1)": ["red10", "green0"],
    "(amount + 2) * 2 = 24": ["red10"],
    "colour LIKE '%lue' OR colour LIKE 'r_d'": ["red10", "blue20"],
    "colour IN ('red', 'green')": ["red10", "green0"],
    "EXISTS(user.extra)": ["extra"],
    "extra IS NULL AND amount IS NOT NULL": ["red10", "blue20", "green0"],
    "sys.Label = 'urgent' AND sys.CorrelationId = 'c'": ["extra"],
    "missing = 1": [],
    "1 = 1": ["red10", "blue20", "extra", "green0"],
}


def coloured() -> list[ServiceBusMessage]:
    properties: dict[str, dict[str | bytes, Any]] = {
        "red10": {"colour": "red", "amount": 10},
        "blue20": {"colour": "blue", "amount": 20.0},
        "extra": {"extra": True},
        "green0": {"colour": "green", "amount": 0},
    }
    return [
        ServiceBusMessage(
            "x",
            message_id=name,
            correlation_id="c",
            subject="urgent" if name == "extra" else None,
            application_properties=given,
        )
        for name, given in properties.items()
    ]


@scenario("async", cases=SQL)
async def test_sql_filters(at: SdkClients, case: str) -> None:
    """Each message of a batch is matched by itself; an unknown value does not match."""
    await passed(at, SqlRuleFilter(case), coloured(), SQL[case])


@scenario("async")
async def test_sql_filters_with_parameters(at: SdkClients) -> None:
    """A parameter has its value and its type."""
    chosen = SqlRuleFilter("amount = @limit AND colour = @name", parameters={"@limit": 10, "@name": "red"})
    await passed(at, chosen, coloured(), ["red10"])


# --- actions and several rules -------------------------------------------------------------------------------


@scenario("async")
async def test_a_rule_s_action_changes_the_copy(at: SdkClients) -> None:
    """SET and REMOVE change this subscription's copy alone, and RuleName is added to it."""
    async with new_topic(at, "plain", "changed") as (admin, topic):
        action = SqlRuleAction(
            "SET added = @new; SET n = n + 1; REMOVE gone; SET sys.Label = 'is ' + colour", parameters={"@new": "new"}
        )
        await only_rule(admin, topic, "changed", "my-rule", filter=SqlRuleFilter("n = 1"), action=action)
        before: dict[str | bytes, Any] = {"n": 1, "gone": "x", "colour": "red", "kept": 0.5}
        messages = [
            ServiceBusMessage("y", application_properties={"n": 2}),
            ServiceBusMessage("body", subject="old", application_properties=before),
        ]
        await at.sender(topic, topic=True).send_messages(messages)
        _, plain = await received(at, topic, "plain", 2)
        assert (plain.subject, text_properties(plain)) == ("old", before)
        (changed,) = await received(at, topic, "changed", 1)
        assert (changed.subject, str(changed)) == ("is red", "body")
        after = {"added": "new", "n": 2, "colour": "red", "kept": 0.5, "RuleName": "my-rule"}
        assert text_properties(changed) == after


@scenario("async")
async def test_several_rules_of_a_subscription(at: SdkClients) -> None:
    """Matching rules without an action make one copy together; each with an action makes one of its own."""
    async with new_topic(at, "all") as (admin, topic):
        ours = SqlRuleFilter("n = 1")
        await admin.create_rule(topic, "all", "plain", filter=ours)
        for name in ("first", "second"):
            await admin.create_rule(topic, "all", name, filter=ours, action=SqlRuleAction(f"SET by = '{name}'"))
        other = SqlRuleAction("SET by = 'other'")
        await admin.create_rule(topic, "all", "other", filter=FalseRuleFilter(), action=other)
        await at.send(topic, ServiceBusMessage("x", application_properties={"n": 1}), topic=True)
        got = await received(at, topic, "all", 3)
        assert sorted(text_properties(each).get("by", "") for each in got) == ["", "first", "second"]


# --- rules as entities ---------------------------------------------------------------------------------------


@scenario("async")
async def test_a_rule_is_returned_as_it_was_created(at: SdkClients) -> None:
    """Filter, action and parameters are the same, alone and in the list."""
    async with new_topic(at, "all") as (admin, topic):
        await admin.create_rule(
            topic,
            "all",
            "sql",
            filter=SqlRuleFilter("a = @a", parameters={"@a": 7}),
            action=SqlRuleAction("SET b = @b", parameters={"@b": "x"}),
        )
        await admin.create_rule(topic, "all", "by-label", filter=CorrelationRuleFilter(label="l", properties={"p": 1}))
        found = await admin.get_rule(topic, "all", "sql")
        assert (found.filter.sql_expression, found.filter.parameters) == ("a = @a", {"@a": 7})
        assert (found.action.sql_expression, found.action.parameters) == ("SET b = @b", {"@b": "x"})
        found = await admin.get_rule(topic, "all", "by-label")
        assert (found.filter.label, found.filter.properties, found.action) == ("l", {"p": 1}, None)
        assert {rule.name async for rule in admin.list_rules(topic, "all")} == {"$Default", "sql", "by-label"}


@scenario("async")
async def test_an_updated_rule_applies_to_later_messages(at: SdkClients) -> None:
    """Copies that exist stay; messages sent afterwards are matched with the new rule."""
    async with new_topic(at, "all") as (admin, topic):
        await only_rule(admin, topic, "all", "mine", filter=CorrelationRuleFilter(label="yes"))
        messages = [ServiceBusMessage(text, subject=text) for text in ("yes", "no")]
        await at.sender(topic, topic=True).send_messages(messages)
        await at.settled(topic, "all", active=1)
        rule = await admin.get_rule(topic, "all", "mine")
        rule.filter = CorrelationRuleFilter(label="no")
        await admin.update_rule(topic, "all", rule)
        await at.sender(topic, topic=True).send_messages(messages)
        assert bodies(await received(at, topic, "all", 2)) == ["yes", "no"]


@scenario("async")
async def test_an_invalid_rule_is_refused(at: SdkClients) -> None:
    """Invalid SQL, an existing name, or a missing rule or subscription raise an error and change nothing."""
    async with new_topic(at, "all") as (admin, topic):
        for settings in (
            {"filter": SqlRuleFilter("a = = 1")},
            {"filter": TrueRuleFilter(), "action": SqlRuleAction("SET")},
        ):
            with pytest.raises(HttpResponseError) as refused:
                await admin.create_rule(topic, "all", "bad", **settings)
            assert refused.value.status_code == 400
        with pytest.raises(ResourceExistsError):
            await admin.create_rule(topic, "all", "$Default", filter=FalseRuleFilter())
        for missing in (admin.get_rule(topic, "all", "none"), admin.delete_rule(topic, "all", "none")):
            with pytest.raises(ResourceNotFoundError):
                await missing
        with pytest.raises(ResourceNotFoundError):
            await admin.create_rule(topic, "none", "mine", filter=TrueRuleFilter())
        assert [rule.name async for rule in admin.list_rules(topic, "all")] == ["$Default"]
        await at.send(topic, "x", topic=True)
        assert bodies(await received(at, topic, "all", 1)) == ["x"]


@scenario("async")
async def test_rules_of_many_subscriptions_created_in_parallel(at: SdkClients) -> None:
    """Ten subscriptions with a rule each get their own messages."""
    async with new_topic(at) as (admin, topic):

        async def subscribe(name: str) -> None:
            await admin.create_subscription(topic, name)
            await only_rule(admin, topic, name, "mine", filter=SqlRuleFilter(f"sys.Label = '{name}'"))

        names = [f"s{n}" for n in range(10)]
        await asyncio.gather(*(subscribe(name) for name in names))
        await at.sender(topic, topic=True).send_messages([ServiceBusMessage(name, subject=name) for name in names])
        found = await asyncio.gather(*(received(at, topic, name, 1) for name in names))
        assert [bodies(each) for each in found] == [[name] for name in names]
