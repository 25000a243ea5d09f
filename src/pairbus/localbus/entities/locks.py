"""A lock on a message, and the conversion between the two byte orders of its token."""

from __future__ import annotations

from typing import Any

from .sessions import Session


class Lock:
    """A message's lock: its token as a delivery tag (a UUID, little-endian), its end and its owner."""

    __slots__ = ("owner", "session", "tag", "until")

    def __init__(self, tag: bytes, until: float, owner: Any, session: Session | None) -> None:
        self.tag = tag
        self.until = until
        self.owner = owner
        self.session = session

    @property
    def end(self) -> float:
        """The end of the lock; in a session, the end of the session's lock."""
        return self.until if self.session is None else self.session.until


def swap_guid(raw: bytes) -> bytes:
    """Convert a UUID between network order and the order of .NET, in which delivery tags are written."""
    return raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]
