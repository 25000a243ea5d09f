"""The cost of pairing for a sender, and the times of failover and failback, as ratios within one run.

    python -m bench.sender [--quick]

P6 is paired ÷ plain while the primary is up, one at a time or in batches, whichever is worse.
Two localbus processes are the two namespaces. The plain SDK and the paired sender alternate, send by send, so that
other load on the machine affects both. A ratio is the median over several rounds. `CPU` is that of this process.
"""

from __future__ import annotations

import logging
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.management import ServiceBusAdministrationClient

from bench.figures import Figure, Side, parser, publish
from pairbus import Namespace, PairedNamespace, PairedSender, PairingOptions, pair_namespaces
from pairbus.localbus import LocalBus

SIZE, BATCH = 1024, 100
BODY = b"x" * SIZE


def single() -> ServiceBusMessage:
    """Return a message as applications send them: with a session and application properties."""
    return ServiceBusMessage(
        BODY,
        message_id="3354bf53-58d1-427a-b81b-fa9648b7e05a",
        session_id="42",
        application_properties={"kind": "order", "tenant": "contoso", "version": 3},
    )


def batch() -> list[ServiceBusMessage]:
    return [single() for _ in range(BATCH)]


def namespace(bus: LocalBus, name: str) -> Namespace:
    return Namespace.from_connection_string(bus.connection_string, name=name, ca_file=bus.ca_file)


def create(bus: LocalBus, *queues: str) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=bus.ca_file
    ) as admin:
        for queue in queues:
            admin.create_queue(queue, max_size_in_megabytes=5120)


@contextmanager
def paired(primary: LocalBus, secondary: LocalBus, **options: float) -> Iterator[PairedNamespace]:
    chosen = PairingOptions(failover_interval=0, ping_primary_interval=options.pop("ping", 1.0), backlog_queue_count=4)
    with pair_namespaces(namespace(primary, "contoso"), namespace(secondary, "backup"), chosen) as bus:
        yield bus


# --- ratios ------------------------------------------------------------------------------------------------------

Send = Callable[[], None]


class Comparison(NamedTuple):
    """A comparison of two sides: the ratio of each round, the ratio by CPU time, and both rates."""

    ratios: list[float]
    cpu: float
    ours: float
    theirs: float


def compare(label: str, ours: Send, theirs: Send, times: int, rounds: int, messages: int) -> Comparison:
    """Alternate between both sides, send by send, and print and return the comparison."""
    ratios, cpu, paces = [], [], []
    for number in range(rounds + 1):
        spent = {ours: [0.0, 0.0], theirs: [0.0, 0.0]}
        for turn in range(times):
            for send in (ours, theirs) if turn % 2 else (theirs, ours):
                begun, cpu_begun = time.perf_counter(), time.process_time()
                send()
                spent[send][0] += time.perf_counter() - begun
                spent[send][1] += time.process_time() - cpu_begun
        if number == 0:
            continue  # the first round is a warm-up
        ratios.append(spent[theirs][0] / spent[ours][0])
        cpu.append(spent[theirs][1] / spent[ours][1])
        paces.append((times * messages / spent[ours][0], times * messages / spent[theirs][0]))
    ours_pace, theirs_pace = (statistics.median(column) for column in zip(*paces, strict=True))
    print(
        f"{label:62} {ours_pace:7,.0f}/s ÷ {theirs_pace:7,.0f}/s = {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} … {max(ratios):.2f}; by CPU {statistics.median(cpu):.2f})",
        flush=True,
    )
    return Comparison(ratios, statistics.median(cpu), ours_pace, theirs_pace)


def healthy(primary: LocalBus, secondary: LocalBus, times: int, rounds: int) -> Figure:
    with (
        paired(primary, secondary) as bus,
        bus.get_queue_sender("orders") as ours,
        ServiceBusClient.from_connection_string(primary.connection_string) as client,
        client.get_queue_sender("orders") as plain,
    ):
        single, batched = both("healthy, paired ÷ plain", ours, plain, times, rounds)
        threads(bus, times)
    worse = min(single, batched, key=lambda each: statistics.median(each.ratios))
    return Figure(
        key="P6",
        what="paired ÷ plain send while healthy, the worse of single and batched",
        goal=0.95,
        runs=worse.ratios,
        sides={"paired": Side(round(worse.ours, 1)), "plain": Side(round(worse.theirs, 1))},
        cpu_ratio=worse.cpu,
        more={
            "one at a time": statistics.median(single.ratios),
            f"{BATCH} at a time": statistics.median(batched.ratios),
        },
        note=f"one at a time {statistics.median(single.ratios):.2f}, {BATCH} at a time "
        f"{statistics.median(batched.ratios):.2f}",
    )


def both(
    label: str, ours: PairedSender, plain: ServiceBusSender, times: int, rounds: int
) -> tuple[Comparison, Comparison]:
    """Compare both sides one message at a time, and in batches."""
    single_pace = compare(
        f"{label}, one at a time",
        lambda: ours.send_messages(single()),
        lambda: plain.send_messages(single()),
        times,
        rounds,
        1,
    )
    batched_pace = compare(
        f"{label}, {BATCH} at a time",
        lambda: ours.send_messages(batch()),
        lambda: plain.send_messages(batch()),
        max(times // 20, 4),
        rounds,
        BATCH,
    )
    return single_pace, batched_pace


def failed_over(primary: LocalBus, secondary: LocalBus, times: int, rounds: int) -> None:
    with (
        paired(primary, secondary, ping=1800.0) as bus,
        bus.get_queue_sender("orders") as ours,
        ServiceBusClient.from_connection_string(secondary.connection_string) as client,
        client.get_queue_sender("plain") as plain,
    ):
        with primary.faults.during("unavailable", "orders"):
            ours.send_messages(single())
        if bus.status().entities["orders"].state != "failed over":
            raise RuntimeError("the entity did not fail over")
        both("failed over, parked ÷ plain to the secondary", ours, plain, times, rounds)


def threads(bus: PairedNamespace, times: int, count: int = 8) -> None:
    """Compare several threads that share one sender with a single thread."""
    with bus.get_queue_sender("orders") as sender:

        def run(share: int) -> None:
            for _ in range(share):
                sender.send_messages(single())

        def pace(workers: int) -> float:
            each = times * 4 // workers
            running = [threading.Thread(target=run, args=(each,)) for _ in range(workers)]
            begun = time.perf_counter()
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            return each * workers / (time.perf_counter() - begun)

        pace(count)
        ratios = []
        for _ in range(5):
            one = pace(1)
            ratios.append((pace(count) / one, one))
        ratio, one = statistics.median(each[0] for each in ratios), statistics.median(each[1] for each in ratios)
        print(f"{count} threads sharing one sender ÷ 1 thread: {ratio:.2f} (1 thread: {one:,.0f}/s)", flush=True)


# --- times -------------------------------------------------------------------------------------------------------


def story(primary: LocalBus, secondary: LocalBus, rounds: int) -> None:
    """Measure the time from the primary's kill to the first parked message, and from its return to a direct send."""
    over, back = [], []
    for _ in range(rounds):
        with paired(primary, secondary) as bus, bus.get_queue_sender("orders") as sender:
            sender.send_messages(single())
            primary.kill()
            begun = time.perf_counter()
            sender.send_messages(single())
            over.append(time.perf_counter() - begun)
            primary.restart()
            begun = time.perf_counter()
            while bus.status().entities["orders"].sent < 2:
                sender.send_messages(single())
                time.sleep(0.01)
            back.append(time.perf_counter() - begun)
    print(f"killed primary → first message parked (failover_interval=0): {said(over)}", flush=True)
    print(f"primary back → first direct send (pinged every second):     {said(back)}", flush=True)


def said(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s of {len(seconds)}"


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e3


def memory(primary: LocalBus, secondary: LocalBus, count: int) -> None:
    """Measure the memory per sender: one with an entity of its own, and one more for an open entity."""
    with paired(primary, secondary) as bus:
        first = bus.get_queue_sender("orders").__enter__()
        before = resident()
        own = [bus.get_queue_sender(f"own-{number}").__enter__() for number in range(count)]
        opened = resident()
        shared = [bus.get_queue_sender("orders").__enter__() for _ in range(count * 10)]
        after = resident()
        print(
            f"memory: {(opened - before) / count:.0f} KB per sender to an entity of its own (with its connection), "
            f"{(after - opened) / count / 10:.1f} KB for one more to an open one",
            flush=True,
        )
        for sender in (*own, *shared, first):
            sender.close()


def main() -> None:
    args = parser(__doc__).parse_args()
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("pairbus").setLevel(logging.CRITICAL)
    times, rounds, many = (100, 6, 10) if args.quick else (500, 20, 50)
    times, rounds = args.messages or times, args.rounds or rounds
    with LocalBus() as primary, LocalBus() as secondary:
        create(primary, "orders", *(f"own-{number}" for number in range(many)))
        create(secondary, "plain")
        memory(primary, secondary, many)  # first, because later senders would reuse freed memory
        figure = healthy(primary, secondary, times, rounds)
        failed_over(primary, secondary, times, rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalBus(store=Path(folder) / "primary.db") as primary,
        LocalBus() as secondary,
    ):
        create(primary, "orders")
        story(primary, secondary, 3 if args.quick else 10)
    publish([replace(figure, quick=args.quick)], args.json)


if __name__ == "__main__":
    main()
