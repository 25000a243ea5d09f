"""The properties of a message, as SQL filters and actions name, read and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

from .values import UNKNOWN, converted, kind_of

# The properties of .NET's BrokeredMessage, to which Microsoft's page refers, each with the type that an action may set
# it to; None: it is read-only.
SYSTEM_PROPERTIES: Final[Mapping[str, type | None]] = {
    "ContentType": str,
    "CorrelationId": str,
    "DeadLetterSource": None,
    "DeliveryCount": None,
    "EnqueuedSequenceNumber": None,
    "EnqueuedTimeUtc": None,
    "ExpiresAtUtc": None,
    "ForcePersistence": bool,
    "Label": str,
    "LockToken": None,
    "LockedUntilUtc": None,
    "MessageId": str,
    "PartitionKey": str,
    "ReplyTo": str,
    "ReplyToSessionId": str,
    "ScheduledEnqueueTimeUtc": datetime,
    "SequenceNumber": None,
    "SessionId": str,
    "Size": None,
    "State": None,
    "TimeToLive": timedelta,
    "To": str,
    "ViaPartitionKey": str,
}
# The names that today's SDKs use for some of them, and Microsoft's examples with them.
_ALIASES: Final = {
    "enqueuedtime": "EnqueuedTimeUtc",
    "expiresat": "ExpiresAtUtc",
    "lockeduntil": "LockedUntilUtc",
    "scheduledenqueuetime": "ScheduledEnqueueTimeUtc",
    "subject": "Label",
    "transactionpartitionkey": "ViaPartitionKey",
}
_SYSTEM_NAMES: Final = {name.lower(): name for name in SYSTEM_PROPERTIES} | _ALIASES


class MessageView(Protocol):
    """The properties of a message that a filter can read."""

    @property
    def system(self) -> Mapping[str, object]:
        """System properties by lower-case name without `sys.`; one that is None or missing is not set."""

    @property
    def user(self) -> Mapping[str, object]:
        """Application properties as Python values; None is a property that holds null."""


@dataclass(frozen=True)
class Edit:
    """One change that an action makes: a property to set to `value`, or to remove."""

    scope: Literal["sys", "user"]
    name: str
    value: object
    remove: bool


@dataclass(frozen=True)
class Draft:
    """A message in the middle of an action."""

    system: dict[str, object]
    user: dict[str, object]

    def apply(self, edit: Edit) -> None:
        """Make the change, so that the statements that follow see it."""
        properties = self.system if edit.scope == "sys" else self.user
        if edit.remove:
            del properties[edit.name]
        else:
            properties[edit.name] = edit.value


@dataclass(frozen=True)
class SystemProperty:
    """A system property of Service Bus; `name` is one of SYSTEM_PROPERTIES."""

    name: str

    @staticmethod
    def named(name: str) -> SystemProperty | None:
        """Return the property with this name, in any case, current or older; None if there is none."""
        spelling = _SYSTEM_NAMES.get(name.lower())
        return None if spelling is None else SystemProperty(spelling)

    def reader(self) -> Callable[[MessageView], object]:
        """Return a function that reads its value; UNKNOWN if it is not set."""
        key = self.name.lower()
        return lambda message: UNKNOWN if (value := message.system.get(key)) is None else value

    def assigned(self, draft: Draft, value: object) -> Edit | None:
        """Return the edit that sets it, None if it cannot hold the value."""
        kind = SYSTEM_PROPERTIES[self.name]
        value = UNKNOWN if kind is None else converted(value, kind)
        return None if value is UNKNOWN else Edit("sys", self.name.lower(), value, remove=False)


@dataclass(frozen=True)
class UserProperty:
    """An application property; its name means the same in any case."""

    name: str

    def reader(self) -> Callable[[MessageView], object]:
        """Return a function that reads its value; UNKNOWN if the message does not have it."""
        name = self.name
        return lambda message: user_value(message, name)

    def assigned(self, draft: Draft, value: object) -> Edit | None:
        """Return the edit that sets it, with the value converted to its type if possible; None for UNKNOWN."""
        if value is UNKNOWN:
            return None
        key = _user_key(draft.user, self.name)
        if key is None:
            return Edit("user", self.name, value, remove=False)
        kind = kind_of(draft.user[key])
        alike = UNKNOWN if kind is None else converted(value, kind)
        return Edit("user", key, value if alike is UNKNOWN else alike, remove=False)

    def removed(self, draft: Draft) -> Edit | None:
        """Return the edit that removes it, None if the message does not have it."""
        key = _user_key(draft.user, self.name)
        return None if key is None else Edit("user", key, None, remove=True)


def user_value(message: MessageView, name: str) -> object:
    """Return the value of the user property of that name; UNKNOWN if the message does not have it."""
    properties = message.user
    value = properties.get(name, UNKNOWN)
    if value is UNKNOWN and (key := _user_key(properties, name)) is not None:
        return properties[key]
    return value


def _user_key(properties: Mapping[str, object], name: str) -> str | None:
    """Return the key with this name; else the first that differs from it only in case."""
    if name in properties:
        return name
    lower = name.lower()
    for key in properties:
        if key.lower() == lower:
            return key
    return None
