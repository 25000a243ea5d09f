"""Three ways to drain a backlog queue: pairbus's drain, the SDK in ordinary use, and bare Proton."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from bench.ground import DESTINATION, PRIMARY, Ground, properties_head
from pairbus.domain.backlog import queue_path
from pairbus.domain.envelope.property_names import ALIASES, PATH, SCHEDULED, SESSION_ID, TIME_TO_LIVE
from pairbus.domain.outcome import Head, Rows
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import ACCEPTED, LinkError, Receiver, Sender
from pairbus.syphon.drain.drain import DrainOptions, drain_queue
from pairbus.syphon.drain.journal_batcher import JournalPort
from pairbus.syphon.journal.journal import open_journal

WINDOW = DrainOptions().window_messages
SDK_BATCH = 100


# --- the drain -----------------------------------------------------------------------------------------------------


class NoJournal:
    """A journal that stores no rows."""

    def prepare(self) -> None:
        pass

    def write(self, rows: Rows) -> None:
        pass


class TimedJournal:
    """A journal that notes the number of durable rows over time."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal
        self._rows = 0
        self.steps: list[tuple[float, int]] = []

    def prepare(self) -> None:
        self._journal.prepare()
        self.steps.append((time.perf_counter(), 0))

    def write(self, rows: Rows) -> None:
        self._journal.write(rows)
        self._rows += len(rows)
        self.steps.append((time.perf_counter(), self._rows))

    def pace_behind(self, share: float) -> tuple[float, float]:
        """Return the rows per second after this share of them was durable, and the time when it was.

        With few rows, this measures the last write.
        """
        last = len(self.steps) - 1
        first = next((index for index in range(last) if self.steps[index][1] >= share * self._rows), last - 1)
        begun, before = self.steps[first]
        ended, rows = self.steps[-1]
        return (rows - before) / max(ended - begun, 1e-9), begun


def drain(ground: Ground, count: int, journal: JournalPort | None = None) -> None:
    """Drain as in production, by default with a journal on this machine's disk."""
    own = None
    if journal is None:
        journal = own = open_journal(str(ground.folder / f"run-{uuid.uuid4().hex[:8]}"), Head(PRIMARY, 0))
    primary, secondary = ground.namespaces
    options = DrainOptions(budget=None)
    done = drain_queue(primary=primary, secondary=secondary, queue_index=0, journal=journal, options=options)
    if own is not None:
        own.close()
    if done.delivered != count or done.error:
        raise RuntimeError(f"the drain did not deliver {count} messages: {done}")


# --- the SDK -------------------------------------------------------------------------------------------------------


def with_sdk(ground: Ground, count: int) -> float:
    """Receive batches, restore messages as far as the SDK's objects allow, send and complete them.

    Return the seconds until the last completion, because the SDK takes another second to close its clients.
    """
    begun = time.perf_counter()
    with (
        ServiceBusClient.from_connection_string(ground.secondary.connection_string) as backlog,
        ServiceBusClient.from_connection_string(ground.primary.connection_string) as home,
        backlog.get_queue_receiver(queue_path(PRIMARY, 0)) as receiver,
        home.get_queue_sender(DESTINATION) as sender,
    ):
        moved = 0
        while moved < count:
            received = receiver.receive_messages(max_message_count=SDK_BATCH, max_wait_time=10)
            if not received:
                raise RuntimeError(f"the SDK delivered {moved} of {count} messages, then received no more")
            sender.send_messages([_restored(message) for message in received])
            for message in received:
                receiver.complete_message(message)
            moved += len(received)
        return time.perf_counter() - begun


def _restored(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
    """Restore a message as far as the SDK's decoded objects allow."""
    properties: dict[str, Any] = {_text(key): value for key, value in (message.application_properties or {}).items()}
    if _text(properties[PATH]) != DESTINATION:
        raise RuntimeError(f"a message for {properties[PATH]}")
    session, life, scheduled = (properties.get(name) for name in (SESSION_ID, TIME_TO_LIVE, SCHEDULED))
    return ServiceBusMessage(
        b"".join(message.body),
        application_properties={key: value for key, value in properties.items() if key not in ALIASES},
        message_id=message.message_id,
        session_id=None if session is None else _text(session),
        time_to_live=life,
        scheduled_enqueue_time_utc=scheduled,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# --- bare Proton ---------------------------------------------------------------------------------------------------


def bare(ground: Ground, count: int) -> None:
    """Forward the sender's sections unchanged and complete accepted messages, without restore, journal or bookkeeping.

    The sections that the broker wrote before the properties are removed: they would double the receiving broker's work.
    """
    asyncio.run(_bare(ground, count))


async def _bare(ground: Ground, count: int) -> None:
    primary, secondary = ground.namespaces
    path = queue_path(PRIMARY, 0)
    home, backlog = await Connection.open(primary), await Connection.open(secondary)
    try:
        await home.authorize(DESTINATION)
        await backlog.authorize(path)
        passing = _PassThrough(count)
        passing.sender = await home.sender(DESTINATION, passing)
        passing.receiver = await backlog.receiver(path, passing)
        backlog.on_input_handled = passing.replenish
        passing.replenish()
        await passing.done
    finally:
        await backlog.close()
        await home.close()


class _PassThrough:
    """A forwarder that sends each received message and completes each accepted one, with a window in flight."""

    sender: Sender
    receiver: Receiver

    def __init__(self, count: int) -> None:
        self._left = count
        self._head = properties_head()
        self._open = 0
        self._waiting: deque[tuple[bytes, Any]] = deque()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def replenish(self) -> None:
        wanted = WINDOW - self._open - self.receiver.credit
        if wanted * 4 >= WINDOW:
            self.receiver.allow(wanted)

    def on_message(self, delivery: Any, message: bytes) -> None:
        self._open += 1
        message = message[message.index(self._head) :]
        if self._waiting or not self.sender.credit:
            self._waiting.append((message, delivery))
        else:
            self.sender.send(message, delivery)

    def on_credit(self) -> None:
        while self._waiting and self.sender.credit:
            self.sender.send(*self._waiting.popleft())

    def on_outcome(self, delivery: Any, state: int, error: LinkError | None) -> None:
        if state != ACCEPTED:
            self._fail(error or LinkError(None, "a message was not accepted"))
            return
        self.receiver.complete(delivery)

    def on_confirmed(self, context: Any, state: int, error: LinkError | None) -> None:
        self._open -= 1
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)

    def on_drained(self, all_was_sent: bool) -> None: ...

    def on_closed(self, error: LinkError) -> None:
        self._fail(error)

    def _fail(self, error: LinkError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
