"""The `pairbus` command: it parses the arguments and runs one subcommand.

A subcommand is imported only when it is run, so that `pairbus --help` works without any extra.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from pairbus import __version__

USAGE_ERROR = 2
#: Exit code of a command that Ctrl-C ended, as shells define it.
INTERRUPTED = 130
#: Command -> its module, the extra that the module needs, and its line in the help text.
_PARTS = {
    "localbus": (
        "pairbus.localbus.command",
        "localbus",
        "run a Service Bus on 127.0.0.1 that the Azure SDKs can talk to",
    ),
    "drain": ("pairbus.cli.drain", "syphon", "deliver parked messages, with this one process"),
}


class _Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`, by default those of the process, and return the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    parser = _Parser(
        prog="pairbus",
        description="Paired namespaces for Azure Service Bus, and a Service Bus for your laptop.",
    )
    parser.add_argument("--version", action="version", version=f"pairbus {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    parts = {
        name: commands.add_parser(name, help=text, add_help=False)  # its module, imported below, adds the options
        for name, (_, _, text) in _PARTS.items()
    }

    name = parser.parse_known_args(arguments)[0].command
    module, extra, _ = _PARTS[name]
    try:
        part = importlib.import_module(module)
        parts[name].add_argument("-h", "--help", action="help", help="show this help message and exit")
        part.add_arguments(parts[name])
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            parts[name].error(f"unrecognized arguments: {' '.join(unknown)}")
        code: int = part.run(options)  # may import more modules that are missing
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "pairbus":
            raise
        print(
            f"pairbus {name} needs {missing.name}, which is not installed: install pairbus with its extra '{extra}'",
            file=sys.stderr,
        )
        return USAGE_ERROR
    except KeyboardInterrupt:  # the subcommand had not installed its signal handlers yet
        return INTERRUPTED
    return code
