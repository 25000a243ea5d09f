"""AutoDeleteOnIdle in the broker, with a clock that the tests set."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.entities.message import Draft, read_message
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.settings import QueueSettings, TopicSettings

LIMIT = timedelta(minutes=5)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_minutes(self, minutes: float) -> None:
        self.now += minutes * 60


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(clock: Clock) -> Broker:
    made = Broker("contoso", clock=clock)
    made.create_queue(QueueSettings("idle", auto_delete_on_idle=LIMIT))
    made.create_queue(QueueSettings("kept"))
    return made


def queue(broker: Broker, path: str = "idle") -> Queue:
    found = broker.queue(path)
    assert found is not None
    return found


def message(scheduled_at: float | None = None) -> Draft:
    draft = read_message(b"\x00\x53\x75\xa0\x01x")
    draft.scheduled_at = scheduled_at
    return draft


def names(broker: Broker) -> list[str]:
    return [each.path for each in broker.queues()]


def test_an_idle_queue_is_deleted_with_its_messages(broker: Broker, clock: Clock) -> None:
    """It is deleted at its time and not before, and its links are reported; a queue without the setting stays."""
    told: list[object] = []
    broker.on_deleted = told.append
    broker.send(queue(broker), [message()], clock())
    gone = queue(broker)
    clock.pass_minutes(4.9)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["idle", "kept"]
    clock.pass_minutes(0.2)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["kept"]
    assert gone in told
    clock.pass_minutes(60 * 24 * 365)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["kept"]


def test_deleting_an_idle_queue_requests_a_turn(broker: Broker, clock: Clock) -> None:
    """Otherwise the deletion would be committed only with the next client's request."""
    asked: list[bool] = []
    broker.on_work = lambda: asked.append(True)
    broker.usage.delete_idle(clock())
    assert not asked
    clock.pass_minutes(5.1)
    broker.usage.delete_idle(clock())
    assert asked


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda b, now: b.send(queue(b), [message()], now), id="a send"),
        pytest.param(lambda b, now: (b.usage.attach(queue(b)), b.usage.detach(queue(b))), id="a link, gone again"),
        pytest.param(lambda b, now: b.update_queue(queue(b).settings), id="an update"),
        pytest.param(lambda b, now: b.usage.touch(queue(b)), id="a request"),
    ],
)
def test_use_restarts_the_idle_time(broker: Broker, clock: Clock, use: Callable[[Broker, float], object]) -> None:
    """Every kind of use restarts the time."""
    clock.pass_minutes(4)
    use(broker, clock())
    clock.pass_minutes(4)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["idle", "kept"]
    clock.pass_minutes(1.1)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["kept"]


def test_a_link_or_a_scheduled_message_keeps_a_queue(broker: Broker, clock: Clock) -> None:
    """A queue with an open link or a scheduled message is not idle."""
    dead = queue(broker).dead_letters
    assert dead is not None
    broker.usage.attach(dead)  # a link to its dead-letter queue counts
    clock.pass_minutes(60)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["idle", "kept"]
    broker.send(queue(broker), [message(clock() + 3600)], clock())
    broker.usage.detach(dead)
    clock.pass_minutes(59)
    broker.usage.delete_idle(clock())
    assert names(broker) == ["idle", "kept"]
    clock.pass_minutes(7)
    broker.turn(clock())
    broker.usage.delete_idle(clock())
    assert names(broker) == ["kept"]


def test_a_used_subscription_keeps_its_topic(broker: Broker, clock: Clock) -> None:
    """A topic stays while one of its subscriptions is in use; an idle subscription is deleted alone."""
    broker.create_topic(TopicSettings("topic", auto_delete_on_idle=LIMIT))
    broker.create_subscription("topic", QueueSettings("used"), None)
    broker.create_subscription("topic", QueueSettings("idle", auto_delete_on_idle=LIMIT), None)
    used = broker.subscription("topic", "used")
    assert used is not None
    broker.usage.attach(used.queue)
    clock.pass_minutes(6)
    broker.usage.delete_idle(clock())
    topic = broker.topic("topic")
    assert topic is not None
    assert list(topic.subscriptions) == ["used"]
    broker.usage.detach(used.queue)
    clock.pass_minutes(6)
    broker.usage.delete_idle(clock())
    assert broker.topic("topic") is None
