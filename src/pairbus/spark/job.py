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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.outcome import HeldCount, Outcome
from pairbus.errors import OptionError, PairbusError
from pairbus.options import Namespace, refuse_same
from pairbus.runtime.redaction import describe_error
from pairbus.syphon.depths import Depths, backlog_depths, none_exists_text, warn_of
from pairbus.syphon.drain.drain import drain_queue, never
from pairbus.syphon.drain.lock_tracking import LONGEST_LOCK
from pairbus.syphon.journal.folding import JournalFolder
from pairbus.syphon.journal.storage import join

from .batch_summary import COUNTS, BatchSummary, Once, SyphonError
from .checkpoint import CheckpointNote
from .drain_task import SUMMARY, Drain, DrainTask, Trial, passed_on, summary_of
from .ledger import BatchRow, Ledger, cause_of
from .signals import KillMark, SharedSample, StopMark
from .source import FORMAT, LONGEST_PAUSE, BacklogSource, Note

log = logging.getLogger("pairbus.syphon")

#: How often in a row a batch may fail as a whole before the query does.
_FAILURES = 3
#: How often somebody is asked whether to stop.
_GLANCE = 0.2
#: How long a syphon that runs once may wait for a batch to begin, and after how long it looks itself.
_SILENCE = 120.0
_QUIET = 15.0
#: How long a batch may go on after its tasks' time is over: a last window, a ledger to be written.
_PATIENCE = 600.0
#: How long Spark may take to close a batch that has ended.
_FAREWELL = 10.0


def syphon(
    spark: SparkSession,
    config: SyphonConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    drain: Drain = drain_queue,
) -> Syphon:
    """A syphon for a backlog, ready to start. Raises if it could not run as it must.

    The configuration may also be a TOML file's path, or a mapping of its form.
    """
    if isinstance(config, Mapping):
        config = SyphonConfig.from_mapping(config)
    elif not isinstance(config, SyphonConfig):
        config = SyphonConfig.load(config)
    return Syphon(spark, config, drain)


class Syphon:
    """One streaming query that drains one backlog; start it once."""

    def __init__(self, spark: SparkSession, config: SyphonConfig, drain: Drain = drain_queue) -> None:
        if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
            raise OptionError(
                "spark.speculation is true: Spark would run a slow task a second time beside the first, and the two "
                "would drain one queue at once. Set spark.speculation=false for this job"
            )
        self._spark = spark
        self._places = config.require_ledger()
        primary, secondary, _ = config.resolve()
        refuse_same(primary, secondary)
        self._secondary: Namespace | None = secondary
        name = primary.name
        # From here on the name can be told without a secret.
        self.config = replace(config, primary=replace(config.primary, name=name))
        self._name = name
        self._drain = drain
        self.run = uuid.uuid4().hex
        self.ledger = Ledger(spark, self._places.ledger)
        self._journals = JournalFolder(self._places.journal)
        self._mark = StopMark(self._places.journal, self.run)
        self._kills = KillMark(self._places.journal, self.run)
        #: Where the reader finds notes, beside the driver.
        self._note = Path(tempfile.mkdtemp(prefix="pairbus-")) / "note"
        weakref.finalize(self, shutil.rmtree, self._note.parent, ignore_errors=True)
        self._serial = 0
        self._pause = 0.0
        self._failures = 0
        self._stopping = threading.Event()
        self._state = threading.Condition()
        self._in_batch = False
        #: When a batch began or ended last.
        self._sign_at = time.monotonic()
        self._stop_lock = threading.Lock()
        self._ended = False
        self._longest_pause = LONGEST_PAUSE
        self._judge: Callable[[BatchSummary], bool] = lambda summary: False
        self._summaries: list[BatchSummary] = []
        #: Queues that were not asked for and have messages, as the secondary last said: index → how many.
        self.left_out: Mapping[int, int] = {}
        self._began_at = datetime.now(timezone.utc)
        self._second_hand = ThreadPoolExecutor(1, "pairbus-ledger")
        self.query: StreamingQuery | None = None
        # What is not as it must be is found now, before any message has moved. Each waits for processes to start.
        with ThreadPoolExecutor(3, "pairbus-start") as others:
            tables, backlog = others.submit(self.ledger.create), others.submit(self._load)
            tried = others.submit(self._try_executors)
        try:
            tables.result()
        except Exception as error:
            raise OptionError(f"[ledger] path cannot be used: {self._places.ledger}: {cause_of(error)}") from error
        tried.result()
        self._backlog = backlog.result()

    def _try_executors(self) -> None:
        """Whether executors have pairbus, and see what the driver writes to the journals' folder."""
        slots = self._spark.sparkContext.defaultParallelism
        sample = SharedSample(self._places.journal, self.run)
        try:
            sample.put()
        except OSError as error:
            raise OptionError(f"[ledger] journal cannot be written to: {error}") from error
        try:
            # Two processes for each task, as in a batch, of which one reads and one drains: they are there from now on.
            first = self._spark.range(0, slots, 1, slots).mapInArrow(Trial(sample).run, "blind string")
            tried = first.mapInArrow(passed_on, "blind string").collect()
        except PythonException as error:
            why = str(error).strip().rpartition("\n")[2]
            raise SyphonError(f"pairbus cannot be used on the executors; is it installed there? {why}") from error
        finally:
            sample.remove()
        if tried:
            blind = ", ".join(sorted({row.blind for row in tried}))
            raise SyphonError(
                f"[ledger] journal {self._places.journal} is not the same folder everywhere: what the driver writes "
                f"there is not seen on {blind}. It must be on storage that all machines share, else rows of the ledger "
                "would be lost"
            )

    def _load(self) -> DataFrame:
        self._spark.dataSource.register(BacklogSource)
        options = {"config": json.dumps(self.config.to_mapping()), "note": str(self._note)}
        return self._spark.readStream.format(FORMAT).options(**options).load()

    @property
    def last_batch(self) -> BatchSummary | None:
        """What the newest batch came to."""
        return self._summaries[-1] if self._summaries else None

    # --- starting and stopping ---------------------------------------------------------------------------

    def start(self, depths: Depths | None = None) -> StreamingQuery:
        """Begin to drain, until `stop`. What an earlier run has left in its journals is folded in first.

        If the caller has just asked for the depths, nobody asks again. Queues that are not there are told.
        """
        if self.query is not None:
            raise PairbusError("this syphon was started before; make a new one")
        self._begin()
        depths = depths or self._ask()
        if depths is not None:
            self._warn_of(depths)
            self._tell(Note(depths=depths.by_index, asked_at=time.time()))
        wary_until = time.time() + LONGEST_LOCK if self._journals.after_a_kill else 0.0
        journals = join(self._places.journal, self.run)
        task = DrainTask(self.config, journals, self._mark, self._drain, wary_until, self._kills)
        drained = self._backlog.mapInArrow(task.run, SUMMARY)
        drained = drained.observe("pairbus", *(F.sum(count).alias(count) for count in COUNTS))
        self.query = (
            drained.writeStream.foreachBatch(self._on_batch)
            .queryName(f"pairbus-{self._name}-{self.run[:8]}")
            .option("checkpointLocation", self._places.checkpoint)
            .trigger(processingTime=f"{self.config.retry_interval} seconds")
            .start()
        )
        self._sign_at = time.monotonic()  # what came before, tables and old journals, may have taken its time
        log.info("run %s drains %d queues of %s", self.run, len(self.config.queues), self._name)
        return self.query

    def _begin(self) -> None:
        note = CheckpointNote(self._spark, self._places.checkpoint)
        try:
            self._journals.begin(self.run, note.read())
            note.write(self.run)
        except OSError as error:
            raise SyphonError(f"[ledger] checkpoint or journal cannot be used: {error}") from error
        self.ledger.fold(self._journals)

    def stop(self) -> None:
        """Come to an end: no new work, what is in flight finished, the ledger folded. May be called more than once,
        and on a query that has ended by itself."""
        if self.query is None:
            return
        with self._stop_lock:
            if not self._ended:
                self._wind_down(self.query)
                self._end()

    def _wind_down(self, query: StreamingQuery) -> None:
        self._stopping.set()
        self._tell(Note())
        with self._state:
            if self._in_batch:
                self._call_tasks_home()
            self._state.wait_for(lambda: not self._in_batch, self.config.task_budget + _PATIENCE)
        # Spark has yet to note that the batch is done, and to report its progress.
        deadline = time.monotonic() + _FAREWELL
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.02)
        query.stop()

    def _call_tasks_home(self) -> None:
        try:
            self._mark.set()
        except OSError as error:
            log.warning("running tasks cannot be told to stop, and use up their time: %s", error)

    def _end(self) -> None:
        """Fold what is left, and leave nothing behind but the ledger, the checkpoint and the word that we are done."""
        self._ended = True
        # Whatever fails, the rest is done: a run that is not marked as done keeps others from its rows for an hour.
        with ExitStack() as rest:
            rest.callback(shutil.rmtree, self._note.parent, ignore_errors=True)
            rest.callback(self._second_hand.shutdown)
            rest.callback(self._kills.remove)
            rest.callback(self._mark.remove)
            rest.callback(self._journals.finish)
            self.ledger.fold_all(self._journals)

    # --- until it is empty -------------------------------------------------------------------------------

    def run_once(self, stop: Callable[[], bool] = never) -> tuple[HeldCount, ...]:
        """Drain until every queue is empty but for messages that their destinations do not take; those are returned.

        Raises `SyphonError` if it cannot be done, or if `stop` says so before it is; what was moved until then is in
        the ledger.
        """
        try:
            depths = self._asked()
        except Exception as error:
            raise SyphonError(f"the secondary does not say how deep the backlog is: {describe_error(error)}") from error
        if depths.none_exists:
            raise SyphonError(none_exists_text(depths, self.config.secondary.resolve(), self._name))
        if not depths.total:
            self._warn_of(depths)
            self._begin()
            self._end()
            return ()
        once = Once()
        self._judge = once.is_done
        self._longest_pause = 10.0
        query = self.start(depths)
        look_at = _QUIET
        try:
            while query.isActive and not self._stopping.wait(_GLANCE) and not stop():
                quiet = self._quiet_for()
                if quiet > look_at:  # no batch is offered for a backlog that another syphon has emptied
                    look_at *= 2
                    if (now_left := self._ask()) is not None and not now_left.total:
                        once.found_empty()
                        break
                elif not quiet:
                    look_at = _QUIET
                if quiet > _SILENCE:
                    once.give_up(f"no batch for {_SILENCE:.0f} s: see the warnings of the reader in Spark's log")
                    break
        finally:
            self._stop_after(query)
        if (ended := query.exception()) is not None:
            raise SyphonError(f"the query ended: {ended}") from ended
        held = once.result()
        if not once.is_over:
            raise SyphonError("it was told to stop before the backlog was empty")
        return held

    def _stop_after(self, query: StreamingQuery) -> None:
        """Stop; an end that fails does not hide why the query ended."""
        try:
            self.stop()
        except Exception as error:
            ended = query.exception()
            before = "" if ended is None else f"the query ended: {ended}; and "
            raise SyphonError(
                f"{before}the run could not be ended in order: {cause_of(error)}. Rows that are not in the ledger yet "
                "are folded in by the next run"
            ) from (ended or error)

    def dead_letters(self) -> list[tuple[str, int, str]]:
        """What this syphon has dead-lettered, from the ledger: destination, how many, and why (one reason each)."""
        if self.query is None:
            return []
        rows = self.ledger.outcomes().where(F.col("namespace") == self._name)
        rows = rows.where(F.col("outcome") == Outcome.DEAD_LETTERED.value)
        rows = rows.where(F.col("settled_at") >= F.lit(self._began_at))
        found = rows.groupBy("destination").agg(F.count("*").alias("times"), F.min("reason").alias("reason"))
        return [(row.destination or "no destination", row.times, row.reason) for row in found.collect()]

    # --- one batch ---------------------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        with self._state:
            if self._stopping.is_set():
                return  # nothing is lost: the offset is only a tick
            self._in_batch = True
            self._sign_at = time.monotonic()
        try:
            self._run_batch(frame, batch)
            self._failures = 0
        except Exception:
            self._failures += 1
            if self._failures >= _FAILURES and not self._stopping.is_set():
                raise
            log.exception("batch %d failed; what it has moved is in the journals, and is folded in later", batch)
            try:
                self._kills.set(time.time() + LONGEST_LOCK)  # a worker may have died with messages locked
            except OSError as error:
                log.warning("the next batch cannot be told of it: %s", error)
            self._pause = self._next_pause()
            self._tell(Note(pause_until=time.time() + self._pause))
        finally:
            with self._state:
                self._in_batch = False
                self._sign_at = time.monotonic()
                self._state.notify_all()

    def _quiet_for(self) -> float:
        """How long no batch has been under way."""
        return 0.0 if self._in_batch else time.monotonic() - self._sign_at

    def _run_batch(self, frame: DataFrame, batch: int) -> None:
        began = time.monotonic()
        # The one action: each further one would drain again.
        rows = frame.collect()
        if not rows:
            return
        # At once, since it takes longest; all the rest is done meanwhile.
        folding = self._second_hand.submit(self.ledger.fold, self._journals)
        try:
            self._tell_of(batch, rows, began)
        finally:
            folding.result()

    def _tell_of(self, batch: int, rows: Sequence[Row], began: float) -> None:
        """Ask how much is left, and tell what the batch came to."""
        queues = tuple(summary_of(row) for row in sorted(rows, key=lambda row: row.queue_index))
        before = {row.queue_index: row.depth for row in rows}
        depths, asked_at = self._ask(), time.time()
        after = depths.by_index if depths is not None else dict.fromkeys(before)
        management = depths.operations if depths is not None else 1
        summary = BatchSummary(batch, queues, before, after, time.monotonic() - began, management)
        self._summaries = [*self._summaries[-99:], summary]
        if self._judge(summary):
            self._stopping.set()
        log.log(logging.WARNING if summary.errors else logging.INFO, "%s", summary)
        try:
            told = [BatchRow(q, before.get(q.queue_index), after.get(q.queue_index)) for q in queues]
            self.ledger.append_batch(self._name, self.run, batch, datetime.now(timezone.utc), told)
        finally:
            pause = 0.0 if summary.moved else self._next_pause()
            self._pause = pause
            known = depths.by_index if depths is not None else None
            self._tell(Note(depths=known, asked_at=asked_at, pause_until=time.time() + pause))

    def _next_pause(self) -> float:
        """From the retry interval on, doubled with each batch that brought nothing home."""
        return min(self._pause * 2 or self.config.retry_interval, self._longest_pause)

    def _ask(self) -> Depths | None:
        try:
            return self._asked()
        except Exception as error:  # the reader asks again, in its own time
            log.warning("the secondary does not say how deep the backlog is (%s)", describe_error(error))
            return None

    def _asked(self) -> Depths:
        secondary = self._secondary or self.config.secondary.resolve()
        self._secondary = None  # a key may have been renewed: what fails is resolved anew
        depths = backlog_depths(secondary, self._name, self.config.queues)
        self._secondary = secondary
        self.left_out = depths.left_out
        return depths

    def _warn_of(self, depths: Depths) -> None:
        if depths.missing or depths.left_out or depths.given_out:
            warn_of(depths, self._secondary or self.config.secondary.resolve(), self._name)

    def _tell(self, note: Note) -> None:
        with self._state:
            self._serial += 1
            try:
                replace(note, serial=self._serial, stopping=self._stopping.is_set()).write(self._note)
            except OSError as error:  # the reader then asks for itself, and `stop` ends it in any case
                log.warning("the source cannot be told what the driver knows: %s", error)
