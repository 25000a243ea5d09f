"""Faults that can be set at run time: what the real service does on a bad day, on demand.

Pure: rules in, decisions out. A rule names an entity or all (`*`), what goes wrong, and for how long or how often.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import conditions
from .conditions import BusError

#: What can be set, and which parameters each takes.
KINDS: dict[str, tuple[str, ...]] = {
    "unavailable": ("condition",),
    "black-hole": (),
    "drop": ("after",),
    "reject": ("condition", "description", "rate"),
    "busy": ("rate",),
    "internal-error": ("rate",),
    "lock-lost": ("rate",),
    "late-settle": ("delay",),
    "lost-settle": ("rate",),
    "lost-accept": ("rate",),
    "latency": ("delay",),
    "quota": (),
    "size-limit": ("limit",),
}
_COMMON = ("entity", "kind", "count", "seconds")
_DEFAULTS: dict[str, Any] = {"rate": 1.0, "condition": None, "description": None, "after": 0, "delay": 0.0, "limit": 0}


_SETTLING = ("com.microsoft:update-disposition", "com.microsoft:renew-lock")


class FaultError(ValueError):
    """A fault that cannot be set; the text says what would be right."""


@dataclass
class Fault:
    """One rule. `count` is how often it still strikes (None: always), `until` when it ends."""

    id: int
    kind: str
    entity: str
    parameters: dict[str, Any]
    count: int | None = None
    until: float | None = None

    def applies(self, path: str, now: float) -> bool:
        if self.count == 0 or (self.until is not None and now >= self.until):
            return False
        return self.entity == "*" or covers(self.entity, path)

    def describe(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "entity": self.entity, "count": self.count, **self.parameters}


@dataclass
class Decision:
    """What happens to one operation: several faults may add up."""

    error: BusError | None = None
    swallow: bool = False
    silent: bool = False
    drop: bool = False
    latency: float = 0.0
    late: float = 0.0


@dataclass
class Faults:
    """All faults of a server. `active` is False while there are none: then nobody asks."""

    clock: Callable[[], float]
    chance: Callable[[], float] = random.random
    active: bool = False
    _faults: dict[int, Fault] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))
    _sent: dict[int, int] = field(default_factory=dict)

    # --- setting ---------------------------------------------------------------------------------------

    def add(self, request: dict[str, Any]) -> Fault:
        """Set a fault from its plain description; every mistake in it is named."""
        kind = request.get("kind")
        if kind not in KINDS:
            raise FaultError(f"unknown fault {kind!r}; there are: {', '.join(KINDS)}")
        allowed = KINDS[kind]
        unknown = set(request) - set(_COMMON) - set(allowed)
        if unknown:
            raise FaultError(
                f"the fault {kind!r} does not take {', '.join(sorted(unknown))}; it takes "
                f"{', '.join((*allowed, 'entity', 'count', 'seconds'))}"
            )
        parameters = {name: request.get(name, _DEFAULTS[name]) for name in allowed}
        _check(kind, parameters)
        seconds, count = request.get("seconds"), request.get("count")
        if seconds is not None and (not isinstance(seconds, (int, float)) or seconds <= 0):
            raise FaultError(f"seconds must be a number above 0, not {seconds!r}")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise FaultError(f"count must be a whole number from 1, not {count!r}")
        entity = request.get("entity") or "*"
        if not isinstance(entity, str):
            raise FaultError(f"entity must be a path or '*', not {entity!r}")
        fault = Fault(
            next(self._ids), kind, entity.strip("/").lower(), parameters, count,
            None if seconds is None else self.clock() + seconds,
        )  # fmt: skip
        self._faults[fault.id] = fault
        self.active = True
        return fault

    def remove(self, id: int) -> bool:
        found = self._faults.pop(id, None) is not None
        self.active = bool(self._faults)
        return found

    def clear(self) -> None:
        self._faults.clear()
        self.active = False

    def listed(self) -> list[dict[str, Any]]:
        return [fault.describe() for fault in self._faults.values()]

    # --- asking ----------------------------------------------------------------------------------------

    def _for(self, path: str, *kinds: str) -> list[Fault]:
        now = self.clock()
        return [f for f in self._faults.values() if f.kind in kinds and f.applies(path, now)]

    def _strikes(self, fault: Fault) -> bool:
        if self.chance() >= fault.parameters.get("rate", 1.0):
            return False
        if fault.count is not None:
            fault.count -= 1
        return True

    def on_attach(self, path: str) -> BusError | None:
        """Refuse a new link, as an entity that is down does."""
        if not self.active:
            return None
        for fault in self._for(path, "unavailable", "busy"):
            if self._strikes(fault):
                if fault.kind == "busy":
                    return _busy(path)
                condition = fault.parameters["condition"] or conditions.INTERNAL_ERROR
                return BusError(condition, f"The entity '{path}' is unavailable (a fault set on localbus).")
        return None

    def on_request(self, path: str, operation: str) -> BusError | None:
        """Refuse a management request as its entity would refuse the like on a link."""
        if not self.active:
            return None
        for fault in self._for(path, "busy", "internal-error", "unavailable", "lock-lost"):
            if fault.kind == "lock-lost" and operation not in _SETTLING:
                continue
            if self._strikes(fault):
                if fault.kind == "lock-lost":
                    return _lock_lost()
                return _send_error(fault, path)
        return None

    def on_send(self, path: str) -> Decision | None:
        decision = Decision(latency=self.latency(path))
        for fault in self._for(
            path, "black-hole", "reject", "busy", "internal-error", "quota", "lost-accept", "drop", "unavailable"
        ):
            if fault.kind == "black-hole":
                decision.swallow = True
            elif fault.kind == "drop":
                self._count_drop(fault, decision)
            elif self._strikes(fault):
                if fault.kind == "lost-accept":
                    decision.silent = True
                else:
                    decision.error = _send_error(fault, path)
        return decision

    def _count_drop(self, fault: Fault, decision: Decision) -> None:
        sent = self._sent.get(fault.id, 0) + 1
        self._sent[fault.id] = sent
        if sent >= max(fault.parameters["after"], 1):
            self._sent[fault.id] = 0
            if self._strikes(fault):
                decision.drop = True

    def on_settle(self, path: str) -> Decision | None:
        decision = Decision(latency=self.latency(path))
        for fault in self._for(path, "black-hole", "lock-lost", "late-settle", "lost-settle"):
            if fault.kind == "black-hole":
                decision.swallow = True
            elif self._strikes(fault):
                if fault.kind == "lock-lost":
                    decision.error = _lock_lost()
                elif fault.kind == "late-settle":
                    decision.late += fault.parameters["delay"]
                else:
                    decision.silent = True
        return decision

    def is_silent(self, path: str) -> bool:
        """Whether nothing is answered at all: bytes are taken, and that is it."""
        return self.active and bool(self._for(path, "black-hole"))

    def latency(self, path: str) -> float:
        """Seconds each direction takes."""
        if not self.active:
            return 0.0
        return float(sum(f.parameters["delay"] for f in self._for(path, "latency")))

    def size_limit(self, path: str, limit: int) -> int:
        if not self.active:
            return limit
        return min([limit, *(int(f.parameters["limit"]) for f in self._for(path, "size-limit"))])


def covers(entity: str, path: str) -> bool:
    """Whether a fault on an entity strikes a path: itself, its subscriptions, its sub-queues."""
    path = path.lower()
    return path == entity or path.startswith(entity + "/")


def _check(kind: str, parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        if name in ("delay", "rate"):
            high = 1.0 if name == "rate" else 3600.0
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= high:
                raise FaultError(f"{name} of {kind!r} must be a number from 0 to {high:g}, not {value!r}")
        elif name in ("after", "limit"):
            if not isinstance(value, int) or isinstance(value, bool) or value < (1 if name == "limit" else 0):
                raise FaultError(f"{name} of {kind!r} must be a whole number of at least 1, not {value!r}")
        elif name == "condition":
            if value is None and kind == "reject":
                raise FaultError(f"a rejection needs a condition; there are: {', '.join(conditions.STATUS)}")
            if value is not None and value not in conditions.STATUS:
                raise FaultError(f"unknown condition {value!r}; there are: {', '.join(conditions.STATUS)}")
        elif value is not None and not isinstance(value, str):
            raise FaultError(f"{name} of {kind!r} must be text, not {value!r}")


def _lock_lost() -> BusError:
    return BusError(conditions.MESSAGE_LOCK_LOST, "The lock supplied is invalid (a fault set on localbus).")


def _busy(path: str) -> BusError:
    return BusError(
        conditions.SERVER_BUSY,
        f"The request was terminated because the entity '{path}' is being throttled. Error code: 50009. Please "
        "wait 10 seconds and try again.",
    )


def _send_error(fault: Fault, path: str) -> BusError:
    if fault.kind == "busy":
        return _busy(path)
    if fault.kind == "quota":
        return BusError(
            conditions.RESOURCE_LIMIT_EXCEEDED,
            f"The maximum entity size has been reached or exceeded for the entity '{path}' (a fault set on "
            "localbus).",
        )
    if fault.kind == "reject":
        text = fault.parameters["description"] or "Rejected by a fault set on localbus."
        return BusError(fault.parameters["condition"], text)
    if fault.kind == "unavailable":
        condition = fault.parameters["condition"] or conditions.INTERNAL_ERROR
        return BusError(condition, f"The entity '{path}' is unavailable (a fault set on localbus).")
    return BusError(
        conditions.INTERNAL_ERROR,
        "The service was unable to process the request; please retry the operation (a fault set on localbus).",
    )
