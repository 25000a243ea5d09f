"""Messages that a pass holds back: locked, not settled, given back before their locks end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .in_flight import Moving

_NEVER = float("inf")


class Held:
    """What waits for the end of a pass, or of its patience, because its destination does not take it now."""

    def __init__(self) -> None:
        self._messages: list[Moving] = []
        self._next_end = _NEVER

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Moving) -> None:
        self._messages.append(message)
        self._next_end = min(self._next_end, message.ends_at)

    def due(self, now: float) -> list[Moving]:
        """Those whose time is over: they are held no longer."""
        if now <= self._next_end:
            return []
        due = [message for message in self._messages if now > message.ends_at]
        self._messages = [message for message in self._messages if now <= message.ends_at]
        self._next_end = min((message.ends_at for message in self._messages), default=_NEVER)
        return due

    def describe(self, given_back: Sequence[Moving] = ()) -> str:
        """How many there are, with some that were just given back, and whose they are most of all."""
        messages = [*given_back, *self._messages]
        name, count = Counter(message.destination for message in messages).most_common(1)[0]
        return (
            f"{len(messages)} messages are held back ({count} of them for {name}); what lies behind them was not "
            "looked at"
        )
