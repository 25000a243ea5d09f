"""A lock on a message, and the two orders in which its token is written."""

from __future__ import annotations

from typing import Any

from .sessions import Session


class Lock:
    """A message's lock: its token as a delivery tag (UUID, little-endian), its end, its holder."""

    __slots__ = ("owner", "session", "tag", "until")

    def __init__(self, tag: bytes, until: float, owner: Any, session: Session | None) -> None:
        self.tag = tag
        self.until = until
        self.owner = owner
        self.session = session

    @property
    def end(self) -> float:
        return self.until if self.session is None else self.session.until


def swap_guid(raw: bytes) -> bytes:
    """Between a UUID's network order and the order in which .NET, and so a delivery tag, writes it."""
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]
