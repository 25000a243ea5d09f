"""The task that drains one queue: what it hands to the drain, and its summary; without a session."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Row

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import Head, HeldCount, QueueSummary
from pairbus.spark import drain_task
from pairbus.spark.drain_task import DrainFunction, DrainTask, summary_of
from pairbus.spark.signals import KillSignal, StopSignal
from tests.support.failing_drains import explode, row
from tests.support.journal_rows import read_journal
from tests.support.unusual_config import identity, identity_of, options_in, unusual_config


class Recorder:
    """A drain that delivers one message and remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def __call__(self, **given: Any) -> QueueSummary:
        self.given.append(given)
        given["journal"].write(row(1))
        held = (HeldCount("a", "busy", 2),)
        return QueueSummary(given["queue_index"], received=3, delivered=1, held=2, held_for=held)


class Context:
    """Spark's context of a second attempt at a task."""

    def taskAttemptId(self) -> int:
        return 41

    def attemptNumber(self) -> int:
        return 1


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyphonConfig:
    return unusual_config(tmp_path, monkeypatch)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def task_of(config: SyphonConfig, drain: DrainFunction, folder: Path, **more: Any) -> DrainTask:
    return DrainTask(config, str(folder / "run"), StopSignal(str(folder), "run"), drain, **more)


def journal_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's only journal."""
    (path,) = (folder / "run").glob("*.journal")
    part = read_journal(str(path))
    assert part.finished
    found: list[dict[str, Any]] = part.table.to_pylist()
    return found


def test_a_queue_is_drained_as_the_configuration_says(config: SyphonConfig, recorder: Recorder, tmp_path: Path) -> None:
    """Namespaces, every option, the journal and the stop signal; busy queues share the rate."""
    task = task_of(config, recorder, tmp_path)
    assert task.summarise(3, 10, 7, 4).delivered == 1
    (given,) = recorder.given
    assert given["queue_index"] == 3
    assert identity(given["primary"]) == identity_of("primary")
    assert identity(given["secondary"]) == identity_of("secondary")
    assert identity(given["event_hubs"]) == identity_of("event-hubs")
    expected = options_in(config) | {"budget": 77, "max_rate": 60 / 4, "after_a_kill": False}
    assert {name: getattr(given["options"], name) for name in expected} == expected
    (written,) = journal_of(tmp_path)
    assert [written[name] for name in ("namespace", "queue_index", "batch", "attempt")] == ["name-of-primary", 3, 7, 0]
    assert not given["stop"]()
    task.stop.set()
    assert given["stop"]()


def test_options_that_are_not_set_stay_unset(config: SyphonConfig, recorder: Recorder, tmp_path: Path) -> None:
    """No event hubs and no limit; and a rate is not divided by zero busy queues."""
    task_of(replace(config, event_hubs=None, max_rate=None), recorder, tmp_path).summarise(3, None, 7, 4)
    task_of(config, recorder, tmp_path).summarise(3, None, 7, 0)
    limitless, uncounted = recorder.given
    assert (limitless["event_hubs"], limitless["options"].max_rate) == (None, None)
    assert uncounted["options"].max_rate == 60


@pytest.mark.parametrize(("seconds", "expected"), [(600, True), (-1, False)])
def test_after_a_killed_run_messages_may_be_locked_for_a_while(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path, seconds: float, expected: bool
) -> None:
    """Until the time that the driver has set, and no longer."""
    task_of(config, recorder, tmp_path, locked_until=time.time() + seconds).summarise(3, 10, 7, 1)
    assert recorder.given[0]["options"].after_a_kill is expected


@pytest.mark.parametrize(("seconds", "expected"), [(600, True), (-1, False)])
def test_after_a_killed_task_messages_may_be_locked_for_a_while(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path, seconds: float, expected: bool
) -> None:
    """The kill signal of the same run has the time."""
    kills = KillSignal(str(tmp_path), "run")
    kills.set(time.time() + seconds)
    task_of(config, recorder, tmp_path, kills=kills).summarise(3, 10, 7, 1)
    assert recorder.given[0]["options"].after_a_kill is expected


def test_before_a_second_attempt_messages_may_be_locked(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may have been killed a moment ago; each attempt has a journal of its own."""
    monkeypatch.setattr(TaskContext, "get", Context)
    task_of(config, recorder, tmp_path).summarise(3, 10, 7, 1)
    assert recorder.given[0]["options"].after_a_kill
    assert journal_of(tmp_path)[0]["attempt"] == 41


def test_rows_of_the_source_become_rows_of_the_summary(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path
) -> None:
    """One each, with all fields of the drain's summary; an empty queue is not drained."""
    rows = [
        {"queue_index": 3, "depth": 10, "tick": 7, "busy": 2},
        {"queue_index": 8, "depth": 0, "tick": 7, "busy": 2},
    ]
    task = task_of(config, recorder, tmp_path)
    first, second = (each for batch in task.run(iter([pa.RecordBatch.from_pylist(rows)])) for each in batch.to_pylist())
    assert [given["options"].max_rate for given in recorder.given] == [60 / 2]
    assert (first["queue_index"], first["depth"], first["tick"]) == (3, 10, 7)
    assert (first["received"], first["delivered"], first["held"]) == (3, 1, 2)
    assert first["held_for"] == [{"destination": "a", "reason": "busy", "count": 2}]
    assert (second["queue_index"], second["depth"], second["received"], second["empty"]) == (8, 0, 0, True)


def test_a_summary_is_the_same_after_its_journey(config: SyphonConfig, recorder: Recorder, tmp_path: Path) -> None:
    """From the executor, as a row, to the driver."""
    task = task_of(config, recorder, tmp_path)
    rows = pa.RecordBatch.from_pylist([{"queue_index": 3, "depth": 10, "tick": 7, "busy": 1}])
    (sent,) = (each for batch in task.run(iter([rows])) for each in batch.to_pylist())
    held = [Row(**each) for each in sent.pop("held_for")]
    expected = QueueSummary(3, received=3, delivered=1, held=2, held_for=(HeldCount("a", "busy", 2),))
    assert summary_of(Row(**sent, held_for=held)) == expected


def test_a_task_that_starts_after_the_stop_drains_nothing(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path
) -> None:
    """And does not report its queue as empty."""
    task = task_of(config, recorder, tmp_path)
    task.stop.set()
    assert task.summarise(3, 10, 7, 1) == QueueSummary(3)
    assert recorder.given == []


class Unclosable:
    """A journal whose storage fails after the last row."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.heads: list[Head] = []

    def __call__(self, folder: str, head: Head) -> Unclosable:
        self.heads.append(head)
        return self

    def write(self, rows: Any) -> None: ...

    def close(self) -> None:
        raise self._error


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("the storage's own")])
def test_a_journal_that_cannot_be_closed_costs_no_summary(
    config: SyphonConfig,
    recorder: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """Its rows are durable: the summary is that of the drain, and the log has the error."""
    journal = Unclosable(error)
    monkeypatch.setattr(drain_task, "open_journal", journal)
    summary = task_of(config, recorder, tmp_path).summarise(3, 10, 7, 1)
    assert (summary.received, summary.delivered, summary.held, summary.error) == (3, 1, 2, None)
    assert len(journal.heads) == 1
    assert str(error) in caplog.text


def test_a_journal_that_cannot_be_closed_hides_no_earlier_error(
    config: SyphonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two errors the summary has the first."""
    monkeypatch.setattr(drain_task, "open_journal", Unclosable(OSError(5, "Input/output error")))
    summary = task_of(config, explode, tmp_path).summarise(3, 10, 7, 1)
    assert summary.error == "RuntimeError: a defect in the drain"
