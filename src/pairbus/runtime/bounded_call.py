"""Blocking calls with a deadline: each runs on a daemon thread that may be left behind.

A credential, a resolver or a storage client may block for ever, and Python cannot interrupt it. Threads of an executor
would not do: the event loop and the interpreter join those when they end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

#: The longest wait for a connection, a link, a token or the answer to a message.
ANSWER_SECONDS = 30.0
#: The longest wait for a journal to make rows durable. Locks have ended by then, so waiting longer would not help.
JOURNAL_SECONDS = 60.0


def start_call(call: Callable[[], T], name: str, on_end: Callable[[Future[T]], None] | None = None) -> Future[T]:
    """Start a call on a daemon thread of its own; RuntimeError if the process cannot start another thread."""
    future: Future[T] = Future()
    if on_end is not None:  # called exactly once: on the thread, or here if the call is never made
        future.add_done_callback(on_end)
    try:
        threading.Thread(target=_run, args=(future, call), name=name, daemon=True).start()
    except BaseException:
        future.cancel()
        raise
    return future


def call_with_deadline(call: Callable[[], T], seconds: float, name: str) -> T:
    """Return a call's result; TimeoutError after so many seconds, and its thread is left behind."""
    future = start_call(call, name)
    if not is_done_within(future, seconds):
        raise TimeoutError(f"no answer within {seconds:g} s")
    return future.result()


def is_done_within(future: Future[Any], seconds: float) -> bool:
    """Wait for a call, and return True if it ended within so many seconds."""
    concurrent.futures.wait([future], seconds)
    return future.done()


async def call_in_thread(call: Callable[[], T], name: str) -> T:
    """Return the result of a call on a thread of its own; cancelling the wait leaves the thread behind."""
    return await asyncio.wrap_future(start_call(call, name))


class CallThread:
    """A daemon thread that makes blocking calls one after another, in the order in which they were given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, call: Callable[[], T]) -> T:
        """Return a call's result; it is never made if the wait is cancelled before it has begun."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        future: Future[T] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the thread after the calls that were given before."""
        self._calls.put(None)

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            _run(*given)
            del given  # an idle thread must not keep the last call's rows alive


class deadline:
    """`asyncio.timeout`, which Python 3.10 does not have: `asyncio.TimeoutError` if the body takes longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[Any] | None = None
        self._has_passed = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._pass)

    def _pass(self) -> None:
        self._has_passed = True
        assert self._task is not None
        self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        if self._has_passed and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from error


def _run(future: Future[T], call: Callable[[], T]) -> None:
    """Make a call and hand its result or exception to the future, unless that was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except (asyncio.CancelledError, concurrent.futures.CancelledError) as error:
        # The call's own, not the waiter's: awaiting it must not look like a cancellation of the waiting task.
        future.set_exception(RuntimeError(f"the call was cancelled: {error!r}"))
        del future  # as below
    except BaseException as error:
        future.set_exception(error)
        del future  # the error's traceback refers to this frame, and the future to the error
    else:
        future.set_result(result)
