"""Status of a pairing as frozen values for people and monitors, and the count of billable operations."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any


class Operations:
    """Billable operations, counted by kind as they happen."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, kind: str, count: int) -> None:
        with self._lock:
            self._counts[kind] += count

    def picture(self, **others: int) -> dict[str, int]:
        """Return kind -> count, with those that are counted elsewhere."""
        with self._lock:
            return {kind: count for kind, count in (self._counts + Counter(others)).items() if count}


@dataclass(frozen=True, slots=True)
class EntityStatus:
    """One destination."""

    path: str
    state: str
    since: datetime
    last_error: str | None
    last_error_at: datetime | None
    last_ping_at: datetime | None
    last_ping_error: str | None
    sent: int
    parked: int
    #: The host of the event hubs namespace, for an event hub or a partition.
    event_hubs: str | None = None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One backlog queue: its place in the rotation, and how it differs from a queue that pairbus makes."""

    path: str
    in_rotation: bool
    why: str | None
    parked: int
    differences: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class PairingStatus:
    """The state of a pairing at one moment."""

    primary: str
    secondary: str
    entities: Mapping[str, EntityStatus]
    queues: Mapping[str, QueueStatus]
    #: The number of backlog queues in the options; `queues` are those that exist, `missing` has why the others do not.
    queues_asked: int
    missing: Mapping[str, str]
    #: Billable operations by kind: send, park, ping, management.
    operations: Mapping[str, int]
    closed: bool
    #: The host of the event hubs namespace, if the pairing has one.
    event_hubs: str | None = None

    @property
    def queues_available(self) -> int:
        """The number of backlog queues that exist."""
        return len(self.queues)

    def as_dict(self) -> dict[str, Any]:
        """Return the status as `json` takes it, for a log or a health endpoint; times and durations as ISO 8601."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _duration(value: timedelta) -> str:
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"P{value.days}DT{hours}H{minutes}M{seconds}{fraction}S"
