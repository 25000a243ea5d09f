"""Shares of the event loop: active clients, deferred callbacks, and the rounds between two shares."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pairbus.localbus.amqp.fairness import ROUNDS_BETWEEN_SHARES, ActiveClients, CommitCallbacks, yield_to_others


def test_a_client_counts_as_active_for_a_second() -> None:
    """Another client's bytes count for a second, whichever client sent last; a client's own never do."""
    now = [0.0]
    active = ActiveClients(lambda: now[0])
    a, b = object(), object()
    assert not active.record(a)
    now[0] = 0.5
    assert not active.record(a)
    assert not active.has_others(a)
    assert active.has_others(b)
    assert active.record(b)
    now[0] = 1.2
    assert active.record(a), "b sent 0.7 s ago"
    assert active.record(a)
    now[0] = 1.6
    assert not active.record(a), "b sent 1.1 s ago"
    assert active.has_others(b)


def test_a_removed_client_is_not_kept_in_memory() -> None:
    """A connection that has ended can be collected."""

    class Client: ...

    active, client = ActiveClients(lambda: 0.0), Client()
    active.record(client)
    reference = weakref.ref(client)
    active.remove(client)
    del client
    gc.collect()
    assert reference() is None


def test_deferred_callbacks_wait_for_the_group_commit_and_keep_their_order() -> None:
    """Deferred callbacks run with the next group commit, or before a later one of the same client."""
    called: list[str] = []
    callbacks, flooding, calm = CommitCallbacks(), object(), object()

    def run(with_deferred: bool) -> list[str]:
        called.clear()
        for callback in callbacks.take(with_deferred=with_deferred):
            callback()
        return list(called)

    callbacks.add(lambda: called.append("flooding 1"), flooding, deferred=True)
    callbacks.add(lambda: called.append("calm 1"), calm)
    assert run(False) == ["calm 1"]
    assert callbacks, "one callback is deferred"
    callbacks.add(lambda: called.append("flooding 2"), flooding)
    callbacks.add(lambda: called.append("calm 2"), calm, deferred=True)
    assert run(False) == ["flooding 1", "flooding 2"]
    callbacks.add(lambda: called.append("server"))
    assert run(True) == ["server", "calm 2"]
    assert not callbacks
    assert run(True) == []


class Rounds:
    """The server as `yield_to_others` sees it: rounds of a loop, and a turn that is due until it has run."""

    def __init__(self) -> None:
        self.loop: Any = self
        self.is_turn_due = True
        self.done = 0
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._soon.append(partial(callback, *arguments))

    def run(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()
        self.done += 1


@pytest.mark.parametrize("turn_after", [0, 3, 1000])
def test_other_clients_get_their_replies_before_the_next_share(turn_after: int) -> None:
    """The next share begins after the turn, and after a few rounds if a turn is always due."""
    shares: list[int] = []
    rounds: Any = Rounds()
    yield_to_others(rounds, lambda: shares.append(rounds.done))
    while not shares and rounds.done < 50:
        rounds.is_turn_due = rounds.done < turn_after
        rounds.run()
    (waited,) = shares
    assert waited == min(max(turn_after, ROUNDS_BETWEEN_SHARES - 1), 2 * ROUNDS_BETWEEN_SHARES - 1)
