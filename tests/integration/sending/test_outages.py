"""Outages in the middle of sends, of every kind and of either namespace: nothing is lost, doubled or changed.

Every test ends with the ledger, which reads both namespaces completely.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import EntityStatus

from pairbus import BacklogUnavailableError, PairedNamespace
from pairbus.domain.backlog import queue_path
from pairbus.localbus import LocalBus
from tests.support.pairing import Pair, backlog_queue_of
from tests.support.raw_client import RawClient
from tests.support.send_ledger import Ledger, Stream, key_of, peek
from tests.support.waiting import wait_until

#: Small enough for a test, and pings are frequent: every outage is followed by a failback.
QUICK: dict[str, Any] = {"send_timeout": 1.5, "ping_primary_interval": 1.0, "ping_timeout": 1.0}
#: For what is answered at once: a machine that stalls makes no outage of it.
PATIENT: dict[str, Any] = {**QUICK, "send_timeout": 20.0}

Outage = Callable[[Ledger, LocalBus, str], AbstractContextManager[None]]


@contextmanager
def killed(ledger: Ledger, bus: LocalBus, entity: str) -> Iterator[None]:
    with ledger.answers_lost():
        bus.kill()
    yield
    bus.restart()


@contextmanager
def paused(ledger: Ledger, bus: LocalBus, entity: str) -> Iterator[None]:
    with ledger.answers_lost():  # what lies in the sockets is read when it wakes up
        bus.pause()
        yield
        bus.resume()


def fault(kind: str, *, whole: bool = False, loses_answers: bool = False, **parameters: Any) -> Outage:
    """A fault of the entity or of the whole namespace, for a while."""

    @contextmanager
    def outage(ledger: Ledger, bus: LocalBus, entity: str) -> Iterator[None]:
        with ledger.answers_lost() if loses_answers else nullcontext():
            with ledger.answers_lost():
                id = getattr(bus.faults, kind)(entity="*" if whole else entity, **parameters)
            yield
            bus.faults.clear(id)

    return outage


OUTAGES: dict[str, Outage] = {
    "killed": killed,
    "paused": paused,
    "black hole": fault("black_hole", whole=True),
    "slow": fault("latency", delay=2.0, loses_answers=True),
    "unavailable": fault("unavailable"),
    "internal error": fault("internal_error"),
    "dropped at each message": fault("drop", after=1, loses_answers=True),
    "answers lost": fault("lost_accept", loses_answers=True),
}


def state(bus: PairedNamespace, entity: str) -> str:
    return bus.status().entities[entity].state


def parked(bus: PairedNamespace, entity: str) -> int:
    return bus.status().entities[entity].parked


@pytest.fixture
def ledger(pair: Pair) -> Ledger:
    return Ledger(pair)


# --- the ledger itself ---------------------------------------------------------------------------------------------


def test_the_ledger_sees_a_loss_a_double_and_a_change(pair: Pair, ledger: Ledger) -> None:
    """The check of all these tests fails when a message is missing, is there twice, or is not the one sent."""
    queue = pair.queue()
    sender = pair.sender(queue)
    ledger.must_send(sender, ledger.messages(3))
    ledger.check(but=0)
    entries = list(ledger.entries.values())
    first = entries[0].original
    entries[0].original = first.replace(b"whole", b"wh0le")
    with pytest.raises(AssertionError, match=r"m0 in .* differs in section 0x74"):
        ledger.check()
    entries[0].original = first
    entries[1].accepted = False
    with pytest.raises(AssertionError, match=r"m1 is in .* but the error names it"):
        ledger.check()
    entries[1].accepted = True
    with RawClient(pair.primary) as raw:
        raw.put_token(queue)
        link = raw.sender(queue)
        raw.send(link, first)
    with pytest.raises(AssertionError, match="m0 is there 2 times"):
        ledger.check()
    pair.payloads(pair.primary, queue, 3)
    with pytest.raises(AssertionError, match="m1 is LOST"):
        ledger.check()


# --- the primary fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "interval"),
    [*((kind, 0.0) for kind in OUTAGES), ("killed", 0.4), ("unavailable", 0.4)],
)
def test_a_stream_survives_an_outage_of_the_primary(pair: Pair, ledger: Ledger, kind: str, interval: float) -> None:
    """Sends in all forms go on through an outage and the failback; before failover errors name what was not taken."""
    queue = pair.queue()
    bus = pair.pairing(failover_interval=interval, **QUICK)
    with bus.get_queue_sender(queue) as sender, Stream(ledger, sender) as stream:
        stream.goes_on()
        with OUTAGES[kind](ledger, pair.primary, queue):
            wait_until(lambda: parked(bus, queue) > 5, 30, lambda: bus.status())
            if not interval:
                # A link to a backlog queue has half of the time to open: on a busy machine that may be too little.
                assert {type(each) for each in stream.errors} <= {BacklogUnavailableError}, stream.errors
            stream.goes_on()
        wait_until(lambda: state(bus, queue) == "available", why=bus.status)
        before = bus.status().entities[queue]
        stream.goes_on()
        wait_until(lambda: bus.status().entities[queue].sent > before.sent, why=bus.status)
    ledger.check()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("busy", ServiceBusServerBusyError), ("quota_exceeded", ServiceBusQuotaExceededError)],
)
def test_a_refusal_is_no_outage(pair: Pair, ledger: Ledger, kind: str, error: type[Exception]) -> None:
    """Busy and full are the caller's to see: nothing is parked, errors name their messages, and sends go on."""
    queue = pair.queue()
    bus = pair.pairing(**PATIENT)
    with bus.get_queue_sender(queue) as sender, Stream(ledger, sender) as stream:
        stream.goes_on()
        with fault(kind)(ledger, pair.primary, queue):
            stream.fails()
        stream.goes_on()
        assert {type(each) for each in stream.errors} == {error}
    assert parked(bus, queue) == 0
    ledger.check(but=0)


def test_a_disabled_entity_is_no_outage(pair: Pair, ledger: Ledger) -> None:
    """An entity that its owner has disabled raises, is never parked for, and takes sends again when enabled."""
    queue = pair.queue()
    bus = pair.pairing(**PATIENT)
    with bus.get_queue_sender(queue) as sender, Stream(ledger, sender) as stream:
        stream.goes_on()
        pair.update_queue(queue, status=EntityStatus.DISABLED)
        stream.fails()
        pair.update_queue(queue, status=EntityStatus.ACTIVE)
        stream.goes_on()
        assert {type(each) for each in stream.errors} == {MessagingEntityDisabledError}
    assert parked(bus, queue) == 0
    ledger.check(but=0)


def test_a_deleted_entity_is_no_outage(pair: Pair, ledger: Ledger) -> None:
    """An entity that is gone raises, is never parked for, and takes sends again when it is made anew."""
    queue = pair.queue()
    bus = pair.pairing(**PATIENT)
    with bus.get_queue_sender(queue) as sender:
        Ledger(pair).must_send(sender, Ledger(pair).message())
        pair.delete_queue(queue)
        with Stream(ledger, sender) as stream:
            stream.fails()
            with pair.admin(pair.primary) as admin:
                admin.create_queue(queue)
            stream.goes_on()
            assert {type(each) for each in stream.errors} == {ServiceBusAuthenticationError}
    assert parked(bus, queue) == 0
    ledger.check(but=0)


def test_connections_that_break_now_and_then_are_no_outage(pair: Pair, ledger: Ledger) -> None:
    """A connection cut while idle is replaced without an error, a failover or a second copy."""
    queue = pair.queue()
    bus = pair.pairing(**PATIENT)
    with bus.get_queue_sender(queue) as sender:
        for _ in range(4):
            ledger.must_send(sender, ledger.messages(2))
            pair.primary.faults.drop(queue)
            ledger.must_send(sender, ledger.message())
    assert parked(bus, queue) == 0
    ledger.check(but=0)


def test_an_entity_down_moves_no_other(pair: Pair, ledger: Ledger) -> None:
    """While one entity is failed over another of the same pairing is sent to directly, without one error."""
    down, up = pair.queue(), pair.queue()
    bus = pair.pairing(**QUICK)
    with (
        bus.get_queue_sender(down) as first,
        bus.get_queue_sender(up) as second,
        Stream(ledger, first) as failing,
        Stream(ledger, second) as working,
    ):
        with OUTAGES["unavailable"](ledger, pair.primary, down):
            wait_until(lambda: parked(bus, down) > 5)
            failing.goes_on()
            working.goes_on(10)
            assert state(bus, up) == "available"
        wait_until(lambda: state(bus, down) == "available")
    assert not failing.errors
    assert not working.errors
    assert parked(bus, up) == 0
    found = ledger.check()
    assert {each.place for key, places in found.items() if ledger.entries[key].entity == up for each in places} == {up}


# --- the secondary fails, too ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["killed", "paused", "black hole"])
def test_a_stream_survives_an_outage_of_both(pair: Pair, ledger: Ledger, kind: str) -> None:
    """With both namespaces down each send raises `BacklogUnavailableError` with all its messages; then all goes on."""
    queue = pair.queue()
    bus = pair.pairing(**QUICK)
    with bus.get_queue_sender(queue) as sender, Stream(ledger, sender) as stream:
        with OUTAGES["unavailable"](ledger, pair.primary, queue):
            wait_until(lambda: parked(bus, queue) > 5)
            with OUTAGES[kind](ledger, pair.secondary, "*"):
                stream.fails(3)
            stream.goes_on()
        wait_until(lambda: state(bus, queue) == "available")
        stream.goes_on()
        assert {type(each) for each in stream.errors} == {BacklogUnavailableError}
    ledger.check()


@pytest.mark.parametrize("kind", ["deleted", "disabled", "full", "answers lost"])
def test_a_stream_survives_the_loss_of_some_backlog_queues(pair: Pair, ledger: Ledger, kind: str) -> None:
    """While one backlog queue of three works no send fails."""
    queue = pair.queue()
    # Each queue that is silent takes half of the time that is left.
    bus = pair.pairing(backlog_queue_count=3, **{**QUICK, "send_timeout": 24.0, "ping_primary_interval": 600})
    bad = [queue_path(pair.name, index) for index in (0, 1)]
    pair.primary.kill()
    if kind == "deleted":
        with pair.admin(pair.secondary) as admin:
            for path in bad:
                admin.delete_queue(path)
    with bus.get_queue_sender(queue) as sender, Stream(ledger, sender) as stream:
        if kind != "deleted":
            stream.goes_on()
        for path in bad:
            if kind == "disabled":
                with pair.admin(pair.secondary) as admin:
                    found = admin.get_queue(path)
                    found.status = EntityStatus.DISABLED
                    admin.update_queue(found)
            elif kind == "full":
                pair.secondary.faults.quota_exceeded(path)
            elif kind == "answers lost":
                pair.secondary.faults.lost_accept(path)
        with ledger.answers_lost() if kind == "answers lost" else nullcontext():
            wait_until(lambda: bus.status().queues[queue_path(pair.name, 2)].parked > 5, 90, lambda: bus.status())
        stream.goes_on()
    assert not stream.errors
    ledger.check()


def test_both_down_from_the_start(pair: Pair, ledger: Ledger) -> None:
    """A sender whose namespaces are both dead says so for each form of send, in bounded time, and recovers."""
    queue = pair.queue()
    bus = pair.pairing(**PATIENT)
    sender = bus.get_queue_sender(queue)
    pair.primary.kill()
    pair.secondary.kill()
    with sender:
        for given in (ledger.message(), ledger.messages(3), iter(ledger.messages(2))):
            error = ledger.send(sender, given)
            assert isinstance(error, BacklogUnavailableError)
            assert set(error.reasons) == set(bus.status().queues)
        pair.secondary.restart()
        wait_until(lambda: ledger.send(sender, ledger.message()) is None)
        pair.primary.restart()
        wait_until(lambda: state(bus, queue) == "available")
        ledger.must_send(sender, ledger.messages(3))
    ledger.check(but=0)


# --- the primary comes back while messages are being parked ----------------------------------------------------


def test_a_send_that_is_about_to_park_sees_the_failback(pair: Pair, ledger: Ledger) -> None:
    """A send that waits for a dead backlog while the primary comes back goes to the primary, once."""
    queue = pair.queue()
    bus = pair.pairing(**{**QUICK, "send_timeout": 20.0})
    with bus.get_queue_sender(queue) as sender:
        with OUTAGES["unavailable"](ledger, pair.primary, queue):
            ledger.fail_over(sender)
            pair.secondary.faults.black_hole()
            late = threading.Thread(target=ledger.must_send, args=(sender, ledger.messages(2)), kwargs={"timeout": 8.0})
            late.start()
        wait_until(lambda: state(bus, queue) == "available")
        late.join(20)
        assert not late.is_alive()
    found = ledger.check(but=0)
    assert [each.place for key in ("m1", "m2") for each in found[key]] == [queue, queue]


def test_a_parcel_is_divided_by_a_failback(pair: Pair, ledger: Ledger) -> None:
    """Messages parked before the primary came back stay parked, the rest goes to the primary: in order, each once."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1, **{**QUICK, "send_timeout": 120.0})
    given = ledger.messages(60, b"x" * 1000)
    backlog = queue_path(pair.name, 0)
    pair.secondary.faults.size_limit(3000)
    with bus.get_queue_sender(queue) as sender:
        with OUTAGES["unavailable"](ledger, pair.primary, queue):
            ledger.fail_over(sender)
            pair.secondary.faults.latency(0.5, backlog)
            long = threading.Thread(target=ledger.must_send, args=(sender, given))
            long.start()
            wait_until(lambda: bus.status().queues[backlog].parked > 1)
        long.join(60)
        assert not long.is_alive()
    found = ledger.check(but=0)
    places = [found[f"m{index}"][0].place for index in range(60)]
    assert set(places) == {queue, backlog}
    assert places == sorted(places, key=lambda place: place == queue)
    in_primary = [key_of(payload) for payload in peek(pair.primary, queue)]
    assert in_primary == [f"m{index}" for index in range(60 - len(in_primary), 60)]


# --- answers get lost ------------------------------------------------------------------------------------------


def test_a_lost_answer_of_the_primary_means_at_least_once(pair: Pair, ledger: Ledger) -> None:
    """Messages that the primary took without saying so are parked as well, with the same ids."""
    queue = pair.queue()
    sender = pair.sender(queue, **{**QUICK, "send_timeout": 6.0})
    pair.primary.faults.lost_accept(queue, count=1)
    with ledger.answers_lost():
        ledger.must_send(sender, ledger.messages(3))
    found = ledger.check()
    for places in found.values():
        assert len(places) == 2
        assert len({each.place for each in places}) == 2


def test_a_lost_answer_of_a_backlog_queue_means_at_least_once(pair: Pair, ledger: Ledger) -> None:
    """Messages that a backlog queue took without saying so are parked again, with the same ids, given ones too."""
    queue = pair.queue()
    sender = pair.sender(queue, **{**QUICK, "send_timeout": 10.0})
    pair.primary.kill()
    ledger.must_send(sender, ledger.message())
    pair.secondary.faults.lost_accept(count=1)
    with ledger.answers_lost():
        ledger.must_send(sender, [ledger.message(), ledger.message(message_id=None)])
    found = ledger.check()
    assert sorted(map(len, found.values())) == [1, 2, 2]
    for places in found.values():
        ids = {_message_id(each.payload) for each in places}
        assert len(ids) == 1


def test_one_message_whose_answer_is_lost_keeps_the_id_that_it_was_given(pair: Pair, ledger: Ledger) -> None:
    """The usual way of a single message hands on what it has tried: the second try has the first one's id."""
    sender = pair.sender(pair.queue(), **{**QUICK, "send_timeout": 10.0})
    pair.primary.kill()
    ledger.must_send(sender, ledger.message())
    first = backlog_queue_of(sender)
    pair.secondary.faults.lost_accept(count=1)
    with ledger.answers_lost():
        ledger.must_send(sender, ledger.message(message_id=None))
    places = ledger.check()["m1"]
    assert len(places) == 2
    assert len({_message_id(each.payload) for each in places}) == 1
    assert backlog_queue_of(sender) != first


def _message_id(payload: bytes) -> Any:
    from proton import Message

    message = Message()
    message.decode(payload)
    assert message.id
    return message.id
