"""Depth queries: the credential that each uses, their cost, and the time of the next."""

from __future__ import annotations

import logging

import pytest

from pairbus import Namespace
from pairbus.runtime.backoff import Backoff
from pairbus.syphon.backlog_monitor import BacklogMonitor, PollSchedule
from pairbus.syphon.depths import Depths
from tests.support.depth_answers import DepthAnswers, unreachable


class Resolver:
    """Resolves the secondary, each time with another host."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Namespace:
        self.calls += 1
        return unreachable(f"{self.calls}.example")


class TestCredential:
    """When the secondary is resolved."""

    def test_it_is_kept_while_the_secondary_answers(self) -> None:
        query, resolve = DepthAnswers({0: 1}), Resolver()
        monitored = BacklogMonitor(query, resolve)
        for _ in range(3):
            monitored.query()
        assert query.hosts == ["1.example"] * 3
        assert resolve.calls == 1

    def test_it_is_renewed_after_a_failure(self) -> None:
        """A key may have been renewed where the reference points."""
        query, resolve = DepthAnswers(OSError("no route"), {0: 1}), Resolver()
        monitored = BacklogMonitor(query, resolve)
        with pytest.raises(OSError, match="no route"):
            monitored.query()
        monitored.query()
        monitored.query()
        assert query.hosts == ["1.example", "2.example", "2.example"]

    def test_one_that_was_resolved_before_is_used_first(self) -> None:
        query, resolve = DepthAnswers({0: 1}), Resolver()
        monitored = BacklogMonitor(query, resolve, secondary=Resolver()())
        monitored.query()
        assert resolve.calls == 0
        monitored.renew()
        monitored.query()
        assert resolve.calls == 1

    def test_a_reference_that_cannot_be_resolved_is_a_failed_query(self) -> None:
        """It is tried again, and not counted as an operation."""
        operations: list[int] = []

        def fail() -> Namespace:
            raise LookupError("no such file")

        monitored = BacklogMonitor(DepthAnswers({0: 1}), fail, on_query=operations.append)
        for _ in range(2):
            assert monitored.query_or_warn("next attempt in 1 s") is None
        assert operations == []


class TestAnswers:
    """What a query returns, costs and logs."""

    def test_its_operations_are_counted(self) -> None:
        """Also those of one that failed, which is billed as well."""
        operations: list[int] = []
        monitored = BacklogMonitor(
            DepthAnswers({0: 1}, OSError("no route"), operations=3), Resolver(), on_query=operations.append
        )
        monitored.query()
        monitored.query_or_warn("")
        assert operations == [3, 1]

    def test_the_last_answer_is_kept(self) -> None:
        monitored = BacklogMonitor(DepthAnswers({0: 1}, OSError("no route")), Resolver())
        assert monitored.last is None
        monitored.query()
        assert monitored.query_or_warn("") is None
        assert monitored.last == Depths({0: 1})

    def test_a_failure_is_a_warning_without_secrets(self, caplog: pytest.LogCaptureFixture) -> None:
        """It names the primary, the cause and the next step."""
        query = DepthAnswers(ConnectionError("refused: SharedAccessSignature sr=x&sig=SECRET"))
        with caplog.at_level(logging.WARNING):
            assert BacklogMonitor(query, Resolver()).query_or_warn("next attempt in 8 s") is None
        (line,) = caplog.messages
        assert line.startswith("backlog depth unavailable for contoso: ConnectionError: refused")
        assert line.endswith("; next attempt in 8 s")
        assert "SECRET" not in line


class TestSchedule:
    """`PollSchedule`."""

    @pytest.fixture
    def schedule(self) -> PollSchedule:
        return PollSchedule(idle_interval=120.0, backoff=Backoff(1.0, 120.0))

    def test_the_first_query_is_due_at_once(self, schedule: PollSchedule) -> None:
        assert schedule.is_due(5.0)

    def test_an_empty_backlog_is_queried_after_the_idle_interval(self, schedule: PollSchedule) -> None:
        assert not schedule.answered({0: 0, 1: None}, at=1000.0)
        assert [schedule.is_due(now) for now in (1000.0, 1119.9, 1120.0)] == [False, False, True]

    def test_work_is_queried_for_again_at_once(self, schedule: PollSchedule) -> None:
        schedule.answered({0: 0}, at=1000.0)
        assert schedule.answered({0: 0, 1: 3}, at=1001.0)
        assert schedule.is_due(1001.0)

    def test_pauses_after_failures_double(self, schedule: PollSchedule) -> None:
        """Up to the longest; an answer ends the series."""
        pauses = []
        for _ in range(9):
            pauses.append(schedule.pause_after_failure())
            schedule.failed(1000.0)
            assert not schedule.is_due(1000.0 + pauses[-1] - 0.1)
            assert schedule.is_due(1000.0 + pauses[-1])
        assert pauses == [1, 2, 4, 8, 16, 32, 64, 120, 120]
        schedule.answered({0: 0}, at=1000.0)
        assert schedule.pause_after_failure() == 1

    def test_it_can_be_made_due(self, schedule: PollSchedule) -> None:
        schedule.answered({0: 0}, at=1000.0)
        schedule.make_due()
        assert schedule.is_due(1000.0)

    def test_the_idle_interval_may_be_longer_than_any_pause(self) -> None:
        schedule = PollSchedule(idle_interval=600.0, backoff=Backoff(1.0, 120.0))
        schedule.answered({0: 0}, at=1000.0)
        assert [schedule.is_due(now) for now in (1000.0, 1599.0, 1600.0)] == [False, False, True]

    def test_a_clock_that_was_set_back_puts_no_query_off(self, schedule: PollSchedule) -> None:
        schedule.answered({0: 0}, at=100_000.0)
        assert not schedule.is_due(100_000.0)
        assert schedule.is_due(100_000.0 - 3600)
