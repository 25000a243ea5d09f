"""Waiting for a condition, with a time limit after which the test fails and says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any


def pauses(seconds: float, pause: float) -> Iterator[float]:
    """Yield the pause before each further try until the time is over; the last try comes after its end."""
    deadline = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > deadline
        yield pause
        if is_last:
            return


def wait_until(condition: Callable[[], Any], seconds: float = 60.0, why: Callable[[], Any] | str = "") -> Any:
    """Poll until a condition's value is true, and return that value.

    After the time limit, fail with `why`: a text, or a function that describes the state at that time.
    """
    for pause in pauses(seconds, 0.02):
        if found := condition():
            return found
        time.sleep(pause)
    reason = why() if callable(why) else why
    raise AssertionError(f"it did not come true within {seconds} s: {reason or condition}")


async def wait_until_async(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Poll a condition without blocking the event loop."""
    for pause in pauses(seconds, 0.005):
        if condition():
            return
        await asyncio.sleep(pause)
    raise AssertionError(f"it did not come true within {seconds} s: {condition}")
