"""One pass over a backlog queue: received → restored → sent → accepted → journal → settled → confirmed, all at once.

A message leaves the backlog only after its row is durable in the journal, and nothing waits for a round trip: a window
of messages is in flight, bounded by their number, their bytes, and what can be settled well inside the time of a lock.

    message ──restore──▶ destination ──accepted──▶ row ──journal──▶ complete ──confirmed──▶ gone
        │                    │
        │ no envelope        ├─ busy, gone, full ──▶ held: not settled, given back at the end of the pass
        ▼                    └─ refused for good ──▶ row ──journal──▶ dead-letter ──confirmed──▶ gone
    row ──journal──▶ dead-letter
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from pairbus.domain.backlog import queue_path
from pairbus.domain.conditions import CREDENTIAL_CONDITIONS
from pairbus.domain.cost import UNIT, operations_of
from pairbus.domain.envelope import EnvelopeError, facts, message_id, restore
from pairbus.domain.outcome import Outcome
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import ConnectionLost, LinkError, Receiver

from .blocked import Blocked
from .destination import Destination
from .empty_check import Silence
from .flow_control import LockClock, Window
from .held_messages import Held
from .in_flight import Moving
from .journal_batcher import Books, Writer
from .routing import NoRoute, Routes

if TYPE_CHECKING:
    from .drain import Drain

#: How often the state of things is looked at without a cause.
_BEAT_SECONDS = 0.05
#: A beat that took so long says that this process stood still, not that others were silent.
_STANDSTILL_SECONDS = 1.0
#: How long what is not sent yet may take to be sent when the pass is to end, and settlements to be confirmed then.
_ENDING_SECONDS = 10.0
_FAREWELL_SECONDS = 10.0
_DESCRIPTION = 4096


class Pass:
    """One pass over a backlog queue, on connections of its own."""

    def __init__(self, drain: Drain, writer: Writer) -> None:
        options = drain.options
        self._drain = drain
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._routes = Routes(drain, self, self._turn)
        #: Those that got something to send in this turn.
        self._lined_up: set[Destination] = set()
        self._blocked = Blocked(drain.owed)
        self._receiver: Receiver | None = None
        self._connection: Connection | None = None
        self._rate = drain.rate
        #: Received and not settled for good; those of them whose settlement is to be confirmed; those that are held;
        #: bytes that were not accepted yet.
        self._open = 0
        self._settling = 0
        self._confirmed_at, self._moved_at = 0.0, self._loop.time()
        self._held = Held()
        self._bytes = 0
        self._mean_size = 0.0
        self._window = Window(options.window_messages, self._loop.time())
        self._books = Books(writer, self._settle, self._not_written)
        self._locks = LockClock()
        self._silence = Silence(self._loop, self._turn)
        self._ending, self._ending_since = False, 0.0
        self._failed: str | None = None
        #: Whether it has come to the end of what it is to empty; whether nothing of that is left.
        self._is_through = self.found_empty = False
        #: Whether so much was held back that the rest was not looked at.
        self.is_crowded = False
        self._finished = asyncio.Event()

    # --- a pass from its beginning to its end ------------------------------------------------------------

    async def run(self) -> str | None:
        """What kept it from going on, if anything did."""
        drain = self._drain
        path = queue_path(drain.primary.name, drain.queue_index)
        try:
            self._receiver = await self._connect(path)
            drain.owed.begin(self._loop.time())
            self._replenish()
            beat = self._loop.create_task(self._beat())
            try:
                await self._finished.wait()
            finally:
                beat.cancel()
            await self._say_goodbye(self._receiver)
            gone = self._routes.primary.lost
            if self._failed is None and gone is not None:  # event hubs went on without it
                self._failed = f"the primary {drain.primary.name} cannot be reached: {gone}"
        except LinkError as error:
            self._failed = self._failed or f"{path}: {error}"
        finally:
            await self._close()
        return self._failed

    async def _connect(self, path: str) -> Receiver:
        """Both namespaces at once: from far away each takes several round trips."""
        drain = self._drain
        backlog = self._loop.create_task(self._connect_backlog(path))
        try:
            if drain.event_hubs is None:  # without the primary nothing can be delivered: then nothing is taken
                try:
                    await self._routes.primary.connection()
                except LinkError as error:
                    self._failed = f"the primary {drain.primary.name} cannot be reached: {error}"
                    raise
            return await backlog
        finally:
            backlog.cancel()
            await asyncio.gather(backlog, return_exceptions=True)

    async def _connect_backlog(self, path: str) -> Receiver:
        timeout = self._options.answer_timeout
        self._connection = await Connection.open(self._drain.secondary, timeout=timeout)
        self._connection.on_turn = self._turn
        await self._connection.authorize(path, timeout=timeout)
        return await self._connection.receiver(path, self, timeout=timeout)

    async def _beat(self) -> None:
        while not self._finished.is_set():
            began = self._loop.time()
            await asyncio.sleep(_BEAT_SECONDS)
            now = self._loop.time()
            if now - began > _STANDSTILL_SECONDS:
                continue  # what has come meanwhile is to be read before it is missed
            for destination in self._routes.destinations:
                destination.look(now, self._options.answer_timeout)
            self._give_back(now)
            if self._connection is None or self._connection.is_paused:
                self._confirmed_at = now  # what it confirms comes over the same socket
            elif self._settling and now - self._confirmed_at > self._options.answer_timeout:
                self._failed = self._failed or f"the backlog confirmed nothing for {self._options.answer_timeout:g} s"
                self._finished.set()
            self._turn()

    def _turn(self) -> None:
        """After everything that came together: write rows, ask for more, see whether this is the end."""
        if self._finished.is_set():
            return
        for destination in self._lined_up:
            destination.pump()
        self._lined_up.clear()
        self._books.commit()
        receiver, connection = self._receiver, self._connection
        if receiver is None or connection is None:
            return
        now = self._loop.time()
        if receiver.closed is not None:
            self._failed = self._failed or f"the backlog queue's link was lost: {receiver.closed}"
            self._finished.set()
            return
        if self._drain.stopping:
            self._ending = True
        elif len(self._held) >= self._options.held_messages:
            self.is_crowded = True
            self._failed = self._failed or self._held.describe()
            self._ending = True
        elif self._is_through and not self._moving and not self._ending:
            self.found_empty = self._ending = True
        lost = self._routes.primary.lost
        if lost is not None and self._drain.event_hubs is None and not self._ending:
            self._failed = self._failed or f"the primary was lost: {lost}"
            self._ending = True  # nothing can be delivered: then nothing more is taken either
        if self._bytes > 2 * self._options.window_bytes:
            connection.pause_reading()
        elif self._bytes <= self._options.window_bytes:
            connection.resume_reading()
        if self._ending:
            self._end(receiver, now)
            return
        self._replenish()
        if self._moving:
            self._silence.broken(now)
        elif self._silence.is_overdue(now):
            self._failed = self._failed or "the backlog did not say whether it is empty"
            self._finished.set()
        elif self._silence.asked_at is None and receiver.credit:
            self._silence.ask_in_time(receiver, now)

    @property
    def journal_failed(self) -> bool:
        return self._books.failed

    @property
    def _moving(self) -> int:
        """Messages that are neither settled nor held back."""
        return self._open - len(self._held)

    def on_drained(self, all_was_sent: bool) -> None:
        asked = self._silence.answered()
        if self._ending:
            return
        if asked and all_was_sent and not self._moving:
            self.found_empty = True
            self._finished.set()

    def _end(self, receiver: Receiver, now: float) -> None:
        """Take nothing more; the pass is over when what is in flight has come to its end."""
        self._ending_since = self._ending_since or now
        if now - self._ending_since > _ENDING_SECONDS:
            for destination in self._routes.destinations:
                destination.failed(LinkError(None, "the syphon is to stop"))
        if receiver.credit and self._silence.asked_at is None:
            self._silence.ask(receiver, now)
        if not self._moving and (not receiver.credit or self._silence.was_asked_long_ago(now)):
            self._finished.set()

    async def _say_goodbye(self, receiver: Receiver) -> None:
        """Bring what was begun to its end: in flight, then written, then given back and confirmed, or in doubt."""
        deadline = self._loop.time() + self._options.answer_timeout
        cut_short = LinkError(None, self._failed or "the pass was over")
        for destination in self._routes.destinations:
            if destination.is_waiting:
                destination.failed(cut_short)
        while any(each.is_busy for each in self._routes.destinations) and self._loop.time() < deadline:
            await asyncio.sleep(0.002)
        for destination in self._routes.destinations:
            destination.end(cut_short)
        await self._books.written()
        if receiver.closed is None:
            assert self._connection is not None
            self._connection.resume_reading()
            if receiver.credit:
                receiver.drain()  # what is given back must not come again to this link
            self._abandon(receiver, [each for each in receiver.unsettled() if each.outcome is None])
        deadline = self._loop.time() + _FAREWELL_SECONDS
        while receiver.closed is None and (self._settling > 0 or receiver.credit) and self._loop.time() < deadline:
            await asyncio.sleep(0.002)
        for message in receiver.unsettled():
            if message.outcome in (Outcome.DELIVERED, Outcome.DEAD_LETTERED):
                why = f"it was {message.outcome.value}, but nobody has confirmed that it left the backlog"
                self._doubt(message, f"{why}: {self._failed}" if self._failed else why)
        await self._books.written()

    async def _close(self) -> None:
        self._silence.end()
        if self._receiver is not None:
            left = [
                (message.sequence, message.lane if message.outcome is None else None)
                for message in self._receiver.unsettled()
            ]
            # What was sent before a link was closed has come; with a connection what is on its way is lost.
            closed_alone = (
                self._receiver.closed is not None and self._connection is not None and not self._connection.lost
            )
            unseen = self._receiver.credit > 0 and not closed_alone
            self._drain.owed.left(self._loop.time(), self._locks.longest, left, unseen)
        farewells = [self._routes.close()]
        if self._connection is not None:
            farewells.append(self._connection.close())
        await asyncio.gather(*farewells)

    # --- receiving ---------------------------------------------------------------------------------------

    def _replenish(self) -> None:
        """Let as much come as can be dealt with: by number, by bytes, and within the time of a lock."""
        receiver = self._receiver
        if receiver is None or self._ending or self._is_through or self._silence.asked_at is not None:
            return
        window = self._window.size
        if self._mean_size:
            window = min(
                window, max(int((self._options.window_bytes - self._bytes) / self._mean_size) + self._moving, 1)
            )
        credit = receiver.credit
        wanted = window - self._moving - credit
        if wanted > 0 and (wanted * 16 >= window or not credit):
            wanted = self._rate.take(wanted, self._loop.time())
            if wanted > 0:
                receiver.allow(wanted)

    def on_message(self, delivery: Any, raw: bytes) -> Moving:
        drain = self._drain
        size = len(raw)
        message = Moving(delivery, size)
        self._open += 1
        drain.received += 1
        drain.operations += 1 if size <= UNIT else operations_of(size)
        wall = time.time()
        try:
            restored = restore(raw, int(wall * 1000))
        except EnvelopeError as error:
            told = facts(raw)
            message.told(told)
            message.message_id = message_id(raw)
            self._locks.left(told.locked_until, wall)
            self._came(message.sequence)
            self.refused(message, "pairbus:no-envelope", str(error))
            return message
        message.restored(restored)
        lock_left = self._locks.left(restored.facts.locked_until, wall)
        self._came(message.sequence)
        if not self._mean_size:
            self._mean_size = size
            self._window.sized(size)
        self._mean_size += (size - self._mean_size) / 32
        self._bytes += message.size
        message.lasts(self._loop.time(), lock_left)
        try:
            destination = self._routes.find(restored.namespace, restored.path)
        except NoRoute as error:
            message.destination = error.destination
            self.refused(message, error.reason, str(error))
            return message
        message.destination = destination.name
        if self._finished.is_set():  # asked for before; given back with the others
            self._hold(message, "the pass was over")
            if self._receiver is not None:
                self._abandon(self._receiver, [message])
            return message
        if message.session is not None and self._blocked.has(message):
            self._hold(message, "an earlier message of its session may be locked by a link that was lost")
            return message
        if restored.time_to_live is not None and self._is_late(message, restored.time_to_live, wall):
            return message
        destination.take(message)
        self._lined_up.add(destination)
        return message

    def _came(self, sequence: int) -> None:
        if self._drain.came(sequence, self._loop.time(), self._locks.longest):
            self._is_through = True

    def _is_late(self, message: Moving, time_to_live: int, wall: float) -> bool:
        """Whether its life ended in the backlog, and that is to be its end."""
        if self._options.late != "dead-letter" or message.parked_at is None:
            return False
        late = self._locks.since(message.parked_at + time_to_live, wall)
        if late > 0:
            said = f"its time to live of {time_to_live} ms ended in the backlog, {late:.0f} s ago"
            self.refused(message, "pairbus:late", said)
        return late > 0

    # --- what becomes of messages ------------------------------------------------------------------------

    def accepted(self, message: Moving) -> None:
        self._drain.operations += 1 if message.size <= UNIT else operations_of(message.size)
        self._decide(message, Outcome.DELIVERED, None)

    def refused(self, message: Moving, reason: str, description: str) -> None:
        message.said = description[:_DESCRIPTION]
        self._drain.refused(message.destination or "no destination", reason, message.said)
        self._decide(message, Outcome.DEAD_LETTERED, reason)

    def _decide(self, message: Moving, outcome: Outcome, reason: str | None) -> None:
        message.outcome, message.reason = outcome, reason
        self._books.decide(message, outcome.value, reason if message.said is None else f"{reason}: {message.said}")
        self._let_go(message)

    def _let_go(self, message: Moving) -> None:
        """Its bytes are not needed any more."""
        if message.message:
            self._bytes -= message.size
            message.message = b""

    def held(self, message: Moving, destination: Destination) -> None:
        why = str(destination.held_for)
        if destination.held_for is not None and destination.held_for.condition in CREDENTIAL_CONDITIONS:
            self._drain.locked_out.add(why)
        self._hold(message, why)

    def _hold(self, message: Moving, why: str) -> None:
        self._let_go(message)
        self._held.add(message)
        self._drain.held[message.sequence] = message.destination or "", why

    def doubtful(self, message: Moving, why: str) -> None:
        """It was sent and nobody answered: it stays in the backlog, and may have arrived all the same."""
        self._doubt(message, why)
        self._hold(message, why)
        message.outcome = None  # given back like the others

    def _doubt(self, message: Moving, why: str) -> None:
        self._drain.in_doubt += 1
        message.outcome = Outcome.IN_DOUBT
        self._books.note(message, Outcome.IN_DOUBT.value, why)

    def _give_back(self, now: float) -> None:
        """Held messages whose locks come near their end are given back rather than risked."""
        receiver = self._receiver
        if receiver is not None and receiver.closed is None and (due := self._held.due(now)):
            self._abandon(receiver, due)
            # They come again, and nothing else; but for so few a second that the next is yet to come.
            patience = max(self._locks.seconds, 2 / (self._options.max_rate or 1.0))
            if now - self._moved_at > patience and not self._ending:
                self._failed = self._failed or self._held.describe(due)
                self._ending = True

    def _settles(self, count: int) -> None:
        if not self._settling:
            self._confirmed_at = self._loop.time()
        self._settling += count
        self._drain.operations += count

    def _abandon(self, receiver: Receiver, messages: list[Moving]) -> None:
        messages = [message for message in messages if not message.given_back]
        self._settles(len(messages))
        for message in messages:
            message.given_back = True
            receiver.abandon(message.delivery)

    # --- settling ----------------------------------------------------------------------------------------

    def _settle(self, decided: list[Moving]) -> None:
        """Their rows are durable: now they may leave the backlog."""
        receiver = self._receiver
        if receiver is not None and receiver.closed is None:
            for message in decided:
                if message.outcome is Outcome.DELIVERED:
                    receiver.complete(message.delivery)
                else:
                    receiver.dead_letter(message.delivery, message.reason or "", message.said or "")
            self._settles(len(decided))
        self._turn()

    def _not_written(self, error: BaseException) -> None:
        self._failed = f"the journal could not be written, so nothing more is settled: {error}"
        self._finished.set()

    def on_confirmed(self, message: Moving, state: int, error: LinkError | None) -> None:
        self._open -= 1
        self._settling -= 1
        self._confirmed_at = now = self._loop.time()
        if message.outcome is None:
            return  # given back
        if error is not None:
            self._doubt(message, f"it was {message.outcome.value}, but its lock was lost: {error}")
            return
        self._moved_at = now
        self._window.settled(now, self._locks.seconds, now - message.sent_at if message.sent_at else None)
        self._drain.left(message)

    def on_closed(self, error: LinkError) -> None:
        if self._finished.is_set():
            return
        kind = "connection" if isinstance(error, ConnectionLost) else "link"
        self._failed = self._failed or f"the backlog queue's {kind} was lost: {error}"
        self._finished.set()
