"""The properties of a message as SQL filters and actions name, read and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

from .values import UNKNOWN, converted, kind_of

# The properties of .NET's BrokeredMessage, which is what Microsoft's page refers to. Those that a sender may
# set have the type that they are set to; the others may only be read.
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
# What today's SDKs call some of them. Microsoft's examples say to use those names.
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
    """What a filter may know of a message."""

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
    """A property of Service Bus's own; `name` is spelt as in SYSTEM_PROPERTIES."""

    name: str

    @staticmethod
    def named(name: str) -> SystemProperty | None:
        """Return the property that `name` means, in any case, by today's name or an older one; else None."""
        spelling = _SYSTEM_NAMES.get(name.lower())
        return None if spelling is None else SystemProperty(spelling)

    def reader(self) -> Callable[[MessageView], object]:
        """Return what reads its value; UNKNOWN if it is not set."""
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
        """Return what reads its value; UNKNOWN if the message does not have it."""
        name = self.name
        return lambda message: user_value(message, name)

    def assigned(self, draft: Draft, value: object) -> Edit | None:
        """Return the edit that sets it, keeping its type if the value can be that; None for UNKNOWN."""
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
    """The key that is that name; failing that, the first that differs from it only in case."""
    if name in properties:
        return name
    lower = name.lower()
    for key in properties:
        if key.lower() == lower:
            return key
    return None
