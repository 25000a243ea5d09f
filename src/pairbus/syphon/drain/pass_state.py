"""The state of a pass: the reason to end it goes in, the next state comes out. And the schedule of the passes. Pure.

connecting ──▶ draining ──end(orderly reason)──▶ ending ──in flight is settled──▶ finished
    └──────────────┴────────end(any other reason)───┴───────────────────────────────▲
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pairbus.runtime.backoff import Backoff

#: Seconds that an ending pass goes on sending the messages that it has received.
_ENDING_SECONDS = 10.0
#: Passes in a row without a delivery after which a drain gives up, and the longest pause between two passes.
_MOST_FRUITLESS = 3
_LONGEST_PAUSE = 30.0


class Phase(Enum):
    """The phases of a pass, in their order."""

    CONNECTING = "connecting"
    DRAINING = "draining"
    #: No new messages are taken; those in flight are sent and settled.
    ENDING = "ending"
    #: Nothing is sent any more: what is decided is settled, the rest is given back.
    FINISHED = "finished"


class EndReason(Enum):
    """The reasons that end a pass."""

    # Orderly ones: the connections work, so that messages in flight can be sent and settled.
    STOPPED = "the budget is over, or a stop was requested"
    GOAL_REACHED = "all that the queue held at first was received"
    TOO_MANY_HELD = "too many messages are held back"
    STALLED = "only held messages are received, again and again"
    PRIMARY_LOST = "no destination can be reached any more"
    # The others end it at once.
    EMPTY = "the service has nothing more"
    NO_EMPTY_ANSWER = "the service does not say whether the queue is empty"
    UNREACHABLE = "a namespace could not be reached"
    BACKLOG_LOST = "the backlog queue's link was lost"
    UNCONFIRMED = "the backlog does not confirm settlements"
    JOURNAL_FAILED = "the journal cannot be written"

    @property
    def is_orderly(self) -> bool:
        """True if messages in flight are sent and settled before the pass is finished."""
        return self in _ORDERLY


_ORDERLY = frozenset(
    {EndReason.STOPPED, EndReason.GOAL_REACHED, EndReason.TOO_MANY_HELD, EndReason.STALLED, EndReason.PRIMARY_LOST}
)


@dataclass(frozen=True, slots=True)
class PassState:
    """The phase of one pass, the reason for its end, and its error."""

    phase: Phase = Phase.CONNECTING
    #: The first reason that was given; a journal that fails comes before any other.
    reason: EndReason | None = None
    #: The first error, or the journal's.
    error: str | None = None
    #: The time when the end began.
    ends_since: float = 0.0

    def connected(self) -> PassState:
        return replace(self, phase=Phase.DRAINING) if self.phase is Phase.CONNECTING else self

    def end(self, reason: EndReason, now: float, error: str | None = None) -> PassState:
        """Return the state after a reason to end the pass."""
        is_ending = self.reason is not None
        if reason.is_orderly and is_ending:
            return self
        phase = Phase.ENDING if reason.is_orderly else Phase.FINISHED
        since = self.ends_since if is_ending else now
        if reason is EndReason.JOURNAL_FAILED:  # comes first, as nothing may be settled then
            return PassState(phase, reason, error, since)
        # The first ones stay: later ones are mostly consequences.
        return PassState(phase, self.reason or reason, self.error or error, since)

    def finished(self) -> PassState:
        return replace(self, phase=Phase.FINISHED)

    def is_overdue(self, now: float) -> bool:
        """Return True if messages that are not sent yet must be held back, so that the pass can end."""
        return self.phase is Phase.ENDING and now - self.ends_since > _ENDING_SECONDS

    @property
    def found_empty(self) -> bool:
        """True if nothing is left of what the pass was to move, but for held messages."""
        return self.reason in (EndReason.EMPTY, EndReason.GOAL_REACHED)

    def allows_another_pass(self, moved: bool) -> bool:
        """Return False if another pass would meet the same obstacle."""
        if self.reason is EndReason.TOO_MANY_HELD:
            return moved
        return self.reason is not EndReason.JOURNAL_FAILED


class PassSchedule:
    """The decision after each pass: a pause before the next, doubled for each that moves nothing, or to give up."""

    def __init__(self, retry_interval: float) -> None:
        self._backoff = Backoff(retry_interval, _LONGEST_PAUSE)
        self._fruitless = self._failures = 0

    def pause_after(self, *, moved: bool, failed: bool, found_empty: bool, seconds_locked: float) -> float | None:
        """Return the seconds until the next pass, None to give up."""
        self._fruitless = 0 if moved else self._fruitless + 1
        self._failures = self._failures + 1 if failed and not moved else 0
        # Messages that lost links have left locked are waited for, unless passes fail.
        if self._failures >= _MOST_FRUITLESS or (self._fruitless >= _MOST_FRUITLESS and not seconds_locked):
            return None
        pause = self._backoff.pause(self._fruitless)
        return max(pause, seconds_locked) if found_empty or not moved else pause
