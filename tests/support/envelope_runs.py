"""Many messages at random, parked and restored: as many as the tests, or a campaign, ask for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import Timestamp, decode, encode
from pairbus.domain.envelope import FORM, EnvelopeError, NotRestorableError, park, restore
from tests.support.envelope_messages import ID, NOW, damaged, model, through_localbus

PROPERTIES = encode(["id"])


def message(**given: Any) -> bytes:
    """A message from encoded sections."""
    codes = {"header": 0x70, "delivery": 0x71, "annotations": 0x72, "properties": 0x73, "application": 0x74}
    made = {"properties": PROPERTIES, **given}
    head = b"".join(sections.section(code, made[name]) for name, code in codes.items() if name in made)
    return head + sections.section(0x75, b"\xa0\x04body")


def application(raw: bytes) -> dict[str, Any]:
    found = {s.code: s for s in sections.split(raw)}
    return dict(decode(raw, found[0x74].value)[0])


def field(raw: bytes, code: int, index: int) -> Any:
    return next((sections.field(raw, s.value, index) for s in sections.split(raw) if s.code == code), None)


def message_annotations(raw: bytes) -> dict[Any, Any]:
    return next((dict(decode(raw, s.value)[0]) for s in sections.split(raw) if s.code == 0x72), {})


def run(seed: int, count: int) -> Counter[str]:
    """Check that many messages; the words that their forms needed are counted."""
    met: Counter[str] = Counter()
    rng = random.Random(seed)
    for number in range(count):
        made = model(rng)
        sent, wanted = made.encoded(), made.expected()
        note = f"seed {seed}, message {number}"
        parked = park(sent, "orders", ID)
        direct, delivered = restore(parked, NOW), restore(through_localbus(parked, rng), NOW)
        assert direct.message == wanted, note
        assert delivered.message == wanted, note
        assert delivered[1:7] == direct[1:7], note
        assert delivered.parked_at == 1_000_500, note
        met.update(word.partition("=")[0] for word in application(parked).get(FORM, "none").split(";"))
    return met


def run_damaged(seed: int, count: int) -> None:
    """Damage parked and unparked messages: each is taken for something, or refused with the one documented error."""
    rng = random.Random(seed)
    for number in range(count):
        sent = model(rng).encoded()
        parked = park(sent, "orders", ID, rng.choice((None, "hubs")))
        for function, raw in ((refused_by_restore, damaged(rng, parked)), (refused_by_park, damaged(rng, sent))):
            refusal = function(raw)
            assert len(str(refusal)) < 300, f"seed {seed}, message {number}"


def refused_by_restore(raw: bytes) -> EnvelopeError | None:
    """Return the error of `restore`; None if there is none."""
    try:
        restore(raw, NOW)
    except EnvelopeError as error:
        return error
    return None


def refused_by_park(raw: bytes) -> NotRestorableError | None:
    """Return the error of `park`; None if there is none."""
    try:
        park(raw, "orders", ID)
    except NotRestorableError as error:
        return error
    return None


def same_but_for_id_and_expiry(sent: bytes, back: bytes) -> bool:
    """Equal byte for byte once the two fields that may differ are made equal."""
    lists = [next((s for s in sections.split(raw) if s.code == 0x73), None) for raw in (sent, back)]
    ours, theirs = lists
    assert theirs is not None
    if ours is None:  # it had no properties, and now has an id and no more
        return back == sent[: theirs.start] + back[theirs.start : theirs.end] + sent[theirs.start :]
    items = [back[a:b] for a, b in sections.fields(back, theirs.value)]
    ttl = field(sent, 0x70, 2)
    changes = {}
    if field(sent, 0x73, 0) is None:
        changes[0] = encode(ID)
    if ttl is not None and field(sent, 0x73, 8) is not None:
        changes[8] = encode(Timestamp(NOW + ttl))
    wanted = [sent[a:b] for a, b in sections.fields(sent, ours.value)] or [b"\x40"]
    for index, raw in changes.items():
        wanted[index] = raw
    rest = [(back[s.start : s.end], s.code) for s in sections.split(back) if s.code != 0x73]
    return items == wanted and rest == [(sent[s.start : s.end], s.code) for s in sections.split(sent) if s.code != 0x73]
