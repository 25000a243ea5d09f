"""Flow control: the number of messages in flight to a destination and from a backlog queue, their rate, their locks.

Pure: the time is an argument.
"""

from __future__ import annotations

#: Messages in flight at first to a destination of which nothing is known yet.
FIRST_WINDOW = 256
_SMALLEST_WINDOW = 8
#: The factor by which a send window grows once a whole window was accepted.
_GROWTH = 4
#: Bytes that count as one message: fewer large messages are in flight.
_MESSAGE_BYTES = 4096
#: A window that took longer to be accepted does not grow. A destination, or a line, at its limit would take a larger
#: window's time in proportion, and after 15 seconds without an answer messages are given up and sent again.
_PROMPT_SECONDS = 3.0


class SendWindow:
    """The number of messages that may be in flight to one destination; a large message counts as several."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.limit = min(FIRST_WINDOW, maximum)
        self._accepted = 0
        #: Messages that are still to be sent one at a time.
        self._to_isolate = 0

    def room(self, count: int, size: int) -> int:
        """Return how many more messages may be sent while `count` of `size` bytes are in flight."""
        return self.limit - (max(count, size // _MESSAGE_BYTES) if self.limit < self._maximum else count)

    def accepted(self, count: int = 1, seconds: float = 0.0, size: int = 0) -> None:
        """Note that `count` messages of `size` bytes were accepted `seconds` after they were sent."""
        if self.is_isolating:
            self._to_isolate -= count
        elif self.limit < self._maximum:
            self._accepted += max(count, size // _MESSAGE_BYTES)
            if self._accepted >= self.limit:
                self._accepted = 0
                if seconds <= _PROMPT_SECONDS:
                    self.limit = min(self.limit * _GROWTH, self._maximum)

    def refused(self) -> None:
        """Note that the destination is busy, full or unreachable: the next pass starts with a smaller window."""
        self.limit = 1 if self.is_isolating else max(self.limit // 2, min(_SMALLEST_WINDOW, self._maximum))
        self._accepted = 0

    @property
    def is_isolating(self) -> bool:
        """True while messages are sent one at a time, to find the one at which the service ends the link."""
        return self._to_isolate > 0

    def isolate(self, count: int) -> None:
        """Send the next `count` messages one at a time: one of them has ended the link."""
        self._to_isolate, self.limit, self._accepted = count, 1, 0


class RateLimiter:
    """A token bucket: at most so many messages a second, spread evenly."""

    def __init__(self, per_second: float | None, now: float) -> None:
        self._per_second = per_second
        self._tokens = 1.0  # so that the smallest rate moves a message in the shortest drain
        self._filled_at = now

    def take(self, wanted: int, now: float) -> int:
        """Return how many of the wanted messages may be received now."""
        if self._per_second is None:
            return wanted
        capacity = self._per_second / 10 + 1
        self._tokens = min(self._tokens + (now - self._filled_at) * self._per_second, capacity)
        self._filled_at = now
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted


class ReceiveWindow:
    """The messages of a backlog queue that may be in flight, by number and by bytes.

    It starts small and grows with each window that was settled (three round trips), up to the maximum, and never beyond
    what is settled in a quarter of a lock's time. A near destination needs no more than `_ENOUGH`; a far one gets as
    many as fill the line. A larger window would cost memory, and repeats after a crash.
    """

    _FIRST, _FIRST_SMALL = 64, 512
    _FIRST_BYTES = 4 * 1024 * 1024
    _ENOUGH = 8000
    _GROWTH = 16
    _LOCK_SHARE = 0.25
    #: The window is so many times what is settled during one message's trip. Two of the three round trips are in the
    #: trip, and messages come in bursts: at 50 ms a factor of three filled 90 % of the line, seven all of it.
    _SLACK = 7.5
    #: Credit is granted for a sixteenth of the window at once, to save frames.
    _LEAST_SHARE = 16

    def __init__(self, maximum: int, maximum_bytes: int, now: float) -> None:
        self._maximum = maximum
        self._maximum_bytes = maximum_bytes
        self.size = min(self._FIRST, maximum)
        #: Bytes of messages that no destination has accepted yet.
        self.buffered_bytes = 0
        self._mean_bytes = 0.0
        self._settled = 0
        self._since = now
        #: The shortest time from sending a message until it was settled.
        self._shortest_trip: float | None = None

    def received(self, received_bytes: int, buffered_bytes: int) -> None:
        """Note a received message, and the bytes of it that are kept; the first one tells how many may follow."""
        self.buffered_bytes += buffered_bytes
        if self._mean_bytes:
            self._mean_bytes += (received_bytes - self._mean_bytes) / 32
        else:
            self._mean_bytes = received_bytes
            small = min(self._FIRST_SMALL, self._FIRST_BYTES // max(received_bytes, 1), self._maximum)
            self.size = max(self.size, small)

    def settled(self, now: float, lock_seconds: float, trip: float | None = None) -> None:
        """Note a settled message, and the seconds since it was sent."""
        if trip is not None and (self._shortest_trip is None or trip < self._shortest_trip):
            self._shortest_trip = trip
        self._settled += 1
        if self._settled < self.size:
            return
        rate = self._settled / max(now - self._since, 1e-6)
        useful = max(self._ENOUGH, int(rate * (self._shortest_trip or 0.0) * self._SLACK))
        in_time = int(rate * lock_seconds * self._LOCK_SHARE)
        smallest = min(_SMALLEST_WINDOW, self._maximum)
        self.size = max(min(self.size * self._GROWTH, self._maximum, useful, in_time), smallest)
        self._settled, self._since = 0, now

    def missing(self, in_flight: int, credit: int) -> int:
        """Return how many more messages the service may send; 0 while they are too few to be worth a frame."""
        window = self.size
        if self._mean_bytes:
            fitting = int((self._maximum_bytes - self.buffered_bytes) / self._mean_bytes)
            window = min(window, max(fitting + in_flight, 1))
        missing = window - in_flight - credit
        return missing if missing > 0 and (missing * self._LEAST_SHARE >= window or not credit) else 0

    @property
    def is_overfull(self) -> bool:
        """True if so many bytes are buffered that the socket must not be read."""
        return self.buffered_bytes > 2 * self._maximum_bytes

    @property
    def has_room(self) -> bool:
        """True if so few bytes are buffered that the socket may be read again."""
        return self.buffered_bytes <= self._maximum_bytes


class ServiceClock:
    """The service's clock and the duration of its locks, estimated from the messages that it sends."""

    #: The shortest lock duration that is assumed, and the longest: backlog queues have a minute.
    RANGE = (5.0, 60.0)
    #: The longest that the service grants.
    _LONGEST = 300.0

    def __init__(self) -> None:
        #: The duration of a new lock; 0 until a message was seen.
        self.lock_seconds = 0.0
        #: The longest possible duration of a lock: one that seems longer than a minute may be, or this machine's clock
        #: is behind.
        self.longest_lock_seconds = 0.0
        self._offset = 0.0

    def lock_left(self, locked_until: int | None, now: float) -> float:
        """Return the seconds until a lock ends, which the service gives in milliseconds since 1970."""
        shortest, longest = self.RANGE
        if locked_until is None:
            return longest
        if not self.lock_seconds:
            seems = locked_until / 1000 - now
            # A new lock that seems to have ended shows a clock that is ahead by an unknown time.
            self.lock_seconds = longest if seems <= 0 else min(max(seems, shortest), longest)
            self.longest_lock_seconds = max(self.lock_seconds, min(seems, self._LONGEST))
            self._offset = seems - self.lock_seconds
        # A longer time shows that this machine's clock was set back meanwhile.
        return min(locked_until / 1000 - self.time(now), self.lock_seconds)

    def seconds_since(self, when: int, now: float) -> float:
        """Return the seconds since a time in milliseconds since 1970, by the clock that shows fewer."""
        # The estimate of the service's clock is no better than that of the lock duration.
        return min(self.time(now), now) - when / 1000

    def time(self, now: float) -> float:
        """Return the time by the service's clock; until a message was seen, this machine's."""
        return now + self._offset
