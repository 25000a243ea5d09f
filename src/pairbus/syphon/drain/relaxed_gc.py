"""Python's garbage collector, relaxed while messages are on the move."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects that are allocated before the collector runs: a window of messages, with what belongs to them.
_THRESHOLD = 200_000


@contextmanager
def relaxed_gc() -> Iterator[None]:
    """Run the garbage collector rarely, in a process that does nothing but drain.

    It would spend a tenth of the CPU time on walking over tens of thousands of short-lived objects without cycles.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] >= _THRESHOLD:
        yield
        return
    gc.set_threshold(_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
