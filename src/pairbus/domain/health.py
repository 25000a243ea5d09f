"""The health of one entity: what happened and when goes in, the next state comes out.

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
    """Where the messages of an entity go."""

    AVAILABLE = "available"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    UNUSABLE = "unusable"


@dataclass(frozen=True, slots=True)
class Health:
    """One entity's state, since when, when the failures began that have not been followed by a success, and when it was
    last seen well: by a send that it accepted, or by the ping that brought it back."""

    state: State = State.AVAILABLE
    since: float = 0.0
    failing_since: float | None = None
    well_at: float | None = None

    @property
    def goes_to_primary(self) -> bool:
        """Whether messages are sent to the primary."""
        return self.state is State.AVAILABLE or self.state is State.SUSPECT

    def succeeded(self, now: float) -> Health:
        """A send was accepted by the primary. A straggler of before the failover changes nothing: a ping decides."""
        if not self.goes_to_primary:
            return self
        return Health(State.AVAILABLE, self.since if self.state is State.AVAILABLE else now, None, now)

    def failed(self, now: float, interval: float, sent_at: float) -> Health:
        """A send to the primary failed in a way that counts; after `interval` seconds of that it is failed over.

        One that was sent before the entity was last seen well is a straggler, and changes nothing.
        """
        if not self.goes_to_primary or (self.well_at is not None and sent_at < self.well_at):
            return self
        began = now if self.failing_since is None else self.failing_since
        if now - began >= interval:
            return self._to(State.FAILED_OVER, now)
        return self if self.state is State.SUSPECT else replace(self._to(State.SUSPECT, now), failing_since=began)

    def ping_answered(self, now: float) -> Health:
        """The primary took a ping: sends go there again."""
        return self if self.goes_to_primary else Health(State.AVAILABLE, now, None, now)

    def ping_refused(self, now: float) -> Health:
        """A ping met a configuration error: no use in parking for what nobody will ever receive."""
        return self._to(State.UNUSABLE, now) if self.state is State.FAILED_OVER else self

    def ping_failed(self, now: float) -> Health:
        """A ping failed as in an outage: an unusable entity may have been mended, it is only down."""
        return self._to(State.FAILED_OVER, now) if self.state is State.UNUSABLE else self

    def _to(self, state: State, now: float) -> Health:
        return Health(state, now, None, self.well_at)
