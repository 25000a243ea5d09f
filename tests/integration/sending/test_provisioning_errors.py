"""Errors of the management service while backlog queues are provisioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError

from pairbus import (
    PairingError,
)
from pairbus.domain.backlog import queue_path
from pairbus.runtime.administration import administration_client
from pairbus.runtime.backoff import Backoff
from pairbus.sending import provisioning
from tests.support.pairing import (
    Pair,
)


def failing(monkeypatch: pytest.MonkeyPatch, paths: set[str], make: Callable[[], Exception]) -> None:
    """Creating these queues fails."""

    def client(*args: Any) -> Any:
        made: Any = administration_client(*args)
        create = made.create_queue

        def create_queue(path: str, **properties: Any) -> Any:
            if path in paths:
                raise make()
            return create(path, **properties)

        made.create_queue = create_queue
        return made

    monkeypatch.setattr(provisioning, "administration_client", client)
    monkeypatch.setattr(provisioning, "_BACKOFF", Backoff(first=0.01, longest=0.01))


def test_a_namespace_that_is_full_is_not_a_wrong_key(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service answers 403 when a namespace has as many queues as it may: those that are there are used."""
    pair.pairing(backlog_queue_count=2)

    def full() -> Exception:
        error = HttpResponseError("The maximum number of resources of type `Queue` has been reached or exceeded.")
        error.status_code = 403
        return error

    failing(monkeypatch, {queue_path(pair.name, index) for index in (2, 3)}, full)
    bus = pair.pairing(backlog_queue_count=4)
    assert bus.backlog_queue_count == 2
    assert set(bus.status().missing) == {queue_path(pair.name, 2), queue_path(pair.name, 3)}


def test_who_may_not_even_look_is_refused_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """403 to a look, as a firewall's: no queue is asked for twice."""
    asked = []

    def client(*args: Any) -> Any:
        made: Any = administration_client(*args)

        def get_queue(path: str) -> Any:
            asked.append(path)
            error = HttpResponseError("Ip has been prevented to connect to the endpoint.")
            error.status_code = 403
            raise error

        made.get_queue = get_queue
        return made

    monkeypatch.setattr(provisioning, "administration_client", client)
    with pytest.raises(PairingError, match="Ip has been prevented"):
        pair.pairing(backlog_queue_count=10)
    assert asked == [queue_path(pair.name, 0)]


def test_the_first_queue_does_not_decide_for_all(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is heard about queue 0: the others are used."""
    failing(monkeypatch, {queue_path(pair.name, 0)}, lambda: ServiceRequestError("the connection was reset"))
    bus = pair.pairing(backlog_queue_count=3)
    assert bus.backlog_queue_count == 2
    assert list(bus.status().missing) == [queue_path(pair.name, 0)]
