"""Atom documents of the management REST API: entries, feeds, and the empty feed for a path without an entity."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Rule, Subscription, Topic

from .atom_rules import write_rule
from .descriptions import HUB, QUEUE, SUBSCRIPTION, TOPIC, ElementTable, RequestContext, write_settings
from .xml_values import XSI, element, escape_attribute, escape_text, invalid_request, parse_xml, write_time

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"

ENTRY = "application/atom+xml;type=entry;charset=utf-8"
FEED = "application/atom+xml;type=feed;charset=utf-8"

DESCRIPTIONS = frozenset(
    ("QueueDescription", "TopicDescription", "SubscriptionDescription", "RuleDescription", "EventHubDescription")
)


def read_description(body: bytes) -> Element:
    """Return the entity's description in an entry; the rest of the entry is ignored."""
    root = parse_xml(body)
    found = [e for e in root.iter() if e.tag in DESCRIPTIONS] if root.tag == "entry" else []
    if not found:
        raise invalid_request("The body of the request has no entry with an entity's description.")
    return found[0]


def _description(tag: str, content: str) -> str:
    return element(tag, content, f' xmlns="{SERVICE_BUS}" xmlns:i="{XSI}"')


@dataclass(frozen=True)
class Entry:
    """One entity as an Atom entry; times are seconds since 1970."""

    path: str
    title: str
    content: str
    published: float
    updated: float
    author: str = ""

    def write(self, context: RequestContext, base: str = "") -> str:
        """Return the entry's XML; `base` is the URL of the feed that it is part of."""
        url = escape_text(context.url(self.path))
        author = element("author", element("name", escape_text(self.author))) if self.author else ""
        return element(
            "entry",
            element("id", url)
            + element("title", escape_text(self.title), ' type="text"')
            + element("published", write_time(self.published, whole=True))
            + element("updated", write_time(self.updated, whole=True))
            + author
            + f'<link rel="self" href="{escape_attribute(context.url(self.path))}"/>'
            + element("content", self.content, ' type="application/xml"'),
            f' xml:base="{escape_attribute(base)}"' if base else f' xmlns="{ATOM}"',
        )


def _named_entry(tag: str, table: ElementTable, entity: Queue | Topic | Hub, context: RequestContext) -> Entry:
    name = entity.settings.name
    description = _description(tag, write_settings(entity, table, context))
    return Entry(name, name, description, entity.created_at, entity.updated_at, context.namespace)


def queue_entry(queue: Queue, context: RequestContext) -> Entry:
    return _named_entry("QueueDescription", QUEUE, queue, context)


def topic_entry(topic: Topic, context: RequestContext) -> Entry:
    return _named_entry("TopicDescription", TOPIC, topic, context)


def hub_entry(hub: Hub, context: RequestContext) -> Entry:
    return _named_entry("EventHubDescription", HUB, hub, context)


def short_name(subscription: Subscription) -> str:
    return subscription.settings.name.rsplit("/", 1)[-1]


def subscription_entry(topic: Topic, subscription: Subscription, context: RequestContext) -> Entry:
    """Return a subscription's entry; the JavaScript client looks for `Subscriptions` in its id, capitalized."""
    name = short_name(subscription)
    path = f"{topic.settings.name}/Subscriptions/{name}"
    description = _description("SubscriptionDescription", write_settings(subscription, SUBSCRIPTION, context))
    return Entry(path, name, description, subscription.created_at, subscription.updated_at)


def rule_entry(topic: Topic, subscription: Subscription, rule: Rule) -> Entry:
    name = rule.settings.name
    path = f"{topic.settings.name}/Subscriptions/{short_name(subscription)}/Rules/{name}"
    return Entry(path, name, _description("RuleDescription", write_rule(rule)), rule.created_at, rule.created_at)


def namespace_entry(broker: Broker, context: RequestContext) -> Entry:
    created = write_time(broker.created_at)
    content = (
        element("CreatedTime", created)
        + element("MessagingSKU", "Standard")
        + element("ModifiedTime", created)
        + element("Name", escape_text(broker.name))
        + element("NamespaceType", "Messaging")
    )
    description = _description("NamespaceInfo", content)
    return Entry("$namespaceinfo", broker.name, description, broker.created_at, broker.created_at, broker.name)


def write_feed(title: str, url: str, entries: Iterable[Entry], context: RequestContext, following: str = "") -> str:
    """Return a page of entries; `following` is the URL of the next page, empty for the last one."""
    links = f'<link rel="self" href="{escape_attribute(url)}"/>'
    links += f'<link rel="next" href="{escape_attribute(following)}"/>' if following else ""
    return element(
        "feed",
        element("title", escape_text(title), ' type="text"')
        + element("id", escape_text(url))
        + element("updated", write_time(time.time(), whole=True))
        + links
        + "".join(entry.write(context, base=url) for entry in entries),
        f' xmlns="{ATOM}"',
    )


def write_empty_feed() -> str:
    """Return the service's answer to a GET of a path without an entity: an empty list of public services."""
    return element(
        "feed",
        element("title", "Publicly Listed Services", ' type="text"')
        + element("subtitle", "This is the list of publicly-listed services currently available.", ' type="text"')
        + element("id", f"uuid:{secrets.token_hex(16)};id=1")
        + element("updated", write_time(time.time(), whole=True))
        + element("generator", "Service Bus 1.1"),
        f' xmlns="{ATOM}"',
    )
