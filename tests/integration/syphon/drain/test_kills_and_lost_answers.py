"""Kills and lost answers: in the end every parked message is somewhere, and none has left the backlog without a row.

A message may arrive twice only where an answer was lost. It has a row that says so then, and there are no more of them
than the window holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.syphon.drain import drain_pass
from pairbus.syphon.drain.flow_control import ServiceClock
from tests.support.backlog import Backlog, InBackground, Remembering, encoded
from tests.support.counting import (
    Came,
    arrivals,
    assert_conserved,
    assert_in_order,
    ids,
    in_sessions,
    park_many,
    repeats,
    take_all,
)
from tests.support.journal_rows import read_journal
from tests.support.pairing import Pair
from tests.support.waiting import wait_until

WINDOW = 60
#: How long locks last: short where they must end, long where none may, however busy the machine is.
#: The middle one does not end by itself where a machine stalls for a while, and can be waited for.
SHORT, MIDDLE, LONG = 2.0, 12.0, 60.0
WITH_LONG_LOCKS = pytest.mark.parametrize("trouble", [LONG], indirect=True)
Background = Callable[..., InBackground]


@pytest.fixture(autouse=True)
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make locks last two seconds, so that locked messages are received again soon."""
    monkeypatch.setattr(ServiceClock, "RANGE", (1.0, 60.0))
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 1.0)


class Trouble:
    """A drain of messages with and without sessions for one queue, under a fault."""

    def __init__(self, pair: Pair, backlog: Backlog, in_background: Background, lock: float) -> None:
        self.pair = pair
        self.backlog = backlog
        self._in_background = in_background
        #: How long an answer is waited for.
        self.patience = 10.0
        self.queue = pair.queue()
        self.sessions = in_sessions(6, 40)
        self.free = [encoded("x", id=f"free-{number}") for number in range(60)]
        self.ids = ids(self.sessions) + ids(self.free)
        parked = [each for at in range(60) for each in (*self.sessions[4 * at : 4 * at + 4], self.free[at])]
        park_many(backlog, self.queue, parked, lock_duration=timedelta(seconds=lock))

    def drain(self, **options: Any) -> Any:
        given = {"window_messages": WINDOW, "answer_timeout": self.patience, **options}
        return self.backlog.drain(**given)

    def start(self, **options: Any) -> InBackground:
        """Start a drain that takes a while; return once it has begun to deliver."""
        self.pair.primary.faults.latency(0.1, self.queue)
        started = self._in_background(lambda: self.drain(**options))
        wait_until(lambda: len(self.backlog.journal.rows) > 40 or not started.is_alive())
        assert started.is_alive(), started.summary
        return started

    def finish(self) -> list[Came]:
        """Drain until nothing is left; return what has arrived."""
        self.patience = 10.0
        wait_until(lambda: self.drain().empty and not self.backlog.depth(), 40, lambda: self.drain())
        return arrivals(self.backlog, self.queue)

    def check(self, came: list[Came], most_repeats: int) -> None:
        assert_conserved(self.backlog, self.ids, came, most_repeats=most_repeats)
        assert_in_order(self.sessions, [each for each in came if each.session is not None])


@pytest.fixture
def trouble(request: pytest.FixtureRequest, pair: Pair, backlog: Backlog, in_background: Background) -> Trouble:
    return Trouble(pair, backlog, in_background, getattr(request, "param", SHORT))


def _kill_primary(pair: Pair) -> None:
    pair.primary.kill()
    pair.primary.restart()


def _kill_secondary(pair: Pair) -> None:
    pair.secondary.kill()
    pair.secondary.restart()


def _pause(*names: str) -> Callable[[Pair], None]:
    def pause(pair: Pair) -> None:
        buses = [getattr(pair, name) for name in names]
        for bus in buses:
            bus.pause()
        time.sleep(1.5)  # longer than an answer is waited for
        for bus in buses:
            bus.resume()

    return pause


@pytest.mark.parametrize(
    "happens",
    [_kill_primary, _kill_secondary, _pause("primary"), _pause("secondary"), _pause("primary", "secondary")],
    ids=["primary killed", "secondary killed", "primary frozen", "secondary frozen", "both frozen"],
)
def test_a_process_that_is_killed_or_frozen(trouble: Trouble, happens: Callable[[Pair], None]) -> None:
    """During the drain, and running again: all messages arrive, and sessions keep their order."""
    trouble.patience = 1.0
    started = trouble.start()
    happens(trouble.pair)
    started.result()
    trouble.check(trouble.finish(), 2 * WINDOW)


@pytest.mark.parametrize(
    ("trouble", "side", "fault", "parameters", "most"),
    [
        (SHORT, "primary", "lost_accept", {"rate": 0.1, "count": 2}, 2 * WINDOW),
        (6.0, "secondary", "lost_settle", {"rate": 0.1, "count": 3}, 0),
        (LONG, "secondary", "late_settle", {"delay": 0.3, "seconds": 2.0}, 0),
        (LONG, "secondary", "lock_lost", {"rate": 0.2, "count": 20}, 20),
        (SHORT, "primary", "drop", {"after": 100, "count": 2}, 2 * WINDOW),
        (SHORT, "secondary", "drop", {"after": 100, "count": 2}, 2 * WINDOW),
    ],
    indirect=["trouble"],
)
def test_an_answer_that_is_lost(trouble: Trouble, side: str, fault: str, parameters: dict[str, Any], most: int) -> None:
    """On either side, of any kind: all messages arrive, and only those in doubt arrive twice."""
    pair, backlog = trouble.pair, trouble.backlog
    bus, entity = (pair.primary, trouble.queue) if side == "primary" else (pair.secondary, backlog.path())
    getattr(bus.faults, fault)(entity=entity, **parameters)
    if fault in ("lost_accept", "lost_settle"):
        trouble.patience = 1.0
    trouble.drain()
    came = trouble.finish()
    trouble.check(came, most)
    if fault == "lock_lost":
        assert len(backlog.journal.of("in doubt")) == 20
        assert sum(repeats(came).values()) == 20
    if fault == "late_settle":
        assert backlog.journal.of("in doubt") == []


@WITH_LONG_LOCKS
def test_without_a_fault_nothing_is_in_doubt(trouble: Trouble) -> None:
    """Each message has exactly one row, and arrived once."""
    summary = trouble.drain()
    assert (summary.delivered, summary.in_doubt, summary.held, summary.error) == (300, 0, 0, None)
    assert sorted(row["message_id"] for row in trouble.backlog.journal.rows) == sorted(trouble.ids)
    trouble.check(arrivals(trouble.backlog, trouble.queue), 0)


def test_a_queue_with_locked_messages_is_not_empty(trouble: Trouble) -> None:
    """A drain that has lost its link does not call the queue empty while that link has messages locked. It ends when
    they can be received again, so that the next drain keeps the order too."""
    trouble.pair.secondary.faults.drop(trouble.backlog.path(), after=30, count=1)
    trouble.pair.primary.faults.latency(0.02, trouble.queue)
    summary = trouble.drain(budget=0.3)
    assert trouble.backlog.depth() > 0
    assert not summary.empty
    trouble.check(trouble.finish(), 2 * WINDOW)


@pytest.mark.parametrize("trouble", [MIDDLE], indirect=True)
@pytest.mark.parametrize("rows_before", [1, 120])
def test_a_draining_process_that_is_killed(trouble: Trouble, tmp_path: Path, rows_before: int) -> None:
    """SIGKILL during the drain: no message has left the backlog without a row in its journal, and the next drain moves
    the rest."""
    pair, backlog = trouble.pair, trouble.backlog
    pair.primary.faults.latency(0.02, trouble.queue)
    pa.array([0])  # imports pandas: now, not while it is looked how far the process has come
    given = {
        "primary": pair.primary.connection_string,
        "secondary": pair.secondary.connection_string,
        "name": pair.name,
        "folder": str(tmp_path / "journal"),
        "window": WINDOW,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.draining_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[4],
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        wait_until(lambda: len(_rows(tmp_path / "journal")) >= rows_before)
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    first = _rows(tmp_path / "journal")
    assert len(first) < 300, "it was killed too late to show anything"
    # It leaves its window locked without a record: the order holds for a drain that starts when the locks have ended.
    time.sleep(MIDDLE + 0.1)
    came = trouble.finish()
    arrived = {each.id for each in came}
    assert arrived == set(trouble.ids)
    rows = {*first, *(row["message_id"] for row in backlog.journal.of("delivered"))}
    assert rows == arrived
    assert sum(repeats(came).values()) <= WINDOW
    assert_in_order(trouble.sessions, [each for each in came if each.session is not None])


def _rows(folder: Path) -> list[str]:
    found: list[str] = []
    for file in folder.glob("*") if folder.exists() else ():
        table = read_journal(str(file)).table
        outcomes = zip(table.column("message_id").to_pylist(), table.column("outcome").to_pylist(), strict=True)
        found += [id for id, outcome in outcomes if outcome == "delivered"]
    return found


@WITH_LONG_LOCKS
@pytest.mark.parametrize("drains", [2, 5])
def test_many_drains_of_one_queue_at_once(trouble: Trouble, in_background: Background, drains: int) -> None:
    """Receivers compete: nothing is lost, and nothing arrives twice."""
    backlog = trouble.backlog
    trouble.pair.primary.faults.latency(0.005, trouble.queue)
    journals = [Remembering() for _ in range(drains)]
    started = [in_background(lambda journal=journal: trouble.drain(journal=journal)) for journal in journals]
    summaries = [each.result() for each in started]
    assert sum(each.delivered for each in summaries) == 300
    assert [each.error for each in summaries] == [None] * drains
    together = Remembering()
    together.rows = [row for journal in journals for row in journal.rows]
    assert_conserved(backlog, trouble.ids, arrivals(backlog, trouble.queue), journal=together)
    assert backlog.depth() == 0


def test_a_drain_while_a_sender_parks(pair: Pair, backlog: Backlog, in_background: Background) -> None:
    """Each message arrives once, in the order in which it was sent."""
    queue = pair.queue()
    pairing = pair.pairing(backlog_queue_count=1)
    done: list[bool] = []
    with pairing.get_queue_sender(queue) as sender:
        pair.declare_down(pairing, queue)
        sender.send_messages(ServiceBusMessage("first", message_id="m0"))
        started = in_background(lambda: _drain_until(backlog, lambda: bool(done)))
        for number in range(1, 60):
            sender.send_messages(ServiceBusMessage("x", message_id=f"m{number}"))
        done.append(True)
    started.result()
    came = arrivals(backlog, queue)
    assert [each.id for each in came] == [f"m{number}" for number in range(60)]
    assert pair.parked() == 0


def _drain_until(backlog: Backlog, done: Callable[[], bool]) -> Any:
    while True:
        last = done()
        summary = backlog.drain()
        if last:
            return summary


@WITH_LONG_LOCKS
def test_messages_for_a_full_destination_stay(trouble: Trouble) -> None:
    """All of them are in the backlog and counted as held; none has arrived, none has a row."""
    trouble.pair.primary.faults.quota_exceeded(trouble.queue)
    summary = trouble.drain()
    assert (summary.held, summary.delivered, summary.in_doubt) == (300, 0, 0), summary
    left = take_all(trouble.pair.secondary, trouble.backlog.path(), 300)
    assert_conserved(trouble.backlog, trouble.ids, [], left=left)
    assert trouble.backlog.journal.rows == []


def test_a_journal_that_fails_in_the_middle(trouble: Trouble) -> None:
    """Messages that arrived without a row stay in the backlog: they arrive twice, but none leaves without one."""
    written: list[int] = []

    def full(rows: Any) -> None:
        written.append(len(rows))
        if len(written) > 2:
            raise OSError(28, "No space left on device", "the journal")

    journal = Remembering(full)
    trouble.pair.primary.faults.latency(0.01, trouble.queue)
    summary = trouble.drain(journal=journal)
    assert "No space left" in (summary.error or "")
    assert summary.delivered <= len(journal.of("delivered"))
    assert trouble.backlog.depth() >= 300 - len(journal.of("delivered"))
    time.sleep(2.1)  # locks have to end
    came = trouble.finish()
    assert {each.id for each in came} == set(trouble.ids)
    assert sum(repeats(came).values()) <= WINDOW
