"""The paired sender in place of the SDK's: the same names, arguments, properties and answers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from pairbus import (
    PairedNamespace,
    PairedSender,
)
from tests.support.pairing import Pair, entity_of, idle_connection, state_of


@pytest.mark.parametrize("name", ["get_queue_sender", "get_topic_sender"])
def test_a_sender_is_asked_for_as_in_the_sdk(name: str) -> None:
    """Every named argument of the SDK is there, by the same name and kind."""
    theirs = inspect.signature(getattr(ServiceBusClient, name)).parameters
    ours = inspect.signature(getattr(PairedNamespace, name)).parameters
    named = {key: (each.kind, each.default) for key, each in theirs.items() if each.kind is not each.VAR_KEYWORD}
    assert {key: (each.kind, each.default) for key, each in ours.items()} == named


def test_a_sender_has_the_sdks_names_and_arguments(pair: Pair) -> None:
    """Every public name of the SDK's sender is there; what it does is called with the same arguments."""
    sender = pair.pairing().get_queue_sender("any")
    theirs = ServiceBusSender
    assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(sender))
    for name in ("send_messages", "create_message_batch", "close", "__enter__"):
        expected = inspect.signature(getattr(theirs, name)).parameters
        given = inspect.signature(getattr(PairedSender, name)).parameters
        assert [(each.name, each.kind, each.default) for each in given.values()] == [
            (each.name, each.kind, each.default) for each in expected.values()
        ]


def test_a_sender_has_the_sdks_properties(pair: Pair) -> None:
    """Its identifier is the one that was given, or one of its own; a socket's time-out is passed on."""
    queue = pair.queue()
    bus = pair.pairing()
    given = bus.get_queue_sender(queue, client_identifier="shop-7", socket_timeout=3)
    assert given.client_identifier == "shop-7"
    assert bus.get_queue_sender(queue).client_identifier
    given.send_messages(ServiceBusMessage("sent"))
    connection = idle_connection(entity_of(bus, queue).pool)
    assert connection.sender._config.socket_timeout == 3
    assert (given.entity_name, given.fully_qualified_namespace) == (queue, pair.primary_namespace().host)


def test_another_spelling_of_a_name_makes_no_other_entity(pair: Pair) -> None:
    """Slashes around it and capital letters reach the same queue, so they have the same health."""
    queue = pair.queue()
    bus = pair.pairing()
    for name in (queue, f"/{queue}", f"{queue}/", queue.upper()):
        bus.get_queue_sender(name).send_messages(ServiceBusMessage("sent"))
    assert list(bus.status().entities) == [queue]
    assert pair.bodies(queue) == ["sent"] * 4


@pytest.mark.parametrize("down", [False, True], ids=["healthy", "failed over"])
@pytest.mark.parametrize("nothing", [[], (), {}], ids=["list", "tuple", "dictionary"])
def test_nothing_is_sent_as_the_sdk_sends_it(pair: Pair, nothing: Any, down: bool) -> None:
    """Not at all, and it is not counted; an empty dictionary is no message without a body but nothing, too."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    if down:
        pair.declare_down(bus, queue)
    sender.send_messages(nothing)
    found = bus.status().entities[queue]
    assert (found.sent, found.parked) == (0, 0)


def test_nothing_can_always_be_parked(pair: Pair) -> None:
    """An empty list fits."""
    assert pair.pairing().get_queue_sender(pair.queue()).can_park([])


def test_a_key_that_is_revoked_is_told_when_a_sender_is_opened(pair: Pair) -> None:
    """Before the first send, and whatever the failover interval is: a fault of the set-up is no outage."""
    primary = pair.primary_namespace()
    bus = pair.pairing(primary=primary)
    queue = pair.queue()
    primary.credential.update("RootManageSharedAccessKey", "d3Jvbmc=")
    sender = bus.get_queue_sender(queue)
    with pytest.raises(ServiceBusAuthenticationError), sender:
        raise AssertionError("not reached")
    assert state_of(bus, queue) == "available"


def test_a_sender_that_could_not_be_opened_is_closed(pair: Pair) -> None:
    """A `with` that does not begin leaves nothing open."""
    bus = pair.pairing()
    sender = bus.get_queue_sender("no-such-queue")
    with pytest.raises(Exception, match=r"[Ee]rror condition"), sender:
        raise AssertionError("not reached")
    with pytest.raises(ValueError, match="already been closed"):
        sender.send_messages(ServiceBusMessage("x"))
