"""`pairbus drain`: deliver parked messages with this one process, without Spark."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

import pyarrow as pa

from pairbus.domain.backlog import format_indexes
from pairbus.errors import OptionError, PairbusError
from pairbus.syphon.drain.relaxed_gc import relaxed_gc
from pairbus.syphon.service import Round, Service, service_for

from .drain_arguments import add_arguments, load_config, log_to_stderr

__all__ = ["add_arguments", "run"]

_FAILED, _USAGE_ERROR = 1, 2
_NEEDS = {"journal": ": the folder that every message's fate is written to"}


def run(options: argparse.Namespace) -> int:
    """Drain, and return the exit code: 0 if only held messages are left, 1 if not, 2 for a wrong configuration."""
    log_to_stderr()
    try:
        config = load_config(options, _NEEDS)
        service = service_for(config)
        service.begin()
    except OptionError as error:
        print(f"pairbus drain: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except (OSError, pa.ArrowException) as error:
        where = "[ledger] journal, by default _journal below [ledger] path"
        print(f"pairbus drain: {where}, cannot be written to: {config.journal}: {error}", file=sys.stderr)
        return _USAGE_ERROR
    stopped = threading.Event()

    def stop(number: int, frame: object) -> None:
        stopped.set()
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with relaxed_gc():
        if options.continuous:
            service.forever()
            code = 0
        else:
            code = _drain_once(service, stopped)
    if service.journal_error is not None:
        print(f"pairbus drain: {service.journal_error}", file=sys.stderr)
        return _FAILED
    return code


def _drain_once(service: Service, stopped: threading.Event) -> int:
    try:
        done = service.once()
    except PairbusError as error:
        print(f"pairbus drain: {error}", file=sys.stderr)
        return _FAILED
    _print_result(done, stopped.is_set())
    return 0 if done.is_empty and not done.errors else _FAILED


def _print_result(done: Round, stopped: bool) -> None:
    for each in done.queues:
        if each.received or each.error:
            counts = f"{each.delivered:,} delivered, {each.dead_lettered:,} dead-lettered, {each.held:,} held back"
            counts += f", {each.in_doubt:,} in doubt" if each.in_doubt else ""
            print(f"queue {each.queue_index}: {counts}{f': {each.error}' if each.error else ''}")
    if done.missing:
        print(f"queue {format_indexes(done.missing)}: does not exist")
    for index, depth in done.left_out.items():
        print(f"queue {index}: {depth:,} messages, which [syphon] queues or --queues leaves out")
    for held in done.held:
        print(f"held back in the backlog: {held.count:,} for {held.destination}: {held.reason}")
    if not done.is_empty:
        print("stopped before the backlog was empty" if stopped else "the backlog is not empty")
    else:
        drained = "the backlog" if not done.left_out else "the requested part of the backlog"
        print(f"nothing else is in {drained}" if done.held else f"{drained} is empty")
