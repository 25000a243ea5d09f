"""Fidelity: a message that was parked and drained arrives, byte for byte, as a direct send would have delivered it.

Each message is put on a link as bytes, once directly and once through backlog and drain, and both are taken as bytes:
all sections must be equal but for what the broker owns, and the expiry, which counts from the delivery."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import Described, Long, Symbol, Timestamp, UInt, decode, encode, encode_map
from pairbus.domain.envelope import park
from tests.support.amqp_messages import CORPUS
from tests.support.backlog import Backlog
from tests.support.envelope_messages import model
from tests.support.envelope_runs import field, message, message_annotations
from tests.support.pairing import Pair
from tests.support.raw_client import RawClient, RawError

_OWNED = {
    "x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-enqueue-sequence-number",
    "x-opt-message-state", "x-opt-deadletter-source", "x-opt-lock-token",
}  # fmt: skip
_ID = "id-of-park"
_TTL, _EXPIRY = 2, 8


def shape(received: bytes, *, without_id: bool = False) -> tuple[Any, ...]:
    """Return the sections that must be equal, as bytes, without the broker's own, and with a mark for the expiry."""
    found: list[Any] = []
    for each in sections.split(received):
        raw = received[each.start : each.end]
        if each.code in (sections.DELIVERY_ANNOTATIONS, sections.MESSAGE_ANNOTATIONS):
            entries = sections.entries(received, each.value)
            kept = [received[e.start : e.end] for e in entries if not (isinstance(e.key, str) and e.key in _OWNED)]
            found.append((each.code, tuple(kept)))
        elif each.code == sections.PROPERTIES:
            fields = [received[a:b] for a, b in sections.fields(received, each.value)]
            if without_id:
                fields[0] = encode(_ID)
            if field(received, sections.HEADER, _TTL) is not None and len(fields) > _EXPIRY:
                fields[_EXPIRY] = b"expiry" if fields[_EXPIRY] != b"\x40" else b"\x40"
            while fields[-1] == b"\x40":
                fields.pop()
            found.append((each.code, received[each.start : each.value], tuple(fields)))
        else:
            found.append((each.code, raw))
    return tuple(found)


class Detour:
    """A queue to send to directly, and one to reach through the backlog, both for messages of up to 2 MB."""

    def __init__(self, pair: Pair, backlog: Backlog) -> None:
        large = {"max_message_size_in_kilobytes": 2048}
        self.pair = pair
        self.backlog = backlog
        self.direct, self.via = pair.queue(**large), pair.queue(**large)
        backlog.make(**large)
        self.refused = 0

    def directly(self, sent: Iterable[bytes]) -> Counter[Any]:
        """Return the shapes that a direct send delivers; count refused ones."""
        found: Counter[Any] = Counter()
        with RawClient(self.pair.primary) as raw:
            raw.put_token(self.direct)
            sender, receiver = raw.sender(self.direct), raw.receiver(self.direct, delete=True)
            for each in sent:
                try:
                    raw.send(sender, each)
                except RawError:
                    self.refused += 1
                    continue
                found[shape(raw.receive(receiver).payload, without_id=field(each, 0x73, 0) is None)] += 1
        return found

    def through_the_backlog(self, parked: Iterable[bytes], due: int | None = None) -> list[bytes]:
        """Return the shapes that arrive through the backlog: all, or as many as are due."""
        self.backlog.put(*parked)
        summary = self.backlog.drain()
        assert (summary.error, summary.held, summary.in_doubt) == (None, 0, 0)
        assert summary.dead_lettered == self.refused, self.backlog.journal.of("dead-lettered")
        return self.pair.payloads(self.pair.primary, self.via, summary.delivered if due is None else due)

    def check(self, sent: list[bytes]) -> None:
        wanted = self.directly(sent)
        begun = time.time()
        arrived = self.through_the_backlog([park(each, self.via, _ID) for each in sent])
        found = Counter(map(shape, arrived))
        assert not wanted - found, f"{(wanted - found).most_common(1)}\ncame as {(found - wanted).most_common(1)}"
        assert found == wanted
        for each in arrived:
            _check_expiry(each, begun)


def _check_expiry(arrived: bytes, begun: float) -> None:
    """Assert that the expiry is a time to live after the delivery."""
    ttl, expiry = field(arrived, sections.HEADER, _TTL), field(arrived, sections.PROPERTIES, _EXPIRY)
    if ttl is not None and expiry is not None:
        assert begun * 1000 - 5 <= expiry - ttl <= time.time() * 1000 + 5


@pytest.fixture
def detour(pair: Pair, backlog: Backlog) -> Detour:
    return Detour(pair, backlog)


def _is_due(sent: bytes) -> bool:
    """Return True if a receiver gets the message at once, while it lives."""
    annotations = {str(key) for key in message_annotations(sent)}
    ttl = field(sent, sections.HEADER, _TTL)
    return "x-opt-scheduled-enqueue-time" not in annotations and (ttl is None or ttl > 60_000)


def _single(raw: bytes, format: int) -> list[bytes]:
    """Return the messages of a transfer, which may be a batch."""
    if not format:
        return [raw]
    return [bytes(decode(raw, each.value)[0]) for each in sections.split(raw) if each.code == 0x75]


def test_messages_of_microsofts_sdks(detour: Detour) -> None:
    """The wire bytes of the SDKs for Python, JavaScript and Go."""
    sent = [each for _, raw, format in CORPUS for each in _single(raw, format)]
    due = [each for each in sent if _is_due(each)]
    assert len(due) > 40
    detour.check(due)


def test_messages_at_random(detour: Detour) -> None:
    """Every section in every encoding of AMQP; a message that a direct send is refused for is dead-lettered."""
    rng = random.Random(20261117)
    sent: list[bytes] = []
    while len(sent) < 250:
        made = model(rng).encoded()
        # To one without an id the broker gives one, and writes its properties anew.
        if _is_due(made) and field(made, sections.PROPERTIES, 0) is not None:
            sent.append(made)
    detour.check(sent)
    assert detour.refused < 50


#: One value of each primitive type in each of its encodings, and the compound ones.
VALUES = [
    b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01",
    b"\x50\xff", b"\x60\xff\xff", b"\x43", b"\x52\xff", b"\x70\xff\xff\xff\xff",
    b"\x44", b"\x53\xff", b"\x80\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x51\x80", b"\x61\x80\x00", b"\x54\x80", b"\x71\x80\x00\x00\x00", b"\x55\x80",
    b"\x81\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\x72\x7f\xc0\x00\x01", b"\x82\x7f\xf8\x00\x00\x00\x00\x00\x01", b"\x82\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\x74\x22\x50\x00\x01", b"\x84" + b"\x22" * 8, b"\x94" + b"\x22" * 16, b"\x73\x00\x01\xf6\x8c",
    b"\x83\xff\xff\xff\xff\xff\xff\xff\xff", b"\x98" + bytes(range(16)),
    b"\xa0\x03\x00\xff\x80", b"\xb0\x00\x00\x00\x03\x00\xff\x80", b"\xa1\x04\xf0\x9f\x9a\x8c",
    b"\xb1\x00\x00\x00\x04\xf0\x9f\x9a\x8c", b"\xa3\x01s", b"\xb3\x00\x00\x00\x01s", b"\xa1\x00", b"\xa0\x00",
]  # fmt: skip
COMPOUND = [
    b"\x45", b"\xc0\x03\x01\xa1\x00", b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40",
    encode({"k": [1, None, Long(5)], Symbol("s"): {"deep": [b"\xff", uuid.UUID(int=7)]}}),
    b"\xe0\x05\x03\x54\x01\x02\x03", b"\xf0\x00\x00\x00\x0d\x00\x00\x00\x02\x70\x00\x00\x00\x01\x00\x00\x00\x02",
    encode(Described(Symbol("com.microsoft:timespan"), Long(600_000_000))),
    encode(Described(Symbol("com.microsoft:datetime-offset"), Long(2**62))),
    encode(Described(Symbol("com.microsoft:uri"), "http://example/ä")),
    b"\x00\x80\x00\x00\x46\x8c\x00\x00\x00\x04\xa1\x01x",
]  # fmt: skip


def _map(*entries: bytes) -> bytes:
    return encode_map(list(entries))


def test_every_type_everywhere(detour: Detour) -> None:
    """As an application property, an annotation, a body, an element of a sequence, an id: no byte is changed."""
    sent = []
    for number, value in enumerate([*VALUES, *COMPOUND]):
        head = sections.section(0x73, encode([f"id-{number}"]))
        sent.append(head + sections.section(0x77, value))
        sent.append(head + sections.section(0x76, b"\xd0" + (4 + len(value)).to_bytes(4, "big") + b"\0\0\0\1" + value))
        annotations = sections.section(0x72, _map(encode(Symbol("x-mine")), value))
        sent.append(annotations + head + sections.section(0x75, b"\xa0\x00"))
        properties = sections.section(0x74, _map(encode("mine"), value))
        sent.append(head + properties + sections.section(0x75, b"\xa0\x00"))
    for value in (encode(Long(7)), b"\x80" + b"\x01" * 8, encode(uuid.UUID(int=5)), encode(b"\xff"), encode("ä")):
        list_of = b"\xd0" + (4 + len(value)).to_bytes(4, "big") + b"\0\0\0\1" + value
        sent.append(sections.section(0x73, list_of) + sections.section(0x75, b"\xa0\x00"))
    detour.check(sent)


def test_all_forms_of_a_body(detour: Detour) -> None:
    """One data section or many, empty ones, sequences, a value, none at all; footers and instructions too."""
    head = sections.section(0x73, encode(["id"]))
    data, sequence = sections.section(0x75, b"\xa0\x02ab"), sections.section(0x76, encode([1, "two", None]))
    footer = sections.section(0x78, encode({Symbol("checksum"): b"\x00\xff"}))
    bodies = [
        data, data * 3, sections.section(0x75, b"\xa0\x00"), sections.section(0x75, b"\xb0\x00\x00\x00\x00"),
        sequence, sequence * 3, sections.section(0x76, b"\x45"), sections.section(0x77, b"\x40"),
        sections.section(0x77, encode("text")), b"", data + footer, footer,
    ]  # fmt: skip
    sent = [head + each for each in bodies]
    sent.append(sections.section(0x71, encode({Symbol("x-hop"): "north"})) + head + data)
    detour.check(sent)


@pytest.mark.parametrize("session", [None, "s"])
def test_large_messages(detour: Detour, session: str | None) -> None:
    """Bodies of a megabyte, of one section and of many, and 500 properties."""
    fields: list[Any] = ["large", *[None] * 9, session] if session else ["large"]
    head = sections.section(0x73, encode(fields))
    megabyte = random.Random(1).randbytes(1 << 20)
    many = sections.section(0x74, encode({f"property-{number:03}": Long(number) for number in range(500)}))
    pieces = [megabyte[at : at + 65536] for at in range(0, 1 << 20, 65536)]
    sent = [
        head + sections.section(0x75, encode(megabyte)),
        head + b"".join(sections.section(0x75, encode(each)) for each in pieces),
        head + many + sections.section(0x75, b"\xa0\x00"),
        head + many + sections.section(0x75, encode(megabyte[:700_000])),
        head + sections.section(0x77, encode(megabyte[:300].hex())),
    ]
    detour.check(sent)


def test_in_a_batch_as_alone(detour: Detour) -> None:
    """Messages of one session go together, and each is what it was: odd ones beside usual ones."""
    sent = []
    for number, value in enumerate([*VALUES, *COMPOUND] * 3):
        head = sections.section(0x73, encode([f"id-{number}", *[None] * 9, "one"]))
        sent.append(head + sections.section(0x77, value))
    detour.pair.primary.faults.latency(0.01, detour.via)
    detour.check(sent)


@pytest.mark.parametrize("lived", [3_600_000, 4_294_967_295])
def test_a_time_to_live_starts_anew(detour: Detour, lived: int) -> None:
    """With an expiry that the sender wrote, and without; a message without a time to live gets none."""
    header = sections.section(0x70, encode([None, None, UInt(lived)]))
    now = int(time.time() * 1000)
    dated = ["id", *[None] * 7, Timestamp(now + lived), Timestamp(now)]
    body = sections.section(0x75, b"\xa0\x00")
    sent = [header + sections.section(0x73, encode(fields)) + body for fields in (["id"], dated)]
    sent.append(sections.section(0x73, encode(dated)) + body)
    detour.check(sent)


def test_a_scheduled_message_waits_at_its_destination(detour: Detour) -> None:
    """If it is not due, it is scheduled there; if it became due meanwhile, it is delivered at once."""
    now = int(time.time() * 1000)

    def scheduled(at: int, id: str) -> bytes:
        return message(
            annotations=encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at)}), properties=encode([id])
        )

    sent = [scheduled(now + 1500, "soon"), scheduled(now - 60_000, "past"), scheduled(now + 3_600_000, "later")]
    arrived = detour.through_the_backlog([park(each, detour.via, _ID) for each in sent], due=2)
    assert {shape(each) for each in arrived} == set(detour.directly(sent[1::-1]))
    assert time.time() * 1000 >= now + 1500
    with detour.pair.admin(detour.pair.primary) as admin:
        assert admin.get_queue_runtime_properties(detour.via).scheduled_message_count == 1


def test_a_message_that_the_dotnet_client_parked(detour: Detour) -> None:
    """Its envelope, with the described timespan, is restored to the message that it sent."""
    aliases = {
        "x-ms-path": detour.via,
        "x-ms-sessionid": "s-1",
        "x-ms-timetolive": Described(Symbol("com.microsoft:timespan"), Long(36_000_000_000)),
        "x-ms-scheduledenqueuetimeutc": Timestamp(9_000),
    }
    mine = {"a": 1, "b": Described(Symbol("com.microsoft:timespan"), Long(5))}
    sent = message(
        header=encode([None, None, UInt(3_600_000), None, None]),
        annotations=encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(9_000)}),
        properties=encode(["id", *[None] * 9, "s-1"]),
        application=encode(mine),
    )
    parked = message(application=encode({**aliases, **mine}))
    assert Counter(map(shape, detour.through_the_backlog([parked]))) == detour.directly([sent])
