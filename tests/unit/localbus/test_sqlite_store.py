"""The SQLite file of localbus: rows that are no longer needed must not reach the next process that opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.broker.store import SqliteStore
from pairbus.localbus.entities.message import read_message
from pairbus.localbus.settings import QueueSettings
from tests.support import amqp_frames as amqp


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "localbus.db"


@contextmanager
def broker_on(path: Path) -> Iterator[Broker]:
    """A broker of one process; what it has committed is there for the next one."""
    store = SqliteStore(path)
    try:
        yield Broker("contoso", store, clock=lambda: 1000.0)
        store.commit()
    finally:
        store.close()


def test_a_message_that_never_reached_the_file_leaves_no_row(path: Path) -> None:
    """It was sent, received and completed between two commits; the next message with its id is a new one."""
    with broker_on(path) as broker:
        queue = broker.create_queue(QueueSettings("orders"))
        broker.send(queue, [read_message(amqp.message(b"1"))], 1000.0)
        (taken,) = queue.acquire(1000.0, 1)
        queue.complete(taken.lock.tag, 1000.0)
    with broker_on(path) as broker:
        again = broker.queue("orders")
        assert again is not None
        broker.send(again, [read_message(amqp.message(b"2"))], 1000.0)
    with broker_on(path) as broker:
        restored = broker.queue("orders")
        assert restored is not None
        assert [message.delivery_count for message in restored.messages.values()] == [0]


def test_nothing_of_a_deleted_queue_stays_in_the_file(path: Path) -> None:
    """Neither its messages nor its sessions nor the ids of its duplicate history: a broker must open the file."""
    settings = QueueSettings("orders", requires_duplicate_detection=True, requires_session=True)
    with broker_on(path) as broker:
        queue = broker.create_queue(settings)
        draft = read_message(amqp.message(b"1"))
        draft.message_id, draft.session_id = "m", "a"
        broker.send(queue, [draft], 1000.0)
        queue.accept_session("a", object(), 1000.0)
        queue.set_session_state("a", b"state", 1000.0)
    with broker_on(path) as broker:
        broker.delete_queue("orders")
    store = SqliteStore(path)
    try:
        left = [store.entities(), store.sequences(), [*store.messages()], [*store.sessions()], [*store.history()]]
    finally:
        store.close()
    assert left == [[], {}, [], [], []]
