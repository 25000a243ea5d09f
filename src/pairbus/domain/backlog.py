"""Backlog queues: their names and properties, the rotation, and the choice of a queue for each attempt to park."""

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


#: Programs that seed the usual generator with the same number would all pick the same queue.
_CHANCE = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Absence:
    """A queue's absence from the rotation: its end, and the reason."""

    until: float
    why: str


class Rotation:
    """The backlog queues in use by all senders; a queue that failed a send leaves the rotation for a while."""

    def __init__(
        self, queues: Sequence[str], away_for: float, choose: Callable[[Sequence[str]], str] = _CHANCE.choice
    ) -> None:
        if not queues:
            raise ValueError("a rotation needs at least one queue")
        self.queues = tuple(queues)
        self._away_for = away_for
        #: Picks one of several queues, at random.
        self.choose = choose
        self._absences: dict[str, Absence] = {}

    def pick(self, current: str | None, now: float, without: Iterable[str] = ()) -> str | None:
        """Return the current queue while it is in the rotation, else any other; None if there is none."""
        tried = set(without)
        if current is not None and current not in tried and self._is_in(current, now):
            return current
        left = [queue for queue in self.queues if queue not in tried and self._is_in(queue, now)]
        return self.choose(left) if left else None

    def available(self, now: float, without: Collection[str] = ()) -> int:
        """Return the number of queues that `pick` chooses from."""
        if not self._absences and not without:
            return len(self.queues)
        return sum(queue not in without and self._is_in(queue, now) for queue in self.queues)

    def leave(self, queue: str, now: float, why: str) -> bool:
        """Take a queue that failed a send out of the rotation; return True if it was in it until now."""
        was_in = self._is_in(queue, now)
        self._absences[queue] = Absence(now + self._away_for, why)
        return was_in

    def took(self, queue: str) -> bool:
        """Take a queue that accepted a send back into the rotation; return True if it had left."""
        return self._absences.pop(queue, None) is not None

    def absence(self, queue: str, now: float) -> Absence | None:
        absence = self._absences.get(queue)
        return absence if absence is not None and absence.until > now else None

    def reasons(self) -> dict[str, str]:
        """Return queue -> reason for each that failed a send and has not accepted one since."""
        return {queue: absence.why for queue, absence in self._absences.items()}

    def _is_in(self, queue: str, now: float) -> bool:
        return self.absence(queue, now) is None


#: The share of a call's time that one queue may take while others could be tried.
_SHARE = 0.5
#: The least seconds for one queue: opening a link may take as long.
LEAST_SECONDS = 2.0


@dataclass(slots=True)
class SenderQueue:
    """The backlog queue that one sender stays with to keep a session's messages together; None until it parks."""

    queue: str | None = None


class QueueChooser:
    """The choice of a queue for each attempt to park the messages of one call; pure.

    It starts with the sender's queue. One that failed is not tried again in this call, one that refused a message not
    again with that message; one that is busy is tried once more, then the others.
    """

    def __init__(self, rotation: Rotation, sender_queue: SenderQueue) -> None:
        self._rotation = rotation
        self._sender_queue = sender_queue
        #: The sender's queue as this call has last seen it: another thread may pick a new one meanwhile.
        self._seen = sender_queue.queue
        self._current = sender_queue.queue
        self._failed: set[str] = set()
        self._refusing: set[str] = set()
        self._busy: set[str] = set()

    def choose(self, now: float) -> str | None:
        """Return the queue for the next attempt; None if there is none to try."""
        if self._current == self._seen:
            self._sender_queue.queue = self._rotation.pick(self._sender_queue.queue, now) or self._sender_queue.queue
            self._current = self._seen = self._sender_queue.queue
        excluded = self._failed | self._refusing
        found = self._rotation.pick(self._current, now, excluded | (self._busy - {self._current}))
        return found or self._rotation.pick(None, now, excluded)

    def time_limit(self, now: float, left: float) -> float:
        """Return the seconds that the next attempt may take, of those that are left for the call."""
        if self._rotation.available(now, self._failed | self._refusing) <= 1:
            return left
        return max(left * _SHARE, min(LEAST_SECONDS, left))

    def accepted(self, queue: str) -> None:
        """Note that a queue has accepted messages: the sender stays with it, and every queue may take the next ones."""
        self._current = queue
        if queue != self._seen and self._sender_queue.queue == self._seen:  # else another thread has picked one for all
            self._sender_queue.queue = self._seen = queue
        self._busy.clear()
        self._refusing.clear()

    def failed(self, queue: str) -> None:
        """Note that a queue did not answer, or with an error of its own."""
        self._failed.add(queue)

    def refused(self, queue: str) -> None:
        """Note that a queue does not take the next message; it may take others."""
        self._refusing.add(queue)

    def busy(self, queue: str) -> None:
        self._current = None if queue in self._busy else queue
        self._busy.add(queue)
