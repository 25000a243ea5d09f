"""The pytest plugin that comes with pairbus: a `localbus` fixture for testing your own Service Bus code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .process import LocalBus


@pytest.fixture
def localbus() -> Iterator[LocalBus]:
    """A fresh, empty Service Bus namespace, in memory, for one test."""
    from .process import LocalBus

    with LocalBus() as bus:
        yield bus
        if bus.log:  # pytest shows it if the test has failed
            print(bus.log, file=sys.stderr)
