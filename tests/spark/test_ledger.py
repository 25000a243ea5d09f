"""The ledger: journals are folded exactly once despite kills; and `verify`, which finds lost messages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from pairbus.domain.outcome import HeldCount, Outcome, QueueSummary
from pairbus.errors import OptionError
from pairbus.spark import Ledger, verify
from pairbus.spark.ledger import BATCHES, OUTCOMES, BatchRow
from pairbus.spark.verification import InDoubt, Missing, Repeat
from pairbus.syphon.journal.folding import JournalFolder
from tests.support.spark import MOMENT, write_journal


@pytest.fixture
def journals(tmp_path: Path) -> JournalFolder:
    """The journals of a run named `run`."""
    folder = JournalFolder(str(tmp_path / "_journal"))
    folder.begin("run", None)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "_journal"


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Ledger:
    return Ledger(spark, str(tmp_path))


def numbers(ledger: Ledger) -> list[int]:
    """Return the sequence numbers of all outcomes."""
    return sorted(row.sequence_number for row in ledger.outcomes().select("sequence_number").collect())


class TestFolding:
    """From journals into Delta."""

    def test_rows_as_they_were_written(
        self, spark: SparkSession, ledger: Ledger, journals: JournalFolder, root: Path
    ) -> None:
        """Every column, with times and the day of settled_at in UTC, whatever the session's time zone."""
        write_journal(root, {7: "a", 8: "b"}, queue_index=3, batch=5, attempt=11)
        assert ledger.fold(journals) == 1
        parked, settled = (datetime.fromtimestamp(ms / 1000, timezone.utc) for ms in (MOMENT - 1000, MOMENT))
        rows = [
            ("contoso", 3, n, i, None, "orders", "delivered", None, parked, settled, 100, 0, 11, 5, date(2026, 11, 16))
            for n, i in ((7, "a"), (8, "b"))
        ]
        expected = spark.createDataFrame(rows, OUTCOMES)
        assert_df_equality(ledger.outcomes(), expected, ignore_row_order=True, ignore_nullable=True)

    def test_all_journals_of_a_batch_are_one_commit(self, ledger: Ledger, journals: JournalFolder, root: Path) -> None:
        """Ten queues have ten journals and one version of the table, partitioned by day."""
        day = 86_400_000
        for index in range(10):
            write_journal(root, range(1, 4), queue_index=index, settled_at=MOMENT + index % 2 * day)
        assert ledger.fold(journals) == 10
        assert len(list((root.parent / "outcomes" / "_delta_log").glob("*.json"))) == 1
        assert {path.name for path in (root.parent / "outcomes").glob("day=*")} == {"day=2026-11-16", "day=2026-11-17"}
        assert ledger.outcomes().count() == 30
        assert ledger.fold(journals) == 0
        assert [path.name for path in (root / "run").iterdir() if path.suffix == ".journal"] == []

    def test_a_fold_is_one_job_of_sparks(
        self, spark: SparkSession, ledger: Ledger, journals: JournalFolder, root: Path
    ) -> None:
        """No job reads back or checks a commit, which would be a third of the work."""
        ledger.create()
        write_journal(root, range(1, 4))
        group = f"fold-{root}"
        spark.sparkContext.setJobGroup(group, "a fold")
        try:
            ledger.fold(journals)
            ledger.append_batch("contoso", "run", 1, datetime(2026, 1, 1, tzinfo=timezone.utc), [])
        finally:
            spark.sparkContext._jsc.clearJobGroup()
        assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == 2  # one for each table

    def test_a_journal_that_grows_is_folded_piece_by_piece(
        self, ledger: Ledger, journals: JournalFolder, root: Path
    ) -> None:
        """Rows that a task writes after a fold are part of the next one, once."""
        write_journal(root, range(1, 3), close=False)
        ledger.fold(journals)
        write_journal(root, range(3, 5), attempt=1, close=False)
        ledger.fold(journals)
        ledger.fold(journals)
        assert numbers(ledger) == [1, 2, 3, 4]

    def test_the_last_fold_takes_all_rows(self, ledger: Ledger, journals: JournalFolder, root: Path) -> None:
        """Those of a fold that was planned and not made, and those written since, once each."""
        write_journal(root, range(1, 3), close=False)
        assert journals.plan()
        write_journal(root, range(3, 5), attempt=1, close=False)
        ledger.fold_all(journals)
        assert numbers(ledger) == [1, 2, 3, 4]
        assert ledger.fold(journals) == 0

    def test_no_rows_yet(self, spark: SparkSession, ledger: Ledger, journals: JournalFolder) -> None:
        """An empty ledger reads as empty tables, before they are created and after."""
        assert ledger.fold(journals) == 0
        for _ in range(3):
            assert_df_equality(ledger.outcomes(), spark.createDataFrame([], OUTCOMES))
            assert_df_equality(ledger.batches(), spark.createDataFrame([], BATCHES))
            ledger.create()

    def test_batches(self, spark: SparkSession, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """One row per queue and batch, once, also if an attempt failed after its commit."""
        at = datetime(2026, 11, 17, 2, 30, tzinfo=timezone.utc)
        summary = QueueSummary(4, 10, 7, 1, 2, 0, 900, 30, 1.5, True, (HeldCount("orders", "busy", 2),), "late")
        monkeypatch.setattr("pairbus.spark.ledger.time.sleep", lambda seconds: None)
        with monkeypatch.context() as patch:
            save, failures = DataFrameWriter.save, iter([True])

            def fail_afterwards(self: Any, *arguments: Any) -> None:
                save(self, *arguments)
                if next(failures, False):
                    raise OSError("the answer was lost")

            patch.setattr(DataFrameWriter, "save", fail_afterwards)
            ledger.append_batch("contoso", "run", 3, at, [BatchRow(summary, 10, None)])
        row = ("contoso", "run", 3, at, 4, 10, None, 10, 7, 1, 2, 0, 900, 30, 1.5, "late", [("orders", "busy", 2)])
        assert_df_equality(ledger.batches(), spark.createDataFrame([row], BATCHES), ignore_nullable=True)


class Killed(BaseException):
    """A SIGKILL between two steps."""


def kill_at(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fold end before or after one of its steps."""
    when, name = step.split()
    owner: Any = {"write": Ledger, "mark_folded": JournalFolder, "plan": JournalFolder}[name]
    attribute = {"write": "_fold"}.get(name, name)
    original: Callable[..., Any] = getattr(owner, attribute)

    def killed(self: Any, *arguments: Any) -> Any:
        if when == "after":
            original(self, *arguments)
        raise Killed

    monkeypatch.setattr(owner, attribute, killed)


class TestKills:
    """Folds that are killed between two steps: the next run folds the rest, once."""

    @pytest.mark.parametrize(
        "step", ["before plan", "after plan", "after write", "before mark_folded", "after mark_folded"]
    )
    def test_every_row_once(
        self, ledger: Ledger, journals: JournalFolder, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        """The next run with the same checkpoint folds the dead run's journals, and its own."""
        write_journal(root, range(1, 6))
        with monkeypatch.context() as patch:
            kill_at(step, patch)
            with pytest.raises(Killed):
                ledger.fold(journals)
        write_journal(root, range(6, 9), attempt=1, close=False)
        following = JournalFolder(str(root))
        following.begin("next", "run")
        write_journal(root, range(9, 11), run="next")
        ledger.fold(following)
        ledger.fold(following)
        assert numbers(ledger) == list(range(1, 11))

    def test_a_write_that_fails_is_tried_again(
        self, ledger: Ledger, journals: JournalFolder, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two syphons that create a table at the same time cause such an error."""
        write_journal(root, range(1, 4))
        original = Ledger._fold
        failures: Iterator[bool] = iter([True, True])

        def sometimes(self: Ledger, fold: Any) -> None:
            original(self, fold)
            if next(failures, False):
                raise RuntimeError("a conflict")

        monkeypatch.setattr(Ledger, "_fold", sometimes)
        monkeypatch.setattr("pairbus.spark.ledger.time.sleep", lambda seconds: None)
        ledger.fold(journals)
        assert numbers(ledger) == [1, 2, 3]

    def test_the_tables_are_deleted(self, ledger: Ledger, journals: JournalFolder, root: Path) -> None:
        """The next fold creates them again, with its own rows."""
        write_journal(root, range(1, 4))
        ledger.fold(journals)
        shutil.rmtree(root.parent / "outcomes")
        write_journal(root, range(4, 6), attempt=1)
        ledger.fold(journals)
        assert numbers(ledger) == [4, 5]


class TestVerify:
    """`verify`."""

    @pytest.fixture
    def record(self, ledger: Ledger, journals: JournalFolder, root: Path) -> Callable[..., None]:
        """A function that writes a journal and folds it."""
        attempts = iter(range(1000))

        def write_and_fold(numbers: Any, **options: Any) -> None:
            write_journal(root, numbers, attempt=next(attempts), **options)
            ledger.fold(journals)

        return write_and_fold

    def test_every_message_is_accounted_for(self, spark: SparkSession, root: Path, record: Callable[..., None]) -> None:
        """Delivered, dead-lettered, or in the backlog."""
        record(range(5, 9))
        record(range(9, 11), outcome=Outcome.DEAD_LETTERED)
        record(range(1, 3), queue_index=1)
        found = verify(spark, str(root.parent), {0: [11, 12], 1: []})
        assert (found.ok, found.problems, found.repeats, found.in_doubt) == (True, [], (), ())
        counts = [(q.queue_index, q.seen, q.delivered, q.dead_lettered, q.in_backlog, q.missing) for q in found.queues]
        assert counts == [(0, 8, 4, 2, 2, 0), (1, 2, 2, 0, 0, 0)]
        assert "every message is accounted for" in str(found)

    def test_missing_messages_are_named(self, spark: SparkSession, root: Path, record: Callable[..., None]) -> None:
        """Numbers that have no final outcome and are not in the backlog, at either end too."""
        record({1: "a"}, outcome=Outcome.IN_DOUBT)
        record({2: "b", 3: "c", 5: "e", 9: "i"})
        found = verify(spark, str(root.parent), {0: [7, 12]})
        assert not found.ok
        assert found.missing == tuple(
            Missing("contoso", 0, *each) for each in ((1, 1), (4, 4), (6, 6), (8, 8), (10, 11))
        )
        assert found.queues[0].missing == 6
        assert "queue 0 of contoso: 10 to 11 is neither in the ledger nor in the backlog" in str(found)

    def test_repeats_are_listed(self, spark: SparkSession, root: Path, record: Callable[..., None]) -> None:
        """A message delivered twice under one id is listed and no problem; under two ids it is one."""
        record({1: "a", 2: "b", 3: "c"})
        record({2: "b"})
        found = verify(spark, str(root.parent))
        assert found.ok
        assert found.repeats == (Repeat("contoso", 0, 2, ("b",), 2),)
        assert found.queues[0].repeated == 1
        record({3: "another"})
        found = verify(spark, str(root.parent))
        assert found.problems == ["queue 0 of contoso: 3 (another, c) 2 times under different ids"]

    def test_doubts_are_listed(self, spark: SparkSession, root: Path, record: Callable[..., None]) -> None:
        """Messages without a final outcome, and whether they are in the backlog."""
        record({1: "a", 2: "b", 3: "c"}, outcome=Outcome.IN_DOUBT)
        record({1: "a"})
        found = verify(spark, str(root.parent), {0: [2]})
        assert found.in_doubt == (InDoubt("contoso", 0, 2, "b", True), InDoubt("contoso", 0, 3, "c", False))
        assert found.missing == (Missing("contoso", 0, 3, 3),)

    def test_an_empty_ledger(self, spark: SparkSession, tmp_path: Path) -> None:
        """It is reported as such. A folder without a ledger is an error, because its name may be wrong."""
        with pytest.raises(OptionError, match=r"there is no ledger at .*\[ledger\] path"):
            verify(spark, str(tmp_path))
        Ledger(spark, str(tmp_path)).create()
        found = verify(spark, str(tmp_path))
        assert (found.ok, str(found)) == (True, "the ledger has no rows: no message was seen")
        found = verify(spark, str(tmp_path), {0: [4, 5]}, namespace="contoso")
        assert found.ok
        assert [(q.namespace, q.seen, q.in_backlog) for q in found.queues] == [("contoso", 2, 2)]

    def test_several_primaries(self, spark: SparkSession, root: Path, record: Callable[..., None]) -> None:
        """Their queues are counted separately; a backlog then needs the name of its primary."""
        record({1: "a"})
        rows: DataFrame = Ledger(spark, str(root.parent)).outcomes()
        other = rows.withColumns({"namespace": _literal("fabrikam")})
        other.write.format("delta").mode("append").save(str(root.parent / "outcomes"))
        assert [q.namespace for q in verify(spark, str(root.parent)).queues] == ["contoso", "fabrikam"]
        with pytest.raises(OptionError, match="more than one primary"):
            verify(spark, str(root.parent), {0: [2]})
        assert verify(spark, str(root.parent), {0: [2]}, namespace="Fabrikam").queues[0].in_backlog == 1

    def test_a_primary_without_rows_is_refused(
        self, spark: SparkSession, root: Path, record: Callable[..., None]
    ) -> None:
        """Its name may be misspelt: the error has the names with rows."""
        record({1: "a", 2: "b", 5: "c"})
        for in_backlog in (None, {0: [7]}):
            with pytest.raises(OptionError, match="has no row of the primary 'contosso': it has rows of contoso"):
                verify(spark, str(root.parent), in_backlog, namespace="contosso")
        assert not verify(spark, str(root.parent), namespace="Contoso").ok


def _literal(value: str) -> Any:
    from pyspark.sql import functions

    return functions.lit(value)
