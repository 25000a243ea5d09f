"""Fixtures for tests of the paired sender: two localbus processes and pairings of them."""

from tests.support.pairing import both, collected, pair, quick_pings

__all__ = ["both", "collected", "pair", "quick_pings"]
