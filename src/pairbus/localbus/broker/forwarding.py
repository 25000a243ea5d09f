"""Moving messages between entities: from a topic to its subscriptions, and from a queue to where it forwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pairbus.domain.sqlfilter import SqlEvaluationError
from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.message import COPIED, SCHEDULED, Draft, Message, read_message
from pairbus.localbus.entities.payload import MessageView, Parts
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic, view_of

if TYPE_CHECKING:
    from .broker import Broker

log = logging.getLogger("pairbus.localbus.broker")

MAX_HOPS = 4
_BATCH = 500

#: Dead-letter reasons, as the service writes them.
_NO_SESSION = (
    "Session ID is null.",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
_EXCEPTIONS = {
    bus_errors.ENTITY_DISABLED: "MessagingEntityDisabledException",
    bus_errors.RESOURCE_LIMIT_EXCEEDED: "QuotaExceededException",
    bus_errors.MESSAGE_SIZE_EXCEEDED: "MessageSizeExceededException",
}


class Forwarder:
    """The moves between a broker's entities, a batch of messages at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def fan_out(self, topic: Topic, now: float) -> bool:
        """Copy a batch of a topic's messages to its subscriptions; return False if there was none."""
        messages = topic.inbox.acquire(now, _BATCH)
        for message, payload in zip(messages, self._broker.payloads(messages), strict=True):
            self._copy_to_subscriptions(topic, message, payload, now)
            topic.inbox.remove_locked(message)
        return bool(messages)

    def _copy_to_subscriptions(self, topic: Topic, message: Message, payload: bytes, now: float) -> None:
        view: MessageView | None = None
        hops = message.hops | COPIED
        for subscription in topic.subscriptions.values():
            if view is None and not subscription.matches_all:
                view = view_of(message, payload)
            try:
                copies = subscription.copies(payload, None if subscription.matches_all else view)
            except Exception as error:
                # A failing rule must not stop the server: the subscription's settings say what happens to the copy.
                if not isinstance(error, SqlEvaluationError):
                    log.exception("a rule of '%s' failed on a message; the other rules go on", subscription.queue.path)
                if subscription.settings.dead_lettering_on_filter_evaluation_exceptions:
                    reason = ("FilterEvaluationException", f"A rule could not be evaluated: {error}")
                    self._add_copy(subscription.queue, message, payload, now, hops, dead_letter_reason=reason)
                continue
            for copy in copies:
                self._add_copy(subscription.queue, message, copy, now, hops, edited=copy is not payload)

    def forward(self, queue: Queue, now: float) -> bool:
        """Move a batch of a queue's messages to its forwarding destination.

        Returns False if there was none, or if some could not be moved: the caller tries again later.
        """
        path = queue.settings.forward_to or ""
        target = self._broker.queue(path) or self._broker.topic(path)
        messages = queue.acquire_any(now, _BATCH)
        kept = []
        for message, payload in zip(messages, self._broker.payloads(messages), strict=True):
            error = self._forwarding_error(message, target, path)
            if error is None:
                assert target is not None
                inbox = target.inbox if isinstance(target, Topic) else target
                self._add_copy(inbox, message, payload, now, message.hops + 1)
                queue.remove_locked(message)
            elif queue.transfer_dead_letters is not None:
                queue.move_to_sub_queue(queue.transfer_dead_letters, message, *error)
            else:
                kept.append(message)
        for message in kept:
            # A dead-letter queue has no transfer dead-letter queue: its messages stay, and are tried again.
            queue.undo_acquire(message)
        if kept:
            self._broker.retry_forwarding(queue, now)
        return bool(messages) and not kept

    def _forwarding_error(self, message: Message, target: Queue | Topic | None, path: str) -> tuple[str, str] | None:
        """Return the reason and description why a message cannot be forwarded; None if it can."""
        if target is None:
            return "MessagingEntityNotFoundException", f"The forwarding destination '{path}' does not exist."
        if message.hops % COPIED >= MAX_HOPS:
            return "MaxTransferHopCountExceeded", f"The message has been forwarded {MAX_HOPS} times already."
        inbox = target.inbox if isinstance(target, Topic) else target
        try:
            self._broker.check_send(target)
            self._broker.check_quota(target, inbox, [Draft(b"", message.size)])
        except BusError as error:
            return _EXCEPTIONS.get(error.condition, "MessagingException"), error.description
        if inbox.settings.requires_session and message.session_id is None:
            return _NO_SESSION
        return None

    def _add_copy(
        self,
        queue: Queue,
        message: Message,
        payload: bytes,
        now: float,
        hops: int,
        *,
        edited: bool = False,
        dead_letter_reason: tuple[str, str] | None = None,
    ) -> None:
        """Add a copy of a message that another entity has accepted; with a reason, to the dead letters."""
        draft = Draft(payload, message.size, None, message.session_id, message.time_to_live)
        if edited:
            draft = _reread(draft)
        if message.expires_at != float("inf") and draft.time_to_live == message.time_to_live:
            draft.time_to_live = message.expires_at - now
        detects_duplicates = queue.settings.requires_duplicate_detection
        if detects_duplicates and queue.is_duplicate(_reread(draft).message_id, now):
            return
        if queue.settings.requires_session and draft.session_id is None:
            dead_letter_reason = _NO_SESSION
        copy = Message(self._broker.new_id(), queue.next_sequence, now, draft)
        queue.next_sequence += 1
        copy.enqueue_sequence = message.enqueue_sequence
        copy.hops = hops
        copy.source = message.source
        if edited and draft.scheduled_at is not None and draft.scheduled_at > now:
            copy.state = SCHEDULED
        else:
            copy.expires_at = queue.expiry(copy, now)
        queue.insert(copy)
        self._broker.stored(queue, copy)
        if dead_letter_reason is not None:
            queue.move_to_dead_letters(copy, *dead_letter_reason)


def _reread(draft: Draft) -> Draft:
    """Parse a draft's payload again: a rule's action may have changed properties that the broker acts on."""
    found = read_message(Parts.of(draft.payload).sent())
    found.size = draft.size
    return found
