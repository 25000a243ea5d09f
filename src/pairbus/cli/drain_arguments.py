"""The command line of `pairbus drain` and of `jobs/drain.py`, and what both make of it."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping

from pairbus.config.syphon_config import SyphonConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="the syphon's configuration, TOML")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="empty the backlog and end (default)")
    mode.add_argument("--continuous", action="store_true", help="drain until stopped (SIGTERM, Ctrl-C)")
    parser.add_argument("--queues", metavar="LIST", help="indexes of backlog queues, for example 0-4,7")
    parser.add_argument("--max-rate", type=float, metavar="N", help="messages a second at most, over all queues")


def load_config(options: argparse.Namespace, needs: Mapping[str, str]) -> SyphonConfig:
    """Return the configuration with the overrides of the command line; see `SyphonConfig.for_command`."""
    return SyphonConfig.for_command(options.config, queues=options.queues, max_rate=options.max_rate, needs=needs)


def log_to_stderr(*quiet: str) -> None:
    """Log events from INFO on to standard error, those of the named loggers and of Azure's SDKs from WARNING on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("azure", *quiet):
        logging.getLogger(name).setLevel(logging.WARNING)
