"""The rules of faults: how long and how often they apply, and to what."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.localbus.bus_errors import MESSAGE_LOCK_LOST, SERVER_BUSY, SESSION_LOCK_LOST, TIMEOUT
from pairbus.localbus.faults.faults import Faults

SETTLE = "com.microsoft:update-disposition"
RENEW = "com.microsoft:renew-lock"
RENEW_SESSION = "com.microsoft:renew-session-lock"
SCHEDULE = "com.microsoft:schedule-message"
PEEK = "com.microsoft:peek-message"


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def faults_of(*rules: dict[str, Any], clock: Clock | None = None, chance: float = 0.0) -> Faults:
    faults = Faults(clock or Clock(), lambda: chance)
    for rule in rules:
        faults.add(faults.read(rule))
    return faults


def test_a_fault_ends_after_its_count() -> None:
    """Two sends are refused, the third is not, and no fault is listed any more."""
    faults = faults_of({"kind": "busy", "entity": "orders", "count": 2})
    errors = [faults.on_send("orders").error for _ in range(3)]
    assert [error is not None and error.condition for error in errors] == [SERVER_BUSY, SERVER_BUSY, False]
    assert (faults.listed(), faults.active) == ([], False)


def test_a_fault_ends_at_its_time() -> None:
    """It applies until its seconds have passed, exactly."""
    clock = Clock()
    faults = faults_of({"kind": "busy", "seconds": 5}, clock=clock)
    clock.now = 104.999
    assert faults.on_send("orders").error is not None
    clock.now = 105.0
    assert faults.on_send("orders").error is None
    assert not faults.active


def test_a_fault_applies_to_an_entity_that_was_used_before() -> None:
    """The rules that apply to a path are cached: a new rule is seen at once, and its end as well."""
    faults = faults_of({"kind": "busy", "entity": "others"})
    assert faults.on_send("orders").error is None
    added = faults.add(faults.read({"kind": "busy", "entity": "orders"}))
    assert faults.on_send("orders").error is not None
    faults.remove(added.id)
    assert faults.on_send("orders").error is None


def test_a_rate_does_not_use_up_the_count() -> None:
    """Only occurrences count: at a chance that is not met the fault stays."""
    faults = faults_of({"kind": "busy", "count": 1, "rate": 0.5}, chance=0.5)
    assert faults.on_send("orders").error is None
    assert [fault["count"] for fault in faults.listed()] == [1]


@pytest.mark.parametrize(
    ("kind", "more", "operations"),
    [
        ("lock-lost", {}, {SETTLE, RENEW, RENEW_SESSION}),
        ("late-settle", {"delay": 1.0}, {SETTLE}),
        ("lost-settle", {}, {SETTLE}),
        ("lost-accept", {}, {SCHEDULE}),
        ("quota", {}, {SCHEDULE}),
        ("reject", {"condition": SERVER_BUSY}, {SCHEDULE}),
        ("internal-error", {}, {SETTLE, RENEW, RENEW_SESSION, SCHEDULE, PEEK}),
        ("black-hole", {}, {SETTLE, RENEW, RENEW_SESSION, SCHEDULE, PEEK}),
    ],
)
def test_requests_are_affected_as_the_same_operations_on_links(
    kind: str, more: dict[str, Any], operations: set[str]
) -> None:
    """Faults of settlements apply to `update-disposition`, faults of sends to `schedule-message`."""
    faults = faults_of({"kind": kind, **more})
    affected = set()
    for operation in (SETTLE, RENEW, RENEW_SESSION, SCHEDULE, PEEK):
        decision = faults.on_request("orders", operation)
        if decision.error or decision.swallow or decision.no_reply or decision.reply_delay:
            affected.add(operation)
    assert affected == operations


def test_a_lost_lock_is_the_session_s_in_a_session() -> None:
    """On links and in requests the condition is that of a message or of a session."""
    faults = faults_of({"kind": "lock-lost"})
    conditions = [
        decision.error.condition
        for decision in (
            faults.on_settle("orders"),
            faults.on_settle("orders", session=True),
            faults.on_request("orders", RENEW),
            faults.on_request("orders", RENEW_SESSION),
        )
        if decision.error is not None
    ]
    assert conditions == [MESSAGE_LOCK_LOST, SESSION_LOCK_LOST, MESSAGE_LOCK_LOST, SESSION_LOCK_LOST]


def test_a_drop_counts_the_messages_of_its_entity() -> None:
    """The connection that carries the last of them is cut, again and again; other entities do not count."""
    faults = faults_of({"kind": "drop", "entity": "orders", "after": 3})
    assert [faults.drops("orders", messages) for messages in (2, 1, 1, 5, 2)] == [False, True, False, True, False]
    assert not faults.drops("other", 100)


def test_the_lowest_size_limit_holds() -> None:
    """A fault can lower the entity's limit but not raise it."""
    faults = faults_of({"kind": "size-limit", "limit": 500}, {"kind": "size-limit", "entity": "orders", "limit": 300})
    assert [faults.size_limit(path, 400) for path in ("orders", "other")] == [300, 400]
    assert faults.size_limit("other", 1000) == 500


def test_latency_is_of_connections_or_of_an_entity() -> None:
    """Latency of `*` delays all bytes, and is not added to an entity's once more."""
    faults = faults_of({"kind": "latency", "delay": 0.5}, {"kind": "latency", "entity": "orders", "delay": 0.2})
    assert (faults.connection_latency, faults.latency("orders"), faults.latency("other")) == (0.5, 0.2, 0.0)
    decision = faults.on_settle("orders")
    assert (decision.latency, decision.error) == (0.2, None)
    assert faults.on_settle("other").latency == 0.0


def test_a_removed_fault_applies_no_more() -> None:
    """Its id ends it at once, also for paths that were queried before."""
    faults = faults_of({"kind": "busy", "entity": "orders"}, {"kind": "internal-error", "entity": "other"})
    assert faults.on_attach("orders") is not None
    (busy, _) = faults.listed()
    assert faults.remove(busy["id"])
    assert not faults.remove(busy["id"])
    assert faults.on_attach("orders") is None
    assert faults.on_send("other").error is not None
    faults.clear()
    assert faults.on_send("other").error is None


def test_faults_add_up() -> None:
    """Of several faults on one operation delays are summed, and an error or a missing answer of one holds."""
    now = 100.0
    faults = Faults(lambda: now, lambda: 0.4)
    assert not faults.active
    for request in (
        {"kind": "latency", "delay": 0.5},
        {"kind": "latency", "delay": 0.25, "entity": "a"},
        {"kind": "latency", "delay": 0.5, "entity": "A"},
        {"kind": "lost-accept", "entity": "a", "rate": 0.5},
        {"kind": "busy", "entity": "b", "rate": 0.3},
    ):
        faults.add(faults.read(request))
    assert faults.active
    on_a, on_b = faults.on_send("A"), faults.on_send("b")
    assert (on_a.latency, on_a.no_reply, on_a.error) == (0.75, True, None)
    assert (on_b.latency, on_b.no_reply, on_b.error) == (0.0, False, None), "the chance was 0.4, the rate 0.3"
    assert faults.on_send("ab").latency == 0.0
    assert faults.connection_latency == 0.5, "latency of all entities is the connection's, and counts once"


def test_ended_faults_are_removed() -> None:
    """Once the last fault has ended, `active` is False again."""
    clock = [0.0]
    faults = Faults(lambda: clock[0], lambda: 0.0)
    faults.add(faults.read({"kind": "busy", "seconds": 5}))
    faults.add(faults.read({"kind": "reject", "condition": TIMEOUT, "count": 1}))
    error = faults.on_send("q").error
    assert error is not None
    assert error.condition == TIMEOUT
    clock[0] = 6.0
    assert faults.on_send("q").error is None
    assert not faults.active
