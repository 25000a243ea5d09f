"""Connections, links and a journal without a socket or a disk, for passes whose events a test decides on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from proton import Message, symbol, timestamp

from pairbus import Namespace
from pairbus.domain.envelope import park
from pairbus.domain.outcome import Rows
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import ACCEPTED, MODIFIED, REJECTED, ConnectionLost, LinkError
from pairbus.syphon.drain.drain import Drain, DrainOptions
from pairbus.syphon.drain.drain_pass import DrainPass
from pairbus.syphon.drain.in_flight import InFlightMessage
from pairbus.syphon.drain.journal_batcher import JournalWriter
from pairbus.syphon.drain.pass_state import PassState
from tests.support.backlog import Remembering, encoded
from tests.support.waiting import pauses

LOCK_SECONDS = 60.0


def namespace(name: str) -> Namespace:
    credential = AzureNamedKeyCredential("key", "c2VjcmV0LW9mLWEtdGVzdA==")
    return Namespace(f"{name}.example", credential=credential, name=name)


def delivered(sequence: int, destination: str = "q", session: str | None = None) -> bytes:
    """A parked message as a broker delivers it."""
    message = Message()
    message.decode(park(encoded("x", id=f"m{sequence}", session=session), destination, "id-of-park"))
    message.annotations = {
        symbol("x-opt-sequence-number"): sequence,
        symbol("x-opt-locked-until"): timestamp(int((time.time() + LOCK_SECONDS) * 1000)),
        **(message.annotations or {}),
    }
    return bytes(message.encode())


class FakeReceiver:
    """The backlog queue's link. `calls` has what was asked of it, in order; a delivery is its sequence number."""

    def __init__(self) -> None:
        self.events: Any = None
        self.credit = 0
        self.closed: LinkError | None = None
        self.calls: list[Any] = []
        #: True if settlements are confirmed, and credit is returned, by themselves.
        self.confirms = self.returns_credit = True
        self._unsettled: dict[int, InFlightMessage] = {}

    def allow(self, more: int) -> None:
        self.credit += more
        self.calls.append(("allow", more))

    def drain(self) -> None:
        self.calls.append("drain")
        if self.returns_credit:
            asyncio.get_running_loop().call_soon(self.return_credit)

    def return_credit(self) -> None:
        self.credit = 0
        self.events.on_drained(True)

    def deliver(self, sequence: int, destination: str = "q", session: str | None = None) -> InFlightMessage:
        self.credit -= 1
        message: InFlightMessage = self.events.on_message(sequence, delivered(sequence, destination, session))
        self._unsettled[sequence] = message
        return message

    def complete(self, delivery: int) -> None:
        self._settle("complete", delivery, ACCEPTED)

    def abandon(self, delivery: int) -> None:
        self._settle("abandon", delivery, MODIFIED)

    def dead_letter(self, delivery: int, reason: str, description: str) -> None:
        self._settle("dead-letter", delivery, REJECTED)

    def _settle(self, how: str, delivery: int, state: int) -> None:
        self.calls.append((how, delivery))
        if self.confirms:
            asyncio.get_running_loop().call_soon(self.confirm, delivery, state)

    def confirm(self, delivery: int, state: int = ACCEPTED, error: LinkError | None = None) -> None:
        if self.closed is None:
            self.events.on_confirmed(self._unsettled.pop(delivery), state, error)

    def unsettled(self) -> list[InFlightMessage]:
        return list(self._unsettled.values())

    def close(self, error: LinkError) -> None:
        """End the link from the service's side."""
        self.closed = error
        self.events.on_closed(error)


class FakeSender:
    """A destination's link, which accepts what it gets at once, unless `accepts` is False."""

    def __init__(self, events: Any) -> None:
        self.events = events
        self.credit = 1000
        self.max_message_bytes = 0
        self.accepts = True
        self.sent: list[int] = []
        self.pending: list[Any] = []

    def loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def send(self, message: bytes, context: Any) -> None:
        self._put([context], context)

    def send_batch(self, head: bytes, messages: list[bytes], context: Any) -> None:
        self._put(context, context)

    def _put(self, messages: list[InFlightMessage], context: Any) -> None:
        self.sent += [message.sequence for message in messages]
        self.pending.append(context)
        if self.accepts:
            asyncio.get_running_loop().call_soon(self.accept)

    def accept(self) -> None:
        if self.pending:
            self.events.on_outcome(self.pending.pop(0), ACCEPTED, None)

    def refuse(self, condition: str) -> None:
        self.events.on_outcome(self.pending.pop(0), REJECTED, LinkError(condition, "so"))

    def oldest_unanswered(self) -> Any:
        return self.pending[0] if self.pending else None

    def abandon_unanswered(self) -> list[Any]:
        given_up, self.pending = self.pending, []
        return given_up

    def close(self) -> None: ...


class FakeConnection:
    """A connection that opens, and whose links are fakes."""

    def __init__(self, run: PassRun, namespace: Namespace) -> None:
        self._run = run
        self.namespace = namespace
        self.is_paused = False
        self.lost: ConnectionLost | None = None
        self.on_input_handled: Callable[[], None] = lambda: None

    async def authorize(self, path: str, timeout: float) -> None: ...

    async def receiver(self, path: str, events: Any, timeout: float) -> FakeReceiver:
        self._run.receiver.events = events
        return self._run.receiver

    async def sender(self, path: str, events: Any, timeout: float) -> FakeSender:
        made = self._run.senders[path] = FakeSender(events)
        made.accepts = self._run.accepts
        return made

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    async def close(self) -> None: ...


class PassRun:
    """One pass over backlog queue 0 of `contoso`, on fake connections.

    Use it as an asynchronous context: the pass has begun and granted credit then, and is over at the end.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.receiver = FakeReceiver()
        self.senders: dict[str, FakeSender] = {}
        self.connections: dict[str, FakeConnection] = {}
        self.journal = Remembering()
        #: True if destinations accept messages by themselves.
        self.accepts = True
        self._options = DrainOptions(**{"answer_timeout": 5.0, **options})
        monkeypatch.setattr(Connection, "open", self._open)

    async def _open(self, namespace: Namespace, **more: Any) -> FakeConnection:
        assert namespace.name is not None
        made = self.connections[namespace.name] = FakeConnection(self, namespace)
        return made

    async def __aenter__(self) -> PassRun:
        self.drain = Drain(namespace("contoso"), namespace("backup"), None, 0, self.journal, self._options)
        self._writer = JournalWriter(self.journal)
        self.one = DrainPass(self.drain, self._writer)
        self._running = asyncio.create_task(self.one.run())
        await self.until(lambda: self.receiver.calls or self._running.done())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._writer.end()

    async def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        """Wait for a condition, while the connections report a turn again and again."""
        for pause in pauses(seconds, 0.001):
            if condition():
                return
            self.turn()
            await asyncio.sleep(pause)
        raise AssertionError(f"{self.one.state}, {self.receiver.calls}")

    async def wait(self, seconds: float) -> None:
        """Let the pass go on for so long."""
        deadline = time.monotonic() + seconds
        await self.until(lambda: time.monotonic() > deadline)

    def turn(self) -> None:
        for connection in self.connections.values():
            connection.on_input_handled()

    async def sent(self, path: str, count: int = 1) -> FakeSender:
        """Return the destination's link once it has sent so many messages."""
        await self.until(lambda: path in self.senders and len(self.senders[path].sent) >= count)
        return self.senders[path]

    async def end(self) -> PassState:
        """Wait until the pass is over."""
        await self.until(self._running.done)
        return self._running.result()

    def asked(self, how: str) -> list[int]:
        """The deliveries that were settled in this way, in their order."""
        return [call[1] for call in self.receiver.calls if call[0] == how]


class FailingJournal(Remembering):
    """A journal on a full disk."""

    def write(self, rows: Rows) -> None:
        raise OSError(28, "No space left on device", "the journal")
