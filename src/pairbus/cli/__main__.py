"""`python -m pairbus.cli`: the `pairbus` command without its script."""

import sys

from pairbus.cli import main

if __name__ == "__main__":
    sys.exit(main())
