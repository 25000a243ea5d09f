"""A bus for tests of raw AMQP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.localbus import LocalBus
from tests.support.process_fixtures import create


@pytest.fixture(scope="module")
def bus() -> Iterator[LocalBus]:
    """A bus with the queue `q`, which accepts any JSON web token."""
    with LocalBus("ways", accept_any_jwt=True) as bus:
        create(bus, "q")
        yield bus
