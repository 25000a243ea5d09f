"""The settings of entities and rules: frozen and validated, with the service's defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from .bus_errors import INVALID_FIELD, BusError

#: The service's value for "no limit": .NET's TimeSpan.MaxValue, which the SDKs send as P10675199DT2H48M5.4775807S.
FOREVER = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581)

#: Largest message of an entity by default (Standard tier), and the highest limit that can be set (Premium).
STANDARD_MESSAGE_KILOBYTES = 256
PREMIUM_MESSAGE_KILOBYTES = 102_400

#: Characters in the path of a queue, a topic or an event hub.
_MAX_PATH = 260
_MAX_SUBSCRIPTION = 50

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

_SETTINGS = TypeVar("_SETTINGS", bound="_Checked")


def _bad(name: str, value: object, right: str) -> BusError:
    return BusError(INVALID_FIELD, f"The value '{value}' of {name} is not allowed: {right}.")


def _between(name: str, value: timedelta, low: timedelta, high: timedelta) -> None:
    if not low <= value <= high:
        raise _bad(name, value, f"it must lie between {low} and {high}")


def check_path(path: str) -> str:
    """Return the path if the service accepts it as an entity's; raise `BusError` otherwise."""
    if not 1 <= len(path) <= _MAX_PATH:
        raise _bad("the entity path", path, f"1 to {_MAX_PATH} characters")
    if path[0] in "/." or path[-1] in "/." or "//" in path:
        raise _bad("the entity path", path, "it may not begin or end with '/' or '.', nor hold '//'")
    if not all(c.isalnum() or c in "-._~/$" for c in path):
        raise _bad("the entity path", path, "letters, digits, '.', '-', '_', '/', '~', '$' only")
    if any(part.startswith("$") for part in path.split("/")):
        raise _bad("the entity path", path, "a part that begins with '$' belongs to the service")
    return path


def check_subscription_name(name: str) -> None:
    """Raise `BusError` if a subscription's name is too long or contains a slash; `check_path` checks the rest."""
    if len(name) > _MAX_SUBSCRIPTION:
        raise BusError(INVALID_FIELD, f"The subscription name '{name}' is longer than {_MAX_SUBSCRIPTION} characters.")
    if "/" in name:
        raise BusError(INVALID_FIELD, f"The subscription name '{name}' may not hold '/'.")


@dataclass(frozen=True)
class _Checked:
    """A base of all settings; a changed copy is validated again."""

    name: str

    def changed(self: _SETTINGS, **changes: Any) -> _SETTINGS:
        return replace(self, **changes)


@dataclass(frozen=True)
class _EntitySettings(_Checked):
    """The settings that queues, subscriptions and topics share."""

    default_message_time_to_live: timedelta = FOREVER
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: timedelta = timedelta(minutes=10)
    enable_batched_operations: bool = True
    status: str = "Active"
    user_metadata: str | None = None
    auto_delete_on_idle: timedelta = FOREVER
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_in_kilobytes: int = STANDARD_MESSAGE_KILOBYTES
    #: Not shown, because they contain keys.
    authorization_rules: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_path(self.name)
        if self.status not in STATUSES:
            raise _bad("Status", self.status, "one of " + ", ".join(STATUSES))
        second, window = timedelta(seconds=1), self.duplicate_detection_history_time_window
        _between("DefaultMessageTimeToLive", self.default_message_time_to_live, second, FOREVER)
        _between("AutoDeleteOnIdle", self.auto_delete_on_idle, timedelta(minutes=5), FOREVER)
        _between("DuplicateDetectionHistoryTimeWindow", window, second, timedelta(days=7))
        if not 1 <= self.max_size_in_megabytes <= 81920:
            raise _bad("MaxSizeInMegabytes", self.max_size_in_megabytes, "1 to 81920")
        size = self.max_message_size_in_kilobytes
        if not 1 <= size <= PREMIUM_MESSAGE_KILOBYTES:
            raise _bad("MaxMessageSizeInKilobytes", size, f"1 to {PREMIUM_MESSAGE_KILOBYTES}")
        if self.enable_express and self.requires_duplicate_detection:
            raise BusError(
                INVALID_FIELD,
                "Both DelayedPersistence property and RequiresDuplicateDetection property cannot be enabled together.",
            )
        if self.user_metadata is not None and len(self.user_metadata) > 1024:
            raise _bad("UserMetadata", f"({len(self.user_metadata)} characters)", "1024 characters at most")


@dataclass(frozen=True)
class QueueSettings(_EntitySettings):
    """Settings of a queue or, under its name without the topic, of a subscription."""

    lock_duration: timedelta = timedelta(minutes=1)
    requires_session: bool = False
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None

    def __post_init__(self) -> None:
        if self.lock_duration > timedelta(minutes=5):  # worded as the service does
            raise BusError(INVALID_FIELD, "The supplied lock time exceeds the allowed maximum of '5' minutes.")
        _between("LockDuration", self.lock_duration, timedelta(seconds=1), timedelta(minutes=5))
        if not 1 <= self.max_delivery_count <= 2147483647:
            raise _bad("MaxDeliveryCount", self.max_delivery_count, "1 to 2147483647")
        super().__post_init__()


@dataclass(frozen=True)
class TopicSettings(_EntitySettings):
    """Settings of a topic."""

    filtering_messages_before_publishing: bool = False
    support_ordering: bool = True


@dataclass(frozen=True)
class HubSettings(_Checked):
    """Settings of an event hub."""

    partition_count: int = 4

    def __post_init__(self) -> None:
        check_path(self.name)
        if not 1 <= self.partition_count <= 1024:
            raise _bad("PartitionCount", self.partition_count, "1 to 1024")


#: Name -> type and text of a value in a rule as the client wrote it, so that it reads back the same.
Spelling = dict[str, tuple[str, str]]


#: The fields of a correlation filter that are texts, in the order of `$management`'s described lists.
CORRELATION_TEXTS = (
    "correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type",
)  # fmt: skip


@dataclass(frozen=True)
class CorrelationFilter:
    """A filter for equality in every field that is set; application properties compare by value."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    spelling: Spelling = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class SqlExpression:
    """The text of a SQL filter or action, with its @parameters."""

    text: str
    parameters: dict[str, Any] = field(default_factory=dict)
    spelling: Spelling = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class TrueFilter:
    """A filter that matches every message."""


@dataclass(frozen=True)
class FalseFilter:
    """A filter that matches no message."""


RuleFilter = CorrelationFilter | SqlExpression | TrueFilter | FalseFilter


@dataclass(frozen=True)
class RuleSettings(_Checked):
    """A subscription's rule: a filter, and an action that edits the copy."""

    filter: RuleFilter = TrueFilter()
    action: SqlExpression | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= 50 or any(c in "/\\?#@*" or c < " " for c in self.name):
            raise _bad("the rule name", self.name, "1 to 50 characters, none of / \\ ? # @ *")


@dataclass(frozen=True)
class Counts:
    """The numbers of messages of an entity, by state."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter


DEFAULT_RULE = "$Default"
