"""Messages in the broker: what was sent is delivered byte for byte, beside the broker's own properties."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import (
    AmqpDecodeError,
    Described,
    Long,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    decode,
    encode,
    encode_map,
)
from pairbus.domain.sqlfilter.properties import Edit
from pairbus.localbus.entities.locks import swap_guid
from pairbus.localbus.entities.message import Draft, Message, read_batch, read_message
from pairbus.localbus.entities.payload import MessageView, Parts
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Rule, Subscription, apply_edits
from pairbus.localbus.settings import QueueSettings, RuleSettings, SqlExpression
from tests.support import amqp_frames as amqp
from tests.support.amqp_messages import CORPUS, messages
from tests.support.recorded_effects import RecordedEffects

OWNED = (sections.HEADER, sections.DELIVERY_ANNOTATIONS, sections.MESSAGE_ANNOTATIONS)


def delivered(draft: Draft, **facts: Any) -> bytes:
    message = Message(1, facts.pop("sequence", 42), 1000.5, draft)
    for name, value in facts.items():
        setattr(message, name, value)
    return message.delivered(draft.payload, b"\x01" * 16, 2000.25)


def bare(raw: bytes) -> list[tuple[int, bytes]]:
    """Return the sender's sections as codes and encoded values, in AMQP's order."""
    found = [(s.code, raw[s.value : s.end]) for s in sections.split(raw) if s.code not in OWNED]
    return sorted(found, key=lambda each: each[0])


@pytest.mark.parametrize(("name", "raw", "format"), CORPUS, ids=[name for name, _, _ in CORPUS])
def test_messages_of_the_sdks_are_delivered_as_sent(name: str, raw: bytes, format: int) -> None:
    """Every section of the sender keeps its bytes, also of each message in a batch."""
    whole = [raw] if not format else [decode(raw, s.value)[0] for s in sections.split(raw) if s.code == 0x75]
    drafts = read_batch(raw) if format else [read_message(raw)]
    assert len(drafts) == len(whole)
    for sent, draft in zip(whole, drafts, strict=True):
        out = delivered(draft)
        wanted, found = bare(sent), bare(out)
        if _has_id(sent):
            assert found == wanted
        else:  # a message without an id gets one: all else is the same
            assert [each for each in found if each[0] != 0x73] == [each for each in wanted if each[0] != 0x73]
        peer = proton.Message()
        peer.decode(out)
        assert peer.annotations["x-opt-sequence-number"] == 42
        assert peer.instructions["x-opt-lock-token"] == UUID(bytes=b"\x01" * 16)


def _has_id(raw: bytes) -> bool:
    return any(s.code == 0x73 and sections.field(raw, s.value, 0) is not None for s in sections.split(raw))


@given(messages())
def test_any_message_is_delivered_as_sent(made: tuple[bytes, list[tuple[int, bytes]]]) -> None:
    """In any encoding a message is refused, or delivered with every byte of the sender's sections."""
    raw, wanted = made
    try:
        draft = read_message(raw)
    except AmqpDecodeError:
        return
    out = delivered(draft)
    found = bare(out)
    kept = [each for each in wanted if each[0] not in OWNED]
    if _has_id(raw):
        assert found == kept
    else:
        assert [each for each in found if each[0] != 0x73] == [each for each in kept if each[0] != 0x73]
        given_id = sections.field(out, next(s.value for s in sections.split(out) if s.code == 0x73), 0)
        assert given_id == draft.message_id
    assert draft.size == len(raw)
    again = read_message(Parts.of(draft.payload).sent())
    assert Parts.of(again.payload).bare == Parts.of(draft.payload).bare


def test_sections_are_delivered_in_the_order_of_amqp() -> None:
    """Application properties after the body, delivery annotations at the end: edits find them, and the body stays."""
    properties = b"\x00\x53\x74" + encode({"a": 1})
    raw = b"\x00\x53\x75\xa0\x04body" + properties + amqp.described(0x73, "m") + b"\x00\x53\x71" + encode({})
    draft = read_message(raw)
    assert [code for code, _ in bare(delivered(draft))] == [0x73, 0x74, 0x75]
    changed = Parts.of(draft.payload).with_properties(application={"b": encode(2)})
    assert bare(changed.bare)[1:] == [(0x74, encode({"a": 1, "b": 2})), (0x75, b"\xa0\x04body")]
    assert MessageView(draft.payload).user == {"a": 1}


@pytest.mark.parametrize("count", [0, 1, 255, 256, 2**31 - 1])
def test_the_broker_writes_header_and_annotations(count: int) -> None:
    """Delivery count (0 too), sequence number, times, state and source are written in the service's types."""
    raw = b"\x00\x53\x70" + encode([True, None, UInt(5000), None, UInt(9)]) + amqp.message()
    out = delivered(read_message(raw), delivery_count=count, source="q", state=1, enqueue_sequence=7)
    found = {s.code: decode(out, s.value)[0] for s in sections.split(out)}
    assert found[0x70] == [True, None, 5000, None, count]
    assert type(found[0x70][4]) is UInt
    notes = found[0x72]
    assert {str(key): (type(value), value) for key, value in notes.items()} == {
        "x-opt-sequence-number": (Long, 42),
        "x-opt-enqueued-time": (Timestamp, 1_000_500),
        "x-opt-enqueue-sequence-number": (Long, 7),
        "x-opt-message-state": (int, 1),
        "x-opt-locked-until": (Timestamp, 2_000_250),
        "x-opt-deadletter-source": (str, "q"),
    }
    assert all(type(key) is Symbol for key in notes)


def test_a_new_message_has_only_the_annotations_of_the_service() -> None:
    """An active message has no state, one that was not moved no first number, and one without a lock no token."""
    draft = read_message(amqp.message())
    message = Message(1, 42, 1000.5, draft)
    out = message.delivered(draft.payload)
    found = {s.code: decode(out, s.value)[0] for s in sections.split(out)}
    assert found[0x71] == {}
    assert {str(key) for key in found[0x72]} == {"x-opt-sequence-number", "x-opt-enqueued-time"}
    message.hops = 1
    out = message.delivered(draft.payload)
    assert {s.code: decode(out, s.value)[0] for s in sections.split(out)}[0x72]["x-opt-enqueue-sequence-number"] == 42


@pytest.mark.parametrize("token", [None, b"\x01" * 16])
def test_delivery_annotations_of_the_sender_are_passed_on(token: bytes | None) -> None:
    """They are delivered beside the lock token, if there is one; the token of an earlier delivery is dropped."""
    told = {Symbol("mine"): "a", Symbol("x-opt-lock-token"): UUID(bytes=b"\x02" * 16), Symbol("late"): Long(7)}
    raw = b"\x00\x53\x71" + encode(told) + amqp.message()
    draft = read_message(raw)
    draft.payload = Parts.of(draft.payload).with_annotations({"more": encode(1)}).pack()
    out = Message(1, 42, 1000.5, draft).delivered(draft.payload, token, 2000.25 if token else 0.0)
    found = {s.code: decode(out, s.value)[0] for s in sections.split(out)}
    lock = {} if token is None else {"x-opt-lock-token": UUID(bytes=token)}
    assert found[0x71] == {"mine": "a", "late": 7, **lock}
    assert bare(out)[-1] == bare(raw)[-1]
    assert bare(Parts.of(draft.payload).sent()) == bare(out)


def test_annotations_of_the_broker_cannot_be_sent() -> None:
    """A forged sequence number is dropped; all other annotations stay, with keys of any type."""
    mine = encode_map(
        [
            encode(Symbol("x-opt-sequence-number")), encode(Long(7)),
            encode(Symbol("mine")), encode(Described(Symbol("com.microsoft:timespan"), Long(1))),
            encode(ULong(5)), encode("odd key"),
            b"\xc0\x02\x01\x40", encode("odder key"),
        ]
    )  # fmt: skip
    draft = read_message(b"\x00\x53\x72" + mine + amqp.message())
    out = delivered(draft)
    section = next(s for s in sections.split(out) if s.code == 0x72)
    entries = {str(e.key): decode(out, e.value)[0] for e in sections.entries(out, section.value)}
    assert entries["x-opt-sequence-number"] == 42
    assert entries["mine"] == Described(Symbol("com.microsoft:timespan"), Long(1))
    assert entries["5"] == "odd key"
    assert entries["[None]"] == "odder key"


@pytest.mark.parametrize("form", [b"\xa3\x22", b"\xb3\x00\x00\x00\x22", b"\xa1\x22"], ids=["symbol", "long", "string"])
def test_a_ping_is_recognized_in_every_encoding(form: bytes) -> None:
    """The content type decides, in any encoding; a longer one with the same ending is not a ping."""
    kind = amqp.Raw(form + b"application/vnd.ms-servicebus-ping")
    assert read_message(amqp.described(0x73, "m", None, None, None, None, None, kind)).ping
    other = "x" + "application/vnd.ms-servicebus-ping"
    assert not read_message(amqp.described(0x73, "m", None, None, None, None, None, Symbol(other))).ping


BAD = {
    "a ttl beyond 32 bits": amqp.described(0x70, None, None, ULong(2**40)) + amqp.message(),
    "a negative ttl": amqp.described(0x70, None, None, -1) + amqp.message(),
    "a ttl of text": amqp.described(0x70, None, None, "1") + amqp.message(),
    "a huge header": amqp.described(0x70, b"x" * 300) + amqp.message(),
    "a header whose fields do not fill it": b"\x00\x53\x70\xc0\x03\x01\x40\x40" + amqp.message(),
    "a schedule that is no time": b"\x00\x53\x72"
    + encode({Symbol("x-opt-scheduled-enqueue-time"): 5})
    + amqp.message(),
    "a session id that is a number": amqp.described(0x73, "m", *[None] * 9, UInt(1)),
    "broken properties": b"\x00\x53\x73\xc0\x03\x02\x40\x40\x00\x53\x77\x40"[:8] + amqp.message(),
    "an odd number in application properties": b"\x00\x53\x74\xc1\x02\x01\x40" + amqp.message(),
    "application properties cut off": b"\x00\x53\x74\xc1\x03\x02\xa1\x09" + amqp.message(),
    "too many annotations": b"\x00\x53\x72" + encode({Symbol(f"k{n}"): n for n in range(1_100)}) + amqp.message(),
}


@pytest.mark.parametrize(
    "sent", [amqp.described(0x73, None, None, "to"), b""], ids=["other properties", "no properties"]
)
def test_an_event_gets_no_id(sent: bytes) -> None:
    """An event stays as it was sent; a message for a queue gets an id if it has none."""
    raw = sent + b"\x00\x53\x75" + encode(b"body")
    event, message = read_message(raw, identify=False), read_message(raw)
    assert event.message_id is None
    assert Parts.of(event.payload).sent() == raw
    assert message.message_id
    assert Parts.of(message.payload).sent() != raw


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_unprocessable_messages_are_refused_when_sent(raw: bytes) -> None:
    """Otherwise they would fail later without a sender to report to: in a rule, or when dead-lettered."""
    with pytest.raises(AmqpDecodeError):
        read_message(raw)


@given(messages(), st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9).map(encode) | st.none(), max_size=3))
def test_an_edit_changes_only_the_fields_it_names(
    made: tuple[bytes, list[tuple[int, bytes]]], changes: dict[str, bytes | None]
) -> None:
    """Subject and application properties are set; every other section and field keeps its bytes."""
    try:
        draft = read_message(made[0])
    except AmqpDecodeError:
        return
    before = Parts.of(draft.payload)
    after = before.with_properties({sections.SUBJECT: encode("new")}, changes)
    assert (after.header, after.annotations, after.items) == (before.header, before.annotations, before.items)
    old = {s.code: s for s in sections.split(before.bare)}
    new = {s.code: s for s in sections.split(after.bare)}
    for a, b in zip(
        [s for s in sections.split(before.bare) if s.code not in (0x73, 0x74)],
        [s for s in sections.split(after.bare) if s.code not in (0x73, 0x74)],
        strict=True,
    ):
        assert before.bare[a.start : a.end] == after.bare[b.start : b.end]
    fields = [before.bare[a:b] for a, b in sections.fields(before.bare, old[0x73].value)]
    changed = [after.bare[a:b] for a, b in sections.fields(after.bare, new[0x73].value)]
    assert changed[sections.SUBJECT] == encode("new")
    for index, part in enumerate(fields):
        assert index == sections.SUBJECT or changed[index] == part


def test_an_undecodable_property_is_null_in_filters_and_delivered() -> None:
    """For invalid UTF-8 or a malformed list a filter sees null, and a receiver gets the bytes."""
    mapped = encode_map(
        [encode("bad"), b"\xa1\x01\xff", encode("worse"), b"\xc0\x03\x05\x40\x40", encode("good"), encode(1)]
    )
    draft = read_message(amqp.described(0x73, "m") + b"\x00\x53\x74" + mapped + b"\x00\x53\x77\x40")
    assert MessageView(draft.payload).user == {"bad": None, "worse": None, "good": 1}
    assert mapped in delivered(draft)


# --- topics ---------------------------------------------------------------------------------------------------------


def subscription(*rules: RuleSettings) -> Subscription:
    made = Subscription("s", Queue(0, "t/Subscriptions/s", QueueSettings("s"), RecordedEffects()), 0.0)
    made.rules = {rule.name: Rule(rule, 0.0) for rule in rules}
    return made


def test_copies_of_a_subscription() -> None:
    """All matching rules without an action make one unchanged copy; each rule with one makes an edited copy."""
    payload = read_message(amqp.message(b"body", a=5)).payload
    view = MessageView(payload)
    plain = [RuleSettings(f"p{n}", SqlExpression("a = 5")) for n in range(2)]
    acting = RuleSettings("act", SqlExpression("a > 1"), SqlExpression("SET a = 6; SET b = 'new'"))
    never = RuleSettings("no", SqlExpression("a = 7"), SqlExpression("SET a = 8"))
    assert subscription().copies(payload, view) == []
    assert subscription(*plain, never).copies(payload, view) == [payload]
    copies = subscription(*plain, acting, never).copies(payload, view)
    assert copies[0] is payload
    assert len(copies) == 2
    changed = MessageView(copies[1]).user
    assert (changed["a"], changed["b"]) == (6, "new")
    assert b"body" in copies[1]
    assert MessageView(payload).user == {"a": 5}, "the original is as it was"


def test_rule_edits_set_and_remove_properties() -> None:
    """System and application properties are set and removed; the rest of the payload keeps its bytes."""
    raw = amqp.described(0x73, "m", None, "to", "old", None, "c") + b"\x00\x53\x74" + encode({"a": 1, "b": 2})
    payload = read_message(raw + b"\x00\x53\x75\xa0\x04body").payload
    edits = (
        Edit("sys", "label", "new", remove=False),
        Edit("user", "a", None, remove=True),
        Edit("user", "c", "d", remove=False),
    )
    parts = Parts.of(apply_edits(payload, edits))
    found = dict(bare(parts.bare))
    assert decode(found[0x73])[0] == ["m", None, "to", "new", None, "c"]
    assert decode(found[0x74])[0] == {"b": 2, "c": "d"}
    assert found[0x75] == b"\xa0\x04body"


def test_lock_tokens_swap_between_two_byte_orders() -> None:
    """The delivery tag has .NET's byte order, the annotation the network's; swapping twice gives the original."""
    number = UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert swap_guid(number.bytes) == number.bytes_le
    assert swap_guid(swap_guid(number.bytes)) == number.bytes
