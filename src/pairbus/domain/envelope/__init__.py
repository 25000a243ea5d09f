"""Park and restore: the changes that parking makes to an encoded message, and their exact inverse.

Three fields would act on the backlog queue itself: the session id, the time to live and the scheduled enqueue time.
`park` clears them and keeps them as application properties, together with the path of the destination; `restore` puts
them back. Both work on the message's sections: body, footer, and every field and entry that is not named here pass
through as bytes and are never decoded.

    cleared                                              kept as                         on the wire
    properties.group-id (session id)                     x-ms-sessionid                  string, its very bytes
    header.ttl, with it properties.absolute-expiry-time  x-ms-timetolive                 com.microsoft:timespan, a long
    annotation x-opt-scheduled-enqueue-time              x-ms-scheduledenqueuetimeutc    timestamp
    -                                                    x-ms-path                       string
    -                                                    x-pairbus-namespace (if given)  string
    -                                                    x-pairbus-form (if needed)      string

A broker rewrites the header and both maps of annotations when it delivers. `x-pairbus-form` describes the encoding of
the original where the parked message does not show it and it was not the most usual one.

**The guarantee.** For every message that `park` does not refuse, `restore(park(message)) == message`, byte for byte,
also with a broker between them that passes on the sender's sections from the properties on, and the annotations, as
they were sent (their container, descriptors, order and the header may change). There are three exceptions:

- a message without an id keeps the one that `park` gave it (in a properties section that is added if needed);
- `absolute-expiry-time`, if it was sent together with a time to live, is `now` plus the time to live;
- the broker's annotations (`BROKER_OWNED`, such as x-opt-sequence-number and the lock token) are removed, even if the
  sender wrote them: every broker does so too.

Through a broker that re-encodes the rest, every value and its AMQP type stay the same.

Messages that the retired .NET client parked have the same four `x-ms-` properties and no `x-pairbus-` ones; they are
restored in the same way. For a time to live above 2**32 - 1 ms, which a header cannot hold, the header gets that
maximum and `absolute-expiry-time` the exact value. TimeSpan.MaxValue stays unset, which also means for ever.
DeadLetterReason and DeadLetterErrorDescription, which a message has after it was dead-lettered in the backlog and put
back by hand, stay: they cannot be distinguished from properties of the sender.
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
    NotRestorableError,
)
from .restoring import MAX_TIME_TO_LIVE, Restored, facts, message_id, restore

__all__ = [
    "ALIASES", "BROKER_OWNED", "FORM", "MAX_TIME_TO_LIVE", "NAMESPACE", "PATH", "SCHEDULED", "SESSION_ID",
    "TIME_TO_LIVE", "EnvelopeError", "Facts", "NotRestorableError", "Restored", "facts", "message_id", "park",
    "restore",
]  # fmt: skip
