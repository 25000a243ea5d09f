"""The pytest plugin of pairbus: a `localbus` fixture for tests of your own Service Bus code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .process import LocalBus


@pytest.fixture
def localbus() -> Iterator[LocalBus]:
    """An empty Service Bus namespace in memory, for one test."""
    from .process import LocalBus

    with LocalBus() as bus:
        yield bus
        if bus.log:  # pytest shows it if the test fails
            print(bus.log, file=sys.stderr)
