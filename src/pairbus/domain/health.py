"""The health of one entity: a pure state machine from an event and its time to the next state.

available ──failure──▶ suspect ──failures for a whole interval──▶ failed over ──ping answers──▶ available
    ▲                     │                                        │      ▲
    └──────success────────┘                              ping refused    ping fails
                                                                   ▼      │
                                                                  unusable┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class State(Enum):
    """The state of an entity: it decides on the namespace that gets its messages."""

    AVAILABLE = "available"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one entity; times in seconds of the caller's clock."""

    state: State = State.AVAILABLE
    #: The time of the last change of state.
    since: float = 0.0
    #: The time of the first failure after the last success; None if there was none.
    failing_since: float | None = None
    #: The time of the last send that the primary accepted, or of the ping that ended a failover.
    well_at: float | None = None

    @property
    def goes_to_primary(self) -> bool:
        return self.state is State.AVAILABLE or self.state is State.SUSPECT

    def succeeded(self, now: float) -> Health:
        """Return the health after an accepted send; only a ping ends a failover, not a send from before it."""
        if not self.goes_to_primary:
            return self
        return Health(State.AVAILABLE, self.since if self.state is State.AVAILABLE else now, None, now)

    def failed(self, now: float, interval: float, sent_at: float) -> Health:
        """Return the health after an outage's failure; of a message sent before the last success it changes nothing."""
        if not self.goes_to_primary or (self.well_at is not None and sent_at < self.well_at):
            return self
        began = now if self.failing_since is None else self.failing_since
        if now - began >= interval:
            return self._to(State.FAILED_OVER, now)
        return self if self.state is State.SUSPECT else replace(self._to(State.SUSPECT, now), failing_since=began)

    def ping_answered(self, now: float) -> Health:
        """Return the health after a ping that the primary accepted: sends go there again."""
        return self if self.goes_to_primary else Health(State.AVAILABLE, now, None, now)

    def ping_refused(self, now: float) -> Health:
        """Return the health after a ping with a configuration error: parked messages could never be delivered."""
        return self._to(State.UNUSABLE, now) if self.state is State.FAILED_OVER else self

    def ping_failed(self, now: float) -> Health:
        """Return the health after a ping that failed as in an outage: an unusable entity may have been repaired."""
        return self._to(State.FAILED_OVER, now) if self.state is State.UNUSABLE else self

    def _to(self, state: State, now: float) -> Health:
        return Health(state, now, None, self.well_at)
