"""`backlog_sequence_numbers` names every message in the backlog, and takes none."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import Described, Long, Symbol, encode, encode_map
from pairbus.errors import PairbusError
from pairbus.syphon import peeking
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.request_response import RequestClient
from pairbus.syphon.peeking import backlog_sequence_numbers
from tests.support.backlog import Backlog, encoded, numbered
from tests.support.counting import park_many
from tests.support.pairing import Pair

#: Encoded values that the SDK cannot decode, or decodes to something else.
VALUES = {
    "char": b"\x73\x00\x01\xf6\x8c",
    "decimal32": b"\x74\x22\x50\x00\x01",
    "decimal64": b"\x84" + b"\x22" * 8,
    "decimal128": b"\x94" + b"\x22" * 16,
    "a time before all times": b"\x83\x80" + b"\x00" * 7,
    "array": b"\xe0\x05\x03\x54\x01\x02\x03",
    "described": encode(Described(Symbol("com.example:odd"), Long(1))),
}
_ID = sections.section(sections.PROPERTIES, encode(["id-1"]))


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("where", ["property", "body"])
def test_a_message_with_an_unusual_value_is_named(pair: Pair, backlog: Backlog, value: bytes, where: str) -> None:
    """Only its sequence number is decoded."""
    property_ = sections.section(sections.APPLICATION_PROPERTIES, encode_map([encode("mine"), value]))
    message = _ID + (
        property_ + sections.section(sections.DATA, b"\xa0\x00")
        if where == "property"
        else sections.section(sections.VALUE, value)
    )
    backlog.park("orders", encoded("before"), message, encoded("after"))
    assert backlog_sequence_numbers(pair.secondary_namespace(), pair.name, [0]) == {0: [1, 2, 3]}
    assert backlog.depth() == 3


def test_no_message_is_taken(pair: Pair, backlog: Backlog) -> None:
    """More messages than one answer can hold are all named, and all are still in their queue."""
    park_many(backlog, "orders", numbered(1200))
    backlog.make(1)
    found = backlog_sequence_numbers(pair.secondary_namespace(), pair.name, (0, 1))
    assert found == {0: list(range(1, 1201)), 1: []}
    assert backlog.depth() == 1200


def test_queues_that_do_not_exist(pair: Pair, backlog: Backlog) -> None:
    """They have no messages; if none of them exists, a name is wrong."""
    backlog.make(0)
    backlog.park("orders", *numbered(2), index=1)
    found = backlog_sequence_numbers(pair.secondary_namespace(), pair.name, range(4))
    assert {index: len(numbers) for index, numbers in found.items()} == {0: 0, 1: 2, 2: 0, 3: 0}
    with pytest.raises(PairbusError, match="has no backlog queue 70-71 of"):
        backlog_sequence_numbers(pair.secondary_namespace(), pair.name, range(70, 72))


def test_more_than_one_answer_holds(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large messages, or more than one request asks for: all are named, queue by queue, in order."""
    monkeypatch.setattr(peeking, "_PAGE", 7)
    park_many(backlog, "orders", numbered(50))
    backlog.park("orders", *(encoded(b"x" * 200_000) for _ in range(8)), index=1)
    backlog.make(2)
    found = backlog_sequence_numbers(pair.secondary_namespace(), pair.name)
    assert found == {0: list(range(1, 51)), 1: list(range(1, 9)), 2: []}


async def test_within_an_event_loop(pair: Pair, backlog: Backlog) -> None:
    """Such as that of a notebook."""
    backlog.park("orders", *numbered(2))
    assert backlog_sequence_numbers(pair.secondary_namespace(), pair.name, [0]) == {0: [1, 2]}


def test_a_connection_that_is_lost_once(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened again, and the numbers go on from the last one."""
    monkeypatch.setattr(peeking, "_PAGE", 10)
    park_many(backlog, "orders", numbered(30))
    opened: list[Connection] = []
    peeks = 0
    open_connection, request = Connection.open, RequestClient.request

    async def recorded(*arguments: Any, **options: Any) -> Connection:
        opened.append(await open_connection(*arguments, **options))
        return opened[-1]

    async def lost_at_the_second_peek(self: RequestClient, properties: Any, *arguments: Any) -> Any:
        nonlocal peeks
        if properties["operation"] == "com.microsoft:peek-message":
            peeks += 1
            if peeks == 2:
                await opened[-1].close()
        return await request(self, properties, *arguments)

    monkeypatch.setattr(Connection, "open", recorded)
    monkeypatch.setattr(RequestClient, "request", lost_at_the_second_peek)
    assert backlog_sequence_numbers(pair.secondary_namespace(), pair.name, [0]) == {0: list(range(1, 31))}
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("fault", "cause"), [("busy", "com.microsoft:server-busy"), ("black_hole", "was not answered within 5 s")]
)
def test_a_queue_that_cannot_be_peeked_at(pair: Pair, backlog: Backlog, fault: str, cause: str) -> None:
    """The error names it and the cause."""
    backlog.park("orders", *numbered(2))
    getattr(pair.secondary.faults, fault)(backlog.path())
    with pytest.raises(PairbusError, match="could not be peeked at") as raised:
        backlog_sequence_numbers(pair.secondary_namespace(), pair.name, [0], timeout=5.0)
    assert backlog.path() in str(raised.value)
    assert cause in str(raised.value)


def test_an_unreachable_secondary(pair: Pair, backlog: Backlog) -> None:
    """The SDK's own error is raised."""
    backlog.park("orders", *numbered(2))
    namespace = pair.secondary_namespace()
    pair.secondary.kill()
    with pytest.raises(Exception, match=r"refused|Connection"):
        backlog_sequence_numbers(namespace, pair.name, [0], timeout=2.0)
