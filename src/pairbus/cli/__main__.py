"""`python -m pairbus.cli`: the `pairbus` command, where its script is not on the path."""

import sys

from pairbus.cli import main

if __name__ == "__main__":
    sys.exit(main())
