"""A send through another SDK than Service Bus's, as the sender's other parts see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class PreparedSend(ABC):
    """The events that one call sends through another SDK, ready to go out as one transfer."""

    #: The number of events.
    count: int

    @abstractmethod
    def members(self) -> list[Any]:
        """Return the caller's events, one by one."""

    @abstractmethod
    def encoded(self) -> list[bytes]:
        """Return each event as it goes on the wire; raise what its SDK raises if it cannot be encoded."""

    @abstractmethod
    def billed(self) -> int:
        """Return the number of operations that this send is billed as."""

    @abstractmethod
    def rest(self, start: int) -> PreparedSend:
        """Return the same send without its first `start` events."""
