"""Session order after a drain was killed a moment ago and left its window locked."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from tests.support.backlog import Backlog, InBackground, encoded
from tests.support.counting import arrivals, assert_in_order, in_sessions, park_many, take_and_die
from tests.support.pairing import Pair
from tests.support.waiting import wait_until


def test_messages_that_a_killed_drain_has_locked_are_not_overtaken(pair: Pair, backlog: Backlog) -> None:
    """Sessions wait until the locks have ended; messages without a session do not."""
    queue = pair.queue()
    messages = in_sessions(5, 20)
    plain = [encoded("x", id=f"plain-{number}") for number in range(20)]
    park_many(backlog, queue, [*messages[:60], *plain, *messages[60:]], lock_duration=timedelta(seconds=10))
    take_and_die(backlog, 30)
    summary = backlog.drain(after_a_kill=True, budget=2.0)
    came = arrivals(backlog, queue)
    assert {each.id for each in came} == {f"plain-{number}" for number in range(20)}
    assert not summary.empty
    assert backlog.drain().empty
    assert backlog.depth() == 0
    assert_in_order(messages, arrivals(backlog, queue))


SHORT = timedelta(seconds=5)


def of_a_session(count: int) -> list[bytes]:
    return [encoded("x", id=f"m{number}", session="s") for number in range(count)]


def test_also_if_the_first_message_has_no_envelope(pair: Pair, backlog: Backlog) -> None:
    """It shows where the queue begins, too: messages before it may be locked."""
    queue = pair.queue()
    park_many(backlog, queue, of_a_session(5), lock_duration=SHORT)
    take_and_die(backlog, 5)
    backlog.put(encoded("no envelope", id="bad"))
    backlog.park(queue, encoded("x", id="m5", session="s"))
    backlog.drain(after_a_kill=True, budget=60.0)
    assert [came.id for came in arrivals(backlog, queue)] == [f"m{number}" for number in range(6)]


def test_also_if_no_message_can_be_received(pair: Pair, backlog: Backlog) -> None:
    """All may be locked: the queue is not called empty, and messages that are parked meanwhile do not overtake."""
    queue = pair.queue()
    park_many(backlog, queue, of_a_session(5), lock_duration=SHORT)
    take_and_die(backlog, 5)
    stop = threading.Event()
    one = InBackground(lambda: backlog.drain(after_a_kill=True, budget=60.0, stop=stop.is_set))
    time.sleep(1.0)
    backlog.park(queue, encoded("x", id="m5", session="s"))
    wait_until(lambda: pair.arrived(queue) == 6, 100)
    stop.set()
    one.result(30)
    assert [came.id for came in arrivals(backlog, queue)] == [f"m{number}" for number in range(6)]
