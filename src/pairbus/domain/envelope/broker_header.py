"""A cache of broker headers: the sections that a broker writes before a message's properties.

All messages of a queue have the same ones except for a few numbers, so later ones are compared as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pairbus.domain.amqp.sections import DELIVERY_ANNOTATIONS, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, Section, pairs

from .property_names import BROKER_OWNED, ENQUEUED_TIME, LOCKED_UNTIL, SEQUENCE_NUMBER, spellings

#: The sections of a broker header, as `split` takes the sections that it need not read: a bit for each.
HEADER_SECTIONS = 0b111
_TOKEN = 16
#: Format codes of a long and a timestamp.
_NUMBERS = (0x81, 0x83)
_OWNED_KEYS = spellings(*BROKER_OWNED)
#: The most headers in a cache. A queue whose headers vary more gains nothing from it.
_MAX_TEMPLATES = 64


class Facts(NamedTuple):
    """The broker's fields of a delivered message; times in milliseconds since 1970."""

    sequence_number: int | None = None
    enqueued_at: int | None = None
    locked_until: int | None = None
    delivery_count: int = 0


_new_facts: Callable[[tuple[int, int, int, int]], Facts] = partial(tuple.__new__, Facts)


class _Template(NamedTuple):
    """A broker header: the constant bytes between the numbers, and the position of each number among the pieces."""

    layout: struct.Struct
    constant: tuple[bytes, ...]
    sequence_number: int
    enqueued_at: int
    locked_until: int
    delivery_count: int


class BrokerHeaderCache:
    """The broker headers of earlier messages. Reading through the cache gives what reading field by field gives."""

    def __init__(self) -> None:
        self._templates: dict[bytes, _Template] = {}

    def __len__(self) -> int:
        return len(self._templates)

    def read(self, message: bytes) -> tuple[Facts, int] | None:
        """Return a message's facts and the end of its broker header; None if no cached header matches it."""
        template = self._templates.get(message[4:12])
        if template is None or len(message) < template[0].size:
            return None
        layout, constant, sequence, enqueued, locked, count = template
        found = layout.unpack_from(message)
        if found[::2] != constant:
            return None
        number, parked_at, locked_until = found[sequence], found[enqueued], found[locked]
        if number | parked_at | locked_until < 0:  # no broker writes a negative number
            return None
        return _new_facts((number, parked_at, locked_until, count)), layout.size

    def add(self, message: bytes, where: dict[int, Section], facts: Facts) -> None:
        """Keep a message's broker header if it has the usual form: a header, a lock token, the broker's annotations."""
        header, token, annotations = (where.get(code) for code in (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS))
        properties = where.get(PROPERTIES)
        if header is None or token is None or annotations is None or properties is None:
            return
        ends = (header.end, token.end, annotations.end)
        if header.start or ends != (token.start, annotations.start, properties.start):
            return
        pieces, constant, place, at = [">"], list[bytes](), dict[str, int](), 0
        cuts: list[tuple[int, int, str]] = [(token.end - _TOKEN, _TOKEN, "")]
        for start, value, end in pairs(message, annotations.value):
            name = _OWNED_KEYS.get(message[start:value])
            if name is None:
                return
            if message[value] in _NUMBERS:
                cuts.append((value + 1, end - value - 1, name))
        for start, width, name in cuts:
            pieces.append(f"{start - at}s" + ("q" if name else f"{width}s"))
            constant.append(message[at:start])
            place[name] = 2 * len(constant) - 1
            at = start + width
        if not place.keys() >= {SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL}:
            return
        pieces.append(f"{annotations.end - at}s")
        constant.append(message[at : annotations.end])
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        self._templates[message[4:12]] = _Template(
            struct.Struct("".join(pieces)),
            tuple(constant),
            place[SEQUENCE_NUMBER],
            place[ENQUEUED_TIME],
            place[LOCKED_UNTIL],
            facts.delivery_count,
        )
