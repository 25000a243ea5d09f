"""The syphon without Spark: one process that drains all backlog queues of a pairing, all at once, on one event loop.

The same drain and the same journal as on a cluster. The rows stay in the journals, where a Spark job with the same
journal folder finds and folds them.
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

from pairbus.domain.outcome import Head, Held, QueueSummary, held_over, out_of_reach
from pairbus.errors import PairbusError
from pairbus.options import Namespace, refuse_same
from pairbus.runtime import bounded_call as bounds
from pairbus.runtime.bounded_call import call_in_thread, call_with_deadline
from pairbus.runtime.redaction import describe_error

from .depths import Depths, backlog_depths, none_exists_text, warn_of, warn_of_wear
from .drain.drain import Drain, DrainOptions
from .drain.lock_tracking import LONGEST_LOCK, OUT_OF_REACH_SECONDS
from .journal.folding import JournalFolder
from .journal.journal import close_journal, open_journal
from .journal.storage import join

if TYPE_CHECKING:
    from pairbus.config.syphon_config import Namespaces

log = logging.getLogger("pairbus.syphon")

#: The longest pause after rounds that brought nothing home.
_LONGEST_PAUSE = 120.0
_GLANCE_SECONDS = 5.0
#: How many rounds may find something, if somebody goes on parking.
_ROUNDS = 3
#: While it goes on for ever, a round is this long at the most, so that no queue waits for another's million.
_ROUND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """What one round over the queues came to."""

    queues: tuple[QueueSummary, ...]
    #: Queues that were asked for and do not exist.
    missing: tuple[int, ...] = ()
    #: Queues that were not asked for, and how many messages they have.
    left_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        return sum(each.delivered + each.dead_lettered for each in self.queues)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left but what is held back."""
        return all(each.empty for each in self.queues)

    def out_of_reach(self, depths: Depths) -> dict[int, str]:
        """The queues that have more messages than are held back, and how many."""
        held = {each.queue_index: each.held for each in self.queues}
        told = {index: out_of_reach(depth or 0, held.get(index, 0)) for index, depth in depths.by_index.items()}
        return {index: why for index, why in told.items() if why is not None}

    def with_errors(self, errors: Mapping[int, str]) -> Round:
        """The same, with what is in the way of these queues."""
        queues = (
            replace(each, empty=False, error=errors[each.queue_index]) if each.queue_index in errors else each
            for each in self.queues
        )
        return replace(self, queues=tuple(queues))

    def followed_by(self, other: Round) -> Round:
        """Both as one: counts are added up, the state is that of the later."""
        before = {each.queue_index: each for each in self.queues}
        queues = (_added(before.get(each.queue_index), each) for each in other.queues)
        return replace(other, queues=tuple(queues))

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(f"queue {each.queue_index}: {each.error}" for each in self.queues if each.error)

    @property
    def held(self) -> tuple[Held, ...]:
        """What is held back, over all queues."""
        return held_over(self.queues)

    def __str__(self) -> str:
        totals = {name: sum(getattr(each, name) for each in self.queues) for name in _TOLD}
        said = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in totals.items() if count)
        return f"{said or 'nothing was moved'} in {max((each.seconds for each in self.queues), default=0.0):.1f} s"


_TOLD = ("delivered", "dead_lettered", "held", "in_doubt")
_SUMMED = ("received", "delivered", "dead_lettered", "in_doubt", "bytes", "operations", "seconds")


def _added(before: QueueSummary | None, after: QueueSummary) -> QueueSummary:
    if before is None:
        return after
    return replace(after, **{name: getattr(before, name) + getattr(after, name) for name in _SUMMED})


class Service:
    """A syphon in this process. Its methods block: give it a thread, or a process, of its own."""

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
        on_asked: Callable[[int], object] = lambda operations: None,
        resolve: Callable[[], Namespaces] | None = None,
    ) -> None:
        #: How the namespaces are looked up anew, when they may be others than they were.
        self._resolve = resolve
        self._primary, self._secondary, self._event_hubs = primary, secondary, event_hubs
        self._indexes = tuple(queues)
        self._journal = journal
        self._options = options or DrainOptions()
        self._idle_poll_interval = idle_poll_interval
        self._on_round, self._on_asked = on_round, on_asked
        self._run = uuid.uuid4().hex
        self._folder = JournalFolder(journal, folds=False)
        self._begun = False
        #: Until then messages may be locked by a syphon that was killed.
        self._wary_until = 0.0
        self._rounds = 0
        #: What kept the run from being ended in order in its journals' folder, once the calls below have returned.
        #: What was delivered has its row all the same; others fold it when the run was silent for an hour.
        self.not_ended: str | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Take nothing more; what is in flight is finished, then the calls below return."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """There may be something to do: do not wait until it is time to ask."""
        self._wake.set()

    def begin(self) -> None:
        """Make sure that journals can be written; raises OSError if not, before a message is touched."""
        if not self._begun:
            call_with_deadline(
                lambda: self._folder.begin(self._run, None), bounds.JOURNAL_SECONDS, "pairbus-journal-begin"
            )
            self._wary_until = time.monotonic() + LONGEST_LOCK if self._folder.after_a_kill else 0.0
            if self._wary_until:
                log.info(
                    "a syphon with this journal folder was killed a moment ago: messages of sessions are left alone "
                    "until what it may have locked is free, %.0f s at the most",
                    LONGEST_LOCK,
                )
            self._begun = True

    def once(self) -> Round:
        """Empty what is there when it begins, as far as destinations take it, whoever goes on parking.

        Raises `PairbusError` if the secondary does not answer, or has no backlog at all.
        """
        self.begin()
        try:
            depths = self._told()
            warn_of_wear(depths, self._primary.name)
            if depths.none_exists:
                raise PairbusError(none_exists_text(depths, self._secondary, self._primary.name))
            options = replace(self._options, budget=None)
            done = self._round(depths, options, only_these=True)
            ends, busy = time.monotonic() + OUT_OF_REACH_SECONDS, 1
            # Empty is what the service says, not what a receiver finds: another may have messages locked.
            while done.is_empty and not done.errors and not self._stop.is_set():
                depths = self._told()
                left = done.out_of_reach(depths)
                if not left or busy > _ROUNDS:  # whoever goes on parking does not keep it from ending
                    break
                if time.monotonic() > ends:
                    return done.with_errors(left)
                self._stop.wait(_GLANCE_SECONDS)
                following = self._round(depths, options, only_these=True)
                busy += following.moved > 0
                done = done.followed_by(following)
            return done
        finally:
            self._end()

    def forever(self) -> None:
        """Drain whenever there is something, until `stop`; a secondary that does not answer is asked again later."""
        self.begin()
        fruitless = 0
        told: tuple[object, ...] | None = None
        try:
            while not self._stop.is_set():
                pause = self._idle_poll_interval
                try:
                    depths = self._ask()
                except Exception as error:
                    log.warning("the secondary does not say how deep the backlog is (%s)", describe_error(error))
                    fruitless += 1
                    pause = self._backoff(fruitless)
                    self._look_up_again()
                else:
                    if (depths.missing, depths.left_out.keys(), depths.given_out) != told:
                        told = depths.missing, depths.left_out.keys(), depths.given_out
                        warn_of(depths, self._secondary, self._primary.name)
                    if depths.total:
                        done = self._round(depths, replace(self._options, budget=_ROUND_SECONDS))
                        fruitless = 0 if done.moved else fruitless + 1
                        if fruitless and done.errors:
                            self._look_up_again()
                        pause = self._backoff(fruitless)
                self._rest(pause)
        finally:
            self._end()

    def _end(self) -> None:
        """End the run in order, if the disk lets it: an error of its own would hide what happened before."""
        try:
            call_with_deadline(self._folder.finish, bounds.JOURNAL_SECONDS, "pairbus-journal-end")
        except Exception as error:  # whatever a store raises
            self.not_ended = f"the journal {self._folder.where} could not be ended in order: {error}"

    def _backoff(self, fruitless: int) -> float:
        return min(self._options.retry_interval * float(2 ** min(fruitless, 10)), _LONGEST_PAUSE)

    def _rest(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _look_up_again(self) -> None:
        """A key may have been renewed where the references point."""
        if self._resolve is None:
            return
        try:
            self._primary, self._secondary, self._event_hubs = self._resolve()
        except PairbusError as error:  # half renewed, perhaps: what was found before is kept
            log.warning("%s", error)

    def _told(self) -> Depths:
        try:
            return self._ask()
        except Exception as error:  # what the SDK and credentials raise is many things
            raise PairbusError(f"[secondary] does not say how deep the backlog is: {describe_error(error)}") from error

    def _ask(self) -> Depths:
        operations = 1  # one that fails is billed as well
        try:
            depths = backlog_depths(self._secondary, self._primary.name, self._indexes)
            operations = depths.operations
        finally:
            self._on_asked(operations)
        return depths

    def _round(self, depths: Depths, options: DrainOptions, *, only_these: bool = False) -> Round:
        busy = {index: depth for index, depth in depths.by_index.items() if depth}
        if options.max_rate is not None and busy:
            options = replace(options, max_rate=options.max_rate / len(busy))
        options = replace(options, after_a_kill=time.monotonic() < self._wary_until)
        self._rounds += 1
        each = {index: replace(options, there=depth if only_these else None) for index, depth in busy.items()}
        found = self._drained(each) if busy else []
        idle = [QueueSummary(index, empty=True) for index, depth in depths.by_index.items() if depth == 0]
        done = Round(tuple(sorted([*found, *idle], key=lambda each: each.queue_index)), depths.missing, depths.left_out)
        for error in done.errors:
            log.warning("%s", error)
        if busy:
            log.info("round %d: %s", self._rounds, done)
        self._on_round(done)
        return done

    def _drained(self, queues: Mapping[int, DrainOptions]) -> list[QueueSummary]:
        found: dict[int, QueueSummary] = {}
        draining = self._drain_all(queues, found)
        try:
            asyncio.run(draining)
        except (OSError, RuntimeError) as short:  # this process is, of files or of threads
            if "event loop" in str(short):
                raise  # it is called from within one
            log.warning("a round was cut short: %s", describe_error(short), exc_info=True)
            for index in queues.keys() - found.keys():
                found[index] = QueueSummary(index, error=describe_error(short))
        finally:
            draining.close()  # it was not begun if no loop could be had for it
        return list(found.values())

    async def _drain_all(self, queues: Mapping[int, DrainOptions], found: dict[int, QueueSummary]) -> None:
        async def drain(index: int, options: DrainOptions) -> None:
            found[index] = await self._drain_one(index, options)

        await asyncio.gather(*(drain(index, options) for index, options in queues.items()))

    async def _drain_one(self, index: int, options: DrainOptions) -> QueueSummary:
        journal = open_journal(join(self._journal, self._run), Head(self._primary.name, index, batch=self._rounds))
        drain = Drain(self._primary, self._secondary, self._event_hubs, index, journal, options, self._stop.is_set)
        began = time.monotonic()
        try:
            return await drain.run()
        except Exception as error:  # one queue's trouble is not the others'
            log.exception("backlog queue %d could not be drained", index)
            return QueueSummary(index, seconds=time.monotonic() - began, error=f"{type(error).__name__}: {error}")
        finally:
            try:
                await call_in_thread(lambda: close_journal(journal, index), "pairbus-journal-end")
            except RuntimeError as error:  # no more threads: it is only not marked as finished
                log.warning("the journal of queue %d could not be closed: %s", index, error)


def service_for(config: Any, **more: Any) -> Service:
    """The service that a `SyphonConfig` describes; its references are resolved here."""
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
