"""Errors of a paired sender that are errors of the SDK as well, so that a handler for those catches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from pairbus.errors import PairbusError


class NotParkableError(PairbusError, MessageSizeExceededError):
    """A message that no backlog queue can hold: too large with the bytes that parking adds, or using a reserved name.

    `messages` are the ones that were not accepted anywhere, this one among them; `size`, `limit` and `added` are in
    bytes; `property_name` is the reserved name, where that is the reason.
    """

    __module__ = "pairbus.errors"  # its public place

    def __init__(
        self,
        message: str,
        messages: Sequence[Any] = (),
        *,
        size: int | None = None,
        limit: int | None = None,
        added: int | None = None,
        property_name: str | None = None,
    ) -> None:
        MessageSizeExceededError.__init__(self, message=message)
        self.messages = list(messages)
        self.size = size
        self.limit = limit
        self.added = added
        self.property_name = property_name


class BacklogUnavailableError(PairbusError, ServiceBusError):
    """The primary entity is failed over and no backlog queue took these messages: they were not accepted anywhere."""

    __module__ = "pairbus.errors"

    def __init__(self, message: str, messages: Sequence[Any], reasons: Mapping[str, str]) -> None:
        ServiceBusError.__init__(self, message)
        self.messages = list(messages)
        self.reasons = dict(reasons)
