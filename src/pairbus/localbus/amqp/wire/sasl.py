"""SASL mechanisms of the service that Proton does not know; Proton gets a valid login as ANONYMOUS.

MSSBCBS is what .NET's and Rust's SDKs ask for; with PLAIN general AMQP clients present a key's name and value.
"""

from __future__ import annotations

from collections.abc import Callable

from pairbus.domain.amqp.codec import AmqpDecodeError, Array, Symbol, ULong, compound, decode, encode, encode_list, skip

from .frames import HEADER

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
_SASL_MECHANISMS, _SASL_INIT = 0x40, 0x41
_SYMBOLS = 0xA3

#: Takes the name and the value of a key; returns True, and grants the key's rights, if they are valid.
KeyCheck = Callable[[str, str], bool]


def _sasl_frame(code: int, *fields: bytes) -> bytes:
    body = b"\x00" + encode(ULong(code)) + encode_list(list(fields))
    return HEADER.pack(HEADER.size + len(body), 2, 1, 0) + body


_MECHANISMS_FRAME = _sasl_frame(_SASL_MECHANISMS, encode(Array(_SYMBOLS, [Symbol(name) for name in MECHANISMS])))
_ANONYMOUS_FRAME = _sasl_frame(_SASL_INIT, encode(Symbol("ANONYMOUS")))


def replace_mechanisms(body: bytes) -> bytes | None:
    """Return the frame of the service's mechanisms for Proton's own; None for any other frame."""
    return _MECHANISMS_FRAME if _descriptor(body) == _SASL_MECHANISMS else None


def translate_init(body: bytes, check_key: KeyCheck) -> bytes | None:
    """Return an ANONYMOUS init for a valid login that Proton does not know; None if the frame can pass unchanged."""
    if _descriptor(body) != _SASL_INIT:
        return None
    count, pos, _ = compound(body, skip(body, 1))
    mechanism = decode(body, pos)[0] if count else None
    response = decode(body, skip(body, pos))[0] if count > 1 else None
    valid = mechanism == "MSSBCBS" or (mechanism == "PLAIN" and _is_valid_login(response, check_key))
    return _ANONYMOUS_FRAME if valid else None


def _is_valid_login(response: object, check_key: KeyCheck) -> bool:
    """Check a PLAIN response: authorization identity, name and key, separated by NUL."""
    parts = response.split(b"\x00") if isinstance(response, bytes) else []
    try:
        return len(parts) == 3 and check_key(parts[1].decode(), parts[2].decode())
    except UnicodeDecodeError:
        return False


def _descriptor(body: bytes) -> int | None:
    try:
        found = decode(body, 1)[0] if body[:1] == b"\x00" else None
    except AmqpDecodeError:
        return None
    return int(found) if isinstance(found, ULong) else None
