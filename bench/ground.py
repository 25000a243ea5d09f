"""The set-up for measuring drains: two localbus processes, backlog queues, and parked messages."""

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

from bench.bench_client import BenchClient, message_of, send_many
from bench.figures import ROOT, Side
from bench.localbus import cpu_seconds
from pairbus import Namespace
from pairbus.domain.amqp.sections import PROPERTIES, split
from pairbus.domain.backlog import PROPERTIES as OF_BACKLOG_QUEUES
from pairbus.domain.backlog import queue_path
from pairbus.domain.envelope import park
from pairbus.localbus import LocalBus

SIZE = 1024
PRIMARY, SECONDARY = "contoso", "backup"
DESTINATION = "orders"
PARKED = park(message_of(SIZE), DESTINATION, "unused: every message has an id")


class Run(NamedTuple):
    """One run of one side: messages, time, and CPU seconds of the processes involved."""

    messages: int
    seconds: float
    cpu: float
    primary_cpu: float
    secondary_cpu: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


class Ground:
    """Two namespaces with a destination and backlog queues.

    With `store`, the backlog is on disk, so that it can be of any depth. With `sink`, the destination accepts messages
    and keeps none (a topic without subscriptions).
    """

    def __init__(self, *, queues: int = 1, store: bool = False, sink: bool = False) -> None:
        self._queues = queues
        self._store = store
        self._sink = sink
        self._stack = ExitStack()

    def __enter__(self) -> Ground:
        build = ROOT / "build"
        build.mkdir(exist_ok=True)
        # The system's temporary folder may be in memory, but the journal must be on a disk.
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
        """The primary and the secondary, as the syphon gets them."""
        primary, secondary = (
            Namespace.from_connection_string(bus.connection_string, name=bus.name, ca_file=bus.ca_file)
            for bus in (self.primary, self.secondary)
        )
        return primary, secondary

    def park(self, count: int, queue: int = 0) -> None:
        """Park messages of 1 KB for the destination in a backlog queue."""
        client = BenchClient(self.secondary.connection_string, queue_path(PRIMARY, queue))
        try:
            send_many(client, count, PARKED)
        finally:
            client.close()

    def arrived(self) -> int:
        """Return the number of messages at the destination, and remove them."""
        with administration(self.primary) as admin:
            count = int(admin.get_queue_runtime_properties(DESTINATION).active_message_count or 0)
            admin.delete_queue(DESTINATION)
            admin.create_queue(DESTINATION, max_size_in_megabytes=5120)
        return count

    def turn(self, count: int, move: Callable[[], float | None]) -> Run:
        """Park messages, let a side move them, and check that all arrived.

        `move` may return the seconds that count; otherwise its whole run time does.
        """
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
        """Return the CPU seconds that the two brokers have used so far."""
        return cpu_seconds(self.primary.pid), cpu_seconds(self.secondary.pid)


def properties_head() -> bytes:
    """Return the first bytes of a parked message's properties, to find them without parsing."""
    properties = next(found for found in split(PARKED) if found.code == PROPERTIES)
    return PARKED[properties.start : properties.start + 8]


def administration(bus: LocalBus) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(bus.connection_string, connection_verify=bus.ca_file)


def settings(primary: LocalBus, secondary: LocalBus, queues: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Return a syphon's configuration whose connection strings are in files, so that any process can read them."""
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
    """Run the sides in alternation, with the order reversed each round, and return each side's runs."""
    found: list[list[Run]] = [[] for _ in sides]
    for number in range(rounds):
        order = list(range(len(sides)))
        for index in order if number % 2 else reversed(order):
            found[index].append(sides[index]())
    return found


def ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> list[float]:
    """Return our rate ÷ theirs for each round."""
    return [one.rate / other.rate for one, other in zip(ours, theirs, strict=True)]


def cpu_ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """Return their CPU time ÷ ours per message of the moving process: above 1 if ours needs less."""
    return statistics.median(
        (other.cpu / other.messages) / (one.cpu / one.messages) for one, other in zip(ours, theirs, strict=True)
    )


def side(runs: Sequence[Run]) -> Side:
    """Return the medians of a side's runs."""
    micro = [[each / run.messages * 1e6 for each in (run.cpu, run.primary_cpu, run.secondary_cpu)] for run in runs]
    cpu, primary, secondary = (round(statistics.median(column), 2) for column in zip(*micro, strict=True))
    return Side(round(statistics.median(run.rate for run in runs), 1), cpu, primary, secondary)


def limit(told: Side, cores: int | None = None) -> str:
    """Describe the limit of a side's rate, by the CPU time of each process."""
    cores = cores or os.cpu_count() or 1
    wall = 1e6 / told.messages_per_second
    shares = {"the drain": told.cpu_us, "the primary": told.primary_cpu_us, "the secondary": told.secondary_cpu_us}
    known = {name: share for name, share in shares.items() if share is not None}
    most = max(known, key=lambda name: known[name])
    busy = sum(known.values()) / (wall * cores)
    said = f"{wall:.0f} µs per message by the clock; {most} needs most CPU ({known[most] / wall:.0%} of a core)"
    return f"{said}, all three together {busy:.0%} of {cores} cores"
