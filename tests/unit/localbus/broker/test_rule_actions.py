"""Rules in the broker: the effect of actions, and the limits that no rule or message can exceed."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from pairbus.domain.amqp.codec import Described, Long, Symbol, encode
from pairbus.localbus.addresses import parse_address
from pairbus.localbus.amqp.operations import Operations
from pairbus.localbus.amqp.requests import Request
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.entities.message import SCHEDULED, Draft, read_message
from pairbus.localbus.entities.payload import MessageView
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.settings import QueueSettings, RuleSettings, SqlExpression, TopicSettings, TrueFilter

NOW = 1_000_000.0


def draft(properties: dict[str, Any] | None = None, **facts: Any) -> Draft:
    application = b"\x00\x53\x74" + encode(properties) if properties else b""
    found = read_message(application + b"\x00\x53\x75\xa0\x01x")
    for name, value in facts.items():
        setattr(found, name, value)
    return found


def subscribed(action: str, parameters: dict[str, Any] | None = None) -> tuple[Broker, Any, Queue]:
    broker = Broker("contoso", clock=lambda: NOW)
    topic = broker.create_topic(TopicSettings("prices"))
    rule = RuleSettings("rule", TrueFilter(), SqlExpression(action, parameters or {}))
    subscription = broker.create_subscription("prices", QueueSettings("all"), rule)
    return broker, topic, subscription.queue


def properties(broker: Broker, queue: Queue) -> dict[str, Any]:
    (message,) = queue.messages.values()
    return dict(MessageView(broker.payloads([message])[0]).user)


@pytest.mark.parametrize(
    "value", [datetime(2020, 1, 1), datetime(1, 1, 1), timedelta.max, timedelta.min, 2**62, "text", 1.5, True]
)
def test_an_action_may_set_any_parameter(value: Any) -> None:
    """Times without a zone and the longest duration: the copy arrives, and the server goes on."""
    broker, topic, queue = subscribed("SET y = @d", {"@d": value})
    broker.send(topic, [draft()], NOW)
    broker.turn(NOW)
    assert "y" in properties(broker, queue)


def test_an_action_may_copy_the_longest_time_span() -> None:
    """.NET's TimeSpan.MaxValue is copied, although it is not a whole number of microseconds."""
    broker, topic, queue = subscribed("SET y = x")
    longest = Described(Symbol("com.microsoft:timespan"), Long(2**63 - 1))
    broker.send(topic, [draft({"x": longest})], NOW)
    broker.turn(NOW)
    assert "y" in properties(broker, queue)


def test_actions_cannot_exhaust_memory() -> None:
    """A property that doubles itself again and again ends at the size limit of properties."""
    broker, topic, queue = subscribed("SET a=a+a;" * 40)
    broker.send(topic, [draft({"a": "x"})], NOW)
    broker.turn(NOW)
    assert len(properties(broker, queue)["a"]) <= 32 * 1024


def test_an_action_can_schedule_a_copy() -> None:
    """The copy arrives at the time that an action sets."""
    broker, topic, queue = subscribed("SET sys.ScheduledEnqueueTimeUtc = @at", {"@at": datetime(2100, 1, 1)})
    broker.send(topic, [draft()], NOW)
    broker.turn(NOW)
    (copy,) = queue.messages.values()
    assert copy.state == SCHEDULED
    assert queue.counts().scheduled == 1


def test_an_action_can_change_the_time_to_live() -> None:
    """The copy lives as long as the action says, also if the message has its own time to live."""
    broker, topic, queue = subscribed("SET sys.TimeToLive = @life", {"@life": timedelta(seconds=5)})
    broker.send(topic, [draft(time_to_live=600.0)], NOW)
    broker.turn(NOW)
    (copy,) = queue.messages.values()
    assert copy.expires_at == pytest.approx(NOW + 5)


@pytest.mark.parametrize("kept", [True, False])
def test_a_failing_rule_affects_only_its_subscription(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message is dead-lettered or dropped, as the settings say; other subscriptions get theirs."""
    broker, topic, queue = subscribed("SET y = 1")
    settings = queue.settings.changed(dead_lettering_on_filter_evaluation_exceptions=kept)
    broker.update_subscription("prices", settings)
    other = broker.create_subscription("prices", QueueSettings("other"), None).queue
    rule = next(iter(topic.subscriptions["all"].rules.values()))
    monkeypatch.setattr(rule, "matches", lambda view: 1 / 0)
    broker.send(topic, [draft()], NOW)
    broker.turn(NOW)
    assert len(other.messages) == 1
    assert len(queue.messages) == 0
    assert queue.dead_letters is not None
    assert len(queue.dead_letters.messages) == (1 if kept else 0)


def test_a_cycle_of_dead_letters_ends() -> None:
    """Dead letters that go back to their own topic stay as dead letters after some hops."""
    broker = Broker("contoso", clock=lambda: NOW)
    topic = broker.create_topic(TopicSettings("t"))
    settings = QueueSettings("s", requires_session=True, forward_dead_lettered_messages_to="t")
    queue = broker.create_subscription("t", settings, None).queue
    broker.send(topic, [draft()], NOW)
    for _ in range(20):
        broker.turn(NOW)
    assert queue.dead_letters is not None
    assert len(queue.dead_letters.messages) == 1


def test_a_large_backlog_is_forwarded_in_batches() -> None:
    """Ten thousand messages do not block one turn, and all of them arrive."""
    broker = Broker("contoso", clock=lambda: NOW)
    target = broker.create_queue(QueueSettings("target"))
    source = broker.create_queue(QueueSettings("source"))
    broker.send(source, [draft() for _ in range(10_000)], NOW)
    broker.turn(NOW)
    broker.update_queue(QueueSettings("source", forward_to="target"))
    broker.turn(NOW)
    assert 0 < len(target.messages) < 10_000
    for _ in range(20):
        broker.turn(NOW)
    assert len(target.messages) == 10_000


def test_many_expired_messages_are_removed_in_batches() -> None:
    """Ten thousand expired messages do not block one turn."""
    broker = Broker("contoso", clock=lambda: NOW)
    queue = broker.create_queue(QueueSettings("q", dead_lettering_on_message_expiration=True))
    broker.send(queue, [draft(time_to_live=1.0) for _ in range(5_000)], NOW)
    broker.turn(NOW + 2)
    assert 0 < len(queue.messages) < 5_000
    for _ in range(20):
        broker.turn(NOW + 2)
    assert len(queue.messages) == 0
    assert queue.dead_letters is not None
    assert len(queue.dead_letters.messages) == 5_000


def test_a_token_for_a_megabyte_of_address_costs_no_time() -> None:
    """Any client can ask for such a token, before it is authorized."""
    began = time.process_time()
    parse_address("x" + "/$management" * 80_000)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("numbers", [["1"], [None], [[1]], [True], [1.5]])
def test_invalid_sequence_numbers_are_refused(numbers: list[Any]) -> None:
    """The reply to a request with other values than numbers says what is wrong."""
    broker = Broker("contoso", clock=lambda: NOW)
    queue = broker.create_queue(QueueSettings("q"))
    operations = Operations(broker, lambda: NOW)
    for name in ("receive-by-sequence-number", "cancel-scheduled-message"):
        request = Request(b"\x40", None, {"operation": f"com.microsoft:{name}"}, {"sequence-numbers": numbers})
        reply = operations.handle(queue, request)
        assert (reply.status, reply.condition) == (400, "com.microsoft:argument-error")


def test_no_repr_shows_a_key() -> None:
    """Settings, requests and their bodies can be logged."""
    rules = ({"key_name": "mine", "primary_key": "c2VjcmV0"},)
    for settings in (QueueSettings("q", authorization_rules=rules), TopicSettings("t", authorization_rules=rules)):
        assert "c2VjcmV0" not in repr(settings)
    assert "c2VjcmV0" not in repr(Request(b"\x40", None, {}, "SharedAccessSignature sig=c2VjcmV0"))
