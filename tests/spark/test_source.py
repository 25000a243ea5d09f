"""The reader of the source `pairbus-backlog`: its ticks, its partitions and what is pickled; without a session."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

from pairbus.spark.source import BacklogReader, BacklogSource, QueuePartition
from tests.support.pairing import Pair
from tests.support.spark import Backlog


def test_a_tick_is_new_only_if_there_is_work(backlog: Backlog) -> None:
    """Empty: the offset stays. With messages: the next one, with one partition per index and its depth."""
    now = time.time()
    reader = BacklogReader(backlog.config(queues=3), clock=lambda: now)
    assert reader.latestOffset(reader.initialOffset()) == {"tick": 0}
    backlog.park({1: "orders"}, 3)
    assert reader.latestOffset({"tick": 41}) == {"tick": 41}
    now += 120
    assert reader.latestOffset({"tick": 41}) == {"tick": 42}
    assert reader.partitions({"tick": 41}, {"tick": 42}) == [
        QueuePartition(0, 0, 42, 1),
        QueuePartition(1, 3, 42, 1),
        QueuePartition(2, 0, 42, 1),
    ]
    assert list(reader.read(QueuePartition(1, 3, 42, 1))) == [(1, 3, 42, 1)]
    assert reader.partitions({"tick": 0}, {"tick": 0}) == []


def test_a_batch_of_an_earlier_process_has_unknown_depths(backlog: Backlog) -> None:
    """After a restart Spark asks for the partitions of a tick that this reader never offered: each has a task."""
    reader = BacklogReader(backlog.config(queues="0,5"))
    assert reader.partitions({"tick": 6}, {"tick": 7}) == [
        QueuePartition(0, None, 7, 2),
        QueuePartition(5, None, 7, 2),
    ]


def test_spark_4_0_gives_no_start(backlog: Backlog) -> None:
    """A restarted reader goes on with a tick that no earlier one can have had, and counts from there."""
    backlog.park({0: "orders"}, 1)
    reader = BacklogReader(backlog.config())
    first = reader.latestOffset()["tick"]
    assert first > 1_700_000_000_000
    assert reader.latestOffset() == {"tick": first + 1}


def test_options_and_pickles_hold_references(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """No key is pickled, also after the reader has resolved one."""
    config = backlog.config()
    source = BacklogSource({"config": json.dumps(config.to_mapping()), "note": str(tmp_path / "note")})
    reader = source.streamReader(source.schema())  # type: ignore[arg-type]
    assert reader.config == config
    assert reader.latestOffset({"tick": 0}) == {"tick": 0}
    assert reader.poller.monitor.last is not None
    key = pair.secondary.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
    for pickled in (pickle.dumps(source), pickle.dumps(reader)):
        assert key.encode() not in pickled
    assert list(pickle.loads(pickle.dumps(reader)).read(QueuePartition(1, 3, 42, 1))) == [(1, 3, 42, 1)]
