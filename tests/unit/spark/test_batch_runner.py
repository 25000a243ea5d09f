"""The driver's part in each batch: folding, reporting, pauses and failures; without Spark."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from pairbus.domain.outcome import QueueSummary
from pairbus.runtime.backoff import Backoff
from pairbus.spark.batch_runner import BatchRunner
from pairbus.spark.batch_summary import BatchSummary
from pairbus.spark.ledger import BatchRow
from pairbus.spark.signals import KillSignal, ReaderNote, ReaderNotes
from pairbus.syphon.backlog_monitor import BacklogMonitor
from tests.support.depth_answers import DepthAnswers, unreachable

MOVED = QueueSummary(0, received=2, delivered=2)
NOTHING = QueueSummary(0, received=2, held=2, empty=True)


class Tables:
    """A ledger that counts its folds and keeps the batches that it was given; a fold may fail."""

    def __init__(self) -> None:
        self.folds = 0
        self.batches: list[tuple[int, list[BatchRow]]] = []
        self.error: Exception | None = None

    def fold(self, journals: Any) -> int:
        self.folds += 1
        if self.error is not None:
            raise self.error
        return 1

    def append_batch(self, namespace: str, run: str, batch: int, at: Any, rows: list[BatchRow]) -> None:
        self.batches.append((batch, rows))


class Runner:
    """A runner of batches in a folder, with a secondary whose backlog has ten messages."""

    def __init__(self, folder: Path, is_last: Callable[[BatchSummary], bool]) -> None:
        self.tables = Tables()
        self.depths = DepthAnswers({0: 10})
        self.stopping = threading.Event()
        self.kills = KillSignal(str(folder / "journals"), "run")
        (folder / "journals").mkdir()
        self._note = folder / "note"
        self._batch = 0
        self.runner = BatchRunner(
            "contoso",
            "run",
            ledger=self.tables,  # type: ignore[arg-type]
            journals=SimpleNamespace(),  # type: ignore[arg-type]
            monitor=BacklogMonitor(self.depths, unreachable),
            notes=ReaderNotes(self._note, self.stopping),
            kills=self.kills,
            stopping=self.stopping,
            backoff=Backoff(1.0, 120.0),
            is_last=is_last,
        )

    def run(self, *summaries: QueueSummary, collect: Callable[[], Any] | None = None) -> None:
        """Run a batch whose tasks return these summaries, unless `collect` does something else."""
        self._batch += 1
        rows = [Row(**asdict(each), depth=12, tick=self._batch) for each in summaries]
        self.runner.run(SimpleNamespace(collect=collect or (lambda: rows)), self._batch)  # type: ignore[arg-type]

    @property
    def note(self) -> ReaderNote:
        return ReaderNote.read(self._note)

    @property
    def pause(self) -> int:
        """The pause that the reader was given last, in seconds."""
        return max(round(self.note.pause_until - time.time()), 0)


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Runner]:
    made = Runner(tmp_path, is_last=lambda summary: False)
    yield made
    made.runner.close()


def fail() -> Any:
    raise RuntimeError("a worker died")


def test_a_batch_is_reported(batches: Runner, caplog: pytest.LogCaptureFixture) -> None:
    """To the log, to the ledger, and to the reader, which needs no query of its own then."""
    with caplog.at_level(logging.INFO):
        batches.run(MOVED)
    (summary,) = batches.runner.summaries
    assert (summary.before, summary.after, summary.moved) == ({0: 12}, {0: 10}, 2)
    assert batches.tables.batches == [(1, [BatchRow(MOVED, 12, 10)])]
    assert str(summary) in caplog.messages
    assert (batches.note.depths, batches.note.stopping, batches.tables.folds) == ({0: 10}, False, 1)
    assert batches.note.queried_at == pytest.approx(time.time(), abs=5)


def test_the_cost_of_the_depth_query_is_part_of_the_summary(batches: Runner) -> None:
    """Also that of one that failed, which is billed as well."""
    batches.depths.operations = 3
    batches.run(MOVED)
    batches.depths.answers = [OSError("no route")]
    batches.run(MOVED)
    assert [summary.management for summary in batches.runner.summaries] == [3, 1]


def test_a_batch_with_errors_is_a_warning(batches: Runner, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pairbus.syphon"):
        batches.run(MOVED)
        batches.run(QueueSummary(0, error="lost"))
    levels = [record.levelno for record in caplog.records if record.getMessage().startswith("batch ")]
    assert levels == [logging.INFO, logging.WARNING]


def test_queues_are_in_order(batches: Runner) -> None:
    """Whichever task ended first."""
    batches.run(QueueSummary(2), QueueSummary(0), QueueSummary(1))
    assert [queue.queue_index for queue in batches.runner.summaries[0].queues] == [0, 1, 2]


def test_an_unknown_depth_is_none(batches: Runner) -> None:
    """The batch is reported all the same, and the reader queries by itself."""
    batches.depths.answers = [OSError("no route")]
    batches.run(MOVED)
    assert batches.runner.summaries[0].after == {0: None}
    assert batches.note.depths is None
    assert batches.note.serial == 1


def test_a_batch_without_rows_does_nothing(batches: Runner) -> None:
    """A checkpoint begins with such a batch."""
    batches.run()
    assert (batches.tables.folds, len(batches.runner.summaries), batches.note) == (0, 0, ReaderNote())


def test_pauses_double_while_nothing_is_moved(batches: Runner) -> None:
    """From the retry interval on; a batch that moves messages ends the series."""
    pauses = []
    for summary in (NOTHING, NOTHING, NOTHING, MOVED, NOTHING):
        batches.run(summary)
        pauses.append(batches.pause)
    assert pauses == [1, 2, 4, 0, 1]


def test_the_last_batch_stops_the_run(tmp_path: Path) -> None:
    """No batch runs after it, and the reader is told to offer none."""
    batches = Runner(tmp_path, is_last=lambda summary: summary.batch == 2)
    for _ in range(4):
        batches.run(MOVED)
    batches.runner.close()
    assert [summary.batch for summary in batches.runner.summaries] == [1, 2]
    assert batches.note.stopping


class TestFailures:
    """A batch that fails as a whole."""

    def test_one_does_not_end_the_query(self, batches: Runner, caplog: pytest.LogCaptureFixture) -> None:
        """The next follows after a pause, and its tasks know that messages may be locked."""
        batches.run(collect=fail)
        assert "batch 1 failed; next attempt in 1 s" in caplog.text
        assert "a worker died" in caplog.text
        assert batches.pause == 1
        assert batches.kills.until() > time.time() + 30
        batches.run(MOVED)
        assert [summary.batch for summary in batches.runner.summaries] == [2]

    def test_three_in_a_row_do(self, batches: Runner) -> None:
        batches.run(collect=fail)
        batches.run(collect=fail)
        with pytest.raises(RuntimeError, match="a worker died"):
            batches.run(collect=fail)
        assert not batches.runner.is_running

    def test_a_success_in_between_starts_the_count_anew(self, batches: Runner) -> None:
        for _ in range(3):
            batches.run(collect=fail)
            batches.run(collect=fail)
            batches.run(MOVED)

    def test_a_fold_that_fails_fails_the_batch(self, batches: Runner, caplog: pytest.LogCaptureFixture) -> None:
        """Else messages would go on moving while the ledger stands still."""
        batches.tables.error = OSError("the ledger's disk is full")
        batches.run(MOVED)
        assert "batch 1 failed" in caplog.text
        assert "the ledger's disk is full" in caplog.text
        assert batches.pause == 1
        batches.run(MOVED)
        with pytest.raises(OSError, match="disk is full"):
            batches.run(MOVED)
        assert batches.tables.folds == 3

    def test_a_fold_that_fails_hides_no_report(self, batches: Runner) -> None:
        """The messages were moved, and the batch's row says so."""
        batches.tables.error = OSError("the ledger's disk is full")
        batches.run(MOVED)
        assert [batch for batch, _ in batches.tables.batches] == [1]

    def test_during_a_stop_none_is_raised(self, batches: Runner) -> None:
        """The run ends anyway, and its end folds what is left."""

        def stop_and_fail() -> Any:
            batches.stopping.set()
            fail()

        batches.run(collect=fail)
        batches.run(collect=fail)
        batches.run(collect=stop_and_fail)

    def test_a_kill_signal_that_cannot_be_written_is_a_warning(
        self, batches: Runner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(KillSignal, "set", full)
        batches.run(collect=fail)
        assert "kill signal not written: the disk is full" in caplog.text
        assert batches.pause == 1


def test_a_running_batch_can_be_waited_for(batches: Runner) -> None:
    """Its idle time begins when it ends."""
    begun, go_on = threading.Event(), threading.Event()

    def collect() -> Any:
        begun.set()
        assert go_on.wait(60)
        return []

    thread = threading.Thread(target=batches.run, kwargs={"collect": collect})
    thread.start()
    assert begun.wait(60)
    assert batches.runner.is_running
    assert batches.runner.idle_seconds() == 0.0
    assert not batches.runner.wait_until_idle(0.05)
    waiting = threading.Thread(target=batches.runner.wait_until_idle, args=(120,))
    waiting.start()
    go_on.set()
    for each in (thread, waiting):
        each.join(60)
        assert not each.is_alive()
    assert batches.runner.idle_seconds() > 0
