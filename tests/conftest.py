"""What no test may leave behind for another."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

#: Whose levels our commands set when they run in a process of their own.
_TALKATIVE = ("azure", "py4j", "pairbus")


@pytest.fixture(autouse=True)
def levels_of_logging() -> Iterator[None]:
    """A command that a test runs in this process quietens others' loggers: the next test may want to hear them."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in [each for each in logging.root.handlers if type(each) is logging.StreamHandler]:
        logging.root.removeHandler(handler)  # basicConfig's; pytest's own are of other kinds
