"""Backlog queues of the secondary: looked for, made, left alone, reported; through the real administration client."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import EntityStatus

from pairbus import Namespace, PairingError, ProvisioningError
from pairbus.domain.backlog import PROPERTIES, queue_path
from pairbus.sending import pairing as pairing_module
from tests.support.pairing import SLACK, Pair, pairbus_threads, pairing_of
from tests.support.process_fixtures import Command, key_of, with_key
from tests.support.waiting import wait_until

FOREVER = timedelta(days=10675199)
MANAGE = "RootManageSharedAccessKey"


class Calls:
    """Every management call about a test's backlog queues, as it leaves the SDK; `before` may fail or delay it."""

    def __init__(self, name: str) -> None:
        self._prefix = f"/{name}/x-servicebus-transfer/"
        self.seen: list[tuple[str, str]] = []
        self.by_thread: Counter[int] = Counter()
        self.most_at_once = 0
        self.before: Callable[[str, str], None] = lambda method, path: None
        self._at_once = 0
        self._lock = threading.Lock()

    def of(self, method: str, path: str | None = None) -> int:
        return sum(seen == method and path in (None, about) for seen, about in self.seen)

    def around(self, request: Any, send: Callable[[], Any]) -> Any:
        url = unquote(urlsplit(request.url).path)
        if not url.startswith(self._prefix):
            return send()
        with self._lock:
            self.seen.append((request.method, url[1:]))
            self.by_thread[threading.get_ident()] += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self.before(request.method, url[1:])
            return send()
        finally:
            with self._lock:
                self._at_once -= 1


@pytest.fixture
def calls(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The management requests that the pairings of this test make to the secondary."""
    made = Calls(pair.name)
    real = RequestsTransport.send

    def send(self: Any, request: Any, **options: Any) -> Any:
        return made.around(request, lambda: real(self, request, **options))

    monkeypatch.setattr(RequestsTransport, "send", send)
    return made


@pytest.fixture(scope="module")
def mixed_rights() -> Iterator[Command]:
    """A namespace with keys that may only listen, or only send."""
    keys = ["--key-name", MANAGE, "--key", "all-rights="]
    keys += ["--key-name", "reader:Listen", "--key", "only-listen=", "--key-name", "writer:Send", "--key", "only-send="]
    with Command(*keys) as bus:
        yield bus


def transient(path: str, method: str, times: int) -> Callable[[str, str], None]:
    """The first calls of a kind about a path do not reach the service."""
    left = [times]

    def before(used: str, about: str) -> None:
        if (used, about) == (method, path) and left[0]:
            left[0] -= 1
            raise ServiceRequestError("the connection was reset")

    return before


# --- made and found --------------------------------------------------------------------------------------------


def test_queues_are_made_with_the_seven_properties_and_the_rest_as_the_service_has_it(pair: Pair) -> None:
    """A backlog queue that pairbus makes is exactly as the contract says; nothing else about it is set."""
    bus = pair.pairing(backlog_queue_count=3)
    assert pair.backlog() == [queue_path(pair.name, index) for index in range(3)]
    with pair.admin(pair.secondary) as admin:
        plain = admin.create_queue(f"plain-{pair.name}")
        for path in pair.backlog():
            made = admin.get_queue(path)
            assert made.max_size_in_megabytes == 5120
            assert made.max_delivery_count == 2147483647
            assert made.default_message_time_to_live >= FOREVER
            assert made.auto_delete_on_idle >= FOREVER
            assert made.lock_duration == timedelta(minutes=1)
            assert made.dead_lettering_on_message_expiration is True
            assert made.enable_batched_operations is True
            for name in (
                "requires_session",
                "requires_duplicate_detection",
                "enable_partitioning",
                "enable_express",
                "forward_to",
                "forward_dead_lettered_messages_to",
                "status",
                "user_metadata",
            ):
                assert getattr(made, name) == getattr(plain, name), name
    assert bus.backlog_queue_count == bus.status().queues_available == bus.status().queues_asked == 3
    assert not pair.told("queue differs")


def test_queues_that_are_there_are_found_and_not_made_again(pair: Pair, calls: Calls) -> None:
    """The second pairing looks once for each queue, creates nothing, and finds nothing different."""
    pair.pairing(backlog_queue_count=4).close()
    assert calls.of("GET") == calls.of("PUT") == 4
    calls.seen.clear()
    bus = pair.pairing(backlog_queue_count=4)
    assert (calls.of("GET"), calls.of("PUT"), len(calls.seen)) == (4, 0, 4)
    assert not any(queue.differences for queue in bus.status().queues.values())


def test_a_queue_with_other_properties_is_used_as_it_is_and_reported_one_by_one(pair: Pair, calls: Calls) -> None:
    """Another's queue is never changed: status and an event name each property, with what it is and would be."""
    path = queue_path(pair.name, 0)
    with pair.admin(pair.secondary) as admin:
        admin.create_queue(path, lock_duration=timedelta(seconds=30), max_delivery_count=5, max_size_in_megabytes=5120)
        before = admin.get_queue(path)
    queue = pair.queue()
    calls.seen.clear()
    sender = pair.sender(queue, backlog_queue_count=1)
    found = pairing_of(sender).status().queues[path].differences
    assert found["lock_duration"] == (timedelta(seconds=30), timedelta(minutes=1))
    assert found["max_delivery_count"] == (5, 2147483647)
    assert found["dead_lettering_on_message_expiration"] == (False, True)
    assert not {"max_size_in_megabytes", "enable_batched_operations"} & set(found)
    (event,) = wait_until(lambda: pair.told("queue differs"))
    assert (event.queue, event.details["differences"]) == (path, found)
    pair.fail_over(sender)
    assert pair.parked_by_queue() == {path: 1}
    with pair.admin(pair.secondary) as admin:
        after = admin.get_queue(path)
    assert {method for method, _ in calls.seen} == {"GET"}, "nothing of it may be written"
    for name in ("lock_duration", "max_delivery_count", "dead_lettering_on_message_expiration"):
        assert getattr(after, name) == getattr(before, name)


UNUSABLE: dict[str, Any] = {
    "requires_duplicate_detection": True,
    "requires_session": True,
    "forward_to": "elsewhere",
}


@pytest.fixture
def elsewhere(pair: Pair) -> str:
    """A queue of the secondary that another forwards to."""
    name = f"elsewhere-{pair.name}"
    with pair.admin(pair.secondary) as admin:
        admin.create_queue(name)
    return name


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_queue_that_would_lose_what_is_parked_is_left_out_visibly(pair: Pair, elsewhere: str, name: str) -> None:
    """Duplicate detection, sessions, forwarding: status and an event name the property, no sender parks there, and
    nothing about the queue is changed."""
    path = queue_path(pair.name, 0)
    settings: dict[str, Any] = {**PROPERTIES, name: elsewhere if name == "forward_to" else UNUSABLE[name]}
    with pair.admin(pair.secondary) as admin:
        admin.create_queue(path, **settings)
    bus = pair.pairing(backlog_queue_count=2)
    status = bus.status()
    assert (bus.backlog_queue_count, list(status.queues)) == (1, [queue_path(pair.name, 1)])
    assert name in status.missing[path]
    assert "must " in status.missing[path]
    (event,) = wait_until(lambda: pair.told("queue missing"))
    assert (event.queue, event.details["error"]) == (path, status.missing[path])
    queues = [pair.queue() for _ in range(2)]
    for queue in queues:  # two entities, one id: both are there
        sender = bus.get_queue_sender(queue)
        pair.declare_down(bus, queue)
        sender.send_messages(ServiceBusMessage("x", message_id="order-1"), timeout=60)
    assert pair.parked_by_queue() == {path: 0, queue_path(pair.name, 1): 2}
    with pair.admin(pair.secondary) as admin:
        found = getattr(admin.get_queue(path), name)
    assert found is True or elsewhere in found


def test_when_all_queues_would_lose_what_is_parked_no_pairing_is_made(pair: Pair) -> None:
    """It is an error that names each queue and its property."""
    with pair.admin(pair.secondary) as admin:
        for index in range(2):
            admin.create_queue(queue_path(pair.name, index), requires_duplicate_detection=True)
    with pytest.raises(ProvisioningError, match="requires_duplicate_detection is True and must be False") as raised:
        pair.pairing(backlog_queue_count=2)
    assert len(raised.value.reasons) == 2


def test_a_queue_that_is_switched_off_is_reported(pair: Pair) -> None:
    """It differs in its status; like any queue that differs it is used, and a send finds out that it refuses."""
    path = queue_path(pair.name, 0)
    with pair.admin(pair.secondary) as admin:
        found = admin.create_queue(path, **PROPERTIES)
        found.status = EntityStatus.SEND_DISABLED
        admin.update_queue(found)
    bus = pair.pairing(backlog_queue_count=2)
    assert bus.status().queues[path].differences == {"status": ("SendDisabled", "Active")}
    assert json.loads(json.dumps(bus.status().as_dict()))["queues"][path]["differences"]["status"][0] == "SendDisabled"
    (event,) = wait_until(lambda: pair.told("queue differs"))
    assert event.queue == path


def test_an_extra_queue_stays_and_is_not_used(pair: Pair, calls: Calls) -> None:
    """`…/7` is there when two are asked for: it is not looked at, not deleted, and no sender parks in it."""
    extra = queue_path(pair.name, 7)
    with pair.admin(pair.secondary) as admin:
        admin.create_queue(extra)
    calls.seen.clear()
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=2)
    assert not [path for _, path in calls.seen if path == extra]
    assert extra not in bus.status().queues
    pair.primary.kill()
    for _ in range(30):
        bus.get_queue_sender(queue).send_messages(ServiceBusMessage("parked"))
    held = pair.parked_by_queue()
    assert held.pop(extra) == 0
    assert sum(held.values()) == 30
    assert all(held.values()), "30 senders spread over both queues"


# --- races -------------------------------------------------------------------------------------------------------


def test_a_creation_that_loses_a_race_counts_as_found(pair: Pair, calls: Calls) -> None:
    """Another process makes the queue between the look and the creation: it is used as that process made it."""
    path = queue_path(pair.name, 0)
    raced: list[str] = []

    def before(method: str, about: str) -> None:
        if method == "PUT" and about == path and not raced:
            raced.append(path)
            with pair.admin(pair.secondary) as admin:
                admin.create_queue(path, max_delivery_count=3)

    calls.before = before
    bus = pair.pairing(backlog_queue_count=2)
    assert raced
    assert bus.status().missing == {}
    assert bus.status().queues[path].differences["max_delivery_count"] == (3, 2147483647)
    assert calls.of("PUT", path) == 2, "one of ours, one of the other's: a lost race is not tried again"


def test_pairings_that_begin_at_once_on_an_empty_namespace_all_get_the_whole_set(pair: Pair) -> None:
    """Four pairings at the same moment: each has every queue, and there is one of each."""
    gate = threading.Barrier(4)

    def begin(_: int) -> Any:
        gate.wait(10)
        return pair.pairing(backlog_queue_count=5)

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(begin, range(4)))
    assert [bus.backlog_queue_count for bus in made] == [5] * 4
    assert not any(bus.status().missing for bus in made)
    assert pair.backlog() == [queue_path(pair.name, index) for index in range(5)]


# --- what cannot be made -------------------------------------------------------------------------------------------


def test_a_creation_is_tried_three_times_and_then_left_out_visibly(pair: Pair, calls: Calls) -> None:
    """A queue that cannot be made is left out: count, status and an event say so, and sends use the others."""
    lost = queue_path(pair.name, 1)
    calls.before = transient(lost, "PUT", 99)
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=3)
    assert calls.of("PUT", lost) == 3
    assert bus.backlog_queue_count == 2
    status = bus.status()
    assert (status.queues_asked, status.queues_available) == (3, 2)
    assert list(status.missing) == [lost]
    assert "the connection was reset" in status.missing[lost]
    assert lost not in status.queues
    (event,) = wait_until(lambda: pair.told("queue missing"))
    assert event.queue == lost
    assert "the connection was reset" in event.details["error"]
    pair.primary.kill()
    for _ in range(10):
        bus.get_queue_sender(queue).send_messages(ServiceBusMessage("parked"))
    assert pair.parked() == 10
    assert lost not in pair.backlog()


def test_a_creation_that_works_at_the_third_try_is_whole(pair: Pair, calls: Calls) -> None:
    """Two failures are forgotten."""
    calls.before = transient(queue_path(pair.name, 1), "PUT", 2)
    bus = pair.pairing(backlog_queue_count=2)
    assert calls.of("PUT", queue_path(pair.name, 1)) == 3
    assert bus.status().missing == {}


def test_no_queue_at_all_is_an_error_with_a_reason_for_each(pair: Pair, calls: Calls) -> None:
    """Topics stand where the queues would be: the error has each path and why, and nothing is left running."""
    paths = [queue_path(pair.name, index) for index in range(2)]
    with pair.admin(pair.secondary) as admin:
        for path in paths:
            admin.create_topic(path)
    before = pairbus_threads()
    calls.seen.clear()
    with pytest.raises(ProvisioningError, match="no backlog queue") as raised:
        pair.pairing(backlog_queue_count=2)
    assert list(raised.value.reasons) == paths
    assert all("is not a queue" in why for why in raised.value.reasons.values())
    assert calls.of("PUT") == 0
    assert f"127.0.0.1:{pair.secondary.port}" in str(raised.value)
    wait_until(lambda: pairbus_threads() == before, why=pairbus_threads)
    with pair.admin(pair.secondary) as admin:
        assert {topic.name for topic in admin.list_topics()} >= set(paths), "nothing is ever deleted"


# --- who may not, and who does not answer --------------------------------------------------------------------------


def test_a_wrong_key_fails_at_once(pair: Pair, calls: Calls) -> None:
    """One call, no second try, for ten queues; the error names the host and what is needed, and shows no key."""
    wrong = with_key(pair.secondary.connection_string, MANAGE, "d3Jvbmcta2V5=")
    with pytest.raises(PairingError, match="Manage") as raised:
        pair.pairing(secondary=pair.secondary_namespace(wrong), backlog_queue_count=10)
    assert not isinstance(raised.value, ProvisioningError)
    assert len(calls.seen) == 1
    assert f"127.0.0.1:{pair.secondary.port}" in str(raised.value)
    for secret in ("d3Jvbmcta2V5", key_of(pair.secondary.connection_string)):
        assert secret not in f"{raised.value!r} {raised.value.__cause__!r}"


def without_manage(pair: Pair, bus: Command, name: str) -> Namespace:
    key = {"reader": "only-listen=", "writer": "only-send="}[name]
    return Namespace.from_connection_string(
        with_key(bus.connection_string, name, key), name="backup", ca_file=bus.ca_file
    )


@pytest.mark.parametrize("name", ["reader", "writer"])
def test_a_key_without_the_manage_right_fails_at_once(
    pair: Pair, calls: Calls, mixed_rights: Command, name: str
) -> None:
    """A key that may listen, or send, may not make queues: refused at the first creation, which is not tried again."""
    with pytest.raises(PairingError, match=r"Manage right") as raised:
        pair.pairing(secondary=without_manage(pair, mixed_rights, name), backlog_queue_count=10)
    assert not isinstance(raised.value, ProvisioningError)
    assert calls.of("PUT") == 1
    assert calls.of("GET") <= 1
    assert "only-" not in str(raised.value)
    assert f"{mixed_rights.host}:{mixed_rights.port}" in str(raised.value)


def test_a_refusal_that_comes_late_ends_it_too(pair: Pair, calls: Calls) -> None:
    """The first queue may be looked at and the others not made: those not begun by then are not asked for."""
    pair.pairing(backlog_queue_count=1).close()

    def before(method: str, about: str) -> None:
        if method == "PUT":
            refusal = ClientAuthenticationError("no right to create")
            refusal.status_code = 401
            raise refusal

    calls.before = before
    with pytest.raises(PairingError, match="Manage right"):
        pair.pairing(backlog_queue_count=100)
    assert 1 <= calls.of("PUT") <= 16


def test_a_secondary_that_is_down_is_asked_for_two_queues_not_for_ten(pair: Pair, calls: Calls) -> None:
    """A host that cannot be reached is an error within seconds, however many queues were asked for."""
    pair.secondary.kill()
    began = time.monotonic()
    with pytest.raises(ProvisioningError, match="refused") as raised:
        pair.pairing(backlog_queue_count=10)
    asked = [queue_path(pair.name, index) for index in (0, 1)]
    assert [about for _, about in calls.seen] == [asked[0]] * 3 + [asked[1]] * 3
    assert len(raised.value.reasons) == 10
    assert time.monotonic() - began < 2 * 1.5 + SLACK, "the pauses between three tries, for each of the two"


def test_a_secondary_that_does_not_answer_is_given_up(
    pair: Pair, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen host takes three calls' time and no more, for a hundred queues too."""
    monkeypatch.setattr(pairing_module, "_MANAGEMENT_SECONDS", 0.3)
    pair.secondary.pause()
    began = time.monotonic()
    with pytest.raises(ProvisioningError, match="timed out"):
        pair.pairing(backlog_queue_count=100)
    assert 1 <= len(calls.seen) <= 3
    assert time.monotonic() - began < 3 * 0.3 + 1.5 + SLACK


def test_a_secondary_that_stops_to_answer_is_not_waited_for_queue_by_queue(
    pair: Pair, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It freezes after the first queue: the pairing has that one, says so, and began in bounded time."""
    monkeypatch.setattr(pairing_module, "_MANAGEMENT_SECONDS", 2.0)

    one_by_one = threading.Lock()  # eight workers come by here, and a LocalBus is for one thread at a time

    def before(method: str, about: str) -> None:
        if about != queue_path(pair.name, 0):
            with one_by_one:
                pair.secondary.pause()

    calls.before = before
    began = time.monotonic()
    bus = pair.pairing(backlog_queue_count=100)
    assert time.monotonic() - began < 3 * 2 + 1.5 + 2 + SLACK
    assert bus.backlog_queue_count == 1
    assert len(bus.status().missing) == 99
    assert len(calls.seen) < 60, "most were not asked for at all"
    pair.secondary.resume()


# --- speed and cost --------------------------------------------------------------------------------------------------


def test_a_hundred_queues_are_looked_after_running_scenarios(pair: Pair, calls: Calls) -> None:
    """Round trips overlap, and no thread makes more than a fraction of them; each queue is asked for once."""
    calls.before = lambda method, path: time.sleep(0.01)
    bus = pair.pairing(backlog_queue_count=100)
    assert bus.backlog_queue_count == 100
    assert calls.of("GET") == calls.of("PUT") == 100
    assert calls.most_at_once >= 6
    assert max(calls.by_thread.values()) <= 100, "200 calls, and nobody waits for 100 of them one after the other"


def test_every_management_call_is_counted(pair: Pair, calls: Calls) -> None:
    """`operations["management"]` is what was really asked: looks, creations, lost races and failed tries."""
    calls.before = transient(queue_path(pair.name, 1), "PUT", 1)
    bus = pair.pairing(backlog_queue_count=3)
    assert bus.status().operations == {"management": len(calls.seen)}
    assert len(calls.seen) == 3 * 2 + 2
