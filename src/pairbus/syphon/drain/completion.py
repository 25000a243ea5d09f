"""The end of a drain: the messages that it is to move, the check for an empty queue, and the end of a run-once syphon.

`DrainGoal` and `CompletionTracker` are pure. `EmptyCheck` sets one timer on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from pairbus.domain.outcome import QueueSummary, out_of_reach

if TYPE_CHECKING:
    from pairbus.syphon.amqp.link import Receiver

#: Seconds without movement before the service is asked, and seconds that its answer may take.
IDLE_SECONDS = 0.02
ANSWER_SECONDS = 5.0
#: Seconds that messages may stay out of reach: a receiver that was killed leaves them locked for as long as that.
OUT_OF_REACH_SECONDS = 90.0
#: Rounds in a row that may fail and move nothing before the run gives up.
_MOST_FAILURES = 2


class DrainGoal:
    """The messages that a backlog queue held when its drain began: the first `count` in the order of their numbers.

    If another receiver has taken some of these, the goal extends past the last of them; it never falls short.
    """

    def __init__(self, count: int) -> None:
        self._missing = count
        self._highest = -1
        #: The sequence number of the last message of the goal, once it was received.
        self._last: int | None = None
        #: The messages of the goal that were held back after the pass before.
        self._held_before: set[int] | None = None

    def received(self, sequence: int) -> bool:
        """Note a received message; return True if the pass has now received all of the goal that it can get."""
        if self._last is not None:
            return sequence >= self._last
        if sequence > self._highest:
            self._highest = sequence
            self._missing -= 1
            if self._missing <= 0:
                self._last = sequence
                return True
        return False

    def pass_ended(self, held: Iterable[int]) -> bool:
        """Return True if another pass cannot help: none of the goal is held back, or the same messages as before."""
        before = self._held_before
        self._held_before = {number for number in held if self._last is None or number <= self._last}
        return not self._held_before or self._held_before == before


class EmptyCheck:
    """The question whether a backlog queue is empty: draining the credit, once nothing has moved for a moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_idle: Callable[[], None]) -> None:
        self._loop = loop
        self._on_idle = on_idle
        self._idle_since = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        #: The time of the question; None while no answer is expected.
        self.asked_at: float | None = None

    def moved(self, now: float) -> None:
        self._idle_since = now

    def ask(self, receiver: Receiver, now: float) -> None:
        self.asked_at = now
        receiver.drain()

    def ask_when_idle(self, receiver: Receiver, now: float) -> None:
        """Ask if nothing has moved for `IDLE_SECONDS`; otherwise call `on_idle` at that time."""
        if now >= self._idle_since + IDLE_SECONDS:
            self.ask(receiver, now)
        elif self._timer is None:
            self._timer = self._loop.call_at(self._idle_since + IDLE_SECONDS, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._on_idle()

    def is_overdue(self, now: float) -> bool:
        """Return True if there was no answer for `ANSWER_SECONDS`, counted from the last movement."""
        # While messages move the socket may be paused, with the answer unread in it.
        return self.asked_at is not None and now - max(self.asked_at, self._idle_since) > ANSWER_SECONDS

    def is_unanswered(self, now: float) -> bool:
        """Return True if there was no answer for `ANSWER_SECONDS`, counted from the question."""
        return self.asked_at is not None and now - self.asked_at > ANSWER_SECONDS

    def answered(self) -> bool:
        """Note that the credit was returned; return False if that answers no question."""
        was_asked, self.asked_at = self.asked_at is not None, None
        return was_asked

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class CompletionTracker:
    """The rule that ends a run-once syphon, in a process of its own as on Spark.

    The caller drains all queues in rounds (Spark: micro-batches) and passes each round to `observe`, until that
    returns True. A queue is finished once its last drain had no error and one of these holds:

    - as many messages have left it as it held when it was first observed, unless `by_count` is False;
    - it was seen empty, and holds no more messages than are held back;
    - it was emptied `emptied_enough` times, while others kept parking into it;
    - its depth was not asked for, or is unknown and its last drain saw it empty.

    The run gives up after two rounds in a row that had errors and moved nothing, or when rounds without an error have
    moved nothing of unfinished queues for `OUT_OF_REACH_SECONDS`: another receiver then holds the rest.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, by_count: bool = True, emptied_enough: int = 2
    ) -> None:
        self._clock = clock
        self._by_count = by_count
        self._emptied_enough = emptied_enough
        self._moved_at = clock()  # the creation counts as a movement: create it when rounds begin
        self._failures = 0
        self._depth_at_first: dict[int, int] = {}
        self._moved: Counter[int] = Counter()
        self._emptied: Counter[int] = Counter()
        #: The queues that an earlier round has finished: what others park there since does not count as movement.
        self._finished: set[int] = set()
        #: The queues that the last round left unfinished: queue index -> reason.
        self.unfinished: dict[int, str] = {}
        #: True if the run is over though `unfinished` queues are left.
        self.has_given_up = False

    def observe(
        self, queues: Iterable[QueueSummary], before: Mapping[int, int | None], after: Mapping[int, int | None]
    ) -> bool:
        """Take in one round, with the depths before and after it (None: unknown); return True if the run is over."""
        queues = tuple(queues)
        moved = failed = 0
        for queue in queues:
            index, left = queue.queue_index, queue.delivered + queue.dead_lettered
            if (depth := before.get(index)) is not None:
                self._depth_at_first.setdefault(index, depth)
            self._moved[index] += left
            moved += left
            failed += queue.error is not None
            if queue.empty and left and queue.error is None:  # held messages alone are received again and again
                self._emptied[index] += 1
        if any(queue.delivered + queue.dead_lettered for queue in queues if queue.queue_index not in self._finished):
            self._moved_at = self._clock()
        self._failures = self._failures + 1 if failed and not moved else 0
        reasons = {queue.queue_index: self._why_unfinished(queue, after) for queue in queues}
        self.unfinished = {index: why for index, why in reasons.items() if why is not None}
        self._finished = reasons.keys() - self.unfinished.keys()
        stuck = not failed and self._clock() - self._moved_at > OUT_OF_REACH_SECONDS
        self.has_given_up = bool(self.unfinished) and (self._failures >= _MOST_FAILURES or stuck)
        return self.has_given_up or not self.unfinished

    def _why_unfinished(self, queue: QueueSummary, after: Mapping[int, int | None]) -> str | None:
        """Return the reason why a queue needs another round, None if it is finished."""
        if queue.error is not None:
            return queue.error
        index = queue.queue_index
        if index not in after:
            return None
        if self._by_count and 0 < self._depth_at_first.get(index, 0) <= self._moved[index]:
            return None
        depth = after[index]
        if depth is None:
            return None if queue.empty else "the number of messages left is unknown: the secondary did not answer"
        if queue.empty and (depth <= queue.held or self._emptied[index] >= self._emptied_enough):
            return None
        return out_of_reach(depth, queue.held) or "it was not seen empty"
