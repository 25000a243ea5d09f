"""Many threads and chaos: whatever is killed, frozen, cut or refused when, no message is lost or changed.

`chaos` is a function of a seed and a duration: seconds in the ordinary tests, minutes in the campaign.

    pytest -m campaign tests/integration/sending/test_threads.py
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pairbus import PairedSender
from pairbus.localbus import LocalBus
from pairbus.localbus.errors import LocalBusError
from tests.support.pairing import Pair
from tests.support.send_ledger import Ledger
from tests.support.waiting import wait_until

THREADS = 8
OPTIONS: dict[str, Any] = {
    "backlog_queue_count": 3,
    "send_timeout": 1.5,
    "ping_primary_interval": 1.0,
    "ping_timeout": 1.0,
    "server_busy_wait": 0.1,
}


def chaos(pair: Pair, entities: list[str], seed: int, seconds: float) -> Counter[str]:
    """Do harm to either namespace, chosen by the seed, for a while; how often each kind of harm was done.

    Ends with both namespaces well again.
    """
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or done.total() < 3:
        bus, paths = chance.choice(((pair.primary, entities), (pair.secondary, pair_backlog(pair))))
        path = chance.choice([*paths, "*"])
        name = chance.choice(list(HARMS))
        done[f"{'primary' if bus is pair.primary else 'secondary'}: {name}"] += 1
        harm, lasting = HARMS[name], chance.uniform(0.05, 1.5)
        try:
            harm(bus, path, lasting, chance)
        except LocalBusError:
            done["not heard"] += 1
        time.sleep(chance.uniform(0.0, 0.6))
    pair.heal()
    return done


def pair_backlog(pair: Pair) -> list[str]:
    return [f"{pair.name}/x-servicebus-transfer/{index}" for index in range(OPTIONS["backlog_queue_count"])]


def _kill(bus: LocalBus, path: str, lasting: float, chance: random.Random) -> None:
    bus.kill()
    time.sleep(lasting)
    bus.restart()


def _stop(bus: LocalBus, path: str, lasting: float, chance: random.Random) -> None:
    bus.stop()
    time.sleep(lasting)
    bus.restart()


def _pause(bus: LocalBus, path: str, lasting: float, chance: random.Random) -> None:
    bus.pause()
    time.sleep(lasting)
    bus.resume()


def _drop(bus: LocalBus, path: str, lasting: float, chance: random.Random) -> None:
    bus.faults.drop(path)


def _fault(kind: str, **parameters: Any) -> Callable[[LocalBus, str, float, random.Random], None]:
    """A fault that ends by itself, so that several overlap."""

    def harm(bus: LocalBus, path: str, lasting: float, chance: random.Random) -> None:
        getattr(bus.faults, kind)(entity=path, seconds=lasting, **parameters)

    return harm


HARMS: dict[str, Callable[[LocalBus, str, float, random.Random], None]] = {
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "drop": _drop,
    "drop each": _fault("drop", after=5),
    "black hole": _fault("black_hole"),
    "unavailable": _fault("unavailable"),
    "internal error": _fault("internal_error", rate=0.5),
    "busy": _fault("busy", rate=0.5),
    "quota": _fault("quota_exceeded"),
    "slow": _fault("latency", delay=0.4),
    "lost answer": _fault("lost_accept", rate=0.3),
    "disabled": _fault("reject", condition="com.microsoft:entity-disabled", rate=0.5),
    "time-out": _fault("reject", condition="com.microsoft:timeout", rate=0.5),
}


def parked(bus: Any) -> int:
    return sum(queue.parked for queue in bus.status().queues.values())


def torture(pair: Pair, seed: int, seconds: float, *, shared: bool) -> tuple[Ledger, Counter[str], Any]:
    """Eight threads send through chaos: with one sender, or each with its own to one of two queues."""
    ledger = Ledger(pair)
    bus = pair.pairing(**OPTIONS)
    queues = [pair.queue(), pair.queue()]
    one = bus.get_queue_sender(queues[0])
    senders = [one if shared else bus.get_queue_sender(queues[index % 2]) for index in range(THREADS)]
    ending = threading.Event()
    troubles: list[BaseException] = []

    def work(sender: PairedSender, chance: random.Random) -> None:
        try:
            while not ending.is_set():
                ledger.send(sender, _something(ledger, sender, chance))
                time.sleep(chance.uniform(0.0, 0.02))
        except BaseException as trouble:  # shown by the test's thread
            troubles.append(trouble)

    threads = [
        threading.Thread(target=work, args=(sender, random.Random(f"{seed} {index}")), name=f"sender {index}")
        for index, sender in enumerate(senders)
    ]
    # Whatever the chaos does may cost an answer: a message may be doubled, but never lost or changed.
    with ledger.answers_lost():
        for thread in threads:
            thread.start()
        done = chaos(pair, queues, seed, seconds)
        if not parked(bus):  # chance has spared the primary, or nobody came by while it was harmed
            pair.primary.kill()
            wait_until(lambda: troubles or parked(bus), why=bus.status)
            pair.primary.restart()
        # All is well again: every sender gets through, and to the primary.
        used = set(queues[:1] if shared else queues)
        wait_until(
            lambda: troubles or all(bus.status().entities[queue].state == "available" for queue in used),
            60,
            bus.status,
        )
        wait_until(lambda: troubles or sum(each.accepted or False for each in list(ledger.entries.values())) > 50)
        ending.set()
        for thread in threads:
            thread.join(60)
    stuck = [thread.name for thread in threads if thread.is_alive()]
    assert not stuck, f"{stuck} still send"
    assert not troubles, troubles
    for sender in senders:
        ledger.must_send(sender, ledger.messages(2), timeout=60)
    return ledger, done, bus


def _something(ledger: Ledger, sender: PairedSender, chance: random.Random) -> Any:
    form = chance.choice(("one", "one", "list", "batch", "large", "iterator"))
    if form == "one":
        return ledger.message(session_id=chance.choice((None, "s")))
    if form == "large":
        return ledger.message(b"x" * chance.randrange(1, 50_000), message_id=None)
    several = ledger.messages(chance.randrange(1, 6))
    if form == "list":
        return several
    if form == "iterator":
        return iter(several)
    batch = sender.create_message_batch()
    for each in several:
        batch.add_message(each)
    return batch


@pytest.mark.parametrize("shared", [True, False], ids=["one sender", "eight senders"])
def test_no_message_is_lost_in_chaos(pair: Pair, shared: bool) -> None:
    """Eight threads through kills, pauses, cuts and refusals of both namespaces: every returned send is kept."""
    ledger, done, _ = torture(pair, 20260930 + shared, 5.0, shared=shared)
    assert done.total() >= 3, done
    found = ledger.check()
    assert sum(entry.accepted or False for entry in ledger.entries.values()) > 50
    places = Counter(each.place for each_found in found.values() for each in each_found)
    assert len(places) > 1, places


def test_threads_that_share_a_sender_lose_nothing_in_a_quiet_kill(pair: Pair) -> None:
    """Without lost answers nothing is doubled either: eight threads, the primary goes while they wait, and returns."""
    ledger = Ledger(pair)
    queue = pair.queue()
    bus = pair.pairing(**{**OPTIONS, "send_timeout": 10.0})
    with bus.get_queue_sender(queue) as sender:

        def send_ten() -> None:
            for _ in range(10):
                ledger.must_send(sender, ledger.messages(2))

        for outage in (False, True, False):
            if outage:
                pair.primary.kill()
            elif ledger.entries:
                pair.primary.restart()
                wait_until(lambda: bus.status().entities[queue].state == "available")
            threads = [threading.Thread(target=send_ten) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    assert len(ledger.entries) == 3 * THREADS * 10 * 2
    found = ledger.check(but=0)
    places = Counter(each.place == queue for each_found in found.values() for each in each_found)
    assert places == {True: 320, False: 160}


@pytest.mark.campaign
@pytest.mark.parametrize("shared", [True, False], ids=["one sender", "eight senders"])
@pytest.mark.parametrize("part", range(int(os.environ.get("CHAOS_PARTS", "2"))))
def test_chaos_for_minutes(pair: Pair, part: int, shared: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for longer: `CHAOS_PARTS` (2) parts of `CHAOS_SECONDS` (75) each, seeds from `CHAOS_SEED` on (else new
    ones, printed). A part is shorter than pytest's time-out for a hang, which would print where every thread stands."""
    seconds = float(os.environ.get("CHAOS_SECONDS", "75"))
    given = os.environ.get("CHAOS_SEED")
    seed = random.randrange(2**31) if given is None else int(given) + part
    with capsys.disabled():
        print(f"\nchaos: seed {seed}, {seconds:g} s, shared sender: {shared}")
        ledger, done, bus = torture(pair, seed, seconds, shared=shared)
        print(f"{len(ledger.entries)} messages, {done.total()} times harm: {dict(done)}")
        found = ledger.check()
        accepted = sum(entry.accepted or False for entry in ledger.entries.values())
        doubled = sum(len(each) > 1 for each in found.values())
        errors = Counter(type(entry.error).__name__ for entry in ledger.entries.values() if entry.error)
        print(f"{accepted} accepted, {doubled} more than once, none lost, none changed; errors: {dict(errors)}")
        print(f"parked {parked(bus)}")
