"""What a program that uses localbus may have to catch."""

from __future__ import annotations


class LocalBusError(RuntimeError):
    """localbus did not start or does not answer; the text says why, and what to do."""
