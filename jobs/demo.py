"""`make demo`: an outage from the first order to the last one home, and at the end everything is counted.

Two localbus processes are the two namespaces. Shops send with pairbus; the primary is killed (kill -9) in the midst of
it, what they send is parked in the secondary, the primary comes back, a Spark job brings the parked messages home, and
consumers with the plain Azure SDK receive all of them. The exit code is 0 only if everything adds up.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from jobs.demo_story.goods import DOOMED
from jobs.demo_story.processes import ROOT
from jobs.demo_story.reckoning import Reckoning
from jobs.demo_story.screen import Screen, table
from jobs.demo_story.stage import Stage
from jobs.demo_story.trade import SHOPS, Market
from pairbus.localbus import LocalBus

#: How much of all is sent before the outage and in it; and how far the second part is when the primary is killed.
BEFORE, DURING = 0.25, 0.6
KILLED_AT = 0.2
FOLDER = ROOT / "build" / "demo"
#: In a folder that the demo has made; without it what is there is somebody else's.
SIGN = ".made-by-make-demo"


def tell(stage: Stage, messages: int, lose: int) -> Reckoning:
    """The story."""
    say = stage.screen.say
    before, during = round(messages * BEFORE), round(messages * DURING)
    with stage.pairing() as bus:
        paths = list(bus.status().queues)
        say(f"Paired. The secondary has {len(paths)} backlog queues now: {paths[0]} … {paths[-1][-1]}.")
        market = Market(bus)

        say(f"\n1. All is well: {SHOPS} shops send orders, invoices, carts (sessions), prices (a topic) and faxes.")
        stage.trade(market, before)

        say("\n2. They go on, and in the midst of it the primary is killed. Nobody tells them.")
        say("   (Failover after 1 s here, after 60 s by default.)")
        stage.trade(market, during, kill_at=round(during * KILLED_AT))
        stage.show_backlog(paths)

        say("\n3. The primary is started again. A ping will find out.")
        stage.primary.restart()
        stage.await_failback(bus)
        say(f"   Nobody wants {DOOMED} any more: what is in that queue is read, and it is deleted. Some are parked.")
        stage.give_up(DOOMED)

        say("\n4. The shops send once more: to the primary again.")
        stage.trade(market, messages - before - during, without=DOOMED)
        market.close()

    say("\n5. The Spark job brings the parked messages home:")
    stage.bring_home()

    say("\n6. Consumers receive: the plain Azure SDK, which knows nothing of all this.")
    if lose:
        stage.lose(lose)
    return stage.receive(market, paths)


def reckon(screen: Screen, reckoning: Reckoning) -> bool:
    """The tables at the end; whether everything adds up."""
    for text in reckoning.tables():
        screen.say(text)
    checks = reckoning.checks()
    screen.say("\nDoes it add up?")
    screen.say(table(("", "what", "found"), [("yes" if each.ok else "NO", each.what, each.found) for each in checks]))
    for each in checks:
        for wrong in each.wrong:
            screen.say(f"   {each.what}: {wrong}")
    return all(each.ok for each in checks)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description="Tell an outage, and count.")
    parser.add_argument("--messages", type=int, default=24_000, metavar="N", help="how many are sent (default: 24000)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help="where the ledger is left (default: build/demo); emptied first, if an earlier demo has made it",
    )
    parser.add_argument(
        "--lose", type=int, default=0, metavar="N", help="take N orders away on the sly: the demo must notice, and fail"
    )
    options = parser.parse_args()
    if options.messages < 1:
        parser.error(f"--messages must be 1 or more, not {options.messages}")
    options.folder = options.folder.resolve()
    if not may_empty(options.folder):
        parser.error(f"--folder {options.folder} is there and no demo has made it: name one that is empty or not there")
    return options


def may_empty(folder: Path) -> bool:
    """Whether nothing is lost with a folder but what an earlier demo has left."""
    if not folder.exists() or folder == FOLDER or (folder / SIGN).is_file():
        return True
    return folder.is_dir() and not any(folder.iterdir())


def main() -> int:
    options = arguments()
    for name in ("azure", "pairbus"):  # the SDK tells every lost connection; what pairbus tells is printed
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder: Path = options.folder
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / SIGN).touch()
    began, screen = time.monotonic(), Screen()
    with ExitStack() as stack:
        stack.callback(screen.done)  # whatever happens, nothing is printed behind a live line
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-demo-")))
        screen.say("Starting two localbus processes: contoso, the primary, and contoso-backup, the secondary.")
        primary = stack.enter_context(LocalBus(name="contoso", store=stores / "contoso.db"))
        secondary = stack.enter_context(LocalBus(name="contoso-backup", store=stores / "contoso-backup.db"))
        reckoning = tell(Stage(screen, primary, secondary, folder), options.messages, options.lose)
    adds_up = reckon(screen, reckoning)
    screen.say(f"\n{time.monotonic() - began:.0f} s; everything that ran has stopped. Left for you in {folder}:")
    screen.say("the ledger, the job's configuration and its log. See the ledger with plots: make notebook")
    if not adds_up:
        screen.say("make demo: it does NOT add up, see above")
    return 0 if adds_up else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nmake demo: interrupted; everything that it had started has stopped")
