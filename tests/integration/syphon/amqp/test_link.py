"""Links: refusals, closing with a condition, and batches on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

from pairbus.syphon.amqp.link import ACCEPTED, NO_OUTCOME, ConnectionLost, LinkError
from pairbus.syphon.amqp.message_format import batch_head
from tests.support.amqp_connections import LinkEvents, connected
from tests.support.scripted_peer import Peer
from tests.support.waiting import wait_until_async


async def test_a_link_that_the_peer_refuses() -> None:
    """Opening it raises the condition of the peer."""
    with Peer(refuse=("amqp:not-found", "no such thing")) as peer:
        async with connected(peer.namespace) as connection:
            with pytest.raises(LinkError, match="no such thing") as raised:
                await connection.sender("q", LinkEvents(), timeout=30.0)
    assert raised.value.condition == "amqp:not-found"


@pytest.mark.parametrize("closed", ["link", "session", "connection"])
async def test_a_peer_that_closes_with_a_condition(closed: str) -> None:
    """The sender gets one callback with the condition. The end of a session is the end of its connection."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        peer.close({"link": link, "session": link.session, "connection": link.connection}[closed], "amqp:oh:no", "so")

    events = LinkEvents()
    with Peer(close) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await wait_until_async(lambda: sender.credit)
            sender.send(b"\x00\x53\x75\xa0\x00", "it")
            await wait_until_async(lambda: events.closed)
            assert sender.abandon_unanswered() == ["it"]
            assert sender.credit == 0
            assert (connection.lost is None) == (closed == "link")
            if closed != "link":
                with pytest.raises(ConnectionLost):
                    await connection.sender("q", LinkEvents(), timeout=30.0)
    (error,) = events.closed
    assert error.condition == "amqp:oh:no"
    assert "so" in (error.description or "")
    assert events.outcomes == []


async def test_each_frame_of_a_batch_has_its_message_format() -> None:
    """Through a window of two small frames, between other messages: no frame of another message has it, and every byte
    arrives unchanged."""
    events = LinkEvents()
    singles = [bytes((65 + number,)) * 3000 for number in range(4)]
    messages = [bytes((97 + number % 26,)) * 2000 for number in range(40)]
    with Peer(max_frame=4096, capacity=8192) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await wait_until_async(lambda: sender.credit)
            for number in range(2):
                sender.send(singles[2 * number], "one")
                sender.send_batch(batch_head("s"), messages, "batch")
                sender.send(singles[2 * number + 1], "one")
            await wait_until_async(lambda: len(events.outcomes) == 6)
        assert {state for _, state, _ in events.outcomes} == {ACCEPTED}
        batch = batch_head("s") + b"".join(b"\x00\x53\x75\xb0" + len(m).to_bytes(4, "big") + m for m in messages)
        assert peer.payloads == [singles[0], batch, singles[1], singles[2], batch, singles[3]]
        formats: dict[bytes, set[int]] = {}
        for tag, number in peer.transfers:
            if tag:
                formats.setdefault(tag, set()).add(number)
        assert sorted(map(sorted, formats.values())) == [[0]] * 4 + [[0x80013700]] * 2
        assert len(peer.transfers) > 40


async def test_a_sender_has_no_credit_while_the_socket_is_full() -> None:
    """Once the socket takes output again, every sender is called for more, and then the connection's owner."""
    calls: list[str] = []

    class Recording(LinkEvents):
        def on_credit(self) -> None:
            calls.append("credit")

    with Peer() as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", Recording(), timeout=30.0)
            await wait_until_async(lambda: sender.credit)
            connection.on_input_handled = lambda: calls.append("turn")
            calls.clear()
            connection.pause_writing()
            assert sender.credit == 0
            connection.resume_writing()
            assert sender.credit == 100
            assert calls == ["credit", "turn"]


async def test_a_link_that_this_side_closed_gets_no_callback() -> None:
    """Nor credit, though the connection goes on."""
    events = LinkEvents()
    with Peer(lambda peer, delivery, payload: None) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await wait_until_async(lambda: sender.credit)
            sender.send(b"\x00\x53\x75\xa0\x00", "it")
            assert sender.oldest_unanswered() == "it"
            sender.close()
            sender.close()
            assert sender.credit == 0
            await connection.sender("q", LinkEvents(), timeout=30.0)  # a round trip
            assert connection.lost is None
    assert (events.outcomes, events.closed) == ([], [])


async def test_outcomes_that_were_given_up_are_ignored() -> None:
    """The owner has counted them as unknown already."""
    deliveries: list[tuple[Peer, Any]] = []

    def answer(peer: Peer, delivery: Any, payload: bytes) -> None:
        deliveries.append((peer, delivery))
        if len(deliveries) == 2:
            for each, waiting in deliveries:
                each.settle(waiting, Delivery.ACCEPTED)

    events = LinkEvents()
    with Peer(answer) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await wait_until_async(lambda: sender.credit)
            sender.send(b"\x00\x53\x75\xa0\x00", "first")
            assert sender.abandon_unanswered() == ["first"]
            assert sender.oldest_unanswered() is None
            sender.send(b"\x00\x53\x75\xa0\x00", "second")
            await wait_until_async(lambda: events.outcomes)
    assert events.outcomes == [("second", ACCEPTED, None)]


@pytest.mark.parametrize(
    ("state", "given", "condition", "text"),
    [
        (Delivery.REJECTED, ("amqp:not-allowed", "not here"), "amqp:not-allowed", "not here"),
        (Delivery.REJECTED, None, None, "the outcome was rejected"),
        (Delivery.RELEASED, None, None, "the outcome was released"),
        (Delivery.MODIFIED, None, None, "the outcome was modified"),
        (None, None, None, "the outcome was none"),
    ],
)
async def test_the_error_of_an_outcome(
    state: Any, given: tuple[str, str] | None, condition: str | None, text: str
) -> None:
    """The peer's condition and description, or the name of the outcome if it gave none."""
    events = LinkEvents()
    with Peer(lambda peer, delivery, payload: peer.settle(delivery, state, given)) as peer:
        async with connected(peer.namespace) as connection:
            sender = await connection.sender("q", events, timeout=30.0)
            await wait_until_async(lambda: sender.credit)
            sender.send(b"\x00\x53\x75\xa0\x00", "it")
            await wait_until_async(lambda: events.outcomes)
    ((context, found, error),) = events.outcomes
    assert (context, found) == ("it", int(state or NO_OUTCOME))
    assert error is not None
    assert (error.condition, error.description) == (condition, text)


def test_the_text_of_a_link_error() -> None:
    """Its condition and description, as far as there are any."""
    assert str(LinkError("amqp:not-found", "no such thing")) == "amqp:not-found: no such thing"
    assert str(LinkError(None, "no such thing")) == "no such thing"
    assert str(LinkError("amqp:not-found", None)) == "amqp:not-found"
    assert str(LinkError(None, None)) == "no reason given"
