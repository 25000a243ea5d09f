"""`pairbus localbus`: one line and an exit code for whatever happens, and a quiet end from the first moment on."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

from .options import STOPPING, UsageError, add_arguments, read_options

USAGE_ERROR = 2


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGHUP or Ctrl-C; the process's exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        with _interruptible():
            options = read_options(args)
            # Not above: to import the server takes longer than all else of the start, and is interrupted like it.
            from .server_process import serve

            return serve(options)
    except UsageError as error:
        print(f"pairbus localbus: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Each signal that stops localbus raises KeyboardInterrupt, until its loop listens for them.

    Python's own handler would not do: asyncio replaces it by one that waits until the start is over.
    """
    # What was started to outlive its terminal (nohup) ignores the hangup, and goes on doing so.
    wanted = [n for n in STOPPING if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


__all__ = ["add_arguments", "run"]
