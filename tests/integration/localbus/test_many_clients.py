"""A thousand clients at once, and entities that do not disturb each other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from proton import Delivery, Message, Sender

from pairbus.localbus import LocalBus
from tests.support.amqp_frames import hello
from tests.support.process_fixtures import FORGETS_SOCKETS, Command, active, bodies, connect, create, key_of
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = FORGETS_SOCKETS

CLIENTS = 1000
QUEUES = ("calm", "crowded", "flooded", "slow", "silent", "stuck")
ENTITIES = "".join(f'[[queues]]\nname = "{name}"\n' for name in QUEUES)
PAYLOAD = Message(body=b"x" * 1000, inferred=True).encode()


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def _greet(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and return it after the server's open."""
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
    """All are answered, even with a small limit of open files; meanwhile the SDK works; afterwards none is left."""
    with Command(open_files=256) as bus:
        create(bus, "orders")
        before = open_files(bus.process.pid)
        opened = await asyncio.gather(*(_greet(bus.host, bus.port) for _ in range(CLIENTS)))
        assert open_files(bus.process.pid) > CLIENTS

        def work() -> None:
            with connect(bus.connection_string) as client:
                with client.get_queue_sender("orders") as sender:
                    for number in range(50):
                        sender.send_messages(ServiceBusMessage(str(number)))
                with client.get_queue_receiver("orders") as receiver:
                    found = receiver.receive_messages(1, max_wait_time=60)
                    assert bodies(found) == ["0"]
                    receiver.complete_message(found[0])

        await asyncio.to_thread(work)
        await _leave(opened)
        await asyncio.to_thread(
            wait_until, lambda: open_files(bus.process.pid) <= before + 2, 60, "connections are left open"
        )
        assert active(bus, "orders") == 49
        assert bus.stop() == (0, "", "")


async def test_a_thousand_connections_end_with_the_server() -> None:
    """After SIGTERM a thousand clients get a close, and the process ends."""
    with Command() as bus:
        opened = await asyncio.gather(*(_greet(bus.host, bus.port) for _ in range(CLIENTS)))
        stopped = asyncio.create_task(asyncio.to_thread(bus.stop))
        last = await asyncio.gather(*(reader.read() for reader, _ in opened))
        assert (await stopped)[0] == 0
        assert all(b"amqp:connection:forced" in each for each in last)
        await _leave(opened)


# --- one entity and another ------------------------------------------------------------------------------------


class Calm:
    """A client that sends, receives and settles one message at a time on its own queue."""

    def __init__(self, bus: LocalBus) -> None:
        self.raw = RawClient(bus)
        self.raw.put_token("calm")
        self._sender = self.raw.sender("calm")
        self._receiver = self.raw.receiver("calm", 1)

    def work(self, messages: int = 200) -> None:
        """Send, receive and settle that many messages; an answer that takes 15 s is an error."""
        for number in range(messages):
            self.raw.send(self._sender, Message(body=number).encode())
            received = self.raw.receive(self._receiver)
            assert body_of(received.payload) == number
            assert self.raw.settle(self._receiver, received) is None


def body_of(payload: bytes) -> Any:
    message = Message()
    message.decode(payload)
    return message.body


@pytest.fixture(scope="module")
def calm(bus: LocalBus) -> Iterator[Calm]:
    opened = Calm(bus)
    yield opened
    opened.raw.drop()


@contextlib.contextmanager
def flooding(bus: LocalBus, entity: str) -> Iterator[None]:
    """Send to an entity from another process as fast as it can; check that every message was accepted."""
    target = [str(bus.port), key_of(bus.connection_string), entity]
    flood = subprocess.Popen(
        [sys.executable, "-m", "tests.support.flood", *target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with flood:
        assert flood.stdin is not None
        assert flood.stdout is not None
        assert flood.stdout.readline() == "flooding\n"
        yield
        flood.stdin.close()
        sent, accepted = map(int, flood.stdout.readline().split())
        assert 0 < sent == accepted == active(bus, entity)


# `bench.neighbour` measures the throughput of one client beside another, which cannot be asserted on a shared machine.
# These tests check what holds at any speed: all clients are served.


def more_than(bus: LocalBus, entity: str, messages: int) -> bool:
    return active(bus, entity) > messages


def test_a_flooded_entity_leaves_the_others_their_share(bus: LocalBus, calm: Calm) -> None:
    """A one-at-a-time client of another entity is answered, and so is the flood."""
    with flooding(bus, "flooded"):
        for _ in range(5):
            before = active(bus, "flooded")
            calm.work(40)
            wait_until(partial(more_than, bus, "flooded", before), 30, "the flood has come to a halt")


def test_a_slow_entity_does_not_slow_the_others(bus: LocalBus, calm: Calm) -> None:
    """With a minute of latency on one entity and hundreds of messages on their way, other entities are not delayed."""
    with RawClient(bus) as slow:
        slow.put_token("slow")
        link = slow.sender("slow")
        slow.wait(lambda: link.credit >= 300, "credit")
        with bus.faults.during("latency", "slow", delay=60):
            waiting = send_without_waiting(slow, link, 300)
            calm.work()
            slow.pump(0)
            assert not any(each.remote_state for each in waiting), "a slow entity has answered before its time"


def test_a_black_hole_does_not_affect_other_entities(bus: LocalBus, calm: Calm) -> None:
    """Twenty clients wait in one entity's black hole; other entities are not delayed."""
    stuck = [RawClient(bus) for _ in range(20)]
    links = []
    for each in stuck:
        each.put_token("silent")
        links.append(each.sender("silent"))
    with bus.faults.during("black-hole", "silent"):
        waiting = [send_without_waiting(each, link, 20) for each, link in zip(stuck, links, strict=True)]
        calm.work()
        for each in stuck:
            each.pump(0)
        assert not any(each.remote_state for some in waiting for each in some)
    for each in stuck:
        each.drop()


def test_receivers_without_credit_get_no_message(bus: LocalBus, calm: Calm) -> None:
    """Of a thousand receivers of a queue the one with credit gets the message, and other entities are served."""
    with RawClient(bus) as sender, RawClient(bus) as crowd:
        for each in (sender, crowd):
            each.put_token("crowded")
        link = sender.sender("crowded")
        for _ in range(CLIENTS):
            crowd.receiver("crowded")
        for _ in range(30):
            sender.send(link, PAYLOAD)
            calm.work(1)
        assert len(crowd.receive(crowd.receiver("crowded", 1)).payload) > 1000


def test_a_client_that_does_not_read_delays_no_other(bus: LocalBus, calm: Calm) -> None:
    """A receiver with much credit never reads its socket: others are served, and memory is bounded."""
    with RawClient(bus) as filler:
        filler.put_token("stuck")
        link = filler.sender("stuck")
        big = Message(body=b"x" * 200_000, inferred=True).encode()
        for _ in range(100):  # 20 MB
            filler.send(link, big)
    before = _memory(bus.pid)
    with RawClient(bus) as stuck:
        stuck._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.put_token("stuck")
        stuck.receiver("stuck", 1000)
        stuck.flush()  # from now on it does not read
        calm.work()
        grown = _memory(bus.pid) - before
    assert grown < 60_000_000


def send_without_waiting(raw: RawClient, link: Sender, messages: int) -> list[Delivery]:
    """Send messages without waiting for their answers."""
    found = []
    for number in range(messages):
        found.append(link.delivery(str(number)))
        link.stream(PAYLOAD)
        link.advance()
    raw.flush()
    return found


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
