"""Without Spark: when the secondary is asked, what it is asked, and when a syphon that runs once is done."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.domain.backlog import queue_path
from pairbus.domain.outcome import HeldCount, QueueSummary
from pairbus.errors import PairbusError
from pairbus.spark.batch_summary import BatchSummary, Once, SyphonError
from pairbus.spark.source import BacklogReader, BacklogSource, DepthWatch, Note, QueuePartition
from pairbus.syphon.depths import Depths, backlog_depths
from pairbus.syphon.peeking import backlog_sequence_numbers
from tests.support.pairing import Pair
from tests.support.process_fixtures import administer
from tests.support.spark import Backlog


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Secondary:
    """Answers with depths, or fails, and counts how often it was asked."""

    def __init__(self, *answers: Mapping[int, int | None] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self) -> Depths:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Depths(answer)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The HTTP requests that were made."""
    made: list[str] = []
    request = requests.Session.request

    def counted(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        made.append(url)
        return request(self, method, url, *args, **options)

    monkeypatch.setattr(requests.Session, "request", counted)
    return made


class TestDepths:
    """`backlog_depths`, against a real management endpoint."""

    def test_one_call_tells_all(self, pair: Pair, backlog: Backlog, requested: list[str]) -> None:
        """However many queues there are, one request is made, and it is counted; a missing queue is told as missing."""
        backlog.park({1: "orders"}, 7)
        requested.clear()
        found = backlog_depths(pair.secondary_namespace(), pair.name, range(3))
        assert found.by_index == {0: 0, 1: 7, 2: None}
        assert (found.missing, found.total, found.operations) == ((2,), 7, 1)
        assert len(requested) == 1

    def test_a_full_page_is_the_last_if_all_is_seen(self, pair: Pair, requested: list[str]) -> None:
        """With a hundred queues nothing asks for a second, empty page; what else is in the namespace does not count."""
        made = [queue_path(pair.name, index) for index in range(100)]
        with administer(pair.secondary) as admin:
            others = [queue.name for queue in admin.list_queues()]
            for name in others:
                admin.delete_queue(name)
            for name in made:
                admin.create_queue(name)
            requested.clear()
            found = backlog_depths(pair.secondary_namespace(), pair.name, range(100))
            assert (len(requested), found.operations, found.missing) == (1, 1, ())
            admin.create_queue(f"{pair.name}-another")
            requested.clear()
            found = backlog_depths(pair.secondary_namespace(), pair.name, range(90))
            assert (len(requested), found.operations, found.missing) == (1, 1, ())
            for name in made:
                admin.delete_queue(name)

    def test_a_hundred_queues_amid_others_are_one_page_from_the_second_time_on(
        self, pair: Pair, requested: list[str]
    ) -> None:
        """They are found wherever they lie in the list, and found again when the list has changed."""
        made = [queue_path(pair.name, index) for index in range(100)]
        before, after = ([f"{letter}{number:03}" for number in range(110)] for letter in "az")

        def ask() -> tuple[int, int, int]:
            requested.clear()
            found = backlog_depths(pair.secondary_namespace(), pair.name, range(100))
            return len(requested), found.operations, len(found.missing)

        with administer(pair.secondary) as admin:
            for name in (*made, *before, *after):
                admin.create_queue(name)
            assert ask()[1:] > (1, 0)
            assert ask() == (1, 1, 0)
            for name in before[:60]:
                admin.delete_queue(name)
            assert ask()[2] == 0
            assert ask() == (1, 1, 0)
            for name in before[:60]:
                admin.create_queue(name)
            assert ask()[2] == 0
            assert ask() == (1, 1, 0)
            for name in (*made, *before, *after):
                admin.delete_queue(name)

    def test_a_queue_that_moves_to_another_page_meanwhile_is_seen(
        self, pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pages go by position: when a queue before it is deleted between two pages, it has moved to the first."""
        with administer(pair.secondary) as admin:
            path = queue_path(pair.name, 0)
            before = sum(queue.name.lower() < path.lower() for queue in admin.list_queues())
            names = [f"aaa-{number:03}" for number in range(100 - before)]
            for name in names:
                admin.create_queue(name)
            backlog.park({0: "orders"}, 1)
            listing = ServiceBusAdministrationClient.list_queues_runtime_properties

            def deleting(client: Any, **options: Any) -> Any:
                found = listing(client, **options)
                page = [list(each) for each in itertools.islice(found.by_page(), 1)]
                if options["start_index"] == 0:
                    admin.delete_queue(names.pop())
                return SimpleNamespace(by_page=lambda: iter(page))

            monkeypatch.setattr(ServiceBusAdministrationClient, "list_queues_runtime_properties", deleting)
            found = backlog_depths(pair.secondary_namespace(), pair.name, [0])
            monkeypatch.undo()
            for name in names:
                admin.delete_queue(name)
        assert (found.by_index, found.operations) == ({0: 1}, 2)

    def test_a_secondary_that_is_down_raises(self, pair: Pair) -> None:
        """It is for the caller to say whether that is a warning."""
        namespace = pair.secondary_namespace()
        pair.secondary.kill()
        with pytest.raises(Exception, match=r"refused|Connection"):
            backlog_depths(namespace, pair.name, range(2), timeout=2)


def test_peeking_names_what_is_there_and_takes_nothing(pair: Pair, backlog: Backlog) -> None:
    """More messages than one peek can tell are all named, and all are still there."""
    backlog.park({0: "orders"}, 1200)
    found = backlog_sequence_numbers(pair.secondary_namespace(), pair.name, (0, 1))
    assert found == {0: list(range(1, 1201)), 1: []}
    assert backlog.depths() == {0: 1200, 1: 0}


def test_peeking_at_what_is_not_there(pair: Pair, backlog: Backlog) -> None:
    """A queue that does not exist has no messages; if none exists, a name is wrong."""
    backlog.park({1: "orders"}, 2)
    assert {index: len(found) for index, found in peeked(pair, range(4)).items()} == {0: 0, 1: 2, 2: 0, 3: 0}
    with pytest.raises(PairbusError, match="has no backlog queue 70-71 of"):
        peeked(pair, range(70, 72))


def peeked(pair: Pair, indexes: Iterable[int]) -> dict[int, list[int]]:
    return backlog_sequence_numbers(pair.secondary_namespace(), pair.name, indexes)


class TestWatch:
    """`DepthWatch`: when to ask, and what an answer means."""

    def test_an_empty_backlog_is_asked_once_an_interval(self, clock: Clock) -> None:
        """An hour of being idle is thirty questions, however often Spark looks."""
        secondary = Secondary({0: 0, 1: None})
        watch = DepthWatch(secondary, idle_poll_interval=120, retry_interval=1, clock=clock)
        for _ in range(3600):
            assert watch.look(Note()) is None
            clock.now += 1
        assert secondary.asked == 30

    @pytest.mark.parametrize("answer", [{0: 0}, ConnectionError("down")], ids=["empty", "no answer"])
    def test_a_clock_that_is_set_back_does_not_keep_it_from_asking(self, clock: Clock, answer: Any) -> None:
        """What is parked meanwhile would wait for as long as the clock was set back."""
        secondary = Secondary(answer, {0: 5})
        watch = DepthWatch(secondary, idle_poll_interval=120, retry_interval=1, clock=clock)
        assert watch.look(Note()) is None
        clock.now -= 86_400
        assert watch.look(Note()) == {0: 5}

    def test_work_is_told_at_once_and_asked_for_again(self, clock: Clock) -> None:
        """While there is something to do each look asks."""
        secondary = Secondary({0: 5, 1: 0}, {0: 1, 1: 0}, {0: 0, 1: 0})
        watch = DepthWatch(secondary, idle_poll_interval=120, retry_interval=1, clock=clock)
        assert watch.look(Note()) == {0: 5, 1: 0}
        assert watch.look(Note()) == {0: 1, 1: 0}
        assert watch.look(Note()) is None
        assert watch.look(Note()) is None
        assert secondary.asked == 3

    def test_what_the_driver_saw_after_a_batch_is_not_asked_again(self, clock: Clock) -> None:
        """One call a batch: the depths after one are the depths before the next. An old answer is not taken."""
        secondary = Secondary({0: 9})
        watch = DepthWatch(secondary, idle_poll_interval=120, retry_interval=1, clock=clock)
        assert watch.look(Note(1, {0: 3}, asked_at=clock.now - 1)) == {0: 3}
        assert watch.look(Note(2, {0: 0}, asked_at=clock.now)) is None
        assert secondary.asked == 0
        assert watch.look(Note(3, {0: 2}, asked_at=clock.now - 60)) == {0: 9}
        assert secondary.asked == 1

    def test_no_batch_while_the_driver_pauses_or_stops(self, clock: Clock) -> None:
        """A pause ends by itself, also if the clock was set back meanwhile; stopping does not."""
        secondary = Secondary({0: 9})
        watch = DepthWatch(secondary, idle_poll_interval=120, retry_interval=1, clock=clock)
        pause = Note(1, {0: 9}, asked_at=clock.now, pause_until=clock.now + 4)
        assert watch.look(pause) is None
        clock.now += 4
        assert watch.look(pause) == {0: 9}
        assert watch.look(Note(2, stopping=True)) is None
        assert watch.look(Note(3, pause_until=clock.now + 5000)) == {0: 9}

    def test_a_secondary_that_does_not_answer_is_a_warning(
        self, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is asked again after 1, 2, 4 … seconds, never later than two minutes; nothing is raised."""
        secondary = Secondary(OSError("no route"))
        watch = DepthWatch(secondary, idle_poll_interval=120, retry_interval=1, clock=clock)
        asked_at: list[float] = []
        with caplog.at_level(logging.WARNING):
            begun = clock.now
            for _ in range(600):
                before = secondary.asked
                assert watch.look(Note()) is None
                if secondary.asked > before:
                    asked_at.append(clock.now - begun)
                clock.now += 1
        assert asked_at == [0, 1, 3, 7, 15, 31, 63, 127, 247, 367, 487]
        assert "does not say how deep the backlog is" in caplog.text
        secondary.answers = [{0: 1}]
        clock.now += 120
        assert watch.look(Note()) == {0: 1}


class TestReader:
    """`BacklogReader`: ticks and partitions."""

    def test_a_tick_is_new_only_if_there_is_work(self, backlog: Backlog) -> None:
        """Empty: the offset stays. With messages: the next one, with one partition per index and its depth."""
        reader = BacklogReader(backlog.config(queues=3, idle_poll_interval=1))
        assert reader.latestOffset(reader.initialOffset()) == {"tick": 0}
        backlog.park({1: "orders"}, 3)
        reader._watch._next = 0.0
        assert reader.latestOffset({"tick": 41}) == {"tick": 42}
        assert reader.partitions({"tick": 41}, {"tick": 42}) == [
            QueuePartition(0, 0, 42, 1),
            QueuePartition(1, 3, 42, 1),
            QueuePartition(2, 0, 42, 1),
        ]
        assert list(reader.read(QueuePartition(1, 3, 42, 1))) == [(1, 3, 42, 1)]
        assert reader.partitions({"tick": 0}, {"tick": 0}) == []

    def test_a_batch_of_an_earlier_process_has_unknown_depths(self, backlog: Backlog) -> None:
        """After a restart Spark asks for the partitions of a tick that this reader never offered: all are looked at."""
        reader = BacklogReader(backlog.config(queues="0,5"))
        assert reader.partitions({"tick": 6}, {"tick": 7}) == [
            QueuePartition(0, None, 7, 2),
            QueuePartition(5, None, 7, 2),
        ]

    def test_spark_4_0_gives_no_start(self, backlog: Backlog) -> None:
        """Then a restarted reader goes on with a tick that no earlier one can have had, and counts from there."""
        backlog.park({0: "orders"}, 1)
        reader = BacklogReader(backlog.config())
        first = reader.latestOffset()["tick"]
        assert first > 1_700_000_000_000
        assert reader.latestOffset() == {"tick": first + 1}

    def test_options_and_pickles_hold_references(self, pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
        """What travels has no key in it, also after the reader has resolved one."""
        config = backlog.config()
        source = BacklogSource({"config": json.dumps(config.to_mapping()), "note": str(tmp_path / "note")})
        reader = source.streamReader(source.schema())  # type: ignore[arg-type]
        assert reader.config == config
        assert reader.latestOffset({"tick": 0}) == {"tick": 0}
        assert reader._secondary is not None
        key = pair.secondary.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        for pickled in (pickle.dumps(source), pickle.dumps(reader)):
            assert key.encode() not in pickled
        assert list(pickle.loads(pickle.dumps(reader)).read(QueuePartition(1, 3, 42, 1))) == [(1, 3, 42, 1)]

    def test_notes(self, tmp_path: Path) -> None:
        """What the driver writes is what the reader reads; no file is no note."""
        file = tmp_path / "note"
        assert Note.read(None) == Note.read(file) == Note()
        note = Note(3, {0: 5, 7: None}, 12.5, 99.0, True)
        note.write(file)
        assert Note.read(file) == note


def summary(after: Mapping[int, int | None], *queues: QueueSummary) -> BatchSummary:
    return BatchSummary(0, queues, {}, after, 1.0, 1)


class TestOnce:
    """`Once`: when a syphon that runs once is done."""

    def test_empty_is_done(self, clock: Clock) -> None:
        """Every queue was emptied, or has nothing but what is held back; that is told, summed up by destination."""
        once = Once(clock)
        held = QueueSummary(1, received=3, held=3, empty=True, held_for=(HeldCount("orders", "busy", 3),))
        more = QueueSummary(0, received=2, held=2, empty=True, held_for=(HeldCount("orders", "busy", 2),))
        assert once.is_done(summary({0: 2, 1: 3}, more, held))
        assert once.result() == (HeldCount("orders", "busy", 5),)

    def test_a_budget_that_is_over_is_not_the_end(self, clock: Clock) -> None:
        """A queue that was left with messages is drained again."""
        once = Once(clock)
        assert not once.is_done(summary({0: 10}, QueueSummary(0, received=5, delivered=5)))
        assert once.is_done(summary({0: 0}, QueueSummary(0, received=10, delivered=10, empty=True)))

    def test_errors_that_persist_end_it(self, clock: Clock) -> None:
        """An error is tried again once; after a second batch that moved nothing it is told, queue by queue."""
        once = Once(clock)
        failed = QueueSummary(0, error="the primary is not there")
        assert not once.is_done(summary({0: 10}, failed))
        assert once.is_done(summary({0: 10}, failed))
        with pytest.raises(SyphonError, match="queue 0: the primary is not there"):
            once.result()

    def test_what_another_has_locked_is_waited_for(self, clock: Clock) -> None:
        """A killed run leaves its messages locked for a minute: not an error, unless it takes much longer."""
        once = Once(clock)
        nothing = QueueSummary(0, empty=True)
        for _ in range(9):
            assert not once.is_done(summary({0: 10}, nothing))
            clock.now += 10
        clock.now += 10
        assert once.is_done(summary({0: 10}, nothing))
        with pytest.raises(SyphonError, match="10 of 10 messages are out of reach"):
            once.result()

    def test_somebody_who_goes_on_parking_does_not_keep_it(self, clock: Clock) -> None:
        """What was there is drained; a queue that is filled all the time was emptied twice, and that will do."""
        once = Once(clock)
        emptied = QueueSummary(0, received=5, delivered=5, empty=True)
        assert not once.is_done(summary({0: 2}, emptied))
        assert once.is_done(summary({0: 2}, emptied))
        assert once.result() == ()

    def test_depths_that_nobody_knows(self, clock: Clock) -> None:
        """If the secondary did not say what is left, what the drain says counts."""
        once = Once(clock)
        assert not once.is_done(summary({0: None, 1: None}, QueueSummary(0, empty=True), QueueSummary(1, delivered=1)))
        assert once.is_done(summary({0: None, 1: None}, QueueSummary(0, empty=True), QueueSummary(1, empty=True)))


def test_a_batch_tells_itself_in_one_line() -> None:
    """Counts, what is left, what it cost, and every queue's error."""
    told = str(summary({0: 0, 1: 4}, QueueSummary(0, 9, 8, 1, bytes=100, operations=20), QueueSummary(1, error="gone")))
    assert told == (
        "batch 0: 8 delivered, 1 dead-lettered, 0 held, 0 in-doubt; 4 left in the backlog; 100 bytes, "
        "21 billable operations, 1.0 s; queue 1: gone"
    )
    assert "; an unknown number left in the backlog;" in str(summary({0: 3, 1: None}, QueueSummary(0)))
