"""Pauses between attempts: each failure doubles the pause, up to a longest one."""

from __future__ import annotations

from dataclasses import dataclass

#: Doublings beyond this many would overflow a float before any pause is that long.
_MOST_DOUBLINGS = 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """A pause of `first` seconds that doubles with each failure in a row, up to `longest` seconds."""

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """Return the seconds to wait before the next attempt after so many failures in a row."""
        return min(self.first * 2.0 ** min(failures, _MOST_DOUBLINGS), self.longest)
