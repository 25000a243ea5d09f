"""Fixtures for tests of the syphon: two localbus processes and a backlog to drain."""

from tests.support.backlog import backlog, in_background
from tests.support.event_hubs import hubs, hubs_bus
from tests.support.pairing import both, collected, pair

__all__ = ["backlog", "both", "collected", "hubs", "hubs_bus", "in_background", "pair"]
