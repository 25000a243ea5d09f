"""The drain of one backlog queue: pass after pass, until it is empty or holds only messages that no destination takes.

Each pass has connections of its own. If they are lost, the next one opens others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pairbus.config import checks
from pairbus.config.checks import Problems
from pairbus.domain.outcome import HeldCount, Outcome, QueueSummary
from pairbus.options import Namespace
from pairbus.runtime.bounded_call import call_in_thread

from .completion import DrainGoal
from .drain_pass import DrainPass
from .flow_control import RateLimiter, SendWindow
from .in_flight import InFlightMessage
from .journal_batcher import JournalPort, JournalWriter
from .lock_tracking import LONGEST_LOCK, LockedMessages
from .pass_state import PassSchedule, PassState
from .relaxed_gc import relaxed_gc

if TYPE_CHECKING:
    from pairbus.config.syphon_config import SyphonConfig

log = logging.getLogger("pairbus.syphon.drain")

#: Seconds between two calls of `stop`, and between two checks of a pause.
_STOP_SECONDS = 1.0
_POLL_SECONDS = 0.05
#: The longest wait for locks while no message was received yet: they may be shorter than the longest.
_FIRST_LOCK_WAIT = 5.0
#: Kinds of dead letters that are logged, each by its destination and reason.
_LOGGED_KINDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """The options for the drain of one queue."""

    #: The most messages in flight (a quarter, where the namespaces are near), and their most bytes; at times twice as
    #: many bytes.
    window_messages: int = 32_000
    window_bytes: int = 32 * 1024 * 1024
    #: The number of held messages at which a pass ends.
    held_messages: int = 50_000
    #: Seconds after which no new message is received; None: drain until the queue is empty.
    budget: float | None = 30.0
    #: The number of messages to move, those that are in the queue first. None: also those that are parked meanwhile.
    goal: int | None = None
    retry_interval: float = 1.0
    #: `deliver` or `dead-letter`, for a message whose time to live ended in the backlog.
    late: str = "deliver"
    max_rate: float | None = None
    #: Seconds that a destination may leave a message unanswered.
    answer_timeout: float = 15.0
    #: True if another drain of this queue was killed a moment ago: messages of sessions wait until its locks, which
    #: are unknown, have ended.
    after_a_kill: bool = False

    @classmethod
    def of(cls, config: SyphonConfig, **more: Any) -> DrainOptions:
        return cls(
            window_messages=config.window_messages,
            window_bytes=config.window_bytes,
            retry_interval=config.retry_interval,
            late=config.late,
            **more,
        )

    def __post_init__(self) -> None:
        problems: Problems = []
        for name in ("window_messages", "window_bytes", "held_messages"):
            checks.whole(getattr(self, name), 1, None, name, problems)
        for name in ("budget", "retry_interval", "answer_timeout"):
            if name != "budget" or self.budget is not None:
                checks.duration(getattr(self, name), checks.POSITIVE, name, problems)
        object.__setattr__(self, "max_rate", checks.rate(self.max_rate, "max_rate", problems))
        checks.choice(self.late, checks.LATE, "late", problems)
        checks.raise_first(problems)


def never() -> bool:
    """Return False: the `stop` of a drain that is never stopped."""
    return False


def drain_queue(
    *,
    primary: Namespace,
    secondary: Namespace,
    event_hubs: Namespace | None = None,
    queue_index: int,
    journal: JournalPort,
    options: DrainOptions | None = None,
    stop: Callable[[], bool] = never,
) -> QueueSummary:
    """Drain one backlog queue until it is empty, its goal is moved, the budget is over, or `stop` returns True."""
    drain = Drain(primary, secondary, event_hubs, queue_index, journal, options or DrainOptions(), stop)
    with relaxed_gc():
        return asyncio.run(drain.run())


class Drain:
    """The passes over one backlog queue, with what they have in common: counts, windows, locks, the goal."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        event_hubs: Namespace | None,
        queue_index: int,
        journal: JournalPort,
        options: DrainOptions,
        stop: Callable[[], bool] = never,
    ) -> None:
        self.primary, self.secondary, self.event_hubs = primary, secondary, event_hubs
        self.queue_index = queue_index
        self.journal = journal
        self.options = options
        self.send_windows: dict[str, SendWindow] = {}
        #: One for all passes, so that a new pass does not start with a full bucket.
        self.rate_limiter = RateLimiter(options.max_rate, time.monotonic())
        self.received = self.delivered = self.dead_lettered = self.in_doubt = self.bytes = self.operations = 0
        #: Messages that were held back and not settled since: sequence number -> destination and reason.
        self.held: dict[int, tuple[str, str]] = {}
        #: Those of these reasons that refuse this syphon's credential.
        self.credential_refusals: set[str] = set()
        #: Destination and reason -> number of dead letters, and the description of the first.
        self._dead_letters: dict[tuple[str, str], tuple[int, str]] = {}
        self.locked = LockedMessages()
        #: True until the first message is received, if what lies before it may be locked by a killed drain.
        self._suspects_kill = options.after_a_kill
        self._goal = None if options.goal is None else DrainGoal(options.goal)
        self._stop = stop
        #: True once no new message is to be received; the second, only if `stop` has said so.
        self.stopping = self._stop_requested = False

    async def run(self) -> QueueSummary:
        """Run passes until another one is of no use, or not wanted; return the summary."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        deadline = None if self.options.budget is None else began + self.options.budget
        watch = loop.create_task(self._watch_for_stop(deadline))
        writer = JournalWriter(self.journal)
        try:
            if self._suspects_kill:  # the first message will tell the lock duration and if there are sessions
                self.locked.suspect_killed_drain(loop.time(), LONGEST_LOCK)
                self.locked.has_sessions = True
            last = PassState()
            error = await self._journal_error(writer)
            if error is None:
                last, error = await self._run_passes(writer)
            is_empty = last.found_empty and not self.locked.seconds_locked(loop.time())
            await self._wait_for_order()
        finally:
            watch.cancel()
            writer.end()
        return self._summary(time.monotonic() - began, is_empty, error)

    async def _journal_error(self, writer: JournalWriter) -> str | None:
        """Return the error that keeps rows from being written: without them each drain would deliver a window anew."""
        try:
            await writer.prepare()
        except Exception as error:  # whatever a store raises
            return f"the journal cannot be written, so nothing is taken from the backlog: {error}"
        return None

    async def _run_passes(self, writer: JournalWriter) -> tuple[PassState, str | None]:
        loop = asyncio.get_running_loop()
        schedule = PassSchedule(self.options.retry_interval)
        last, error = PassState(), None
        while not self.stopping:
            before = self.delivered + self.dead_lettered
            last, error = await self._run_pass(writer)
            moved = self.delivered + self.dead_lettered > before
            if last.found_empty:
                self.locked.queue_was_empty(loop.time())
            seconds_locked = self.locked.seconds_locked(loop.time())
            if not last.allows_another_pass(moved) or (last.found_empty and self._is_done(moved, seconds_locked)):
                break
            pause = schedule.pause_after(
                moved=moved,
                failed=error is not None,
                found_empty=last.found_empty,
                seconds_locked=min(seconds_locked, _FIRST_LOCK_WAIT) if self._suspects_kill else seconds_locked,
            )
            if pause is None:
                break
            await self._pause(pause)
        return last, error

    async def _run_pass(self, writer: JournalWriter) -> tuple[PassState, str | None]:
        one = DrainPass(self, writer)
        try:
            state = await one.run()
        except Exception as unforeseen:  # a defect must not take the drains of other queues along
            log.exception("a pass over backlog queue %d failed; the drain goes on with another", self.queue_index)
            return one.state, f"{type(unforeseen).__name__}: {unforeseen}"
        return state, state.error

    def _is_done(self, moved: bool, seconds_locked: float) -> bool:
        """Return True if another pass over an empty queue, or one with held messages only, would move nothing."""
        if seconds_locked or (self.held and any(window.is_isolating for window in self.send_windows.values())):
            return False
        goal_is_done = self._goal is not None and self._goal.pass_ended(self.held)
        return goal_is_done or not moved or not self.held

    # --- calls of the passes -----------------------------------------------------------------------------

    def note_received(self, sequence: int, now: float, longest_lock_seconds: float) -> bool:
        """Note a received message; return True if this pass has received all of the goal that it can get."""
        if self._suspects_kill:  # only messages before this first one may be locked
            self._suspects_kill = False
            self.locked.suspect_killed_drain(now, longest_lock_seconds)
            self.locked.has_sessions = False  # known from now on
        self.locked.received(sequence)
        return self._goal is not None and self._goal.received(sequence)

    def note_settled(self, message: InFlightMessage) -> None:
        """Count a message that has left the backlog, as the backlog has confirmed."""
        if self.held:
            self.held.pop(message.sequence, None)
        if message.outcome is Outcome.DELIVERED:
            self.delivered += 1
            self.bytes += message.size
        elif message.outcome is Outcome.DEAD_LETTERED:
            self.dead_lettered += 1

    def count_dead_letter(self, destination: str, reason: str, description: str) -> None:
        """Count a dead letter by destination and reason, for the log."""
        if (destination, reason) in self._dead_letters or len(self._dead_letters) < _LOGGED_KINDS:
            count, first = self._dead_letters.get((destination, reason), (0, description))
            self._dead_letters[destination, reason] = count + 1, first

    # --- the end -----------------------------------------------------------------------------------------

    async def _wait_for_order(self) -> None:
        """Wait, beyond the budget but not a stop, until another drain would receive every session in its order."""
        deadline = time.monotonic() + self.locked.seconds_out_of_order(asyncio.get_running_loop().time())
        while not self._stop_requested and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)

    def _summary(self, seconds: float, empty: bool, error: str | None) -> QueueSummary:
        for (destination, reason), (count, description) in self._dead_letters.items():
            log.warning(
                "queue %d: %d for %s go to its dead-letter queue (%s: %s)",
                self.queue_index, count, destination, reason, description,
            )  # fmt: skip
        reasons = Counter(self.held.values())
        refused = [(name, reason) for name, reason in reasons if reason in self.credential_refusals]
        if refused and error is None:
            name, reason = min(refused)
            error = f"the credential of [primary] (or [event_hubs]) is refused: {name}: {reason}"
        return QueueSummary(
            queue_index=self.queue_index,
            received=self.received,
            delivered=self.delivered,
            dead_lettered=self.dead_lettered,
            held=len(self.held),
            in_doubt=self.in_doubt,
            bytes=self.bytes,
            operations=self.operations,
            seconds=seconds,
            empty=empty,
            held_for=tuple(HeldCount(name, reason, count) for (name, reason), count in sorted(reasons.items())),
            error=error,
        )

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond a stop or the end of the budget."""
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            await asyncio.sleep(min(_POLL_SECONDS, seconds))

    async def _watch_for_stop(self, deadline: float | None) -> None:
        """Set `stopping` when the budget is over, or `stop` returns True."""
        # On a thread, as it may read a file on a remote disk that does not answer. The budget does not wait for it.
        asking: asyncio.Task[bool] | None = None
        try:
            while True:
                if asking is None and self._stop is not never:
                    asking = asyncio.get_running_loop().create_task(call_in_thread(self._stop, "pairbus-stop"))
                began = time.monotonic()
                seconds = _STOP_SECONDS if deadline is None else max(min(deadline - began, _STOP_SECONDS), 0.0)
                if asking is not None and (await asyncio.wait([asking], timeout=seconds))[0]:
                    if self._is_stop(asking):
                        self.stopping = self._stop_requested = True
                        return
                    asking = None
                await asyncio.sleep(max(began + seconds - time.monotonic(), 0.0))
                if deadline is not None and time.monotonic() >= deadline:
                    self.stopping, deadline = True, None
        finally:
            if asking is not None:
                asking.cancel()

    def _is_stop(self, answer: asyncio.Task[bool]) -> bool:
        if (error := answer.exception()) is not None:
            log.warning(
                "queue %d: the stop request could not be read: %s; next attempt in %g s",
                self.queue_index, error, _STOP_SECONDS,
            )  # fmt: skip
            return False
        return answer.result()
