"""Requests and responses: each request gets its own response, or an error as soon as that is certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from proton import Delivery, Endpoint, Message

from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import LinkError
from pairbus.syphon.amqp.request_response import RequestClient
from tests.support.scripted_peer import Peer

NODE = "orders/$management"
#: A deadline that no test reaches: a request that ends earlier did not wait for it.
LONG = 60.0


async def responses(answer: Callable[[Peer, Any, bytes], None], times: int = 1) -> list[Any]:
    """Send requests to a scripted node; return the bodies of its responses."""
    with Peer(answer, credit=1000) as peer:
        connection = await Connection.open(peer.namespace, timeout=30.0)
        try:
            requests = RequestClient(connection, NODE)
            return [
                await requests.request({"operation": "look"}, {"at": number}, "it", LONG) for number in range(times)
            ]
        finally:
            await connection.close()


def respond(peer: Peer, delivery: Any, payload: bytes) -> None:
    """Settle a request, and send some bytes as its response."""
    peer.settle(delivery, Delivery.ACCEPTED)
    each, link = delivery.connection.link_head(0), None
    while each is not None:
        if not each.is_receiver and each.remote_source.address == NODE:
            link = each  # the last one: those before it are closed
        each = each.next(0)
    assert link is not None
    link.delivery(f"answer-{len(peer.payloads)}")
    link.stream(payload)
    link.advance()


def response_with(status: int, **more: str) -> Callable[[Peer, Any, bytes], None]:
    """Return a callback that responds to each request with the request's own body and a status."""

    def answer(peer: Peer, delivery: Any, payload: bytes) -> None:
        request: Any = Message()
        request.decode(payload)
        assert request.properties == {"operation": "look"}
        said = {"statusCode": status, "statusDescription": "so", **more}
        reply = Message(correlation_id=request.id, properties=said, body=request.body)
        respond(peer, delivery, reply.encode())

    return answer


async def test_each_request_gets_its_response() -> None:
    """For more requests than there was credit for responses at first."""
    assert await responses(response_with(200), times=150) == [{"at": number} for number in range(150)]


async def test_concurrent_requests_get_their_responses() -> None:
    """More than the credit at first, and no later request adds to it: the responses themselves do."""
    with Peer(response_with(200), credit=1000) as peer:
        connection = await Connection.open(peer.namespace, timeout=30.0)
        try:
            requests = RequestClient(connection, NODE)
            bodies = [{"at": number} for number in range(350)]
            answers = (requests.request({"operation": "look"}, body, "it", LONG) for body in bodies)
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
async def test_a_refusal_has_the_condition_of_its_response_or_status(
    status: int, more: dict[str, str], condition: str
) -> None:
    """The error names the subject of the request, the status and its description."""
    with pytest.raises(LinkError, match=f"it: {status} so") as raised:
        await responses(response_with(status, **more))
    assert raised.value.condition == condition


async def test_a_response_that_cannot_be_decoded_fails_all_requests() -> None:
    """It may be the response to any of them."""
    with pytest.raises(LinkError, match=r"the answer of orders/.management cannot be read") as raised:
        await responses(lambda peer, delivery, payload: respond(peer, delivery, b"no AMQP"))
    assert raised.value.condition == "amqp:decode-error"


@pytest.mark.parametrize("closed", ["link", "connection"])
async def test_a_closed_node_fails_its_requests_at_once(closed: str) -> None:
    """With the condition of the link or the connection."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        peer.close(delivery.link if closed == "link" else delivery.connection, "amqp:oh:no", "so")

    with pytest.raises(LinkError, match="so") as raised:
        await responses(close)
    assert raised.value.condition == "amqp:oh:no"


async def test_a_request_that_is_rejected_as_a_message() -> None:
    """Its outcome is the error, without a response."""
    refused = ("amqp:not-allowed", "not here")
    with pytest.raises(LinkError, match="not here"):
        await responses(lambda peer, delivery, payload: peer.settle(delivery, Delivery.REJECTED, refused))


async def test_a_request_without_a_response_ends_with_its_deadline() -> None:
    """The error names the node and the deadline; a response that comes later is ignored, and the next one is not."""
    late: list[tuple[Any, bytes]] = []

    def answer(peer: Peer, delivery: Any, payload: bytes) -> None:
        late.append((delivery, payload))
        if len(late) > 1:
            for each in late:
                response_with(200)(peer, *each)

    with Peer(answer, credit=1000) as peer:
        connection = await Connection.open(peer.namespace, timeout=30.0)
        try:
            requests = RequestClient(connection, NODE)
            with pytest.raises(LinkError, match=r"orders/.management did not answer within 0\.3 s") as raised:
                await requests.request({"operation": "look"}, {"at": 1}, "it", 0.3)
            assert raised.value.condition == "com.microsoft:timeout"
            assert await requests.request({"operation": "look"}, {"at": 2}, "it", LONG) == {"at": 2}
        finally:
            await connection.close()


async def test_the_links_are_opened_again_after_the_node_closed_them() -> None:
    """The request that was under way fails, the next one gets its response, and no link of the first pair stays."""
    received: list[bytes] = []
    open_links: list[bool] = []

    def answer(peer: Peer, delivery: Any, payload: bytes) -> None:
        received.append(payload)
        if len(received) == 1:
            peer.close(delivery.link, "amqp:link:detach-forced", "idle")
        else:
            link = delivery.connection.link_head(Endpoint.REMOTE_ACTIVE)
            while link is not None:
                if NODE in (link.remote_source.address, link.remote_target.address):
                    open_links.append(link.is_receiver)
                link = link.next(Endpoint.REMOTE_ACTIVE)
            response_with(200)(peer, delivery, payload)

    with Peer(answer, credit=1000) as peer:
        connection = await Connection.open(peer.namespace, timeout=30.0)
        try:
            requests = RequestClient(connection, NODE)
            with pytest.raises(LinkError, match="idle"):
                await requests.request({"operation": "look"}, {"at": 1}, "it", LONG)
            assert await requests.request({"operation": "look"}, {"at": 2}, "it", LONG) == {"at": 2}
        finally:
            await connection.close()
    assert sorted(open_links) == [False, True]
