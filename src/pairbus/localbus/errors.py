"""The error that programs with a localbus may have to catch."""

from __future__ import annotations


class LocalBusError(RuntimeError):
    """localbus did not start, is not running or does not answer; the text says why, and what to do."""
