"""Python's garbage collector, while messages are on the move."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: So many objects more than there were, before it looks: a window of messages, and what belongs to them.
_THRESHOLD = 200_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """For a process that does nothing but drain.

    A drain has tens of thousands of objects that live for a fraction of a second, and none of them refers back to
    itself. The collector would walk over them again and again and find nothing, for a tenth of the CPU time.
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
