"""Encoded messages as hypothesis writes them: every section, in every encoding that AMQP allows, and those that the
SDKs for Python, JavaScript and Go have sent."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from pairbus.domain.amqp.codec import Described, Long, Symbol, UInt, encode

_CORPUS = Path(__file__).parent.parent / "data" / "corpus"
#: What the SDKs sent: a name, the bytes, the message-format.
CORPUS = [
    (f"{path.stem}-{number}", bytes.fromhex(found["hex"]), int(found["format"]))
    for path in sorted(_CORPUS.glob("*.jsonl"))
    for number, found in enumerate(map(json.loads, path.read_text().splitlines()))
]
SYMBOLS = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.integers(0, 2**32 - 1).map(UInt)
    | st.integers(-(2**63), 2**63 - 1).map(Long)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
    | st.binary(max_size=20)
    | st.uuids()
    | st.floats(allow_nan=False)
    | st.builds(Described, st.just(Symbol("com.microsoft:timespan")), st.integers(0, 100).map(Long))
)
lists = st.lists(scalars, max_size=14).map(encode)
maps = st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=12).map(Symbol), scalars, max_size=8).map(
    encode
)


def wide_form(raw: bytes) -> bytes:
    """The list or map in its 32-bit form."""
    if raw == b"\x45":
        return b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"
    if raw[0] in (0xC0, 0xC1):
        return bytes((raw[0] + 0x10,)) + (raw[1] + 3).to_bytes(4, "big") + raw[2].to_bytes(4, "big") + raw[3:]
    return raw


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, bytes]]]:
    """An encoded message, and its sections as (code, encoded value); descriptors and sizes in any form."""
    found: list[tuple[int, bytes]] = []
    for code, strategy in ((0x70, lists), (0x71, maps), (0x72, maps), (0x73, lists), (0x74, maps)):
        if draw(st.booleans()):
            found.append((code, draw(strategy)))
    body = draw(st.sampled_from((0x75, 0x76, 0x77)))
    for _ in range(1 if body == 0x77 else draw(st.integers(1, 3))):
        value = {0x75: st.binary(max_size=300).map(encode), 0x76: lists, 0x77: scalars.map(encode)}[body]
        found.append((body, draw(value)))
    if draw(st.booleans()):
        found.append((0x78, draw(maps)))
    found = [(code, wide_form(raw) if draw(st.booleans()) else raw) for code, raw in found]
    parts = []
    for code, raw in found:
        form = draw(st.integers(0, 3))
        if form == 1:
            head = b"\x80" + code.to_bytes(8, "big")
        elif form == 2:
            head = b"\xa3" + bytes((len(SYMBOLS[code]),)) + SYMBOLS[code].encode()
        elif form == 3:
            head = b"\xb3" + len(SYMBOLS[code]).to_bytes(4, "big") + SYMBOLS[code].encode()
        else:
            head = bytes((0x53, code))
        parts.append(b"\x00" + head + raw)
    return b"".join(parts), found
