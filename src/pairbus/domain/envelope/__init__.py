"""Park and restore: what parking changes in an encoded message, and its exact inverse.

Three fields would act on the backlog queue itself: the session id, the time to live and the scheduled enqueue time.
`park` clears them and keeps them as application properties, beside the path of the destination; `restore` puts them
back. Both work on the message's sections: body, footer, and every field and entry that is not named here pass
through as bytes and are never decoded.

    cleared                                              kept as                         on the wire
    properties.group-id (session id)                     x-ms-sessionid                  string, its very bytes
    header.ttl, with it properties.absolute-expiry-time  x-ms-timetolive                 com.microsoft:timespan, a long
    annotation x-opt-scheduled-enqueue-time              x-ms-scheduledenqueuetimeutc    timestamp
    -                                                    x-ms-path                       string
    -                                                    x-pairbus-namespace (if given)  string
    -                                                    x-pairbus-form (if needed)      string

A broker writes the header and both maps of annotations anew when it delivers. Where they, or anything else that
cannot be told from the parked message, were not of the most usual form, `x-pairbus-form` says what they were like.

**The promise.** For every message that `park` does not refuse, `restore(park(message)) == message`, byte for byte,
also with a broker between them that passes on the sender's sections from the properties on, and the annotations, as
they were sent (their container, descriptors, order and the header may change). But for three things:

- a message without an id keeps the one that `park` gave it (in a properties section that is made if need be);
- `absolute-expiry-time`, if it was sent along with a time to live, is `now` plus the time to live;
- what belongs to the broker (`BROKER_OWNED`, such as x-opt-sequence-number and the lock token) is removed, even if
  it was the sender who wrote it: every broker does so too.

Through a broker that encodes the rest anew, every value and its AMQP type are the same.

Messages that the retired .NET client parked have the same four `x-ms-` properties and nothing of `x-pairbus-`. They are
restored alike. Of a time to live that a header cannot say (above 2**32 - 1 ms) the header has the longest that it can,
and `absolute-expiry-time` the whole; TimeSpan.MaxValue is left unset, which means the same: for ever. DeadLetterReason
and DeadLetterErrorDescription, which a message has that was dead-lettered in the backlog and put back by hand, stay:
they are its history, and nothing tells them from the sender's.
"""

from __future__ import annotations

from .broker_header import Facts
from .parking import park
from .property_names import (
    ALIASES,
    BROKER_OWNED,
    FORM,
    NAMESPACE,
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    EnvelopeError,
    NotParkableError,
)
from .restoring import MAX_TIME_TO_LIVE, Restored, facts, message_id, restore

__all__ = [
    "ALIASES",
    "BROKER_OWNED",
    "FORM",
    "MAX_TIME_TO_LIVE",
    "NAMESPACE",
    "PATH",
    "SCHEDULED",
    "SESSION_ID",
    "TIME_TO_LIVE",
    "EnvelopeError",
    "Facts",
    "NotParkableError",
    "Restored",
    "facts",
    "message_id",
    "park",
    "restore",
]
