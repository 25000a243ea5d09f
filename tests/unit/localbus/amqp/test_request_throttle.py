"""The limit on management requests whose replies are not read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pairbus.localbus.amqp import request_throttle
from pairbus.localbus.amqp.request_throttle import MAX_REPLY_BYTES, RequestThrottle


class Connection:
    """The parts of a connection that a throttle uses."""

    def __init__(self) -> None:
        self.alive, self.closing = True, False
        self.stalled: set[Any] = set()
        self.reply_links: list[Any] = []
        self.output_wanted = 0
        self.closed_with = ""

    def wants_output(self) -> None:
        self.output_wanted += 1

    def close_over_limit(self, description: str) -> None:
        self.closing = True
        self.closed_with = description


class Link:
    """A request link that counts renewals of its credit."""

    def __init__(self) -> None:
        self.renewed = 0

    def renew_credit(self) -> None:
        self.renewed += 1


def throttled(count: int) -> tuple[RequestThrottle, Connection, list[int], Callable[[int], None]]:
    """Return a full throttle with waiting requests, the numbers carried out, and a way to submit more."""
    connection: Any = Connection()
    throttle, done = RequestThrottle(connection), list[int]()

    def submit(number: int) -> None:
        throttle.submit(lambda: done.append(number), 100)

    throttle.pending_bytes = MAX_REPLY_BYTES
    for number in range(count):
        submit(number)
    return throttle, connection, done, submit


def test_requests_are_carried_out_at_once_while_few_replies_are_unread() -> None:
    """One byte below the limit is below it."""
    throttle, connection, done, submit = throttled(0)
    throttle.pending_bytes = MAX_REPLY_BYTES - 1
    submit(1)
    assert done == [1]
    assert not throttle.has_waiting
    assert connection.stalled == set()


def test_requests_wait_until_replies_are_read_and_keep_their_order() -> None:
    """A later request does not overtake waiting ones, even if there is room again."""
    throttle, connection, done, submit = throttled(2)
    assert throttle.has_waiting
    assert connection.stalled == {throttle}
    throttle.on_flow()
    assert done == []
    throttle.pending_bytes = 0
    submit(2)
    assert done == []
    throttle.on_flow()
    assert done == [0, 1, 2]
    assert not throttle.has_waiting


def test_replies_that_proton_has_written_make_room() -> None:
    """The bytes given to Proton are an upper bound of those that it holds."""
    throttle, _, done, submit = throttled(0)
    throttle.pending_bytes, throttle.buffered_bytes = 0, MAX_REPLY_BYTES
    submit(1)
    assert done == [1]
    assert throttle.buffered_bytes == 0


def test_a_reply_can_fill_the_throttle_again() -> None:
    """No further request is carried out until that reply is read."""
    throttle, connection, _, _ = throttled(0)
    done: list[int] = []

    def carry_out() -> None:
        done.append(len(done))
        throttle.pending_bytes = MAX_REPLY_BYTES

    for _ in range(2):
        throttle.submit(carry_out, 100)
    throttle.pending_bytes = 0
    connection.stalled.clear()
    throttle.on_flow()
    assert done == [0]
    assert connection.stalled == {throttle}


def test_other_clients_have_their_turn_between_waiting_requests() -> None:
    """Fifty are carried out at a time; the next flush continues."""
    throttle, connection, done, _ = throttled(120)
    throttle.pending_bytes = 0
    connection.stalled.clear()
    for expected in (50, 100):
        throttle.on_flow()
        assert len(done) == expected
        assert throttle in connection.stalled
    assert connection.output_wanted == 2
    throttle.on_flow()
    assert done == list(range(120))


def test_credit_is_renewed_once_nothing_waits() -> None:
    """A client gets no credit for requests that would wait."""
    throttle, _, _, _ = throttled(1)
    link: Any = Link()
    throttle.defer_credit(link)
    throttle.on_flow()
    assert link.renewed == 0
    throttle.pending_bytes = 0
    throttle.on_flow()
    throttle.on_flow()
    assert link.renewed == 1


def test_waiting_requests_are_limited_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts with 500 bytes more than its own; requests that were carried out do not count."""
    monkeypatch.setattr(request_throttle, "_MAX_WAITING_BYTES", 1800)
    throttle, connection, done, submit = throttled(3)
    assert connection.closed_with == ""
    throttle.pending_bytes = 0
    throttle.on_flow()
    assert done == [0, 1, 2]
    throttle.pending_bytes = MAX_REPLY_BYTES
    for number in range(3, 6):
        submit(number)
    assert connection.closed_with == ""
    submit(6)
    assert "not read" in connection.closed_with


@pytest.mark.parametrize(("alive", "closing"), [(False, False), (True, True)])
def test_waiting_requests_of_a_closed_connection_are_dropped(alive: bool, closing: bool) -> None:
    """They are not carried out: their replies could not be sent."""
    throttle, connection, done, _ = throttled(2)
    connection.alive, connection.closing = alive, closing
    throttle.pending_bytes = 0
    throttle.on_flow()
    assert done == []
    assert not throttle.has_waiting
