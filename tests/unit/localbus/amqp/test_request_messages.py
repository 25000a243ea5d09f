"""Request and reply messages of `$cbs` and `$management`, and rules in them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from proton import Message

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import AmqpDecodeError, Described, Long, Symbol, Timestamp, ULong, decode, encode
from pairbus.localbus.amqp.requests import Reply, Request, read_address, read_request, write_reply
from pairbus.localbus.amqp.rule_maps import read_rule, write_rule
from pairbus.localbus.bus_errors import NOT_FOUND, BusError
from pairbus.localbus.settings import (
    CorrelationFilter,
    FalseFilter,
    RuleFilter,
    RuleSettings,
    SqlExpression,
    TrueFilter,
)


def request_message(body: Any = None, *, annotations: Any = None) -> bytes:
    message = Message(body=body, id="id-1", reply_to="here", properties={"operation": "op"})
    message.annotations = annotations or {}
    return bytes(message.encode())


def test_a_request_has_id_address_operation_and_body() -> None:
    """The id is kept as it was encoded."""
    request = read_request(request_message({"a": 1}))
    assert (request.id, request.reply_to, request.operation) == (encode("id-1"), "here", "op")
    assert request.body == {"a": 1}


def test_a_request_without_properties_has_no_address() -> None:
    """Its reply has a null correlation-id."""
    request = read_request(b"\x00\x53\x77\x41")
    assert (request.id, request.reply_to, request.operation, request.body) == (b"\x40", None, "", True)


def test_the_address_is_read_from_the_first_bytes_of_a_request() -> None:
    """Enough bytes for the properties give id and address; fewer give nothing."""
    raw = request_message({"a": b"x" * 1000})
    properties = next(each for each in sections.split(raw) if each.code == sections.PROPERTIES)
    head = raw[: properties.end]
    found = read_address(head)
    assert found is not None
    assert (found.id, found.reply_to, found.body) == (encode("id-1"), "here", None)
    assert read_address(raw[: properties.end + 40]) is not None
    assert read_address(head[:-1]) is None
    assert read_address(b"") is None


@pytest.mark.parametrize(
    ("value", "kind", "optional", "valid"),
    [
        (5, int, False, True),
        (True, int, False, False),
        ("5", int, False, False),
        (None, int, False, False),
        (None, int, True, True),
        (b"x", (bytes, str), False, True),
        (7, (bytes, str), True, False),
        (False, bool, False, True),
    ],
)
def test_a_field_of_a_request_has_its_type(value: Any, kind: Any, optional: bool, valid: bool) -> None:
    """A missing or wrong field is an error that names it; a boolean is not a number."""
    request = Request(b"\x40", None, {}, {} if value is None else {"f": value})
    if valid:
        assert request.field("f", kind, optional=optional) == value
    else:
        with pytest.raises(AmqpDecodeError, match="'f'"):
            request.field("f", kind, optional=optional)


def test_a_field_of_a_body_that_is_no_map_is_missing() -> None:
    """It raises the same error as a map without the field."""
    with pytest.raises(AmqpDecodeError, match="'f' must be int, not NoneType"):
        Request(b"\x40", None, {}, ["f"]).field("f", int)


def test_a_reply_has_the_status_under_both_names() -> None:
    """Service Bus and Event Hubs read different names; the correlation-id is the request's id."""
    request = Request(encode("id-1"), "here", {}, None)
    reply = Message()
    reply.decode(write_reply(request, Reply.of(BusError(NOT_FOUND, "gone"))))
    assert reply.correlation_id == "id-1"
    assert reply.body is None
    assert reply.properties == {
        "statusCode": 404,
        "status-code": 404,
        "statusDescription": "gone",
        "status-description": "gone",
        "errorCondition": NOT_FOUND,
        "error-condition": NOT_FOUND,
    }


def test_a_reply_without_an_error_has_no_condition() -> None:
    """200 and OK, unless they are given."""
    reply = Message()
    reply.decode(write_reply(Request(b"\x40", None, {}, None), Reply(body={"a": "b"})))
    assert reply.properties == {
        "statusCode": 200, "status-code": 200, "statusDescription": "OK", "status-description": "OK",
    }  # fmt: skip
    assert reply.body == {"a": "b"}


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("description", "condition", "action"),
    [
        ({}, TrueFilter(), None),
        ({"sql-filter": {"expression": "1=1"}}, TrueFilter(), None),
        ({"sql-filter": {"expression": "1 = 1"}}, TrueFilter(), None),
        ({"sql-filter": {"expression": "a = 1"}}, SqlExpression("a = 1"), None),
        ({"false-filter": {}}, FalseFilter(), None),
        ({"sql-rule-action": {"expression": "SET a = 1"}}, TrueFilter(), SqlExpression("SET a = 1")),
        (
            {
                "correlation-filter": {
                    "correlation-id": "c", "message-id": "m", "to": "t", "reply-to": "r", "label": "l",
                    "session-id": "s", "reply-to-session-id": "rs", "content-type": "ct", "properties": {"p": 1},
                }
            },
            CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct", {"p": 1}),
            None,
        ),
        (
            {"correlation-filter": {"properties": {"p": Long(1)}}},
            CorrelationFilter(properties={"p": 1}, spelling={"p": ("long", "1")}),
            None,
        ),
    ],
)  # fmt: skip
def test_rules_are_read_from_maps(
    description: dict[str, Any], condition: RuleFilter, action: SqlExpression | None
) -> None:
    """Each kind of filter and action; a rule without a filter matches all messages."""
    symbols = {Symbol(key): value for key, value in description.items()}
    assert read_rule("r", description) == read_rule("r", symbols) == RuleSettings("r", condition, action)


@pytest.mark.parametrize(
    "description",
    [
        {"sql-filter": "a = 1"},
        {"correlation-filter": [1]},
        {"correlation-filter": {"properties": "p"}},
        {"correlation-filter": {"properties": {"p": [1]}}},
        {"sql-rule-action": 5},
    ],
)
def test_a_rule_that_is_no_map_is_refused(description: dict[str, Any]) -> None:
    """Read as a missing filter it would match every message."""
    with pytest.raises(AmqpDecodeError):
        read_rule("r", description)


@pytest.mark.parametrize(
    ("condition", "descriptor", "fields"),
    [
        (TrueFilter(), 0x1370000007, []),
        (FalseFilter(), 0x1370000008, []),
        (SqlExpression("a = 1"), 0x1370000006, ["a = 1", 20]),
        (CorrelationFilter(label="l"), 0x1370000009, [None, None, None, None, "l", None, None, None, {}]),
    ],
)
def test_rules_are_written_as_described_lists(condition: RuleFilter, descriptor: int, fields: list[Any]) -> None:
    """Filter, action, name and time of creation, in this order."""
    written = write_rule(RuleSettings("r", condition), 1.5)
    assert written.descriptor == ULong(0x13700000004)
    assert written.value == [
        Described(ULong(descriptor), fields), Described(ULong(0x13700000005), []), "r", Timestamp(1500),
    ]  # fmt: skip
    with_action = write_rule(RuleSettings("r", condition, SqlExpression("SET a = 1")), 1.5)
    assert with_action.value[1] == Described(ULong(0x13700000006), ["SET a = 1", 20])


def test_values_of_a_correlation_filter_have_their_types() -> None:
    """An integer is a long if it was given as one."""
    when = datetime(2020, 1, 2, tzinfo=timezone.utc)
    condition = CorrelationFilter(
        properties={"long": 1, "text": "x", "time": when, "truth": True}, spelling={"long": ("long", "1")}
    )
    found = write_rule(RuleSettings("r", condition), 0.0).value[0].value[8]
    assert found == {"long": 1, "text": "x", "time": Timestamp(1_577_923_200_000), "truth": True}
    assert isinstance(found["long"], Long)
    assert decode(encode(found))[0] == found
