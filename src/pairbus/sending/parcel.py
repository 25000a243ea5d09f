"""Messages on their way to a backlog queue: encoded, parked and measured."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus.domain import envelope

from .errors import NotParkableError
from .sdk.batches import BATCH_OVERHEAD, MESSAGE_OVERHEAD, raw_batch
from .sdk.encoding import SpanAttributes, encoded_members, members, single_messages
from .sdk.prepared_send import PreparedSend


@dataclass(frozen=True, slots=True)
class Parkable:
    """The answer of `can_park`: true if the message could be parked; otherwise `why` says why not. Sizes in bytes."""

    fits: bool
    size: int
    limit: int
    added: int
    why: str | None = None

    def __bool__(self) -> bool:
        return self.fits


class Ids:
    """An endless iterator of ids for messages without one. No two are the same, wherever they were made."""

    def __init__(self) -> None:
        self._prefix = os.urandom(10).hex()
        self._numbers = itertools.count()

    def __next__(self) -> str:
        return f"{self._prefix}{next(self._numbers):012x}"


class Parcel:
    """One call's messages on their way to the backlog; `NotParkableError` if one could not be restored."""

    def __init__(
        self,
        path: str,
        message: Any,
        namespace: str | None = None,
        traced: SpanAttributes | None = None,
        ids: Ids | None = None,
    ) -> None:
        ids = ids or Ids()
        self.messages = members(message)
        self._prepared: PreparedSend | None = None
        if type(message) is ServiceBusMessage:
            self._sent: list[Any] = [message]
        elif isinstance(message, PreparedSend):
            self._prepared, self._sent = message, []
        else:
            self._sent = single_messages(message)
        self.originals = encoded_members(message, traced)
        #: The number of messages, from the first on, that a backlog queue has accepted.
        self.done = 0
        self.parked: list[bytes] = []
        for raw in self.originals:
            try:
                self.parked.append(envelope.park(raw, path, next(ids), namespace))
            except envelope.NotRestorableError as taken:
                raise NotParkableError(
                    f"A message cannot be parked, since it could not be restored: its {taken.property!r} "
                    f"{taken.reason}.",
                    self.messages,
                    property_name=taken.property,
                ) from None

    @property
    def size(self) -> int:
        """Bytes of one batch for the primary with all messages that are not parked yet."""
        rest = self.originals[self.done :]
        return sum(map(len, rest)) + MESSAGE_OVERHEAD * len(rest) + BATCH_OVERHEAD

    @property
    def rest(self) -> list[Any]:
        """The caller's messages that are not parked yet."""
        return self.messages[self.done :]

    def unparked(self) -> Any:
        """Return what is not parked yet, as first encoded: the caller may have changed the objects since."""
        if self._prepared is not None:
            return self._prepared.rest(self.done)
        return raw_batch(self.originals[self.done :], self._sent[self.done :])

    def check(self, index: int, limit: int) -> Parkable:
        """Compare the size of one message with a backlog queue's limit."""
        size = len(self.parked[index]) + MESSAGE_OVERHEAD + BATCH_OVERHEAD
        added = size - len(self.originals[index])
        if size <= limit:
            return Parkable(True, size, limit, added)
        why = (
            f"A message of {size - added:,} bytes cannot be parked: with the {added:,} bytes that parking adds it has "
            f"{size:,}, and a backlog queue takes {limit:,}."
        )
        return Parkable(False, size, limit, added, why)

    def refuse_too_large(self, limit: int) -> None:
        """Raise NotParkableError if a message that is not parked yet is larger than the limit."""
        room = limit - MESSAGE_OVERHEAD - BATCH_OVERHEAD
        if max(map(len, self.parked), default=0) <= room:
            return
        for index in range(self.done, len(self.parked)):
            found = self.check(index, limit)
            if not found:
                assert found.why is not None
                raise NotParkableError(found.why, self.rest, size=found.size, limit=limit, added=found.added)

    def part(self, limit: int, most: int) -> list[bytes]:
        """Return the next messages that fit one batch: at least one, at most `most`."""
        if len(self.parked) == 1:
            return self.parked
        room, end = limit - BATCH_OVERHEAD, self.done
        while end < min(len(self.parked), self.done + most) and len(self.parked[end]) + MESSAGE_OVERHEAD <= room:
            room -= len(self.parked[end]) + MESSAGE_OVERHEAD
            end += 1
        return self.parked[self.done : max(end, self.done + 1)]


def examine(
    path: str, message: Any, namespace: str | None, limit: int, traced: SpanAttributes | None = None
) -> Parkable:
    """Return whether a message could be parked; of several, the answer for the largest."""
    try:
        parcel = Parcel(path, message, namespace, traced)
    except NotParkableError as error:
        return Parkable(False, 0, limit, 0, str(error))
    found = [parcel.check(index, limit) for index in range(len(parcel.parked))]
    return max(found, key=lambda each: each.size, default=Parkable(True, 0, limit, 0))
