"""Requests and their answers: each is heard, a refusal has its condition, and nobody waits for what cannot come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from proton import Delivery, Message

from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import LinkError
from pairbus.syphon.amqp.request_response import Requests
from tests.support.scripted_peer import Peer

NODE = "orders/$management"
#: Long enough that who ends sooner was not waiting for it.
LONG = 60.0


async def asked(answer: Callable[[Peer, Any, bytes], None], times: int = 1) -> list[Any]:
    """Ask a node that answers as a test wants; the bodies of its answers."""
    with Peer(answer, credit=1000) as peer:
        connection = await Connection.open(peer.namespace, timeout=30.0)
        try:
            requests = Requests(connection, NODE)
            return [await requests.ask({"operation": "look"}, {"at": number}, "it", LONG) for number in range(times)]
        finally:
            await connection.close()


def replied(peer: Peer, delivery: Any, payload: bytes) -> None:
    """Settle a request and send an answer, whatever bytes it is."""
    peer.settle(delivery, Delivery.ACCEPTED)
    link = delivery.connection.link_head(0)
    while link.is_receiver or link.remote_source.address != NODE:
        link = link.next(0)
    link.delivery(f"answer-{len(peer.payloads)}")
    link.stream(payload)
    link.advance()


def answer_with(status: int, **more: str) -> Callable[[Peer, Any, bytes], None]:
    """Answer each request with its own body and this status."""

    def answer(peer: Peer, delivery: Any, payload: bytes) -> None:
        request = Message()
        request.decode(payload)
        assert request.properties == {"operation": "look"}
        said = {"statusCode": status, "statusDescription": "so", **more}
        reply = Message(correlation_id=request.id, properties=said, body=request.body)
        replied(peer, delivery, reply.encode())

    return answer


async def test_each_request_has_its_answer() -> None:
    """More of them than the answers that were allowed for at first."""
    assert await asked(answer_with(200), times=150) == [{"at": number} for number in range(150)]


async def test_as_many_as_ask_at_once_are_answered() -> None:
    """Nobody asks again meanwhile, so the answers themselves make room for more of them."""
    with Peer(answer_with(200), credit=1000) as peer:
        connection = await Connection.open(peer.namespace, timeout=30.0)
        try:
            requests = Requests(connection, NODE)
            bodies = [{"at": number} for number in range(350)]
            answers = (requests.ask({"operation": "look"}, body, "it", LONG) for body in bodies)
            assert await asyncio.gather(*answers) == bodies
        finally:
            await connection.close()


@pytest.mark.parametrize(
    ("status", "more", "condition"),
    [
        (404, {}, "amqp:not-found"),
        (503, {}, "com.microsoft:server-busy"),
        (500, {}, "amqp:internal-error"),
        (404, {"errorCondition": "com.microsoft:message-not-found"}, "com.microsoft:message-not-found"),
    ],
)
async def test_a_refusal_has_a_condition(status: int, more: dict[str, str], condition: str) -> None:
    """The one that is given, or what the status means."""
    with pytest.raises(LinkError, match=f"it: {status} so") as raised:
        await asked(answer_with(status, **more))
    assert raised.value.condition == condition


async def test_an_answer_that_cannot_be_read() -> None:
    """Nobody knows whose it was, and nobody waits for it."""
    with pytest.raises(LinkError, match=r"the answer of orders/.management cannot be read") as raised:
        await asked(lambda peer, delivery, payload: replied(peer, delivery, b"no AMQP"))
    assert raised.value.condition == "amqp:decode-error"


@pytest.mark.parametrize("what", ["link", "connection"])
async def test_a_node_that_goes_away_is_not_waited_for(what: str) -> None:
    """Who waits is told why at once."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        peer.close(delivery.link if what == "link" else delivery.connection, "amqp:oh:no", "so")

    with pytest.raises(LinkError, match="so") as raised:
        await asked(close)
    assert raised.value.condition == "amqp:oh:no"


async def test_a_request_that_is_refused_as_a_message() -> None:
    """Its outcome is its answer."""
    refused = ("amqp:not-allowed", "not here")
    with pytest.raises(LinkError, match="not here"):
        await asked(lambda peer, delivery, payload: peer.settle(delivery, Delivery.REJECTED, refused))
