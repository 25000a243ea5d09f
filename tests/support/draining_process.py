"""A process that drains a backlog queue with a real journal, to be killed; its arguments are JSON on stdin."""

from __future__ import annotations

import json
import sys

from pairbus import Namespace
from pairbus.domain.outcome import Head
from pairbus.syphon.drain.drain import DrainOptions, drain_queue
from pairbus.syphon.journal.journal import open_journal


def main() -> None:
    given = json.load(sys.stdin)
    primary = Namespace.from_connection_string(given["primary"], name=given["name"])
    secondary = Namespace.from_connection_string(given["secondary"], name="backup")
    journal = open_journal(given["folder"], Head(given["name"], 0))
    summary = drain_queue(
        primary=primary,
        secondary=secondary,
        queue_index=0,
        journal=journal,
        options=DrainOptions(window_messages=given["window"], budget=60.0, max_rate=60.0),
    )
    journal.close()
    print(summary.delivered)


if __name__ == "__main__":
    main()
