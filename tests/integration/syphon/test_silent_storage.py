"""Storage that does not answer: no message is settled without a row, and no drain or process waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pairbus.domain.outcome import Head, Rows
from pairbus.runtime import bounded_call as bounds
from pairbus.syphon.journal.folding import JournalFolder
from pairbus.syphon.journal.growing_file import GrowingFileWriter
from pairbus.syphon.journal.journal import close_journal, open_journal
from pairbus.syphon.journal.local_storage import LocalStorage
from pairbus.syphon.service import Service
from tests.support.backlog import Backlog, InBackground, Remembering, numbered
from tests.support.counting import arrivals, assert_conserved, ids, park_many
from tests.support.pairing import Pair
from tests.support.waiting import wait_until

#: The longest wait for a journal, in place of a minute.
DEADLINE = 2.0
LOCK = timedelta(seconds=5)


class Silent(Remembering):
    """A journal whose calls block, from one of them on, until `go_on` is set."""

    def __init__(self, *, prepares: bool = True, writes: int = 0) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.hangs = threading.Event()
        self._prepares, self._writes = prepares, writes

    def prepare(self) -> None:
        if not self._prepares:
            self._hang()

    def write(self, rows: Rows) -> None:
        if self._writes <= 0:
            self._hang()
        self._writes -= 1
        super().write(rows)

    def _hang(self) -> None:
        self.hangs.set()
        assert self.go_on.wait(120)


@pytest.fixture(autouse=True)
def journal_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "JOURNAL_SECONDS", DEADLINE)


@pytest.fixture
def made() -> Iterator[list[Silent]]:
    """Journals whose calls end after the test."""
    journals: list[Silent] = []
    yield journals
    for each in journals:
        each.go_on.set()


def drain_the_rest(backlog: Backlog) -> None:
    """Drain until the queue is empty; messages that were sent and not settled follow when their locks end."""

    def emptied() -> bool:
        assert backlog.drain().error is None
        return backlog.depth() == 0

    wait_until(emptied, 60)


@pytest.mark.parametrize("writes", [0, 1])
def test_a_write_that_does_not_end_has_failed(pair: Pair, backlog: Backlog, made: list[Silent], writes: int) -> None:
    """The drain ends with an error; messages that it had sent without a row stay in the backlog, and are sent again."""
    queue = pair.queue()
    messages = numbered(300)
    park_many(backlog, queue, messages, lock_duration=LOCK)
    made.append(journal := Silent(writes=writes))
    summary = backlog.drain(journal=journal, budget=None)
    cause = f"the journal did not answer within {DEADLINE:g} s"
    assert summary.error == f"the journal could not be written, so nothing more is settled: {cause}"
    assert not summary.empty
    assert not journal.go_on.is_set()
    delivered = len(journal.rows)
    assert (summary.delivered, backlog.depth()) == (delivered, 300 - delivered)
    assert summary.in_doubt > 0
    drain_the_rest(backlog)
    assert {each.id for each in arrivals(backlog, queue)} == set(ids(messages))
    rows = {row["message_id"] for row in (*journal.of("delivered"), *backlog.journal.of("delivered"))}
    assert rows == set(ids(messages))


def test_a_write_that_ends_late_settles_nothing(pair: Pair, backlog: Backlog, made: list[Silent]) -> None:
    """The drain has given the write up: its messages stay in the backlog, and are sent again."""
    queue = pair.queue()
    park_many(backlog, queue, numbered(5), lock_duration=LOCK)
    made.append(journal := Silent())
    summary = backlog.drain(journal=journal)
    assert (summary.delivered, backlog.depth()) == (0, 5)
    journal.go_on.set()
    wait_until(lambda: len(journal.rows) > 0, 30)
    assert backlog.depth() == 5
    drain_the_rest(backlog)
    parked = ids(numbered(5))
    assert sorted(each.id for each in arrivals(backlog, queue)) == sorted(parked * 2)


def test_a_journal_that_cannot_be_tried_is_found_before_a_message_is_taken(
    pair: Pair, backlog: Backlog, made: list[Silent]
) -> None:
    """No message is sent whose row could not be written."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    made.append(journal := Silent(prepares=False))
    summary = backlog.drain(journal=journal)
    assert f"so nothing is taken from the backlog: the journal did not answer within {DEADLINE:g} s" in str(
        summary.error
    )
    assert (summary.received, pair.arrived(queue), backlog.depth()) == (0, 0, 3)


def test_a_stop_check_that_hangs_keeps_no_drain_beyond_its_budget(pair: Pair, backlog: Backlog) -> None:
    """The stop signal is on storage too. The budget ends the drain meanwhile."""
    queue = pair.queue()
    backlog.park(queue, *numbered(200))
    answer = threading.Event()

    def stop() -> bool:
        assert answer.wait(120)
        return False

    drain = InBackground(lambda: backlog.drain(stop=stop, max_rate=5.0, budget=1.0))
    try:
        summary = drain.result()
    finally:
        answer.set()
    assert (summary.error, summary.empty) == (None, False)
    assert 0 < summary.delivered < 200
    assert_conserved(
        backlog, ids(numbered(200))[: summary.delivered], arrivals(backlog, queue), journal=backlog.journal
    )


def test_a_journal_with_a_write_under_way_is_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not marked as finished, which is logged; the close returns at once."""
    journal = open_journal(str(tmp_path), Head("contoso", 0))
    begun, go_on = threading.Event(), threading.Event()

    def hang(self: LocalStorage, folder: str) -> None:
        begun.set()
        assert go_on.wait(120)

    monkeypatch.setattr(LocalStorage, "sync_folder", hang)
    writing = threading.Thread(target=journal.prepare, daemon=True)
    writing.start()
    try:
        assert begun.wait(60)
        close_journal(journal, 7)
    finally:
        go_on.set()
        writing.join(60)
    assert "the journal of queue 7 could not be closed" in caplog.text
    assert "still under way" in caplog.text


def test_storage_that_does_not_let_a_journal_be_closed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows are durable: only the mark at the end of the file is missing."""
    monkeypatch.setattr(bounds, "JOURNAL_SECONDS", 0.2)
    journal = open_journal(str(tmp_path), Head("contoso", 0))
    go_on = threading.Event()
    monkeypatch.setattr(GrowingFileWriter, "close", lambda self: go_on.wait(120))
    try:
        close_journal(journal, 7)
    finally:
        go_on.set()
    assert "the journal of queue 7 could not be closed: no answer within 0.2 s" in caplog.text


def test_a_run_that_cannot_be_begun_or_ended_is_not_waited_for(
    pair: Pair, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error or a warning says so, and the result is returned."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    go_on = threading.Event()
    service = Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path))
    service.begin()
    monkeypatch.setattr(JournalFolder, "finish", lambda self: go_on.wait(120))
    monkeypatch.setattr(JournalFolder, "begin", lambda self, run, previous: go_on.wait(120))
    try:
        assert service.once().moved == 3
        expected = f"could not be ended in order: no answer within {DEADLINE:g} s"
        assert service.journal_error == f"the journal {tmp_path} {expected}"
        with pytest.raises(TimeoutError, match=f"no answer within {DEADLINE:g} s"):
            Service(pair.primary_namespace(), pair.secondary_namespace(), [0], str(tmp_path)).begin()
    finally:
        go_on.set()


_PROCESS = """
import asyncio, threading
from pairbus.runtime import bounded_call
from pairbus.syphon.drain.journal_batcher import JournalWriter

class Silent:
    def prepare(self): threading.Event().wait()
    def write(self, rows): ...

async def main():
    bounded_call.JOURNAL_SECONDS = 0.2
    try:
        await JournalWriter(Silent()).prepare()
    except TimeoutError as error:
        print(error)

asyncio.run(main())
"""


def test_a_process_ends_while_its_journal_is_silent() -> None:
    """Neither the event loop nor the interpreter waits for the thread that hangs."""
    ended = subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the journal did not answer within 0.2 s\n", "")
