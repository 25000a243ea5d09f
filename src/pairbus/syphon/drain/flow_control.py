"""How much may be under way: to a destination, from a backlog queue, a second. Pure: the time comes in."""

from __future__ import annotations

#: What is let into flight to a destination that nothing is known of.
FIRST = 256
_LEAST = 8
#: How many times as many, once all of those were accepted.
_GROWTH = 4
#: As many bytes are worth a message: of larger ones fewer may be in flight.
_WORTH = 4096
#: Unless that took longer. A destination, or a line, that has enough would take as many times as long, and what is not
#: answered within 15 seconds is given up, and sent once more.
_PROMPT_SECONDS = 3.0


class Pace:
    """How many messages may be in flight to one destination, large ones counted as several; pure, and kept from pass to
    pass."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(FIRST, most)
        self._accepted = 0
        #: How many more go one by one.
        self._alone = 0

    def room(self, count: int, size: int) -> int:
        """How many more may be sent while so many, and so many bytes of them, are in flight."""
        return self.limit - (max(count, size // _WORTH) if self.limit < self._most else count)

    def accepted(self, count: int = 1, seconds: float = 0.0, size: int = 0) -> None:
        """The destination has taken so many, and so many bytes, so long after they were sent."""
        if self.is_searching:
            self._alone -= count
        elif self.limit < self._most:
            self._accepted += max(count, size // _WORTH)
            if self._accepted >= self.limit:
                self._accepted = 0
                if seconds <= _PROMPT_SECONDS:
                    self.limit = min(self.limit * _GROWTH, self._most)

    def refused(self) -> None:
        """It is busy, full or gone: the next start is slower."""
        self.limit = max(self.limit // 2, min(_LEAST, self._most)) if not self.is_searching else 1
        self._accepted = 0

    @property
    def is_searching(self) -> bool:
        """Whether messages go one by one, to see which of them it is that ends the link."""
        return self._alone > 0

    def one_by_one(self, count: int) -> None:
        """One among so many has ended the link: each of them is the only one in flight when they come again."""
        self._alone, self.limit, self._accepted = count, 1, 0


class Rate:
    """At most so many messages a second, spread evenly: a bucket that holds a tenth of a second's worth, and one. It
    begins with that one: however small the rate and however short the drain, something moves."""

    def __init__(self, per_second: float | None, now: float) -> None:
        self._per_second = per_second
        self._room = 1.0
        self._at = now

    def take(self, wanted: int, now: float) -> int:
        """How many of the wanted ones may go now."""
        if self._per_second is None:
            return wanted
        most = self._per_second / 10 + 1
        self._room = min(self._room + (now - self._at) * self._per_second, most)
        self._at = now
        given = min(wanted, int(self._room))
        self._room -= given
        return given


class Window:
    """How many messages of a backlog queue may be in flight: few, until it is seen that they are small, and how fast
    they are settled; many times as many after each window's worth that was (which takes three round trips), up to the
    limit, and never more than are settled in a quarter of the time that a lock lasts.

    What is enough next door is all that there is of it, unless the way is so long that more are needed to fill it: what
    is in flight is what a crash repeats, and memory.
    """

    _FIRST, _FIRST_SMALL = 64, 512
    _FIRST_BYTES = 4 * 1024 * 1024
    _ENOUGH = 8000
    _GROWTH = 16
    _SHARE = 0.25
    #: How many times what is settled while one message is sent, written down and settled: of its three round trips that
    #: is two, and messages come in bursts. At 50 ms three times filled nine tenths of the pipe, seven all of it.
    _SLACK = 7.5

    def __init__(self, most: int, now: float) -> None:
        self._most = most
        self.size = min(self._FIRST, most)
        self._settled = 0
        self._since = now
        #: The shortest time that it took from sending a message until it was settled.
        self._trip: float | None = None

    def sized(self, size: int) -> None:
        """The first message is so large: a few megabytes of such may come before one was settled."""
        self.size = max(self.size, min(self._FIRST_SMALL, self._FIRST_BYTES // max(size, 1), self._most))

    def settled(self, now: float, lock_seconds: float, trip: float | None = None) -> None:
        """One message was settled, so long after it was sent."""
        if trip is not None and (self._trip is None or trip < self._trip):
            self._trip = trip
        self._settled += 1
        if self._settled < self.size:
            return
        rate = self._settled / max(now - self._since, 1e-6)
        useful = max(self._ENOUGH, int(rate * (self._trip or 0.0) * self._SLACK))
        in_time = int(rate * lock_seconds * self._SHARE)
        self.size = max(min(self.size * self._GROWTH, self._most, useful, in_time), min(_LEAST, self._most))
        self._settled, self._since = 0, now


class LockClock:
    """How long locks last, by the service's clock as far as it can be told from the messages."""

    #: The shortest lock that is reckoned with, and the longest: backlog queues have a minute.
    RANGE = (5.0, 60.0)
    #: The longest that the service gives.
    _LONGEST = 300.0

    def __init__(self) -> None:
        #: How long a new lock lasts; 0 until a message was seen.
        self.seconds = 0.0
        #: How long it may last for all that is known: a lock that seems longer than a minute may be one, or this
        #: machine's clock is behind.
        self.longest = 0.0
        self._offset = 0.0

    def left(self, locked_until: int | None, now: float) -> float:
        """Seconds that a lock still lasts, which the service says ends at that time (in milliseconds since 1970)."""
        least, most = self.RANGE
        if locked_until is None:
            return most
        if not self.seconds:
            seems = locked_until / 1000 - now
            # A lock that seems to have ended is new all the same: this machine's clock is ahead, nobody knows how far.
            self.seconds = most if seems <= 0 else min(max(seems, least), most)
            self.longest = max(self.seconds, min(seems, self._LONGEST))
            self._offset = seems - self.seconds
        # More than that says that this machine's clock was set back meanwhile.
        return min(locked_until / 1000 - self.now(now), self.seconds)

    def since(self, when: int, now: float) -> float:
        """Seconds since a time (in milliseconds since 1970), by both clocks: the service's is only known as well as it
        is known how long a lock lasts."""
        return min(self.now(now), now) - when / 1000

    def now(self, now: float) -> float:
        """The time by the service's clock; as this machine's until a message was seen, or a lock tells otherwise."""
        return now + self._offset
