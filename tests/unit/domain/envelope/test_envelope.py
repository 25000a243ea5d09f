"""Parking and restoring: what goes into the backlog is the message with four fields changed; what comes out is it."""

from __future__ import annotations

import pickle
import time
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.domain import envelope
from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import Described, Long, Symbol, Timestamp, UInt, ULong, decode, encode, encode_map
from pairbus.domain.envelope import EnvelopeError, NotRestorableError, park, restore
from tests.support.amqp_messages import CORPUS
from tests.support.envelope_messages import ID, NOW, through_localbus
from tests.support.envelope_runs import (
    application,
    field,
    message,
    message_annotations,
    refused_by_park,
    refused_by_restore,
    run,
    run_damaged,
    same_but_for_id_and_expiry,
)
from tests.support.envelope_sdk import SDK_MESSAGES, WHEN, sdk

# --- what is changed --------------------------------------------------------------------------------------------------


def test_the_destination_is_a_string() -> None:
    """x-ms-path, a string, behind the sender's own properties; nothing else is added to a message without the three."""
    sent = message(application=encode({"a": 1}))
    parked = park(sent, "orders", ID)
    assert parked == message(application=encode({"a": 1, "x-ms-path": "orders"}))
    assert b"\xa1\x09x-ms-path\xa1\x06orders" in parked
    assert restore(parked, NOW)[:3] == (sent, "orders", None)


def test_the_session_id_is_kept_as_a_string() -> None:
    """group-id becomes null in its place, and x-ms-sessionid a string."""
    sent = message(properties=encode(["id", *[None] * 9, "s-1", None, "r"]))
    parked = park(sent, "orders", ID)
    assert parked.startswith(sections.section(0x73, encode(["id", *[None] * 11, "r"])))
    assert b"\xa1\x0ex-ms-sessionid\xa1\x03s-1" in parked
    assert restore(parked, NOW).session_id == "s-1"


def test_the_time_to_live_is_kept_as_ticks() -> None:
    """header.ttl becomes null in its place, and x-ms-timetolive com.microsoft:timespan: a long of 100 ns ticks."""
    sent = message(header=encode([True, None, UInt(300_000), None, None]))
    parked = park(sent, "orders", ID)
    assert parked.startswith(sections.section(0x70, encode([True, None, None, None, None])))
    ticks = (300_000 * 10_000).to_bytes(8, "big")
    assert b"\xa1\x0fx-ms-timetolive\x00\xa3\x16com.microsoft:timespan\x81" + ticks in parked
    assert restore(parked, NOW)[0] == sent
    assert restore(parked, NOW).time_to_live == 300_000


def test_the_scheduled_time_is_kept_as_a_timestamp() -> None:
    """The annotation is removed, and x-ms-scheduledenqueuetimeutc a timestamp."""
    when = Timestamp(1_794_787_200_000)
    sent = message(annotations=encode({Symbol("x-opt-scheduled-enqueue-time"): when, Symbol("k"): 1}))
    parked = park(sent, "orders", ID)
    assert parked.startswith(sections.section(0x72, encode({Symbol("k"): 1})))
    assert b"\xa1\x1cx-ms-scheduledenqueuetimeutc\x83" + when.to_bytes(8, "big") in parked
    assert restore(parked, NOW).message == sent
    assert restore(parked, NOW).scheduled == when


def test_an_expiry_with_a_time_to_live_is_set_anew() -> None:
    """absolute-expiry-time would act on the backlog too: cleared, and at the restore delivery plus time to live."""
    times = [None] * 7 + [Timestamp(1_000_000), Timestamp(940_000)]
    sent = message(header=encode([None, None, UInt(60_000)]), properties=encode(["id", *times]))
    parked = park(sent, "orders", ID)
    assert field(parked, 0x73, sections.ABSOLUTE_EXPIRY_TIME) is None
    assert field(parked, 0x73, sections.CREATION_TIME) == 940_000
    back = restore(parked, NOW).message
    times[7] = Timestamp(NOW + 60_000)
    assert back == message(header=encode([None, None, UInt(60_000)]), properties=encode(["id", *times]))


def test_an_expiry_is_neither_invented_nor_lost() -> None:
    """No expiry beside a time to live: none after. One without it: the same after, whatever a broker says."""
    without = message(header=encode([None, None, UInt(60_000)]), properties=encode(["id"] + [None] * 12))
    assert restore(through_localbus(park(without, "q", ID)), NOW).message.endswith(without[20:])
    assert field(restore(park(without, "q", ID), NOW).message, 0x73, 8) is None
    alone = message(properties=encode(["id", *[None] * 7, Timestamp(5), None]))
    parked = park(alone, "q", ID)
    assert restore(parked, NOW).message == alone
    by_broker = parked.replace(encode(Timestamp(5)), encode(Timestamp(99)))
    assert restore(by_broker, NOW).message == alone


def test_an_expiry_that_a_broker_wrote_is_not_the_senders() -> None:
    """The service reckons the backlog's own expiry into a delivery: it does not go with the message."""
    delivered = message(
        header=encode([None, None, UInt(1_209_600_000), None, UInt(1)]),
        properties=encode(["id", *[None] * 7, Timestamp(99), Timestamp(1)]),
        application=encode({"x-ms-path": "orders"}),
    )
    assert restore(delivered, NOW).message == message(properties=encode(["id", *[None] * 8, Timestamp(1)]))


def test_an_event_hubs_namespace_goes_with_the_message() -> None:
    """x-pairbus-namespace, a string, only if it is given."""
    parked = park(message(), "hub/Partitions/3", ID, "hubs.example.net")
    assert application(parked)["x-pairbus-namespace"] == "hubs.example.net"
    assert restore(parked, NOW)[:3] == (message(), "hub/Partitions/3", "hubs.example.net")


@pytest.mark.parametrize(
    ("given", "text"),
    [("m-1", "m-1"), (ULong(7), "7"), (UUID(int=9), str(UUID(int=9))), (b"\x00\xff", "00ff")],
    ids=["string", "ulong", "uuid", "binary"],
)
def test_a_message_id_of_any_type_is_kept(given: Any, text: str) -> None:
    """Its bytes are not touched; its text is told."""
    sent = message(properties=encode([given]))
    assert restore(park(sent, "q", ID), NOW).message == sent
    assert restore(park(sent, "q", ID), NOW).message_id == text


@pytest.mark.parametrize("properties", [b"\x45", encode([None]), encode([None, None, "to"]), None])
def test_a_message_without_an_id_gets_one_for_good(properties: bytes | None) -> None:
    """The id that is given is there in the backlog and after it; whatever else the properties said stays."""
    sent = message(properties=properties) if properties else sections.section(0x75, b"\xa0\x00")
    back = restore(park(sent, "q", ID), NOW)
    assert back.message_id == ID
    assert field(back.message, 0x73, 0) == ID
    assert field(back.message, 0x73, 2) == ("to" if properties and b"to" in properties else None)


@pytest.mark.parametrize("name", envelope.ALIASES)
@pytest.mark.parametrize("kind", [str, Symbol])
def test_a_message_that_has_an_alias_of_its_own_is_refused(name: str, kind: type) -> None:
    """It could not be told apart afterwards: NotRestorableError names the property."""
    with pytest.raises(NotRestorableError, match=name) as caught:
        park(message(application=encode({"a": 1, kind(name): "x"})), "q", ID)
    assert caught.value.property == name
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


UNPARKABLE = {
    "group-id": message(properties=encode(["id", *[None] * 9, 5])),
    "ttl": message(header=encode([None, None, "soon"])),
    "x-opt-scheduled-enqueue-time": message(annotations=encode({Symbol("x-opt-scheduled-enqueue-time"): 5})),
    "message": b"\x00\x53\x73\xc0",
}


@pytest.mark.parametrize("property", UNPARKABLE)
def test_a_field_of_a_wrong_type_is_refused_by_name(property: str) -> None:
    """A backlog queue would refuse it or act on it: the sender is told, not the queue."""
    with pytest.raises(NotRestorableError) as caught:
        park(UNPARKABLE[property], "q", ID)
    assert caught.value.property == property


def test_a_scheduled_time_of_nothing_is_left_alone_and_two_are_refused() -> None:
    """Null is not set: the entry stays. Which of two would be meant, nobody can say."""
    name = encode(Symbol("x-opt-scheduled-enqueue-time"))
    unset = message(annotations=encode_map([name, b"\x40"]))
    assert restore(park(unset, "q", ID), NOW)[0] == unset
    other, when = encode("x-opt-scheduled-enqueue-time"), encode(Timestamp(1))
    for entries in ([name, b"\x40", other, when], [other, when, name, b"\x40"], [name, when, name, b"\x40"]):
        both = message(annotations=encode_map(entries))
        assert restore(park(both, "q", ID), NOW).message == both
    twice = message(annotations=encode_map([name, encode(Timestamp(1)), name, encode(Timestamp(2))]))
    with pytest.raises(NotRestorableError, match="twice"):
        park(twice, "q", ID)


def test_a_destination_must_be_named() -> None:
    """An empty path or namespace could not be restored."""
    for path, namespace in (("", None), ("q", "")):
        with pytest.raises(NotRestorableError, match="empty"):
            park(message(), path, ID, namespace)


# --- the exact inverse ------------------------------------------------------------------------------------------------


def check(sent: bytes, exact: bool = False) -> None:
    before = bytes(bytearray(sent))
    parked = park(sent, "orders", ID)
    assert sent == before
    for found in (parked, through_localbus(parked)):
        back = restore(found, NOW).message
        assert back == sent if exact else same_but_for_id_and_expiry(sent, back)
    for field_index, code in ((2, 0x70), (8, 0x73 if field(sent, 0x70, 2) is not None else 0x70), (10, 0x73)):
        assert field(parked, code, field_index) is None
    assert "x-opt-scheduled-enqueue-time" not in message_annotations(parked)


@pytest.mark.parametrize("name", SDK_MESSAGES)
def test_what_the_sdk_encodes_comes_back_byte_for_byte(name: str) -> None:
    """Directly and through localbus; but for an id it had not, and an expiry beside a time to live."""
    made = SDK_MESSAGES[name]()
    sent = sdk(made)
    check(sent, exact=field(sent, 0x73, 0) is not None and field(sent, 0x73, 8) is None)
    assert sdk(SDK_MESSAGES[name]())  # nothing of the message object was used up


@pytest.mark.parametrize("size", range(150, 260))
def test_maps_and_lists_change_their_width_and_back(size: int) -> None:
    """Where 8-bit sizes end, with the aliases and without, with the session id and without."""
    check(sdk(ServiceBusMessage(b"", application_properties={"p": "v" * size}, message_id="m", session_id="s")), True)
    check(sdk(ServiceBusMessage(b"", message_id="m", subject="v" * (size - 40), session_id="s" * 30)), True)
    check(sdk(ServiceBusMessage(b"", message_id="m", partition_key="v" * 120, scheduled_enqueue_time_utc=WHEN)), True)


@pytest.mark.parametrize(("name", "raw", "format"), CORPUS, ids=[name for name, _, _ in CORPUS])
def test_what_the_sdks_have_sent_comes_back(name: str, raw: bytes, format: int) -> None:
    """Python's, JavaScript's and Go's own messages; of a batch, each one in it."""
    for sent in [raw] if not format else [decode(raw, s.value)[0] for s in sections.split(raw) if s.code == 0x75]:
        check(sent)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_any_message_comes_back_byte_for_byte(seed: int) -> None:
    """Ten thousand messages in any encoding, each directly and through localbus: the promise of the module."""
    run(seed, 50)


def test_the_random_messages_need_every_word_of_the_form() -> None:
    """What is generated is odd enough: each word occurs, and messages that need none do too."""
    words = {"header", "ttl", "delivery", "annotations", "place", "key", "properties", "expiry", "order", "none"}
    assert {word for word, times in run(1, 2_000).items() if times > 20} == words


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(20))
def test_a_million_messages_come_back_byte_for_byte(part: int) -> None:
    """Fifty thousand in each part, others at each run; and a damaged one of each twentieth."""
    seed = int(time.time()) + part
    run(seed, 50_000)
    run_damaged(seed, 2_500)


def test_a_broker_that_encodes_anew_loses_no_value() -> None:
    """Every section decoded and encoded again, trailing nulls left out: all values and types are as they were."""

    def anew(raw: bytes) -> bytes:
        parts = []
        for found in sections.split(raw):
            value = decode(raw, found.value)[0]
            while found.code in (0x70, 0x73) and value and value[-1] is None:
                value.pop()
            parts.append(sections.section(found.code, encode(value)))
        return b"".join(parts)

    for name in ("all", "everything", "properties", "many data", "its own expiry"):
        sent = sdk(SDK_MESSAGES[name]())
        parked = park(sent, "q", ID)
        assert anew(restore(anew(parked), NOW).message) == anew(restore(parked, NOW).message), name


# --- what a broker adds -----------------------------------------------------------------------------------------------


def test_what_the_broker_owns_is_removed() -> None:
    """Its annotations, in either map, go; those of the sender stay where they are."""
    owned = {Symbol(name): Timestamp(7) for name in envelope.BROKER_OWNED}
    delivered = message(
        delivery=encode({**owned, Symbol("mine"): 1}),
        annotations=encode({Symbol("mine"): 2, **owned, Symbol("too"): 3}),
        application=encode({"x-ms-path": "orders"}),
    )
    back = restore(delivered, NOW)
    assert back.message == message(
        delivery=encode({Symbol("mine"): 1}), annotations=encode({Symbol("mine"): 2, Symbol("too"): 3})
    )
    assert back.parked_at == 7


# --- the retired .NET client ------------------------------------------------------------------------------------------


def timespan(ticks: Any) -> Described:
    return Described(Symbol("com.microsoft:timespan"), ticks)


@pytest.mark.parametrize("first", [True, False])
def test_what_the_dotnet_client_parked_is_restored(first: bool) -> None:
    """Its aliases, anywhere among the properties: cleared fields are set again in lists that are shorter than they."""
    path = {"x-ms-path": "orders"}
    aliases = {
        "x-ms-sessionid": "s-1",
        "x-ms-timetolive": timespan(Long(600_000_000)),
        "x-ms-scheduledenqueuetimeutc": Timestamp(9_000),
    }
    mine = {"a": 1, "b": Described(Symbol("com.microsoft:timespan"), Long(5))}
    parked = message(application=encode({**path, **mine, **aliases} if first else {**aliases, **mine, **path}))
    for found in (parked, through_localbus(parked)):
        back = restore(found, NOW)
        assert back.message == message(
            header=encode([None, None, UInt(60_000), None, None]),
            annotations=encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(9_000)}),
            properties=encode(["id", *[None] * 9, "s-1"]),
            application=encode(mine),
        )
        assert back[1:7] == ("orders", None, "id", "s-1", 60_000, 9_000)


@pytest.mark.parametrize(
    ("ticks", "wanted"),
    [
        (b"\x55\x00", 0),
        (b"\x55\x7f", 0),
        (b"\x81" + (10_000).to_bytes(8, "big"), 1),
        (b"\x81" + (4_294_967_295 * 10_000).to_bytes(8, "big"), 4_294_967_295),
        (b"\x81" + (2**63 - 1).to_bytes(8, "big"), None),
    ],
    ids=["short zero", "under a millisecond", "a millisecond", "the longest", "TimeSpan.MaxValue"],
)
def test_ticks_become_a_time_to_live(ticks: bytes, wanted: int | None) -> None:
    """Short and long form; TimeSpan.MaxValue is left unset, which means for ever."""
    raw = b"\x00\xa3\x16com.microsoft:timespan" + ticks
    parts = [encode("x-ms-path"), encode("q"), encode("x-ms-timetolive"), raw]
    back = restore(message(application=encode_map(parts)), NOW)
    assert back.time_to_live == wanted
    assert field(back.message, 0x70, 2) == wanted


@pytest.mark.parametrize("days", [50, 365])
def test_a_life_that_a_header_cannot_say(days: int) -> None:
    """The header has the longest that it can, and absolute-expiry-time the whole: it does not live for ever."""
    milliseconds = days * 86_400_000
    raw = b"\x00\xa3\x16com.microsoft:timespan\x81" + (milliseconds * 10_000).to_bytes(8, "big")
    parts = [encode("x-ms-path"), encode("q"), encode("x-ms-timetolive"), raw]
    back = restore(message(application=encode_map(parts)), NOW)
    assert back.time_to_live == milliseconds
    assert field(back.message, 0x70, 2) == 4_294_967_295
    assert field(back.message, 0x73, sections.ABSOLUTE_EXPIRY_TIME) == NOW + milliseconds


def test_a_null_session_id_is_none() -> None:
    """An alias that says that there was none: none is set."""
    back = restore(message(application=encode({"x-ms-path": "q", "x-ms-sessionid": None})), NOW)
    assert (back.message, back.session_id) == (message(), None)


def test_a_section_that_a_broker_left_out_is_made_again() -> None:
    """No properties at all in the delivery: they are made for a session id, and for nothing else."""
    body = sections.section(0x75, b"\xa0\x00")
    aliases = sections.section(0x74, encode({"x-ms-path": "q"}))
    assert restore(aliases + body, NOW).message == body
    aliases = sections.section(0x74, encode({"x-ms-path": "q", "x-ms-sessionid": "s"}))
    assert field(restore(aliases + body, NOW).message, 0x73, sections.GROUP_ID) == "s"


# --- what is wrong ----------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any]] = [
    *[("x-ms-path", held) for held in (None, 5, "", Symbol("q"), b"q", ["q"])],
    *[("x-ms-sessionid", held) for held in (5, Symbol("s"), b"s", UUID(int=1))],
    *[("x-ms-timetolive", held) for held in (None, 5, Long(5), "5", timespan(5), timespan(Long(-1)), timespan(None))],
    *[("x-ms-timetolive", Described(held, Long(5))) for held in ("com.microsoft:timespan", Symbol("other"), None)],
    *[("x-ms-scheduledenqueuetimeutc", held) for held in (None, 5, Long(5), "2030", ULong(5))],
    *[("x-pairbus-namespace", held) for held in (None, "", 5, Symbol("h"))],
    *[
        ("x-pairbus-form", held)
        for held in (None, 5, "", "word", "header=zz", "header=00537345", "header=00537045" * 2)
    ],
    *[("x-pairbus-form", f"order={held}") for held in ("", "x", "5xx", "0  1")],
    *[("x-pairbus-form", held) for held in ("ttl=43", "place=x", "key=00", "properties=45", "expiry=8300")],
    *[
        ("x-pairbus-form", held)
        for held in ("delivery=", "delivery=005372c1", "annotations=00537240", "annotations=005372")
    ],
    *[("x-pairbus-form", f"place={'9' * 5000}"), ("x-ms-path", list(range(5_000)))],
]


@pytest.mark.parametrize(("name", "held"), WRONG, ids=[f"{name}-{held!r:.30}" for name, held in WRONG])
def test_an_alias_of_a_wrong_type_is_named(name: str, held: Any) -> None:
    """EnvelopeError says which property it was and, on one line, what it held."""
    raw = message(application=encode({"x-ms-path": "q", name: held}))
    with pytest.raises(EnvelopeError) as caught:
        restore(raw, NOW)
    assert caught.value.property == name
    assert 0 < len(caught.value.held) <= 80
    assert caught.value.held in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_an_alias_held_is_told_with_its_type() -> None:
    """For whoever reads the dead-letter queue."""
    told = {5: "int 5", "": "string ''", None: "null", True: "boolean True", b"q": "binary b'q'"}
    for held, words in told.items():
        with pytest.raises(EnvelopeError) as caught:
            restore(message(application=encode({"x-ms-path": held})), NOW)
        assert caught.value.held == words


@pytest.mark.parametrize(
    "raw",
    [message(), message(application=encode({})), message(application=encode({"a": 1})), b""],
    ids=["no application properties", "empty", "others", "nothing"],
)
def test_a_message_that_was_never_parked_is_refused(raw: bytes) -> None:
    """It does not say where it was going."""
    with pytest.raises(EnvelopeError) as caught:
        restore(raw, NOW)
    assert (caught.value.property, caught.value.held) == ("x-ms-path", "nothing: it is missing")


def test_an_alias_that_is_there_twice_is_refused() -> None:
    """Which of the two would it be?"""
    parts = [encode(part) for part in ("x-ms-path", "a", Symbol("x-ms-path"), "b")]
    with pytest.raises(EnvelopeError, match="x-ms-path held two values"):
        restore(message(application=encode_map(parts)), NOW)


def test_a_place_or_an_order_that_no_longer_fits_does_no_harm() -> None:
    """Hints of the form that a changed message does not bear out are followed as far as they go."""
    aliases = {"x-ms-path": "q", "x-ms-scheduledenqueuetimeutc": Timestamp(5)}
    raw = message(application=encode({**aliases, "x-pairbus-form": f"place={10**30};order=9 5x77 0"}))
    back = restore(raw, NOW).message
    assert message_annotations(back) == {"x-opt-scheduled-enqueue-time": 5}
    assert back.endswith(b"\xa0\x04body")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_a_damaged_message_raises_nothing_but_the_documented_errors(seed: int) -> None:
    """Bytes changed, cut or put in anywhere: restore raises EnvelopeError, park NotRestorableError, or neither."""
    run_damaged(seed, 25)


def test_every_cut_of_a_parked_message_is_refused_or_read() -> None:
    """At each byte of a message with all aliases."""
    parked = park(sdk(SDK_MESSAGES["everything"]()), "q", ID, "hubs")
    refused = sum(refused_by_restore(parked[:end]) is not None for end in range(len(parked)))
    assert refused > len(parked) - 50


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw: bytes) -> None:
    """Any bytes at all."""
    with pytest.raises(EnvelopeError):
        restore(raw, NOW)
    refusal = refused_by_park(raw)
    assert refusal is None or refusal.property == "message"
