"""Event hubs: partitions as logs, which producers append to and consumers read from a position on."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from pairbus.domain.amqp.codec import Long, Timestamp, encode
from pairbus.localbus import bus_errors
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
        """Return the encoded event with its position as annotations, and that of the partition's `newest` if given."""
        position = {
            "x-opt-sequence-number": b"\x81" + self.sequence.to_bytes(8, "big"),
            "x-opt-offset": encode(str(self.offset)),
            "x-opt-enqueued-time": encode(Timestamp(int(self.enqueued_at * 1000))),
        }
        parts = Parts.of(self.payload).with_annotations(dict(position))
        if newest is not None:
            last_enqueued = {
                "last_enqueued_sequence_number": encode(Long(newest.sequence)),
                "last_enqueued_offset": encode(str(newest.offset)),
                "last_enqueued_time_utc": encode(Timestamp(int(newest.enqueued_at * 1000))),
                "runtime_info_retrieval_time_utc": encode(Timestamp(int(now * 1000))),
            }
            parts = parts.with_delivery_annotations(dict(last_enqueued))
        return parts.sent()


class Partition:
    """One log. Offsets count bytes and sequence numbers count events, both from 0, as in the service."""

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
        """Append an event that was read from the store."""
        self.events.append(event)
        self.next_offset = event.offset + len(event.payload)


class Hub:
    """A named set of partitions."""

    def __init__(self, id: int, settings: HubSettings, created_at: float) -> None:
        self.id = id
        self.settings = settings
        self.created_at = self.updated_at = self.accessed_at = created_at
        self.partitions = [Partition(str(n)) for n in range(settings.partition_count)]
        self._round_robin = 0

    @property
    def partition_ids(self) -> list[str]:
        return [p.id for p in self.partitions]

    def partition(self, id: str) -> Partition:
        for partition in self.partitions:
            if partition.id == id:
                return partition
        raise BusError(
            bus_errors.ARGUMENT_OUT_OF_RANGE,
            f"The specified partition '{id}' is invalid for an EventHub with {len(self.partitions)} partitions; "
            f"valid are {', '.join(self.partition_ids)}.",
        )

    def choose(self, key: str | None) -> Partition:
        """Return the partition of a key, always the same one; without a key, the partitions in turn."""
        if key is not None:
            return self.partitions[zlib.crc32(key.encode()) % len(self.partitions)]
        self._round_robin += 1
        return self.partitions[self._round_robin % len(self.partitions)]
