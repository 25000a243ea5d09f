"""One backlog queue, drained: pass after pass over it, until it is empty, or holds only what nobody takes now.

A pass (`passes.py`) is one go at the queue on connections of its own; connections that were lost are made anew by
the next one, after a pause that grows while nothing is brought home.
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
from pairbus.domain.outcome import Held, Outcome, QueueSummary
from pairbus.options import Namespace
from pairbus.runtime.bounded_call import call_in_thread

from .completion import Reach
from .drain_pass import Pass
from .flow_control import Pace, Rate
from .in_flight import Moving
from .journal_batcher import Journal, Writer
from .lock_tracking import LONGEST_LOCK, Owed
from .relaxed_gc import seldom_collected

if TYPE_CHECKING:
    from pairbus.config.syphon_config import SyphonConfig

log = logging.getLogger("pairbus.syphon.drain")

#: How often somebody is asked whether to stop.
_STOP_SECONDS = 1.0
_BEAT_SECONDS = 0.05
#: After so many passes that brought nothing home a drain gives up; the longest pause between two of them.
_FRUITLESS = 3
#: How soon somebody who has seen nothing yet looks again.
_LOOK_AGAIN_SECONDS = 5.0
#: How many kinds of dead letters are told one by one.
_TOLD = 20
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """How one queue is drained."""

    #: How many messages may be in flight at the most (a quarter of it, where the namespaces are near), and how many
    #: bytes; of bytes at times twice as many.
    window_messages: int = 32_000
    window_bytes: int = 32 * 1024 * 1024
    #: How many messages may be held back before the pass ends.
    held_messages: int = 50_000
    #: After so many seconds no new message is taken; None: until the queue is empty.
    budget: float | None = 30.0
    #: How many messages were there: these are to be moved, and not what comes meanwhile. None: whatever comes.
    there: int | None = None
    #: Pause between two passes over the queue.
    retry_interval: float = 1.0
    #: `deliver`, or `dead-letter` for a message whose life ended in the backlog.
    late: str = "deliver"
    #: Messages a second at the most.
    max_rate: float | None = None
    #: How long a destination may leave a message unanswered.
    answer_timeout: float = 15.0
    #: Another drain of this queue was killed a moment ago, and may have left messages locked that nobody knows of:
    #: sessions wait until such locks have ended.
    after_a_kill: bool = False

    @classmethod
    def of(cls, config: SyphonConfig, **more: Any) -> DrainOptions:
        """What a configuration says of it, and what it cannot know."""
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
    return False


def drain_queue(
    *,
    primary: Namespace,
    secondary: Namespace,
    event_hubs: Namespace | None = None,
    queue_index: int,
    journal: Journal,
    options: DrainOptions | None = None,
    stop: Callable[[], bool] = never,
) -> QueueSummary:
    """Drain one backlog queue until it is empty, the budget is over, or `stop` says so.

    Nothing that it meets makes it raise: the summary says what it was. A queue with nothing left but messages whose
    destinations do not take them counts as empty, and one from which all that was there was moved (`there`).
    """
    drain = Drain(primary, secondary, event_hubs, queue_index, journal, options or DrainOptions(), stop)
    with seldom_collected():
        return asyncio.run(drain.run())


class Drain:
    """The passes over one backlog queue, and what they came to."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        event_hubs: Namespace | None,
        queue_index: int,
        journal: Journal,
        options: DrainOptions,
        stop: Callable[[], bool] = never,
    ) -> None:
        self.primary, self.secondary, self.event_hubs = primary, secondary, event_hubs
        self.queue_index = queue_index
        self.journal = journal
        self.options = options
        self.paces: dict[str, Pace] = {}
        #: What a pass may not take yet, the next one may.
        self.rate = Rate(options.max_rate, time.monotonic())
        self.received = self.delivered = self.dead_lettered = self.in_doubt = self.bytes = self.operations = 0
        #: Messages that were held back and not delivered since: sequence number → destination, reason.
        self.held: dict[int, tuple[str, str]] = {}
        #: Those of these reasons that are refusals of this syphon's own credential.
        self.locked_out: set[str] = set()
        #: Destination and reason → how many messages are dead-lettered, and what was said of the first.
        self._refused: dict[tuple[str, str], tuple[int, str]] = {}
        #: Messages that are locked by links that were lost.
        self.owed = Owed()
        #: Whether the first message is yet to come, and what lies before it may be locked.
        self.suspects = options.after_a_kill
        self.reach = None if options.there is None else Reach(options.there)
        self._stop = stop
        #: Whether it is to end, by its budget or because somebody says so; whether somebody does.
        self.stopping = self._told = False

    async def run(self) -> QueueSummary:
        begun = time.monotonic()
        ends = None if self.options.budget is None else begun + self.options.budget
        watch = asyncio.get_running_loop().create_task(self._watch(ends))
        writer = Writer(self.journal)
        error = await self._why_no_journal(writer)
        is_ready = error is None
        empty = False
        fruitless = failures = 0
        if self.suspects:  # until a message tells how long locks last, and whether there are sessions
            self.owed.suspect(asyncio.get_running_loop().time(), LONGEST_LOCK)
            self.owed.has_sessions = True
        try:
            while is_ready and not self.stopping:
                before = self.delivered + self.dead_lettered
                one = Pass(self, writer)
                try:
                    error = await one.run()
                except Exception as unforeseen:  # a mistake of ours must not take a whole batch of queues along
                    log.exception("the drain of backlog queue %d failed", self.queue_index)
                    error = f"{type(unforeseen).__name__}: {unforeseen}"
                empty = one.found_empty
                moved = self.delivered + self.dead_lettered > before
                fruitless = 0 if moved else fruitless + 1
                failures = failures + 1 if error is not None and not moved else 0
                if empty:
                    self.owed.found_empty(asyncio.get_running_loop().time())
                locked = self.owed.seconds(asyncio.get_running_loop().time())
                if one.journal_failed or (one.is_crowded and not moved) or failures >= _FRUITLESS:
                    break  # locks that failed passes leave behind are no reason to go on for ever
                if fruitless >= _FRUITLESS and not locked:
                    break
                searching = self.held and any(pace.is_searching for pace in self.paces.values())
                if empty and not locked and not searching and self._would_not_help(moved):
                    break
                pause = min(self.options.retry_interval * 2**fruitless, _LONGEST_PAUSE)
                if self.suspects:  # nothing was seen yet: locks may be shorter than the longest
                    locked = min(locked, _LOOK_AGAIN_SECONDS)
                await self._rest(max(pause, locked) if empty or not moved else pause)
            empty = empty and not self.owed.seconds(asyncio.get_running_loop().time())
            await self._leave_in_order()
        finally:
            watch.cancel()
            writer.end()
        return self._summary(time.monotonic() - begun, empty, error)

    def _would_not_help(self, moved: bool) -> bool:
        """Whether nothing is to be gained from another pass over a queue in which only what is held back is left."""
        is_done = self.reach is not None and self.reach.is_done(self.held)
        return is_done or not moved or not self.held

    async def _why_no_journal(self, writer: Writer) -> str | None:
        """What keeps rows from being written. A message that is sent and cannot be recorded is not settled and comes
        again: without this a full disk would deliver a window of messages again and again."""
        try:
            await writer.prepare()
        except Exception as error:  # whatever a store raises
            return f"the journal cannot be written, so nothing is taken from the backlog: {error}"
        return None

    def refused(self, destination: str, reason: str, said: str) -> None:
        """A message goes to the dead-letter queue: told at the end, with the first one's words."""
        if (destination, reason) in self._refused or len(self._refused) < _TOLD:
            before, words = self._refused.get((destination, reason), (0, said))
            self._refused[destination, reason] = before + 1, words

    def came(self, sequence: int, now: float, longest_lock: float) -> bool:
        """A message has come, which says something of the others; whether it is the last that was there at first."""
        if self.suspects:  # before the first of all is noted: what lies before it may be locked
            self.suspects = False
            self.owed.suspect(now, longest_lock)
            self.owed.has_sessions = False  # that is seen from now on
        self.owed.came(sequence)
        return self.reach is not None and self.reach.came(sequence)

    def left(self, message: Moving) -> None:
        """A message has left the backlog, and the backlog has confirmed it."""
        if self.held:
            self.held.pop(message.sequence, None)
        if message.outcome is Outcome.DELIVERED:
            self.delivered += 1
            self.bytes += message.size
        elif message.outcome is Outcome.DEAD_LETTERED:
            self.dead_lettered += 1

    async def _leave_in_order(self) -> None:
        """Whoever drains the queue next must find it in its order: messages of sessions that a lost link has locked are
        waited for, beyond the budget too, unless somebody wants an end."""
        ends = time.monotonic() + self.owed.seconds_in_order(asyncio.get_running_loop().time())
        while not self._told and time.monotonic() < ends:
            await asyncio.sleep(_BEAT_SECONDS)

    def _summary(self, seconds: float, empty: bool, error: str | None) -> QueueSummary:
        for (destination, reason), (count, said) in self._refused.items():
            log.warning(
                "queue %d: %d for %s go to its dead-letter queue (%s: %s)",
                self.queue_index, count, destination, reason, said,
            )  # fmt: skip
        reasons = Counter(self.held.values())
        refused = [(name, reason) for name, reason in reasons if reason in self.locked_out]
        if refused and error is None:
            name, reason = min(refused)
            error = f"this syphon is not let in, see [primary] (or [event_hubs]): {name}: {reason}"
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
            held_for=tuple(Held(name, reason, count) for (name, reason), count in sorted(reasons.items())),
            error=error,
        )

    async def _rest(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < ends:
            await asyncio.sleep(min(_BEAT_SECONDS, seconds))

    async def _watch(self, ends: float | None) -> None:
        """See when it is time to stop. Asking may mean reading a file far away, which may not answer: not on the loop,
        and the budget does not wait for it."""
        asking: asyncio.Task[bool] | None = None
        try:
            while True:
                if asking is None and self._stop is not never:
                    asking = asyncio.get_running_loop().create_task(call_in_thread(self._stop, "pairbus-stop"))
                left = _STOP_SECONDS if ends is None else max(min(ends - time.monotonic(), _STOP_SECONDS), 0.0)
                looked = time.monotonic()
                if asking is not None and (await asyncio.wait([asking], timeout=left))[0]:
                    if self._says_stop(asking):
                        self.stopping = self._told = True
                        return
                    asking = None
                await asyncio.sleep(max(looked + left - time.monotonic(), 0.0))
                if ends is not None and time.monotonic() >= ends:
                    self.stopping, ends = True, None
        finally:
            if asking is not None:
                asking.cancel()

    def _says_stop(self, answer: asyncio.Task[bool]) -> bool:
        if (error := answer.exception()) is not None:  # the budget still holds, and the next question may be answered
            log.warning("whether to stop could not be asked: %s", error)
            return False
        return answer.result()
