"""The `pairbus` command: reads the arguments and hands over to the part that was asked for.

Each part is imported only when it is called, so that `pairbus --help` works whichever extras are installed.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from pairbus import __version__

USAGE_ERROR = 2
#: As shells have it for Ctrl-C.
INTERRUPTED = 130
#: Command → the module that has it, the extra that module needs, and what it is for.
_PARTS = {
    "localbus": (
        "pairbus.localbus.command",
        "localbus",
        "run a Service Bus on 127.0.0.1 that the Azure SDKs can talk to",
    ),
    "drain": ("pairbus.cli.drain", "syphon", "bring parked messages home, with this one process"),
}


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, as for every other thing that cannot work: no page of options around it."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} ({self.prog} --help tells what is right)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (the process's own by default) and return the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    parser = _Parser(
        prog="pairbus",
        description="Paired namespaces for Azure Service Bus, and a Service Bus for your laptop.",
    )
    parser.add_argument("--version", action="version", version=f"pairbus {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    parts = {
        name: commands.add_parser(name, help=said, add_help=False)  # its options are known once the part is imported
        for name, (_, _, said) in _PARTS.items()
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
        code: int = part.run(options)  # it may import more
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "pairbus":
            raise
        print(
            f"pairbus {name} needs {missing.name}, which is not installed: install pairbus with its extra '{extra}'",
            file=sys.stderr,
        )
        return USAGE_ERROR
    except KeyboardInterrupt:  # before the part listens for signals itself: nothing was begun
        return INTERRUPTED
    return code
