"""Settings and clean-up that every test shares, and the order in which files run beside each other."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest import runner
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

#: Loggers whose levels the `pairbus` commands set.
_LOGGERS = ("azure", "py4j", "pairbus")
#: The longest files: they start first, or the run would wait for them at its end.
_FIRST = ("tests/spark/", "tests/integration/jobs/test_demo.py", "tests/integration/sending/test_outages.py")
#: A file that starts a JVM of its own.
_OWN_JVM = "tests/spark/test_testing_guide.py"


# The same inputs in every run and for everyone: random ones belong to `make fuzz`, and each find becomes an example.
# A machine that stalls for a moment is no find either.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", settings.get_profile("repeatable"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("PAIRBUS_HYPOTHESIS", "repeatable"))


def pytest_configure() -> None:
    """Keep pytest from changing `os.environ`, and restore the signals that a background shell ignores."""
    # PYTEST_CURRENT_TEST comes and goes while `requests` iterates over os.environ on another thread: a KeyError there.
    assert callable(runner._update_current_test_var)
    runner._update_current_test_var = lambda item, when: None
    # A background shell ignores SIGINT, and nohup SIGHUP; the processes that tests start would inherit that.
    for each, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_FIRST))


class _OneSession(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """A scheduler that gives one worker a whole file, and all files that share the SparkSession."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "spark" if file.startswith("tests/spark/") and file != _OWN_JVM else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return _OneSession(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(autouse=True)
def levels_of_logging() -> Iterator[None]:
    """Restore the levels of loggers that a command under test has changed in this process."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in [each for each in logging.root.handlers if type(each) is logging.StreamHandler]:
        logging.root.removeHandler(handler)  # basicConfig's; pytest's own are of other kinds
