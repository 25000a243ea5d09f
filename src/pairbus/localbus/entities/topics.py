"""Topics: subscriptions, the rules that filter their messages, and the actions that edit the copies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import Long, Symbol, Timestamp, UInt, encode
from pairbus.domain.sqlfilter import Edit, SqlAction, SqlSyntaxError, parse_action, parse_filter
from pairbus.domain.sqlfilter.properties import user_value
from pairbus.localbus.bus_errors import INVALID_FIELD, BusError
from pairbus.localbus.settings import (
    FOREVER,
    CorrelationFilter,
    Counts,
    FalseFilter,
    QueueSettings,
    RuleFilter,
    RuleSettings,
    SqlExpression,
    TopicSettings,
    TrueFilter,
)

from .message import Message
from .payload import MessageView, Parts, encode_plain
from .queues import Queue

Matcher = Callable[[MessageView], bool]

_FIELDS = {
    "messageid": sections.MESSAGE_ID,
    "to": sections.TO,
    "label": sections.SUBJECT,
    "replyto": sections.REPLY_TO,
    "correlationid": sections.CORRELATION_ID,
    "contenttype": sections.CONTENT_TYPE,
    "sessionid": sections.GROUP_ID,
    "replytosessionid": sections.REPLY_TO_GROUP_ID,
}


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST_MOMENT = datetime.max.replace(tzinfo=timezone.utc)


class Rule:
    """A subscription's rule with its filter and action compiled."""

    def __init__(self, settings: RuleSettings, created_at: float) -> None:
        self.settings = settings
        self.created_at = created_at
        self.matches = compile_filter(settings.filter)
        self.matches_all = isinstance(settings.filter, TrueFilter)
        self.action: SqlAction | None = None
        if settings.action is not None and settings.action.text.strip():
            try:
                self.action = parse_action(settings.action.text, settings.action.parameters)
            except SqlSyntaxError as error:
                raise BusError(INVALID_FIELD, f"The action of rule '{settings.name}': {error}") from None


def compile_filter(chosen: RuleFilter) -> Matcher:
    """Compile a filter; raise `BusError` if its SQL is wrong."""
    if isinstance(chosen, TrueFilter):
        return lambda view: True
    if isinstance(chosen, FalseFilter):
        return lambda view: False
    if isinstance(chosen, SqlExpression):
        try:
            return parse_filter(chosen.text, chosen.parameters).matches
        except SqlSyntaxError as error:
            raise BusError(INVALID_FIELD, f"The filter '{chosen.text}': {error}") from None
    return _correlation(chosen)


def _correlation(chosen: CorrelationFilter) -> Matcher:
    system = {
        "correlationid": chosen.correlation_id,
        "messageid": chosen.message_id,
        "to": chosen.to,
        "replyto": chosen.reply_to,
        "label": chosen.label,
        "sessionid": chosen.session_id,
        "replytosessionid": chosen.reply_to_session_id,
        "contenttype": chosen.content_type,
    }
    required = {name: value for name, value in system.items() if value is not None}
    user = dict(chosen.properties)

    def matches(view: MessageView) -> bool:
        for name, value in required.items():
            if name not in view.system or str(view.system[name]) != value:
                return False
        return all(_equal(user_value(view, name), value) for name, value in user.items())

    return matches


def _equal(found: object, expected: object) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, datetime) and isinstance(expected, datetime) and expected.tzinfo is None:
        return found.replace(tzinfo=None) == expected
    return found == expected


def view_of(message: Message, payload: bytes) -> MessageView:
    """Return a topic's message as its rules read it, with the service's facts of a message just enqueued."""
    enqueued = _moment(message.enqueued_at)
    forever = message.expires_at == float("inf")
    return MessageView(
        payload,
        {
            "deliverycount": 0,
            "enqueuedsequencenumber": message.enqueue_sequence,
            "enqueuedtimeutc": enqueued,
            "expiresatutc": _LAST_MOMENT if forever else _moment(message.expires_at),
            "sequencenumber": message.sequence,
            "size": message.size,
            "timetolive": FOREVER if forever else timedelta(seconds=message.expires_at - message.enqueued_at),
        },
    )


def _moment(seconds: float) -> datetime:
    """Convert a time of the broker to a datetime, in whole milliseconds as receivers see it.

    The expiry of a long-lived message can lie beyond the calendar's end.
    """
    try:
        return _EPOCH + timedelta(milliseconds=int(seconds * 1000))
    except OverflowError:
        return _LAST_MOMENT


def apply_edits(payload: bytes, edits: tuple[Edit, ...]) -> bytes:
    """Return a payload with a rule's edits applied; all other bytes stay as they are."""
    parts = Parts.of(payload)
    fields: dict[int, bytes] = {}
    application: dict[str, bytes | None] = {}
    for edit in edits:
        if edit.scope == "user":
            # Integers of the service's SQL have 64 bits.
            wide = Long(edit.value) if type(edit.value) is int else edit.value
            application[edit.name] = None if edit.remove else encode_plain(wide)
        elif edit.name in _FIELDS:
            value = None if edit.value is None else str(edit.value)
            if edit.name == "contenttype" and value is not None:
                value = Symbol(value) if value.isascii() else value
            fields[_FIELDS[edit.name]] = encode(value)
        elif edit.name == "timetolive" and isinstance(edit.value, timedelta):
            milliseconds = min(max(round(edit.value.total_seconds() * 1000), 0), 2**32 - 1)
            parts = parts.with_time_to_live(encode(UInt(milliseconds)))
        elif edit.name == "scheduledenqueuetimeutc" and isinstance(edit.value, datetime):
            when = Timestamp(round(edit.value.timestamp() * 1000))
            parts = parts.with_annotations({"x-opt-scheduled-enqueue-time": encode(when)})
        elif edit.name == "partitionkey":
            parts = parts.with_annotations({"x-opt-partition-key": encode_plain(edit.value)})
    return parts.with_properties(fields, application).pack()


class Subscription:
    """A queue that a topic fills with the messages that its rules match."""

    def __init__(self, name: str, queue: Queue, created_at: float) -> None:
        self.name = name
        self.queue = queue
        self.rules: dict[str, Rule] = {}
        self.created_at = self.updated_at = created_at

    @property
    def accessed_at(self) -> float:
        return self.queue.accessed_at

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings; their name is the subscription's, without the topic."""
        return self.queue.settings

    @property
    def size_in_bytes(self) -> int:
        return self.queue.size_in_bytes

    def counts(self) -> Counts:
        return self.queue.counts()

    @property
    def matches_all(self) -> bool:
        """True if its only rule matches every message and changes none, so that messages need not be decoded."""
        return len(self.rules) == 1 and all(r.matches_all and r.action is None for r in self.rules.values())

    def copies(self, payload: bytes, view: MessageView | None) -> list[bytes]:
        """Return the copies for this subscription: one for all matching rules without an action, one for each with one.

        Without a view every message matches.
        """
        if view is None:
            return [payload]
        edited, unchanged = [], False
        for rule in self.rules.values():
            if not rule.matches(view):
                continue
            if rule.action is None:
                unchanged = True
            else:
                # The service adds the name of the rule whose action changed the copy.
                rule_name = Edit("user", "RuleName", rule.settings.name, remove=False)
                edited.append(apply_edits(payload, (*rule.action.edits(view), rule_name)))
        return [payload, *edited] if unchanged else edited


class Topic:
    """A topic: an inbox queue, from which each message is copied to the subscriptions whose rules match it."""

    def __init__(self, settings: TopicSettings, inbox: Queue, created_at: float) -> None:
        self.settings = settings
        self.inbox = inbox
        self.subscriptions: dict[str, Subscription] = {}
        self.created_at = self.updated_at = self.accessed_at = created_at

    @property
    def size_in_bytes(self) -> int:
        return self.inbox.size_in_bytes + sum(s.size_in_bytes for s in self.subscriptions.values())

    def counts(self) -> Counts:
        return Counts(scheduled=self.inbox.counts().scheduled)


def inbox_settings(topic: TopicSettings) -> QueueSettings:
    """Return the settings of a topic's inbox: those that queues and topics share; defaults for the others."""
    return QueueSettings(
        topic.name,
        requires_duplicate_detection=topic.requires_duplicate_detection,
        duplicate_detection_history_time_window=topic.duplicate_detection_history_time_window,
        default_message_time_to_live=topic.default_message_time_to_live,
        max_size_in_megabytes=topic.max_size_in_megabytes,
        max_message_size_in_kilobytes=topic.max_message_size_in_kilobytes,
        status=topic.status,
    )
