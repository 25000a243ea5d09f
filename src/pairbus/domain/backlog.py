"""Backlog queues: what they are called, what they look like, and which of them are in use."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any

#: The service's longest duration, which stands for "never".
FOREVER = "P10675199DT2H48M5.4775807S"
_FOREVER = timedelta(days=10675199)

#: The properties with which backlog queues are created, by the administration client's names; others have the
#: service's defaults.
PROPERTIES: Mapping[str, Any] = MappingProxyType(
    {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": 2147483647,
        "default_message_time_to_live": FOREVER,
        "auto_delete_on_idle": FOREVER,
        "lock_duration": timedelta(minutes=1),
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }
)

#: Properties that a backlog queue must not have, each with its effect on parked messages.
_MUST_NOT: Mapping[str, str] = MappingProxyType(
    {
        # Ids are unique for one destination, and a backlog queue holds messages for many of them.
        "requires_duplicate_detection": "must be False: the queue would drop a message that has the id of another's",
        "requires_session": "must be False: the queue would refuse parked messages, which have no session",
        "forward_to": "must not be set: the queue would forward parked messages, and no syphon would find them",
    }
)
_ACTIVE = "Active"


def namespace_name(host: str) -> str | None:
    """Return the first label of a namespace's host name; None for an address or `localhost`, which contain no name."""
    bare = host.strip().rstrip(".").lower()
    if bare.startswith("["):
        return None
    if bare.count(":") > 1:  # an IPv6 address without its brackets
        return None
    bare = bare.partition(":")[0].rstrip(".")
    try:
        ipaddress.ip_address(bare)
        return None
    except ValueError:
        label = bare.partition(".")[0]
    return None if label in ("", "localhost") else label


def queue_path(namespace: str, index: int) -> str:
    """Return the path of a backlog queue."""
    return f"{namespace}/x-servicebus-transfer/{index}"


def format_indexes(indexes: Sequence[int]) -> str:
    """Return indexes in the short form of the option `queues`, such as "0-4,7"."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def differences(found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return property → (its value, that of a queue made by pairbus) where they differ; also for the status."""
    different = {
        name: (found.get(name), wanted)
        for name, wanted in PROPERTIES.items()
        if not _same(found.get(name), wanted)
    }  # fmt: skip
    status = found.get("status") or _ACTIVE
    return different if status == _ACTIVE else {**different, "status": (status, _ACTIVE)}


def unusable(found: Mapping[str, Any]) -> str | None:
    """Return the property for which a queue cannot be a backlog queue, and the right value; None if it can be one."""
    for name, why in _MUST_NOT.items():
        if found.get(name):
            return f"its {name} is {found[name]!r} and {why}"
    return None


def _same(found: Any, wanted: Any) -> bool:
    if wanted == FOREVER:
        return found == FOREVER or (isinstance(found, timedelta) and found >= _FOREVER)
    return bool(found == wanted)


#: Not the generator that programs seed: all that do it with the same number would pick the same queue.
_CHANCE = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Absence:
    """A queue that has left the rotation: until when, and why."""

    until: float
    why: str


class Rotation:
    """The backlog queues in use: a sender picks one at random and stays with it until it leaves.

    A queue that refused a send is left alone by everybody for a while, and is then as good as any other.
    """

    def __init__(
        self, queues: Sequence[str], away_for: float, choose: Callable[[Sequence[str]], str] = _CHANCE.choice
    ) -> None:
        if not queues:
            raise ValueError("a rotation needs at least one queue")
        self._queues = tuple(queues)
        self._away_for = away_for
        self._choose = choose
        self._absences: dict[str, Absence] = {}

    @property
    def queues(self) -> tuple[str, ...]:
        return self._queues

    @property
    def is_whole(self) -> bool:
        """Whether no queue has left it, or has taken a send since it did."""
        return not self._absences

    def pick(self, current: str | None, now: float, without: Iterable[str] = ()) -> str | None:
        """The queue to use: the current one while it is in the rotation, else any other, or none if none is left."""
        tried = set(without)
        if current is not None and current not in tried and self._is_in(current, now):
            return current
        left = [queue for queue in self._queues if queue not in tried and self._is_in(queue, now)]
        return self._choose(left) if left else None

    def left(self, now: float, without: Collection[str] = ()) -> int:
        """How many queues there are to pick from."""
        if not self._absences and not without:
            return len(self._queues)
        return sum(queue not in without and self._is_in(queue, now) for queue in self._queues)

    def leave(self, queue: str, now: float, why: str) -> bool:
        """A queue refused a send; whether it was in the rotation until now."""
        was_in = self._is_in(queue, now)
        self._absences[queue] = Absence(now + self._away_for, why)
        return was_in

    def took(self, queue: str) -> bool:
        """A queue took a send; whether it had been away."""
        return self._absences.pop(queue, None) is not None

    def absence(self, queue: str, now: float) -> Absence | None:
        """Why a queue is out of the rotation, if it is."""
        absence = self._absences.get(queue)
        return absence if absence is not None and absence.until > now else None

    def reasons(self) -> dict[str, str]:
        """What each queue said that refused a send and has not taken one since."""
        return {queue: absence.why for queue, absence in self._absences.items()}

    def _is_in(self, queue: str, now: float) -> bool:
        return self.absence(queue, now) is None
