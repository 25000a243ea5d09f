"""The XML of the management REST API: values, descriptions and rules, valid and invalid."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.localbus.broker.settings_json import dump_subscription, load_subscription
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.rest import atom
from pairbus.localbus.rest.atom_rules import read_rule, write_rule
from pairbus.localbus.rest.descriptions import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    RequestContext,
    forward_path,
    read_settings,
    write_settings,
)
from pairbus.localbus.rest.xml_values import (
    FOREVER_TEXT,
    XSD,
    escape_text,
    parse_xml,
    read_date_time,
    read_duration,
    write_date_time,
    write_duration,
    write_time,
)
from pairbus.localbus.settings import (
    FOREVER,
    CorrelationFilter,
    Counts,
    FalseFilter,
    QueueSettings,
    RuleFilter,
    RuleSettings,
    SqlExpression,
    TopicSettings,
    TrueFilter,
)
from tests.support.fake_broker import FakeEntity

CONTEXT = RequestContext("contoso", "127.0.0.1:5671", "2024-05")
ROOT = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'


def fake_entity(settings: Any) -> Any:
    """Return an entity that has settings and nothing behind them."""
    return FakeEntity(settings)


def entry(description: str) -> bytes:
    return f'<entry xmlns="http://www.w3.org/2005/Atom"><content>{description}</content></entry>'.encode()


def rule_of(inner: str) -> RuleSettings:
    return read_rule(atom.read_description(entry(f"<RuleDescription {ROOT}>{inner}</RuleDescription>")), "r")


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("PT1M", timedelta(minutes=1)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("P1Y2M1W", timedelta(days=365 + 60 + 7)),
        ("PT0.000001S", timedelta(microseconds=1)),
        ("PT1.S", timedelta(seconds=1)),
        ("-PT1S", timedelta(seconds=-1)),
        (FOREVER_TEXT, FOREVER),
        ("P10675199DT2H48M5.477539S", FOREVER),
        ("P99999999999999D", FOREVER),
        ("P999999999999999999Y", FOREVER),
    ],
)
def test_durations_are_read(text: str, length: timedelta) -> None:
    """ISO 8601 as .NET reads it; FOREVER, and the Python SDK's slightly shorter text, is FOREVER."""
    assert read_duration(text) == length


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1", "1M", "PT1M ago", "PT1H1D", "P1S", "PT\u0661S", "P" + "1" * 40 + "D"]
)
def test_invalid_durations_are_refused(text: str) -> None:
    """Text that is not a duration raises ValueError."""
    with pytest.raises(ValueError, match="duration"):
        read_duration(text)


@given(st.timedeltas(min_value=timedelta(0), max_value=FOREVER - timedelta(seconds=2)))
@example(timedelta(0))
@example(timedelta(seconds=13))
def test_durations_are_written_and_read_unchanged(length: timedelta) -> None:
    """The microseconds are kept."""
    assert read_duration(write_duration(length)) == length


def test_durations_are_written_as_the_service_writes_them() -> None:
    """Clients compare the text for FOREVER."""
    assert write_duration(FOREVER) == "P10675199DT2H48M5.4775807S"
    assert write_duration(timedelta(minutes=10)) == "PT10M"
    assert write_duration(timedelta(0)) == "PT0S"


@given(st.datetimes(timezones=st.none() | st.just(timezone.utc)))
def test_times_are_written_and_read_unchanged(moment: datetime) -> None:
    """A time without a zone stays without one."""
    assert read_date_time(write_date_time(moment)) == moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2020-07-05T11:12:13", datetime(2020, 7, 5, 11, 12, 13)),
        ("2020-07-05T11:12:13.6633698Z", datetime(2020, 7, 5, 11, 12, 13, 663369, timezone.utc)),
        ("2020-07-05T11:12:13+0200", datetime(2020, 7, 5, 9, 12, 13, tzinfo=timezone.utc)),
        ("2020-07-05", datetime(2020, 7, 5)),
    ],
)
def test_times_are_read_in_every_form_the_sdks_send(text: str, moment: datetime) -> None:
    """.NET sends seven decimals, Go nanoseconds, Python none."""
    assert read_date_time(text) == moment


def test_times_in_seconds_are_written_as_the_service_writes_them() -> None:
    """Zero is the first day of .NET's calendar, with the zone that Go requires."""
    assert write_time(0) == "0001-01-01T00:00:00Z"
    assert write_time(1.5) == "1970-01-01T00:00:01.5Z"
    assert write_time(1.5, whole=True) == "1970-01-01T00:00:01Z"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<entry",
        b"<entry></other>",
        b"\xff\xfe\x00",
        b'<?xml version="1.0" encoding="nonsense"?><entry/>',
        b'<!DOCTYPE entry [<!ENTITY a "b">]><entry>&a;</entry>',
        "<!DOCTYPE entry><entry/>".encode("utf-16"),
        b"<a>" * 33 + b"</a>" * 33,
        b"<entry>" + b"<a/>" * 20_001 + b"</entry>",
        b"<entry/>",
        b"<feed><QueueDescription/></feed>",
        b"<entry><content><Nothing/></content></entry>",
    ],
)
def test_invalid_bodies_are_refused(body: bytes) -> None:
    """Malformed, too deep, too large, with a DOCTYPE or about something else: 400, and nothing is expanded."""
    with pytest.raises(BusError) as caught:
        atom.read_description(body)
    assert caught.value.status == 400


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_body_is_a_document_or_an_error(body: bytes) -> None:
    """Any bytes are parsed or raise a BusError."""
    with suppress(BusError):
        parse_xml(body)


@given(st.text())
def test_any_text_can_be_written(text: str) -> None:
    """Characters that XML does not allow are replaced, so that every response is well-formed."""
    ElementTree.fromstring(f"<a>{escape_text(text)}</a>")


def read_queue(inner: str, context: RequestContext = CONTEXT) -> dict[str, Any]:
    return read_settings(
        atom.read_description(entry(f"<QueueDescription {ROOT}>{inner}</QueueDescription>")), QUEUE, context
    )


def test_only_settings_in_the_description_are_read() -> None:
    """Unknown, read-only and nil elements are skipped; prefixes do not matter."""
    given_settings = read_queue(
        "<LockDuration>PT30S</LockDuration><MessageCount>7</MessageCount><Novelty>1</Novelty>"
        '<MaxDeliveryCount i:nil="true"/><RequiresSession>True</RequiresSession><UserMetadata/>'
    )
    assert given_settings == {
        "lock_duration": timedelta(seconds=30),
        "requires_session": True,
        "user_metadata": None,
    }
    prefixed = b'<x:entry xmlns:x="a"><x:content><y:QueueDescription xmlns:y="b">'
    prefixed += b"<y:MaxDeliveryCount>3</y:MaxDeliveryCount>"
    prefixed += b"</y:QueueDescription></x:content></x:entry>"
    assert read_settings(atom.read_description(prefixed), QUEUE, CONTEXT) == {"max_delivery_count": 3}


@pytest.mark.parametrize(
    "inner",
    [
        "<LockDuration>soon</LockDuration>",
        "<LockDuration/>",
        "<MaxDeliveryCount>1.5</MaxDeliveryCount>",
        "<MaxDeliveryCount>99999999999999999999999</MaxDeliveryCount>",
        "<RequiresSession>perhaps</RequiresSession>",
    ],
)
def test_an_invalid_value_is_refused_by_name(inner: str) -> None:
    """The error names the element."""
    with pytest.raises(BusError, match=inner[1:].partition(">")[0].rstrip("/")) as caught:
        read_queue(inner)
    assert caught.value.status == 400


def test_an_old_client_neither_sees_nor_sets_the_message_size() -> None:
    """The element exists since API version 2021-05."""
    old = RequestContext("contoso", "h", "2017-04")
    with pytest.raises(BusError, match="MaxMessageSizeInKilobytes"):
        read_queue("<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>", old)
    queue = fake_entity(QueueSettings("q"))
    assert "MaxMessageSizeInKilobytes" not in write_settings(queue, QUEUE, old)
    assert "<MaxMessageSizeInKilobytes>256<" in write_settings(queue, QUEUE, RequestContext("contoso", "h"))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("q", "q"),
        ("/a/b/", "a/b"),
        ("sb://127.0.0.1:5671/a/b", "a/b"),
        ("https://contoso.servicebus.windows.net/q", "q"),
        ("amqp://h/a%2Fb", "a/b"),
        ("", None),
        ("sb://h/", None),
    ],
)
def test_forwards_are_read_as_paths(target: str, path: str | None) -> None:
    """Python and JavaScript send sb://, Java https://, Go its user's text."""
    assert forward_path(target) == path


def test_a_queue_is_written_in_the_services_order_and_read() -> None:
    """Every setting is kept; elements have the order of the service's contract."""
    settings = QueueSettings(
        "a/b",
        lock_duration=timedelta(seconds=13),
        max_size_in_megabytes=2048,
        requires_session=True,
        default_message_time_to_live=timedelta(minutes=11),
        dead_lettering_on_message_expiration=True,
        duplicate_detection_history_time_window=timedelta(minutes=12),
        max_delivery_count=14,
        enable_batched_operations=False,
        status="SendDisabled",
        forward_to="t",
        forward_dead_lettered_messages_to="x/y",
        user_metadata="<&\"'>é",
        auto_delete_on_idle=timedelta(minutes=10),
        enable_partitioning=True,
        enable_express=True,
        max_message_size_in_kilobytes=1024,
        authorization_rules=(
            {
                "type": "SharedAccessAuthorizationRule",
                "rights": ("Send", "Listen"),
                "key_name": "k",
                "claim_type": "SharedAccessKey",
                "claim_value": "None",
                "primary_key": "p",
                "secondary_key": "s",
                "created_time": "2020-01-01T00:00:00Z",
                "modified_time": "2020-01-01T00:00:00Z",
            },
        ),
    )
    queue = fake_entity(settings)
    queue.held = Counts(1, 2, 3, 4, 5)
    written = write_settings(queue, QUEUE, CONTEXT)
    again = read_queue(written)
    assert QueueSettings("a/b", **again) == settings
    document = ElementTree.fromstring(f"<d {ROOT}>{written}</d>")
    tags = [e.tag.rpartition("}")[2] for e in document]
    assert tags[:4] == ["LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession"]
    assert tags.index("CountDetails") == tags.index("SupportOrdering") + 1
    assert tags[-4:] == [
        "ForwardTo",
        "UserMetadata",
        "ForwardDeadLetteredMessagesTo",
        "MaxMessageSizeInKilobytes",
    ]
    assert "<ForwardTo>sb://127.0.0.1:5671/t</ForwardTo>" in written
    assert "<MessageCount>15</MessageCount>" in written
    assert "<d2p1:TransferDeadLetterMessageCount>5</d2p1:TransferDeadLetterMessageCount>" in written


def test_topics_and_subscriptions_are_written_and_read_unchanged() -> None:
    """Every setting of a topic and a subscription is kept."""
    topic = TopicSettings(
        "t",
        status="Disabled",
        support_ordering=False,
        enable_partitioning=True,
        filtering_messages_before_publishing=True,
        max_size_in_megabytes=5120,
        user_metadata="m",
    )
    text = write_settings(fake_entity(topic), TOPIC, CONTEXT)
    assert TopicSettings("t", **read_settings(parse_xml(f"<d {ROOT}>{text}</d>".encode()), TOPIC, CONTEXT)) == topic
    subscription = QueueSettings(
        "s",
        requires_session=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        forward_to="q",
        status="ReceiveDisabled",
        lock_duration=timedelta(minutes=5),
    )
    text = write_settings(fake_entity(subscription), SUBSCRIPTION, CONTEXT)
    assert (
        QueueSettings("s", **read_settings(parse_xml(f"<d {ROOT}>{text}</d>".encode()), SUBSCRIPTION, CONTEXT))
        == subscription
    )


PROPERTIES = {
    "text": "a<b>&'\"",
    "empty": "",
    "int": -5,
    "long": 2**40,
    "double": 2.5,
    "whole": 2.0,
    "boolean": False,
    "naive": datetime(2020, 7, 5, 11, 12, 13),
    "aware": datetime(2020, 7, 5, 11, 12, 13, 4000, timezone.utc),
    "duration": timedelta(days=1, hours=2, minutes=3),
}


@pytest.mark.parametrize(
    ("condition", "action"),
    [
        (TrueFilter(), None),
        (FalseFilter(), None),
        (
            SqlExpression("a = @p AND b < 'x'", {"@p": 1}),
            SqlExpression("SET a = @q", {"@q": timedelta(seconds=1)}),
        ),
        (SqlExpression("1=1"), None),
        (CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", PROPERTIES), SqlExpression("REMOVE a")),
        (CorrelationFilter(label=""), None),
    ],
)
def test_rules_are_written_and_read_unchanged(condition: RuleFilter, action: SqlExpression | None) -> None:
    """Filters, actions and the types of all values are kept: 2.0 does not become 2."""
    rule = fake_entity(RuleSettings("r", condition, action))
    again = rule_of(write_rule(rule))
    assert again == rule.settings
    if isinstance(condition, CorrelationFilter) and isinstance(again.filter, CorrelationFilter):
        assert list(map(type, again.filter.properties.values())) == list(map(type, condition.properties.values()))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "3"),
        ("long", "3"),
        ("dateTime", "2020-07-05T11:12:13.1234567Z"),
        ("dateTime", "2020-07-05T11:12:13.0000000+02:00"),
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        '<Filter i:type="CorrelationFilter"><Properties>{}</Properties></Filter>',
        '<Filter i:type="SqlFilter"><SqlExpression>a=@p</SqlExpression><Parameters>{}</Parameters></Filter>',
    ],
)
def test_values_of_rules_keep_their_type_and_text(around: str, kind: str, text: str) -> None:
    """.NET's longs stay longs and its times keep their seventh decimal, also after a restart."""
    pair = f'<KeyValueOfstringanyType><Key>@p</Key><Value i:type="x:{kind}">{text}</Value></KeyValueOfstringanyType>'
    rule = rule_of(around.format(pair))
    ((kept, _),) = load_subscription(dump_subscription("t", QueueSettings("s"), [(rule, 1.0)]))[2]
    for each in (rule, kept):
        assert f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{XSD}">{text}</Value>' in write_rule(fake_entity(each))


def test_the_prefixes_are_the_ones_that_the_javascript_client_expects() -> None:
    """It looks for `i:type` and removes the first five characters of its value."""
    written = write_rule(fake_entity(RuleSettings("r", CorrelationFilter(properties={"a": 1}))))
    assert '<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1</Value>' in written
    assert '<Action i:type="EmptyRuleAction"/>' in written


def test_a_rule_without_a_filter_matches_all_messages() -> None:
    """The service's default."""
    assert rule_of("") == RuleSettings("r", TrueFilter())
    assert read_rule(parse_xml(b"<RuleDescription/>")).name == "$Default"


@pytest.mark.parametrize(
    "inner",
    [
        '<Filter i:type="MysteryFilter"/>',
        "<Filter/>",
        '<Filter i:type="SqlFilter"/>',
        '<Filter i:type="SqlFilter"><SqlExpression> </SqlExpression></Filter>',
        '<Action i:type="MysteryAction"/>',
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
        "</KeyValueOfstringanyType></Properties></Filter>",
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
        '<Value i:type="d:int">x</Value></KeyValueOfstringanyType></Properties></Filter>',
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
        '<Value i:type="d:mystery">x</Value></KeyValueOfstringanyType></Properties></Filter>',
    ],
)
def test_invalid_rules_are_refused(inner: str) -> None:
    """A filter that is not known is not read as another one."""
    with pytest.raises(BusError) as caught:
        rule_of(inner)
    assert caught.value.status == 400
