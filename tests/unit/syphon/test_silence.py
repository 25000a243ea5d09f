"""When a backlog queue is asked whether it is empty, and how long its answer is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

from pairbus.syphon.drain.empty_check import Silence


class Asked:
    """Stands for a receiver: what is asked of it is noted."""

    def __init__(self) -> None:
        self.times = 0

    def drain(self) -> None:
        self.times += 1


class Clock:
    """Stands for a loop: time stands still until a test says otherwise, and timers wait to be rung."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Any]] = []

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any) -> asyncio.TimerHandle:
        self.timers.append((when, call))
        return asyncio.TimerHandle(when, call, (), self)  # type: ignore[arg-type]

    def _timer_handle_cancelled(self, handle: Any) -> None: ...


def silence() -> tuple[Silence, Clock, Asked, list[None]]:
    clock, looked = Clock(), list[None]()
    return Silence(clock, lambda: looked.append(None)), clock, Asked(), looked  # type: ignore[arg-type]


def test_a_queue_is_asked_once_it_was_quiet_for_a_moment() -> None:
    """Not at once, and not when somebody happens to look the next time: a timer sees to it, one for all who ask."""
    quiet, clock, receiver, looked = silence()
    for _ in range(3):
        quiet.ask_in_time(receiver, clock.now)  # type: ignore[arg-type]
    ((due, ring),) = clock.timers
    assert (receiver.times, quiet.asked_at) == (0, None)
    clock.now = due
    ring()
    assert len(looked) == 1
    quiet.ask_in_time(receiver, clock.now)  # type: ignore[arg-type]
    assert (receiver.times, quiet.asked_at) == (1, due)


def test_what_moves_puts_the_question_off() -> None:
    """The moment begins anew, and the timer that rang too early is set again."""
    quiet, clock, receiver, _ = silence()
    quiet.ask_in_time(receiver, clock.now)  # type: ignore[arg-type]
    ((due, ring),) = clock.timers
    clock.now = due
    quiet.broken(clock.now)
    ring()
    quiet.ask_in_time(receiver, clock.now)  # type: ignore[arg-type]
    assert receiver.times == 0
    assert clock.timers[1][0] > due


def test_an_answer_is_overdue_if_nothing_moves_meanwhile() -> None:
    """While messages move the socket may not be read, and the answer lies in it."""
    quiet, clock, receiver, _ = silence()
    assert not quiet.is_overdue(clock.now + 100)
    quiet.ask(receiver, clock.now)  # type: ignore[arg-type]
    assert not quiet.is_overdue(clock.now + 4.9)
    assert quiet.is_overdue(clock.now + 5.1)
    quiet.broken(clock.now + 3)
    assert not quiet.is_overdue(clock.now + 5.1)
    assert quiet.was_asked_long_ago(clock.now + 5.1)


def test_an_answer_that_nobody_asked_for_is_none() -> None:
    """Credit that was taken back for another reason says nothing; each question has one answer."""
    quiet, clock, receiver, _ = silence()
    assert not quiet.answered()
    quiet.ask(receiver, clock.now)  # type: ignore[arg-type]
    assert quiet.answered()
    assert not quiet.answered()
    assert quiet.asked_at is None


def test_a_pass_that_has_ended_is_not_looked_at_again() -> None:
    """Its timer is cancelled."""

    async def ended() -> list[None]:
        looked = list[None]()
        quiet = Silence(asyncio.get_running_loop(), lambda: looked.append(None))
        quiet.ask_in_time(Asked(), asyncio.get_running_loop().time())  # type: ignore[arg-type]
        timer = quiet._timer
        assert timer is not None
        quiet.end()
        assert timer.cancelled()
        return looked

    assert asyncio.run(ended()) == []
