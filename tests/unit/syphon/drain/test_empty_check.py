"""`EmptyCheck`: when a backlog queue is asked whether it is empty, and how long the answer may take."""

from __future__ import annotations

import asyncio
from typing import Any

from pairbus.syphon.drain.completion import EmptyCheck


class FakeReceiver:
    """A receiver that counts how often its credit was drained."""

    def __init__(self) -> None:
        self.drains = 0

    def drain(self) -> None:
        self.drains += 1


class FakeLoop:
    """An event loop whose time a test sets and whose timers a test fires."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any]] = []
        self.cancelled: list[Any] = []

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any) -> asyncio.TimerHandle:
        self.timers.append((when, call))
        return asyncio.TimerHandle(when, call, (), self)  # type: ignore[arg-type]

    def _timer_handle_cancelled(self, handle: Any) -> None:
        self.cancelled.append(handle)


def empty_check() -> tuple[EmptyCheck, FakeLoop, FakeReceiver, list[None]]:
    loop, idle = FakeLoop(), list[None]()
    return EmptyCheck(loop, lambda: idle.append(None)), loop, FakeReceiver(), idle  # type: ignore[arg-type]


def test_a_queue_is_asked_once_nothing_has_moved_for_a_moment() -> None:
    """Not at once: one timer is set, however often the check is repeated, and calls back when the moment is over."""
    check, loop, receiver, idle = empty_check()
    for _ in range(3):
        check.ask_when_idle(receiver, loop.now)  # type: ignore[arg-type]
    ((due, fire),) = loop.timers
    assert (receiver.drains, check.asked_at) == (0, None)
    loop.now = due
    fire()
    assert len(idle) == 1
    check.ask_when_idle(receiver, loop.now)  # type: ignore[arg-type]
    assert (receiver.drains, check.asked_at) == (1, due)


def test_movement_puts_the_question_off() -> None:
    """The moment begins anew, and the timer that fired too early is set again."""
    check, loop, receiver, _ = empty_check()
    check.ask_when_idle(receiver, loop.now)  # type: ignore[arg-type]
    ((due, fire),) = loop.timers
    loop.now = due
    check.moved(loop.now)
    fire()
    check.ask_when_idle(receiver, loop.now)  # type: ignore[arg-type]
    assert receiver.drains == 0
    assert loop.timers[1][0] > due


def test_an_answer_is_overdue_only_if_nothing_moves() -> None:
    """While messages move the socket may be paused, with the answer unread in it."""
    check, loop, receiver, _ = empty_check()
    assert not check.is_overdue(loop.now + 100)
    assert not check.is_unanswered(loop.now + 100)
    check.ask(receiver, loop.now)  # type: ignore[arg-type]
    assert not check.is_overdue(loop.now + 4.9)
    assert not check.is_unanswered(loop.now + 4.9)
    assert check.is_overdue(loop.now + 5.1)
    check.moved(loop.now + 3)
    assert not check.is_overdue(loop.now + 5.1)
    assert check.is_unanswered(loop.now + 5.1)


def test_credit_that_is_returned_without_a_question_is_no_answer() -> None:
    """Each question has one answer."""
    check, loop, receiver, _ = empty_check()
    assert not check.answered()
    check.ask(receiver, loop.now)  # type: ignore[arg-type]
    assert check.answered()
    assert not check.answered()
    assert check.asked_at is None


def test_a_check_that_is_closed_does_not_call_back() -> None:
    """Its timer is cancelled."""
    check, loop, receiver, _ = empty_check()
    check.ask_when_idle(receiver, loop.now)  # type: ignore[arg-type]
    check.close()
    assert len(loop.cancelled) == 1
