"""How far a drain goes that is to empty what is there when it begins, and not what comes meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Reach:
    """The messages that were there: messages are given out in the order of their numbers, so those are the first that
    come, as many as there were. Some may be another's by now: then it reaches further, never less far."""

    def __init__(self, there: int) -> None:
        self._missing = there
        self._highest = -1
        #: The number of the last of them, once it is known.
        self._last: int | None = None
        #: Those that were held back after the pass before.
        self._held: set[int] | None = None

    def came(self, sequence: int) -> bool:
        """A message was received: whether everything that was there, and can be had, has come in this pass."""
        if self._last is not None:
            return sequence >= self._last
        if sequence > self._highest:
            self._highest = sequence
            self._missing -= 1
            if self._missing <= 0:
                self._last = sequence
                return True
        return False

    def is_done(self, held: Iterable[int]) -> bool:
        """A pass went over all of it: whether another one would not help. It does not if nothing of what was there is
        held back, or just what was before."""
        before = self._held
        self._held = {number for number in held if self._last is None or number <= self._last}
        return not self._held or self._held == before
