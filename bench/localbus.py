"""Throughput of localbus: messages per second, and CPU microseconds per message of the broker process.

    python -m bench.localbus [--quick] [--depth]

The client is raw Proton in this process; the broker is another process. On a shared machine, rely on the CPU figure: it
does not include the time in which other processes ran.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from azure.servicebus.management import ServiceBusAdministrationClient

from bench.bench_client import BenchClient, message_of, receive_many, send_many
from pairbus.localbus import LocalBus

#: More messages of 1 KB than the broker's cache holds.
CACHED = 40_000
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int, *, with_children: bool = False) -> float:
    """Return the user and system time of a process so far, optionally with that of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_children else 13])) / _TICKS


def resident_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


class Bench:
    """One localbus process with one queue."""

    def __init__(self, bus: LocalBus, size: int) -> None:
        self.bus = bus
        self.message = message_of(size)
        with ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        ) as admin:
            admin.create_queue("bench", max_size_in_megabytes=5120, lock_duration="PT5M")
        self.client = BenchClient(bus.connection_string, "bench")

    def measure(self, what: str, count: int) -> tuple[float, float]:
        """Return messages per second, and CPU µs per message."""
        before = cpu_seconds(self.bus.pid)
        elapsed = send_many(self.client, count, self.message) if what == "in" else receive_many(self.client, count)
        cpu = cpu_seconds(self.bus.pid) - before
        rate, cost = count / elapsed, cpu / count * 1e6
        return rate, cost


def line(label: str, rate: float, cost: float) -> None:
    per_core = 1e6 / cost if cost else 0.0
    print(
        f"{label:44} {rate:9,.0f} msg/s   {cost:6.1f} CPU µs/msg   = {per_core:9,.0f} msg/s per core",
        flush=True,
    )


def throughput(count: int, size: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for label, store in (("memory", None), ("store", Path(folder) / "bench.db")):
            with LocalBus(store=store) as bus:
                bench = Bench(bus, size)
                bench.measure("in", count // 10)
                bench.measure("out", count // 10)
                for what in ("in", "out"):
                    best = None
                    for _ in range(rounds):
                        found = bench.measure(what, count)
                        other = "out" if what == "in" else "in"
                        if best is None or found[1] < best[1]:
                            best = found
                        bench.measure(other, count) if what == "in" else None
                        if what == "out" and _ + 1 < rounds:
                            bench.measure("in", count)
                    if what == "in":
                        bench.measure("in", count)
                    assert best is not None
                    name = "in (sent and accepted)" if what == "in" else "out (received, settled, confirmed)"
                    line(f"{label}, {name}", *best)


def depth(shallow: int, deep: int, probe: int, size: int, rounds: int) -> None:
    """Measure a broker with a short queue and one with a long queue in alternation."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        benches = {
            level: Bench(stack.enter_context(LocalBus(store=folder / f"{level}.db")), size) for level in (shallow, deep)
        }
        for level, bench in benches.items():
            bench.measure("in", level)
        # The first messages are still cached in memory; remove them so that the disk is measured.
        benches[deep].measure("out", CACHED)
        benches[deep].measure("in", CACHED)
        found: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for number in range(rounds):
            for level in (shallow, deep) if number % 2 else (deep, shallow):
                for what in ("in", "out"):
                    found.setdefault((level, what), []).append(benches[level].measure(what, probe))
        for (level, what), runs in sorted(found.items()):
            rate, cost = (statistics.median(column) for column in zip(*runs, strict=True))
            line(f"store, {level:,} queued, {what}", rate, cost)
        for what in ("in", "out"):
            pairs = list(zip(found[deep, what], found[shallow, what], strict=True))
            rates = [much[0] / little[0] for much, little in pairs]
            costs = [little[1] / much[1] for much, little in pairs]
            print(
                f"{deep:,} queued ÷ {shallow:,} queued, {what}: {statistics.median(rates):.2f} by rate "
                f"({min(rates):.2f} … {max(rates):.2f}), {statistics.median(costs):.2f} by CPU"
            )
        megabytes = resident_megabytes(benches[deep].bus.pid)
        print(f"memory of the broker with {deep:,} × {size} B queued: {megabytes:,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="5,000 messages, one round, 100,000 deep")
    parser.add_argument("--depth", action="store_true", help="only the figures about depth (1,000,000 queued)")
    args = parser.parse_args()
    count, rounds, deep = args.count, args.rounds, 1_000_000
    if args.quick:
        count, rounds, deep = 5_000, 1, 100_000
    if not args.depth:
        throughput(count, args.size, rounds)
    if args.depth or not args.quick:
        depth(10_000, deep, min(count, 20_000), args.size, 1 if args.quick else 7)


if __name__ == "__main__":
    main()
