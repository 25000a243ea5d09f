"""What no test may leave behind for another, and which tests run beside each other."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest import runner
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

#: Whose levels our commands set when they run in a process of their own.
_TALKATIVE = ("azure", "py4j", "pairbus")
#: What takes longest: it is begun first, or all others would wait for it at the end.
_FIRST = ("tests/spark/", "tests/integration/jobs/test_demo.py", "tests/integration/sending/test_outages.py")
#: Has a JVM of its own.
_APART = "tests/spark/test_testing_guide.py"


# A machine that stalls for a moment is no find; what CI's own profile says besides stays.
settings.register_profile("pairbus", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pairbus")


def pytest_configure() -> None:
    """Pytest says in the environment which test runs, and takes that out after each one: in the midst of a loop over
    `os.environ` on another thread, as `requests` has one to look for proxies, that is a KeyError. Nobody reads it."""
    assert callable(runner._update_current_test_var)
    runner._update_current_test_var = lambda item, when: None
    # A shell in the background ignores Ctrl-C, and nohup hangups: what the tests start and stop would inherit that.
    for each, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


class _OneSession(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """A file is one worker's, and so are all that share a SparkSession: its start costs more than most of its tests."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "spark" if file.startswith("tests/spark/") and file != _APART else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return _OneSession(config, log) if config.option.dist == "loadfile" else None


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
