"""The entities of a namespace: create, find (in any case of their names), update, delete and persist them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairbus.localbus import bus_errors
from pairbus.localbus.addresses import Address, EntityPath
from pairbus.localbus.bus_errors import BusError, disabled, existing, not_found
from pairbus.localbus.entities.effects import Effects
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import DEAD_LETTER_SUFFIX, Queue
from pairbus.localbus.entities.topics import Rule, Subscription, Topic, inbox_settings
from pairbus.localbus.settings import (
    DEFAULT_RULE,
    HubSettings,
    QueueSettings,
    RuleSettings,
    TopicSettings,
    check_subscription_name,
)

from .settings_json import dump_settings, dump_subscription, load_settings, load_subscription
from .store import EntityRow, Store

#: An entity with its sub-queues takes this many ids: itself, dead letters, transfer dead letters, one spare.
IDS_PER_ENTITY = 4
#: The statuses in which an entity does not deliver.
_NOT_RECEIVED_FROM = ("Disabled", "ReceiveDisabled")
_IMMUTABLE = ("requires_session", "requires_duplicate_detection", "enable_partitioning")


class Catalog:
    """All entities by lower-case path; `on_delete` and `on_change` report deleted ones and new settings."""

    def __init__(
        self,
        effects: Effects,
        store: Store,
        clock: Callable[[], float],
        on_delete: Callable[[Queue | Hub], None],
        on_change: Callable[[Queue], None],
    ) -> None:
        self._effects = effects
        self._store = store
        self._clock = clock
        self._on_delete = on_delete
        self._on_change = on_change
        self._queues: dict[str, Queue] = {}
        self._topics: dict[str, Topic] = {}
        self._hubs: dict[str, Hub] = {}
        self._next_id = IDS_PER_ENTITY
        #: Inbox id -> its topic.
        self.topic_of_inbox: dict[int, Topic] = {}
        self.by_id: dict[int, Queue] = {}

    def queues(self) -> list[Queue]:
        return [self._queues[key] for key in sorted(self._queues)]

    def topics(self) -> list[Topic]:
        return [self._topics[key] for key in sorted(self._topics)]

    def hubs(self) -> list[Hub]:
        return [self._hubs[key] for key in sorted(self._hubs)]

    def queue(self, path: str) -> Queue | None:
        return self._queues.get(path.lower())

    def topic(self, path: str) -> Topic | None:
        return self._topics.get(path.lower())

    def hub(self, path: str) -> Hub | None:
        return self._hubs.get(path.lower())

    def subscription(self, topic: str, name: str) -> Subscription | None:
        found = self.topic(topic)
        return None if found is None else found.subscriptions.get(name.lower())

    def find(self, address: Address) -> Queue | Topic | Hub:
        """Return the entity of an address (the queue, for a subscription or a sub-queue too), or raise `BusError`."""
        queue: Queue | None
        if address.is_part_of_hub:
            hub = self.hub(address.entity)
            if hub is None or address.sub_queue is not None:
                raise not_found(address.name)
            return hub
        if address.subscription is not None:
            subscription = self.subscription(address.entity, address.subscription)
            queue = None if subscription is None else subscription.queue
        else:
            queue = self.queue(address.entity)
            if queue is None and address.sub_queue is None:
                other = self.topic(address.entity) or self.hub(address.entity)
                if other is not None:
                    return other
        if queue is not None and address.sub_queue is not None:
            queue = queue.dead_letters if address.sub_queue == "dead" else queue.transfer_dead_letters
        return existing(queue, address.path)

    def parent(self, queue: Queue) -> Queue:
        """Return the queue or subscription that a sub-queue belongs to, or the queue itself."""
        return self.by_id.get(queue.id - queue.id % IDS_PER_ENTITY, queue)

    def check_enabled(self, queue: Queue, doing: str) -> None:
        """Raise `BusError` if the entity's status does not allow messages to be taken out (`doing`)."""
        parent = self.parent(queue)
        if parent.settings.status in _NOT_RECEIVED_FROM:
            raise disabled(parent.path, f"{doing} '{queue.path}'")

    def create_queue(self, settings: QueueSettings) -> Queue:
        self._check_name_is_free(settings.name)
        self._check_forwards(settings, settings.name)
        queue = self._build(self._take_ids(), settings.name, settings)
        self._queues[settings.name.lower()] = queue
        self._keep("queue", queue.id, settings.name, settings, queue.created_at, queue.updated_at)
        return queue

    def update_queue(self, settings: QueueSettings) -> Queue:
        queue = existing(self.queue(settings.name), settings.name)
        _check_fixed(queue.settings, settings)
        self._check_forwards(settings, settings.name)
        settings = settings.changed(name=queue.settings.name)
        self._reconfigure(queue, settings)
        self._keep("queue", queue.id, settings.name, settings, queue.created_at, queue.updated_at)
        return queue

    def delete_queue(self, path: str) -> None:
        self._discard(existing(self._queues.pop(path.lower(), None), path))

    def create_topic(self, settings: TopicSettings) -> Topic:
        self._check_name_is_free(settings.name)
        now = self._clock()
        inbox = self._build(self._take_ids(), settings.name, inbox_settings(settings))
        topic = Topic(settings, inbox, now)
        self._topics[settings.name.lower()] = topic
        self.topic_of_inbox[inbox.id] = topic
        self._keep("topic", inbox.id, settings.name, settings, now, now)
        return topic

    def update_topic(self, settings: TopicSettings) -> Topic:
        topic = existing(self.topic(settings.name), settings.name)
        _check_fixed(topic.settings, settings)
        topic.settings = settings.changed(name=topic.settings.name)
        topic.inbox.reconfigure(inbox_settings(topic.settings))
        topic.updated_at = self._clock()
        kept = topic.settings
        self._keep("topic", topic.inbox.id, kept.name, kept, topic.created_at, topic.updated_at)
        return topic

    def delete_topic(self, path: str) -> None:
        topic = existing(self.topic(path), path)
        for name in list(topic.subscriptions):
            self.delete_subscription(path, name)
        del self._topics[path.lower()]
        del self.topic_of_inbox[topic.inbox.id]
        self._discard(topic.inbox)

    def create_subscription(self, topic: str, settings: QueueSettings, rule: RuleSettings | None) -> Subscription:
        check_subscription_name(settings.name)
        owner = existing(self.topic(topic), topic)
        if settings.name.lower() in owner.subscriptions:
            raise _exists(f"{topic}/Subscriptions/{settings.name}")
        path = f"{owner.settings.name}/Subscriptions/{settings.name}"
        self._check_forwards(settings, path)
        first = Rule(rule or RuleSettings(DEFAULT_RULE), self._clock())
        queue = self._build(self._take_ids(), path, settings)
        subscription = Subscription(settings.name, queue, queue.created_at)
        owner.subscriptions[settings.name.lower()] = subscription
        subscription.rules[first.settings.name.lower()] = first
        owner.accessed_at = queue.created_at
        self._keep_subscription(owner, subscription)
        return subscription

    def update_subscription(self, topic: str, settings: QueueSettings) -> Subscription:
        owner, subscription = self._existing_subscription(topic, settings.name)
        _check_fixed(subscription.settings, settings)
        self._check_forwards(settings, subscription.queue.path)
        self._reconfigure(subscription.queue, settings.changed(name=subscription.name))
        subscription.updated_at = subscription.queue.updated_at
        self._keep_subscription(owner, subscription)
        return subscription

    def delete_subscription(self, topic: str, name: str) -> None:
        owner, subscription = self._existing_subscription(topic, name)
        del owner.subscriptions[name.lower()]
        self._discard(subscription.queue)

    def create_rule(self, topic: str, subscription: str, rule: RuleSettings) -> Rule:
        owner, found = self._existing_subscription(topic, subscription)
        if rule.name.lower() in found.rules:
            raise _exists(f"{found.queue.path}/Rules/{rule.name}")
        return self._set_rule(owner, found, rule)

    def update_rule(self, topic: str, subscription: str, rule: RuleSettings) -> Rule:
        owner, found = self._existing_subscription(topic, subscription)
        if rule.name.lower() not in found.rules:
            raise not_found(f"{found.queue.path}/Rules/{rule.name}")
        return self._set_rule(owner, found, rule)

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        owner, found = self._existing_subscription(topic, subscription)
        if found.rules.pop(name.lower(), None) is None:
            raise not_found(f"{found.queue.path}/Rules/{name}")
        self._keep_subscription(owner, found)

    def _set_rule(self, topic: Topic, subscription: Subscription, settings: RuleSettings) -> Rule:
        rule = Rule(settings, self._clock())
        subscription.rules[settings.name.lower()] = rule
        subscription.queue.accessed_at = rule.created_at
        self._keep_subscription(topic, subscription)
        return rule

    def create_hub(self, settings: HubSettings) -> Hub:
        self._check_name_is_free(settings.name)
        now = self._clock()
        hub = Hub(self._take_ids(), settings, now)
        self._hubs[settings.name.lower()] = hub
        self._keep("hub", hub.id, settings.name, settings, now, now)
        return hub

    def delete_hub(self, path: str) -> None:
        hub = existing(self._hubs.pop(path.lower(), None), path)
        self._store.delete_entity(hub.id, ())
        self._on_delete(hub)

    def restore(self, row: EntityRow) -> None:
        """Recreate an entity from the store; its messages are inserted later."""
        self._next_id = max(self._next_id, row.id + IDS_PER_ENTITY)
        if row.kind == "queue":
            kept = load_settings(QueueSettings, row.settings)
            self._queues[row.path.lower()] = self._build(row.id, row.path, kept, row)
        elif row.kind == "hub":
            self._hubs[row.path.lower()] = Hub(row.id, load_settings(HubSettings, row.settings), row.created)
        elif row.kind == "topic":
            settings = load_settings(TopicSettings, row.settings)
            topic = Topic(settings, self._build(row.id, row.path, inbox_settings(settings), row), row.created)
            topic.updated_at = row.updated
            self._topics[row.path.lower()] = topic
            self.topic_of_inbox[row.id] = topic
        else:
            owner, kept, rules = load_subscription(row.settings)
            queue = self._build(row.id, row.path, kept, row)
            subscription = Subscription(queue.settings.name, queue, row.created)
            subscription.updated_at = row.updated
            for rule, created in rules:
                subscription.rules[rule.name.lower()] = Rule(rule, created)
            existing(self.topic(owner), owner).subscriptions[subscription.name.lower()] = subscription

    def _keep(self, kind: str, id: int, path: str, settings: Any, created: float, updated: float) -> None:
        self._store.put_entity(EntityRow(id, kind, path, dump_settings(settings), created, updated))

    def _keep_subscription(self, topic: Topic, subscription: Subscription) -> None:
        rules = [(rule.settings, rule.created_at) for rule in subscription.rules.values()]
        data = dump_subscription(topic.settings.name, subscription.settings, rules)
        queue = subscription.queue
        self._store.put_entity(
            EntityRow(queue.id, "subscription", queue.path, data, queue.created_at, queue.updated_at)
        )

    def _take_ids(self) -> int:
        id = self._next_id
        self._next_id += IDS_PER_ENTITY
        return id

    def _build(self, id: int, path: str, settings: QueueSettings, row: EntityRow | None = None) -> Queue:
        forward = settings.forward_dead_lettered_messages_to
        dead = Queue(id + 1, path + DEAD_LETTER_SUFFIX, _sub_queue_settings(settings, forward), self._effects)
        transfer = _sub_queue_settings(settings, None)
        transfer_dead = Queue(id + 2, f"{path}/$Transfer{DEAD_LETTER_SUFFIX}", transfer, self._effects)
        queue = Queue(id, path, settings, self._effects, dead_letters=dead)
        queue.transfer_dead_letters = transfer_dead
        now = self._clock()
        queue.created_at = now if row is None else row.created
        queue.updated_at = now if row is None else row.updated
        queue.accessed_at = now
        for each in (queue, dead, transfer_dead):
            self.by_id[each.id] = each
        return queue

    def _reconfigure(self, queue: Queue, settings: QueueSettings) -> None:
        queue.reconfigure(settings)
        if queue.dead_letters is not None:
            forward = settings.forward_dead_lettered_messages_to
            queue.dead_letters.reconfigure(_sub_queue_settings(settings, forward))
            self._on_change(queue.dead_letters)
        if queue.transfer_dead_letters is not None:
            queue.transfer_dead_letters.reconfigure(_sub_queue_settings(settings, None))
            self._on_change(queue.transfer_dead_letters)
        queue.updated_at = self._clock()
        self._on_change(queue)

    def _discard(self, queue: Queue) -> None:
        for each in (queue, queue.dead_letters, queue.transfer_dead_letters):
            if each is not None:
                each.drop_all()
                del self.by_id[each.id]
                self._on_delete(each)
        self._store.delete_entity(queue.id, (queue.id, queue.id + 1, queue.id + 2))

    def _check_name_is_free(self, path: str) -> None:
        if EntityPath.of(path) != EntityPath(path):
            raise BusError(
                bus_errors.INVALID_FIELD,
                f"'{path}' is how something of a topic's subscriptions is named: no queue, topic or event hub can be.",
            )
        key = path.lower()
        if key in self._queues or key in self._topics or key in self._hubs:
            raise _exists(path)

    def _check_forwards(self, settings: QueueSettings, path: str) -> None:
        """Raise `BusError` if a forwarding destination is missing, or an unpartitioned queue with sessions forwards."""
        if settings.requires_session and settings.forward_to is not None and not settings.enable_partitioning:
            raise BusError(
                bus_errors.INVALID_FIELD,
                f"SubCode=40000. Bad Request. '{path}' requires sessions, so it cannot forward to "
                f"'{settings.forward_to}': let it have no sessions (its destination may have them).",
            )
        for target in (settings.forward_to, settings.forward_dead_lettered_messages_to):
            if target is None:
                continue
            if self.queue(target) is None and self.topic(target) is None:
                raise BusError(
                    bus_errors.INVALID_FIELD,
                    f"The forwarding destination '{target}' of '{path}' does not exist in this namespace.",
                )

    def _existing_subscription(self, topic: str, name: str) -> tuple[Topic, Subscription]:
        owner = existing(self.topic(topic), topic)
        return owner, existing(owner.subscriptions.get(name.lower()), f"{topic}/Subscriptions/{name}")


def _sub_queue_settings(settings: QueueSettings, forward: str | None) -> QueueSettings:
    """Return the settings of a sub-queue: its parent's lock duration and size limit, no expiry, no sessions."""
    return QueueSettings(
        settings.name,
        lock_duration=settings.lock_duration,
        max_delivery_count=2147483647,
        max_message_size_in_kilobytes=settings.max_message_size_in_kilobytes,
        forward_to=forward,
    )


def _exists(path: str) -> BusError:
    return BusError(bus_errors.ENTITY_EXISTS, f"The messaging entity '{path}' already exists.")


def _check_fixed(old: Any, new: Any) -> None:
    for name in _IMMUTABLE:
        if getattr(old, name, None) != getattr(new, name, None):
            raise BusError(
                bus_errors.INVALID_FIELD,
                f"SubCode=40000. The property '{name}' of '{old.name}' cannot be changed after creation: "
                f"it is {getattr(old, name)}.",
            )
