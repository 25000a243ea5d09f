"""AutoDeleteOnIdle: the use of queues, subscriptions and topics, and the deletion of those without any."""

from __future__ import annotations

from collections.abc import Callable

from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic
from pairbus.localbus.settings import FOREVER

from .catalog import Catalog


class EntityUsage:
    """The open links of each entity, and the rule by which an unused entity is deleted."""

    def __init__(self, catalog: Catalog, clock: Callable[[], float]) -> None:
        self._catalog = catalog
        self._clock = clock
        self._open_links: dict[int, int] = {}

    def touch(self, target: Queue | Topic | Hub) -> None:
        """Note a request to an entity: it is not idle."""
        (self._catalog.parent(target) if isinstance(target, Queue) else target).accessed_at = self._clock()

    def attach(self, queue: Queue) -> None:
        """Note a link on a queue: its entity is in use until `detach`."""
        parent = self._catalog.parent(queue)
        self._open_links[parent.id] = self._open_links.get(parent.id, 0) + 1
        parent.accessed_at = self._clock()

    def detach(self, queue: Queue) -> None:
        parent = self._catalog.parent(queue)
        self._open_links[parent.id] = self._open_links.get(parent.id, 1) - 1
        if self._open_links[parent.id] <= 0:
            del self._open_links[parent.id]
        parent.accessed_at = self._clock()

    def delete_idle(self, now: float) -> None:
        """Delete the entities that were not used for as long as their AutoDeleteOnIdle says."""
        for queue in self._catalog.queues():
            if self._is_idle(queue, now):
                self._catalog.delete_queue(queue.path)
        for topic in self._catalog.topics():
            remaining = [topic.inbox]
            for key, subscription in list(topic.subscriptions.items()):
                if self._is_idle(subscription.queue, now):
                    self._catalog.delete_subscription(topic.settings.name, key)
                else:
                    remaining.append(subscription.queue)
            limit = topic.settings.auto_delete_on_idle
            used = max(topic.accessed_at, topic.updated_at, *(queue.accessed_at for queue in remaining))
            if limit < FOREVER and not any(map(self._in_use, remaining)) and used + limit.total_seconds() <= now:
                self._catalog.delete_topic(topic.settings.name)

    def _is_idle(self, queue: Queue, now: float) -> bool:
        limit = queue.settings.auto_delete_on_idle
        used = max(queue.accessed_at, queue.updated_at)
        return limit < FOREVER and not self._in_use(queue) and used + limit.total_seconds() <= now

    def _in_use(self, queue: Queue) -> bool:
        return bool(self._open_links.get(queue.id)) or queue.counts().scheduled > 0
