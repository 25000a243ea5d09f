"""A blocking call with a deadline: in synchronous code, in asyncio, and one call after another on one thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from pairbus.runtime.bounded_call import (
    CallThread,
    call_in_thread,
    call_with_deadline,
    deadline,
    is_done_within,
    start_call,
)
from tests.support.waiting import wait_until

NAME = "pairbus-test-call"


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """An event on which a test's calls block; set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def no_more_threads(patch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


# --- start_call ------------------------------------------------------------------------------------------------------


def test_a_call_is_made_on_a_daemon_thread_of_that_name() -> None:
    """The interpreter joins no daemon thread when it ends."""
    thread = start_call(threading.current_thread, NAME).result(30)
    assert (thread.name, thread.daemon) == (NAME, True)


@pytest.mark.parametrize(
    "error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()], ids=lambda e: type(e).__name__
)
def test_whatever_a_call_raises_is_its_exception(error: BaseException) -> None:
    """Also what is not an `Exception`: it must not be lost on the thread."""

    def fail() -> None:
        raise error

    assert start_call(fail, NAME).exception(30) is error


def test_the_callback_gets_the_ended_call(released: threading.Event) -> None:
    """Once, on the thread of the call, after its result is there."""
    seen: list[tuple[str, Any]] = []
    ended = threading.Event()

    def on_end(future: Future[int]) -> None:
        seen.append((threading.current_thread().name, future.result(0)))
        ended.set()

    def call() -> int:
        released.wait(30)
        return 7

    start_call(call, NAME, on_end)
    assert seen == []
    released.set()
    assert ended.wait(30)
    assert seen == [(NAME, 7)]


def test_a_call_without_a_thread_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is raised, and the callback is told that the call was cancelled."""
    made: list[str] = []
    ended: list[bool] = []
    with monkeypatch.context() as short:
        no_more_threads(short)
        with pytest.raises(RuntimeError, match="new thread"):
            start_call(lambda: made.append("call"), NAME, lambda future: ended.append(future.cancelled()))
    assert (made, ended) == ([], [True])


@pytest.mark.parametrize("begun", [True, False])
def test_a_start_that_is_interrupted_ends_once(
    monkeypatch: pytest.MonkeyPatch, released: threading.Event, begun: bool
) -> None:
    """Ctrl-C as the thread starts: a call that has begun ends by itself, and another is never made."""
    made: list[str] = []
    ended: list[bool] = []
    entered, over = threading.Event(), threading.Event()
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        if begun:
            start(self)
            assert entered.wait(30)
        raise KeyboardInterrupt

    def call() -> None:
        entered.set()
        released.wait(30)
        made.append("call")

    def on_end(future: Future[None]) -> None:
        ended.append(future.cancelled())
        over.set()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start_call(call, NAME, on_end)
    assert ended == ([] if begun else [True])
    released.set()
    assert over.wait(30)
    assert (made, ended) == ((["call"], [False]) if begun else ([], [True]))


def test_a_failed_call_leaves_no_cycle_behind() -> None:
    """What it held is freed at once, not at the next garbage collection: a failed connection holds a socket."""

    class Held:
        pass

    def fail(held: Held) -> None:
        raise ValueError("broken")

    held = Held()
    freed = weakref.ref(held)
    gc.collect()
    gc.disable()
    try:
        future = start_call(lambda kept=held: fail(kept), NAME)  # type: ignore[misc]
        assert isinstance(future.exception(30), ValueError)
        del held, future
        for thread in threading.enumerate():
            if thread.name == NAME:
                thread.join(30)
        assert freed() is None
    finally:
        gc.enable()


# --- with a deadline -------------------------------------------------------------------------------------------------


def test_a_call_in_time_gives_its_result_or_its_error() -> None:
    """A `TimeoutError` of the call itself is told from the deadline's by its text."""
    assert call_with_deadline(lambda: "done", 30, NAME) == "done"

    def time_out() -> None:
        raise TimeoutError("the storage's own")

    with pytest.raises(TimeoutError, match="the storage's own"):
        call_with_deadline(time_out, 30, NAME)


def test_a_call_that_is_late_raises_and_its_thread_is_left_behind(released: threading.Event) -> None:
    """`TimeoutError`, also on Python 3.10, whose futures have another one."""
    with pytest.raises(TimeoutError, match=r"^no answer within 0\.05 s$"):
        call_with_deadline(released.wait, 0.05, NAME)
    assert NAME in names()


def test_a_wait_for_a_call_may_be_repeated(released: threading.Event) -> None:
    """It neither raises nor consumes the call's error."""

    def fail() -> None:
        released.wait(30)
        raise ValueError("broken")

    future = start_call(fail, NAME)
    assert not is_done_within(future, 0.02)
    released.set()
    assert is_done_within(future, 30)
    assert is_done_within(future, 0)


# --- in asyncio ------------------------------------------------------------------------------------------------------


async def test_a_loop_goes_on_while_a_call_blocks(released: threading.Event) -> None:
    """The call's result comes back to the loop."""

    def call() -> str:
        released.wait(30)
        return "done"

    task = asyncio.ensure_future(call_in_thread(call, NAME))
    await asyncio.sleep(0.02)
    assert not task.done()
    released.set()
    assert await task == "done"


async def test_a_call_that_fails_fails_in_the_loop() -> None:
    """With the very error."""
    error = ValueError("broken")

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match="broken") as raised:
        await call_in_thread(fail, NAME)
    assert raised.value is error


async def test_a_deadline_leaves_a_blocked_call_behind(released: threading.Event) -> None:
    """The body ends with `asyncio.TimeoutError`; the thread stays."""
    with pytest.raises(asyncio.TimeoutError):
        async with deadline(0.05):
            await call_in_thread(released.wait, NAME)
    assert NAME in names()


async def test_a_deadline_that_has_not_passed_does_nothing() -> None:
    """Neither to a body that ends nor to one that fails, and not afterwards."""
    async with deadline(0.05):
        pass
    with pytest.raises(ValueError, match="mine"):
        async with deadline(0.05):
            raise ValueError("mine")
    await asyncio.sleep(0.1)


async def test_a_cancellation_from_outside_stays_a_cancellation() -> None:
    """It is not mistaken for the deadline's."""

    async def wait() -> None:
        async with deadline(30):
            await asyncio.sleep(30)

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_loop_ends_while_a_call_blocks(released: threading.Event) -> None:
    """The loop joins no such thread; what the call answers later goes nowhere, and is no error."""
    answered = threading.Event()

    def call() -> None:
        released.wait(30)
        answered.set()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            async with deadline(0.02):
                await call_in_thread(call, NAME)

    asyncio.run(main())
    released.set()
    assert answered.wait(30)


# --- one after another -----------------------------------------------------------------------------------------------


async def test_calls_are_made_in_order_on_one_thread() -> None:
    """The thread is started by the first call, and ends after `close`."""
    made: list[tuple[int, threading.Thread]] = []
    thread = CallThread(NAME)

    def numbered(number: int) -> Callable[[], None]:
        return lambda: made.append((number, threading.current_thread()))

    await asyncio.gather(*(thread.call(numbered(number)) for number in range(5)))
    thread.close()
    assert [number for number, _ in made] == list(range(5))
    (only,) = {each for _, each in made}
    assert only.daemon
    only.join(30)
    assert not only.is_alive()


async def test_a_call_that_fails_does_not_end_the_thread() -> None:
    """The next one is made."""
    thread = CallThread(NAME)

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await thread.call(fail)
    assert await thread.call(lambda: "done") == "done"
    thread.close()


async def test_a_call_that_is_given_up_before_its_turn_is_never_made(released: threading.Event) -> None:
    """It waits behind one that hangs; the next one is made."""
    made: list[str] = []
    thread = CallThread(NAME)
    hanging = asyncio.ensure_future(thread.call(released.wait))
    await asyncio.sleep(0)
    with pytest.raises(asyncio.TimeoutError):
        async with deadline(0.05):
            await thread.call(lambda: made.append("given up"))
    released.set()
    await hanging
    await thread.call(lambda: made.append("next"))
    thread.close()
    assert made == ["next"]


async def test_an_idle_thread_keeps_nothing_of_its_last_call() -> None:
    """The rows of a journal's last write would stay in memory until the next one."""

    class Held:
        pass

    held = Held()
    freed = weakref.ref(held)
    thread = CallThread(NAME)
    await thread.call(lambda kept=held: None)  # type: ignore[misc]
    del held
    await asyncio.get_running_loop().run_in_executor(None, wait_until, lambda: freed() is None, 10)
    thread.close()


async def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that failed is not made later, when its caller waits no more."""
    made: list[str] = []
    thread = CallThread(NAME)
    with monkeypatch.context() as short:
        no_more_threads(short)
        with pytest.raises(RuntimeError, match="new thread"):
            await thread.call(lambda: made.append("first"))
    await asyncio.wait_for(thread.call(lambda: made.append("second")), 30)
    thread.close()
    assert made == ["second"]


@pytest.mark.parametrize("kind", [asyncio.CancelledError, concurrent.futures.CancelledError])
async def test_a_cancellation_of_the_calls_own_is_an_ordinary_error(kind: type[BaseException]) -> None:
    """A credential or a store whose own loop was closed: the task that waits was not cancelled, and goes on."""

    def fail() -> None:
        raise kind("its loop was closed")

    with pytest.raises(RuntimeError, match="the call was cancelled"):
        await call_in_thread(fail, NAME)
    thread = CallThread(NAME)
    with pytest.raises(RuntimeError, match="the call was cancelled"):
        await thread.call(fail)
    thread.close()
