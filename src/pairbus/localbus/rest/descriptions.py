"""What the service's XML says of an entity: read into settings, written from entities.

Each kind of entity has one table of its elements, in the order in which the service writes them (a .NET
contract's order, which some readers rely on); reading and writing both go by that table.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.etree.ElementTree import Element

from pairbus.localbus.settings import CorrelationFilter, Counts

from .ports import Hub, Queue, Topic
from .xml_values import (
    bad,
    child,
    clean,
    element,
    quoted,
    read_boolean,
    read_duration,
    read_integer,
    text_of,
    write_boolean,
    write_duration,
    write_time,
)

COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
ARRAYS = "http://schemas.microsoft.com/2003/10/Serialization/Arrays"


@dataclass(frozen=True)
class View:
    """Who asks, and how: the host the client knows this namespace by, and the version it speaks."""

    namespace: str
    host: str
    version: str = ""

    def speaks(self, version: str) -> bool:
        """A client that names no version gets everything."""
        return not self.version or self.version >= version

    def url(self, path: str) -> str:
        query = f"?api-version={quote(self.version, safe='')}" if self.version else ""
        return f"https://{self.host}/{quote(path, safe=SAFE)}{query}"

    def forward(self, path: str) -> str:
        return f"sb://{self.host}/{path}"


SAFE = "/$~!'()*,;=:@&+"


@dataclass(frozen=True)
class Setting:
    """An element that is a field of the settings; `since` is the first API version that has it."""

    tag: str
    field: str
    read: Callable[[Element], Any]
    write: Callable[[Any, View], str]
    since: str = ""


@dataclass(frozen=True)
class Shown:
    """An element that clients only see."""

    tag: str
    show: Callable[[Any], str]
    since: str = ""
    attributes: str = ""


def _duration(tag: str, field: str) -> Setting:
    return Setting(tag, field, lambda e: read_duration(text_of(e)), lambda value, _: write_duration(value))


def _integer(tag: str, field: str, since: str = "") -> Setting:
    return Setting(tag, field, lambda e: read_integer(text_of(e)), lambda value, _: str(value), since)


def _boolean(tag: str, field: str) -> Setting:
    return Setting(tag, field, lambda e: read_boolean(text_of(e)), lambda value, _: write_boolean(value))


def _text(tag: str, field: str) -> Setting:
    return Setting(tag, field, lambda e: text_of(e) or None, lambda value, _: clean(value or ""))


def _forward(tag: str, field: str) -> Setting:
    def write(path: str | None, view: View) -> str:
        return clean(view.forward(path)) if path else ""

    return Setting(tag, field, lambda e: forward_path(text_of(e)), write)


def forward_path(target: str) -> str | None:
    """The entity that a forward names, whether by path or by a URL of any scheme."""
    target = target.strip()
    if "://" in target:
        target = unquote(urlsplit(target).path)
    return target.strip("/") or None


def _counts(prefix: str) -> Shown:
    """The prefix differs by kind of entity; JavaScript's client knows no namespaces and looks for it."""

    def show(entity: Queue | Topic) -> str:
        counts: Counts = entity.counts()
        return "".join(
            element(f"{prefix}:{tag}", str(number))
            for tag, number in (
                ("ActiveMessageCount", counts.active),
                ("DeadLetterMessageCount", counts.dead_letter),
                ("ScheduledMessageCount", counts.scheduled),
                ("TransferMessageCount", counts.transfer),
                ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
            )
        )

    return Shown("CountDetails", show, attributes=f' xmlns:{prefix}="{COUNTS}"')


def _filters(topic: Topic, correlation: bool) -> str:
    rules = (rule for subscription in topic.subscriptions.values() for rule in subscription.rules.values())
    return str(sum(isinstance(rule.settings.filter, CorrelationFilter) is correlation for rule in rules))


_RIGHTS = {
    "ClaimType": "claim_type",
    "ClaimValue": "claim_value",
    "Rights": "rights",
    "CreatedTime": "created_time",
    "ModifiedTime": "modified_time",
    "KeyName": "key_name",
    "PrimaryKey": "primary_key",
    "SecondaryKey": "secondary_key",
}


def _read_rights(rules: Element) -> tuple[dict[str, Any], ...]:
    """Keys that a client leaves out are made here, as the service makes them."""
    found = []
    for rule in rules.findall("AuthorizationRule"):
        given: dict[str, Any] = {
            "type": rule.get("type", "SharedAccessAuthorizationRule"),
            "claim_type": "SharedAccessKey",
            "claim_value": "None",
            "primary_key": base64.b64encode(secrets.token_bytes(32)).decode(),
            "secondary_key": base64.b64encode(secrets.token_bytes(32)).decode(),
        }
        for tag, name in _RIGHTS.items():
            value = child(rule, tag)
            if value is not None:
                rights = tuple(text_of(right) for right in value.findall("AccessRights"))
                given[name] = rights if tag == "Rights" else text_of(value)
        found.append(given)
    return tuple(found)


def _write_rights(rules: Iterable[dict[str, Any]], _: View) -> str:
    def parts(rule: dict[str, Any]) -> Iterable[str]:
        for tag, name in _RIGHTS.items():
            value = rule.get(name)
            if value is not None and tag == "Rights":
                yield element(tag, "".join(element("AccessRights", clean(str(right))) for right in value))
            elif value is not None:
                yield element(tag, clean(str(value)))

    return "".join(
        element("AuthorizationRule", "".join(parts(rule)), f' i:type="{quoted(str(rule.get("type", "")))}"')
        for rule in rules
    )


_AVAILABLE = Shown("EntityAvailabilityStatus", lambda _: "Available")
_TIMES = (
    Shown("CreatedAt", lambda e: write_time(e.created_at)),
    Shown("UpdatedAt", lambda e: write_time(e.updated_at)),
)
#: A queue or topic that nobody has used was never accessed; a subscription was when it was made.
_USED = Shown("AccessedAt", lambda e: write_time(e.accessed_at if e.accessed_at != e.created_at else 0))
_AUTHORIZATION = (
    Shown("IsAnonymousAccessible", lambda _: "false"),
    Setting("AuthorizationRules", "authorization_rules", _read_rights, _write_rights),
    _text("Status", "status"),
)
_LIFE = _duration("DefaultMessageTimeToLive", "default_message_time_to_live")
_IDLE = _duration("AutoDeleteOnIdle", "auto_delete_on_idle")
_WINDOW = _duration("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window")
_LARGEST = _integer("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", since="2021-05")
_TOTAL = Shown("MessageCount", lambda e: str(e.counts().total))
_SIZE = Shown("SizeInBytes", lambda e: str(e.size_in_bytes))

QUEUE: tuple[Setting | Shown, ...] = (
    _duration("LockDuration", "lock_duration"),
    _integer("MaxSizeInMegabytes", "max_size_in_megabytes"),
    _boolean("RequiresDuplicateDetection", "requires_duplicate_detection"),
    _boolean("RequiresSession", "requires_session"),
    _LIFE,
    _boolean("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration"),
    _WINDOW,
    _integer("MaxDeliveryCount", "max_delivery_count"),
    _boolean("EnableBatchedOperations", "enable_batched_operations"),
    _SIZE,
    _TOTAL,
    *_AUTHORIZATION,
    *_TIMES,
    _USED,
    Shown("SupportOrdering", lambda e: write_boolean(not e.settings.enable_partitioning)),
    _counts("d2p1"),
    _IDLE,
    _boolean("EnablePartitioning", "enable_partitioning"),
    _AVAILABLE,
    _boolean("EnableExpress", "enable_express"),
    _forward("ForwardTo", "forward_to"),
    _text("UserMetadata", "user_metadata"),
    _forward("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    _LARGEST,
)

TOPIC: tuple[Setting | Shown, ...] = (
    _LIFE,
    _integer("MaxSizeInMegabytes", "max_size_in_megabytes"),
    _boolean("RequiresDuplicateDetection", "requires_duplicate_detection"),
    _WINDOW,
    _boolean("EnableBatchedOperations", "enable_batched_operations"),
    _SIZE,
    _boolean("FilteringMessagesBeforePublishing", "filtering_messages_before_publishing"),
    *_AUTHORIZATION,
    *_TIMES,
    _USED,
    _boolean("SupportOrdering", "support_ordering"),
    _counts("d2p1"),
    Shown("SubscriptionCount", lambda e: str(len(e.subscriptions))),
    Shown("SqlFilterCount", lambda e: _filters(e, correlation=False), since="2024-05"),
    Shown("CorrelationFilterCount", lambda e: _filters(e, correlation=True), since="2024-05"),
    _IDLE,
    _boolean("EnablePartitioning", "enable_partitioning"),
    _AVAILABLE,
    Shown("EnableSubscriptionPartitioning", lambda _: "false"),
    _boolean("EnableExpress", "enable_express"),
    _text("UserMetadata", "user_metadata"),
    _LARGEST,
)

SUBSCRIPTION: tuple[Setting | Shown, ...] = (
    _duration("LockDuration", "lock_duration"),
    _boolean("RequiresSession", "requires_session"),
    _LIFE,
    _boolean("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration"),
    _boolean("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_evaluation_exceptions"),
    _TOTAL,
    _integer("MaxDeliveryCount", "max_delivery_count"),
    _boolean("EnableBatchedOperations", "enable_batched_operations"),
    _text("Status", "status"),
    _forward("ForwardTo", "forward_to"),
    *_TIMES,
    Shown("AccessedAt", lambda e: write_time(e.accessed_at)),
    _text("UserMetadata", "user_metadata"),
    _counts("d3p1"),
    _forward("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    _IDLE,
    _AVAILABLE,
)

HUB: tuple[Setting | Shown, ...] = (
    Shown("MessageRetentionInDays", lambda _: "7"),
    Shown("Status", lambda _: "Active"),
    Shown("CreatedAt", lambda e: write_time(e.created_at)),
    Shown("UpdatedAt", lambda e: write_time(e.created_at)),
    _integer("PartitionCount", "partition_count"),
    Shown(
        "PartitionIds",
        lambda e: "".join(element("d2p1:string", clean(str(partition))) for partition in e.partition_ids),
        attributes=f' xmlns:d2p1="{ARRAYS}"',
    ),
)

#: Without a value these are left out, not written empty.
_OPTIONAL = frozenset(("ForwardTo", "ForwardDeadLetteredMessagesTo", "UserMetadata"))


def read_settings(description: Element, table: Iterable[Setting | Shown], view: View) -> dict[str, Any]:
    """The settings a description names; unknown elements and those that only the service sets are skipped."""
    given: dict[str, Any] = {}
    for entry in table:
        found = child(description, entry.tag) if isinstance(entry, Setting) else None
        if found is None or not isinstance(entry, Setting):
            continue
        if entry.since and not view.speaks(entry.since):
            raise bad(f"The property {entry.tag} needs api-version {entry.since} or later.")
        try:
            value = entry.read(found)
        except (ValueError, OverflowError) as mistake:
            raise bad(f"The value of the {entry.tag} property is not valid: {mistake}.") from None
        if value is not None or entry.tag in _OPTIONAL:
            given[entry.field] = value
    return given


def write_settings(entity: Queue | Topic | Hub, table: Iterable[Setting | Shown], view: View) -> str:
    parts = []
    for entry in table:
        if entry.since and not view.speaks(entry.since):
            continue
        if isinstance(entry, Shown):
            parts.append(element(entry.tag, entry.show(entity), entry.attributes))
            continue
        content = entry.write(getattr(entity.settings, entry.field), view)
        if content or entry.tag not in _OPTIONAL:
            parts.append(element(entry.tag, content))
    return "".join(parts)
