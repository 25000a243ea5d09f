"""No answer from the network, or from storage, is waited for without a bound."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

#: How long a connection, a link, a token or a message may take to be answered.
ANSWER_SECONDS = 30.0
#: How long a journal may take to make rows durable. Locks have ended by then: nothing that it may still do would help.
JOURNAL_SECONDS = 60.0


class bounded:
    """`asyncio.timeout`, which Python 3.10 does not have."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[Any] | None = None
        self._fired = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        self._fired = True
        assert self._task is not None
        self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        if self._fired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from error


class Aside:
    """A thread for calls that may block for ever, such as those of a stranger's code or of storage: made one after
    another, and nobody waits for it to end. A thread of the loop's executor is joined when the loop ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def __call__(self, call: Callable[[], T]) -> T:
        """What a call gives. Who stops waiting hears nothing of it any more."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(value: T | None, error: BaseException | None) -> None:
            if answer.done():
                return  # nobody waits any more
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def run() -> None:
            value, error = None, None
            try:
                value = call()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, value, error)

        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()  # if there are no more threads, the next call tries again, and this one is never made
            self._thread = thread
        self._calls.put(run)
        return await answer

    def _work(self) -> None:
        while (run := self._calls.get()) is not None:
            run()

    def end(self) -> None:
        """No more calls come; the thread ends when those before have."""
        self._calls.put(None)


async def aside(call: Callable[[], T], name: str) -> T:
    """What a call gives that may block for ever, on a thread of its own."""
    thread = Aside(name)
    try:
        return await thread(call)
    finally:
        thread.end()


def within(seconds: float, call: Callable[[], None], name: str) -> None:
    """Make a call that may block for ever where there is no loop; TimeoutError if it does not end in time, and then
    nobody waits for it any more."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if raised:
        raise raised[0]
