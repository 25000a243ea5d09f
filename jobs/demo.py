"""`make demo`: a whole outage, from the first order to the last delivery, and a count of every message.

Two localbus processes are the two namespaces. Shops send with pairbus. In the middle of that, the primary is killed
(kill -9), and messages are parked in the secondary. The primary returns, a Spark job delivers the parked messages, and
consumers with the plain Azure SDK receive them all. The exit code is 0 only if everything adds up.
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

#: Shares of the messages that are sent before and during the outage.
BEFORE, DURING = 0.25, 0.6
#: Share of the second part that is sent when the primary is killed.
KILLED_AT = 0.2
FOLDER = ROOT / "build" / "demo"
#: A file that marks folders created by the demo, which it may empty.
SIGN = ".made-by-make-demo"


def tell(stage: Stage, messages: int, lose: int) -> Reckoning:
    """Run all chapters and return what was sent and received."""
    say = stage.screen.say
    before, during = round(messages * BEFORE), round(messages * DURING)
    with stage.pairing() as bus:
        paths = list(bus.status().queues)
        say(f"Paired. The secondary now has {len(paths)} backlog queues: {paths[0]} … {paths[-1][-1]}.")
        market = Market(bus)

        say(f"\n1. The primary is up. {SHOPS} shops send orders, invoices, carts (sessions), prices (topic), faxes.")
        stage.trade(market, before)

        say("\n2. The shops go on sending, and the primary is killed. The shops are not notified.")
        say("   (The demo fails over after 1 s; the default is 60 s.)")
        stage.trade(market, during, kill_at=round(during * KILLED_AT))
        stage.show_backlog(paths)

        say("\n3. The primary is started again. A ping detects it.")
        stage.primary.restart()
        stage.await_failback(bus)
        say(f"   The queue {DOOMED} is emptied and deleted, while some messages for it are still parked.")
        stage.give_up(DOOMED)

        say("\n4. The shops send once more, directly to the primary.")
        stage.trade(market, messages - before - during, without=DOOMED)
        market.close()

    say("\n5. The Spark job delivers the parked messages:")
    stage.bring_home()

    say("\n6. Consumers receive with the plain Azure SDK.")
    if lose:
        stage.lose(lose)
    return stage.receive(market, paths)


def reckon(screen: Screen, reckoning: Reckoning) -> bool:
    """Print the final tables, and return True if everything adds up."""
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
    parser = argparse.ArgumentParser(prog="make demo", description="Show an outage, and count every message.")
    parser.add_argument("--messages", type=int, default=24_000, metavar="N", help="messages to send (default: 24000)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help="folder for the ledger (default: build/demo); emptied first if an earlier demo created it",
    )
    parser.add_argument(
        "--lose", type=int, default=0, metavar="N", help="remove N orders: the demo must notice, and fail"
    )
    options = parser.parse_args()
    if options.messages < 1:
        parser.error(f"--messages must be 1 or more, not {options.messages}")
    options.folder = options.folder.resolve()
    if not may_empty(options.folder):
        parser.error(f"--folder {options.folder} is there and no demo has made it: name one that is empty or not there")
    return options


def may_empty(folder: Path) -> bool:
    """Return True if the folder holds nothing but the results of an earlier demo."""
    if not folder.exists() or folder == FOLDER or (folder / SIGN).is_file():
        return True
    return folder.is_dir() and not any(folder.iterdir())


def main() -> int:
    options = arguments()
    for name in ("azure", "pairbus"):  # the SDK logs every lost connection; events of pairbus are printed
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder: Path = options.folder
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / SIGN).touch()
    began, screen = time.monotonic(), Screen()
    with ExitStack() as stack:
        stack.callback(screen.done)  # no error message is printed behind a live line
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-demo-")))
        screen.say("Starting two localbus processes: contoso, the primary, and contoso-backup, the secondary.")
        primary = stack.enter_context(LocalBus(name="contoso", store=stores / "contoso.db"))
        secondary = stack.enter_context(LocalBus(name="contoso-backup", store=stores / "contoso-backup.db"))
        reckoning = tell(Stage(screen, primary, secondary, folder), options.messages, options.lose)
    adds_up = reckon(screen, reckoning)
    screen.say(f"\n{time.monotonic() - began:.0f} s; every process has stopped. Results in {folder}:")
    screen.say("the ledger, the job's configuration and its log. Plot the ledger with: make notebook")
    if not adds_up:
        screen.say("make demo: it does NOT add up, see above")
    return 0 if adds_up else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nmake demo: interrupted; everything that it had started has stopped")
