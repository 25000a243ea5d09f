"""The syphon as a streaming query, with real Spark, Delta and localbus: deliveries, the ledger, stops and kills."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.backlog import queue_path
from pairbus.domain.outcome import HeldCount
from pairbus.errors import ConfigError, OptionError, PairbusError
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.spark import Ledger, Syphon, SyphonError, syphon, verify
from pairbus.spark.signals import ReaderNote, StopSignal
from pairbus.syphon.peeking import backlog_sequence_numbers
from tests.support import failing_drains
from tests.support.pairing import Pair
from tests.support.process_fixtures import administer, with_key
from tests.support.spark import Backlog, write_journal, write_toml
from tests.support.waiting import wait_until


@pytest.fixture
def started(spark: SparkSession) -> Iterator[Callable[..., Syphon]]:
    """A function that starts a syphon, which is stopped after the test."""
    made: list[Syphon] = []

    def start(config: SyphonConfig, **options: Any) -> Syphon:
        made.append(syphon(spark, config, **options))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop()


def is_waiting(job: Syphon) -> bool:
    """True if the query has polled its source and found nothing to do."""
    return bool(job.query.status["message"] == "Waiting for next trigger")


def tasks_of(spark: SparkSession, job: Syphon) -> int:
    """The number of tasks that the query has run."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(str(job.query.runId))]
    stages = [tracker.getStageInfo(stage) for each in jobs if each is not None for stage in each.stageIds]
    return sum(each.numTasks for each in stages if each is not None)


def outcomes(spark: SparkSession, config: SyphonConfig) -> dict[str, int]:
    assert config.ledger is not None
    counted = Ledger(spark, config.ledger).outcomes().groupBy("outcome").count().collect()
    return {row.outcome: row["count"] for row in counted}


def is_conserved(spark: SparkSession, pair: Pair, config: SyphonConfig) -> bool:
    """True if every message is accounted for; the verification is printed."""
    assert config.ledger is not None
    in_backlog = backlog_sequence_numbers(pair.secondary_namespace(), pair.name, config.queues)
    found = verify(spark, config.ledger, in_backlog)
    print(found)
    return found.ok


class TestOnce:
    """`run_once`."""

    def test_parked_messages_are_delivered(self, spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
        """Each to its destination, with a row each, dead letters with their reason; then the backlog is empty."""
        queue = pair.queue()
        backlog.park({0: queue, 1: queue}, 300)
        backlog.park({1: "no-such-queue"}, 5)
        config = backlog.config()
        job = syphon(spark, config)
        assert job.run_once() == ()
        assert pair.arrived(queue) == 600
        assert backlog.depths() == {0: 0, 1: 0}
        assert outcomes(spark, config) == {"delivered": 600, "dead-lettered": 5}
        refused = job.ledger.outcomes().where("outcome = 'dead-lettered'").select("destination", "reason").distinct()
        assert [row.destination for row in refused.collect()] == ["no-such-queue"]
        assert is_conserved(spark, pair, config)
        batches = job.ledger.batches().groupBy("queue_index").agg(F.sum("delivered"), F.min("depth_after")).collect()
        assert sorted(map(tuple, batches)) == [(0, 300, 0), (1, 300, 0)]

    def test_the_summary_is_in_the_progress(self, spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
        """`query.lastProgress` has the counts of the batch, although the drained frame has only one action."""
        queue = pair.queue()
        backlog.park({0: queue}, 40)
        job = syphon(spark, backlog.config(task_budget=60))
        job.run_once()
        assert job.query is not None
        assert job.query.lastProgress is not None
        counts = job.query.lastProgress.observedMetrics["pairbus"].asDict()
        assert (counts["received"], counts["delivered"], counts["held"]) == (40, 40, 0)
        assert pair.arrived(queue) == 40

    def test_an_empty_backlog_starts_nothing(self, spark: SparkSession, backlog: Backlog) -> None:
        """No query and no job; but the journals of a dead run are folded."""
        config = backlog.config()
        assert config.journal is not None
        job = syphon(spark, config)
        (backlog.folder / "checkpoint").mkdir()
        (backlog.folder / "checkpoint" / "pairbus-run").write_text("dead\n")
        write_journal(config.journal, range(1, 4), run="dead", close=False)
        assert job.run_once() == ()
        assert job.query is None
        assert outcomes(spark, config) == {"delivered": 3}

    def test_held_messages_are_returned(self, spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
        """Messages for a busy destination stay in the backlog, which is no failure."""
        busy, open_ = pair.queue(), pair.queue()
        backlog.park({0: busy}, 3)
        backlog.park({0: open_}, 4)
        pair.primary.faults.busy(busy)
        config = backlog.config()
        held = syphon(spark, config).run_once()
        assert [(each.destination, each.count) for each in held] == [(busy, 3)]
        assert (pair.arrived(open_), backlog.depths()[0]) == (4, 3)
        assert is_conserved(spark, pair, config)

    def test_a_secondary_that_is_down_is_an_error(self, spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
        """It is not taken for an empty backlog."""
        job = syphon(spark, backlog.config())
        pair.secondary.kill()
        with pytest.raises(SyphonError, match=f"backlog depth unavailable for {pair.name}: "):
            job.run_once()

    def test_no_backlog_at_all_is_an_error(self, spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
        """A name that no sender uses is no empty backlog."""
        job = syphon(spark, backlog.config(queues="50-51"))
        with pytest.raises(SyphonError, match=f"has no backlog queue 50-51 of {pair.name}: there are 0-1"):
            job.run_once()

    def test_a_missing_queue_is_logged(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The others are drained."""
        backlog.park({1: "orders"}, 2)
        job = syphon(spark, backlog.config(queues="0,50-61"))
        assert job.run_once() == ()
        assert "has no backlog queue 50-61 of" in caplog.text
        assert f"leaves out backlog queues of {pair.name} that are not empty: 1 (2 messages)" in caplog.text
        assert job.left_out == {1: 2}

    def test_a_stop_before_the_backlog_is_empty(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, tmp_path: Path
    ) -> None:
        """It is an error, because the backlog is not empty."""
        backlog.park({0: pair.queue()}, 2000)  # more than are delivered until then
        config = backlog.config()
        job = syphon(spark, config, drain=failing_drains.UntilStopped(tmp_path))
        with pytest.raises(SyphonError, match="stopped before the backlog was empty"):
            job.run_once(lambda: (tmp_path / "begun-0").exists())
        assert outcomes(spark, config)["delivered"] > 0

    def test_a_ledger_that_fails_at_the_end(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is an error; the run is marked as finished all the same, so that the next one folds its rows at once."""
        queue = pair.queue()
        backlog.park({0: queue}, 5)
        config = backlog.config()
        job = syphon(spark, config)

        def fail(*_: Any) -> None:
            raise OSError("the ledger's disk is gone")

        with monkeypatch.context() as patched:
            patched.setattr(job.ledger, "_fold", fail)
            with pytest.raises(SyphonError, match="the ledger's disk is gone"):
                job.run_once()
        assert pair.arrived(queue) == 5
        assert outcomes(spark, config) == {}
        elsewhere = replace(config, checkpoint=f"{config.checkpoint}-of-another")
        syphon(spark, elsewhere).run_once()
        assert outcomes(spark, elsewhere) == {"delivered": 5}

    def test_a_wrong_key_is_no_success(self, spark: SparkSession, pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
        """Messages that the primary refuses because of the syphon's own key stay in the backlog, and the run fails."""
        queue = pair.queue()
        backlog.park({0: queue}, 3)
        wrong = tmp_path / "wrong"
        wrong.write_text(with_key(pair.primary.connection_string, DEFAULT_KEY_NAME, "d3Jvbmc="))
        config = backlog.config()
        config = replace(config, primary=replace(config.primary, connection=f"file:{wrong}"))
        with pytest.raises(SyphonError, match=r"the credential of .* is refused"):
            syphon(spark, config).run_once()
        assert pair.arrived(queue) == 0

    def test_an_exception_in_a_task_is_an_error_of_its_queue(self, spark: SparkSession, backlog: Backlog) -> None:
        """No task raises: the batch succeeds, its row has the error, and so has that of the run."""
        backlog.park({0: "orders"}, 1)
        config = backlog.config()
        job = syphon(spark, config, drain=failing_drains.explode)
        with pytest.raises(SyphonError, match="queue 0: RuntimeError: a defect in the drain"):
            job.run_once()
        errors = [row.error for row in job.ledger.batches().where("queue_index = 0").collect()]
        assert errors == ["RuntimeError: a defect in the drain"] * 2


class TestContinuous:
    """`start` and `stop`."""

    def test_without_a_backlog_it_waits_for_one(
        self,
        spark: SparkSession,
        pair: Pair,
        backlog: Backlog,
        started: Callable[..., Syphon],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Senders create the queues; until then a warning names those that are missing."""
        backlog.config()
        queue = pair.queue()
        job = started(SyphonConfig.from_mapping(backlog.mapping(queues="0-2", idle_poll_interval=1)))
        assert "has no backlog queue 2 of" in caplog.text
        with administer(pair.secondary) as admin:
            admin.create_queue(queue_path(pair.name, 2))
        backlog.park({2: queue}, 3)
        wait_until(lambda: pair.arrived(queue) == 3, 60, lambda: job.query.status)

    def test_with_more_queues_than_cores_none_starves(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, started: Callable[..., Syphon]
    ) -> None:
        """Two tasks at a time and two queues that take long: after their budget the other queues are drained."""
        slow, quick = pair.queue(), pair.queue()
        with administer(pair.secondary) as admin:
            for index in (2, 3):
                admin.create_queue(queue_path(pair.name, index))
        backlog.park({0: slow, 1: slow}, 400)
        backlog.park({2: quick, 3: quick}, 3)
        job = started(backlog.config(queues=4, task_budget=1, max_rate=40))
        wait_until(lambda: pair.arrived(quick) == 6, 90, lambda: job.query.status)
        assert min(backlog.depths()[index] or 0 for index in (0, 1)) > 0

    def test_idle_costs_no_job(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, started: Callable[..., Syphon]
    ) -> None:
        """With an empty backlog no task runs. The next depth query finds messages parked later."""
        queue = pair.queue()
        job = started(backlog.config(idle_poll_interval=1))
        wait_until(lambda: is_waiting(job), 120, lambda: job.query.status)
        assert tasks_of(spark, job) == 0
        backlog.park({1: queue}, 10)
        wait_until(lambda: pair.arrived(queue) == 10, 60, lambda: job.query.status)
        wait_until(lambda: job.last_batch is not None, 30)
        assert job.last_batch is not None
        assert job.last_batch.before == {0: 0, 1: 10}
        wait_until(lambda: tasks_of(spark, job) > 0)

    def test_a_secondary_that_comes_back_is_drained(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, started: Callable[..., Syphon]
    ) -> None:
        """It is down when the query first polls, and the query lives; once it is back its messages are delivered."""
        queue = pair.queue()
        backlog.park({0: queue}, 5)
        pair.secondary.kill()
        job = started(backlog.config())
        wait_until(lambda: is_waiting(job), 120, lambda: job.query.status)
        pair.secondary.restart()
        wait_until(lambda: pair.arrived(queue) == 5, 60, lambda: job.query.status)
        assert job.query.exception() is None

    def test_a_stop_finishes_the_batch(
        self, spark: SparkSession, backlog: Backlog, started: Callable[..., Syphon], tmp_path: Path
    ) -> None:
        """Tasks see the stop signal long before their budget ends; all their rows are in the ledger afterwards."""
        backlog.park({0: "orders", 1: "orders"}, 1)
        config = backlog.config(task_budget=600)
        job = started(config, drain=failing_drains.UntilStopped(tmp_path))
        wait_until(lambda: (tmp_path / "begun-0").exists() and (tmp_path / "begun-1").exists(), 60)
        job.stop()
        assert job.last_batch is not None
        assert job.last_batch.total("delivered") > 0
        assert outcomes(spark, config) == {"delivered": job.last_batch.total("delivered")}
        assert not job.query.isActive
        assert list((backlog.folder / "ledger" / "_journal").glob("*.stop")) == []
        job.stop()

    def test_batches_that_move_nothing_are_spaced_out(
        self, backlog: Backlog, started: Callable[..., Syphon], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With held messages only, the pause that the reader is given doubles from the retry interval on."""
        backlog.park({0: "orders"}, 3)
        pauses: list[int] = []
        write = ReaderNote.write

        def recorded(note: ReaderNote, path: Path) -> None:
            pauses.append(max(round(note.pause_until - time.time()), 0))
            write(note, path)

        monkeypatch.setattr(ReaderNote, "write", recorded)
        job = started(backlog.config(), drain=failing_drains.hold_everything)
        wait_until(lambda: len(pauses) >= 4, 90, lambda: job.query.status)
        assert pauses[:4] == [0, 1, 2, 4]
        assert job.last_batch is not None
        assert job.last_batch.queues[0].held_for == (HeldCount("orders", "com.microsoft:server-busy", 3),)

    def test_a_ledger_that_cannot_be_written_ends_the_query(
        self, pair: Pair, backlog: Backlog, started: Callable[..., Syphon], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After three batches: else messages would go on moving while the ledger stands still."""
        queue = pair.queue()
        backlog.park({0: queue}, 1)
        job = started(backlog.config())

        def fail(*_: Any) -> None:
            backlog.park({0: queue}, 1)  # for the next batch
            raise OSError("the ledger's disk is gone")

        with monkeypatch.context() as patched:
            patched.setattr(job.ledger, "fold", fail)
            wait_until(lambda: not job.query.isActive, 90, lambda: job.query.status)
        assert "the ledger's disk is gone" in str(job.query.exception())

    def test_only_queues_with_messages_are_connected_to(
        self, backlog: Backlog, started: Callable[..., Syphon], tmp_path: Path
    ) -> None:
        """The task of an empty queue ends at once."""
        backlog.park({1: "orders"}, 1)
        job = started(backlog.config(), drain=failing_drains.UntilStopped(tmp_path))
        wait_until(lambda: (tmp_path / "begun-1").exists(), 60)
        job.stop()
        assert not (tmp_path / "begun-0").exists()


class TestKilled:
    """Processes that are killed during a batch."""

    def test_a_python_worker(
        self, spark: SparkSession, backlog: Backlog, started: Callable[..., Syphon], tmp_path: Path
    ) -> None:
        """Without retries of Spark's own the batch fails and the query lives; no row is lost."""
        backlog.park({0: "orders"}, 1)
        config = backlog.config()
        job = started(config, drain=failing_drains.KilledOnce(tmp_path))
        wait_until(lambda: job.last_batch is not None, 60, lambda: job.query.status)
        job.stop()
        assert job.query.exception() is None
        numbers = [row.sequence_number for row in job.ledger.outcomes().collect()]
        assert sorted(set(numbers)) == [1, 2]
        assert numbers.count(1) == 1

    def test_a_worker_that_dies_with_locks_is_not_overtaken(
        self, spark: SparkSession, pair: Pair, backlog: Backlog, tmp_path: Path
    ) -> None:
        """Without retries of Spark's own: the next batch knows of the locks, and sessions keep their order."""
        queue, path = pair.queue(), queue_path(pair.name, 2)
        with administer(pair.secondary) as admin:
            admin.create_queue(path, lock_duration=timedelta(seconds=5))
        properties: dict[str | bytes, Any] = {"x-ms-path": queue, "x-ms-sessionid": "s"}
        names = [f"m{number:02}" for number in range(30)]
        with pair.plain_client(pair.secondary) as client, client.get_queue_sender(path) as sender:
            sender.send_messages(
                [ServiceBusMessage("x", message_id=name, application_properties=properties) for name in names]
            )
        config = backlog.config(queues="2", task_budget=20)
        assert syphon(spark, config, drain=failing_drains.DiesWithLocks(tmp_path)).run_once() == ()
        assert (tmp_path / "killed").exists()
        assert [str(each.message_id) for each in pair.take(pair.primary, queue, 30)] == names

    def test_a_driver_that_had_offered_a_batch(self, spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
        """The next one runs the batch again with unknown depths: it drains the messages that are there now, once."""
        queue = pair.queue()
        config = backlog.config()
        backlog.park({0: queue}, 10)
        syphon(spark, config).run_once()
        commits = backlog.folder / "checkpoint" / "commits"
        for commit in commits.iterdir():
            commit.unlink()
        backlog.park({1: queue}, 10)
        job = syphon(spark, config)
        job.run_once()
        assert pair.arrived(queue) == 20
        depths = job.ledger.batches().where(F.col("run") == job.run).orderBy("batch", "queue_index")
        assert [row.depth_before for row in depths.limit(2).collect()] == [None, None]
        assert outcomes(spark, config) == {"delivered": 20}
        assert is_conserved(spark, pair, config)


def test_two_at_once(spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
    """Two syphons with one ledger share the work: every message arrives once, and has one row."""
    queue = pair.queue()
    backlog.park({0: queue, 1: queue}, 400)
    mapping = backlog.mapping()
    config = backlog.config()
    other = SyphonConfig.from_mapping(
        mapping | {"ledger": {**mapping["ledger"], "checkpoint": str(backlog.folder / "other")}}
    )
    with ThreadPoolExecutor(2) as pool:
        held = list(pool.map(lambda each: syphon(spark, each).run_once(), (config, other)))
    assert held == [(), ()]
    assert pair.arrived(queue) == 800
    assert outcomes(spark, config) == {"delivered": 800}
    assert is_conserved(spark, pair, config)


def test_deleted_and_moved_between_runs(spark: SparkSession, pair: Pair, backlog: Backlog) -> None:
    """Checkpoint, journals or ledger deleted, or either moved: no message is lost, and the next run works.

    Its rows are in the ledger, with those that were not deleted.
    """
    queue = pair.queue()
    runs = 0

    def run() -> SyphonConfig:
        nonlocal runs
        runs += 1
        backlog.park({0: queue}, 10)
        config = backlog.config()
        syphon(spark, config).run_once()
        assert pair.arrived(queue) == runs * 10
        return config

    config = run()
    rows = 10
    for what in ("checkpoint", "ledger/_journal", "ledger/outcomes", "ledger"):
        shutil.rmtree(backlog.folder / what)
        run()
        rows = 10 if what in ("ledger", "ledger/outcomes") else rows + 10
        assert outcomes(spark, config) == {"delivered": rows}, what
    for name in ("ledger", "checkpoint"):
        shutil.move(backlog.folder / name, backlog.folder / "elsewhere" / name)
    backlog.folder = backlog.folder / "elsewhere"
    moved = run()
    assert outcomes(spark, moved) == {"delivered": rows + 10}
    assert is_conserved(spark, pair, moved)


def test_a_configuration_is_a_file_a_mapping_or_read(spark: SparkSession, backlog: Backlog, tmp_path: Path) -> None:
    """All three make the same syphon; an error in a file names the file."""
    config, mapping = backlog.config(), backlog.mapping()
    written = write_toml(tmp_path / "pairbus.toml", mapping)
    assert {syphon(spark, given).config for given in (config, mapping, written, str(written))} == {
        syphon(spark, config).config
    }
    with pytest.raises(ConfigError, match=r"none\.toml.*cannot be read"):
        syphon(spark, tmp_path / "none.toml")


class TestRefused:
    """Set-ups that a syphon does not start with."""

    def test_speculation(self, spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two tasks would drain one queue at once; the error says so."""
        get = spark.conf.get
        monkeypatch.setattr(
            type(spark.conf), "get", lambda self, key, *rest: "true" if key == "spark.speculation" else get(key, *rest)
        )
        with pytest.raises(OptionError, match=r"spark\.speculation is true: Spark would run a slow task a second time"):
            syphon(spark, backlog.config())

    def test_executors_without_pairbus(
        self, spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One error at the opening, rather than one for every task of the first batch."""
        monkeypatch.setattr("pairbus.spark.preflight.ExecutorCheck", failing_drains.WithoutPairbus)
        with pytest.raises(SyphonError, match=r"on the executors; is it installed there.*No module named 'pairbus'"):
            syphon(spark, backlog.config())

    def test_a_journal_folder_that_executors_do_not_see(
        self, spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A path that is another folder on each machine is refused before a message moves; no file is left there."""
        monkeypatch.setattr("pairbus.spark.preflight.ExecutorCheck", failing_drains.OnAnotherMachine)
        with pytest.raises(SyphonError, match=r"\[ledger\] journal .* is not the same folder everywhere.*not seen on "):
            syphon(spark, backlog.config())
        assert list(backlog.folder.rglob("*.sample")) == []

    def test_a_journal_folder_that_cannot_be_written_to(self, spark: SparkSession, backlog: Backlog) -> None:
        """A file in its place, for example: the error names the key of the configuration."""
        backlog.config()
        (backlog.folder / "file").write_text("not a folder")
        mapping = backlog.mapping()
        mapping["ledger"]["journal"] = str(backlog.folder / "file")
        with pytest.raises(OptionError, match=r"\[ledger\] journal cannot be written to: "):
            syphon(spark, SyphonConfig.from_mapping(mapping))

    def test_every_secret_that_is_missing(self, spark: SparkSession, backlog: Backlog) -> None:
        """One error names them all, those of the event hubs too: else every task would fail."""
        backlog.config()
        mapping = backlog.mapping()
        mapping["event_hubs"] = {"connection": "env:PAIRBUS_TEST_NO_HUBS", "name": "hubs"}
        mapping["secondary"]["connection"] = "env:PAIRBUS_TEST_NO_SECONDARY"
        with pytest.raises(ConfigError) as caught:
            syphon(spark, SyphonConfig.from_mapping(mapping))
        sections = [problem.partition(" ")[0] for problem in caught.value.problems]
        assert sections == ["[secondary]", "[event_hubs]"]
        assert "no environment variable PAIRBUS_TEST_NO_HUBS" in str(caught.value)

    def test_no_ledger(self, spark: SparkSession, backlog: Backlog) -> None:
        """Without a path for the ledger and the checkpoint no syphon is made."""
        backlog.config()
        mapping = backlog.mapping()
        del mapping["ledger"]
        with pytest.raises(ConfigError, match="Spark job needs it"):
            syphon(spark, SyphonConfig.from_mapping(mapping))

    def test_twice(self, backlog: Backlog, started: Callable[..., Syphon]) -> None:
        """A syphon is one run."""
        job = started(backlog.config())
        with pytest.raises(PairbusError, match="started before"):
            job.start()


def test_making_a_syphon_runs_no_job(spark: SparkSession, backlog: Backlog) -> None:
    """Only opening it does, which checks the executors and creates the tables."""
    config = backlog.config()
    assert config.ledger is not None
    job = Syphon(spark, config)
    assert not job.ledger.exists
    assert (job.last_batch, job.left_out, job.dead_letters()) == (None, {}, [])
    assert list(backlog.folder.glob("ledger*")) == []
    job.open()
    assert job.ledger.exists
    assert job.config.primary.name == backlog.pair.name


def test_another_syphon_was_quicker(
    spark: SparkSession, pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog that another one empties before the first batch is empty: no error."""
    monkeypatch.setattr("pairbus.spark.job._IDLE_QUERY_SECONDS", 2.0)
    backlog.park({0: pair.queue()}, 3)
    job = syphon(spark, backlog.config())
    write, fold = ReaderNote.write, job.ledger.fold

    def without_depths(note: ReaderNote, path: Path) -> None:  # the reader queries, after the queue was emptied
        write(replace(note, depths=None), path)

    def late(journals: Any) -> int:  # between the driver's query and the reader's
        assert len(pair.take(pair.secondary, queue_path(pair.name, 0))) == 3
        monkeypatch.setattr(job.ledger, "fold", fold)
        return fold(journals)

    monkeypatch.setattr(ReaderNote, "write", without_depths)
    monkeypatch.setattr(job.ledger, "fold", late)
    assert job.run_once() == ()
    assert job.last_batch is None


def test_a_reader_that_offers_no_batch_is_an_error(
    spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run-once syphon gives up after a while; the cause is in the log of Spark's process."""
    monkeypatch.setattr("pairbus.spark.job._IDLE_LIMIT_SECONDS", 2.0)
    backlog.park({0: "orders"}, 3)
    write = ReaderNote.write

    def pausing(note: ReaderNote, path: Path) -> None:
        write(replace(note, pause_until=time.time() + 60), path)

    monkeypatch.setattr(ReaderNote, "write", pausing)
    with pytest.raises(SyphonError, match="could not be emptied: no batch for 2 s: see the warnings of the reader"):
        syphon(spark, backlog.config()).run_once()
    assert backlog.depths()[0] == 3


def test_a_stop_signal_that_cannot_be_written_is_a_warning(
    backlog: Backlog,
    started: Callable[..., Syphon],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tasks end with their budget, and the stop waits for them."""
    backlog.park({0: "orders"}, 1)
    job = started(backlog.config(task_budget=600), drain=failing_drains.UntilStopped(tmp_path))
    wait_until(lambda: (tmp_path / "begun-0").exists(), 60)
    write = StopSignal.set

    def write_and_fail(signal: StopSignal) -> None:
        write(signal)  # else this test would last as long as the budget
        raise OSError("the storage is unavailable")

    monkeypatch.setattr(StopSignal, "set", write_and_fail)
    job.stop()
    assert "stop signal not written: the storage is unavailable; running tasks end with their budget" in caplog.text
    assert job.last_batch is not None


def test_no_secret_travels(
    spark: SparkSession,
    pair: Pair,
    backlog: Backlog,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No plan, configuration, progress, log, checkpoint, journal or ledger has a key in it."""
    caplog.set_level(logging.DEBUG, logger="pairbus")
    queue = pair.queue()
    backlog.park({0: queue}, 5)
    job = syphon(spark, backlog.config())
    job.run_once()
    assert job.query is not None
    job.query.explain(extended=True)
    texts = [caplog.text, *capfd.readouterr(), repr(job.config), repr(spark.sparkContext.getConf().getAll())]
    texts += [progress.json for progress in job.query.recentProgress]
    texts += [str(job.last_batch), json.dumps(job.config.to_mapping())]
    files = [path for path in backlog.folder.rglob("*") if path.is_file() and path.parent.name != "secrets"]
    assert any(path.suffix == ".parquet" for path in files)
    for bus in (pair.primary, pair.secondary):
        key = bus.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        assert key
        assert [each for each in texts if key in each] == []
        assert [path for path in files if key.encode() in path.read_bytes()] == []
