"""Many messages parked at once, and where each of them is afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from proton import Message

from pairbus.domain.envelope import park
from pairbus.localbus import LocalBus
from tests.support.backlog import Backlog, Remembering, encoded
from tests.support.raw_client import RawClient

_BATCH = 0x80013700
_BATCH_BYTES = 30_000


class Came(NamedTuple):
    """A message that was taken out of an entity."""

    id: str
    session: str | None


def in_sessions(sessions: int, each: int, **fields: Any) -> list[bytes]:
    """Messages of many sessions, interleaved; the ids say session and place."""
    return [
        encoded("x", id=f"s{session}-{place:05}", session=f"s{session}", **fields)
        for place in range(each)
        for session in range(sessions)
    ]


def ids(messages: Iterable[bytes]) -> list[str]:
    return [_read(each).id for each in messages]


def _read(payload: bytes) -> Came:
    message = Message()
    message.decode(payload)
    return Came(str(message.id), message.group_id)


def park_many(backlog: Backlog, destination: str, messages: Sequence[bytes], index: int = 0, **settings: Any) -> None:
    """Park messages, in their order, many with each transfer."""
    backlog.make(index, **settings)
    path = backlog.path(index)
    with RawClient(backlog.pair.secondary) as raw:
        raw.put_token(path)
        link = raw.sender(path)
        batch = b""
        for message in messages:
            parked = park(message, destination, "id-of-park")
            if batch and len(batch) + len(parked) > _BATCH_BYTES:
                raw.send(link, batch, _BATCH)
                batch = b""
            if len(parked) > _BATCH_BYTES:
                raw.send(link, parked)
            else:
                batch += b"\x00\x53\x75\xb0" + len(parked).to_bytes(4, "big") + parked
        if batch:
            raw.send(link, batch, _BATCH)


def take_all(bus: LocalBus, path: str, count: int) -> list[Came]:
    """Take so many messages out of an entity, in the order in which they lie there."""
    with RawClient(bus) as raw:
        if not count:
            return []
        raw.put_token(path)
        link = raw.receiver(path, count, delete=True)
        return [_read(raw.receive(link).payload) for _ in range(count)]


def arrivals(backlog: Backlog, queue: str) -> list[Came]:
    """Take all that has arrived at a queue of the primary."""
    return take_all(backlog.pair.primary, queue, backlog.pair.arrived(queue))


def dead_letters(backlog: Backlog, index: int = 0) -> list[Came]:
    """Take all dead letters of a backlog queue."""
    path = backlog.path(index)
    with backlog.pair.admin(backlog.pair.secondary) as admin:
        count = int(admin.get_queue_runtime_properties(path).dead_letter_message_count or 0)
    return take_all(backlog.pair.secondary, f"{path}/$DeadLetterQueue", count)


def repeats(came: Iterable[Came]) -> Counter[str]:
    """Id → how many times too often it came."""
    counted = Counter(each.id for each in came)
    return Counter({id: count - 1 for id, count in counted.items() if count > 1})


def assert_in_order(parked: Iterable[bytes], came: Sequence[Came], *, missing: Iterable[str] = ()) -> None:
    """All have come but the missing ones, and those of each session, where first seen, in the order they lay in."""
    wanted: dict[str | None, list[str]] = {}
    gone = set(missing)
    for each in map(_read, parked):
        if each.id not in gone:
            wanted.setdefault(each.session, []).append(each.id)
    found: dict[str | None, list[str]] = {}
    seen: set[str] = set()
    for came_first in came:
        if came_first.id not in seen:
            seen.add(came_first.id)
            found.setdefault(came_first.session, []).append(came_first.id)
    assert found.keys() == wanted.keys()
    for session, in_line in wanted.items():
        assert found[session] == in_line, f"session {session}"


def assert_conserved(
    backlog: Backlog,
    parked: Sequence[str],
    arrived: Sequence[Came],
    *,
    dead: Sequence[Came] = (),
    left: Sequence[Came] = (),
    journal: Remembering | None = None,
    most_repeats: int = 0,
) -> None:
    """Each parked message is somewhere, none is without a row that left, and repeats are few and known as in doubt."""
    where = {each.id for each in (*arrived, *dead, *left)}
    assert where == set(parked), f"lost: {set(parked) - where}; not ours: {where - set(parked)}"
    again = repeats(arrived)
    assert sum(again.values()) <= most_repeats, again
    journal = journal or backlog.journal
    rows = {row["message_id"] for row in (*journal.of("delivered"), *journal.of("dead-lettered"))}
    gone = set(parked) - {each.id for each in left}
    assert gone <= rows, f"without a row: {gone - rows}"
    doubted = {row["message_id"] for row in journal.of("in doubt")}
    assert set(again) <= doubted, f"came twice, and nobody doubted it: {set(again) - doubted}"


def take_and_die(backlog: Backlog, count: int) -> None:
    """What a killed drain leaves behind: so many messages, locked."""
    with RawClient(backlog.pair.secondary) as killed:
        killed.put_token(backlog.path())
        link = killed.receiver(backlog.path(), count)
        for _ in range(count):
            killed.receive(link)
