"""What a broker writes before a message's properties: of all messages of a queue the same bytes, but for a few numbers.

It is read field by field once. Of the messages that follow it is compared as a whole, and only the numbers are read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pairbus.domain.amqp.sections import DELIVERY_ANNOTATIONS, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, Section, pairs

from .property_names import BROKER_OWNED, ENQUEUED_TIME, LOCKED_UNTIL, SEQUENCE_NUMBER, spellings

#: The sections that a head has, as `split` wants to know it.
SECTIONS = 0b111
_TOKEN = 16
#: A long, a timestamp.
_NUMBERS = (0x81, 0x83)
_OWNED_KEYS = spellings(*BROKER_OWNED)
#: How many different heads are remembered; more than a few are not worth it.
_MOST = 64


class Facts(NamedTuple):
    """What a broker has written on a message that it delivers; points in time in milliseconds since 1970."""

    sequence_number: int | None = None
    enqueued_at: int | None = None
    locked_until: int | None = None
    delivery_count: int = 0


_new_facts: Callable[[tuple[int, int, int, int]], Facts] = partial(tuple.__new__, Facts)


class _Shape(NamedTuple):
    """A head: what is the same in all (at even places), and which of what is not is which fact."""

    whole: struct.Struct
    same: tuple[bytes, ...]
    sequence_number: int
    enqueued_at: int
    locked_until: int
    delivery_count: int


class Heads:
    """The heads that were seen. What it says of a message is what reading the message field by field says."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}

    def __len__(self) -> int:
        return len(self._shapes)

    def known(self, message: bytes) -> tuple[Facts, int] | None:
        """The facts of a message whose head is like one that was learned, and where the head ends."""
        shape = self._shapes.get(message[4:12])
        if shape is None or len(message) < shape[0].size:
            return None
        whole, same, sequence, enqueued, locked, count = shape
        found = whole.unpack_from(message)
        if found[::2] != same:
            return None
        number, parked_at, locked_until = found[sequence], found[enqueued], found[locked]
        if number | parked_at | locked_until < 0:  # no broker writes that
            return None
        return _new_facts((number, parked_at, locked_until, count)), whole.size

    def learn(self, message: bytes, where: dict[int, Section], facts: Facts) -> None:
        """Remember the head of a message, if it is a usual one: a header, a lock token, annotations of the broker."""
        header, token, annotations = (where.get(code) for code in (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS))
        properties = where.get(PROPERTIES)
        if header is None or token is None or annotations is None or properties is None:
            return
        ends = (header.end, token.end, annotations.end)
        if header.start or ends != (token.start, annotations.start, properties.start):
            return
        pieces, same, place, at = [">"], list[bytes](), dict[str, int](), 0
        cuts: list[tuple[int, int, str]] = [(token.end - _TOKEN, _TOKEN, "")]
        for start, value, end in pairs(message, annotations.value):
            name = _OWNED_KEYS.get(message[start:value])
            if name is None:
                return
            if message[value] in _NUMBERS:
                cuts.append((value + 1, end - value - 1, name))
        for start, width, name in cuts:
            pieces.append(f"{start - at}s" + ("q" if name else f"{width}s"))
            same.append(message[at:start])
            place[name] = 2 * len(same) - 1
            at = start + width
        if not place.keys() >= {SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL}:
            return
        pieces.append(f"{annotations.end - at}s")
        same.append(message[at : annotations.end])
        if len(self._shapes) >= _MOST:
            self._shapes.clear()
        self._shapes[message[4:12]] = _Shape(
            struct.Struct("".join(pieces)),
            tuple(same),
            place[SEQUENCE_NUMBER],
            place[ENQUEUED_TIME],
            place[LOCKED_UNTIL],
            facts.delivery_count,
        )
