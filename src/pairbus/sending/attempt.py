"""The record of one attempt to send, to the primary or to a backlog queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connections import SenderConnection


@dataclass(slots=True)
class Attempt:
    """One send on one connection; after a failure the caller gives the connection back to the pool, or drops it."""

    connection: SenderConnection
    #: True if the link was open already: it may have gone stale while it was idle.
    was_open: bool
    #: When it began, by `time.monotonic`.
    began: float
    #: None if the messages were accepted.
    error: Exception | None = None
