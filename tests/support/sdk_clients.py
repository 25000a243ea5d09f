"""Microsoft's sync and async Python clients behind one awaitable interface.

A scenario is written once, with `await`, and runs with either client: calls of the sync one run in a thread. Nothing in
the SDK is changed or replaced: `AsyncFacade` only forwards calls.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.localbus import LocalBus
from tests.support.waiting import pauses

_PLAIN_VALUES = ("ServiceBusMessage", "ServiceBusReceivedMessage", "AmqpAnnotatedMessage")
_END = object()


class AsyncFacade:
    """An object of the SDK whose methods are all awaited, whichever client it belongs to."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not callable(found):
            return _wrapped(found)
        if name.startswith("get_") and name.endswith(("_sender", "_receiver")):
            return lambda *args, **kwargs: AsyncFacade(found(*args, **kwargs))

        async def call(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(found):
                return _wrapped(await found(*args, **kwargs))
            result = await asyncio.to_thread(found, *args, **kwargs)
            return _wrapped(await result if inspect.isawaitable(result) else result)

        return call

    async def __aenter__(self) -> AsyncFacade:
        if hasattr(self.real, "__aenter__"):
            await self.real.__aenter__()
        else:
            await asyncio.to_thread(self.real.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        if hasattr(self.real, "__aiter__"):
            async for each in self.real:
                yield each
            return
        iterator = iter(self.real)
        while (found := await asyncio.to_thread(next, iterator, _END)) is not _END:
            yield found


def _wrapped(value: Any) -> Any:
    kind = type(value)
    inside = kind.__module__.startswith("azure.servicebus") and kind.__name__ not in _PLAIN_VALUES
    if inside and kind.__name__ in ("ServiceBusSession",):
        return AsyncFacade(value)
    return value


class SdkClients:
    """One scenario's use of a namespace: entities with names of its own, and clients that are closed for it."""

    def __init__(self, bus: LocalBus, kind: str) -> None:
        self.bus = bus
        self.kind = kind
        self.admin = ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        )
        self._client: AsyncFacade | None = None
        self._clients: list[AsyncFacade] = []
        self._senders: dict[str, AsyncFacade] = {}
        self._opened: list[AsyncFacade] = []
        self.queues: list[str] = []
        self._subscriptions: list[tuple[str, str]] = []

    # --- entities ----------------------------------------------------------------------------------------

    async def queue(self, **settings: Any) -> str:
        """Create a queue; return its name."""
        name = unique("q")
        await asyncio.to_thread(self.admin.create_queue, name, **settings)
        self.queues.append(name)
        return name

    async def update_queue(self, name: str, **changes: Any) -> None:
        found = await asyncio.to_thread(self.admin.get_queue, name)
        for key, value in changes.items():
            setattr(found, key, value)
        await asyncio.to_thread(self.admin.update_queue, found)

    async def topic(self, **settings: Any) -> str:
        name = unique("t")
        await asyncio.to_thread(self.admin.create_topic, name, **settings)
        return name

    async def subscription(self, topic: str, name: str = "all", **settings: Any) -> str:
        await asyncio.to_thread(self.admin.create_subscription, topic, name, **settings)
        self._subscriptions.append((topic, name))
        return name

    async def rule(self, topic: str, subscription: str, name: str, **settings: Any) -> None:
        await asyncio.to_thread(self.admin.create_rule, topic, subscription, name, **settings)

    async def only_rule(self, topic: str, subscription: str, name: str = "only", **settings: Any) -> None:
        """Replace the default rule."""
        await asyncio.to_thread(self.admin.delete_rule, topic, subscription, "$Default")
        await self.rule(topic, subscription, name, **settings)

    async def counts(self, queue: str, subscription: str | None = None) -> Any:
        """Return the runtime properties of a queue, or of a topic's subscription."""
        if subscription is not None:
            ask = self.admin.get_subscription_runtime_properties
            return await asyncio.to_thread(ask, queue, subscription)
        return await asyncio.to_thread(self.admin.get_queue_runtime_properties, queue)

    # --- clients -----------------------------------------------------------------------------------------

    def new_client(self, **options: Any) -> AsyncFacade:
        cls = ServiceBusClient if self.kind == "sync" else AsyncServiceBusClient
        return self.keep_client(cls.from_connection_string(self.bus.connection_string, **{"retry_total": 0, **options}))

    def keep_client(self, client: ServiceBusClient | AsyncServiceBusClient) -> AsyncFacade:
        """Give a client of either kind the one interface, and close it with the others."""
        made = AsyncFacade(client)
        self._clients.append(made)
        return made

    @property
    def client(self) -> AsyncFacade:
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def sender(self, queue: str, *, topic: bool = False) -> AsyncFacade:
        if queue not in self._senders:
            get = self.client.get_topic_sender if topic else self.client.get_queue_sender
            self._senders[queue] = self.keep(get(queue))
        return self._senders[queue]

    def receiver(self, queue: str, subscription: str | None = None, **options: Any) -> AsyncFacade:
        if subscription is not None:
            return self.keep(self.client.get_subscription_receiver(queue, subscription, **options))
        return self.keep(self.client.get_queue_receiver(queue, **options))

    def keep(self, opened: AsyncFacade) -> AsyncFacade:
        self._opened.append(opened)
        return opened

    async def send(self, queue: str, *messages: ServiceBusMessage | str | bytes, topic: bool = False) -> None:
        """Send each message by itself."""
        sender = self.sender(queue, topic=topic)
        for message in messages:
            body = message if isinstance(message, ServiceBusMessage) else ServiceBusMessage(message)
            await sender.send_messages(body)

    async def close(self) -> None:
        """Close everything, all at once: closing one receiver can take a second."""
        done = await asyncio.gather(*(each.close() for each in self._opened), return_exceptions=True)
        for client in self._clients:
            await client.close()
        await asyncio.to_thread(self.admin.close)
        for found in done:
            if isinstance(found, BaseException):
                raise found

    # --- waiting -----------------------------------------------------------------------------------------

    async def wait_until(
        self, condition: Callable[[], Awaitable[Any]], what: str = "the condition", seconds: float = 60.0
    ) -> Any:
        """Poll until the condition's value is true; on a time-out, fail with the broker's counts."""
        for pause in pauses(seconds, 0.05):
            if found := await condition():
                return found
            await asyncio.sleep(pause)
        raise AssertionError(f"{what} did not come within {seconds} s; {await self.describe()}")

    async def describe(self) -> str:
        lines = []
        for queue in self.queues:
            lines.append(f"{queue}: {_counted(await self.counts(queue))}")
        for topic, name in self._subscriptions:
            lines.append(f"{topic}/{name}: {_counted(await self.counts(topic, name))}")
        return "the broker holds " + ("; ".join(lines) or "nothing of ours")

    async def settled(self, queue: str, subscription: str | None = None, **expected: int) -> None:
        """Wait until the counts are these; counts that are not named must be 0."""
        names = ("active", "dead_letter", "scheduled", "transfer", "transfer_dead_letter")
        assert set(expected) <= set(names)
        wanted = {name: expected.get(name, 0) for name in names}

        async def as_wanted() -> bool:
            found = _numbers(await self.counts(queue, subscription))
            return all(found.get(name, 0) == wanted[name] for name in names)

        await self.wait_until(as_wanted, f"{queue} with {expected or 'nothing in it'}")

    async def take(self, receiver: AsyncFacade, count: int, seconds: float = 60.0) -> list[Any]:
        """Receive this number of messages; fail with the broker's counts if there are fewer."""
        taken: list[Any] = []
        deadline = time.monotonic() + seconds
        while len(taken) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                bodies = [str(message) for message in taken]
                raise AssertionError(f"{len(taken)} of {count} came ({bodies}); {await self.describe()}")
            taken += await receiver.receive_messages(count - len(taken), max_wait_time=left)
        return taken

    async def take_one(self, receiver: AsyncFacade, seconds: float = 60.0) -> Any:
        return (await self.take(receiver, 1, seconds))[0]


def _numbers(found: Any) -> dict[str, int]:
    names = {
        "active": "active_message_count",
        "dead_letter": "dead_letter_message_count",
        "scheduled": "scheduled_message_count",
        "transfer": "transfer_message_count",
        "transfer_dead_letter": "transfer_dead_letter_message_count",
    }
    return {short: getattr(found, long) or 0 for short, long in names.items() if hasattr(found, long)}


def _counted(found: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in _numbers(found).items() if count) or "empty"


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def bodies(messages: Sequence[Any]) -> list[str]:
    return [str(message) for message in messages]


def text_properties(message: Any) -> dict[str, Any]:
    """Return application properties as text: the SDK has bytes for both keys and values."""

    def plain(value: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value

    return {plain(key): plain(value) for key, value in (message.application_properties or {}).items()}


def soon(seconds: float) -> datetime:
    """Return a time in the near future, in whole milliseconds as in AMQP."""
    when = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return when.replace(microsecond=when.microsecond // 1000 * 1000)
