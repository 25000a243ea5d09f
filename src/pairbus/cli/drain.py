"""`pairbus drain`: bring parked messages home with this one process, without Spark."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable

import pyarrow as pa

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.backlog import format_indexes
from pairbus.errors import OptionError, PairbusError
from pairbus.syphon.drain.relaxed_gc import seldom_collected
from pairbus.syphon.service import Round, Service, service_for

_COULD_NOT, _USAGE_ERROR = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="the syphon's configuration, TOML")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="empty the backlog and end (default)")
    how.add_argument("--continuous", action="store_true", help="go on until told to stop (SIGTERM, Ctrl-C)")
    parser.add_argument("--queues", metavar="LIST", help="indexes of backlog queues, for example 0-4,7")
    parser.add_argument("--max-rate", type=float, metavar="N", help="messages a second at the most, over all queues")


def run(options: argparse.Namespace) -> int:
    """Drain; 0 if the backlog is empty but for what is held back, 1 if it could not be done, 2 for a bad set-up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)
    try:
        needs = {"journal": ": the folder that every message's fate is written to"}
        config = SyphonConfig.for_command(options.config, queues=options.queues, max_rate=options.max_rate, needs=needs)
        service = service_for(config)
        service.begin()
    except OptionError as error:
        print(f"pairbus drain: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except (OSError, pa.ArrowException) as error:
        where = "[ledger] journal, by default _journal below [ledger] path"
        print(f"pairbus drain: {where}, cannot be written to: {config.journal}: {error}", file=sys.stderr)
        return _USAGE_ERROR
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with seldom_collected():
        if options.continuous:
            service.forever()
            code = 0
        else:
            code = _once(service, lambda: stopped)
    if service.not_ended is not None:
        print(f"pairbus drain: {service.not_ended}", file=sys.stderr)
        return _COULD_NOT
    return code


def _once(service: Service, stopped: Callable[[], bool]) -> int:
    try:
        done = service.once()
    except PairbusError as error:
        print(f"pairbus drain: {error}", file=sys.stderr)
        return _COULD_NOT
    _tell(done, stopped())
    return 0 if done.is_empty and not done.errors else _COULD_NOT


def _tell(done: Round, stopped: bool) -> None:
    for each in done.queues:
        if each.received or each.error:
            said = f"{each.delivered:,} delivered, {each.dead_lettered:,} dead-lettered, {each.held:,} held back"
            said += f", {each.in_doubt:,} in doubt" if each.in_doubt else ""
            print(f"queue {each.queue_index}: {said}{f': {each.error}' if each.error else ''}")
    if done.missing:
        print(f"queue {format_indexes(done.missing)}: does not exist")
    for index, depth in done.left_out.items():
        print(f"queue {index}: {depth:,} messages, which [syphon] queues or --queues leaves out")
    for held in done.held:
        print(f"held back in the backlog: {held.count:,} for {held.destination}: {held.reason}")
    if not done.is_empty:
        print("stopped before the backlog was empty" if stopped else "the backlog is not empty")
    else:
        what = "the backlog" if not done.left_out else "what was asked for of the backlog"
        print(f"nothing else is in {what}" if done.held else f"{what} is empty")
