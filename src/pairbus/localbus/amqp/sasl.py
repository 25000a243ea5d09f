"""SASL as the service speaks it, where Proton knows less of it.

The service offers MSSBCBS, which says no more than ANONYMOUS and is the one that .NET's and Rust's SDKs ask for, and
PLAIN, by which general AMQP clients show the name and the value of a key instead of a token. To Proton both are
ANONYMOUS; a wrong key is passed on as it is, and Proton refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pairbus.domain.amqp.codec import AmqpDecodeError, Array, Symbol, ULong, compound, decode, encode, encode_list, skip

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
_OFFER, _INIT = 0x40, 0x41
_SYMBOLS = 0xA3
_HEAD = struct.Struct(">IBBH")

#: Whether a name and a key are good; they are granted what the key allows.
LogIn = Callable[[str, str], bool]


def _frame(code: int, *fields: bytes) -> bytes:
    body = b"\x00" + encode(ULong(code)) + encode_list(list(fields))
    return _HEAD.pack(_HEAD.size + len(body), 2, 1, 0) + body


_OFFERED = _frame(_OFFER, encode(Array(_SYMBOLS, [Symbol(name) for name in MECHANISMS])))
_ANONYMOUS = _frame(_INIT, encode(Symbol("ANONYMOUS")))


def offered(body: bytes) -> bytes | None:
    """The frame of the service's mechanisms in place of Proton's; None if this is another frame."""
    return _OFFERED if _code(body) == _OFFER else None


def translated(body: bytes, log_in: LogIn) -> bytes | None:
    """The frame that tells Proton of a client's choice; None if it can be told in the client's own words."""
    if _code(body) != _INIT:
        return None
    count, pos, _ = compound(body, skip(body, 1))
    mechanism = decode(body, pos)[0] if count else None
    response = decode(body, skip(body, pos))[0] if count > 1 else None
    good = mechanism == "MSSBCBS" or (mechanism == "PLAIN" and _is_known(response, log_in))
    return _ANONYMOUS if good else None


def _is_known(response: object, log_in: LogIn) -> bool:
    """Of a response `[authorization] NUL name NUL key`."""
    parts = response.split(b"\x00") if isinstance(response, bytes) else []
    try:
        return len(parts) == 3 and log_in(parts[1].decode(), parts[2].decode())
    except UnicodeDecodeError:
        return False


def _code(body: bytes) -> int | None:
    """A frame's descriptor, if it is a number."""
    try:
        found = decode(body, 1)[0] if body[:1] == b"\x00" else None
    except AmqpDecodeError:
        return None
    return int(found) if isinstance(found, ULong) else None
