"""Event hubs: partitions as logs. Producers append, consumers read from a position; nothing is settled."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from pairbus.domain.amqp.codec import Long, Timestamp, encode
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.settings import HubSettings

from .message import Draft
from .payload import Parts


class Event(NamedTuple):
    """One event of a partition."""

    sequence: int
    offset: int
    enqueued_at: float
    payload: bytes

    def delivered(self, newest: Event | None = None, now: float = 0.0) -> bytes:
        """The event as a consumer gets it: what was sent, with its place in the log as annotations.

        With the place of its partition's `newest` event too, for a consumer that asked to be told.
        """
        notes = {
            "x-opt-sequence-number": b"\x81" + self.sequence.to_bytes(8, "big"),
            "x-opt-offset": encode(str(self.offset)),
            "x-opt-enqueued-time": encode(Timestamp(int(self.enqueued_at * 1000))),
        }
        parts = Parts.of(self.payload).with_annotations(dict(notes))
        if newest is not None:
            told = {
                "last_enqueued_sequence_number": encode(Long(newest.sequence)),
                "last_enqueued_offset": encode(str(newest.offset)),
                "last_enqueued_time_utc": encode(Timestamp(int(newest.enqueued_at * 1000))),
                "runtime_info_retrieval_time_utc": encode(Timestamp(int(now * 1000))),
            }
            parts = parts.with_instructions(dict(told))
        return parts.sent()


class Partition:
    """One log. Offsets count bytes, sequence numbers count events, both from 0, as the service does."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.events: list[Event] = []
        self.next_offset = 0

    def append(self, draft: Draft, now: float) -> Event:
        event = Event(len(self.events), self.next_offset, now, draft.payload)
        self.events.append(event)
        self.next_offset += len(draft.payload)
        return event

    def restore(self, event: Event) -> None:
        self.events.append(event)
        self.next_offset = event.offset + len(event.payload)


class Hub:
    """A named set of partitions."""

    def __init__(self, id: int, settings: HubSettings, created_at: float) -> None:
        self.id = id
        self.settings = settings
        self.created_at = self.updated_at = self.accessed_at = created_at
        self.partitions = [Partition(str(n)) for n in range(settings.partition_count)]
        self._turn = 0

    @property
    def partition_ids(self) -> list[str]:
        return [p.id for p in self.partitions]

    def partition(self, id: str) -> Partition:
        for partition in self.partitions:
            if partition.id == id:
                return partition
        raise BusError(
            conditions.ARGUMENT_OUT_OF_RANGE,
            f"The specified partition '{id}' is invalid for an EventHub with {len(self.partitions)} partitions; "
            f"valid are {', '.join(self.partition_ids)}.",
        )

    def choose(self, key: str | None) -> Partition:
        """The partition of a key, always the same; without one, each in turn."""
        if key is not None:
            return self.partitions[zlib.crc32(key.encode()) % len(self.partitions)]
        self._turn += 1
        return self.partitions[self._turn % len(self.partitions)]
