"""The state that the demo's chapters share, and their actions, which show progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pairbus import Event, Namespace, PairedNamespace, PairingOptions, pair_namespaces
from pairbus.localbus import LocalBus
from pairbus.syphon.depths import DepthQuery

from .consumers import Consumers, Parked, Place, administration, dead_letters, in_backlog, picture
from .goods import AUDIT, DOOMED, RULES, SESSIONS, SHARES, TOPIC, create_destinations
from .processes import Audit, Drain
from .reckoning import Reckoning
from .screen import Screen, table
from .trade import Market

QUEUES = 4
_TOLD = ("failed over", "failed back", "entity unusable", "queue left rotation")


class Stage:
    """The two namespaces, their clients and the screen."""

    def __init__(self, screen: Screen, primary: LocalBus, secondary: LocalBus, folder: Path) -> None:
        self.screen, self.primary, self.secondary = screen, primary, secondary
        self.drain = Drain(folder, primary, secondary, QUEUES)
        self.consumers = Consumers(primary)
        self.parked: list[Parked] = []
        with administration(primary) as admin:
            create_destinations(admin)

    def pairing(self) -> PairedNamespace:
        options = PairingOptions(
            backlog_queue_count=QUEUES,
            failover_interval=1,
            ping_primary_interval=1,
            send_timeout=10,
            on_event=self._heard,
        )
        return pair_namespaces(namespace(self.primary), namespace(self.secondary), options)

    def _heard(self, event: Event) -> None:
        if event.kind in _TOLD:
            self.screen.say(f"   * {event.kind}: {event.entity or event.queue}")

    # --- sending -------------------------------------------------------------------------------------------

    def trade(self, market: Market, messages: int, *, kill_at: int | None = None, without: str | None = None) -> None:
        """Let the shops send, and kill the primary after `kill_at` of these messages."""
        began, before, killed = time.monotonic(), len(market.book), False

        def watch(sent: int) -> None:
            nonlocal killed
            if kill_at is not None and not killed and sent >= kill_at:
                killed = True
                self.primary.kill()
                self.screen.say(f"   * kill -9 of the primary, after {len(market.book):,} messages")
            self.screen.progress(f"{len(market.book):,} messages sent")

        market.trade(messages, watch, without)
        self.screen.done()
        count, seconds = len(market.book) - before, time.monotonic() - began
        self.screen.say(f"   {count:,} messages were sent in {seconds:.1f} s, and no send raised an error:")
        rows = [(each.path, each.state, each.sent, each.parked) for each in market.bus.status().entities.values()]
        self.screen.say(table(("destination", "state", "sent directly", "parked"), sorted(rows)))

    def show_backlog(self, paths: list[str]) -> None:
        """Peek at the parked messages and draw the backlog."""
        self.parked = in_backlog(self.secondary, paths, lambda n: self.screen.progress(f"reading the backlog: {n:,}"))
        self.screen.done()
        self.screen.say(f"   {len(self.parked):,} messages are parked. Each sender picked a backlog queue at random:")
        self.screen.say("\n".join(picture(self.parked, paths)))

    def await_failback(self, bus: PairedNamespace) -> None:
        self._until(lambda: all(each.state == "available" for each in bus.status().entities.values()), "failback")

    def give_up(self, queue: str) -> None:
        """Empty a queue and delete it."""
        self.consumers.receive([Place(queue)])
        with administration(self.primary) as admin:
            admin.delete_queue(queue)

    # --- delivering the backlog ----------------------------------------------------------------------------

    def bring_home(self) -> None:
        """Run the Spark job, and show the depth of the backlog meanwhile."""
        self.drain.write_config()
        self.screen.say(f"   {self.drain.told()}")
        parked = left = len(self.parked)
        next_look = began = time.monotonic()

        def watch() -> None:
            nonlocal left, next_look
            if time.monotonic() >= next_look:
                left = DepthQuery(self.primary.name, range(QUEUES)).run(namespace(self.secondary)).total
                next_look = time.monotonic() + 2.0
            home = f"{parked - left:,} of {parked:,} are delivered" if left < parked else "Spark is starting"
            self.screen.progress(home if left else "the backlog is empty; the journals are folded into the ledger")

        self.drain.run(watch)
        self.screen.done()
        self.screen.say(f"   The job succeeded after {time.monotonic() - began:.0f} s.")

    def lose(self, count: int) -> None:
        """Remove orders without a record: the checks must notice."""
        self._until(self._nothing_is_scheduled, "the scheduled messages")
        self.consumers.steal(Place("orders"), count)
        self.screen.say(f"   (On purpose: {count:,} orders were removed.)")

    def receive(self, market: Market, paths: list[str]) -> Reckoning:
        """Let consumers receive every message while another Spark process reads the ledger."""
        self._until(self._nothing_is_scheduled, "the scheduled messages")
        sessions = sorted({each.session_id for each in market.book.values() if each.session_id is not None})
        places = [Place(name) for name in SHARES if name not in (SESSIONS, TOPIC, DOOMED)]
        places += [Place(TOPIC, subscription=name) for name in (AUDIT, *RULES)]
        places += [Place(SESSIONS, session=name) for name in sessions]
        began = time.monotonic()
        with Audit(self.drain.folder) as audit:
            self.consumers.receive(places, lambda: self.screen.progress(f"{len(self.consumers):,} messages received"))
            self.screen.done()
            seconds = time.monotonic() - began
            self.screen.say(
                f"   {len(self.consumers):,} messages in {seconds:.0f} s, copies for subscriptions included."
            )
            dead = dead_letters(self.secondary, paths)
            found = audit.answer(lambda: self.screen.progress("Spark reads the ledger and verifies it"))
            self.screen.done()
        return Reckoning(market.book, market.status, self.parked, dead, self.consumers.arrived, found)

    def _nothing_is_scheduled(self) -> bool:
        with administration(self.primary) as admin:
            return not admin.get_queue_runtime_properties("orders").scheduled_message_count

    def _until(self, there: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not there():
            if time.monotonic() > deadline:
                raise SystemExit(f"make demo: {what} did not happen within {seconds:.0f} s")
            self.screen.progress(f"waiting for {what}")
            time.sleep(0.05)
        self.screen.done()


def namespace(bus: LocalBus) -> Namespace:
    # 127.0.0.1 does not contain the namespace's name. In Azure, it is the first label of the host.
    return Namespace.from_connection_string(bus.connection_string, name=bus.name, ca_file=bus.ca_file)
