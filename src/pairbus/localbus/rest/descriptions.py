"""Entity descriptions in the service's XML: one table for each kind, for reading and writing, in .NET's order."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from xml.etree.ElementTree import Element

from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Subscription, Topic
from pairbus.localbus.settings import CorrelationFilter, Counts

from .xml_values import (
    child,
    element,
    escape_attribute,
    escape_text,
    invalid_request,
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
class RequestContext:
    """The namespace, the host under which the client knows it, and the API version of the request."""

    namespace: str
    host: str
    version: str = ""

    def supports(self, version: str) -> bool:
        """Return True if the request's API version is this one or later, or if it names none."""
        return not self.version or self.version >= version

    def url(self, path: str) -> str:
        query = f"?api-version={quote(self.version, safe='')}" if self.version else ""
        return f"https://{self.host}/{quote(path, safe=SAFE)}{query}"

    def forward(self, path: str) -> str:
        return f"sb://{self.host}/{path}"


SAFE = "/$~!'()*,;=:@&+"


@dataclass(frozen=True)
class SettingElement:
    """An element for a field of the settings; `since` is the first API version that has it."""

    tag: str
    field: str
    read: Callable[[Element], Any]
    write: Callable[[Any, RequestContext], str]
    since: str = ""


@dataclass(frozen=True)
class ReadOnlyElement:
    """An element that clients cannot set; `since` is the first API version that has it."""

    tag: str
    write: Callable[[Any], str]
    since: str = ""
    attributes: str = ""


#: The elements of one kind of entity.
ElementTable = tuple[SettingElement | ReadOnlyElement, ...]


def _duration(tag: str, field: str) -> SettingElement:
    return SettingElement(tag, field, lambda e: read_duration(text_of(e)), lambda value, _: write_duration(value))


def _integer(tag: str, field: str, since: str = "") -> SettingElement:
    return SettingElement(tag, field, lambda e: read_integer(text_of(e)), lambda value, _: str(value), since)


def _boolean(tag: str, field: str) -> SettingElement:
    return SettingElement(tag, field, lambda e: read_boolean(text_of(e)), lambda value, _: write_boolean(value))


def _text(tag: str, field: str) -> SettingElement:
    return SettingElement(tag, field, lambda e: text_of(e) or None, lambda value, _: escape_text(value or ""))


def _forward(tag: str, field: str) -> SettingElement:
    def write(path: str | None, context: RequestContext) -> str:
        return escape_text(context.forward(path)) if path else ""

    return SettingElement(tag, field, lambda e: forward_path(text_of(e)), write)


def forward_path(target: str) -> str | None:
    """Return the path of a forwarding destination, given as a path or as a URL of any scheme."""
    target = target.strip()
    if "://" in target:
        target = unquote(urlsplit(target).path)
    return target.strip("/") or None


def _counts(prefix: str) -> ReadOnlyElement:
    """Return the element of message counts; JavaScript's client looks for its prefix, which depends on the entity."""

    def write(entity: Queue | Topic) -> str:
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

    return ReadOnlyElement("CountDetails", write, attributes=f' xmlns:{prefix}="{COUNTS}"')


def _count_filters(topic: Topic, correlation: bool) -> str:
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
    """Return authorization rules; keys that the client leaves out are generated, as the service does."""
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


def _write_rights(rules: Iterable[dict[str, Any]], _: RequestContext) -> str:
    def parts(rule: dict[str, Any]) -> Iterable[str]:
        for tag, name in _RIGHTS.items():
            value = rule.get(name)
            if value is not None and tag == "Rights":
                yield element(tag, "".join(element("AccessRights", escape_text(str(right))) for right in value))
            elif value is not None:
                yield element(tag, escape_text(str(value)))

    return "".join(
        element("AuthorizationRule", "".join(parts(rule)), f' i:type="{escape_attribute(str(rule.get("type", "")))}"')
        for rule in rules
    )


_AVAILABLE = ReadOnlyElement("EntityAvailabilityStatus", lambda _: "Available")
_TIMES = (
    ReadOnlyElement("CreatedAt", lambda e: write_time(e.created_at)),
    ReadOnlyElement("UpdatedAt", lambda e: write_time(e.updated_at)),
)
#: The service reports a queue or topic as never accessed until it is used; a subscription since it was created.
_ACCESSED = ReadOnlyElement("AccessedAt", lambda e: write_time(e.accessed_at if e.accessed_at != e.created_at else 0))
_AUTHORIZATION = (
    ReadOnlyElement("IsAnonymousAccessible", lambda _: "false"),
    SettingElement("AuthorizationRules", "authorization_rules", _read_rights, _write_rights),
    _text("Status", "status"),
)
_TIME_TO_LIVE = _duration("DefaultMessageTimeToLive", "default_message_time_to_live")
_AUTO_DELETE = _duration("AutoDeleteOnIdle", "auto_delete_on_idle")
_DUPLICATE_WINDOW = _duration("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window")
_MAX_MESSAGE_SIZE = _integer("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", since="2021-05")
_MESSAGE_COUNT = ReadOnlyElement("MessageCount", lambda e: str(e.counts().total))
_SIZE = ReadOnlyElement("SizeInBytes", lambda e: str(e.size_in_bytes))

QUEUE: ElementTable = (
    _duration("LockDuration", "lock_duration"),
    _integer("MaxSizeInMegabytes", "max_size_in_megabytes"),
    _boolean("RequiresDuplicateDetection", "requires_duplicate_detection"),
    _boolean("RequiresSession", "requires_session"),
    _TIME_TO_LIVE,
    _boolean("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration"),
    _DUPLICATE_WINDOW,
    _integer("MaxDeliveryCount", "max_delivery_count"),
    _boolean("EnableBatchedOperations", "enable_batched_operations"),
    _SIZE,
    _MESSAGE_COUNT,
    *_AUTHORIZATION,
    *_TIMES,
    _ACCESSED,
    ReadOnlyElement("SupportOrdering", lambda e: write_boolean(not e.settings.enable_partitioning)),
    _counts("d2p1"),
    _AUTO_DELETE,
    _boolean("EnablePartitioning", "enable_partitioning"),
    _AVAILABLE,
    _boolean("EnableExpress", "enable_express"),
    _forward("ForwardTo", "forward_to"),
    _text("UserMetadata", "user_metadata"),
    _forward("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    _MAX_MESSAGE_SIZE,
)

TOPIC: ElementTable = (
    _TIME_TO_LIVE,
    _integer("MaxSizeInMegabytes", "max_size_in_megabytes"),
    _boolean("RequiresDuplicateDetection", "requires_duplicate_detection"),
    _DUPLICATE_WINDOW,
    _boolean("EnableBatchedOperations", "enable_batched_operations"),
    _SIZE,
    _boolean("FilteringMessagesBeforePublishing", "filtering_messages_before_publishing"),
    *_AUTHORIZATION,
    *_TIMES,
    _ACCESSED,
    _boolean("SupportOrdering", "support_ordering"),
    _counts("d2p1"),
    ReadOnlyElement("SubscriptionCount", lambda e: str(len(e.subscriptions))),
    ReadOnlyElement("SqlFilterCount", lambda e: _count_filters(e, correlation=False), since="2024-05"),
    ReadOnlyElement("CorrelationFilterCount", lambda e: _count_filters(e, correlation=True), since="2024-05"),
    _AUTO_DELETE,
    _boolean("EnablePartitioning", "enable_partitioning"),
    _AVAILABLE,
    ReadOnlyElement("EnableSubscriptionPartitioning", lambda _: "false"),
    _boolean("EnableExpress", "enable_express"),
    _text("UserMetadata", "user_metadata"),
    _MAX_MESSAGE_SIZE,
)

SUBSCRIPTION: ElementTable = (
    _duration("LockDuration", "lock_duration"),
    _boolean("RequiresSession", "requires_session"),
    _TIME_TO_LIVE,
    _boolean("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration"),
    _boolean("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_evaluation_exceptions"),
    _MESSAGE_COUNT,
    _integer("MaxDeliveryCount", "max_delivery_count"),
    _boolean("EnableBatchedOperations", "enable_batched_operations"),
    _text("Status", "status"),
    _forward("ForwardTo", "forward_to"),
    *_TIMES,
    ReadOnlyElement("AccessedAt", lambda e: write_time(e.accessed_at)),
    _text("UserMetadata", "user_metadata"),
    _counts("d3p1"),
    _forward("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to"),
    _AUTO_DELETE,
    _AVAILABLE,
)

HUB: ElementTable = (
    ReadOnlyElement("MessageRetentionInDays", lambda _: "7"),
    ReadOnlyElement("Status", lambda _: "Active"),
    ReadOnlyElement("CreatedAt", lambda e: write_time(e.created_at)),
    ReadOnlyElement("UpdatedAt", lambda e: write_time(e.created_at)),
    _integer("PartitionCount", "partition_count"),
    ReadOnlyElement(
        "PartitionIds",
        lambda e: "".join(element("d2p1:string", escape_text(str(partition))) for partition in e.partition_ids),
        attributes=f' xmlns:d2p1="{ARRAYS}"',
    ),
)

#: Elements that are left out, not written empty, if they have no value.
_OPTIONAL = frozenset(("ForwardTo", "ForwardDeadLetteredMessagesTo", "UserMetadata"))


def read_settings(description: Element, table: ElementTable, context: RequestContext) -> dict[str, Any]:
    """Return the settings in a description; unknown and read-only elements are skipped."""
    given: dict[str, Any] = {}
    for each in table:
        found = child(description, each.tag) if isinstance(each, SettingElement) else None
        if found is None or not isinstance(each, SettingElement):
            continue
        if each.since and not context.supports(each.since):
            raise invalid_request(f"The property {each.tag} needs api-version {each.since} or later.")
        try:
            value = each.read(found)
        except (ValueError, OverflowError) as error:
            raise invalid_request(f"The value of the {each.tag} property is not valid: {error}.") from None
        if value is not None or each.tag in _OPTIONAL:
            given[each.field] = value
    return given


def write_settings(
    entity: Queue | Topic | Subscription | Hub,
    table: Iterable[SettingElement | ReadOnlyElement],
    context: RequestContext,
) -> str:
    """Return the elements of an entity that the request's API version has."""
    parts = []
    for each in table:
        if each.since and not context.supports(each.since):
            continue
        if isinstance(each, ReadOnlyElement):
            parts.append(element(each.tag, each.write(entity), each.attributes))
            continue
        content = each.write(getattr(entity.settings, each.field), context)
        if content or each.tag not in _OPTIONAL:
            parts.append(element(each.tag, content))
    return "".join(parts)
