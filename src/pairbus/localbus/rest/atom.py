"""The Atom envelopes of the management REST: entries, feeds, and what is said where nothing is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from .atom_rules import write_rule
from .descriptions import HUB, QUEUE, SUBSCRIPTION, TOPIC, View, write_settings
from .ports import Broker, Hub, Queue, Rule, Subscription, Topic
from .xml_values import XSI, bad, clean, element, parse, quoted, write_time

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"

ENTRY = "application/atom+xml;type=entry;charset=utf-8"
FEED = "application/atom+xml;type=feed;charset=utf-8"

DESCRIPTIONS = frozenset(
    (
        "QueueDescription",
        "TopicDescription",
        "SubscriptionDescription",
        "RuleDescription",
        "EventHubDescription",
    )
)


def read_description(body: bytes) -> Element:
    """The description within an entry's content; what surrounds it is the sender's affair."""
    root = parse(body)
    found = [e for e in root.iter() if e.tag in DESCRIPTIONS] if root.tag == "entry" else []
    if not found:
        raise bad("The body of the request has no entry with an entity's description.")
    return found[0]


def _describe(tag: str, content: str) -> str:
    return element(tag, content, f' xmlns="{SERVICE_BUS}" xmlns:i="{XSI}"')


@dataclass(frozen=True)
class Entry:
    """One entity in its Atom envelope."""

    path: str
    title: str
    content: str
    published: float
    updated: float
    author: str = ""

    def write(self, view: View, base: str = "") -> str:
        url = clean(view.url(self.path))
        author = element("author", element("name", clean(self.author))) if self.author else ""
        return element(
            "entry",
            element("id", url)
            + element("title", clean(self.title), ' type="text"')
            + element("published", write_time(self.published, whole=True))
            + element("updated", write_time(self.updated, whole=True))
            + author
            + f'<link rel="self" href="{quoted(view.url(self.path))}"/>'
            + element("content", self.content, ' type="application/xml"'),
            f' xml:base="{quoted(base)}"' if base else f' xmlns="{ATOM}"',
        )


def queue_entry(queue: Queue, view: View) -> Entry:
    name, content = queue.settings.name, write_settings(queue, QUEUE, view)
    description = _describe("QueueDescription", content)
    return Entry(name, name, description, queue.created_at, queue.updated_at, view.namespace)


def topic_entry(topic: Topic, view: View) -> Entry:
    name, content = topic.settings.name, write_settings(topic, TOPIC, view)
    description = _describe("TopicDescription", content)
    return Entry(name, name, description, topic.created_at, topic.updated_at, view.namespace)


def own_name(subscription: Subscription) -> str:
    return subscription.settings.name.rsplit("/", 1)[-1]


def subscription_entry(topic: Topic, subscription: Subscription, view: View) -> Entry:
    """`Subscriptions` and `Rules` are capitals in every id: the JavaScript client cuts names out of it."""
    name = own_name(subscription)
    path = f"{topic.settings.name}/Subscriptions/{name}"
    description = _describe("SubscriptionDescription", write_settings(subscription, SUBSCRIPTION, view))
    return Entry(path, name, description, subscription.created_at, subscription.updated_at)


def rule_entry(topic: Topic, subscription: Subscription, rule: Rule) -> Entry:
    name = rule.settings.name
    path = f"{topic.settings.name}/Subscriptions/{own_name(subscription)}/Rules/{name}"
    return Entry(path, name, _describe("RuleDescription", write_rule(rule)), rule.created_at, rule.created_at)


def hub_entry(hub: Hub, view: View) -> Entry:
    name = hub.settings.name
    description = _describe("EventHubDescription", write_settings(hub, HUB, view))
    return Entry(name, name, description, hub.created_at, hub.created_at, view.namespace)


def namespace_entry(broker: Broker, view: View) -> Entry:
    created = write_time(broker.created_at)
    content = (
        element("CreatedTime", created)
        + element("MessagingSKU", "Standard")
        + element("ModifiedTime", created)
        + element("Name", clean(broker.name))
        + element("NamespaceType", "Messaging")
    )
    description = _describe("NamespaceInfo", content)
    name, since = broker.name, broker.created_at
    return Entry("$namespaceinfo", name, description, since, since, name)


def write_feed(title: str, url: str, entries: Iterable[Entry], view: View, following: str = "") -> str:
    """A page of entries; Python's client takes a second link for the next page, so it must be true."""
    links = f'<link rel="self" href="{quoted(url)}"/>'
    links += f'<link rel="next" href="{quoted(following)}"/>' if following else ""
    return element(
        "feed",
        element("title", clean(title), ' type="text"')
        + element("id", clean(url))
        + element("updated", write_time(time.time(), whole=True))
        + links
        + "".join(entry.write(view, base=url) for entry in entries),
        f' xmlns="{ATOM}"',
    )


def write_nothing() -> str:
    """The service's answer to a GET where nothing is: a list of the public services, which has none."""
    return element(
        "feed",
        element("title", "Publicly Listed Services", ' type="text"')
        + element("subtitle", "This is the list of publicly-listed services currently available.", ' type="text"')
        + element("id", f"uuid:{secrets.token_hex(16)};id=1")
        + element("updated", write_time(time.time(), whole=True))
        + element("generator", "Service Bus 1.1"),
        f' xmlns="{ATOM}"',
    )
