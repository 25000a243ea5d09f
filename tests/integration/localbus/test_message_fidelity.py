"""Messages arrive byte for byte as they were sent, except for the broker's own fields.

The bytes are sent and received without any encoding or decoding. They come from Microsoft's SDKs (a recorded corpus)
and from a generator of every AMQP type in every encoding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from proton import Delivery

from pairbus.domain.amqp import sections
from pairbus.localbus import LocalBus
from tests.support.raw_client import RawClient, longs, uuids
from tests.support.sdk_clients import unique

CORPUS = Path(__file__).parents[2] / "data" / "corpus"
BATCH = 0x80013700
_OWNED = {
    "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-enqueue-sequence-number",
    "x-opt-message-state", "x-opt-deadletter-source", "x-opt-lock-token",
}  # fmt: skip


def corpus() -> list[Any]:
    found = []
    for file in sorted(CORPUS.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            found.append(pytest.param(bytes.fromhex(row["hex"]), row["format"], id=f"{row['sdk']}-{number}"))
    return found


# --- comparing -----------------------------------------------------------------------------------------------


def _fields(message: bytes, section: sections.Section | None) -> list[bytes]:
    if section is None:
        return []
    found = [message[a:b] for a, b in sections.fields(message, section.value)]
    while found and found[-1] == b"\x40":
        found.pop()
    return found


def _annotations(message: bytes, section: sections.Section | None) -> list[bytes]:
    found = [] if section is None else sections.entries(message, section.value)
    return [message[e.start : e.end] for e in found if not (isinstance(e.key, str) and e.key in _OWNED)]


def check(sent: bytes, received: bytes) -> None:
    """Assert that only the broker's own fields differ."""
    before, after = sections.split(sent), sections.split(received)
    ours = {section.code: section for section in before}
    theirs = {section.code: section for section in after}
    codes = [s.code for s in after]
    assert codes == sorted(codes), "the sections are in AMQP's order"
    header = [_fields(m, s.get(sections.HEADER))[:4] for m, s in ((sent, ours), (received, theirs))]
    assert _trimmed(header[0]) == _trimmed(header[1])
    notes = sections.MESSAGE_ANNOTATIONS
    assert _annotations(sent, ours.get(notes)) == _annotations(received, theirs.get(notes))
    properties = ours.get(sections.PROPERTIES)
    named = _fields(sent, properties)
    if named and named[0] != b"\x40":
        assert properties is not None
        found = theirs[sections.PROPERTIES]
        assert received[found.start : found.end] == sent[properties.start : properties.end]
    else:
        given = _fields(received, theirs[sections.PROPERTIES])
        assert given[0][:1] == b"\xa1", "the broker gave it an id"
        assert given[1:] == named[1:]
    assert _unchanged_sections(received, after) == _unchanged_sections(sent, before)


def _trimmed(fields: list[bytes]) -> list[bytes]:
    while fields and fields[-1] == b"\x40":
        fields.pop()
    return fields


def _unchanged_sections(message: bytes, found: list[sections.Section]) -> bytes:
    """Return the encoded application properties, body and footer."""
    late = (s for s in found if s.code >= sections.APPLICATION_PROPERTIES)
    return b"".join(message[s.start : s.end] for s in late)


# --- the routes through the broker -----------------------------------------------------------------------------


class Routes:
    """The routes of a message through entities and links; each method returns the bytes that are received."""

    def __init__(self, bus: LocalBus, admin: ServiceBusAdministrationClient) -> None:
        self.raw = RawClient(bus)
        self.queue, self.target, self.source, self.topic = (unique(n) for n in ("q", "target", "source", "t"))
        admin.create_queue(self.queue)
        admin.create_queue(self.target)
        admin.create_queue(self.source, forward_to=self.target)
        admin.create_topic(self.topic)
        admin.create_subscription(self.topic, "all")
        admin.create_subscription(self.topic, "some")
        admin.delete_rule(self.topic, "some", "$Default")
        admin.create_rule(self.topic, "some", "sql", filter=SqlRuleFilter("no_such_property IS NULL"))
        for entity in (self.queue, self.target, self.source, self.topic):
            self.raw.put_token(entity)
        self._links: dict[str, Any] = {}

    def sender(self, address: str) -> Any:
        if address not in self._links:
            self._links[address] = self.raw.sender(address)
        return self._links[address]

    def _receiver(self, address: str) -> Any:
        key = "from " + address
        if key not in self._links:
            self._links[key] = self.raw.receiver(address)
        return self._links[key]

    def take(self, address: str) -> bytes:
        link = self._receiver(address)
        received = self.raw.receive(link)
        assert self.raw.settle(link, received) is None
        return received.payload

    def sent(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.queue), message)
        return self.take(self.queue)

    def batched(self, message: bytes) -> bytes:
        data = b"\x00\x53\x75\xb0" + struct.pack(">I", len(message)) + message
        self.raw.send(self.sender(self.queue), data, BATCH)
        return self.take(self.queue)

    def forwarded(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.source), message)
        return self.take(self.target)

    def copied(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.topic), message)
        one, other = (self.take(f"{self.topic}/Subscriptions/{name}") for name in ("all", "some"))
        check(message, one)
        return other

    def scheduled(self, message: bytes) -> bytes:
        body = {"messages": [{"message-id": "m", "message": message}]}
        assert self.raw.request(self.queue, "com.microsoft:schedule-message", body)[0] == 200
        return self.take(self.queue)

    def peeked(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.queue), message)
        body = {"from-sequence-number": 0, "message-count": 1}
        status, reply, _ = self.raw.request(self.queue, "com.microsoft:peek-message", body)
        assert status == 200
        self.take(self.queue)
        return bytes(reply["messages"][0]["message"])

    def abandoned(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.queue), message)
        link = self._receiver(self.queue)
        assert self.raw.settle(link, self.raw.receive(link), Delivery.RELEASED) is None
        return self.take(self.queue)

    def deferred(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.queue), message)
        received = self.raw.receive(self._receiver(self.queue))
        number = _sequence_number(received.payload)
        assert self._dispose(received.token, "defered") == 200
        body = {"sequence-numbers": longs(number), "receiver-settle-mode": 1}
        status, reply, _ = self.raw.request(self.queue, "com.microsoft:receive-by-sequence-number", body)
        assert status == 200
        (found,) = reply["messages"]
        assert self._dispose(found["lock-token"], "completed") == 200
        return bytes(found["message"])

    def dead_lettered(self, message: bytes) -> bytes:
        self.raw.send(self.sender(self.queue), message)
        received = self.raw.receive(self._receiver(self.queue))
        assert self._dispose(received.token, "suspended") == 200
        return self.take(f"{self.queue}/$DeadLetterQueue")

    def _dispose(self, token: UUID, status: str) -> int:
        body = {"lock-tokens": uuids(token), "disposition-status": status}
        return self.raw.request(self.queue, "com.microsoft:update-disposition", body)[0]


def _sequence_number(message: bytes) -> int:
    (notes,) = [s for s in sections.split(message) if s.code == sections.MESSAGE_ANNOTATIONS]
    (found,) = [e for e in sections.entries(message, notes.value) if e.key == "x-opt-sequence-number"]
    return int(struct.unpack(">q", message[found.value + 1 : found.end])[0])


@pytest.fixture(scope="module")
def routes(bus: LocalBus, admin_client: ServiceBusAdministrationClient) -> Iterator[Routes]:
    made = Routes(bus, admin_client)
    yield made
    made.raw.drop()


ROUTES: list[Callable[[Routes, bytes], bytes]] = [
    Routes.sent, Routes.batched, Routes.forwarded, Routes.copied, Routes.scheduled, Routes.peeked, Routes.abandoned,
    Routes.deferred, Routes.dead_lettered,
]  # fmt: skip


# --- what other people's SDKs write --------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)
def test_messages_of_microsoft_s_sdks_are_unchanged(routes: Routes, route: Callable[[Routes, bytes], bytes]) -> None:
    """Each recorded message of Go's, JavaScript's and Python's SDK arrives as it was sent."""
    messages = [each.values[0] for each in corpus() if each.values[1] == 0]
    assert len(messages) > 50
    for message in messages:
        check(message, route(routes, message))


def test_batches_of_microsoft_s_sdks_become_messages(routes: Routes) -> None:
    """Each data section of a recorded batch arrives as a message of its own, unchanged."""
    batches = [each.values[0] for each in corpus() if each.values[1] == BATCH]
    assert batches
    for batch in batches:
        inner = [batch[s.end - _length(batch, s) : s.end] for s in sections.split(batch) if s.code == sections.DATA]
        assert len(inner) > 1
        routes.raw.send(routes.sender(routes.queue), batch, BATCH)
        for message in inner:
            check(message, routes.take(routes.queue))


def _length(batch: bytes, data: sections.Section) -> int:
    wide = batch[data.value] == 0xB0
    return int(struct.unpack_from(">I" if wide else ">B", batch, data.value + 1)[0])


#: Milliseconds that a test with a restart in it may take on a busy machine.
SHORT = 60_000


def time_to_live(message: bytes) -> int | None:
    headers = [each for each in sections.split(message) if each.code == sections.HEADER]
    found: int | None = sections.field(message, headers[0].value, 2) if headers else None
    return found


def test_a_store_keeps_every_byte(tmp_path: Path) -> None:
    """Messages that were only on disk between two processes arrive as they were sent."""
    messages = [each.values[0] for each in corpus() if each.values[1] == 0] + [every_type()]
    messages = [each for each in messages if (time_to_live(each) or SHORT) >= SHORT]  # they must outlive the restart
    with LocalBus(store=tmp_path / "bus.db") as bus:
        with ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        ) as admin:
            admin.create_queue("kept", default_message_time_to_live=timedelta(days=1))
        with RawClient(bus) as raw:
            raw.put_token("kept")
            link = raw.sender("kept")
            for message in messages:
                raw.send(link, message)
        bus.kill()
        bus.restart()
        with RawClient(bus) as raw:
            raw.put_token("kept")
            source = raw.receiver("kept", 100)
            for message in messages:
                check(message, raw.receive(source).payload)


# --- every type ----------------------------------------------------------------------------------------------

#: One value of each of AMQP's types in each of its encodings.
TYPES: dict[str, bytes] = {
    "null": b"\x40",
    "true": b"\x41",
    "false": b"\x42",
    "boolean": b"\x56\x01",
    "ubyte": b"\x50\xff",
    "ushort": b"\x60\xff\xff",
    "uint": b"\x70\xff\xff\xff\xff",
    "uint small": b"\x52\x05",
    "uint 0": b"\x43",
    "ulong": b"\x80" + b"\xff" * 8,
    "ulong small": b"\x53\x05",
    "ulong 0": b"\x44",
    "byte": b"\x51\x80",
    "short": b"\x61\x80\x00",
    "int": b"\x71\x80\x00\x00\x00",
    "int small": b"\x54\xff",
    "long": b"\x81\x80" + b"\x00" * 7,
    "long small": b"\x55\xff",
    "float": b"\x72" + struct.pack(">f", 0.1),
    "float nan": b"\x72\x7f\xc0\x00\x01",
    "double": b"\x82" + struct.pack(">d", 0.1),
    "decimal32": b"\x74\x22\x50\x00\x01",
    "decimal64": b"\x84\x22\x34" + b"\x00" * 5 + b"\x01",
    "decimal128": b"\x94\x22\x08" + b"\x00" * 13 + b"\x01",
    "char": b"\x73\x00\x01\xf6\x8c",
    "timestamp": b"\x83\x00\x00\x01\x8b\xcf\xe5\x68\x7b",
    "timestamp before 1970": b"\x83" + b"\xff" * 8,
    "uuid": b"\x98" + bytes(range(16)),
    "binary": b"\xa0\x02\x00\xff",
    "binary long": b"\xb0\x00\x00\x00\x02\x00\xff",
    "string": b"\xa1\x02\xc3\xa4",
    "string long": b"\xb1\x00\x00\x00\x02\xc3\xa4",
    "symbol": b"\xa3\x03sym",
    "symbol long": b"\xb3\x00\x00\x00\x03sym",
    "list 0": b"\x45",
    "list": b"\xc0\x03\x02\x41\x40",
    "list long": b"\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x41\x40",
    "map": b"\xc1\x05\x02\xa1\x01k\x41",
    "map long": b"\xd1\x00\x00\x00\x08\x00\x00\x00\x02\xa1\x01k\x41",
    "array": b"\xe0\x04\x02\x50\x01\x02",
    "array long": b"\xf0\x00\x00\x00\x07\x00\x00\x00\x02\x50\x01\x02",
    "array of described": b"\xe0\x0a\x01\x00\xa3\x01x\x71\x00\x00\x00\x01",
    "timespan": b"\x00\xa3\x16com.microsoft:timespan\x81\x00\x00\x00\x00\x00\x98\x96\x80",
    "described by number": b"\x00\x80\x00\x00\x46\x8c\x00\x00\x00\x04\xa1\x01x",
}


def _text(value: str) -> bytes:
    raw = value.encode()
    return bytes((0xA1, len(raw))) + raw


def _map(*items: bytes) -> bytes:
    raw = b"".join(items)
    return b"\xd1" + struct.pack(">II", len(raw) + 4, len(items)) + raw


def _section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def every_type() -> bytes:
    """Return a message with every type in its annotations, application properties, body and footer."""
    named = [part for name, value in TYPES.items() for part in (_text(name), value)]
    symbols = [b"\xa3" + part[1:] if index % 2 == 0 else part for index, part in enumerate(named)]
    return b"".join(
        (
            _section(sections.MESSAGE_ANNOTATIONS, _map(*symbols)),
            _section(sections.PROPERTIES, b"\xc0\x12\x01\x98" + uuid4().bytes),
            _section(sections.APPLICATION_PROPERTIES, _map(*named)),
            _section(sections.VALUE, _map(*named)),
            _section(sections.FOOTER, _map(*symbols)),
        )
    )


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.__name__)
def test_every_amqp_type_arrives_unchanged(routes: Routes, route: Callable[[Routes, bytes], bytes]) -> None:
    """Every AMQP type in every encoding and place arrives unchanged, also those that no SDK here can decode."""
    message = every_type()
    check(message, route(routes, message))


def test_a_message_id_may_have_any_of_its_types(routes: Routes) -> None:
    """A message-id that is a number, a UUID or binary arrives unchanged, with and without duplicate detection."""
    for value in (b"\x53\x07", b"\x80" + b"\x01" * 8, b"\x98" + bytes(16), b"\xa0\x02\x00\xff", b"\xa1\x01x"):
        listed = b"\xc0" + bytes((len(value) + 1, 1)) + value
        message = _section(sections.PROPERTIES, listed) + _section(sections.DATA, b"\xa0\x01x")
        check(message, routes.sent(message))


def test_a_message_that_the_sdk_cannot_decode_does_not_block_the_next(bus: LocalBus, routes: Routes) -> None:
    """After a message with a decimal is received and removed by a raw client, the SDK receives the next one."""
    odd = _section(sections.VALUE, TYPES["decimal128"])
    plain = _section(sections.DATA, b"\xa0\x05plain")
    routes.raw.send(routes.sender(routes.queue), odd)
    routes.raw.send(routes.sender(routes.queue), plain)
    check(odd, routes.take(routes.queue))
    connected = ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0)
    with connected as client, client.get_queue_receiver(routes.queue) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=60)
        assert str(message) == "plain"
        receiver.complete_message(message)


# --- generated messages --------------------------------------------------------------------------------------


def _sized(short: int, long: int, raw: bytes, wide: bool) -> bytes:
    if wide or len(raw) > 255:
        return bytes((long,)) + struct.pack(">I", len(raw)) + raw
    return bytes((short, len(raw))) + raw


def _compound(short: int, long: int, items: list[bytes], wide: bool) -> bytes:
    raw = b"".join(items)
    if wide or len(raw) > 254 or len(items) > 255:
        return bytes((long,)) + struct.pack(">II", len(raw) + 4, len(items)) + raw
    return bytes((short, len(raw) + 1, len(items))) + raw


_WIDE = st.booleans()
_FIXED_WIDTHS = {
    0x50: 1, 0x51: 1, 0x52: 1, 0x53: 1, 0x54: 1, 0x55: 1, 0x60: 2, 0x61: 2, 0x70: 4, 0x71: 4, 0x72: 4, 0x74: 4,
    0x80: 8, 0x81: 8, 0x82: 8, 0x83: 8, 0x84: 8, 0x94: 16, 0x98: 16,
}  # fmt: skip
_ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)
_STRINGS = st.builds(lambda t, w: _sized(0xA1, 0xB1, t.encode(), w), st.text(max_size=20), _WIDE)
_SYMBOLS = st.builds(lambda t, w: _sized(0xA3, 0xB3, t.encode(), w), _ASCII, _WIDE)
_BINARIES = st.builds(lambda b, w: _sized(0xA0, 0xB0, b, w), st.binary(max_size=300), _WIDE)
_SCALARS = st.one_of(
    st.sampled_from([b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45", b"\x56\x00", b"\x56\x01"]),
    st.sampled_from(sorted(_FIXED_WIDTHS)).flatmap(
        lambda code: st.binary(min_size=_FIXED_WIDTHS[code], max_size=_FIXED_WIDTHS[code]).map(
            lambda raw: bytes((code,)) + raw
        )
    ),
    st.characters(exclude_categories=["Cs"]).map(lambda c: b"\x73" + c.encode("utf-32-be")),
    _STRINGS,
    _SYMBOLS,
    _BINARIES,
)


def _maps(keys: st.SearchStrategy[bytes], values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    entries = st.lists(st.tuples(keys, values), max_size=4, unique_by=lambda entry: entry[0])
    return st.builds(lambda e, w: _compound(0xC1, 0xD1, [part for pair in e for part in pair], w), entries, _WIDE)


def _lists(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(lambda items, w: _compound(0xC0, 0xD0, items, w), st.lists(values, max_size=4), _WIDE)


@st.composite
def _arrays(draw: st.DrawFn) -> bytes:
    code = draw(st.sampled_from(sorted(_FIXED_WIDTHS)))
    items = draw(st.lists(st.binary(min_size=_FIXED_WIDTHS[code], max_size=_FIXED_WIDTHS[code]), max_size=4))
    raw = bytes((code,)) + b"".join(items)
    if draw(_WIDE):
        return b"\xf0" + struct.pack(">II", len(raw) + 4, len(items)) + raw
    return bytes((0xE0, len(raw) + 1, len(items))) + raw


_VALUES = st.recursive(
    st.one_of(_SCALARS, _arrays()),
    lambda inner: st.one_of(
        _lists(inner),
        _maps(st.one_of(_STRINGS, _SYMBOLS), inner),
        st.tuples(_SYMBOLS, inner).map(lambda pair: b"\x00" + pair[0] + pair[1]),
    ),
    max_leaves=8,
)
_TEXT_KEYS = st.builds(lambda t, w: _sized(0xA1, 0xB1, t.encode(), w), st.text(max_size=12), _WIDE)
_NOTE_KEYS = _ASCII.map(lambda t: _sized(0xA3, 0xB3, f"x-{t}".encode(), False))
_TIMESTAMPS = st.binary(min_size=8, max_size=8).map(lambda raw: b"\x83" + raw)


def _or_null(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.just(b"\x40"), values)


@st.composite
def _listed(draw: st.DrawFn, *fields: st.SearchStrategy[bytes]) -> bytes:
    count = draw(st.integers(0, len(fields)))
    items = [draw(_or_null(each)) for each in fields[:count]]
    return b"\x45" if not items and draw(_WIDE) else _compound(0xC0, 0xD0, items, draw(_WIDE))


_BOOLEANS = st.sampled_from([b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"])
_HEADERS = _listed(
    _BOOLEANS,
    st.integers(0, 255).map(lambda n: bytes((0x50, n))),
    st.integers(600_000, 2**32 - 1).map(lambda n: b"\x70" + struct.pack(">I", n)),
    _BOOLEANS,
    st.integers(0, 255).map(lambda n: bytes((0x52, n))),
)
_IDS = st.one_of(
    _STRINGS,
    _BINARIES,
    st.binary(min_size=16, max_size=16).map(lambda raw: b"\x98" + raw),
    st.binary(min_size=8, max_size=8).map(lambda raw: b"\x80" + raw),
    st.integers(0, 255).map(lambda n: bytes((0x53, n))),
)
_PROPERTIES = _listed(
    _IDS, _BINARIES, _STRINGS, _STRINGS, _STRINGS, _IDS, _SYMBOLS, _SYMBOLS, _TIMESTAMPS, _TIMESTAMPS, _STRINGS,
    st.binary(min_size=4, max_size=4).map(lambda raw: b"\x70" + raw), _STRINGS,
)  # fmt: skip
_BODIES = st.one_of(
    st.lists(_BINARIES, min_size=1, max_size=3).map(lambda found: [(sections.DATA, raw) for raw in found]),
    st.lists(_lists(_VALUES), min_size=1, max_size=3).map(lambda f: [(sections.SEQUENCE, raw) for raw in f]),
    _VALUES.map(lambda raw: [(sections.VALUE, raw)]),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Generate AMQP messages with any sections, types and encodings, not scheduled and with time to live."""
    found: list[tuple[int, bytes]] = []
    for code, values in (
        (sections.HEADER, _HEADERS),
        (sections.DELIVERY_ANNOTATIONS, _maps(_NOTE_KEYS, _VALUES)),
        (sections.MESSAGE_ANNOTATIONS, _maps(_NOTE_KEYS, _VALUES)),
        (sections.PROPERTIES, _PROPERTIES),
        (sections.APPLICATION_PROPERTIES, _maps(_TEXT_KEYS, _VALUES)),
    ):
        if draw(st.booleans()):
            found.append((code, draw(values)))
    found += draw(_BODIES)
    if draw(st.booleans()):
        found.append((sections.FOOTER, draw(_maps(_NOTE_KEYS, _VALUES))))
    wide = draw(_WIDE)
    head = (lambda code: b"\x00\x80" + struct.pack(">Q", code)) if wide else (lambda code: bytes((0, 0x53, code)))
    return b"".join(head(code) + raw for code, raw in found)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(message=messages(), route=st.sampled_from(ROUTES))
@example(message=_section(sections.VALUE, b"\x40"), route=Routes.sent)
def test_any_message_arrives_unchanged(routes: Routes, message: bytes, route: Callable[[Routes, bytes], bytes]) -> None:
    """Generated messages arrive unchanged by every route."""
    check(message, route(routes, message))
