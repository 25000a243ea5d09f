"""What no test may leave behind for another."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from _pytest import runner

#: Whose levels our commands set when they run in a process of their own.
_TALKATIVE = ("azure", "py4j", "pairbus")


def pytest_configure() -> None:
    """Pytest says in the environment which test runs, and takes that out after each one: in the midst of a loop over
    `os.environ` on another thread, as `requests` has one to look for proxies, that is a KeyError. Nobody reads it."""
    assert callable(runner._update_current_test_var)
    runner._update_current_test_var = lambda item, when: None


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
