"""Messages for parking, written at random in every encoding that AMQP allows, and what must come back of them.

A message is made from a `Model`, and so is the message that is expected after park and restore: nothing of the code
under test has a say in it. Made with `random` and not with hypothesis' strategies, for which a million are too many.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pairbus.domain.amqp.codec import Described, Long, Symbol, encode
from pairbus.localbus.entities.message import Message, read_message
from tests.support.amqp_messages import SYMBOLS

NOW = 1_800_000_000_000
ID = "given-by-park"
HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
NULL = b"\x40"
SCHEDULED = "x-opt-scheduled-enqueue-time"


@dataclass(frozen=True)
class Part:
    """A section: how its descriptor is written, whether its sizes are wide, its encoded items (or all of a body)."""

    code: int
    descriptor: int
    wide: bool
    items: tuple[bytes, ...]

    def encoded(self) -> bytes:
        name = SYMBOLS[self.code].encode()
        head = {
            0x53: bytes((0x53, self.code)),
            0x80: b"\x80" + self.code.to_bytes(8, "big"),
            0xA3: b"\xa3" + bytes((len(name),)) + name,
            0xB3: b"\xb3" + len(name).to_bytes(4, "big") + name,
        }[self.descriptor]
        if self.code in (DATA, SEQUENCE, VALUE):
            return b"\x00" + head + self.items[0]
        raw = b"".join(self.items)
        kind = 0 if self.code in (HEADER, PROPERTIES) else 1
        count = len(self.items)
        if not self.wide and not count and not kind:
            return b"\x00" + head + b"\x45"
        if not self.wide and len(raw) < 255 and count < 256:
            return b"\x00" + head + bytes((0xC0 + kind, len(raw) + 1, count)) + raw
        return (
            b"\x00" + head + bytes((0xD0 + kind,)) + (len(raw) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + raw
        )


@dataclass(frozen=True)
class Model:
    """A message before it is encoded; the sections in the order in which they are written."""

    parts: tuple[Part, ...]

    def encoded(self) -> bytes:
        return b"".join(part.encoded() for part in self.parts)

    def expected(self) -> bytes:
        """Return the message after park and restore: with an id, and with a new expiry if it has a time to live."""
        header = next((part.items for part in self.parts if part.code == HEADER), ())
        ttl = int.from_bytes(header[2][1:], "big") if len(header) > 2 and header[2] != NULL else None
        parts = list(self.parts)
        at = next((n for n, part in enumerate(parts) if part.code == PROPERTIES), None)
        if at is None:
            at = next((n for n, part in enumerate(parts) if part.code > PROPERTIES), len(parts))
            parts.insert(at, Part(PROPERTIES, 0x53, False, ()))
        items = list(parts[at].items) or [NULL]
        if items[0] == NULL:
            items[0] = encode(ID)
        if len(items) > 8 and items[8] != NULL and ttl is not None:
            items[8] = b"\x83" + (NOW + ttl).to_bytes(8, "big")
        parts[at] = replace(parts[at], items=tuple(items))
        return Model(tuple(parts)).encoded()


def through_localbus(parked: bytes, rng: random.Random | None = None) -> bytes:
    """The parked message as localbus delivers it."""
    draft = read_message(parked)
    message = Message(1, 42, 1000.5, draft)
    if rng is not None:
        message.delivery_count = rng.choice((0, 1, 300))
        message.hops = rng.randrange(2)
        message.state = rng.randrange(3)
        message.source = rng.choice((None, "orders"))
        if rng.random() < 0.3:
            return message.delivered(draft.payload)
    return message.delivered(draft.payload, b"\x01" * 16, 2000.25)


# --- at random --------------------------------------------------------------------------------------------------------


def _text(rng: random.Random, codes: tuple[int, ...] = (0xA1, 0xA1, 0xA1, 0xB1), most: int = 20) -> bytes:
    return _variable(rng, "".join(rng.choices("aä€bx-.09🚌", k=rng.randrange(most))).encode(), codes)


def _variable(rng: random.Random, raw: bytes, codes: tuple[int, ...]) -> bytes:
    code = rng.choice(codes)
    if code < 0xB0 and len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return bytes((code | 0x10,)) + len(raw).to_bytes(4, "big") + raw


def _time(rng: random.Random) -> bytes:
    return b"\x83" + rng.randrange(2**62).to_bytes(8, "big")


def _uint(rng: random.Random) -> bytes:
    return rng.choice(
        (b"\x43", b"\x52" + rng.randbytes(1), b"\x70" + rng.randbytes(4), b"\x70\x00\x00\x00" + rng.randbytes(1))
    )


_FIXED = {0x40: 0, 0x41: 0, 0x42: 0, 0x43: 0, 0x44: 0, 0x45: 0, 0x50: 1, 0x51: 1, 0x52: 1, 0x53: 1, 0x54: 1, 0x55: 1,
          0x60: 2, 0x61: 2, 0x70: 4, 0x71: 4, 0x72: 4, 0x74: 4, 0x80: 8, 0x81: 8, 0x82: 8, 0x83: 8, 0x84: 8,
          0x94: 16, 0x98: 16}  # fmt: skip
_CODES = tuple(_FIXED)
_COMPOSED = (
    encode({"k": [1, None, Long(5)]}),
    encode(Described(Symbol("com.microsoft:timespan"), Long(77))),
    b"\xe0\x05\x03\x54\x01\x02\x03",
    b"\x56\x01",
    b"\x56\x00",
    b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40",
)


def value(rng: random.Random) -> bytes:
    """Any value in any encoding."""
    kind = rng.random()
    if kind < 0.4:
        return _text(rng)
    if kind < 0.5:
        return _variable(rng, rng.randbytes(rng.choice((0, 3, 300))), (0xA0, 0xB0))
    if kind < 0.6:
        return rng.choice(_COMPOSED)
    code = rng.choice(_CODES)
    return bytes((code,)) + rng.randbytes(_FIXED[code])


def _id(rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind < 3:
        return _text(rng)
    return (b"\x53" + rng.randbytes(1), b"\x98" + rng.randbytes(16), _variable(rng, b"\x00id", (0xA0, 0xB0)))[kind - 3]


def _entries(rng: random.Random, codes: tuple[int, ...], most: int) -> list[bytes]:
    """Keys and values, alternating."""
    items: list[bytes] = []
    for number in range(rng.randrange(most)):
        raw = b"%d%s" % (number, rng.choice((b"key", b"x-ms-other", b"x-opt-partition-key", b"x-opt-", b"k" * 40)))
        if codes == (0xA3,) and rng.random() < 0.1:
            items += (b"\x80" + number.to_bytes(8, "big"), value(rng))  # AMQP keeps ulong keys for itself
        else:
            items += (_variable(rng, raw, codes), value(rng))
    return items


def _header(rng: random.Random) -> list[bytes]:
    made = [
        rng.choice((NULL, b"\x41", b"\x42", b"\x56\x01")),
        rng.choice((NULL, NULL, b"\x50\x07")),
        NULL if rng.random() < 0.4 else _uint(rng),
        rng.choice((NULL, NULL, b"\x41")),
        rng.choice((NULL, NULL, NULL, b"\x43", b"\x52\x09")),
    ]
    if rng.random() < 0.5:
        made = [NULL, NULL, rng.choice((NULL, _uint(rng))), NULL, NULL]
    return made[: rng.choice((0, 1, 2, 3, 3, 4, 5, 5, 5))]


def _properties(rng: random.Random) -> list[bytes]:
    made = [NULL if rng.random() < 0.5 else _text(rng) for _ in range(13)]
    made[0] = NULL if rng.random() < 0.2 else _id(rng)
    made[1] = rng.choice((NULL, b"\xa0\x01u"))
    made[5] = rng.choice((NULL, _id(rng)))
    made[8] = rng.choice((NULL, _time(rng)))
    made[9] = rng.choice((NULL, _time(rng)))
    made[10] = rng.choice((NULL, _text(rng, most=60)))
    made[11] = rng.choice((NULL, _uint(rng)))
    if rng.random() < 0.1:
        made[2] = _text(rng, most=120)
    return made[: rng.choice((0, 1, 4, 9, 10, 11, 12, 13, 13, 13, 13))]


def model(rng: random.Random) -> Model:
    """A message at random."""
    odd = rng.random() < 0.5

    def part(code: int, items: list[bytes]) -> Part:
        descriptor = rng.choice((0x53, 0x80, 0xA3, 0xB3)) if odd and rng.random() < 0.4 else 0x53
        return Part(code, descriptor, odd and rng.random() < 0.4, tuple(items))

    parts: list[Part] = []
    strings = (0xA1, 0xA1, 0xB1, 0xA3, 0xB3) if odd else (0xA1,)
    symbols = (0xA3, 0xB3, 0xA1) if odd else (0xA3,)
    most = rng.choice((2, 4, 9))
    if rng.random() < 0.6:
        parts.append(part(HEADER, _header(rng)))
    if rng.random() < 0.2:
        parts.append(part(DELIVERY, _entries(rng, symbols, 3)))
    if rng.random() < 0.6:
        items = _entries(rng, symbols, most)
        if rng.random() < 0.6:
            place = 2 * rng.randrange(len(items) // 2 + 1)
            items[place:place] = [_variable(rng, SCHEDULED.encode(), symbols), _time(rng)]
        parts.append(part(ANNOTATIONS, items))
    if rng.random() < 0.9:
        parts.append(part(PROPERTIES, _properties(rng)))
    if rng.random() < 0.7:
        parts.append(part(APPLICATION, _entries(rng, strings, most)))
    body = rng.choice((DATA, DATA, SEQUENCE, VALUE, 0))
    for _ in range(rng.randrange(1, 4) if body in (DATA, SEQUENCE) else 1 if body else 0):
        content = {
            DATA: lambda: _variable(rng, rng.randbytes(rng.choice((0, 9, 300))), (0xA0, 0xB0)),
            SEQUENCE: lambda: encode([1, "two", None][: rng.randrange(4)]),
            VALUE: lambda: value(rng),
        }[body]()
        parts.append(part(body, [content]))
    if rng.random() < 0.2:
        parts.append(part(FOOTER, _entries(rng, symbols, 3)))
    shuffle = rng.random()
    if shuffle < 0.15:
        rng.shuffle(parts)
    elif shuffle < 0.5:
        parts.sort(key=lambda each: each.code == DELIVERY)  # last, as the SDK for Python has them
    return Model(tuple(parts))


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """The same with a few bytes changed, cut or put in."""
    changed = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        changed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.2 else changed)
