"""Request/response messages of `$cbs` and `$management`: reading a request, writing its reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pairbus.domain.amqp import sections
from pairbus.domain.amqp.codec import AmqpDecodeError, Symbol, decode, encode, encode_list, encode_map, skip
from pairbus.localbus.bus_errors import BusError


@dataclass(frozen=True)
class Request:
    """One request; `id` is the message-id as it was encoded, so that the reply can repeat it exactly."""

    id: bytes
    reply_to: str | None
    properties: dict[str, Any]
    body: Any = field(repr=False)  # `$cbs` requests carry a token

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", ""))

    def field(self, name: str, kind: type | tuple[type, ...], *, optional: bool = False) -> Any:
        """Return a field of the body map; raise AmqpDecodeError if it is missing or of another type."""
        found = self.body.get(name) if isinstance(self.body, dict) else None
        if found is None and optional:
            return None
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is int):
            expected = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
            raise AmqpDecodeError(f"the request's '{name}' must be {expected}, not {type(found).__name__}")
        return found


@dataclass(frozen=True)
class Reply:
    """The reply to a request: a status, and a body map or none."""

    status: int = 200
    description: str = "OK"
    condition: str | None = None
    body: dict[str, Any] | None = None
    properties: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BusError) -> Reply:
        return cls(error.status, error.description, error.condition)


def read_request(raw: bytes) -> Request:
    """Return the request in a message; raise AmqpDecodeError if it cannot be read."""
    id, reply_to, properties, body = b"\x40", None, {}, None
    for section in sections.split(raw):
        if section.code == sections.PROPERTIES:
            spans = sections.fields(raw, section.value)
            if spans:
                id = raw[spans[0][0] : spans[0][1]]
            reply_to = sections.field(raw, section.value, sections.REPLY_TO)
        elif section.code == sections.APPLICATION_PROPERTIES:
            properties = decode(raw, section.value)[0]
        elif section.code == sections.VALUE or (section.code == sections.DATA and body is None):
            body = decode(raw, section.value)[0]
    text_keys = {str(key): value for key, value in properties.items()}
    return Request(id, reply_to if isinstance(reply_to, str) else None, text_keys, body)


def read_address(head: bytes) -> Request | None:
    """Return a request with its id and reply address alone, from its first bytes; None if they do not hold them."""
    pos = 0
    try:
        while head[pos : pos + 1] == b"\x00":
            descriptor, value = decode(head, pos + 1)
            pos = skip(head, value)
            if descriptor in (sections.PROPERTIES, "amqp:properties:list"):
                return read_request(head[:pos])
    except AmqpDecodeError:
        pass  # the bytes end within a section
    return None


def write_reply(request: Request, reply: Reply) -> bytes:
    """Return the encoded reply, with the status under the names of both Service Bus and Event Hubs."""
    fields = encode_list([b"\x40"] * sections.CORRELATION_ID + [request.id])
    properties: dict[str, Any] = {
        "statusCode": reply.status,
        "statusDescription": reply.description,
        "status-code": reply.status,
        "status-description": reply.description,
        **reply.properties,
    }
    if reply.condition is not None:
        properties["errorCondition"] = Symbol(reply.condition)
        properties["error-condition"] = Symbol(reply.condition)
    entries = encode_map([encode(part) for pair in properties.items() for part in pair])
    return b"".join(
        (
            sections.section(sections.PROPERTIES, fields),
            sections.section(sections.APPLICATION_PROPERTIES, entries),
            sections.section(sections.VALUE, encode(reply.body)),
        )
    )
