"""Decisions of `Service` between its drains: queries, pauses, warnings and renewed credentials."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus import Namespace
from pairbus.domain.outcome import QueueSummary
from pairbus.errors import OptionError, PairbusError
from pairbus.syphon import service as service_module
from pairbus.syphon.depths import DepthQuery, Depths
from pairbus.syphon.drain.drain import DrainOptions
from pairbus.syphon.service import Round, Service
from tests.support.depth_answers import unreachable


class Syphon:
    """A service whose depth queries and drains answer as a test says, and whose pauses take no time.

    `depths` has the answers of the queries, and `drains` the summaries of the drains, the last one again and again.
    The service is stopped after so many pauses.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Path,
        *,
        depths: list[Depths | Exception],
        drains: list[QueueSummary] | None = None,
        pauses: int = 3,
        **options: Any,
    ) -> None:
        self.queried: list[str] = []
        self.drained: list[DrainOptions] = []
        self.pauses: list[float] = []
        self.rounds: list[Round] = []
        self._depths, self._drains = depths, drains or []
        self.names: list[str] = []

        def run(query: DepthQuery, secondary: Namespace) -> Depths:
            self.names.append(query.primary_name)
            return self._answer(secondary)

        monkeypatch.setattr(DepthQuery, "run", run)
        monkeypatch.setattr(service_module, "Drain", self._drain)
        self.service = Service(
            unreachable("primary.example"),
            unreachable("secondary-0.example"),
            [0, 1],
            str(folder),
            options=DrainOptions(retry_interval=1.0, max_rate=options.pop("max_rate", None)),
            on_round=self.rounds.append,
            **options,
        )

        def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            if len(self.pauses) == pauses:
                self.service.stop()

        monkeypatch.setattr(self.service, "_pause", pause)

    def _answer(self, secondary: Namespace) -> Depths:
        self.queried.append(secondary.host)
        answer = self._depths.pop(0) if len(self._depths) > 1 else self._depths[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _drain(self, *arguments: Any) -> Any:
        *_, options, _stop = arguments
        self.drained.append(options)
        summary = self._drains.pop(0) if len(self._drains) > 1 else self._drains[0]

        class Drained:
            async def run(self) -> QueueSummary:
                return summary

        return Drained()


@pytest.fixture
def syphon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Syphon]:
    return lambda **given: Syphon(monkeypatch, tmp_path / "journal", **given)


def renewal() -> Callable[[], Any]:
    """Return a function that resolves to a new secondary each time."""
    calls = iter(range(1, 100))
    return lambda: (unreachable("primary.example"), unreachable(f"secondary-{next(calls)}.example"), None)


MOVED = QueueSummary(0, received=1, delivered=1, empty=True)
REFUSED = QueueSummary(0, error="not authorized")
HELD = QueueSummary(0, received=1, held=1, empty=True)


class TestForever:
    """`forever`."""

    def test_an_empty_backlog_is_polled(self, syphon: Callable[..., Syphon]) -> None:
        """Without a drain, at the idle interval."""
        made = syphon(depths=[Depths({0: 0, 1: None})], idle_poll_interval=45.0)
        made.service.forever()
        assert (made.pauses, made.drained) == ([45.0] * 3, [])

    def test_failures_of_queries_and_rounds_are_one_series(self, syphon: Callable[..., Syphon]) -> None:
        """Each doubles the pause, up to two minutes; progress ends the series."""
        made = syphon(depths=[OSError("no route"), Depths({0: 1})], drains=[HELD, MOVED, HELD], pauses=12)
        made.service.forever()
        assert made.pauses == [2, 4, 1, 2, 4, 8, 16, 32, 64, 120, 120, 120]

    def test_after_a_failed_query_namespaces_are_resolved_anew(self, syphon: Callable[..., Syphon]) -> None:
        """A key may have been renewed."""
        made = syphon(depths=[OSError("no route"), Depths({0: 0})], resolve=renewal())
        made.service.forever()
        assert made.queried == ["secondary-0.example", "secondary-1.example", "secondary-1.example"]

    def test_after_refused_deliveries_too(self, syphon: Callable[..., Syphon]) -> None:
        """The primary's key may be the one; a round without errors gives no cause."""
        made = syphon(depths=[Depths({0: 1})], drains=[HELD, REFUSED, MOVED], resolve=renewal())
        made.service.forever()
        assert made.queried == ["secondary-0.example"] * 2 + ["secondary-1.example"]

    def test_the_backlog_of_a_primary_with_another_name_is_queried(self, syphon: Callable[..., Syphon]) -> None:
        """References that have come to name another primary: its queues are drained, so its depths count."""
        primary = Namespace("other.example", credential=unreachable().credential, name="other")
        others = (primary, unreachable("secondary-1.example"), None)
        made = syphon(depths=[OSError("no route"), Depths({0: 0})], resolve=lambda: others)
        made.service.forever()
        assert made.names == ["backup", "other", "other"]

    def test_a_renewal_that_fails_changes_nothing(
        self, syphon: Callable[..., Syphon], caplog: pytest.LogCaptureFixture
    ) -> None:
        """It may be under way: the previous credentials are used meanwhile."""

        def fail() -> Any:
            raise OptionError("[primary] no such file")

        made = syphon(depths=[OSError("no route"), Depths({0: 0})], resolve=fail)
        made.service.forever()
        assert made.queried == ["secondary-0.example"] * 3
        assert "[primary] no such file; the previous credentials are kept" in caplog.text

    def test_warnings_are_logged_when_they_change(
        self, syphon: Callable[..., Syphon], caplog: pytest.LogCaptureFixture
    ) -> None:
        """And not with every query."""
        same, other = Depths({0: 0, 1: None}), Depths({0: 0, 1: 0}, others={7: 3})
        made = syphon(depths=[same, same, other, other], pauses=5)
        with caplog.at_level(logging.WARNING):
            made.service.forever()
        assert [message.partition(" ")[0] for message in caplog.messages] == ["secondary-0.example", "[syphon]"]

    def test_a_round_has_a_budget(self, syphon: Callable[..., Syphon]) -> None:
        """So that no queue waits for another's million messages; busy queues share the rate."""
        made = syphon(depths=[Depths({0: 9, 1: 9})], drains=[MOVED], pauses=1, max_rate=10.0)
        made.service.forever()
        assert [(each.budget, each.max_rate) for each in made.drained] == [(60.0, 5.0)] * 2

    def test_a_wake_ends_the_pause(self, syphon: Callable[..., Syphon], monkeypatch: pytest.MonkeyPatch) -> None:
        """Each wake ends one, and a stop the last."""
        made = syphon(depths=[Depths({0: 0})])
        monkeypatch.setattr(made.service, "_pause", Service._pause.__get__(made.service))
        thread = threading.Thread(target=made.service.forever)
        thread.start()
        try:
            for count in (1, 2, 3):
                deadline = time.monotonic() + 60
                while len(made.queried) < count and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert len(made.queried) == count
                if count < 3:
                    made.service.wake()
        finally:
            made.service.stop()
            thread.join(60)
        assert not thread.is_alive()


class TestOnce:
    """`once`."""

    def test_it_drains_no_further_than_the_messages_that_are_there(self, syphon: Callable[..., Syphon]) -> None:
        """Without a budget, and until the depth says that they are gone."""
        made = syphon(depths=[Depths({0: 9, 1: 0}), Depths({0: 0, 1: 0})], drains=[MOVED])
        done = made.service.once()
        assert [(each.budget, each.goal) for each in made.drained] == [(None, 9)]
        assert (done.is_empty, done.moved, len(made.queried)) == (True, 1, 2)

    def test_a_queue_that_is_not_drained_ends_it(self, syphon: Callable[..., Syphon]) -> None:
        """Its error, if it has one, is in the result."""
        made = syphon(depths=[Depths({0: 9})], drains=[REFUSED])
        done = made.service.once()
        assert (done.is_empty, done.errors, len(made.rounds)) == (False, ("queue 0: not authorized",), 1)

    def test_locked_messages_are_waited_for(
        self, syphon: Callable[..., Syphon], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The receiver finds nothing, and the depth says that they are there: the next round delivers them."""
        monkeypatch.setattr(service_module, "_LOCKED_PAUSE_SECONDS", 0.0)
        nothing = QueueSummary(0, empty=True)
        depths: list[Depths | Exception] = [Depths({0: 2}), Depths({0: 2}), Depths({0: 1}), Depths({0: 0})]
        made = syphon(depths=depths, drains=[nothing, MOVED])
        assert made.service.once().moved == 2
        assert len(made.rounds) == 3

    def test_a_stop_ends_it(self, syphon: Callable[..., Syphon]) -> None:
        made = syphon(depths=[Depths({0: 1})], drains=[QueueSummary(0, empty=True)])
        made.service.stop()
        made.service.once()
        assert len(made.rounds) == 1

    def test_queues_none_of_which_exists_are_an_error(self, syphon: Callable[..., Syphon]) -> None:
        """A name is wrong; the backlog is not empty."""
        made = syphon(depths=[Depths({0: None, 1: None})])
        with pytest.raises(PairbusError, match=r"secondary-0\.example has no backlog queue"):
            made.service.once()

    def test_a_secondary_that_does_not_answer_is_an_error(self, syphon: Callable[..., Syphon]) -> None:
        made = syphon(depths=[OSError("no route")])
        with pytest.raises(PairbusError, match=r"\[secondary\]: backlog depth unavailable for .*: OSError: no route"):
            made.service.once()

    def test_its_operations_are_reported(self, syphon: Callable[..., Syphon]) -> None:
        """Those of each depth query."""
        operations: list[int] = []
        made = syphon(depths=[Depths({0: 0}, operations=3)], on_query=operations.append)
        made.service.once()
        assert operations == [3, 3]
