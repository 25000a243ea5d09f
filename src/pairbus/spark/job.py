"""The syphon as a streaming query: each micro-batch drains the backlog queues on executors and folds the journals.

query = syphon(spark, "conf/pairbus.toml").start()
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import HeldCount, Outcome
from pairbus.errors import PairbusError
from pairbus.options import refuse_same
from pairbus.runtime.backoff import Backoff
from pairbus.syphon.backlog_monitor import BacklogMonitor
from pairbus.syphon.depths import DepthQuery, Depths, log_warnings, none_exists_text
from pairbus.syphon.drain.drain import drain_queue, never
from pairbus.syphon.drain.lock_tracking import LONGEST_LOCK
from pairbus.syphon.journal.folding import JournalFolder
from pairbus.syphon.journal.storage import join

from .batch_runner import BatchRunner
from .batch_summary import COUNTS, BatchSummary, RunOnceTracker, SyphonError
from .drain_task import SUMMARY, DrainFunction, DrainTask
from .java_errors import root_cause
from .ledger import Ledger
from .preflight import check_executors, create_tables, refuse_speculation
from .signals import KillSignal, LastRun, ReaderNote, ReaderNotes, StopSignal
from .source import FORMAT, LONGEST_PAUSE, BacklogSource

log = logging.getLogger("pairbus.syphon")

#: Seconds between two looks at whether a run-once syphon is to end.
_POLL_SECONDS = 0.2
#: Seconds without a batch after which a run-once syphon queries the depths itself, and after which it gives up.
_IDLE_QUERY_SECONDS, _IDLE_LIMIT_SECONDS = 15.0, 120.0
#: The longest pause between two batches of a run-once syphon.
_RUN_ONCE_PAUSE = 10.0
#: Seconds that a batch may take beyond the budget of its tasks: a last window, a fold of the ledger.
_BATCH_END_SECONDS = 600.0
#: Seconds that Spark may take to commit a batch that has ended.
_COMMIT_SECONDS = 10.0


def syphon(
    spark: SparkSession,
    config: SyphonConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    drain: DrainFunction = drain_queue,
) -> Syphon:
    """Return a syphon that is ready to start; it has checked all it needs, and moved no message.

    Parameters
    ----------
    spark
        The session to run in, with Delta (see `spark_session`).
    config
        A configuration, a mapping of the form of its TOML file, or that file's path.
    drain
        The function that drains one queue on an executor.

    Raises
    ------
    OptionError, ConfigError
        If the configuration, or a setting of Spark, is wrong; the ledger or the journal folder cannot be written to.
    SyphonError
        If executors lack pairbus, or do not share the journal folder with the driver.
    """
    if isinstance(config, Mapping):
        config = SyphonConfig.from_mapping(config)
    elif not isinstance(config, SyphonConfig):
        config = SyphonConfig.load(config)
    made = Syphon(spark, config, drain)
    made.open()
    return made


class Syphon:
    """One run: a streaming query that drains the queues of one backlog. It is opened, then started, once."""

    def __init__(self, spark: SparkSession, config: SyphonConfig, drain: DrainFunction = drain_queue) -> None:
        self._spark = spark
        self._drain = drain
        self._places = config.require_ledger()
        #: The configuration; once opened, with the primary's name.
        self.config = config
        #: The run's id.
        self.run = uuid.uuid4().hex
        self.ledger = Ledger(spark, self._places.ledger)
        self.query: StreamingQuery | None = None
        self._journals = JournalFolder(self._places.journal)
        self._stop_signal = StopSignal(self._places.journal, self.run)
        self._kill_signal = KillSignal(self._places.journal, self.run)
        self._stopping = threading.Event()
        self._stop_lock = threading.Lock()
        self._is_open = self._has_ended = False
        self._batches: BatchRunner | None = None

    @property
    def last_batch(self) -> BatchSummary | None:
        """The summary of the newest batch."""
        return self._batches.summaries[-1] if self._batches is not None and self._batches.summaries else None

    @property
    def left_out(self) -> Mapping[int, int]:
        """Queue index -> depth of the queues with messages that were not asked for, as of the last depth query."""
        depths = self._monitor.last if self._is_open else None
        return {} if depths is None else depths.left_out

    # --- opening -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Check all that a run needs, and create the ledger's tables, once; raises as `syphon` does."""
        if self._is_open:
            return
        refuse_speculation(self._spark)
        primary, secondary, _ = self.config.resolve()
        refuse_same(primary, secondary)
        self._name = primary.name
        # With the name in it, executors and the reader need no secret to know the name.
        self.config = replace(self.config, primary=replace(self.config.primary, name=primary.name))
        self._monitor = BacklogMonitor(
            DepthQuery(primary.name, self.config.queues), self.config.secondary.resolve, secondary=secondary
        )
        self._note_folder = Path(tempfile.mkdtemp(prefix="pairbus-"))
        weakref.finalize(self, shutil.rmtree, self._note_folder, ignore_errors=True)
        self._notes = ReaderNotes(self._note_folder / "note", self._stopping)
        self._started_at = datetime.now(timezone.utc)
        # At the same time, because each waits for processes that Spark starts.
        with ThreadPoolExecutor(3, "pairbus-start") as pool:
            tables = pool.submit(create_tables, self.ledger, self._places.ledger)
            executors = pool.submit(check_executors, self._spark, self._places.journal, self.run)
            source = pool.submit(self._load_source)
        tables.result()
        executors.result()
        self._source = source.result()
        self._is_open = True

    def _load_source(self) -> DataFrame:
        self._spark.dataSource.register(BacklogSource)
        options = {"config": json.dumps(self.config.to_mapping()), "note": str(self._note_folder / "note")}
        return self._spark.readStream.format(FORMAT).options(**options).load()

    # --- starting and stopping ---------------------------------------------------------------------------

    def start(self, depths: Depths | None = None) -> StreamingQuery:
        """Start to drain, until `stop`, and return the query.

        The journals of earlier runs are folded into the ledger first. Missing queues are logged. Pass `depths` to skip
        the depth query. Raises `PairbusError` if the syphon was started before, and `SyphonError` if the checkpoint or
        the journal folder cannot be used.
        """
        return self._start(depths)

    def _start(self, depths: Depths | None, tracker: RunOnceTracker | None = None) -> StreamingQuery:
        """Start, for as long as the tracker says if there is one."""
        if self.query is not None:
            raise PairbusError("this syphon was started before; make a new one")
        self.open()
        self._begin()
        depths = depths or self._query_depths()
        if depths is not None:
            self._log_warnings(depths)
            self._notes.write(ReaderNote(depths=depths.by_index, queried_at=time.time()))
        locked_until = time.time() + LONGEST_LOCK if self._journals.follows_killed_run else 0.0
        journals = join(self._places.journal, self.run)
        task = DrainTask(self.config, journals, self._stop_signal, self._drain, locked_until, self._kill_signal)
        drained = self._source.mapInArrow(task.run, SUMMARY)
        drained = drained.observe("pairbus", *(F.sum(count).alias(count) for count in COUNTS))
        self._batches = batches = self._batch_runner(tracker)
        self.query = (
            drained.writeStream.foreachBatch(batches.run)
            .queryName(f"pairbus-{self._name}-{self.run[:8]}")
            .option("checkpointLocation", self._places.checkpoint)
            .trigger(processingTime=f"{self.config.retry_interval} seconds")
            .start()
        )
        batches.restart_idle_time()  # until here, tables and old journals may have taken their time
        log.info("run %s drains %d backlog queues of %s", self.run, len(self.config.queues), self._name)
        return self.query

    def _batch_runner(self, tracker: RunOnceTracker | None) -> BatchRunner:
        longest = LONGEST_PAUSE if tracker is None else _RUN_ONCE_PAUSE
        return BatchRunner(
            self._name,
            self.run,
            ledger=self.ledger,
            journals=self._journals,
            monitor=self._monitor,
            notes=self._notes,
            kills=self._kill_signal,
            stopping=self._stopping,
            backoff=Backoff(self.config.retry_interval, longest),
            is_last=(lambda summary: False) if tracker is None else tracker.is_done,
        )

    def _begin(self) -> None:
        """Register the run, and fold what earlier runs have left."""
        last_run = LastRun(self._spark, self._places.checkpoint)
        try:
            self._journals.begin(self.run, last_run.read())
            last_run.write(self.run)
        except OSError as error:
            raise SyphonError(f"[ledger] checkpoint or journal cannot be used: {error}") from error
        self.ledger.fold(self._journals)

    def stop(self) -> None:
        """Stop the query: messages in flight are settled, and the journals folded. Further calls do nothing.

        A query that has ended by itself must be stopped as well. Raises what folding raises.
        """
        if self.query is None or self._batches is None:
            return
        with self._stop_lock:
            if not self._has_ended:
                self._stop_query(self.query, self._batches)
                self._end()

    def _stop_query(self, query: StreamingQuery, batches: BatchRunner) -> None:
        self._stopping.set()
        self._notes.write(ReaderNote())
        if batches.is_running:
            try:
                self._stop_signal.set()
            except OSError as error:
                log.warning("stop signal not written: %s; running tasks end with their budget", error)
        batches.wait_until_idle(self.config.task_budget + _BATCH_END_SECONDS)
        # Without this Spark would neither commit the batch nor report its progress.
        deadline = time.monotonic() + _COMMIT_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.02)
        query.stop()

    def _end(self) -> None:
        """Fold the remaining journals, remove the signals, and mark the run as finished."""
        self._has_ended = True
        # Each is done whatever fails before it: others fold a run that is not marked only after an hour.
        with ExitStack() as cleanup:
            cleanup.callback(shutil.rmtree, self._note_folder, ignore_errors=True)
            if self._batches is not None:
                cleanup.callback(self._batches.close)
            cleanup.callback(self._kill_signal.remove)
            cleanup.callback(self._stop_signal.remove)
            cleanup.callback(self._journals.finish)
            self.ledger.fold_all(self._journals)

    # --- running once ------------------------------------------------------------------------------------

    def run_once(self, stop: Callable[[], bool] = never) -> tuple[HeldCount, ...]:
        """Drain until every queue is empty but for held messages, and return those by destination and reason.

        `stop` is called now and then; if it returns True the run ends early. Raises `SyphonError` if the backlog could
        not be emptied, or if the run ended early. Messages that were moved until then are in the ledger.
        """
        self.open()
        try:
            depths = self._monitor.query()
        except Exception as error:
            raise SyphonError(self._monitor.failure(error)) from error
        if depths.none_exists:
            raise SyphonError(none_exists_text(depths, self._monitor.secondary(), self._name))
        if not depths.total:
            self._log_warnings(depths)
            self._begin()
            self._end()
            return ()
        tracker = RunOnceTracker()
        query = self._start(depths, tracker)
        try:
            self._wait(query, tracker, stop)
        finally:
            self._stop_after(query)
        if (ended := query.exception()) is not None:
            raise SyphonError(f"the query ended: {ended}") from ended
        held = tracker.result()
        if not tracker.is_over:
            raise SyphonError("stopped before the backlog was empty")
        return held

    def _wait(self, query: StreamingQuery, tracker: RunOnceTracker, stop: Callable[[], bool]) -> None:
        """Wait until the tracker has seen the last batch, the query has ended, or the run is to end early."""
        query_after = _IDLE_QUERY_SECONDS
        while query.isActive and not self._stopping.wait(_POLL_SECONDS) and not stop():
            idle = self._batches.idle_seconds() if self._batches is not None else 0.0
            if not idle:
                query_after = _IDLE_QUERY_SECONDS
            elif idle > query_after:  # the reader offers no batch for a backlog that another syphon has emptied
                query_after *= 2
                depths = self._query_depths()
                if depths is not None and not depths.total:
                    tracker.found_empty()
                    return
            if idle > _IDLE_LIMIT_SECONDS:
                limit = f"{_IDLE_LIMIT_SECONDS:.0f} s"
                tracker.give_up(f"no batch for {limit}: see the warnings of the reader in Spark's log")
                return

    def _stop_after(self, query: StreamingQuery) -> None:
        """Stop; an error in that must not hide why the query ended."""
        try:
            self.stop()
        except Exception as error:
            ended = query.exception()
            before = "" if ended is None else f"the query ended: {ended}; and "
            raise SyphonError(
                f"{before}the run could not be ended in order: {root_cause(error)}. Rows that are not in the ledger "
                "yet are folded in by the next run"
            ) from (ended or error)

    def dead_letters(self) -> list[tuple[str, int, str]]:
        """Return destination, count and one of the reasons of what this run has dead-lettered, from the ledger."""
        if self.query is None:
            return []
        rows = self.ledger.outcomes().where(F.col("namespace") == self._name)
        rows = rows.where(F.col("outcome") == Outcome.DEAD_LETTERED.value)
        rows = rows.where(F.col("settled_at") >= F.lit(self._started_at))
        found = rows.groupBy("destination").agg(F.count("*").alias("times"), F.min("reason").alias("reason"))
        return [(row.destination or "no destination", row.times, row.reason) for row in found.collect()]

    # --- the backlog's depth -----------------------------------------------------------------------------

    def _query_depths(self) -> Depths | None:
        return self._monitor.query_or_warn("the reader queries in its own time")

    def _log_warnings(self, depths: Depths) -> None:
        if depths.missing or depths.left_out or depths.delivery_limits:
            log_warnings(depths, self._monitor.secondary(), self._name)
