"""The producers: shops that send parcels of messages, each with a thread and senders of its own."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pairbus import PairedNamespace

from .goods import SHARES, TOPIC, Sent, parcel

SHOPS = 6
#: Messages per call of `send_messages`.
PARCEL = 20


class Market:
    """All shops, and a book of their messages. A message enters the book when its send has returned."""

    def __init__(self, bus: PairedNamespace) -> None:
        self.bus = bus
        self.status = bus.status()
        self.book: dict[str, Sent] = {}
        self._shops = [_Shop(bus, shop, self.book) for shop in range(SHOPS)]
        self._stop = threading.Event()

    def trade(self, messages: int, watch: Callable[[int], None], without: str | None = None) -> None:
        """Let the shops send this many messages, and call `watch` with the number sent so far.

        Raises the error of a sender; the demo expects none.
        """
        before = len(self.book)
        shares = {name: share for name, share in SHARES.items() if name != without}
        whole = sum(shares.values())
        plan = {name: max(1, messages * share // whole // SHOPS) for name, share in shares.items()}
        # The remainder of the division goes to the first destination.
        plan["orders"] += max(0, -(-messages // SHOPS) - sum(plan.values()))
        watching = threading.Lock()

        def look() -> None:
            with watching:
                watch(len(self.book) - before)

        with ThreadPoolExecutor(SHOPS, thread_name_prefix="shop") as threads:
            # Shops call it too, because on a busy machine this thread may be too late for the kill.
            trades = [threads.submit(shop.trade, plan, self._stop.is_set, look) for shop in self._shops]
            try:
                while not all(each.done() for each in trades):
                    look()
                    self._stop.wait(0.02)
                for each in trades:
                    each.result()
            finally:
                self._stop.set()
        self._stop.clear()
        look()

    def close(self) -> None:
        """End the sending, and keep the status of the pairing."""
        self.status = self.bus.status()


class _Shop:
    """A producer."""

    def __init__(self, bus: PairedNamespace, number: int, book: dict[str, Sent]) -> None:
        self._number = number
        self._book = book
        self._senders = {
            name: bus.get_topic_sender(name) if name == TOPIC else bus.get_queue_sender(name) for name in SHARES
        }
        self._next: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()

    def trade(self, plan: dict[str, int], is_over: Callable[[], bool], look: Callable[[], None]) -> None:
        left = dict(plan)
        # Each shop begins with another destination.
        names = sorted(left, key=list(SHARES).index)
        names = names[self._number % len(names) :] + names[: self._number % len(names)]
        for name in itertools.cycle(names):
            if is_over() or not any(left.values()):
                return
            if count := min(left[name], PARCEL):
                self._send(name, count)
                left[name] -= count
                look()

    def _send(self, name: str, count: int) -> None:
        first, turn = self._next[name], self._turns[name]
        messages, sent = parcel(name, self._number, turn, range(first, first + count))
        self._senders[name].send_messages(messages)
        self._next[name] += count
        self._turns[name] += 1
        self._book.update({each.message_id: each for each in sent})
