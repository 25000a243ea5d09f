"""The command `pairbus localbus`: one line for an error, an exit code, and a clean stop at any moment."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from typing import Any

from .options import STOP_SIGNALS, UsageError, add_arguments, read_options

USAGE_ERROR = 2


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGHUP or Ctrl-C; return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        with _interruptible():
            options = read_options(args)
            # Imported here, because the import takes most of the start and must be interruptible too.
            from .server_process import serve

            return serve(options)
    except UsageError as error:
        print(f"pairbus localbus: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for each stop signal in the with block, until the event loop handles them."""
    # A process that ignores the hangup (nohup) keeps ignoring it.
    numbers = [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


__all__ = ["add_arguments", "run"]
