"""The exit code of `pairbus drain`, for each result of a drain."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.cli import drain
from pairbus.domain.outcome import QueueSummary
from pairbus.errors import PairbusError
from pairbus.syphon.service import Round


class Finished:
    """A service whose drain has ended."""

    def __init__(self, result: Round | PairbusError, journal_error: str | None = None) -> None:
        self._result = result
        self.journal_error = journal_error

    def begin(self) -> None: ...

    def stop(self) -> None: ...

    def once(self) -> Round:
        if isinstance(self._result, PairbusError):
            raise self._result
        return self._result


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Restore the handlers that the command replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


DRAINED = QueueSummary(0, received=2, delivered=2, empty=True)
LEFT = QueueSummary(0, received=1, delivered=1)
HELD = QueueSummary(0, received=1, held=1, empty=True)
#: All that is left is held back, because the primary refuses this syphon's credential.
NOT_LET_IN = QueueSummary(0, received=1, held=1, empty=True, error="this syphon is not let in")


@pytest.mark.parametrize(
    ("result", "journal_error", "code"),
    [
        (Round((DRAINED,)), None, 0),
        (Round((HELD,)), None, 0),
        (Round((LEFT,)), None, 1),
        (Round((NOT_LET_IN,)), None, 1),
        (PairbusError("the secondary does not answer"), None, 1),
        (Round((DRAINED,)), "the journal could not be ended in order", 1),
    ],
)
def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, result: Any, journal_error: str | None, code: int) -> None:
    """It is 0 if only held messages are left, and 1 after any error."""
    monkeypatch.setattr(drain, "load_config", lambda options, needs: SimpleNamespace(journal="folder"))
    monkeypatch.setattr(drain, "service_for", lambda config: Finished(result, journal_error))
    assert drain.run(argparse.Namespace(continuous=False)) == code
