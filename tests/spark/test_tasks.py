"""What a task hands over to the drain of its queue, and what it returns whatever becomes of it; without a session."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import Head, HeldCount, QueueSummary
from pairbus.spark import drain_task as tasks
from pairbus.spark.drain_task import Drain, DrainTask
from pairbus.spark.signals import KillMark, StopMark
from pairbus.syphon.journal.journal import read_journal
from tests.integration.syphon.test_service import identity, identity_of, options_in, unusual_config
from tests.support.stand_ins import explode, row


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
    """A second attempt at a task, as Spark tells of it."""

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


def task_of(config: SyphonConfig, drain: Drain, folder: Path, **more: Any) -> DrainTask:
    return DrainTask(config, str(folder / "run"), StopMark(str(folder), "run"), drain, **more)


def journal_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's only journal."""
    (path,) = (folder / "run").glob("*.journal")
    part = read_journal(str(path))
    assert part.finished
    found: list[dict[str, Any]] = part.table.to_pylist()
    return found


def test_a_queue_is_drained_as_the_configuration_says(config: SyphonConfig, recorder: Recorder, tmp_path: Path) -> None:
    """Namespaces, every option, the journal and the mark to stop; the rate is shared by the queues that are busy."""
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
    task.mark.set()
    assert given["stop"]()


def test_what_was_not_said_is_not_made_up(config: SyphonConfig, recorder: Recorder, tmp_path: Path) -> None:
    """No event hubs, no limit; a rate that no queue was counted for is not divided by nothing."""
    task_of(replace(config, event_hubs=None, max_rate=None), recorder, tmp_path).summarise(3, None, 7, 4)
    task_of(config, recorder, tmp_path).summarise(3, None, 7, 0)
    limitless, uncounted = recorder.given
    assert (limitless["event_hubs"], limitless["options"].max_rate) == (None, None)
    assert uncounted["options"].max_rate == 60


@pytest.mark.parametrize(("seconds", "is_wary"), [(600, True), (-1, False)])
def test_for_a_while_after_a_kill_tasks_are_wary(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path, seconds: float, is_wary: bool
) -> None:
    """Until the moment that the job has said, and no longer."""
    task_of(config, recorder, tmp_path, wary_until=time.time() + seconds).summarise(3, 10, 7, 1)
    assert recorder.given[0]["options"].after_a_kill is is_wary


def test_a_second_attempt_is_wary(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may have been killed a moment ago; each has a journal that says which it was."""
    monkeypatch.setattr(TaskContext, "get", Context)
    task_of(config, recorder, tmp_path).summarise(3, 10, 7, 1)
    assert recorder.given[0]["options"].after_a_kill
    assert journal_of(tmp_path)[0]["attempt"] == 41


def test_rows_of_the_source_become_rows_of_the_summary(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path
) -> None:
    """One each, with all that the drain said; a queue in which nothing lies is not drained."""
    said = [
        {"queue_index": 3, "depth": 10, "tick": 7, "busy": 2},
        {"queue_index": 8, "depth": 0, "tick": 7, "busy": 2},
    ]
    task = task_of(config, recorder, tmp_path)
    first, second = (each for batch in task.run(iter([pa.RecordBatch.from_pylist(said)])) for each in batch.to_pylist())
    assert [given["options"].max_rate for given in recorder.given] == [60 / 2]
    assert (first["queue_index"], first["depth"], first["tick"]) == (3, 10, 7)
    assert (first["received"], first["delivered"], first["held"]) == (3, 1, 2)
    assert first["held_for"] == [{"destination": "a", "reason": "busy", "count": 2}]
    assert (second["queue_index"], second["depth"], second["received"], second["empty"]) == (8, 0, 0, True)


def test_a_task_that_begins_after_the_mark_drains_nothing(
    config: SyphonConfig, recorder: Recorder, tmp_path: Path
) -> None:
    """And does not say that its queue is empty."""
    task = task_of(config, recorder, tmp_path)
    task.mark.set()
    assert task.summarise(3, 10, 7, 1) == QueueSummary(3)
    assert recorder.given == []


class Unclosable:
    """A journal on a storage that goes away between its last row and its end."""

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
    """Its rows are durable: what the drain came to is told all the same, and the log says what happened."""
    journal = Unclosable(error)
    monkeypatch.setattr(tasks, "open_journal", journal)
    summary = task_of(config, recorder, tmp_path).summarise(3, 10, 7, 1)
    assert (summary.received, summary.delivered, summary.held, summary.error) == (3, 1, 2, None)
    assert len(journal.heads) == 1
    assert str(error) in caplog.text


def test_a_defect_is_told_and_not_hidden_by_a_journal_that_cannot_be_closed(
    config: SyphonConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two errors the first is the one to know."""
    monkeypatch.setattr(tasks, "open_journal", Unclosable(OSError(5, "Input/output error")))
    summary = task_of(config, explode, tmp_path).summarise(3, 10, 7, 1)
    assert summary.error == "RuntimeError: a defect in the drain"


def test_a_mark_of_a_kill(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Until then a task takes messages for locked; a mark that cannot be read is taken for one of a moment ago."""
    mark = KillMark(str(tmp_path), "run")
    assert mark.until() == 0.0
    mark.set(12.5)
    assert mark.until() == 12.5
    (tmp_path / "run.killed").write_text("12.")
    assert mark.until() == 12.0
    (tmp_path / "run.killed").write_text("half a ma")
    assert mark.until() > time.time()
    assert "could not be seen" in caplog.text
    mark.remove()
    assert mark.until() == 0.0
