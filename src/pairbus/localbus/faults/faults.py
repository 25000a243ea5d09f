"""Faults that can be set at run time: failures of the real service, on demand. Pure: rules in, decisions out."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError

#: The kinds of faults, with the parameters that each takes.
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
#: Kinds that last for a time and have no occurrences to count.
_UNCOUNTED = ("black-hole", "latency", "size-limit")
#: Size of the cache of faults by path.
_CACHE_SIZE = 1000

_MAX_SECONDS = 86400.0
_REQUESTS = (
    "black-hole", "busy", "internal-error", "unavailable", "lock-lost", "late-settle", "lost-settle", "reject",
    "quota", "lost-accept",
)  # fmt: skip

_SETTLE = "com.microsoft:update-disposition"
_LOCKED = (_SETTLE, "com.microsoft:renew-lock", "com.microsoft:renew-session-lock")
_SEND = "com.microsoft:schedule-message"


#: The endings that make an entity's path that of its subscription, sub-queue or management node.
_PART = re.compile(r"(/subscriptions/[^/]+)?(/(\$transfer/)?\$deadletterqueue)?(/\$management)?")


class FaultError(ValueError):
    """A fault cannot be set; the text says what would be right."""


@dataclass
class Fault:
    """One rule. It applies `count` more times (None: without limit), and `until` that time (None: for ever)."""

    id: int
    kind: str
    entity: str
    parameters: dict[str, Any]
    count: int | None = None
    until: float | None = None

    def has_ended(self, now: float) -> bool:
        return self.count == 0 or (self.until is not None and now >= self.until)

    def applies_to(self, path: str) -> bool:
        return self.entity == "*" or covers(self.entity, path)

    def describe(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "entity": self.entity, "count": self.count, **self.parameters}


@dataclass
class Decision:
    """The effect of all faults on one operation; `latency` counts in each direction, `reply_delay` for the answer."""

    error: BusError | None = None
    swallow: bool = False
    no_reply: bool = False
    latency: float = 0.0
    reply_delay: float = 0.0


@dataclass
class Faults:
    """All faults of a server. `active` is False while there are none, so that hot paths can skip the queries."""

    clock: Callable[[], float]
    chance: Callable[[], float] = random.random
    active: bool = False
    _faults: dict[int, Fault] = field(default_factory=dict)
    _ids: Any = field(default_factory=lambda: itertools.count(1))
    _carried: dict[int, int] = field(default_factory=dict)
    #: (path, kinds) -> the faults that apply: a cache, since it is queried for every message.
    _applicable: dict[tuple[str, tuple[str, ...]], list[Fault]] = field(default_factory=dict)
    #: The decision for a settlement that only has latency, shared and never changed.
    _latency_only: Decision = field(default_factory=Decision)

    def read(self, request: dict[str, Any]) -> Fault:
        """Return a fault from its JSON description without setting it; raise `FaultError` for any mistake."""
        kind = request.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
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
        if seconds is not None and (not _is_number(seconds) or not 0 < seconds <= _MAX_SECONDS):
            raise FaultError(f"seconds must be a number above 0 and up to {_MAX_SECONDS:g}, not {seconds!r}")
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise FaultError(f"count must be a whole number from 1, not {count!r}")
        if count is not None and kind in _UNCOUNTED:
            raise FaultError(f"the fault {kind!r} lasts: it takes seconds, not count")
        entity = request.get("entity", "*")
        if not isinstance(entity, str) or not entity.strip("/"):
            raise FaultError(f"entity must be a path or '*', not {entity!r}")
        if is_drop_now(kind, parameters) and (seconds is not None or count is not None):
            raise FaultError("connections that are dropped now are dropped once: give after=N, or no count and seconds")
        until = None if seconds is None else self.clock() + seconds
        return Fault(next(self._ids), kind, entity.strip("/").lower(), parameters, count, until)

    def add(self, fault: Fault) -> Fault:
        self._faults[fault.id] = fault
        self._applicable.clear()
        self.active = True
        return fault

    def remove(self, id: int) -> bool:
        """End a fault; return False if there is none of that id."""
        found = self._faults.pop(id, None) is not None
        self._applicable.clear()
        self.active = bool(self._faults)
        return found

    def clear(self) -> None:
        self._faults.clear()
        self._applicable.clear()
        self.active = False

    def listed(self) -> list[dict[str, Any]]:
        now = self.clock()
        return [fault.describe() for fault in self._faults.values() if not fault.has_ended(now)]

    def _for(self, path: str, *kinds: str) -> list[Fault]:
        found = self._applicable.get((path, kinds))
        if found is not None and (not found or not self._any_ended(found)):
            return found
        now = self.clock()
        for id in [f.id for f in self._faults.values() if f.has_ended(now)]:
            self.remove(id)
        if len(self._applicable) >= _CACHE_SIZE:
            self._applicable.clear()
        found = self._applicable[path, kinds] = [
            f for f in self._faults.values() if f.kind in kinds and f.applies_to(path)
        ]
        return found

    def _any_ended(self, found: list[Fault]) -> bool:
        for fault in found:
            if (fault.count is not None or fault.until is not None) and fault.has_ended(self.clock()):
                return True
        return False

    def _occurs(self, fault: Fault) -> bool:
        if self.chance() >= fault.parameters.get("rate", 1.0):
            return False
        if fault.count is not None:
            fault.count -= 1
        return True

    def on_attach(self, path: str) -> BusError | None:
        """Return the error that refuses a new link; None if it is accepted."""
        if not self.active:
            return None
        for fault in self._for(path, "unavailable", "busy"):
            if self._occurs(fault):
                return _refusal(fault, path)
        return None

    def on_request(self, path: str, operation: str) -> Decision:
        """Decide on a request to an entity's `$management`, as on the same operation on a link."""
        decision = Decision(latency=self.latency(path))
        for fault in self._for(path, *_REQUESTS):
            kind = fault.kind
            if kind == "black-hole":
                decision.swallow = True
                return decision
            if (
                (kind == "lock-lost" and operation not in _LOCKED)
                or (kind in ("late-settle", "lost-settle") and operation != _SETTLE)
                or (kind in ("reject", "quota", "lost-accept") and operation != _SEND)
                or not self._occurs(fault)
            ):
                continue
            if kind == "late-settle":
                decision.reply_delay += fault.parameters["delay"]
            elif kind in ("lost-settle", "lost-accept"):
                decision.no_reply = True
            else:
                decision.error = _lock_lost("session" in operation) if kind == "lock-lost" else _refusal(fault, path)
        return decision

    def on_send(self, path: str) -> Decision:
        decision = Decision(latency=self.latency(path))
        for fault in self._for(
            path, "black-hole", "reject", "busy", "internal-error", "quota", "lost-accept", "unavailable"
        ):
            if fault.kind == "black-hole":
                decision.swallow = True
            elif self._occurs(fault):
                if fault.kind == "lost-accept":
                    decision.no_reply = True
                else:
                    decision.error = _refusal(fault, path)
        return decision

    def drops(self, path: str, messages: int) -> bool:
        """Return True if the connection that has just carried that many messages must be cut."""
        dropped = False
        for fault in self._for(path, "drop"):
            carried = self._carried.get(fault.id, 0) + messages
            self._carried[fault.id] = carried
            if carried >= fault.parameters["after"]:
                self._carried[fault.id] = 0
                dropped = self._occurs(fault) or dropped
        return dropped

    def on_settle(self, path: str, *, session: bool = False) -> Decision:
        latency = self.latency(path)
        found = self._for(path, "black-hole", "lock-lost", "late-settle", "lost-settle")
        if not found:  # the case of every message while only latency is set
            if self._latency_only.latency != latency:
                self._latency_only = Decision(latency=latency)
            return self._latency_only
        decision = Decision(latency=latency)
        for fault in found:
            if fault.kind == "black-hole":
                decision.swallow = True
            elif self._occurs(fault):
                if fault.kind == "lock-lost":
                    decision.error = _lock_lost(session)
                elif fault.kind == "late-settle":
                    decision.reply_delay += fault.parameters["delay"]
                else:
                    decision.no_reply = True
        return decision

    def is_black_hole(self, path: str) -> bool:
        """Return True if a path is in a black hole: input is read, and there are no answers."""
        return self.active and bool(self._for(path, "black-hole"))

    @property
    def connection_latency(self) -> float:
        """Seconds that are added to all bytes in each direction: the latency set for all entities (`*`)."""
        if not self.active:
            return 0.0
        return float(sum(f.parameters["delay"] for f in self._for("", "latency")))

    def latency(self, path: str) -> float:
        """Return the seconds that are added to an entity's operations in each direction."""
        if not self.active:
            return 0.0
        return float(sum(f.parameters["delay"] for f in self._for(path, "latency") if f.entity != "*"))

    def size_limit(self, path: str, limit: int) -> int:
        """Return the message size limit of a path, which is `limit` without a fault."""
        if not self.active:
            return limit
        return min([limit, *(int(f.parameters["limit"]) for f in self._for(path, "size-limit"))])


def covers(entity: str, path: str) -> bool:
    """Return True if a path is an entity's own: the entity, a subscription, a sub-queue or their `$management`."""
    entity, path = entity.lower(), path.lower()
    return path.startswith(entity) and _PART.fullmatch(path, len(entity)) is not None


def is_drop_now(kind: str, parameters: dict[str, Any]) -> bool:
    """Return True for a drop without a number of messages: it happens once, immediately."""
    return kind == "drop" and not parameters["after"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(kind: str, parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        if name in ("delay", "rate"):
            high = 1.0 if name == "rate" else _MAX_SECONDS
            if not _is_number(value) or not 0 <= value <= high:
                raise FaultError(f"{name} of {kind!r} must be a number from 0 to {high:g}, not {value!r}")
        elif name in ("after", "limit"):
            if not isinstance(value, int) or isinstance(value, bool) or value < (1 if name == "limit" else 0):
                minimum = "of at least 1" if name == "limit" else "from 0 (now)"
                raise FaultError(f"{name} of {kind!r} must be a whole number {minimum}, not {value!r}")
        elif name == "condition":
            if value is None and kind == "reject":
                raise FaultError(f"a rejection needs a condition; there are: {', '.join(bus_errors.STATUS)}")
            if value is not None and not (isinstance(value, str) and value in bus_errors.STATUS):
                raise FaultError(f"unknown condition {value!r}; there are: {', '.join(bus_errors.STATUS)}")
        elif value is not None and not isinstance(value, str):
            raise FaultError(f"{name} of {kind!r} must be text, not {value!r}")


def _lock_lost(session: bool) -> BusError:
    if session:
        return BusError(bus_errors.SESSION_LOCK_LOST, "The session lock has expired (a fault set on localbus).")
    return BusError(bus_errors.MESSAGE_LOCK_LOST, "The lock supplied is invalid (a fault set on localbus).")


def _refusal(fault: Fault, path: str) -> BusError:
    if fault.kind == "busy":
        return BusError(
            bus_errors.SERVER_BUSY,
            f"The request was terminated because the entity '{path}' is being throttled. Error code: 50009. Please "
            "wait 10 seconds and try again.",
        )
    if fault.kind == "quota":
        return BusError(
            bus_errors.RESOURCE_LIMIT_EXCEEDED,
            f"The maximum entity size has been reached or exceeded for the entity '{path}' (a fault set on localbus).",
        )
    if fault.kind == "reject":
        text = fault.parameters["description"] or "Rejected by a fault set on localbus."
        return BusError(fault.parameters["condition"], text)
    if fault.kind == "unavailable":
        condition = fault.parameters["condition"] or bus_errors.INTERNAL_ERROR
        return BusError(condition, f"The entity '{path}' is unavailable (a fault set on localbus).")
    return BusError(
        bus_errors.INTERNAL_ERROR,
        "The service was unable to process the request; please retry the operation (a fault set on localbus).",
    )
