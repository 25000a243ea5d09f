"""The consumers, on the plain Azure SDK, and the contents of the backlog."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.localbus import LocalBus

from .wire import digest

_AT_ONCE = 500
_AT_A_TIME = 12


@dataclass(frozen=True, slots=True)
class Place:
    """A source of messages: a queue, one session of a queue, or a subscription of a topic."""

    entity: str
    subscription: str | None = None
    session: str | None = None

    def __str__(self) -> str:
        subscription = f"/{self.subscription}" if self.subscription else ""
        return f"{self.entity}{subscription}" + (f" {self.session}" if self.session else "")

    def open(self, client: ServiceBusClient) -> Any:
        """Return a receiver that deletes messages as it receives them."""
        options: dict[str, Any] = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}
        options |= {"session_id": self.session} if self.session else {}
        if self.subscription:
            return client.get_subscription_receiver(self.entity, self.subscription, **options)
        return client.get_queue_receiver(self.entity, **options)

    def depth(self, admin: ServiceBusAdministrationClient) -> int:
        """Return the number of messages left; for a session, that of its whole queue."""
        if self.subscription:
            found: Any = admin.get_subscription_runtime_properties(self.entity, self.subscription)
        else:
            found = admin.get_queue_runtime_properties(self.entity)
        return int(found.active_message_count)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message as a consumer received it."""

    message_id: str
    enqueued_at: datetime
    digest: bytes


@dataclass(frozen=True, slots=True)
class Parked:
    """A message in a backlog queue, or in the dead-letter queue of one."""

    message_id: str
    queue: str
    destination: str
    reason: str = ""
    description: str = ""


@contextmanager
def administration(bus: LocalBus) -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=bus.ca_file
    ) as admin:
        yield admin


class Consumers:
    """Receivers of all messages, which they collect by place."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._stop = threading.Event()
        #: Place, as text → its messages in the order of arrival.
        self.arrived: dict[str, list[Arrived]] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self.arrived.values())))

    def receive(self, places: Iterable[Place], watch: Callable[[], None] = lambda: None) -> None:
        """Receive from these places until the broker reports them empty."""
        left = list(places)
        while left:
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="consumer") as threads:
                work = [threads.submit(self._take, place) for place in left]
                try:
                    while wait(work, timeout=0.1).not_done:
                        watch()
                finally:
                    self._stop.set()
            self._stop.clear()
            for each in work:
                each.result()
            with administration(self._bus) as admin:
                left = [place for place in left if place.depth(admin)]

    def _take(self, place: Place) -> None:
        found = self.arrived.setdefault(str(place), [])
        with _client(self._bus) as client, _showing_bytes(place.open(client)) as receiver:

            def some() -> list[Any]:
                return list(receiver.receive_messages(_AT_ONCE, max_wait_time=1))

            # Ask twice: on a machine that stalls, the SDK may return no messages too early.
            while not self._stop.is_set() and (messages := some() or some()):
                found += [Arrived(str(m.message_id), m.enqueued_time_utc, digest(m.wire)) for m in messages]

    def steal(self, place: Place, count: int) -> None:
        """Remove messages, for a loss that the checks must find."""
        with _client(self._bus) as client, place.open(client) as receiver:
            taken = 0
            while taken < count:
                taken += len(receiver.receive_messages(count - taken, max_wait_time=5))


def _showing_bytes(receiver: Any) -> Any:
    """Patch a receiver so that each message has its encoded bytes in the attribute `wire`; the SDK discards them.

    Every five seconds, a thread of the SDK reads from the connection beside the receiving thread. If both read at once,
    a message may be paired with the frame of the next one, so that thread is not started here.
    """
    build, create = receiver._build_received_message, receiver._create_handler

    def alone(auth: Any) -> None:
        create(auth)
        receiver._handler._keep_alive_interval = 0

    def keeping(received: Any) -> Any:
        message = build(received)
        message.wire = bytes(received[0][11])  # the transfer's payload
        return message

    receiver._build_received_message, receiver._create_handler = keeping, alone
    return receiver


def in_backlog(secondary: LocalBus, paths: Iterable[str], watch: Callable[[int], None]) -> list[Parked]:
    """Peek at all parked messages."""
    found: list[Parked] = []
    with _client(secondary) as client:
        for path in paths:
            first = 1
            with client.get_queue_receiver(path) as receiver:
                while messages := receiver.peek_messages(_AT_ONCE, sequence_number=first):
                    found += [Parked(str(each.message_id), path, _destination(each)) for each in messages]
                    first = int(messages[-1].sequence_number or 0) + 1
                    watch(len(found))
    return found


def dead_letters(secondary: LocalBus, paths: Iterable[str]) -> list[Parked]:
    """Peek at the dead letters of the backlog queues, with their reasons."""
    found: list[Parked] = []
    with _client(secondary) as client:
        for path in paths:
            first = 1
            with client.get_queue_receiver(path, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
                while messages := receiver.peek_messages(_AT_ONCE, sequence_number=first):
                    for each in messages:
                        why = (each.dead_letter_reason or "", each.dead_letter_error_description or "")
                        found.append(Parked(str(each.message_id), path, _destination(each), *why))
                    first = int(messages[-1].sequence_number or 0) + 1
    return found


def picture(parked: Iterable[Parked], paths: Iterable[str], width: int = 36) -> list[str]:
    """Draw the contents of each backlog queue as a bar of letters, one letter per destination."""
    held: dict[str, Counter[str]] = {path: Counter() for path in paths}
    for each in parked:
        held[each.queue][each.destination] += 1
    most = max((counts.total() for counts in held.values()), default=0) or 1
    lines = []
    for path, counts in held.items():
        bar = "".join(name[0] * round(width * counts[name] / most) for name in sorted(counts))
        said = ", ".join(f"{counts[name]:,} {name}" for name in sorted(counts)) or "empty"
        lines.append(f"   {path}  {bar:{width}}  {said}")
    return lines


def _destination(message: Any) -> str:
    # The SDK returns names and texts of received properties as bytes.
    path = (message.application_properties or {})[b"x-ms-path"]
    return path.decode() if isinstance(path, bytes) else str(path)


def _client(bus: LocalBus) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(bus.connection_string, retry_total=1)
