"""Operations of an entity's `$management`: locks, peeking, schedules, sessions, rules, event hub properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from pairbus.domain.amqp.codec import AmqpDecodeError, Array, Long, Timestamp
from pairbus.localbus import bus_errors
from pairbus.localbus.auth import LISTEN, MANAGE, SEND
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.locks import swap_guid
from pairbus.localbus.entities.message import Message, read_message
from pairbus.localbus.entities.message_store import NEVER
from pairbus.localbus.entities.payload import Parts
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Subscription, Topic

from .requests import Reply, Request
from .rule_maps import read_rule, write_rule

_LONGS, _TIMES, _STRINGS = 0x81, 0x83, 0xB1
_MAX_PEEK = 1000
_MAX_DELETE = 4000
_MAX_REPLY = 512 * 1024
#: The largest reply with deferred messages: all that were requested or an error; a single one may be of any size.
_MAX_RECEIVED = 32 * 1024 * 1024
#: The last second of .NET's calendar, in milliseconds. Sessions "updated since" then are all sessions.
_DOTNET_MAX_MS = 253_402_300_799_000


class Operations:
    """Carries out one entity's management requests."""

    def __init__(self, broker: Broker, now: Callable[[], float]) -> None:
        self._broker = broker
        self._now = now
        self._operations: dict[str, tuple[str, Callable[[Any, Request], Reply]]] = {
            "com.microsoft:renew-lock": (LISTEN, self._renew_lock),
            "com.microsoft:peek-message": (LISTEN, self._peek),
            "com.microsoft:schedule-message": (SEND, self._schedule),
            "com.microsoft:cancel-scheduled-message": (SEND, self._cancel),
            "com.microsoft:receive-by-sequence-number": (LISTEN, self._receive),
            "com.microsoft:update-disposition": (LISTEN, self._dispose),
            "com.microsoft:set-session-state": (LISTEN, self._set_state),
            "com.microsoft:get-session-state": (LISTEN, self._get_state),
            "com.microsoft:renew-session-lock": (LISTEN, self._renew_session),
            "com.microsoft:get-message-sessions": (LISTEN, self._list_sessions),
            "com.microsoft:add-rule": (MANAGE, self._add_rule),
            "com.microsoft:remove-rule": (MANAGE, self._remove_rule),
            "com.microsoft:enumerate-rules": (MANAGE, self._list_rules),
            "com.microsoft:batch-delete-messages": (LISTEN, self._delete_messages),
            "READ": (LISTEN, self._read_hub),
        }

    def right(self, request: Request) -> str:
        """Return the claim that an operation needs; the service lets rules be managed with Listen."""
        right = self._operations.get(request.operation, (LISTEN, None))[0]
        return LISTEN if right == MANAGE else right

    def handle(self, target: Queue | Topic | Hub, request: Request) -> Reply:
        """Carry out a request; errors become replies."""
        found = self._operations.get(request.operation)
        if found is None:
            return Reply.of(
                BusError(
                    bus_errors.NOT_IMPLEMENTED,
                    f"The operation '{request.operation}' is not known; known are: {', '.join(self._operations)}.",
                )
            )
        self._broker.usage.touch(target)
        try:
            return found[1](target, request)
        except BusError as error:
            return Reply.of(error)
        except AmqpDecodeError as error:
            return Reply.of(BusError(bus_errors.ARGUMENT_ERROR, f"{request.operation}: {error}."))

    def _enabled(self, target: Any, action: str) -> Queue:
        """Return the target as a queue; raise a BusError if it is disabled for receiving."""
        queue = _queue(target)
        self._broker.check_enabled(queue, action)
        return queue

    def _renew_lock(self, target: Any, request: Request) -> Reply:
        queue, now = self._enabled(target, bus_errors.RENEWING), self._now()
        ends = [queue.renew(_tag(token), now) for token in request.field("lock-tokens", list)]
        return Reply(body={"expirations": Array(_TIMES, [int(end * 1000) for end in ends])})

    def _dispose(self, target: Any, request: Request) -> Reply:
        queue, now = self._enabled(target, bus_errors.SETTLING), self._now()
        tags = {_tag(token): None for token in request.field("lock-tokens", list)}  # a token may be listed twice
        status = request.field("disposition-status", str).lower()
        properties = request.field("properties-to-modify", dict, optional=True)
        changes = {str(name): value for name, value in (properties or {}).items()}
        for tag in tags:
            queue.locked(tag, now)
        for tag in tags:
            if status == "completed":
                queue.complete(tag, now)
            elif status in ("abandoned", "unlocked"):
                queue.abandon(tag, now, changes)
            elif status in ("defered", "deferred"):
                queue.defer(tag, now, changes)
            elif status == "suspended":
                reason = request.field("deadletter-reason", str, optional=True)
                description = request.field("deadletter-description", str, optional=True)
                queue.dead_letter(tag, now, reason, description, changes)
            else:
                raise AmqpDecodeError(f"disposition-status '{status}' is not known")
        return Reply()

    def _peek(self, target: Any, request: Request) -> Reply:
        queue = target.inbox if isinstance(target, Topic) else _queue(target)
        limit = min(max(request.field("message-count", int), 0), _MAX_PEEK)
        session = request.field("session-id", str, optional=True)
        omit_body = request.field("omit-message-body", bool, optional=True)
        messages = queue.peek(request.field("from-sequence-number", int), limit, session)
        if not messages:
            return Reply(204, "No messages to peek.", bus_errors.MESSAGE_NOT_FOUND, {"messages": []})
        listed: list[dict[str, Any]] = []
        size = 0
        for message in messages:
            payload = self._broker.payloads([message])[0]
            if omit_body:
                payload = Parts.of(payload).without_body().pack()
            size += len(payload)
            if listed and size > _MAX_REPLY:
                break
            listed.append({"message": message.delivered(payload)})
        return Reply(body={"messages": listed})

    def _receive(self, target: Any, request: Request) -> Reply:
        queue, now = self._enabled(target, "receiving from"), self._now()
        name = request.field("session-id", str, optional=True)
        session = queue.held_session(name, now) if name is not None and queue.sessions is not None else None
        delete = request.field("receiver-settle-mode", int, optional=True) == 0
        sequences = _numbers(request)
        owner = None if session is None else session.owner
        messages = queue.receive_deferred(sequences, now, owner, session, delete=delete, max_bytes=_MAX_RECEIVED)
        return Reply(body={"messages": [self._received(message) for message in messages]})

    def _received(self, message: Message) -> dict[str, Any]:
        payload = self._broker.payloads([message])[0]
        if message.lock is None:
            return {"message": message.delivered(payload)}
        token = swap_guid(message.lock.tag)
        return {"message": message.delivered(payload, token, message.lock.end), "lock-token": UUID(bytes=token)}

    def _delete_messages(self, target: Any, request: Request) -> Reply:
        queue = self._enabled(target, "deleting messages of")
        limit = min(max(request.field("message-count", int), 0), _MAX_DELETE)
        before = request.field("enqueued-time-utc", int, optional=True)
        session = request.field("session-id", str, optional=True)
        if session is not None and queue.sessions is not None:
            queue.held_session(session, self._now())
        deleted = queue.delete_oldest(limit, NEVER if before is None else before, session)
        return Reply(200 if deleted else 204, "OK", None, {"message-count": deleted})

    def _schedule(self, target: Any, request: Request) -> Reply:
        now = self._now()
        drafts = []
        for each in request.field("messages", list):
            raw = each.get("message") if isinstance(each, dict) else None
            if not isinstance(raw, bytes):
                raise AmqpDecodeError("each of 'messages' must be a map with a binary 'message'")
            drafts.append(read_message(raw))
        numbers = self._broker.schedule(target, drafts, now)
        return Reply(body={"sequence-numbers": Array(_LONGS, numbers) if numbers else []})

    def _cancel(self, target: Any, request: Request) -> Reply:
        queue = target.inbox if isinstance(target, Topic) else _queue(target)
        queue.cancel_scheduled(_numbers(request))
        return Reply()

    def _set_state(self, target: Any, request: Request) -> Reply:
        state = request.field("session-state", (bytes, str), optional=True)
        raw = state.encode() if isinstance(state, str) else state
        # Go's SDK clears a state with empty bytes instead of null; the service takes both.
        _queue(target).set_session_state(request.field("session-id", str), raw or None, self._now())
        return Reply()

    def _get_state(self, target: Any, request: Request) -> Reply:
        session = _queue(target).held_session(request.field("session-id", str), self._now())
        return Reply(body={"session-state": session.state})

    def _renew_session(self, target: Any, request: Request) -> Reply:
        until = self._enabled(target, bus_errors.RENEWING).renew_session(request.field("session-id", str), self._now())
        return Reply(body={"expiration": Timestamp(int(until * 1000))})

    def _list_sessions(self, target: Any, request: Request) -> Reply:
        since = request.field("last-updated-time", int, optional=True)
        names = _queue(target).session_ids(None if since is None or since >= _DOTNET_MAX_MS else since / 1000)
        skip, page = _page(request, names)
        if not page:
            # Without a body: Python's SDK cannot read an empty array.
            return Reply(204, "No sessions.", "com.microsoft:session-not-found")
        return Reply(body={"skip": skip + len(page), "sessions-ids": Array(_STRINGS, page)})

    def _add_rule(self, target: Any, request: Request) -> Reply:
        topic, subscription = self._subscription(target)
        name = request.field("rule-name", str)
        rule = read_rule(name, request.field("rule-description", dict))
        self._broker.create_rule(topic.settings.name, subscription.name, rule)
        return Reply()

    def _remove_rule(self, target: Any, request: Request) -> Reply:
        topic, subscription = self._subscription(target)
        self._broker.delete_rule(topic.settings.name, subscription.name, request.field("rule-name", str))
        return Reply()

    def _list_rules(self, target: Any, request: Request) -> Reply:
        _, subscription = self._subscription(target)
        _, page = _page(request, [subscription.rules[key] for key in sorted(subscription.rules)])
        if not page:
            return Reply(204, "No rules.", body={"rules": []})
        return Reply(body={"rules": [{"rule-description": write_rule(r.settings, r.created_at)} for r in page]})

    def _subscription(self, target: Any) -> tuple[Topic, Subscription]:
        for topic in self._broker.topics():
            for subscription in topic.subscriptions.values():
                if subscription.queue is target:
                    return topic, subscription
        raise BusError(bus_errors.NOT_ALLOWED, "Rules belong to subscriptions; this is not one.")

    def _read_hub(self, target: Any, request: Request) -> Reply:
        if not isinstance(target, Hub):
            raise BusError(bus_errors.NOT_ALLOWED, "Only an event hub has properties to read.")
        kind = str(request.properties.get("type", ""))
        created = Timestamp(int(target.created_at * 1000))
        name = target.settings.name
        if kind == "com.microsoft:eventhub":
            return Reply(
                body={
                    "name": name,
                    "type": kind,
                    "created_at": created,
                    "partition_count": len(target.partitions),
                    "partition_ids": Array(_STRINGS, target.partition_ids),
                    "georeplication_factor": 1,
                }
            )
        if kind != "com.microsoft:partition":
            raise BusError(bus_errors.NOT_IMPLEMENTED, f"'{kind}' cannot be read here.")
        partition = target.partition(str(request.properties.get("partition")))
        last = partition.events[-1] if partition.events else None
        return Reply(
            body={
                "name": name,
                "type": kind,
                "partition": partition.id,
                "begin_sequence_number": Long(0),
                "last_enqueued_sequence_number": Long(-1 if last is None else last.sequence),
                "last_enqueued_offset": "-1" if last is None else str(last.offset),
                "last_enqueued_time_utc": Timestamp(0 if last is None else int(last.enqueued_at * 1000)),
                "is_partition_empty": last is None,
            }
        )


def _page(request: Request, found: list[Any]) -> tuple[int, list[Any]]:
    skip, top = max(request.field("skip", int), 0), max(request.field("top", int), 0)
    return skip, found[skip : skip + top]


def _numbers(request: Request) -> list[int]:
    numbers = request.field("sequence-numbers", list)
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise AmqpDecodeError("a sequence number must be a whole number")
    return [int(number) for number in numbers]


def _queue(target: Any) -> Queue:
    if not isinstance(target, Queue):
        raise BusError(bus_errors.NOT_ALLOWED, "This operation needs an entity that holds messages.")
    return target


def _tag(token: Any) -> bytes:
    if not isinstance(token, UUID):
        raise AmqpDecodeError("a lock token must be a uuid")
    return swap_guid(token.bytes)
