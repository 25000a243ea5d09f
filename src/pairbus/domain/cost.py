"""The cost of paired namespaces: billable operations of a message, and forecasts.

Each call to the service is an operation, each further 64 KB of a message another. Lines with `beyond` false have the
figures of Microsoft's page on paired namespaces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

#: The bytes of a message that count as one operation.
UNIT = 64 * 1024


def operations_of(size: int) -> int:
    """Return the billable operations of sending or receiving a message of so many bytes."""
    return max(1, -(-size // UNIT))


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of operation and its number; `beyond` is true if Microsoft's page does not count it."""

    what: str
    operations: int
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast: operations by kind, and their price if one was given."""

    lines: tuple[Line, ...]
    price_per_million: float | None = None

    @property
    def documented(self) -> int:
        """The operations that Microsoft's page on paired namespaces counts."""
        return sum(line.operations for line in self.lines if not line.beyond)

    @property
    def operations(self) -> int:
        """The operations of all lines."""
        return sum(line.operations for line in self.lines)

    @property
    def money(self) -> float | None:
        """The price of all operations, in the currency of `price_per_million`; None without that."""
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
    """Return the cost of parked messages, of an outage's pings, and of an idle syphon.

    Durations are seconds or `timedelta`.

    Parameters
    ----------
    messages, message_size
        The number of messages that are parked and moved back, and their size in bytes.
    outage
        The length of an outage.
    clients, entities, ping_interval
        During an outage each client pings each entity once in every such interval.
    idle
        The time for which a syphon runs with an empty backlog.
    idle_poll_interval
        An idle syphon queries the depths of all queues with one call in every such interval.
    queues, long_poll
        If `long_poll` is given, the idle syphon instead makes one receive for each queue in every such interval, as
        the original did.
    price_per_million
        The price of a million operations.

    Raises
    ------
    ValueError
        An argument is out of its range; the error names it.
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
        lines.append(Line("depth queries of an idle syphon (management)", _times(unused, ask_every), beyond=True))
    return Forecast(tuple(lines), price_per_million)


def _times(duration: float, interval: float) -> int:
    """Return the number of whole intervals in a duration, in spite of rounding errors."""
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
