"""Where messages go: one destination's link, what waits for it, what is in flight to it, and why it is left alone.

Messages go out in parcels, batches that the service takes whole or not at all. Those without a session go as fast as
credit and pace allow. Those of one session have a lane of their own, in which one parcel is under way at a time, so
that none overtakes another that is refused: what has come up behind meanwhile makes the next parcel.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from pairbus.domain.conditions import MAX_UNKNOWN_DELIVERIES, MESSAGE_CONDITIONS, Refusal, refusal_of
from pairbus.syphon.amqp.link import ACCEPTED, ConnectionLost, LinkError, Sender, batch_head

from .flow_control import Pace
from .hosts import Host
from .in_flight import Moving

log = logging.getLogger("pairbus.syphon")

#: A batch is never larger than this, nor than the link allows: what the service takes as a batch in every tier.
_BATCH_BYTES = 200 * 1024
_BATCH_OVERHEAD = 8  # a message
_BATCH_MESSAGES = 500
_NO_LIMIT = 2**63


class Lane:
    """The messages of one session that are not sent yet, in their order."""

    __slots__ = ("head", "messages", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.head = batch_head(session)
        self.messages: deque[Moving] = deque()

    @property
    def ends_at(self) -> float:
        """Until when its next message may be sent."""
        return self.messages[0].ends_at


class Owner(Protocol):
    """Who is told what became of a message."""

    def accepted(self, message: Moving) -> None: ...
    def refused(self, message: Moving, reason: str, description: str) -> None: ...
    def held(self, message: Moving, destination: Destination) -> None: ...
    def doubtful(self, message: Moving, why: str) -> None: ...


class Destination:
    """One entity that messages go to, for one pass."""

    def __init__(self, name: str, path: str, host: Host, pace: Pace, owner: Owner) -> None:
        #: As people know it, and its address.
        self.name = name
        self.path = path
        self._host = host
        self._pace = pace
        self._owner = owner
        self._sender: Sender | None = None
        self._opening: asyncio.Task[None] | None = None
        #: Why it is left alone for the rest of the pass.
        self.held_for: LinkError | None = None
        #: Why every message for it is dead-lettered.
        self._gone: LinkError | None = None
        #: What is to be sent next: messages without a session, and lanes of which nothing is in flight.
        self._waiting: deque[Moving | Lane] = deque()
        #: The lanes that are in line, or of which a parcel is in flight.
        self._lanes: dict[str, Lane] = {}
        self._in_flight = self._bytes_in_flight = 0
        #: Whether a message was refused on this link: should it end, that one may be why.
        self._has_refused = False

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for it that was not sent yet."""
        return bool(self._waiting) or any(lane.messages for lane in self._lanes.values())

    @property
    def is_busy(self) -> bool:
        """Whether something was sent to it that is not answered."""
        return bool(self._in_flight)

    def end(self, error: LinkError) -> None:
        """Nobody waits for it any longer: what was not answered is in doubt."""
        if self._opening is not None:
            self._opening.cancel()
        sender, self._sender = self._sender, None
        self.give_up_unanswered(sender, error)
        if self.is_waiting:
            self.failed(error)

    # --- taking messages ---------------------------------------------------------------------------------

    def take(self, message: Moving) -> None:
        """Put a message in line; what came together is sent together, by the next `pump`."""
        if self.held_for is not None:
            self._owner.held(message, self)
        elif self._gone is not None:
            self._refuse(message, self._gone)
        elif message.session is None:
            self._line_up(message)
        elif (lane := self._lanes.get(message.session)) is not None:
            lane.messages.append(message)  # its turn comes
        else:
            lane = self._lanes[message.session] = Lane(message.session)
            lane.messages.append(message)
            self._line_up(lane)

    def _line_up(self, what: Moving | Lane) -> None:
        self._waiting.append(what)
        if self._sender is None and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            connection = await self._host.connection()
            await connection.authorize(self._host.token_path(self.path), timeout=self._host.timeout)
            self._sender = await connection.sender(self.path, self, timeout=self._host.timeout)
        except LinkError as error:
            self.failed(error, for_good=_is_for_good(error))
        except Exception as unforeseen:  # nobody awaits this: what waits for it must not wait for nothing
            log.exception("no link could be opened to %s", self.name)
            self.failed(LinkError(None, f"{type(unforeseen).__name__}: {unforeseen}"))
        else:
            self.pump()

    def pump(self) -> None:
        """Send what credit and pace allow."""
        sender, waiting = self._sender, self._waiting
        if sender is None or not waiting:
            return
        credit = sender.credit
        most = sender.most_bytes or _NO_LIMIT
        now = sender.loop_time()
        while credit > 0 and waiting and (room := self._pace.room(self._in_flight, self._bytes_in_flight)) > 0:
            following = waiting[0]
            if now > following.ends_at:  # this process stood still, and its locks may be another's by now
                self._too_slow()
                return
            if isinstance(following, Lane):
                waiting.popleft()
                sent = self._send_lane(sender, following, most, room, now)
            else:
                sent = self._send_parcel(sender, waiting, b"", most, room, now)
            credit -= sent > 0

    def _refuse_size(self, message: Moving, most: int) -> None:
        said = f"the message has {message.size} bytes, the limit is {most}"
        self._refuse(message, LinkError("amqp:link:message-size-exceeded", said))

    def _send_lane(self, sender: Sender, lane: Lane, most: int, room: int, now: float) -> int:
        """As much of a lane as goes at once; how many messages that is."""
        sent = 0
        while lane.messages and not sent:
            sent = self._send_parcel(sender, lane.messages, lane.head, most, room, now)
        if not sent:
            del self._lanes[lane.session]
        return sent

    def _send_parcel(self, sender: Sender, messages: deque[Any], head: bytes, most: int, room: int, now: float) -> int:
        """The first of some messages, and as many behind it as make a batch with it; how many were sent."""
        first: Moving = messages.popleft()
        if first.size > most:
            self._refuse_size(first, most)
            return 0
        first.sent_at = now
        if messages and self._host.takes_batches and not first.alone:
            parcel = [first]
            most = min(most, _BATCH_BYTES)
            room = min(room, _BATCH_MESSAGES)
            size, sizes = len(head) + first.size + _BATCH_OVERHEAD, first.size
            while messages and len(parcel) < room:
                following = messages[0]
                if type(following) is not Moving or following.alone:
                    break
                size += following.size + _BATCH_OVERHEAD
                if size > most:
                    break
                following.sent_at = now
                sizes += following.size
                parcel.append(messages.popleft())
            if len(parcel) > 1:
                self._in_flight += len(parcel)
                self._bytes_in_flight += sizes
                sender.send_batch(head, [message.message for message in parcel], parcel)
                return len(parcel)
        self._in_flight += 1
        self._bytes_in_flight += first.size
        sender.send(first.message, first)
        return 1

    def _go_on(self, session: str) -> None:
        """What was in flight of a session is answered: the rest of it is in line again."""
        lane = self._lanes.get(session)
        if lane is None:  # held back meanwhile
            return
        if lane.messages:
            self._waiting.append(lane)
        else:
            del self._lanes[session]

    # --- what the link tells -----------------------------------------------------------------------------

    def on_outcome(self, context: Any, state: int, error: LinkError | None) -> None:
        parcel: list[Moving] = context if type(context) is list else [context]
        size = self._answered_for(parcel)
        session = parcel[0].session
        if state == ACCEPTED:
            sender = self._sender
            self._pace.accepted(len(parcel), 0.0 if sender is None else sender.loop_time() - parcel[0].sent_at, size)
            for message in parcel:
                self._owner.accepted(message)
            if session is not None:
                self._go_on(session)
        elif not state:
            assert error is not None
            self._in_doubt(parcel, error)
            self.failed(error)
        elif len(parcel) > 1:
            assert error is not None
            self._batch_refused(parcel, error)
        else:
            assert error is not None
            self._answered(parcel[0], error)
        if self._waiting:
            self.pump()

    def _answered_for(self, parcel: list[Moving]) -> int:
        """These are in flight no more; their bytes."""
        size = sum([message.size for message in parcel])
        self._in_flight -= len(parcel)
        self._bytes_in_flight -= size
        return size

    def _batch_refused(self, parcel: list[Moving], error: LinkError) -> None:
        session = parcel[0].session
        if session is None:
            self._waiting.extendleft(reversed(parcel))
        else:
            lane = self._lanes.setdefault(session, Lane(session))
            lane.messages.extendleft(reversed(parcel))
            self._waiting.appendleft(lane)
        if self.held_for is not None or refusal_of(error.condition) is Refusal.HOLD:
            self.failed(error)
        for message in parcel:  # one of them is to blame: they go one by one
            message.alone = True

    def _answered(self, message: Moving, error: LinkError) -> None:
        """One message was refused."""
        meaning = refusal_of(error.condition)
        if meaning is Refusal.UNKNOWN:
            meaning = Refusal.DEAD_LETTER if message.delivered_count >= MAX_UNKNOWN_DELIVERIES else Refusal.HOLD
        if meaning is Refusal.HOLD:
            if self.held_for is None:
                self._pace.refused()
                self.held_for = error
            self._owner.held(message, self)
            self.failed(error)
            return
        self._refuse(message, error)
        self._has_refused = True
        if error.condition not in MESSAGE_CONDITIONS:
            self.failed(error, for_good=_is_for_good(error))
        elif message.session is not None:
            self._go_on(message.session)

    def _refuse(self, message: Moving, error: LinkError) -> None:
        said = f"{self.name} refused it for good: {error.description or error.condition}"
        self._owner.refused(message, error.condition or "refused", said)

    def failed(self, error: LinkError, *, for_good: bool = False) -> None:
        """It takes nothing now, or never: what waits for it is held back, or dead-lettered."""
        for_good = for_good and self.held_for is None
        if for_good:
            self._gone = error
        elif self.held_for is None:
            self.held_for = error
            self._pace.refused()
        waiting = [each for each in self._waiting if isinstance(each, Moving)]
        waiting += [each for lane in self._lanes.values() for each in lane.messages]
        self._waiting.clear()
        self._lanes.clear()
        for message in waiting:
            if for_good:
                self._refuse(message, error)
            else:
                self._owner.held(message, self)

    def on_credit(self) -> None:
        self.pump()

    def on_closed(self, error: LinkError) -> None:
        """The link, or its connection, is gone: nobody knows what became of what was in flight."""
        sender, self._sender = self._sender, None
        if not (isinstance(error, ConnectionLost) or self._in_flight or self.is_waiting):
            # The service ends links that are idle for ten minutes. It is opened again when needed, or says why not.
            self._opening, self._has_refused = None, False
            return
        of_the_message = error.condition in MESSAGE_CONDITIONS
        if isinstance(error, ConnectionLost) or not (of_the_message or refusal_of(error.condition) is Refusal.UNKNOWN):
            self.give_up_unanswered(sender, error)
            self.failed(error, for_good=_is_for_good(error))
            return
        # It ended because of one message, and says nothing of the others. Which one it was shows when they come again.
        unanswered = self._in_flight
        if unanswered == 1 and self._pace.is_searching and sender is not None and not self._has_refused:
            (message,) = sender.abandon_unanswered()
            self._in_flight = self._bytes_in_flight = 0
            if of_the_message or message.delivered_count >= MAX_UNKNOWN_DELIVERIES:
                self._refuse(message, error)
            else:
                self._in_doubt([message], error)
            self.failed(error)
        else:
            self.give_up_unanswered(sender, error)
            self.failed(error)
            self._pace.one_by_one(unanswered)

    def give_up_unanswered(self, sender: Sender | None, error: LinkError) -> None:
        for context in [] if sender is None else sender.abandon_unanswered():
            parcel: list[Moving] = context if type(context) is list else [context]
            self._answered_for(parcel)
            self._in_doubt(parcel, error)

    def _in_doubt(self, parcel: list[Moving], error: LinkError) -> None:
        for message in parcel:
            self._owner.doubtful(message, f"{self.name} did not answer: {error}")

    # --- time --------------------------------------------------------------------------------------------

    def look(self, now: float, patience: float) -> None:
        """Hold it if it has not answered for too long, or what waits for it can wait no longer."""
        sender = self._sender
        if sender is not None and self._in_flight:
            oldest = sender.oldest_unanswered()
            first = oldest[0] if type(oldest) is list else oldest
            if first is not None and (now - first.sent_at > patience or now > first.answer_by):
                error = LinkError("com.microsoft:timeout", f"no answer within {now - first.sent_at:.1f} s")
                self._sender = None
                self.give_up_unanswered(sender, error)
                sender.close()
                self.failed(error)
                return
        firsts: list[Moving | Lane] = [lane for lane in self._lanes.values() if lane.messages]
        alone = next((each for each in self._waiting if isinstance(each, Moving)), None)
        if alone is not None:
            firsts.append(alone)
        if any(now > each.ends_at for each in firsts):
            self._too_slow()

    def _too_slow(self) -> None:
        self.failed(LinkError("com.microsoft:timeout", "it takes messages more slowly than their locks last"))


def _is_for_good(error: LinkError) -> bool:
    """Whether no retry mends it. That a connection was lost is never a destination's own fault."""
    return not isinstance(error, ConnectionLost) and refusal_of(error.condition) is Refusal.DEAD_LETTER
