"""What is sent through another SDK than Service Bus's, as the sender's other parts see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Prepared(ABC):
    """What one call sends through another SDK than Service Bus's: one thing to send, of as many events as it has."""

    #: How many events it has.
    count: int

    @abstractmethod
    def members(self) -> list[Any]:
        """The caller's events, one by one."""

    @abstractmethod
    def encoded(self) -> list[bytes]:
        """Each event as it would be on the wire. Raises what its SDK raises for it."""

    @abstractmethod
    def billed(self) -> int:
        """How many operations sending it is billed as."""

    @abstractmethod
    def rest(self, start: int) -> Prepared:
        """The same without its first events."""
