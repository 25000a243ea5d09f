"""The `pairbus` command: reads the arguments and hands over to the part that was asked for.

Each part is imported only when it is called, so that `pairbus --help` works whichever extras are installed.
"""

import argparse
import sys
from collections.abc import Sequence

from pairbus import __version__

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (the process's own by default) and return the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    parser = argparse.ArgumentParser(
        prog="pairbus",
        description="Paired namespaces for Azure Service Bus, and a Service Bus for your laptop.",
    )
    parser.add_argument("--version", action="version", version=f"pairbus {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    localbus = commands.add_parser(
        "localbus",
        help="run a Service Bus on 127.0.0.1 that the Azure SDKs can talk to",
        add_help=False,  # its options are known only once the part is imported, below
    )

    chosen, _ = parser.parse_known_args(arguments)
    assert chosen.command == "localbus"
    try:
        from pairbus.localbus import command
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "pairbus":
            raise
        print(
            f"pairbus localbus needs {missing.name}, which is not installed: pip install 'pairbus[localbus]'",
            file=sys.stderr,
        )
        return USAGE_ERROR
    localbus.add_argument("-h", "--help", action="help", help="show this help message and exit")
    command.add_arguments(localbus)
    return command.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
