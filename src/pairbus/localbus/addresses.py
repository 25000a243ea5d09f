"""Addresses of clients: an entity, a sub-queue, a subscription, a partition or a service node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*/?", re.IGNORECASE)
_MAX_LENGTH = 2000
_SUFFIXES = (("/$management", "management"), ("/$transfer/$deadletterqueue", "transfer"), ("/$deadletterqueue", "dead"))
_SUBSCRIPTION = re.compile(r"^(?P<topic>.+)/subscriptions/(?P<name>[^/]+)$", re.IGNORECASE)
_PARTITION = re.compile(r"^(?P<hub>.+?)(/consumergroups/(?P<group>[^/]+))?/partitions/(?P<id>[^/]+)$", re.IGNORECASE)
_GROUP = re.compile(r"^(?P<hub>.+)/consumergroups/(?P<group>[^/]+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """The parts of an address; `entity` is the path of a queue, a topic or a hub."""

    entity: str
    subscription: str | None = None
    sub_queue: str | None = None
    management: bool = False
    partition: str | None = None
    consumer_group: str | None = None

    @property
    def path(self) -> str:
        """The path that a token must cover and that errors name: the entity, or the topic's subscription."""
        if self.subscription is not None:
            return f"{self.entity}/Subscriptions/{self.subscription}"
        return self.entity

    @property
    def full_path(self) -> str:
        """The path that faults apply to: with the sub-queue, but without a hub's partition."""
        return self.path + {None: "", "dead": "/$DeadLetterQueue"}.get(self.sub_queue, "/$Transfer/$DeadLetterQueue")

    @property
    def is_part_of_hub(self) -> bool:
        return self.partition is not None or self.consumer_group is not None

    @property
    def name(self) -> str:
        """The whole path without its suffixes, taken as an entity's name."""
        name = self.path
        if self.consumer_group is not None:
            name += f"/ConsumerGroups/{self.consumer_group}"
        return name if self.partition is None else f"{name}/Partitions/{self.partition}"


class Entities(Protocol):
    """The port for looking up entities by path."""

    def queue(self, path: str) -> Any: ...
    def topic(self, path: str) -> Any: ...


def locate(text: str, entities: Entities) -> Address:
    """Parse an address in a namespace: `jobs/partitions/1` is a queue or a topic if one has that name."""
    address = parse_address(text)
    if address.is_part_of_hub:
        name = address.name
        if entities.queue(name) is not None or entities.topic(name) is not None:
            return Address(name, None, address.sub_queue, address.management)
    return address


def parse_address(text: str) -> Address:
    """Parse any address form of the SDKs, in any case; a text that is longer than any entity's path costs no time."""
    if len(text) > _MAX_LENGTH:
        return Address(text)
    path = unquote(_SCHEME.sub("", text)).strip("/")
    management, sub_queue = False, None
    stripped = True
    while stripped:
        stripped = False
        for suffix, kind in _SUFFIXES:
            if path.lower().endswith(suffix):
                path = path[: -len(suffix)]
                stripped = True
                if kind == "management":
                    management = True
                else:
                    sub_queue = kind
                break
    found = _SUBSCRIPTION.match(path)
    if found:
        return Address(found["topic"], found["name"], sub_queue, management)
    found = _PARTITION.match(path)
    if found:
        return Address(found["hub"], None, sub_queue, management, found["id"], found["group"])
    found = _GROUP.match(path)  # the audience of an event hub consumer's token
    if found:
        return Address(found["hub"], None, sub_queue, management, None, found["group"])
    return Address(path, None, sub_queue, management)


@dataclass(frozen=True)
class EntityPath:
    """A path of the management API: an entity, a subscription, a rule, or the list of one kind below them."""

    entity: str
    subscription: str = ""
    rule: str = ""
    listing: str = ""

    @classmethod
    def of(cls, path: str) -> EntityPath:
        """Parse a path from its end, because a queue may be named `a/b`."""
        parts = path.strip("/").split("/")
        words = [part.lower() for part in parts]
        if len(parts) >= 5 and words[-4] == "subscriptions" and words[-2] == "rules":
            return cls("/".join(parts[:-4]), parts[-3], parts[-1])
        if len(parts) >= 4 and words[-3] == "subscriptions" and words[-1] == "rules":
            return cls("/".join(parts[:-3]), parts[-2], listing="Rules")
        if len(parts) >= 3 and words[-2] == "subscriptions":
            return cls("/".join(parts[:-2]), parts[-1])
        if len(parts) >= 2 and words[-1] == "subscriptions":
            return cls("/".join(parts[:-1]), listing="Subscriptions")
        return cls("/".join(parts))

    def full_name(self, namespace: str) -> str:
        """Return the service's internal name of a subscription or rule."""
        names = (self.entity, self.subscription, self.rule)
        return f"{namespace}:Topic:" + "|".join(name for name in names if name)
