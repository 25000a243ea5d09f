"""One pass over a backlog queue: receive, restore, send, record, settle, all at once.

A message leaves the backlog only after its row is durable in the journal, and nothing waits for a round trip: a window
of messages is in flight, bounded by their number, their bytes, and what can be settled well inside the time of a lock.

    message ──restore──▶ destination ──accepted──▶ row ──journal──▶ complete ──confirmed──▶ settled
        │                    │
        │ no envelope        ├─ busy, lost, full ──▶ held: not settled, given back at the end of the pass
        ▼                    └─ refused for good ──▶ row ──journal──▶ dead-letter ──confirmed──▶ settled
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

from .completion import EmptyCheck
from .destination import Destination
from .flow_control import ReceiveWindow, ServiceClock
from .in_flight import HeldMessages, InFlightMessage
from .journal_batcher import JournalBatcher, JournalWriter
from .pass_state import EndReason, PassState, Phase
from .routing import NoRouteError, RoutingTable

if TYPE_CHECKING:
    from .drain import Drain

#: Seconds between two checks of the deadlines.
CHECK_SECONDS = 0.05
#: A check that comes so late shows that this process was suspended, not that others did not answer.
_SUSPENDED_SECONDS = 1.0
#: Seconds that the last settlements may take to be confirmed.
CONFIRM_SECONDS = 10.0
_POLL_SECONDS = 0.002
_LONGEST_DESCRIPTION = 4096


class DrainPass:
    """One pass over a backlog queue, on connections of its own."""

    def __init__(self, drain: Drain, writer: JournalWriter) -> None:
        options = drain.options
        self._drain = drain
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._routing = RoutingTable(drain, self, self._turn)
        #: Destinations to which messages were added since the last turn.
        self._to_send: set[Destination] = set()
        self._receiver: Receiver | None = None
        self._connection: Connection | None = None
        #: Messages that were received and whose settlement is not confirmed; those of them that were settled.
        self._open = 0
        self._settling = 0
        #: The times of the last confirmation, and of the last message that left the backlog.
        self._confirmed_at, self._moved_at = 0.0, self._loop.time()
        self._held = HeldMessages()
        self._window = ReceiveWindow(options.window_messages, options.window_bytes, self._loop.time())
        self._batcher = JournalBatcher(writer, self._settle, self._on_journal_failed)
        self._clock = ServiceClock()
        self._empty_check = EmptyCheck(self._loop, self._turn)
        #: True once all of the drain's goal that this pass can get was received.
        self._goal_received = False
        self.state = PassState()
        self._finished = asyncio.Event()

    # --- from the beginning to the end -------------------------------------------------------------------

    async def run(self) -> PassState:
        """Connect, drain until a reason ends the pass, and return its last state."""
        drain = self._drain
        path = queue_path(drain.primary.name, drain.queue_index)
        try:
            self._receiver = await self._connect(path)
            self.state = self.state.connected()
            drain.locked.pass_began(self._loop.time())
            self._replenish()
            checks = self._loop.create_task(self._check_deadlines())
            try:
                await self._finished.wait()
            finally:
                checks.cancel()
            await self._settle_rest(self._receiver)
            lost = self._routing.primary.lost
            if lost is not None:  # event hubs went on without it
                self._end(EndReason.UNREACHABLE, f"the primary {drain.primary.name} cannot be reached: {lost}")
        except LinkError as error:
            self._end(EndReason.UNREACHABLE, f"{path}: {error}")
        finally:
            await self._close()
        return self.state

    def _end(self, reason: EndReason, error: str | None = None) -> None:
        """End the pass; every end comes this way."""
        self.state = self.state.end(reason, self._loop.time(), error)
        if self.state.phase is Phase.FINISHED:
            self._finished.set()

    async def _connect(self, path: str) -> Receiver:
        """Connect to both namespaces at once: over a long way each takes several round trips."""
        drain = self._drain
        backlog = self._loop.create_task(self._connect_backlog(path))
        try:
            if drain.event_hubs is None:  # without the primary nothing can be delivered, so nothing is received
                try:
                    await self._routing.primary.connection()
                except LinkError as error:
                    self._end(EndReason.UNREACHABLE, f"the primary {drain.primary.name} cannot be reached: {error}")
                    raise
            return await backlog
        finally:
            backlog.cancel()
            await asyncio.gather(backlog, return_exceptions=True)

    async def _connect_backlog(self, path: str) -> Receiver:
        timeout = self._options.answer_timeout
        self._connection = await Connection.open(self._drain.secondary, timeout=timeout)
        self._connection.on_input_handled = self._turn
        await self._connection.authorize(path, timeout=timeout)
        return await self._connection.receiver(path, self, timeout=timeout)

    async def _check_deadlines(self) -> None:
        """Check what no event reports: answers, locks and confirmations that are overdue."""
        timeout = self._options.answer_timeout
        while not self._finished.is_set():
            began = self._loop.time()
            await asyncio.sleep(CHECK_SECONDS)
            now = self._loop.time()
            if now - began > _SUSPENDED_SECONDS:
                continue  # what has arrived meanwhile must be read first
            for destination in self._routing.destinations:
                destination.check_deadlines(now, timeout)
            self._give_back_due(now)
            if self._connection is None or self._connection.is_paused:
                self._confirmed_at = now  # confirmations come over the same socket
            elif self._settling and now - self._confirmed_at > timeout:
                self._end(EndReason.UNCONFIRMED, f"the backlog confirmed nothing for {timeout:g} s")
            self._turn()

    def _turn(self) -> None:
        """Act on all events that arrived together: send, write rows, ask for more, see if the pass ends."""
        if self.state.phase is Phase.FINISHED:
            return
        for destination in self._to_send:
            destination.send_waiting()
        self._to_send.clear()
        self._batcher.commit()
        receiver, connection = self._receiver, self._connection
        if receiver is None or connection is None:
            return
        if receiver.closed is not None:
            self._end(EndReason.BACKLOG_LOST, f"the backlog queue's link was lost: {receiver.closed}")
            return
        if self.state.phase is Phase.DRAINING:
            self._check_for_end()
        if self._window.is_overfull:
            connection.pause_reading()
        elif self._window.has_room:
            connection.resume_reading()
        now = self._loop.time()
        if self.state.phase is Phase.ENDING:
            self._go_on_ending(receiver, now)
        else:
            self._replenish()
            self._check_if_empty(receiver, now)

    def _check_for_end(self) -> None:
        """End the pass if it was stopped, holds too much back, has reached its goal, or has lost the primary."""
        drain = self._drain
        if drain.stopping:
            self._end(EndReason.STOPPED)
        elif len(self._held) >= self._options.held_messages:
            self._end(EndReason.TOO_MANY_HELD, self._held.describe())
        elif self._goal_received and not self._moving:
            self._end(EndReason.GOAL_REACHED)
        elif drain.event_hubs is None and (lost := self._routing.primary.lost) is not None:
            # Without it nothing can be delivered, so nothing more is received.
            self._end(EndReason.PRIMARY_LOST, f"the primary was lost: {lost}")

    @property
    def _moving(self) -> int:
        """The number of messages that are neither settled nor held back."""
        return self._open - len(self._held)

    def _check_if_empty(self, receiver: Receiver, now: float) -> None:
        if self._moving:
            self._empty_check.moved(now)
        elif self._empty_check.is_overdue(now):
            self._end(EndReason.NO_EMPTY_ANSWER, "the backlog did not say whether it is empty")
        elif self._empty_check.asked_at is None and receiver.credit:
            self._empty_check.ask_when_idle(receiver, now)

    def on_drained(self, all_was_sent: bool) -> None:
        was_asked = self._empty_check.answered()
        if was_asked and all_was_sent and not self._moving and self.state.phase is Phase.DRAINING:
            self._end(EndReason.EMPTY)

    def _go_on_ending(self, receiver: Receiver, now: float) -> None:
        """Take the credit back, and finish once nothing is in flight."""
        if self.state.is_overdue(now):
            for destination in self._routing.destinations:
                destination.fail(LinkError(None, "the syphon is to stop"))
        if receiver.credit and self._empty_check.asked_at is None:
            self._empty_check.ask(receiver, now)
        if not self._moving and (not receiver.credit or self._empty_check.is_unanswered(now)):
            self.state = self.state.finished()
            self._finished.set()

    async def _settle_rest(self, receiver: Receiver) -> None:
        """Wait for answers, write the rows, give back what is not decided, and doubt what is not confirmed."""
        deadline = self._loop.time() + self._options.answer_timeout
        cut_short = LinkError(None, self.state.error or "the pass was over")
        for destination in self._routing.destinations:
            if destination.is_waiting:
                destination.fail(cut_short)
        while any(each.is_busy for each in self._routing.destinations) and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        for destination in self._routing.destinations:
            destination.abandon(cut_short)
        await self._batcher.flush()
        if receiver.closed is None:
            assert self._connection is not None
            self._connection.resume_reading()
            if receiver.credit:
                receiver.drain()  # this link must not receive again what it gives back
            self._abandon(receiver, [each for each in receiver.unsettled() if each.outcome is None])
        deadline = self._loop.time() + CONFIRM_SECONDS
        while receiver.closed is None and (self._settling > 0 or receiver.credit) and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        for message in receiver.unsettled():
            if message.outcome in (Outcome.DELIVERED, Outcome.DEAD_LETTERED):
                why = f"it was {message.outcome.value}, but the backlog has not confirmed that it was settled"
                self._doubt(message, f"{why}: {self.state.error}" if self.state.error else why)
        await self._batcher.flush()

    async def _close(self) -> None:
        self._empty_check.close()
        if self._receiver is not None:
            self._note_locked(self._receiver)
        closing = [self._routing.close()]
        if self._connection is not None:
            closing.append(self._connection.close())
        await asyncio.gather(*closing)

    def _note_locked(self, receiver: Receiver) -> None:
        """Note for later passes what this one leaves locked."""
        unsettled = [
            (message.sequence, message.session_key if message.outcome is None else None)
            for message in receiver.unsettled()
        ]
        # All that was sent before a link alone was closed has arrived; with a connection it may be lost.
        closed_alone = receiver.closed is not None and self._connection is not None and not self._connection.lost
        unseen = receiver.credit > 0 and not closed_alone
        self._drain.locked.pass_ended(self._loop.time(), self._clock.longest_lock_seconds, unsettled, unseen)

    # --- receiving ---------------------------------------------------------------------------------------

    def _replenish(self) -> None:
        """Grant the service credit for what the window and the rate allow."""
        receiver = self._receiver
        if receiver is None or self._goal_received or self._empty_check.asked_at is not None:
            return
        missing = self._window.missing(self._moving, receiver.credit)
        if missing and (granted := self._drain.rate_limiter.take(missing, self._loop.time())):
            receiver.allow(granted)

    def on_message(self, delivery: Any, raw: bytes) -> InFlightMessage:
        drain = self._drain
        size = len(raw)
        message = InFlightMessage(delivery, size)
        self._open += 1
        drain.received += 1
        drain.operations += 1 if size <= UNIT else operations_of(size)
        wall = time.time()
        try:
            restored = restore(raw, int(wall * 1000))
        except EnvelopeError as error:
            return self._refuse_unreadable(message, raw, error, wall)
        message.set_content(restored)
        lock_left = self._clock.lock_left(restored.facts.locked_until, wall)
        now = self._loop.time()
        if drain.note_received(message.sequence, now, self._clock.longest_lock_seconds):
            self._goal_received = True
        self._window.received(size, message.size)
        message.set_deadlines(now, lock_left)
        try:
            destination = self._routing.destination_for(restored.namespace, restored.path)
        except NoRouteError as error:
            message.destination = error.destination
            self.refused(message, error.reason, str(error))
            return message
        message.destination = destination.name
        if self.state.phase is Phase.FINISHED:  # sent by the service before the pass was over
            self._hold(message, "the pass was over")
            if self._receiver is not None:
                self._abandon(self._receiver, [message])
            return message
        if message.session is not None and drain.locked.blocks(message):
            self._hold(message, "an earlier message of its session may be locked by a link that was lost")
            return message
        if restored.time_to_live is not None and self._is_late(message, restored.time_to_live, wall):
            return message
        destination.enqueue(message)
        self._to_send.add(destination)
        return message

    def _refuse_unreadable(
        self, message: InFlightMessage, raw: bytes, error: EnvelopeError, wall: float
    ) -> InFlightMessage:
        found = facts(raw)
        message.set_facts(found)
        message.message_id = message_id(raw)
        self._clock.lock_left(found.locked_until, wall)
        if self._drain.note_received(message.sequence, self._loop.time(), self._clock.longest_lock_seconds):
            self._goal_received = True
        self.refused(message, "pairbus:no-envelope", str(error))
        return message

    def _is_late(self, message: InFlightMessage, time_to_live: int, wall: float) -> bool:
        """Dead-letter a message whose time to live ended in the backlog, if the options say so; return True then."""
        if self._options.late != "dead-letter" or message.parked_at is None:
            return False
        late = self._clock.seconds_since(message.parked_at + time_to_live, wall)
        if late > 0:
            why = f"its time to live of {time_to_live} ms ended in the backlog, {late:.0f} s ago"
            self.refused(message, "pairbus:late", why)
        return late > 0

    # --- the fates of messages ---------------------------------------------------------------------------

    def accepted(self, message: InFlightMessage) -> None:
        self._drain.operations += 1 if message.size <= UNIT else operations_of(message.size)
        self._decide(message, Outcome.DELIVERED, None)

    def refused(self, message: InFlightMessage, reason: str, description: str) -> None:
        message.description = description[:_LONGEST_DESCRIPTION]
        self._drain.count_dead_letter(message.destination or "no destination", reason, message.description)
        self._decide(message, Outcome.DEAD_LETTERED, reason)

    def _decide(self, message: InFlightMessage, outcome: Outcome, reason: str | None) -> None:
        message.outcome, message.reason = outcome, reason
        why = reason if message.description is None else f"{reason}: {message.description}"
        self._batcher.add_decided(message, outcome.value, why)
        self._free(message)

    def _free(self, message: InFlightMessage) -> None:
        if message.message:
            self._window.buffered_bytes -= message.size
            message.message = b""

    def held(self, message: InFlightMessage, destination: Destination) -> None:
        why = str(destination.hold_error)
        if destination.hold_error is not None and destination.hold_error.condition in CREDENTIAL_CONDITIONS:
            self._drain.credential_refusals.add(why)
        self._hold(message, why)

    def _hold(self, message: InFlightMessage, why: str) -> None:
        self._free(message)
        self._held.add(message)
        self._drain.held[message.sequence] = message.destination or "", why

    def in_doubt(self, message: InFlightMessage, why: str) -> None:
        """Hold back a message that was sent and not answered: it may have arrived all the same."""
        self._doubt(message, why)
        self._hold(message, why)
        message.outcome = None  # given back like other held messages

    def _doubt(self, message: InFlightMessage, why: str) -> None:
        self._drain.in_doubt += 1
        message.outcome = Outcome.IN_DOUBT
        self._batcher.add_row(message, Outcome.IN_DOUBT.value, why)

    def _give_back_due(self, now: float) -> None:
        """Give held messages back before their locks end, and end the pass if only they are received any more."""
        receiver = self._receiver
        if receiver is not None and receiver.closed is None and (due := self._held.take_due(now)):
            self._abandon(receiver, due)
            # A slow rate alone is no reason: the next message may not be due yet.
            longest = max(self._clock.lock_seconds, 2 / (self._options.max_rate or 1.0))
            if now - self._moved_at > longest:
                self._end(EndReason.STALLED, self._held.describe(due))

    def _abandon(self, receiver: Receiver, messages: list[InFlightMessage]) -> None:
        messages = [message for message in messages if not message.is_abandoned]
        self._count_settling(len(messages))
        for message in messages:
            message.is_abandoned = True
            receiver.abandon(message.delivery)

    # --- settling ----------------------------------------------------------------------------------------

    def _settle(self, decided: list[InFlightMessage]) -> None:
        receiver = self._receiver
        if receiver is not None and receiver.closed is None:
            for message in decided:
                if message.outcome is Outcome.DELIVERED:
                    receiver.complete(message.delivery)
                else:
                    receiver.dead_letter(message.delivery, message.reason or "", message.description or "")
            self._count_settling(len(decided))
        self._turn()

    def _count_settling(self, count: int) -> None:
        if not self._settling:
            self._confirmed_at = self._loop.time()
        self._settling += count
        self._drain.operations += count

    def _on_journal_failed(self, error: BaseException) -> None:
        self._end(EndReason.JOURNAL_FAILED, f"the journal could not be written, so nothing more is settled: {error}")

    def on_confirmed(self, message: InFlightMessage, state: int, error: LinkError | None) -> None:
        self._open -= 1
        self._settling -= 1
        self._confirmed_at = now = self._loop.time()
        if message.outcome is None:
            return  # given back
        if error is not None:
            self._doubt(message, f"it was {message.outcome.value}, but its lock was lost: {error}")
            return
        self._moved_at = now
        self._window.settled(now, self._clock.lock_seconds, now - message.sent_at if message.sent_at else None)
        self._drain.note_settled(message)

    def on_closed(self, error: LinkError) -> None:
        if self.state.phase is not Phase.FINISHED:
            kind = "connection" if isinstance(error, ConnectionLost) else "link"
            self._end(EndReason.BACKLOG_LOST, f"the backlog queue's {kind} was lost: {error}")
