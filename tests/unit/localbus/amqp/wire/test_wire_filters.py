"""The wire filters: limits, message formats, delivery-ids and padding, wherever the stream is cut."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.domain.amqp.codec import Array, Described, Symbol, UByte, UInt, decode, encode
from pairbus.localbus.amqp.wire.frames import MAX_FRAME, PROTON_MAX_FRAME, FramingError, check_depth
from pairbus.localbus.amqp.wire.inbound import MAX_LINKS, InboundFilter
from pairbus.localbus.amqp.wire.outbound import OutboundFilter
from tests.support import amqp_frames as amqp
from tests.support.fuzz_frames import seeds

BATCH = 0x80013700
PLAIN = amqp.Symbol("PLAIN")


def filtered(*frames: bytes) -> list[tuple[int, int, list[Any], bytes]]:
    """Return the performatives that Proton gets for a client's frames after its open."""
    return [amqp.read_performative(raw) for raw in amqp.split_frames(opened().feed(b"".join(frames)))]


def opened() -> InboundFilter:
    """Return a filter that has seen the client's open."""
    inbound = InboundFilter()
    inbound.feed(amqp.open_())
    return inbound


def linked(*handles: int, channel: int = 0) -> InboundFilter:
    """Return a filter that has seen the client attach these senders."""
    inbound = opened()
    inbound.feed(amqp.begin(channel))
    for handle in handles:
        inbound.feed(amqp.attach(f"link-{handle}", handle, "q", channel=channel))
    return inbound


def delivery_ids(raw: bytes) -> list[int | None]:
    """Return the delivery-ids of the transfers in some bytes."""
    found = [amqp.read_performative(each) for each in amqp.split_frames(raw)]
    return [fields[1] for code, _, fields, _ in found if code == amqp.TRANSFER]


@pytest.mark.parametrize(("name", "stream"), seeds().items(), ids=seeds())
def test_the_result_does_not_depend_on_where_the_input_is_cut(name: str, stream: bytes) -> None:
    """Whole, byte by byte, or cut at any byte, Proton gets the same bytes and the same formats are recorded."""
    whole = InboundFilter()
    wanted = whole.feed(stream)
    single = InboundFilter()
    assert b"".join(single.feed(stream[i : i + 1]) for i in range(len(stream))) == wanted
    assert single.message_formats == whole.message_formats
    step = max(1, len(stream) // 300)
    for cut in range(0, len(stream), step):
        halved = InboundFilter()
        assert halved.feed(stream[:cut]) + halved.feed(stream[cut:]) == wanted
        assert halved.message_formats == whole.message_formats


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_result_does_not_depend_on_where_the_output_is_cut(data: st.DataObject) -> None:
    """Proton returns its output in pieces of any size; the client gets the same bytes."""
    frames = [
        amqp.performative(amqp.BEGIN, UInt(0), UInt(0)),
        amqp.performative(amqp.FLOW, UInt(0)),
        amqp.transfer(0, 0, b"x" * 50),
        amqp.disposition(0, 3),
        amqp.performative(amqp.CLOSE),
        amqp.frame(b""),
    ]
    stream = amqp.AMQP_HEADER + b"".join(data.draw(st.lists(st.sampled_from(frames), max_size=8)))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=6)))
    wanted = OutboundFilter(InboundFilter()).feed(stream)
    outbound = OutboundFilter(InboundFilter())
    pieces = zip([0, *cuts], [*cuts, len(stream)], strict=True)
    assert b"".join(outbound.feed(stream[a:b]) for a, b in pieces) == wanted


def test_performatives_get_all_their_fields() -> None:
    """Trailing nulls that Proton left out are written; a payload is unchanged."""
    outbound = OutboundFilter(InboundFilter())
    counts = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1}
    for code, count in counts.items():
        raw = outbound.feed(amqp.performative(code, UInt(1), payload=b"payload"))
        found, _, fields, payload = amqp.read_performative(raw)
        assert (found, len(fields), payload) == (code, count, b"payload")
        assert fields[0] == 1
        assert all(field is None for field in fields[1:])


def test_a_disposition_without_a_state_is_dropped() -> None:
    """It is dropped for deliveries of localbus; with a state, or for deliveries of the client, it is sent."""
    outbound = OutboundFilter(opened())
    accepted = amqp.Raw(amqp.described(0x24))
    bare = amqp.performative(amqp.DISPOSITION, False, UInt(1), None, True)
    assert outbound.feed(bare) == b""
    for fields in ((False, UInt(1), None, True, accepted), (True, UInt(1), None, True)):
        raw = outbound.feed(bare + amqp.performative(amqp.DISPOSITION, *fields))
        ((code, _, found, _),) = [amqp.read_performative(each) for each in amqp.split_frames(raw)]
        assert (code, found[0], len(found)) == (amqp.DISPOSITION, fields[0], 6)


@pytest.mark.parametrize("limit", [512, 600, 4096, 65_536])
def test_padding_never_makes_a_frame_larger_than_the_client_takes(limit: int) -> None:
    """Proton gets a smaller limit than the client's, so that a full frame has room for the nulls."""
    inbound = InboundFilter()
    seen = amqp.read_performative(inbound.feed(amqp.open_(max_frame=limit)))[2][2]
    assert 512 <= seen <= limit
    transfer = amqp.performative(amqp.TRANSFER, UInt(0), UInt(0), b"\0" * 16, UInt(0))
    full = transfer[4:] + b"x" * (seen - len(transfer))
    out = OutboundFilter(inbound).feed(struct.pack(">I", len(full) + 4) + full)
    assert len(out) <= limit
    if limit > 600:
        assert len(amqp.read_performative(out)[2]) == 11


def test_a_client_s_limit_is_at_least_amqp_s_minimum() -> None:
    """A frame limit below 512 bytes is read as 512."""
    assert amqp.read_performative(InboundFilter().feed(amqp.open_(max_frame=1)))[2][2] == 512


# --- delivery-ids -------------------------------------------------------------------------------------------------


def test_ids_in_order_are_unchanged() -> None:
    """A client's frames with ids in order reach Proton byte for byte."""
    inbound = linked(0, 1)
    stream = amqp.transfer(0, 7, b"a") + amqp.transfer(1, 8, b"b", more=True) + amqp.transfer(1, None, b"c")
    assert inbound.feed(stream) == stream
    assert not inbound.has_renumbered(0)


def test_ids_wrap_around() -> None:
    """After 2^32 - 1 comes 0."""
    inbound = linked(0)
    stream = amqp.transfer(0, 2**32 - 1, b"a") + amqp.transfer(0, 0, b"b")
    assert inbound.feed(stream) == stream


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), min_size=1, max_size=12),
    st.permutations(range(12)),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=150)
def test_dispositions_have_the_client_s_own_ids(
    deliveries: list[tuple[int, int, bool]], order: list[int], base: int
) -> None:
    """For deliveries of several frames on several links, with ids in any order, Proton gets a sequence, and every
    disposition reaches the client under its own id.
    """
    inbound = linked(0, 1, 2)
    outbound = OutboundFilter(inbound)
    outbound.feed(amqp.performative(amqp.BEGIN, UInt(0), UInt(0)))
    given_ids = [(base + order[n]) % 2**32 for n in range(len(deliveries))]
    seen: list[int] = []
    for (handle, frames, settled), id in zip(deliveries, given_ids, strict=True):
        for index in range(frames):
            raw = inbound.feed(
                amqp.transfer(
                    handle,
                    id if index == 0 else None,
                    b"x",
                    tag=encode(id),
                    more=index < frames - 1,
                    settled=settled,
                )
            )
            if index == 0:
                seen += delivery_ids(raw)  # type: ignore[arg-type]
    assert seen == [(given_ids[0] + n) % 2**32 for n in range(len(deliveries))]
    first, last = seen[0], seen[-1]
    answer = outbound.feed(amqp.performative(amqp.DISPOSITION, True, UInt(first), UInt(last), True))
    told: list[int] = []
    for raw in amqp.split_frames(answer):
        _, _, fields, _ = amqp.read_performative(raw)
        start, end = fields[1], fields[1] if fields[2] is None else fields[2]
        told += [(start + n) % 2**32 for n in range((end - start) % 2**32 + 1)]
    wanted = {id for (_, _, settled), id in zip(deliveries, given_ids, strict=True) if not settled}
    assert wanted <= set(told)
    assert len(told) == len(deliveries)
    assert not inbound.has_renumbered(0), "nothing is remembered of what was answered"


def test_an_id_repeated_on_later_frames_is_renumbered_too() -> None:
    """AMQP lets every frame of a delivery repeat its id."""
    inbound = linked(0)
    inbound.feed(amqp.transfer(0, 5, b"a"))
    raw = inbound.feed(amqp.transfer(0, 9, b"b", more=True) + amqp.transfer(0, 9, b"c"))
    assert delivery_ids(raw) == [6, 6]


def test_an_aborted_delivery_ends() -> None:
    """The next transfer on the link is a new delivery, whatever the aborted frame's `more` says."""
    for more in (False, True):
        inbound = linked(0)
        inbound.feed(amqp.transfer(0, 0, b"a", more=True))
        inbound.feed(amqp.transfer(0, None, b"", more=more, aborted=True))
        assert delivery_ids(inbound.feed(amqp.transfer(0, 7, b"b"))) == [1]


def test_a_delivery_ends_with_its_link_or_session() -> None:
    """An incomplete delivery is no part of a later one after a detach or an end."""
    inbound = linked(0)
    inbound.feed(amqp.transfer(0, 0, b"a", more=True))
    inbound.feed(amqp.performative(amqp.DETACH, UInt(0), True))
    inbound.feed(amqp.attach("again", 0, "q"))
    assert delivery_ids(inbound.feed(amqp.transfer(0, 9, b"b"))) == [1]
    for end in (amqp.performative(amqp.END), amqp.begin()):
        inbound = linked(0)
        inbound.feed(amqp.transfer(0, 0, b"a", more=True))
        inbound.feed(end + amqp.begin() + amqp.attach("again", 0, "q"))
        stream = amqp.transfer(0, 9, b"b")
        assert inbound.feed(stream) == stream


def test_each_session_has_its_own_ids() -> None:
    """Transfers on one channel do not affect the ids of another."""
    inbound = linked(0)
    inbound.feed(amqp.begin(1) + amqp.attach("other", 0, "q", channel=1))
    inbound.feed(amqp.transfer(0, 0, b"a", more=True))
    stream = amqp.transfer(0, 100, b"b", channel=1)
    assert inbound.feed(stream) == stream
    assert delivery_ids(inbound.feed(amqp.transfer(0, None, b"c") + amqp.transfer(0, 50, b"d"))) == [None, 1]
    assert inbound.has_renumbered(0)
    assert not inbound.has_renumbered(1)


def test_dispositions_of_a_session_whose_channels_differ_have_the_client_s_ids() -> None:
    """The server's channel of a session need not be the client's: its begin names the client's."""
    inbound = linked(0, channel=3)
    outbound = OutboundFilter(inbound)
    outbound.feed(amqp.performative(amqp.BEGIN, UInt(3), UInt(0)))
    inbound.feed(amqp.transfer(0, 5, b"a", channel=3) + amqp.transfer(0, 9, b"b", channel=3))
    raw = outbound.feed(amqp.performative(amqp.DISPOSITION, True, UInt(5), UInt(6), True))
    found = [amqp.read_performative(each) for each in amqp.split_frames(raw)]
    assert [(channel, fields[1], fields[2]) for _, channel, fields, _ in found] == [(0, 5, 5), (0, 9, 9)]
    assert not inbound.has_renumbered(3)


# --- formats ------------------------------------------------------------------------------------------------------


def test_the_format_of_a_delivery_is_recorded_by_link_and_tag() -> None:
    """The message-format, which Proton hides, is recorded once per delivery."""
    inbound = linked(3)
    inbound.feed(amqp.transfer(3, 0, b"a", format=BATCH, tag=b"t", more=True))
    inbound.feed(amqp.transfer(3, None, b"b"))
    inbound.feed(amqp.transfer(3, 1, b"c", format=0, tag=b"u"))
    assert inbound.message_formats == {(b"link-3", b"t"): BATCH}


@pytest.mark.parametrize(
    "end",
    [
        amqp.transfer(3, None, b"", aborted=True),
        amqp.performative(amqp.DETACH, UInt(3), True) + amqp.attach("link-3", 3, "q"),
        amqp.performative(amqp.END) + amqp.begin() + amqp.attach("link-3", 3, "q"),
        amqp.attach("link-3", 3, "q"),
    ],
    ids=["aborted", "detached", "session ended", "attached again"],
)
def test_the_format_of_an_incomplete_delivery_is_discarded(end: bytes) -> None:
    """A message with the same tag is not read as the batch that the tag belonged to."""
    inbound = linked(3)
    inbound.feed(amqp.transfer(3, 0, b"a", format=BATCH, tag=b"t", more=True))
    inbound.feed(end)
    inbound.feed(amqp.transfer(3, 1, b"plain", format=0, tag=b"t"))
    assert inbound.message_formats == {}


def test_the_number_of_formats_is_limited() -> None:
    """A client cannot make the table grow without limit."""
    inbound = linked(0)
    for n in range(25_000):
        inbound.feed(amqp.transfer(0, n, b"", format=BATCH, tag=encode(n)))
    assert len(inbound.message_formats) <= 10_001


def test_ids_of_settled_deliveries_are_not_kept() -> None:
    """There is no disposition for them."""
    inbound = linked(0)
    inbound.feed(amqp.transfer(0, 0, b""))
    for n in range(100):
        inbound.feed(amqp.transfer(0, 500 + n, b"", settled=True))
    assert not inbound.has_renumbered(0)


# --- what is refused ------------------------------------------------------------------------------------------------


REFUSED: dict[str, bytes] = {
    "a frame of 4 GB": b"\xff\xff\xff\xff\x02\x00\x00\x00",
    "a frame beyond the limit": struct.pack(">IBBH", MAX_FRAME + 1, 2, 0, 0),
    "a frame shorter than its header": b"\x00\x00\x00\x07\x02\x00\x00\x00",
    "a data offset of 1": b"\x00\x00\x00\x08\x01\x00\x00\x00",
    "a data offset beyond the frame": b"\x00\x00\x00\x08\x03\x00\x00\x00",
    "no described body": amqp.frame(b"\x40"),
    "a body of one zero": amqp.frame(b"\x00"),
    "a descriptor and nothing else": amqp.frame(b"\x00\x53\x10"),
    "no performative": amqp.performative(0x19),
    "a symbolic descriptor": amqp.frame(b"\x00\xa3\x0eamqp:open:list\x45"),
    "a performative that is no list": amqp.frame(b"\x00\x53\x10\x40"),
    "a list that goes beyond its frame": amqp.frame(b"\x00\x53\x10\xc0\x20\x01\x40") + b"\x40" * 40,
    "an attach without a handle": amqp.performative(amqp.ATTACH, "x"),
    "an attach whose name is no text": amqp.performative(amqp.ATTACH, b"x", UInt(0), True),
    "an attach whose name is no UTF-8": amqp.performative(amqp.ATTACH, amqp.Raw(b"\xa1\x01\xff"), UInt(0), True),
    "an attach whose handle is text": amqp.performative(amqp.ATTACH, "x", "0", True),
    "an attach without a role": amqp.performative(amqp.ATTACH, "x", UInt(0), None),
    "a deep open": amqp.performative(amqp.OPEN, "x", amqp.Raw(amqp.nested(1000))),
    "a deep attach": amqp.performative(amqp.ATTACH, "x", UInt(0), True, amqp.Raw(amqp.nested(1000, 0xD1))),
    "deep arrays": amqp.performative(amqp.ATTACH, "x", UInt(0), True, amqp.Raw(amqp.nested(1000, 0xF0))),
    "deep descriptors": amqp.performative(amqp.ATTACH, "x", UInt(0), True, amqp.Raw(amqp.nested(1000, 0))),
    "a deep flow": amqp.performative(amqp.FLOW, *[None] * 10, amqp.Raw(amqp.nested(1000))),
    "a deep disposition": amqp.performative(amqp.DISPOSITION, True, UInt(0), None, True, amqp.Raw(amqp.nested(1000))),
    "a deep transfer": amqp.performative(amqp.TRANSFER, UInt(0), UInt(0), b"", *[None] * 4, amqp.Raw(amqp.nested(500))),
    "a deep close": amqp.performative(amqp.CLOSE, amqp.Raw(amqp.nested(1000))),
    "a deep SASL frame": amqp.frame(amqp.described(0x41, amqp.Raw(amqp.nested(1000))), kind=1),
    "a huge count in a small list": amqp.frame(b"\x00\x53\x10\xd0\x00\x00\x00\x04\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_invalid_frames_are_refused(raw: bytes) -> None:
    """Each raises FramingError, and no other exception; the frames before it are passed on."""
    good = amqp.AMQP_HEADER + amqp.frame(b"")
    for inbound in (InboundFilter(), opened()):
        with pytest.raises(FramingError) as refused:
            inbound.feed(good + raw)
        assert refused.value.valid_bytes == good, "what came before is still passed on"


def test_invalid_transfers_are_refused() -> None:
    """On a link that the client receives on, or with a handle or id of a wrong type, a transfer is refused."""
    for bad in (
        amqp.transfer(1, 0, b"x"),
        amqp.performative(amqp.TRANSFER, "0", UInt(0), b"t"),
        amqp.performative(amqp.TRANSFER, None, UInt(0), b"t"),
        amqp.performative(amqp.TRANSFER, UInt(0), -1, b"t"),
        amqp.performative(amqp.TRANSFER),
    ):
        inbound = linked(0)
        inbound.feed(amqp.attach("in", 1, "q", receiver=True))
        with pytest.raises(FramingError):
            inbound.feed(bad)


def test_the_number_of_links_is_limited() -> None:
    """Links that were detached do not count."""
    inbound = opened()
    for n in range(MAX_LINKS + 100):
        inbound.feed(amqp.attach(f"{n}", n, "q", channel=n % 7))
        inbound.feed(amqp.performative(amqp.DETACH, UInt(n), True, channel=n % 7))
    for n in range(MAX_LINKS):
        inbound.feed(amqp.attach(f"{n}", n, "q", channel=n % 7))
    with pytest.raises(FramingError, match="links"):
        inbound.feed(amqp.attach("one more", MAX_LINKS, "q"))


def test_the_open_must_come_first_and_once() -> None:
    """Frames before the open, a second open, and SASL after it are refused."""
    for first in (amqp.begin(), amqp.attach("x", 0, "q"), amqp.flow(0, 1), amqp.performative(amqp.CLOSE)):
        with pytest.raises(FramingError, match="open"):
            InboundFilter().feed(first)
    with pytest.raises(FramingError, match="open"):
        opened().feed(amqp.open_())
    with pytest.raises(FramingError, match="type 1"):
        opened().feed(amqp.sasl_init())


@pytest.mark.parametrize(
    "fields",
    [(), (5,), (None, b"\0a\0b"), (PLAIN,), (PLAIN, "\0a\0b"), (PLAIN, b"\0\xff\0\xfe"), (PLAIN, b"a\0b\0c\0d")],
    ids=str,
)
def test_an_unreadable_login_is_passed_to_proton(fields: tuple[Any, ...]) -> None:
    """Proton refuses it; a valid PLAIN login is passed on as ANONYMOUS, without the key."""
    odd = amqp.frame(amqp.described(0x41, *fields), kind=1)
    assert InboundFilter(lambda name, key: True).feed(odd) == odd
    good = amqp.frame(amqp.described(0x41, PLAIN, b"\0name\0key"), kind=1)
    told = InboundFilter(lambda name, key: (name, key) == ("name", "key")).feed(good)
    assert b"ANONYMOUS" in told
    assert b"key" not in told


def test_an_incomplete_frame_is_kept() -> None:
    """A frame is passed on when its last byte has arrived."""
    whole = amqp.open_()
    inbound = InboundFilter()
    assert inbound.feed(whole[:-1]) == b""
    assert inbound.feed(whole[-1:]) != b""


@pytest.mark.parametrize(
    ("credit", "seen"), [(0, 0), (1, 1), (2**31 - 1, 2**31 - 1), (2**31, 2**31 - 1), (2**32 - 1, 2**31 - 1)]
)
def test_credit_is_limited_to_a_signed_number(credit: int, seen: int) -> None:
    """Proton would read larger credit as negative."""
    assert filtered(amqp.flow(0, credit))[0][2][6] == seen


def test_keep_alive_frames_and_headers_pass() -> None:
    """Empty frames and protocol headers reach Proton unchanged."""
    stream = amqp.SASL_HEADER + amqp.frame(b"") + amqp.AMQP_HEADER + amqp.frame(b"", kind=1)
    assert InboundFilter().feed(stream) == stream


def test_usual_nesting_is_allowed() -> None:
    """A source with a described filter in a map, and an error with info, are far below the limit."""
    value = encode([Described(UInt(1), [{"a": Described(UInt(2), [{"b": ["c"]}])}])] * 20)
    assert check_depth(value, 0) == len(value)
    assert decode(value)[1] == len(value)


@pytest.mark.parametrize(("depth", "allowed"), [(16, True), (17, False)])
def test_the_depth_limit_is_sixteen(depth: int, allowed: bool) -> None:
    """A value may have sixteen lists around it."""
    value = amqp.nested(depth)
    if allowed:
        assert check_depth(value, 0) == len(value)
    else:
        with pytest.raises(FramingError, match="too deeply"):
            check_depth(value, 0)


# --- links and SASL -----------------------------------------------------------------------------------------------


def test_links_that_ask_for_runtime_metrics_are_recorded_until_they_are_detached() -> None:
    """The capability is among an attach's desired ones, which Proton hides."""
    metric = Array(0xA3, [Symbol("com.microsoft:enable-receiver-runtime-metric")])
    inbound = opened()
    inbound.feed(amqp.performative(amqp.ATTACH, "with", UInt(0), True, *[None] * 9, metric))
    inbound.feed(amqp.performative(amqp.ATTACH, "without", UInt(1), True, *[None] * 8, metric))
    assert inbound.runtime_metric_links == {b"with"}
    inbound.feed(amqp.performative(amqp.DETACH, UInt(0), True))
    assert inbound.runtime_metric_links == set()


def test_formats_are_read_in_any_encoding() -> None:
    """A message-format may be a uint of one byte, and a tag may have a length of four bytes."""
    inbound = linked(0)
    tag = amqp.Raw(b"\xb0\x00\x00\x00\x01t")
    inbound.feed(amqp.performative(amqp.TRANSFER, UInt(0), UInt(0), tag, amqp.Raw(b"\x52\x07")))
    inbound.feed(amqp.performative(amqp.TRANSFER, UInt(0), UInt(1), b"u", amqp.Raw(b"\x70\x00\x00\x00\x08")))
    assert inbound.message_formats == {(b"link-0", b"t"): 7, (b"link-0", b"u"): 8}


def test_an_open_without_a_frame_limit_is_unchanged() -> None:
    """A client without a limit takes frames of any size."""
    inbound = InboundFilter()
    stream = amqp.performative(amqp.OPEN, "client", "host")
    assert inbound.feed(stream) == stream
    assert inbound.max_frame == 0xFFFFFFFF


def test_the_client_gets_the_server_s_own_frame_limit() -> None:
    """Proton announces more: room for rewritten frames."""
    raw = OutboundFilter(InboundFilter()).feed(amqp.performative(amqp.OPEN, "server", None, UInt(PROTON_MAX_FRAME)))
    assert amqp.read_performative(raw)[2][2] == MAX_FRAME
    assert PROTON_MAX_FRAME - MAX_FRAME == 64


def test_the_client_is_offered_the_service_s_mechanisms() -> None:
    """Proton's own mechanisms are replaced; other SASL frames pass."""
    outbound = OutboundFilter(InboundFilter())
    offered = outbound.feed(amqp.frame(amqp.described(0x40, amqp.Symbol("ANONYMOUS")), kind=1))
    for mechanism in (b"MSSBCBS", b"PLAIN", b"ANONYMOUS", b"EXTERNAL"):
        assert mechanism in offered
    outcome = amqp.frame(amqp.described(0x44, UByte(0)), kind=1)
    assert outbound.feed(outcome) == outcome


def test_mssbcbs_is_passed_to_proton_as_anonymous() -> None:
    """.NET's and Rust's SDKs ask for it, without a key."""
    init = amqp.frame(amqp.described(0x41, amqp.Symbol("MSSBCBS")), kind=1)
    assert b"ANONYMOUS" in InboundFilter().feed(init)
    anonymous = amqp.sasl_init()
    assert InboundFilter().feed(anonymous) == anonymous
