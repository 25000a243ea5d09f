"""The cost of one entity's load for another: a client that sends one message at a time, alone and beside a flood.

    python -m bench.neighbour [--quick] [--seconds S]

The flood is another process, which keeps the broker's core busy. The neighbour is this process, on another queue, first
on raw Proton, then with the SDK. A ratio of 1 means that the flood has no effect. Busy processes also compete for the
machine: the same flood of another broker shows how much of the effect that is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from bench.bench_client import BenchClient, ffi, lib, message_of, send_many
from pairbus.localbus import LocalBus

SIZE = 1024


def flood(connection_string: str, entity: str) -> None:
    """Send messages until killed."""
    client = BenchClient(connection_string, entity)
    message = message_of(SIZE)
    print("flooding", flush=True)
    while True:
        send_many(client, 10_000, message)


class RawNeighbour:
    """A client that sends a message and waits for its answer before it sends the next."""

    def __init__(self, connection_string: str, entity: str) -> None:
        self._client = BenchClient(connection_string, entity)
        self._link = self._client.sender(entity)
        self._message = message_of(SIZE)
        self._sent = 0
        while not lib.pn_link_credit(self._link._impl):
            self._client.pump()
            for _ in self._client.events():
                pass

    def send(self) -> None:
        pointer = self._link._impl
        tag = self._sent.to_bytes(4, "big")
        lib.pn_delivery(pointer, (4, ffi.from_buffer(tag)))
        lib.pn_link_send(pointer, self._message, len(self._message))
        lib.pn_link_advance(pointer)
        self._sent += 1
        while True:
            if not self._client.pump(10):
                raise TimeoutError("no answer to a message")
            for kind, event in self._client.events():
                if kind == lib.PN_DELIVERY and lib.pn_delivery_settled(lib.pn_event_delivery(event)):
                    lib.pn_delivery_settle(lib.pn_event_delivery(event))
                    return


def pace(send: Callable[[], None], seconds: float) -> float:
    """Return messages per second, sent one at a time."""
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        send()
        done += 1
    return done / (time.perf_counter() - begun)


def compare(label: str, bus: LocalBus, send: Callable[[], None], seconds: float) -> None:
    pace(send, seconds / 4)
    alone = pace(send, seconds)
    here = beside(bus, send, seconds)
    alone = (alone + pace(send, seconds)) / 2
    with LocalBus() as other:
        make_queues(other)
        elsewhere = beside(other, send, seconds)
    print(
        f"{label:10} alone {alone:7,.0f}/s   beside a flood {here:7,.0f}/s   ratio {here / alone:.2f}   "
        f"({1000 / alone:.2f} → {1000 / here:.2f} ms per message)   beside one of another broker {elsewhere:7,.0f}/s   "
        f"ratio {elsewhere / alone:.2f}",
        flush=True,
    )


def beside(bus: LocalBus, send: Callable[[], None], seconds: float) -> float:
    """Return messages per second while a queue of a broker is flooded."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.neighbour", "--flood", bus.connection_string, "flooded"], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        pace(send, seconds / 4)
        during = pace(send, seconds)
        other.kill()
    return during


def make_queues(bus: LocalBus) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=bus.ca_file
    ) as admin:
        for name in ("flooded", "calm"):
            admin.create_queue(name, max_size_in_megabytes=5120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true", help="half a second per measurement")
    parser.add_argument("--flood", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.flood:
        flood(*args.flood)
    if args.quick:
        args.seconds = 0.5
    with LocalBus() as bus:
        make_queues(bus)
        compare("raw", bus, RawNeighbour(bus.connection_string, "calm").send, args.seconds)
        with (
            ServiceBusClient.from_connection_string(bus.connection_string) as client,
            client.get_queue_sender("calm") as sender,
        ):
            compare("SDK", bus, lambda: sender.send_messages(ServiceBusMessage(b"x" * SIZE)), args.seconds)


if __name__ == "__main__":
    main()
