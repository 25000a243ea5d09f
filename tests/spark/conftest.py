"""Fixtures for tests on Spark: one session for all of them, two localbus processes and a backlog to drain."""

from tests.support.event_hubs import hubs, hubs_bus
from tests.support.pairing import both, collected, pair
from tests.support.spark import backlog, spark

__all__ = ["backlog", "both", "collected", "hubs", "hubs_bus", "pair", "spark"]
