"""What paired namespaces cost: billable operations, counted as they happen and forecast before.

Microsoft bills operations: any call to the service is one, and every further 64 KB of a message count again. The
figures of the original are lines with `beyond` false; settlements and management calls are lines of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

#: So many bytes of a message are one operation.
UNIT = 64 * 1024


def operations_of(size: int) -> int:
    """How many operations sending or receiving a message of so many bytes is."""
    return max(1, -(-size // UNIT))


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of operation, how many of it, and whether it goes beyond what Microsoft's page counted."""

    what: str
    operations: int
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """What something will cost: operations by kind, and money where a price was given."""

    lines: tuple[Line, ...]
    price_per_million: float | None = None

    @property
    def documented(self) -> int:
        """The operations that Microsoft's page on paired namespaces counts."""
        return sum(line.operations for line in self.lines if not line.beyond)

    @property
    def operations(self) -> int:
        """All of them."""
        return sum(line.operations for line in self.lines)

    @property
    def money(self) -> float | None:
        """The price of all of them, in the currency of the price per million."""
        return None if self.price_per_million is None else self.operations * self.price_per_million / 1e6

    def __str__(self) -> str:
        rows = [(line.what, line.operations) for line in self.lines] + [("all operations", self.operations)]
        width = max(len(what) for what, _ in rows)
        text = "\n".join(f"{what:{width}}  {count:>15,}" for what, count in rows)
        return text if self.money is None else f"{text}\n{'money':{width}}  {self.money:>15,.2f}"


def forecast(
    *,
    messages: int = 0,
    message_size: int = 1024,
    outage: float | timedelta = 0,
    clients: int = 1,
    entities: int = 1,
    ping_interval: float | timedelta = 60,
    idle: float | timedelta = 0,
    queues: int = 10,
    long_poll: float | timedelta | None = None,
    idle_poll_interval: float | timedelta = 120,
    price_per_million: float | None = None,
) -> Forecast:
    """What it costs when messages take the detour, while entities are pinged, and while a syphon is idle.

    `messages` of `message_size` bytes are parked and brought home. During an `outage` each of `clients` pings each of
    `entities` every `ping_interval`. While `idle`, a syphon asks for all depths at once every `idle_poll_interval`;
    with `long_poll` the original's way is reckoned, one receive a queue each time. Durations: seconds or `timedelta`.
    """
    counts: dict[str, Any] = {"messages": messages, "message_size": message_size, "clients": clients}
    counts |= {"entities": entities, "queues": queues}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"{name} must be a whole number, 0 or more, not {count!r}")
    pinged, unused = _seconds("outage", outage), _seconds("idle", idle)
    ping_every = _seconds("ping_interval", ping_interval, positive=True)
    ask_every = _seconds("idle_poll_interval", idle_poll_interval, positive=True)
    poll_every = None if long_poll is None else _seconds("long_poll", long_poll, positive=True)
    price = 0.0 if price_per_million is None else _number(price_per_million)
    if price is None or not 0 <= price < math.inf:
        raise ValueError(f"price_per_million must be a number, 0 or more, not {price_per_million!r}")
    lines: list[Line] = []
    if messages:
        each = messages * operations_of(message_size)
        lines += [
            Line("send to the backlog", each),
            Line("receive from the backlog", each),
            Line("send to the primary", each),
            Line("receive from the primary", each),
            Line("settle in the backlog", messages, beyond=True),
            Line("settle in the primary", messages, beyond=True),
        ]
    if pinged:
        lines.append(Line("pings", clients * entities * _times(pinged, ping_every)))
    if unused and poll_every is not None:
        lines.append(Line("receives of an idle syphon", queues * _times(unused, poll_every)))
    elif unused:
        lines.append(Line("depths asked by an idle syphon (management)", _times(unused, ask_every), beyond=True))
    return Forecast(tuple(lines), price_per_million)


def _times(duration: float, interval: float) -> int:
    """How many whole intervals a duration has; what a float loses in a division must not cost one."""
    return math.floor(duration / interval * (1 + 1e-12))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _seconds(name: str, value: Any, *, positive: bool = False) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else _number(value)
    if seconds is None or not math.isfinite(seconds) or seconds < 0 or (positive and seconds == 0):
        raise ValueError(f"{name} must be {'more than 0' if positive else '0 or more'} seconds, not {value!r}")
    return seconds
