"""A thousand clients at once, and entities that do not disturb each other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from proton import Message

from pairbus.localbus import LocalBus
from pairbus.localbus.fairness import Talkers
from tests.localbus.amqp_frames import hello
from tests.localbus.process_fixtures import (
    FORGETS_SOCKETS,
    Command,
    active,
    bodies,
    collected,  # noqa: F401
    connect,
    create,
    key_of,
    wait_until,
)
from tests.localbus.raw_client import RawClient

pytestmark = FORGETS_SOCKETS

CLIENTS = 1000
ENTITIES = "".join(f'[[queues]]\nname = "{name}"\n' for name in ("calm", "flooded", "slow", "silent", "stuck"))
PAYLOAD = Message(body=b"x" * 1000, inferred=True).encode()


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _greet(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has been answered with the server's open."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(hello())
    await reader.readuntil(b"\x00\x53\x10")
    return reader, writer


async def _leave(opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    for _, writer in opened:
        writer.transport.abort()
    for _, writer in opened:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_thousand_connections_at_once() -> None:
    """All are answered, even from a shell with a small limit; meanwhile the SDK works; afterwards nothing is left."""
    with Command(open_files=256) as bus:
        create(bus, "orders")
        before = open_files(bus.process.pid)
        begun = time.monotonic()
        opened = await asyncio.gather(*(_greet(bus.host, bus.port) for _ in range(CLIENTS)))
        assert time.monotonic() - begun < 20
        assert open_files(bus.process.pid) > CLIENTS

        def work() -> list[float]:
            took = []
            with connect(bus.connection_string) as client:
                with client.get_queue_sender("orders") as sender:
                    for number in range(50):
                        start = time.monotonic()
                        sender.send_messages(ServiceBusMessage(str(number)))
                        took.append(time.monotonic() - start)
                with client.get_queue_receiver("orders") as receiver:
                    found = receiver.receive_messages(1, max_wait_time=5)
                    assert bodies(found) == ["0"]
                    receiver.complete_message(found[0])
            return took

        took = await asyncio.to_thread(work)
        assert statistics.median(took) < 0.05
        await _leave(opened)
        await asyncio.to_thread(
            wait_until, lambda: open_files(bus.process.pid) <= before + 2, 10, "connections are left open"
        )
        assert active(bus, "orders") == 49
        assert bus.stop() == (0, "", "")


async def test_a_thousand_connections_end_with_the_server() -> None:
    """SIGTERM with a thousand clients: they are told, and it ends in time."""
    with Command() as bus:
        opened = await asyncio.gather(*(_greet(bus.host, bus.port) for _ in range(CLIENTS)))
        begun = time.monotonic()
        stopped = asyncio.create_task(asyncio.to_thread(bus.stop))
        last = await asyncio.gather(*(reader.read() for reader, _ in opened))
        assert (await stopped)[0] == 0
        assert time.monotonic() - begun < 10
        assert all(b"amqp:connection:forced" in each for each in last)
        await _leave(opened)


# --- one entity and another ------------------------------------------------------------------------------------


class Calm:
    """A client that sends, receives and settles one message at a time on a queue of its own."""

    def __init__(self, bus: LocalBus) -> None:
        self.raw = RawClient(bus)
        self.raw.put_token("calm")
        self._sender = self.raw.sender("calm")
        self._receiver = self.raw.receiver("calm", 1)

    def rate(self, seconds: float = 1.0) -> float:
        """Messages a second."""
        done, begun = 0, time.monotonic()
        while time.monotonic() - begun < seconds:
            self.raw.send(self._sender, PAYLOAD)
            received = self.raw.receive(self._receiver)
            assert self.raw.settle(self._receiver, received) is None
            done += 1
        return done / (time.monotonic() - begun)


@pytest.fixture(scope="module")
def calm(bus: LocalBus) -> Iterator[Calm]:
    opened = Calm(bus)
    opened.rate(0.3)
    yield opened
    opened.raw.drop()


@contextlib.contextmanager
def flooding(bus: LocalBus, entity: str, seconds: float) -> Iterator[None]:
    """Another process sends to an entity as fast as it can."""
    target = [str(bus.port), key_of(bus.connection_string), entity, str(seconds)]
    flood = subprocess.Popen(
        [sys.executable, "-m", "tests.localbus.flood", *target],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "flooding\n"
        yield
        assert int(flood.stdout.readline()) > 100


def test_a_flooded_entity_leaves_the_others_their_share(bus: LocalBus, calm: Calm) -> None:
    """While one entity is flooded by another process, a one-at-a-time client elsewhere goes on at a decent pace."""
    alone = calm.rate()
    with flooding(bus, "flooded", 2.5):
        together = calm.rate(1.5)
    # One core serves both: the flood may slow the others, it must not starve them. (12 a second before clients were
    # given shares, about 100 since, on a quiet machine.)
    assert together > min(30, alone * 0.05)


def test_a_slow_entity_does_not_slow_the_others(bus: LocalBus, calm: Calm) -> None:
    """Half a second of latency on one entity, with hundreds of messages on their way, costs the others nothing."""
    alone = calm.rate()
    with bus.faults.during("latency", "slow", delay=0.5), flooding(bus, "slow", 2.5):
        together = calm.rate(1.5)
    assert together > alone * 0.3


def test_a_black_hole_does_not_swallow_the_others(bus: LocalBus, calm: Calm) -> None:
    """Twenty clients hang in one entity's black hole; the others do not notice."""
    alone = calm.rate()
    stuck = [RawClient(bus) for _ in range(20)]
    links = []
    for each in stuck:
        each.put_token("silent")
        links.append(each.sender("silent"))
    with bus.faults.during("black-hole", "silent"):
        for each, link in zip(stuck, links, strict=True):
            for number in range(20):
                link.delivery(str(number))
                link.stream(PAYLOAD)
                link.advance()
            each._write()
        together = calm.rate()
    assert together > alone * 0.4
    for each in stuck:
        each.drop()


def test_a_client_that_does_not_read_holds_nobody_up(bus: LocalBus, calm: Calm) -> None:
    """A receiver with credit for everything that never reads its socket: others are served, memory is bounded."""
    with RawClient(bus) as filler:
        filler.put_token("stuck")
        link = filler.sender("stuck")
        big = Message(body=b"x" * 200_000, inferred=True).encode()
        for _ in range(100):  # 20 MB
            filler.send(link, big)
    before = _memory(bus.pid)
    alone = calm.rate()
    with RawClient(bus) as stuck:
        stuck._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.put_token("stuck")
        stuck.receiver("stuck", 1000)
        stuck._write()  # and from now on it does not read
        together = calm.rate()
        grown = _memory(bus.pid) - before
    assert together > alone * 0.4
    assert grown < 60_000_000


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_a_client_knows_whether_it_is_alone() -> None:
    """Another client's word counts for a second, whoever spoke last; one's own never does."""
    now = [0.0]
    talkers = Talkers(lambda: now[0])
    a, b = object(), object()
    assert not talkers.heard(a)
    now[0] = 0.5
    assert not talkers.heard(a)
    assert not talkers.others(a)
    assert talkers.others(b)
    assert talkers.heard(b)
    now[0] = 1.2
    assert talkers.heard(a), "b was heard 0.7 s ago"
    assert talkers.heard(a)
    now[0] = 1.6
    assert not talkers.heard(a), "b was heard 1.1 s ago"
    assert talkers.others(b)
    talkers.gone(a)
    assert talkers._latest is None
