"""One way of a connection that is far away: in order, not early, and in time also when it ends."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from pairbus.localbus.faults.latency_pipe import LatencyPipe


@pytest.fixture
async def way() -> LatencyPipe:
    return LatencyPipe(asyncio.get_running_loop())


async def _until(done: list[int], count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while len(done) < count and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    assert len(done) >= count


async def test_without_a_distance_it_is_there_at_once(way: LatencyPipe) -> None:
    done: list[int] = []
    way.send(0.0, 5, partial(done.append, 1))
    assert done == [1]
    assert way.size == 0


async def test_in_order_and_not_early(way: LatencyPipe) -> None:
    """Also when the distance shrinks: nothing is overtaken."""
    loop, done, early = asyncio.get_running_loop(), list[int](), list[int]()

    def arrive(number: int, due: float) -> None:
        done.append(number)
        if loop.time() < due - 0.001:
            early.append(number)

    for number in range(90):
        seconds = (0.05, 0.02, 0.0)[number // 30]
        way.send(seconds, 10, partial(arrive, number, loop.time() + seconds))
    assert way.size == 900
    await _until(done, 90)
    assert done == list(range(90))
    assert early == []
    assert way.size == 0


async def test_what_arrives_may_send_again(way: LatencyPipe) -> None:
    done: list[int] = []

    def again() -> None:
        done.append(len(done))
        if len(done) < 5:
            way.send(0.005, 0, again)

    way.send(0.005, 0, again)
    way.send(0.2, 0, partial(done.append, -1))
    await _until(done, 5)
    assert done == [0, -1, 2, 3, 4]


async def test_at_its_end_what_is_on_its_way_arrives_or_is_lost(way: LatencyPipe) -> None:
    done: list[int] = []
    for number in range(3):
        way.send(60.0, 1, partial(done.append, number))
    way.flush()
    assert done == [0, 1, 2]
    way.send(0.01, 1, partial(done.append, 3))
    way.discard()
    assert way.size == 0
    await asyncio.sleep(0.05)
    assert done == [0, 1, 2]


async def test_one_that_fails_keeps_the_others_from_nothing(way: LatencyPipe) -> None:
    """The loop is told of it, and the rest arrives."""
    loop, done, told = asyncio.get_running_loop(), list[int](), list[BaseException]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

    def fails() -> None:
        raise ValueError("no")

    way.send(0.01, 0, fails)
    way.send(0.01, 0, partial(done.append, 1))
    await _until(done, 1)
    assert [str(error) for error in told] == ["no"]
