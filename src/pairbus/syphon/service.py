"""The syphon without Spark: one process that drains all backlog queues of a pairing at once, on one event loop.

Its rows stay in the journals, where a Spark job with the same journal folder finds and folds them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pairbus.domain.outcome import Head, HeldCount, QueueSummary, held_over
from pairbus.errors import PairbusError
from pairbus.options import Namespace, refuse_same
from pairbus.runtime import bounded_call
from pairbus.runtime.backoff import Backoff
from pairbus.runtime.bounded_call import call_in_thread, call_with_deadline
from pairbus.runtime.redaction import describe_error

from .backlog_monitor import BacklogMonitor
from .depths import DepthQuery, Depths, log_delivery_limits, log_warnings, none_exists_text
from .drain.completion import CompletionTracker
from .drain.drain import Drain, DrainOptions
from .drain.lock_tracking import LONGEST_LOCK
from .journal.folding import JournalFolder
from .journal.journal import close_journal, open_journal
from .journal.storage import join

if TYPE_CHECKING:
    from pairbus.config.syphon_config import Namespaces

log = logging.getLogger("pairbus.syphon")

#: Rounds that may empty a queue into which others keep parking.
_EMPTIED_ENOUGH = 4
#: The longest pause after rounds that moved nothing.
_LONGEST_PAUSE = 120.0
#: Pause before the next round of `once` while another receiver has messages locked.
_LOCKED_PAUSE_SECONDS = 5.0
#: The longest round of `forever`, so that no queue waits until another's million messages are drained.
_ROUND_SECONDS = 60.0

#: Counts of a queue that are part of a round's text, and those that two rounds add up.
_SHOWN = ("delivered", "dead_lettered", "held", "in_doubt")
_SUMMED = ("received", "delivered", "dead_lettered", "in_doubt", "bytes", "operations", "seconds")


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round over the queues."""

    queues: tuple[QueueSummary, ...]
    #: Queues that were asked for and do not exist.
    missing: tuple[int, ...] = ()
    #: Queue index -> depth of queues with messages that were not asked for.
    left_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        """The number of messages that left the backlog."""
        return sum(each.delivered + each.dead_lettered for each in self.queues)

    @property
    def is_empty(self) -> bool:
        """True if the queues hold nothing but held messages."""
        return all(each.empty for each in self.queues)

    def with_errors(self, errors: Mapping[int, str]) -> Round:
        """Return this round with these queues marked as not empty, each with its error."""
        queues = (
            replace(each, empty=False, error=errors[each.queue_index]) if each.queue_index in errors else each
            for each in self.queues
        )
        return replace(self, queues=tuple(queues))

    def followed_by(self, other: Round) -> Round:
        """Return both rounds as one: counts are added up, the state is that of the later round."""
        before = {each.queue_index: each for each in self.queues}
        queues = (_sum(before.get(each.queue_index), each) for each in other.queues)
        return replace(other, queues=tuple(queues))

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(f"queue {each.queue_index}: {each.error}" for each in self.queues if each.error)

    @property
    def held(self) -> tuple[HeldCount, ...]:
        return held_over(self.queues)

    def __str__(self) -> str:
        totals = {name: sum(getattr(each, name) for each in self.queues) for name in _SHOWN}
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in totals.items() if count)
        return f"{counts or 'nothing was moved'} in {max((each.seconds for each in self.queues), default=0.0):.1f} s"


def _sum(before: QueueSummary | None, after: QueueSummary) -> QueueSummary:
    if before is None:
        return after
    return replace(after, **{name: getattr(before, name) + getattr(after, name) for name in _SUMMED})


class Service:
    """A syphon in this process. Its methods block, so it needs a thread or a process of its own."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        queues: Iterable[int],
        journal: str,
        *,
        event_hubs: Namespace | None = None,
        options: DrainOptions | None = None,
        idle_poll_interval: float = 120.0,
        on_round: Callable[[Round], object] = lambda done: None,
        on_query: Callable[[int], object] = lambda operations: None,
        resolve: Callable[[], Namespaces] | None = None,
    ) -> None:
        #: Looks up the namespaces anew, after a failure that a renewed key may end.
        self._resolve = resolve
        self._primary, self._secondary, self._event_hubs = primary, secondary, event_hubs
        self._queues = tuple(queues)
        self._journal = journal
        self._options = options or DrainOptions()
        self._idle_poll_interval = idle_poll_interval
        self._on_round = on_round
        self._monitor = BacklogMonitor(
            DepthQuery(primary.name, self._queues), self._renewed_secondary, secondary=secondary, on_query=on_query
        )
        self._run = uuid.uuid4().hex
        self._folder = JournalFolder(journal, folds=False)
        self._begun = False
        #: End (monotonic) of the time in which a syphon that was killed may have messages locked.
        self._locked_until = 0.0
        self._rounds = 0
        #: Why the run could not be marked as finished in the journal folder; None if it could. Every delivered message
        #: has its row all the same: other syphons fold the rows once the run has been silent for an hour.
        self.journal_error: str | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Receive no more; `once` and `forever` return when the messages in flight are settled."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """End the current pause of `forever`: there may be messages to drain."""
        self._wake.set()

    def begin(self) -> None:
        """Register this run in the journal folder; raises OSError, before any message is taken, if it cannot."""
        if not self._begun:
            call_with_deadline(
                lambda: self._folder.begin(self._run, None), bounded_call.JOURNAL_SECONDS, "pairbus-journal-begin"
            )
            if self._folder.follows_killed_run:
                self._locked_until = time.monotonic() + LONGEST_LOCK
                log.info(
                    "a syphon with journal folder %s was killed a moment ago and may have messages locked; messages of "
                    "sessions wait until those locks end, %.0f s at most",
                    self._folder.location,
                    LONGEST_LOCK,
                )
            self._begun = True

    def once(self) -> Round:
        """Drain what is parked now; `PairbusError` if the secondary does not answer or has no such queue."""
        self.begin()
        try:
            depths = self._depths()
            log_delivery_limits(depths, self._primary.name)
            if depths.none_exists:
                raise PairbusError(none_exists_text(depths, self._secondary, self._primary.name))
            options = replace(self._options, budget=None)
            done = last = self._round(depths, options, only_these=True)
            tracker = CompletionTracker(by_count=False, emptied_enough=_EMPTIED_ENOUGH)
            # A receiver finds nothing in a queue whose messages another has locked: only the depth shows them.
            while done.is_empty and not done.errors and not self._stop.is_set():
                before, depths = depths, self._depths()
                if tracker.observe(last.queues, before.by_index, depths.by_index):
                    return done.with_errors(tracker.unfinished)
                self._stop.wait(_LOCKED_PAUSE_SECONDS)
                last = self._round(depths, options, only_these=True)
                done = done.followed_by(last)
            return done
        finally:
            self._finish()

    def forever(self) -> None:
        """Drain until `stop`. A failure, of the secondary or of a queue, is logged and tried again later."""
        self.begin()
        retry = Backoff(self._options.retry_interval, _LONGEST_PAUSE)
        fruitless = 0  # depth queries that failed and rounds that moved nothing, in a row
        warned: tuple[object, ...] | None = None
        try:
            while not self._stop.is_set():
                depths = self._monitor.query_or_warn(f"next attempt in {retry.pause(fruitless + 1):.0f} s")
                if depths is None:
                    fruitless += 1
                    self._pause(retry.pause(fruitless))
                    continue
                warnings = depths.missing, depths.left_out.keys(), depths.delivery_limits
                if warnings != warned:
                    log_warnings(depths, self._secondary, self._primary.name)
                    warned = warnings
                pause = self._idle_poll_interval
                if depths.total:
                    done = self._round(depths, replace(self._options, budget=_ROUND_SECONDS))
                    fruitless = 0 if done.moved else fruitless + 1
                    if fruitless and done.errors:
                        self._monitor.renew()
                    pause = retry.pause(fruitless)
                self._pause(pause)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Mark the run as finished; an error is kept, because raising it would hide an earlier one."""
        try:
            call_with_deadline(self._folder.finish, bounded_call.JOURNAL_SECONDS, "pairbus-journal-end")
        except Exception as error:  # storage raises errors of its own kinds
            self.journal_error = f"the journal {self._folder.location} could not be ended in order: {error}"

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _renewed_secondary(self) -> Namespace:
        """Resolve all namespaces anew, and return the secondary; keep those there are if one cannot be resolved."""
        if self._resolve is not None:
            try:
                self._primary, self._secondary, self._event_hubs = self._resolve()
            except PairbusError as error:  # a renewal may be under way
                log.warning("namespaces cannot be resolved anew: %s; the previous credentials are kept", error)
            if self._primary.name != self._monitor.primary_name:
                self._monitor.change_query(DepthQuery(self._primary.name, self._queues))
        return self._secondary

    def _depths(self) -> Depths:
        try:
            return self._monitor.query()
        except Exception as error:  # credentials, the SDK and the network raise many kinds
            raise PairbusError(f"[secondary]: {self._monitor.failure(error)}") from error

    def _round(self, depths: Depths, options: DrainOptions, *, only_these: bool = False) -> Round:
        """Drain the queues that have messages; with `only_these`, no further than those that are there now."""
        busy = {index: depth for index, depth in depths.by_index.items() if depth}
        if options.max_rate is not None and busy:
            options = replace(options, max_rate=options.max_rate / len(busy))
        options = replace(options, after_a_kill=time.monotonic() < self._locked_until)
        self._rounds += 1
        queues = {index: replace(options, goal=depth if only_these else None) for index, depth in busy.items()}
        summaries = self._drain_all(queues) if busy else []
        summaries += [QueueSummary(index, empty=True) for index, depth in depths.by_index.items() if depth == 0]
        summaries.sort(key=lambda each: each.queue_index)
        done = Round(tuple(summaries), depths.missing, depths.left_out)
        for error in done.errors:
            log.warning("%s", error)
        if busy:
            log.info("round %d: %s", self._rounds, done)
        self._on_round(done)
        return done

    def _drain_all(self, queues: Mapping[int, DrainOptions]) -> list[QueueSummary]:
        """Drain queues at the same time, on an event loop of their own; the summaries include failed queues."""
        found: dict[int, QueueSummary] = {}
        draining = self._gather(queues, found)
        try:
            asyncio.run(draining)
        except (OSError, RuntimeError) as error:  # no more files or threads for this process
            if "event loop" in str(error):
                raise  # called from within a running event loop
            log.warning("round %d was cut short: %s", self._rounds, describe_error(error), exc_info=True)
            for index in queues.keys() - found.keys():
                found[index] = QueueSummary(index, error=describe_error(error))
        finally:
            draining.close()  # without a loop it never started, and Python would warn
        return list(found.values())

    async def _gather(self, queues: Mapping[int, DrainOptions], found: dict[int, QueueSummary]) -> None:
        async def drain(index: int, options: DrainOptions) -> None:
            found[index] = await self._drain_one(index, options)

        await asyncio.gather(*(drain(index, options) for index, options in queues.items()))

    async def _drain_one(self, index: int, options: DrainOptions) -> QueueSummary:
        journal = open_journal(join(self._journal, self._run), Head(self._primary.name, index, batch=self._rounds))
        drain = Drain(self._primary, self._secondary, self._event_hubs, index, journal, options, self._stop.is_set)
        started = time.monotonic()
        try:
            return await drain.run()
        except Exception as error:  # an error of one queue must not end the drains of the others
            log.exception("backlog queue %d could not be drained", index)
            return QueueSummary(index, seconds=time.monotonic() - started, error=f"{type(error).__name__}: {error}")
        finally:
            try:
                await call_in_thread(lambda: close_journal(journal, index), "pairbus-journal-end")
            except RuntimeError as error:  # no more threads
                log.warning("journal of queue %d not marked as finished: %s; its rows are durable", index, error)


def service_for(config: Any, **more: Any) -> Service:
    """Return the service that a `SyphonConfig` describes."""
    primary, secondary, event_hubs = config.resolve()
    refuse_same(primary, secondary)
    return Service(
        primary,
        secondary,
        config.queues,
        config.journal,
        event_hubs=event_hubs,
        options=DrainOptions.of(config, max_rate=config.max_rate),
        idle_poll_interval=config.idle_poll_interval,
        resolve=config.resolve,
        **more,
    )
