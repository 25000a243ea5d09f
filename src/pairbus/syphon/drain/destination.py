"""One destination: its link, the messages that wait for it or are in flight to it, and why it takes none.

Messages are sent in batches, which the service takes whole or not at all. Messages without a session are sent as fast
as credit and the send window allow. Those of one session form a queue of their own, of which one batch is in flight at
a time, so that none overtakes a refused one: the messages that arrive meanwhile make the next batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from pairbus.domain.conditions import MAX_UNKNOWN_DELIVERIES, MESSAGE_CONDITIONS, Refusal, refusal_of
from pairbus.syphon.amqp.link import NO_OUTCOME, ConnectionLost, LinkError, Sender
from pairbus.syphon.amqp.message_format import batch_head

from .flow_control import SendWindow
from .in_flight import InFlightMessage

if TYPE_CHECKING:
    from .routing import Host

log = logging.getLogger("pairbus.syphon")

#: The largest batch that the service takes in every tier; a link may allow less.
_BATCH_BYTES = 200 * 1024
_BATCH_OVERHEAD = 8  # a message
_BATCH_MESSAGES = 500
_NO_LIMIT = 2**63


class SessionQueue:
    """The messages of one session that are not sent yet, in their order."""

    __slots__ = ("head", "messages", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.head = batch_head(session)
        self.messages: deque[InFlightMessage] = deque()

    @property
    def send_by(self) -> float:
        return self.messages[0].send_by


class DeliveryEvents(Protocol):
    """The calls that a destination makes: one for each message, with its fate."""

    def accepted(self, message: InFlightMessage) -> None: ...
    def refused(self, message: InFlightMessage, reason: str, description: str) -> None: ...
    def held(self, message: InFlightMessage, destination: Destination) -> None: ...
    def in_doubt(self, message: InFlightMessage, why: str) -> None: ...


class Destination:
    """One entity that messages are sent to in one pass."""

    def __init__(self, name: str, path: str, host: Host, window: SendWindow, events: DeliveryEvents) -> None:
        #: The entity as users know it, for rows, logs and errors; and its address on the host.
        self.name, self.path = name, path
        self._host = host
        self._window = window
        self._events = events
        self._sender: Sender | None = None
        self._opening: asyncio.Task[None] | None = None
        #: The error for which its messages are held back for the rest of the pass.
        self.hold_error: LinkError | None = None
        #: The error for which its messages are dead-lettered.
        self._fatal_error: LinkError | None = None
        #: The messages to send next: those without a session, and session queues of which nothing is in flight.
        self._waiting: deque[InFlightMessage | SessionQueue] = deque()
        #: The session queues that wait, or of which a batch is in flight.
        self._sessions: dict[str, SessionQueue] = {}
        self._in_flight = self._bytes_in_flight = 0
        #: True once a message was refused on this link: if the link ends, that message may be the cause.
        self._refused_on_link = False

    @property
    def is_waiting(self) -> bool:
        """True if messages wait that were not sent yet."""
        return bool(self._waiting) or any(queue.messages for queue in self._sessions.values())

    @property
    def is_busy(self) -> bool:
        """True if messages were sent that are not answered yet."""
        return bool(self._in_flight)

    def abandon(self, error: LinkError) -> None:
        """Wait for no answer any more: unanswered messages are in doubt, the others held back."""
        if self._opening is not None:
            self._opening.cancel()
        sender, self._sender = self._sender, None
        self._doubt_unanswered(sender, error)
        if self.is_waiting:
            self.fail(error)

    # --- sending -----------------------------------------------------------------------------------------

    def enqueue(self, message: InFlightMessage) -> None:
        """Add a message; the next `send_waiting` sends what was added together in a batch."""
        if self.hold_error is not None:
            self._events.held(message, self)
        elif self._fatal_error is not None:
            self._refuse(message, self._fatal_error)
        elif message.session is None:
            self._append(message)
        elif (queue := self._sessions.get(message.session)) is not None:
            queue.messages.append(message)  # sent after the batch in flight
        else:
            queue = self._sessions[message.session] = SessionQueue(message.session)
            queue.messages.append(message)
            self._append(queue)

    def _append(self, item: InFlightMessage | SessionQueue) -> None:
        self._waiting.append(item)
        if self._sender is None and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            connection = await self._host.connection()
            await connection.authorize(self._host.token_path(self.path), timeout=self._host.timeout)
            sender = await connection.sender(self.path, self, timeout=self._host.timeout)
        except LinkError as error:
            self.fail(error, for_good=_is_for_good(error))
        except Exception as unforeseen:  # no other task sees it, and the messages must not wait for a link
            log.exception("no link could be opened to %s; its messages are held back in this pass", self.name)
            self.fail(LinkError(None, f"{type(unforeseen).__name__}: {unforeseen}"))
        else:
            self.attach(sender)

    def attach(self, sender: Sender) -> None:
        self._sender = sender
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send what credit and the send window allow."""
        sender, waiting = self._sender, self._waiting
        if sender is None or not waiting:
            return
        credit = sender.credit
        most = sender.max_message_bytes or _NO_LIMIT
        now = sender.loop_time()
        while credit > 0 and waiting and (room := self._window.room(self._in_flight, self._bytes_in_flight)) > 0:
            following = waiting[0]
            if now > following.send_by:  # this process was suspended, and others may hold the locks by now
                self._fail_as_too_slow()
                return
            if isinstance(following, SessionQueue):
                waiting.popleft()
                sent = self._send_session(sender, following, most, room, now)
            else:
                sent = self._send_batch(sender, waiting, b"", most, room, now)
            credit -= sent > 0

    def _send_session(self, sender: Sender, queue: SessionQueue, most: int, room: int, now: float) -> int:
        sent = 0
        while queue.messages and not sent:
            sent = self._send_batch(sender, queue.messages, queue.head, most, room, now)
        if not sent:
            del self._sessions[queue.session]
        return sent

    def _send_batch(self, sender: Sender, messages: deque[Any], head: bytes, most: int, room: int, now: float) -> int:
        """Send the first message and as many behind it as fit into a batch with it; return how many were sent."""
        first: InFlightMessage = messages.popleft()
        if first.size > most:
            why = f"the message has {first.size} bytes, the limit is {most}"
            self._refuse(first, LinkError("amqp:link:message-size-exceeded", why))
            return 0
        first.sent_at = now
        if messages and self._host.takes_batches and not first.sent_alone:
            batch = [first]
            most = min(most, _BATCH_BYTES)
            room = min(room, _BATCH_MESSAGES)
            size, sizes = len(head) + first.size + _BATCH_OVERHEAD, first.size
            while messages and len(batch) < room:
                following = messages[0]
                if type(following) is not InFlightMessage or following.sent_alone:
                    break
                size += following.size + _BATCH_OVERHEAD
                if size > most:
                    break
                following.sent_at = now
                sizes += following.size
                batch.append(messages.popleft())
            if len(batch) > 1:
                self._in_flight += len(batch)
                self._bytes_in_flight += sizes
                sender.send_batch(head, [message.message for message in batch], batch)
                return len(batch)
        self._in_flight += 1
        self._bytes_in_flight += first.size
        sender.send(first.message, first)
        return 1

    def _resume_session(self, session: str) -> None:
        """Queue the rest of a session whose batch was answered."""
        queue = self._sessions.get(session)
        if queue is None:  # held back meanwhile
            return
        if queue.messages:
            self._waiting.append(queue)
        else:
            del self._sessions[session]

    # --- answers -----------------------------------------------------------------------------------------

    def on_outcome(self, context: Any, state: int, error: LinkError | None) -> None:
        batch: list[InFlightMessage] = context if type(context) is list else [context]
        size = self._remove_in_flight(batch)
        session = batch[0].session
        if error is None:  # accepted
            sender = self._sender
            self._window.accepted(len(batch), 0.0 if sender is None else sender.loop_time() - batch[0].sent_at, size)
            for message in batch:
                self._events.accepted(message)
            if session is not None:
                self._resume_session(session)
        elif state == NO_OUTCOME:
            self._doubt(batch, error)
            self.fail(error)
        elif len(batch) > 1:
            self._batch_refused(batch, error)
        else:
            self._message_refused(batch[0], error)
        if self._waiting:
            self.send_waiting()

    def _remove_in_flight(self, batch: list[InFlightMessage]) -> int:
        """Count messages as not in flight any more; return their bytes."""
        size = sum([message.size for message in batch])
        self._in_flight -= len(batch)
        self._bytes_in_flight -= size
        return size

    def _batch_refused(self, batch: list[InFlightMessage], error: LinkError) -> None:
        """Hold the batch back, or send its messages singly to find the one that is to blame."""
        session = batch[0].session
        if session is None:
            self._waiting.extendleft(reversed(batch))
        else:
            queue = self._sessions.setdefault(session, SessionQueue(session))
            queue.messages.extendleft(reversed(batch))
            self._waiting.appendleft(queue)
        if self.hold_error is not None or refusal_of(error.condition) is Refusal.HOLD:
            self.fail(error)
        for message in batch:
            message.sent_alone = True

    def _message_refused(self, message: InFlightMessage, error: LinkError) -> None:
        """Hold a message back or dead-letter it, as the condition says."""
        refusal = refusal_of(error.condition)
        if refusal is Refusal.UNKNOWN:
            refusal = Refusal.DEAD_LETTER if message.delivery_count >= MAX_UNKNOWN_DELIVERIES else Refusal.HOLD
        if refusal is Refusal.HOLD:
            if self.hold_error is None:
                self._window.refused()
                self.hold_error = error
            self._events.held(message, self)
            self.fail(error)
            return
        self._refuse(message, error)
        self._refused_on_link = True
        if error.condition not in MESSAGE_CONDITIONS:
            self.fail(error, for_good=_is_for_good(error))
        elif message.session is not None:
            self._resume_session(message.session)

    def _refuse(self, message: InFlightMessage, error: LinkError) -> None:
        description = f"{self.name} refused it for good: {error.description or error.condition}"
        self._events.refused(message, error.condition or "refused", description)

    def fail(self, error: LinkError, *, for_good: bool = False) -> None:
        """Hold back the messages that wait, and those that follow in this pass; `for_good`: dead-letter them."""
        for_good = for_good and self.hold_error is None
        if for_good:
            self._fatal_error = error
        elif self.hold_error is None:
            self.hold_error = error
            self._window.refused()
        waiting = [each for each in self._waiting if isinstance(each, InFlightMessage)]
        waiting += [each for queue in self._sessions.values() for each in queue.messages]
        self._waiting.clear()
        self._sessions.clear()
        for message in waiting:
            if for_good:
                self._refuse(message, error)
            else:
                self._events.held(message, self)

    def on_credit(self) -> None:
        self.send_waiting()

    def on_closed(self, error: LinkError) -> None:
        """Decide on the messages of a link that was lost, alone or with its connection."""
        sender, self._sender = self._sender, None
        if not (isinstance(error, ConnectionLost) or self._in_flight or self.is_waiting):
            # The service ends links that are idle for ten minutes. The next message opens another, or shows the cause.
            self._opening, self._refused_on_link = None, False
            return
        of_the_message = error.condition in MESSAGE_CONDITIONS
        if isinstance(error, ConnectionLost) or not (of_the_message or refusal_of(error.condition) is Refusal.UNKNOWN):
            self._doubt_unanswered(sender, error)
            self.fail(error, for_good=_is_for_good(error))
            return
        # One message ended the link, and the error does not say which. The next pass sends them singly.
        unanswered = self._in_flight
        if unanswered == 1 and self._window.is_isolating and sender is not None and not self._refused_on_link:
            (message,) = sender.abandon_unanswered()
            self._in_flight = self._bytes_in_flight = 0
            if of_the_message or message.delivery_count >= MAX_UNKNOWN_DELIVERIES:
                self._refuse(message, error)
            else:
                self._doubt([message], error)
            self.fail(error)
        else:
            self._doubt_unanswered(sender, error)
            self.fail(error)
            self._window.isolate(unanswered)

    def _doubt_unanswered(self, sender: Sender | None, error: LinkError) -> None:
        for context in [] if sender is None else sender.abandon_unanswered():
            batch: list[InFlightMessage] = context if type(context) is list else [context]
            self._remove_in_flight(batch)
            self._doubt(batch, error)

    def _doubt(self, batch: list[InFlightMessage], error: LinkError) -> None:
        for message in batch:
            self._events.in_doubt(message, f"{self.name} did not answer: {error}")

    # --- deadlines ---------------------------------------------------------------------------------------

    def check_deadlines(self, now: float, answer_timeout: float) -> None:
        """Fail if the oldest answer is overdue, or if a message waits that may not be sent any more."""
        sender = self._sender
        if sender is not None and self._in_flight:
            oldest = sender.oldest_unanswered()
            first = oldest[0] if type(oldest) is list else oldest
            if first is not None and (now - first.sent_at > answer_timeout or now > first.answer_by):
                error = LinkError("com.microsoft:timeout", f"no answer within {now - first.sent_at:.1f} s")
                self._sender = None
                self._doubt_unanswered(sender, error)
                sender.close()
                self.fail(error)
                return
        firsts: list[InFlightMessage | SessionQueue] = [queue for queue in self._sessions.values() if queue.messages]
        single = next((each for each in self._waiting if isinstance(each, InFlightMessage)), None)
        if single is not None:
            firsts.append(single)
        if any(now > each.send_by for each in firsts):
            self._fail_as_too_slow()

    def _fail_as_too_slow(self) -> None:
        self.fail(LinkError("com.microsoft:timeout", "it takes messages more slowly than their locks last"))


def _is_for_good(error: LinkError) -> bool:
    """Return True if no retry helps; a lost connection is never the destination's own fault."""
    return not isinstance(error, ConnectionLost) and refusal_of(error.condition) is Refusal.DEAD_LETTER
