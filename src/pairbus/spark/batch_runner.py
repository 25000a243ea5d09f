"""The driver's part in each micro-batch: run its tasks, fold their journals into the ledger, and report the result."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pairbus.runtime.backoff import Backoff
from pairbus.syphon.drain.lock_tracking import LONGEST_LOCK

from .batch_summary import BatchSummary
from .drain_task import summary_of
from .ledger import BatchRow
from .signals import KillSignal, ReaderNote, ReaderNotes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from pairbus.syphon.backlog_monitor import BacklogMonitor
    from pairbus.syphon.journal.folding import JournalFolder

    from .ledger import Ledger

log = logging.getLogger("pairbus.syphon")

#: Batches that fail in a row and end the query.
_FAILURES = 3
#: Summaries that are kept.
_KEPT_SUMMARIES = 100


class BatchRunner:
    """The batches of one query, one after another; `run` is its `foreachBatch` function."""

    def __init__(
        self,
        namespace: str,
        run: str,
        *,
        ledger: Ledger,
        journals: JournalFolder,
        monitor: BacklogMonitor,
        notes: ReaderNotes,
        kills: KillSignal,
        stopping: threading.Event,
        backoff: Backoff,
        is_last: Callable[[BatchSummary], bool] = lambda summary: False,
    ) -> None:
        self._namespace, self._run_id = namespace, run
        self._ledger, self._journals = ledger, journals
        self._monitor = monitor
        self._notes, self._kills = notes, kills
        self._stopping = stopping
        self._backoff = backoff
        self._is_last = is_last
        self._state = threading.Condition()
        self._is_running = False
        #: Time (monotonic) at which a batch last began or ended.
        self._changed_at = time.monotonic()
        self._failures = 0  # in a row
        self._fruitless = 0  # batches in a row that moved nothing or failed
        self._folding = ThreadPoolExecutor(1, "pairbus-ledger")
        #: The summaries of the newest batches, oldest first.
        self.summaries: deque[BatchSummary] = deque(maxlen=_KEPT_SUMMARIES)

    @property
    def is_running(self) -> bool:
        """True while a batch runs. Once `stopping` is set and this is False, none will."""
        with self._state:
            return self._is_running

    def idle_seconds(self) -> float:
        """Return the time since the last batch ended; 0 while one runs."""
        return 0.0 if self._is_running else time.monotonic() - self._changed_at

    def restart_idle_time(self) -> None:
        self._changed_at = time.monotonic()

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no batch runs; return False if one still does after so many seconds."""
        with self._state:
            return self._state.wait_for(lambda: not self._is_running, timeout)

    def close(self) -> None:
        """End the thread that folds, after a fold that is under way."""
        self._folding.shutdown()

    def run(self, frame: DataFrame, batch: int) -> None:
        """Run one batch; a failure is logged, and the third in a row is raised, which ends the query."""
        with self._state:
            if self._stopping.is_set():
                return  # no message is lost: the offset that Spark commits is only a tick
            self._is_running = True
            self.restart_idle_time()
        try:
            self._run(frame, batch)
            self._failures = 0
        except Exception:
            self._failures += 1
            if self._failures >= _FAILURES and not self._stopping.is_set():
                raise
            self._recover(batch)
        finally:
            with self._state:
                self._is_running = False
                self.restart_idle_time()
                self._state.notify_all()

    def _run(self, frame: DataFrame, batch: int) -> None:
        started = time.monotonic()
        # The only action on the frame: every further one would drain again.
        rows = frame.collect()
        if not rows:
            return
        # Folding takes longest, so it runs beside the rest.
        folding = self._folding.submit(self._ledger.fold, self._journals)
        try:
            self._report(batch, rows, started)
        finally:
            folding.result()

    def _report(self, batch: int, rows: Sequence[Row], started: float) -> None:
        """Query the depths that the batch has left, and report to the log, the ledger, and the reader."""
        queues = tuple(summary_of(row) for row in sorted(rows, key=lambda row: row.queue_index))
        before = {row.queue_index: row.depth for row in rows}
        depths, queried_at = self._monitor.query_or_warn("the reader queries before the next batch"), time.time()
        known = depths.by_index if depths is not None else None
        after = known if known is not None else dict.fromkeys(before)
        management = depths.operations if depths is not None else 1
        summary = BatchSummary(batch, queues, before, after, time.monotonic() - started, management)
        self.summaries.append(summary)
        if self._is_last(summary):
            self._stopping.set()
        log.log(logging.WARNING if summary.errors else logging.INFO, "%s", summary)
        try:
            table = [BatchRow(each, before.get(each.queue_index), after.get(each.queue_index)) for each in queues]
            self._ledger.append_batch(self._namespace, self._run_id, batch, datetime.now(timezone.utc), table)
        finally:
            pause = self._pause_after(summary.moved > 0)
            self._notes.write(ReaderNote(depths=known, queried_at=queried_at, pause_until=time.time() + pause))

    def _recover(self, batch: int) -> None:
        """Log a batch that failed, and prepare the next: tasks may have died with messages locked."""
        pause = self._pause_after(False)
        log.exception("batch %d failed; next attempt in %.0f s, which folds the rows of this one", batch, pause)
        try:
            self._kills.set(time.time() + LONGEST_LOCK)
        except OSError as error:
            log.warning(
                "kill signal not written: %s; messages of sessions may overtake those that a dead task has locked",
                error,
            )
        self._notes.write(ReaderNote(pause_until=time.time() + pause))

    def _pause_after(self, has_moved: bool) -> float:
        if has_moved:
            self._fruitless = 0
            return 0.0
        self._fruitless += 1
        return self._backoff.pause(self._fruitless - 1)
