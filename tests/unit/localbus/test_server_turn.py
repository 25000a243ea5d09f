"""A turn of the server: what it has made durable before it writes to a client."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proton import Message as Encoded

from pairbus.localbus.auth import Authorizer
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.broker.store import SqliteStore
from pairbus.localbus.entities.message import Message, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.server import Server
from pairbus.localbus.settings import QueueSettings


def stored_messages(store: Path) -> list[Message]:
    """Return the messages of queue "q" that a process would find after a kill at this moment."""
    copy = store.with_name("copy.db")
    for suffix in ("", "-wal"):
        shutil.copy(str(store) + suffix, str(copy) + suffix)
    after_kill = SqliteStore(copy)
    try:
        queue = Broker("test", after_kill).queue("q")
        assert queue is not None
        return list(queue.messages.values())
    finally:
        after_kill.abandon()


class Receiver:
    """A receiver and its connection: takes the queue's messages and notes what is durable when it is written to."""

    served_in_shares = False
    session = None
    open = can_pull = True

    def __init__(self, server: Server, queue: Queue, store: Path, delete: bool) -> None:
        self.connection = SimpleNamespace(server=server)
        self.queue = queue
        self.received = 0
        self.durable: list[Message] | None = None
        self._server, self._store, self._delete = server, store, delete

    def pull(self, now: float) -> bool:
        self.received += len(self.queue.acquire(now, 10, self, delete=self._delete))
        self._server.unwritten.add(self)  # type: ignore[arg-type]
        self._server.schedule()
        return False

    def flush(self) -> None:
        self.durable = stored_messages(self._store)
        self._server.failed.set_result(None)


@pytest.mark.parametrize("delete", [True, False], ids=["receive and delete", "peek lock"])
async def test_messages_are_written_after_their_delivery_is_durable(tmp_path: Path, delete: bool) -> None:
    """After a kill at the moment of writing, deleted messages stay deleted and locked ones count a delivery."""
    path = tmp_path / "bus.db"
    broker = Broker("test", SqliteStore(path))
    queue = broker.create_queue(QueueSettings("q"))
    broker.send(queue, [read_message(Encoded(body=b"x").encode()) for _ in range(5)], broker.clock())
    broker.store.commit()
    server = Server(broker, Authorizer([], hosts=frozenset()))
    receiver: Any = Receiver(server, queue, path, delete)
    server.dispatcher.add(receiver)
    server.dispatcher.wake(receiver)
    await server.failed
    await server.stop()
    assert receiver.received == 5
    assert [message.delivery_count for message in receiver.durable] == ([] if delete else [1] * 5)
