"""`RoutingTable`: the destination that an envelope names, and the envelopes that name none."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.syphon.drain.drain import Drain, DrainOptions
from pairbus.syphon.drain.routing import Host, NoRouteError, RoutingTable
from tests.support.backlog import Remembering
from tests.unit.syphon.drain.fakes import namespace

PRIMARY, HUBS = namespace("contoso"), namespace("hubs")


def drain_of(event_hubs: bool = True) -> Drain:
    return Drain(PRIMARY, namespace("backup"), HUBS if event_hubs else None, 0, Remembering(), DrainOptions())


def table(drain: Drain | None = None) -> RoutingTable:
    events: Any = None
    return RoutingTable(drain or drain_of(), events, lambda: None)


def test_an_entity_is_one_destination_in_any_spelling() -> None:
    """In any case of its path and of the host's name, and with or without the primary's host; named as seen first."""
    routing = table()
    host = PRIMARY.host
    found = [
        routing.destination_for(namespace, path)
        for namespace, path in ((None, "Orders"), (None, "orders"), (host, "ORDERS"), (host.upper(), "orders"))
    ]
    assert {id(each) for each in found} == {id(found[0])}
    assert (found[0].name, found[0].path) == ("Orders", "Orders")
    assert routing.destinations == [found[0]]


def test_hosts_have_entities_of_their_own() -> None:
    """A hub is named with its host, as the primary may have a queue of that name."""
    routing = table()
    queue, hub = routing.destination_for(None, "orders"), routing.destination_for(HUBS.host, "orders")
    assert queue is not hub
    assert (queue.name, hub.name) == ("orders", f"sb://{HUBS.host}/orders")


def test_passes_share_the_send_window_of_an_entity() -> None:
    """In any case of its name: a later pass does not start anew with a busy destination."""
    drain = drain_of()
    table(drain).destination_for(None, "Orders")
    table(drain).destination_for(None, "orders")
    assert list(drain.send_windows) == ["orders"]


def test_an_unknown_namespace_is_no_route() -> None:
    """The syphon sends only to hosts that it was configured with; event hubs are one of them only if they are named."""
    for routing, host in ((table(), "evil.example"), (table(drain_of(event_hubs=False)), HUBS.host)):
        with pytest.raises(NoRouteError, match="which is not a namespace that this syphon sends to") as refused:
            routing.destination_for(host, "orders")
        assert (refused.value.destination, refused.value.reason) == (f"sb://{host}/orders", "pairbus:unknown-namespace")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("/", "/"),
        ("", ""),
        ("x" * 513, "x" * 80 + "…"),
        ("orders/$management", "orders/$management"),
    ],
)
def test_a_path_that_no_entity_can_have_is_no_route(path: str, shown: str) -> None:
    """It is shown escaped, on one line, and short."""
    with pytest.raises(NoRouteError, match="which no message can be sent to") as refused:
        table().destination_for(None, path)
    assert (refused.value.destination, refused.value.reason) == (shown, "pairbus:bad-path")
    assert f"held '{shown}' ({len(path)} characters)" in str(refused.value)


@pytest.mark.parametrize("path", ["orders", "a/b/c", "x" * 512, "cash$", "ordres é"])
def test_other_paths_are_for_the_service_to_judge(path: str) -> None:
    assert table().destination_for(None, path).path == path


def test_partitions_share_the_token_of_their_event_hub() -> None:
    """A queue of such a name has its own; and only the host of event hubs takes no batches."""
    hubs, queues = Host(HUBS, 1.0, event_hubs=True), Host(PRIMARY, 1.0)
    assert hubs.token_path("hub/Partitions/1") == "hub"
    assert queues.token_path("hub/Partitions/1") == "hub/Partitions/1"
    assert (hubs.takes_batches, queues.takes_batches) == (False, True)
