"""A broker without messages, for tests of the management REST API: its entities are kept in dictionaries."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pairbus.localbus.bus_errors import ENTITY_EXISTS, INVALID_FIELD, BusError, not_found
from pairbus.localbus.settings import (
    DEFAULT_RULE,
    Counts,
    HubSettings,
    QueueSettings,
    RuleSettings,
    SqlExpression,
    TopicSettings,
)


class FakeEntity:
    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.created_at = self.updated_at = time.time()
        self.accessed_at = 0.0
        self.size_in_bytes = 0
        self.held = Counts()
        self.subscriptions: dict[str, FakeEntity] = {}
        self.rules: dict[str, FakeEntity] = {}

    def counts(self) -> Counts:
        return self.held

    def update(self, settings: Any) -> None:
        self.settings = settings
        self.updated_at = time.time()

    @property
    def partition_ids(self) -> list[str]:
        return [str(n) for n in range(self.settings.partition_count)]


def _take(entities: dict[str, FakeEntity], name: str) -> FakeEntity:
    try:
        return entities[name.lower()]
    except KeyError:
        raise not_found(name) from None


def _add(entities: dict[str, FakeEntity], settings: Any) -> FakeEntity:
    key = settings.name.lower()
    if key in entities:
        raise BusError(ENTITY_EXISTS, f"'{settings.name}' already exists.")
    entities[key] = FakeEntity(settings)
    return entities[key]


def _sorted(entities: dict[str, FakeEntity]) -> list[FakeEntity]:
    return [entities[key] for key in sorted(entities)]


def _check(rules: Iterable[RuleSettings | None]) -> None:
    for rule in rules:
        if rule is not None and isinstance(rule.filter, SqlExpression) and "syntax error" in rule.filter.text:
            raise BusError(INVALID_FIELD, f"There was an error parsing '{rule.filter.text}'.")


class FakeBroker:
    """A stand-in for those parts of the broker that the management REST API uses."""

    def __init__(self, name: str = "contoso") -> None:
        self.name = name
        self.created_at = time.time()
        self._queues: dict[str, FakeEntity] = {}
        self._topics: dict[str, FakeEntity] = {}
        self._hubs: dict[str, FakeEntity] = {}
        self.commits = 0

    async def commit(self) -> None:
        self.commits += 1

    def queues(self) -> list[Any]:
        return _sorted(self._queues)

    def topics(self) -> list[Any]:
        return _sorted(self._topics)

    def hubs(self) -> list[Any]:
        return _sorted(self._hubs)

    def queue(self, path: str) -> Any:
        return self._queues.get(path.lower())

    def topic(self, path: str) -> Any:
        return self._topics.get(path.lower())

    def hub(self, path: str) -> Any:
        return self._hubs.get(path.lower())

    def subscription(self, topic: str, name: str) -> Any:
        found = self.topic(topic)
        return None if found is None else found.subscriptions.get(name.lower())

    def create_queue(self, settings: QueueSettings) -> Any:
        return _add(self._queues, settings)

    def update_queue(self, settings: QueueSettings) -> None:
        _take(self._queues, settings.name).update(settings)

    def delete_queue(self, path: str) -> None:
        _take(self._queues, path)
        del self._queues[path.lower()]

    def create_topic(self, settings: TopicSettings) -> Any:
        return _add(self._topics, settings)

    def update_topic(self, settings: TopicSettings) -> None:
        _take(self._topics, settings.name).update(settings)

    def delete_topic(self, path: str) -> None:
        _take(self._topics, path)
        del self._topics[path.lower()]

    def create_subscription(self, topic: str, settings: QueueSettings, rule: RuleSettings | None) -> Any:
        _check([rule])
        made = _add(_take(self._topics, topic).subscriptions, settings)
        _add(made.rules, rule or RuleSettings(DEFAULT_RULE))
        return made

    def update_subscription(self, topic: str, settings: QueueSettings) -> None:
        _take(_take(self._topics, topic).subscriptions, settings.name).update(settings)

    def delete_subscription(self, topic: str, name: str) -> None:
        subscriptions = _take(self._topics, topic).subscriptions
        _take(subscriptions, name)
        del subscriptions[name.lower()]

    def _rules(self, topic: str, subscription: str) -> dict[str, FakeEntity]:
        return _take(_take(self._topics, topic).subscriptions, subscription).rules

    def create_rule(self, topic: str, subscription: str, rule: RuleSettings) -> None:
        _check([rule])
        _add(self._rules(topic, subscription), rule)

    def update_rule(self, topic: str, subscription: str, rule: RuleSettings) -> None:
        _check([rule])
        _take(self._rules(topic, subscription), rule.name).update(rule)

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        rules = self._rules(topic, subscription)
        _take(rules, name)
        del rules[name.lower()]

    def create_hub(self, settings: HubSettings) -> Any:
        return _add(self._hubs, settings)

    def delete_hub(self, path: str) -> None:
        _take(self._hubs, path)
        del self._hubs[path.lower()]
