"""Output of the demo: lines, tables and progress, with a live line on a terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Sequence

#: Without a terminal: pause between lines of progress, and before the same line is repeated.
_PLAIN_SECONDS = 5.0
_SAME_SECONDS = 20.0
_FRAME_SECONDS = 0.1
_BACK_AND_CLEAR = "\r\x1b[K"


class Screen:
    """Standard output, shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_live = sys.stdout.isatty()
        self._shown = False
        self._last, self._again = "", 0.0
        self._next = time.monotonic() + (0 if self._is_live else _PLAIN_SECONDS)

    def say(self, text: str = "") -> None:
        """Print a permanent line."""
        with self._lock:
            self._wipe()
            print(text, flush=True)

    def progress(self, text: str) -> None:
        """Show progress, at a limited rate."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return
            self._next = now + (_FRAME_SECONDS if self._is_live else _PLAIN_SECONDS)
            if self._is_live:
                width = shutil.get_terminal_size().columns - 1
                print(f"{_BACK_AND_CLEAR}{f'   … {text}'[:width]}", end="", flush=True)
                self._shown = True
            elif text != self._last or now >= self._again:
                print(f"   … {text}", flush=True)
                self._last, self._again = text, now + _SAME_SECONDS

    def done(self) -> None:
        """Remove the live line, if there is one, and restart the rate limit."""
        with self._lock:
            self._wipe()
            self._next = time.monotonic() + (0 if self._is_live else _PLAIN_SECONDS)

    def _wipe(self) -> None:
        if self._shown:
            print(_BACK_AND_CLEAR, end="", flush=True)
            self._shown = False


def table(head: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "   ") -> str:
    """Return rows under a head, with numbers aligned to the right."""
    told = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *told]) for column in range(len(head))]
    numeric = [all(isinstance(row[column], int) for row in rows) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        parts = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return indent + "  ".join(parts).rstrip()

    return "\n".join([line(head), indent + "  ".join("-" * width for width in widths), *map(line, told)])
