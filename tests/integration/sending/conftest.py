"""Fixtures for tests of the paired sender: two localbus processes and pairings of them."""

from tests.support.event_hubs import hubs, hubs_bus
from tests.support.pairing import both, collected, pair, quick_pings

__all__ = ["both", "collected", "hubs", "hubs_bus", "pair", "quick_pings"]
