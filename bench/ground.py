"""The ground that drains are measured on: two localbus processes, backlog queues, and messages parked in them."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from azure.servicebus.management import ServiceBusAdministrationClient

from bench.figures import ROOT, Side
from bench.localbus import cpu_seconds
from bench.raw_client import RawClient, message_of, send_many
from pairbus import Namespace
from pairbus.domain.amqp.sections import PROPERTIES, split
from pairbus.domain.backlog import PROPERTIES as OF_BACKLOG_QUEUES
from pairbus.domain.backlog import queue_path
from pairbus.domain.envelope import park
from pairbus.localbus import LocalBus

SIZE = 1024
PRIMARY, SECONDARY = "contoso", "backup"
DESTINATION = "orders"
PARKED = park(message_of(SIZE), DESTINATION, "none of them is without an id")


class Run(NamedTuple):
    """One side's turn: how many messages in which time, and whose CPU they took."""

    messages: int
    seconds: float
    cpu: float
    primary_cpu: float
    secondary_cpu: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Ground:
    """Two namespaces with a destination and backlog queues. With a store the backlog is on disk, as deep as you like;
    a `sink` takes messages and keeps none (a topic without subscriptions)."""

    def __init__(self, *, queues: int = 1, store: bool = False, sink: bool = False) -> None:
        self._queues = queues
        self._store = store
        self._sink = sink
        self._stack = ExitStack()

    def __enter__(self) -> Ground:
        build = ROOT / "build"
        build.mkdir(exist_ok=True)
        # Not in the system's folder for such things: that may be memory, and a journal is to be on a disk.
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=build)))
        store = self.folder / "secondary.db" if self._store else None
        self.primary = self._stack.enter_context(LocalBus(PRIMARY))
        self.secondary = self._stack.enter_context(LocalBus(SECONDARY, store=store))
        with administration(self.secondary) as admin:
            for index in range(self._queues):
                admin.create_queue(queue_path(PRIMARY, index), **OF_BACKLOG_QUEUES)
        with administration(self.primary) as admin:
            if self._sink:
                admin.create_topic(DESTINATION)
            else:
                admin.create_queue(DESTINATION, max_size_in_megabytes=5120)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    @property
    def namespaces(self) -> tuple[Namespace, Namespace]:
        """Primary and secondary, as the syphon knows them."""
        primary, secondary = (
            Namespace.from_connection_string(bus.connection_string, name=bus.name, ca_file=bus.ca_file)
            for bus in (self.primary, self.secondary)
        )
        return primary, secondary

    def park(self, count: int, queue: int = 0) -> None:
        """Fill a backlog queue with so many messages of a kilobyte, all for the one destination."""
        client = RawClient(self.secondary.connection_string, queue_path(PRIMARY, queue))
        try:
            send_many(client, count, PARKED)
        finally:
            client.close()

    def arrived(self) -> int:
        """How many messages are at the destination; they are gone then."""
        with administration(self.primary) as admin:
            count = int(admin.get_queue_runtime_properties(DESTINATION).active_message_count or 0)
            admin.delete_queue(DESTINATION)
            admin.create_queue(DESTINATION, max_size_in_megabytes=5120)
        return count

    def turn(self, count: int, move: Callable[[], float | None]) -> Run:
        """Park messages, let a side move them, and see that all have arrived. A side may know better than the clock
        here how long it took."""
        self.park(count)
        brokers = self.broker_cpu()
        cpu, begun = time.process_time(), time.perf_counter()
        known = move()
        seconds = time.perf_counter() - begun
        cpu = time.process_time() - cpu
        primary, secondary = (now - then for now, then in zip(self.broker_cpu(), brokers, strict=True))
        if (found := self.arrived()) != count:
            raise RuntimeError(f"{found} of {count} messages arrived")
        return Run(count, seconds if known is None else known, cpu, primary, secondary)

    def broker_cpu(self) -> tuple[float, float]:
        """Seconds of CPU that the two brokers have used so far."""
        return cpu_seconds(self.primary.pid), cpu_seconds(self.secondary.pid)


def properties_head() -> bytes:
    """How the sender's part of every parked message begins, for who wants to find it without reading the message."""
    properties = next(found for found in split(PARKED) if found.code == PROPERTIES)
    return PARKED[properties.start : properties.start + 8]


def administration(bus: LocalBus) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(bus.connection_string, connection_verify=bus.ca_file)


def settings(primary: LocalBus, secondary: LocalBus, queues: int, folder: Path) -> dict[str, dict[str, Any]]:
    """A syphon's configuration; the connection strings are in files of the folder, where any process finds them."""
    mapping: dict[str, dict[str, Any]] = {
        "syphon": {"queues": queues},
        "ledger": {"path": str(folder / "ledger"), "checkpoint": str(folder / "checkpoint")},
    }
    for kind, bus in (("primary", primary), ("secondary", secondary)):
        secret = folder / f"{kind}.txt"
        secret.touch(0o600)
        secret.write_text(bus.connection_string, encoding="utf-8")
        mapping[kind] = {"connection": f"file:{secret}", "name": bus.name, "ca_file": bus.ca_file}
    return mapping


def by_turns(sides: Sequence[Callable[[], Run]], rounds: int) -> list[list[Run]]:
    """Each side's runs, by turns, and each round in the other order."""
    found: list[list[Run]] = [[] for _ in sides]
    for number in range(rounds):
        order = list(range(len(sides)))
        for index in order if number % 2 else reversed(order):
            found[index].append(sides[index]())
    return found


def ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> list[float]:
    """How our pace compares with theirs, round by round."""
    return [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]


def cpu_ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """The same by CPU time of the moving process: above 1 if ours needs less."""
    return statistics.median(
        (other.cpu / other.messages) / (one.cpu / one.messages) for one, other in zip(ours, theirs, strict=True)
    )


def side(runs: Sequence[Run]) -> Side:
    """What a side's runs came to."""
    micro = [[each / run.messages * 1e6 for each in (run.cpu, run.primary_cpu, run.secondary_cpu)] for run in runs]
    cpu, primary, secondary = (round(statistics.median(column), 2) for column in zip(*micro, strict=True))
    return Side(round(statistics.median(run.rate for run in runs), 1), cpu, primary, secondary)


def limit(told: Side, cores: int | None = None) -> str:
    """What keeps a side from being faster, from whose CPU went where."""
    cores = cores or os.cpu_count() or 1
    wall = 1e6 / told.messages_per_second
    shares = {"the drain": told.cpu_us, "the primary": told.primary_cpu_us, "the secondary": told.secondary_cpu_us}
    known = {name: share for name, share in shares.items() if share is not None}
    most = max(known, key=lambda name: known[name])
    busy = sum(known.values()) / (wall * cores)
    said = f"{wall:.0f} µs a message by the clock; {most} needs most CPU ({known[most] / wall:.0%} of a core)"
    return f"{said}, all three together {busy:.0%} of {cores} cores"
