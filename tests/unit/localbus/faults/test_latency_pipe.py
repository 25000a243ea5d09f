"""A latency pipe: one direction of a connection, delivered late and in order."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from pairbus.localbus.faults.latency_pipe import LatencyPipe


@pytest.fixture
async def pipe() -> LatencyPipe:
    return LatencyPipe(asyncio.get_running_loop())


async def _until(done: list[int], count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while len(done) < count and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.005)
    assert len(done) >= count


async def test_without_latency_data_is_delivered_at_once(pipe: LatencyPipe) -> None:
    """No timer is involved."""
    done: list[int] = []
    pipe.send(0.0, 5, partial(done.append, 1))
    assert done == [1]
    assert pipe.size == 0


async def test_data_is_delivered_in_order_and_not_early(pipe: LatencyPipe) -> None:
    """This holds also when the latency is reduced: later data does not overtake."""
    loop, done, early = asyncio.get_running_loop(), list[int](), list[int]()

    def arrive(number: int, due: float) -> None:
        done.append(number)
        if loop.time() < due - 0.001:
            early.append(number)

    for number in range(90):
        seconds = (0.05, 0.02, 0.0)[number // 30]
        pipe.send(seconds, 10, partial(arrive, number, loop.time() + seconds))
    assert pipe.size == 900
    await _until(done, 90)
    assert done == list(range(90))
    assert early == []
    assert pipe.size == 0


async def test_a_delivery_may_send_more(pipe: LatencyPipe) -> None:
    """Data that a delivery sends goes through the pipe as well."""
    done: list[int] = []

    def again() -> None:
        done.append(len(done))
        if len(done) < 5:
            pipe.send(0.005, 0, again)

    pipe.send(0.005, 0, again)
    pipe.send(0.2, 0, partial(done.append, -1))
    await _until(done, 5)
    assert done == [0, -1, 2, 3, 4]


async def test_data_on_its_way_can_be_flushed_or_discarded(pipe: LatencyPipe) -> None:
    """`flush` delivers everything at once, `discard` drops it."""
    done: list[int] = []
    for number in range(3):
        pipe.send(60.0, 1, partial(done.append, number))
    pipe.flush()
    assert done == [0, 1, 2]
    pipe.send(0.01, 1, partial(done.append, 3))
    pipe.discard()
    assert pipe.size == 0
    await asyncio.sleep(0.05)
    assert done == [0, 1, 2]


async def test_a_failed_delivery_does_not_stop_the_others(pipe: LatencyPipe) -> None:
    """The event loop gets the exception, and the rest is delivered."""
    loop, done, told = asyncio.get_running_loop(), list[int](), list[BaseException]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

    def fails() -> None:
        raise ValueError("no")

    pipe.send(0.01, 0, fails)
    pipe.send(0.01, 0, partial(done.append, 1))
    await _until(done, 1)
    assert [str(error) for error in told] == ["no"]
