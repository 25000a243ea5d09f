"""docs/syphon.md: its example of `verify` runs as it stands."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

from pairbus.domain.backlog import queue_path
from pairbus.domain.outcome import Head, Outcome, Rows
from pairbus.spark import Ledger, verify
from pairbus.syphon.journal.folding import JournalFolder
from pairbus.syphon.journal.journal import open_journal
from tests.support.code_blocks import blocks
from tests.support.pairing import Pair
from tests.support.spark import MOMENT, Backlog, write_toml


def test_the_guides_verification_looks_at_the_backlog(
    spark: SparkSession,
    pair: Pair,
    backlog: Backlog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A message without a row that is still in the backlog is not lost; without a look there it seems so."""
    (example,) = [block for block in blocks("docs/syphon.md", "python") if "verify(" in block]
    backlog.park({0: "orders"}, 5)
    with (
        pair.plain_client(pair.secondary) as client,
        client.get_queue_receiver(queue_path(pair.name, 0)) as receiver,
    ):
        *before, left, last = receiver.receive_messages(5, max_wait_time=10)
        for message in (*before, last):
            receiver.complete_message(message)
        receiver.abandon_message(left)
    gone = [int(message.sequence_number or 0) for message in (*before, last)]
    config = backlog.config()
    assert config.ledger is not None
    fold(spark, config.ledger, pair.name, gone)
    assert [each.first for each in verify(spark, config.ledger).missing] == [left.sequence_number]

    file = write_toml(backlog.folder / "pairbus.toml", backlog.mapping())
    monkeypatch.setattr(sys, "argv", ["verify.py", str(file)])
    exec(compile(example, "docs/syphon.md", "exec"), {"__name__": "__main__"})
    _, counts, verdict = capsys.readouterr().out.splitlines()
    # Of queue 0: seen, delivered, dead-lettered, in the backlog, missing.
    assert counts.split()[1:7] == ["0", "5", "4", "0", "1", "0"]
    assert verdict == "every message is accounted for"


def fold(spark: SparkSession, ledger: str, namespace: str, numbers: list[int]) -> None:
    """Write a ledger in which these messages of queue 0 were delivered."""
    count = len(numbers)
    journals = JournalFolder(f"{ledger}/_journal")
    journals.begin("run", None)
    journal = open_journal(f"{ledger}/_journal/run", Head(namespace, 0, 0, 0))
    journal.write(
        Rows(
            sequence_number=numbers,
            message_id=[f"id-{number}" for number in numbers],
            session_id=[None] * count,
            destination=["orders"] * count,
            outcome=[Outcome.DELIVERED.value] * count,
            reason=[None] * count,
            parked_at=[MOMENT - 1000] * count,
            settled_at=[MOMENT] * count,
            size=[100] * count,
            delivery_count=[0] * count,
        )
    )
    journal.close()
    Ledger(spark, ledger).fold(journals)
    journals.finish()
