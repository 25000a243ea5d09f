"""Scenarios that run concurrently.

A scenario with the SDK mostly waits: opening a link takes half a second, closing a receiver a second, and locks need
seconds to expire. So the first test of a module starts all its scenarios; each is still a pytest test of its own, with
its own result and traceback.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pairbus.localbus import LocalBus
from tests.support.sdk_clients import SdkClients

Scenario = Callable[..., Awaitable[None]]
#: A scenario, the kind of its client, and the case if it has cases.
Wanted = tuple[Any, ...]
AT_ONCE = 24
_LIMIT_SECONDS = 240.0
BOTH = ("sync", "async")


def scenario(*kinds: str, cases: Iterable[str] = ()) -> Callable[[Scenario], Any]:
    """Make a test of `async def test_...(at: SdkClients)` for each kind of client (both, if none is named).

    With cases, `async def test_...(at: SdkClients, case: str)` runs once for each of them, too.
    """
    named = tuple(cases)

    def make(body: Scenario) -> Any:
        def plain(running_scenarios: RunningScenarios, kind: str) -> None:
            running_scenarios.result(body, kind)

        def cased(running_scenarios: RunningScenarios, kind: str, case: str) -> None:
            running_scenarios.result(body, kind, case)

        test: Any = pytest.mark.parametrize("kind", kinds or BOTH)(cased if named else plain)
        if named:
            test = pytest.mark.parametrize("case", named)(test)
        test.__name__ = test.__qualname__ = body.__name__
        test.__doc__ = body.__doc__
        test.__module__ = body.__module__
        test.scenario = body
        return test

    return make


class RunningScenarios:
    """Scenarios on a loop in a thread of its own."""

    def __init__(self, bus: LocalBus, wanted: list[Wanted]) -> None:
        self._bus = bus
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadPoolExecutor(4 * AT_ONCE, thread_name_prefix="sync-sdk")
        self._loop.set_default_executor(self._threads)
        self._thread = threading.Thread(target=self._loop.run_forever, name="scenarios")
        self._thread.start()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._results: dict[Wanted, Future[None]] = {
            key: asyncio.run_coroutine_threadsafe(self._run(*key), self._loop) for key in wanted
        }

    async def _run(self, body: Scenario, kind: str, *case: str) -> None:
        async with self._turns:
            at = SdkClients(self._bus, kind)
            try:
                await asyncio.wait_for(body(at, *case), _LIMIT_SECONDS)
            finally:
                await at.close()

    def result(self, body: Scenario, kind: str, *case: str) -> None:
        """Wait for a scenario and raise its exception."""
        wanted: Wanted = (body, kind, *case)
        self._results[wanted].result()

    def close(self) -> None:
        for result in self._results.values():
            result.cancel()
        asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._threads.shutdown()
        self._loop.close()

    async def _wind_up(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.gather(*rest, return_exceptions=True)
        # What the SDK left unclosed is found here, under the module's own warning filters and while there is a loop
        # to close it on, and not by chance later.
        gc.collect()
        await asyncio.sleep(0)


def wanted_in(module: Any, items: list[Any]) -> list[Wanted]:
    """Return the scenarios of a module that this run of pytest has selected."""

    def key(item: Any) -> Wanted:
        given = item.callspec.params
        return item.function.scenario, *(given[name] for name in ("kind", "case") if name in given)

    return [
        key(item) for item in items if getattr(item, "module", None) is module and hasattr(item.function, "scenario")
    ]
