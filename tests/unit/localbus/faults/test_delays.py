"""Delayed calls: in order, none early, and none blocks another or the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

import pytest

from pairbus.localbus.faults.delays import Delays


async def _until(done: list[int], count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while len(done) < count and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    assert len(done) >= count


async def test_calls_run_in_order_and_not_early() -> None:
    """Calls with the same delay run in order, none before its time."""
    loop = asyncio.get_running_loop()
    delays = Delays(loop)
    done: list[int] = []
    early: list[int] = []

    def at(number: int, due: float) -> None:
        done.append(number)
        if loop.time() < due - 0.001:
            early.append(number)

    for number in range(500):
        delays.call(0.05, partial(at, number, loop.time() + 0.05))
        if number % 100 == 99:
            await asyncio.sleep(0.01)
    await _until(done, 500)
    assert done == list(range(500))
    assert early == []


async def test_a_shorter_delay_does_not_wait_for_a_longer_one() -> None:
    """Calls with different delays do not wait for each other."""
    delays = Delays(asyncio.get_running_loop())
    done: list[int] = []
    delays.call(0.2, lambda: done.append(2))
    delays.call(0.01, lambda: done.append(1))
    await _until(done, 2)
    assert done == [1, 2]


async def test_a_failed_call_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    """An exception is logged, and the calls behind it run."""
    delays = Delays(asyncio.get_running_loop())
    done: list[int] = []

    def fails() -> None:
        raise ValueError("no")

    with caplog.at_level(logging.ERROR):
        delays.call(0.01, fails)
        delays.call(0.01, lambda: done.append(1))
        await _until(done, 1)
    assert "a call delayed by added latency failed" in caplog.text


async def test_many_due_calls_do_not_block_the_loop() -> None:
    """While a thousand calls are due, other work of the event loop runs in between."""
    loop = asyncio.get_running_loop()
    delays = Delays(loop)
    done: list[int] = []
    seen: list[int] = []

    def look() -> None:
        seen.append(len(done))
        if len(done) < 1000:
            loop.call_soon(look)

    for number in range(1000):
        delays.call(0.01, partial(done.append, number))
    time.sleep(0.05)
    loop.call_soon(look)
    await _until(done, 1000)
    assert len({count for count in seen if 0 < count < 1000}) > 3


async def test_a_call_may_add_a_call() -> None:
    """A callback may delay another call."""
    delays = Delays(asyncio.get_running_loop())
    done: list[int] = []

    def again() -> None:
        done.append(len(done))
        if len(done) < 5:
            delays.call(0.005, again)

    delays.call(0.005, again)
    await _until(done, 5)
    assert done == [0, 1, 2, 3, 4]
