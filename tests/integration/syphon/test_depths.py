"""Depth queries against a real management endpoint: what they find, and how many pages they read."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.domain.backlog import queue_path
from pairbus.syphon.depths import DepthQuery
from tests.support.backlog import Backlog, numbered
from tests.support.pairing import Pair
from tests.support.process_fixtures import administer


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of the HTTP requests that were made."""
    made: list[str] = []
    request = requests.Session.request

    def counted(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        made.append(url)
        return request(self, method, url, *args, **options)

    monkeypatch.setattr(requests.Session, "request", counted)
    return made


def test_one_call_tells_all(pair: Pair, backlog: Backlog, requested: list[str]) -> None:
    """However many queues there are on a page, one request is made, and it is counted; a queue may be missing."""
    with administer(pair.secondary) as admin:  # other tests of this process may have filled more than a page
        for queue in list(admin.list_queues()):
            admin.delete_queue(queue.name)
    backlog.make(0)
    backlog.park("orders", *numbered(7), index=1)
    requested.clear()
    found = DepthQuery(pair.name, range(3)).run(pair.secondary_namespace())
    assert found.by_index == {0: 0, 1: 7, 2: None}
    assert (found.missing, found.total, found.operations) == ((2,), 7, 1)
    assert len(requested) == 1


def test_a_full_page_is_the_last_once_all_queues_were_seen(pair: Pair, requested: list[str]) -> None:
    """With a hundred queues no second, empty page is read, whatever else the namespace holds."""
    made = [queue_path(pair.name, index) for index in range(100)]
    with administer(pair.secondary) as admin:
        others = [queue.name for queue in admin.list_queues()]
        for name in others:
            admin.delete_queue(name)
        for name in made:
            admin.create_queue(name)
        requested.clear()
        found = DepthQuery(pair.name, range(100)).run(pair.secondary_namespace())
        assert (len(requested), found.operations, found.missing) == (1, 1, ())
        admin.create_queue(f"{pair.name}-another")
        requested.clear()
        found = DepthQuery(pair.name, range(90)).run(pair.secondary_namespace())
        assert (len(requested), found.operations, found.missing) == (1, 1, ())
        for name in made:
            admin.delete_queue(name)


def test_a_hundred_queues_amid_others_are_one_page_from_the_second_time_on(pair: Pair, requested: list[str]) -> None:
    """They are found wherever they are in the listing, and again when it has changed."""
    made = [queue_path(pair.name, index) for index in range(100)]
    before, after = ([f"{letter}{number:03}" for number in range(110)] for letter in "az")

    query = DepthQuery(pair.name, range(100))

    def ask() -> tuple[int, int, int]:
        requested.clear()
        found = query.run(pair.secondary_namespace())
        return len(requested), found.operations, len(found.missing)

    with administer(pair.secondary) as admin:
        for name in (*made, *before, *after):
            admin.create_queue(name)
        assert ask()[1:] > (1, 0)
        assert ask() == (1, 1, 0)
        for name in before[:60]:
            admin.delete_queue(name)
        assert ask()[2] == 0
        assert ask() == (1, 1, 0)
        for name in before[:60]:
            admin.create_queue(name)
        assert ask()[2] == 0
        assert ask() == (1, 1, 0)
        for name in (*made, *before, *after):
            admin.delete_queue(name)


def test_a_queue_that_moves_to_another_page_meanwhile_is_seen(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages go by position: a queue deleted before it, between two pages, moves it to the first."""
    with administer(pair.secondary) as admin:
        path = queue_path(pair.name, 0)
        before = sum(queue.name.lower() < path.lower() for queue in admin.list_queues())
        names = [f"aaa-{number:03}" for number in range(100 - before)]
        for name in names:
            admin.create_queue(name)
        backlog.park("orders", *numbered(1))
        listing = ServiceBusAdministrationClient.list_queues_runtime_properties

        def deleting(client: Any, **options: Any) -> Any:
            found = listing(client, **options)
            page = [list(each) for each in itertools.islice(found.by_page(), 1)]
            if options["start_index"] == 0:
                admin.delete_queue(names.pop())
            return SimpleNamespace(by_page=lambda: iter(page))

        monkeypatch.setattr(ServiceBusAdministrationClient, "list_queues_runtime_properties", deleting)
        found = DepthQuery(pair.name, [0]).run(pair.secondary_namespace())
        monkeypatch.undo()
        for name in names:
            admin.delete_queue(name)
    assert (found.by_index, found.operations) == ({0: 1}, 2)


def test_a_secondary_that_is_down_raises(pair: Pair) -> None:
    """The caller decides whether that is a warning."""
    namespace = pair.secondary_namespace()
    pair.secondary.kill()
    with pytest.raises(Exception, match=r"refused|Connection"):
        DepthQuery(pair.name, range(2)).run(namespace, timeout=2)
