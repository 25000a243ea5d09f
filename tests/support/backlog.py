"""A backlog to drain: messages parked by hand in the secondary of a pair, and what became of them."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError
from proton import Message

from pairbus import Namespace
from pairbus.domain.backlog import PROPERTIES, queue_path
from pairbus.domain.envelope import park
from pairbus.domain.outcome import QueueSummary, Rows
from pairbus.syphon.drain.drain import DrainOptions, drain_queue, never
from tests.support.pairing import Pair
from tests.support.process_fixtures import administer, connect
from tests.support.raw_client import RawClient

_COLUMNS = tuple(Rows.__dataclass_fields__)


def encoded(body: Any, *, id: str | None = None, session: str | None = None, **fields: Any) -> bytes:
    """An encoded message, as a client other than the SDK would write it."""
    data = body.encode() if isinstance(body, str) else body
    message = Message(body=data, id=id or f"id-{uuid.uuid4()}", inferred=True, **fields)
    if session is not None:
        message.group_id = session
    return bytes(message.encode())


class Remembering:
    """A journal in memory; `before` is called with the rows of each write before it counts as written."""

    def __init__(self, before: Callable[[Rows], None] | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._before = before

    def prepare(self) -> None: ...

    def write(self, rows: Rows) -> None:
        if self._before is not None:
            self._before(rows)
        columns = [getattr(rows, name) for name in _COLUMNS]
        self.rows += [dict(zip(_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]

    def of(self, outcome: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["outcome"] == outcome]


class Backlog:
    """Backlog queue 0 of a pair, unless another is said."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.journal = Remembering()
        self._made: set[int] = set()

    def path(self, index: int = 0) -> str:
        return queue_path(self.pair.name, index)

    def make(self, index: int = 0, **settings: Any) -> None:
        if index not in self._made:
            self._made.add(index)
            with administer(self.pair.secondary) as admin, contextlib.suppress(ResourceExistsError):
                admin.create_queue(self.path(index), **{**PROPERTIES, **settings})  # a pairing may have made it

    def put(self, *payloads: bytes, index: int = 0) -> None:
        """Put encoded messages there as they are."""
        self.make(index)
        with RawClient(self.pair.secondary) as raw:
            raw.put_token(self.path(index))
            link = raw.sender(self.path(index))
            for payload in payloads:
                raw.send(link, payload)

    def park(self, destination: str, *messages: bytes, index: int = 0, namespace: str | None = None) -> None:
        """Park encoded messages there for a destination."""
        self.put(*(park(each, destination, "id-of-park", namespace) for each in messages), index=index)

    def drain(
        self,
        *,
        index: int = 0,
        journal: Any = None,
        primary: Namespace | None = None,
        secondary: Namespace | None = None,
        event_hubs: Namespace | None = None,
        stop: Callable[[], bool] = never,
        **options: Any,
    ) -> QueueSummary:
        given = {"budget": 20.0, "retry_interval": 0.05, **options}
        return drain_queue(
            primary=primary or self.pair.primary_namespace(),
            secondary=secondary or self.pair.secondary_namespace(),
            event_hubs=event_hubs,
            queue_index=index,
            journal=self.journal if journal is None else journal,
            options=DrainOptions(**given),
            stop=stop,
        )

    def depth(self, index: int = 0) -> int:
        return self.pair.count(self.pair.secondary, self.path(index))

    def dead_letters(self, index: int = 0) -> list[Any]:
        """Take what was dead-lettered, with the SDK."""
        found: list[Any] = []
        with administer(self.pair.secondary) as admin:
            count = admin.get_queue_runtime_properties(self.path(index)).dead_letter_message_count
        if not count:
            return found
        with (
            connect(self.pair.secondary.connection_string) as client,
            client.get_queue_receiver(
                self.path(index), sub_queue="deadletter", receive_mode="receiveanddelete"
            ) as receiver,
        ):
            while len(found) < count and (some := receiver.receive_messages(count - len(found), max_wait_time=60)):
                found += some
        assert len(found) == count
        return found


@pytest.fixture
def backlog(pair: Pair) -> Backlog:
    """An empty backlog, and two namespaces that are well."""
    return Backlog(pair)


class InBackground(threading.Thread):
    """A drain on a thread of its own."""

    def __init__(self, drain: Callable[[], QueueSummary]) -> None:
        super().__init__(daemon=True)
        self._drain = drain
        self.summary: QueueSummary | None = None
        self.start()

    def run(self) -> None:
        self.summary = self._drain()

    def result(self, seconds: float = 60.0) -> QueueSummary:
        self.join(seconds)
        assert self.summary is not None, f"the drain has not ended within {seconds} s"
        return self.summary


def numbered(count: int, **fields: Any) -> Sequence[bytes]:
    return [encoded(f"m{number}", id=f"m{number}", **fields) for number in range(count)]


@pytest.fixture
def in_background() -> Iterator[Callable[..., InBackground]]:
    """Starts drains on threads; all have ended when the test has."""
    started: list[InBackground] = []

    def start(drain: Callable[[], QueueSummary]) -> InBackground:
        started.append(InBackground(drain))
        return started[-1]

    yield start
    for each in started:
        each.join(60)
        assert not each.is_alive()
