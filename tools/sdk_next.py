"""Lets a virtual environment with the newest SDKs import everything else from .venv; run by `make sdk-next` with it.

build/sdk-next/bin/python tools/sdk_next.py .venv/lib/python3.12/site-packages
"""

import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """Write the file that adds .venv's packages after this environment's own, and print the SDKs' versions."""
    others = str(Path(sys.argv[1]).resolve())
    own = Path(sysconfig.get_path("purelib"))
    # addsitedir, not a bare path: the editable pairbus is itself a .pth file of .venv.
    (own / "pairbus-others.pth").write_text(f"import site; site.addsitedir({others!r})\n", encoding="utf-8")
    for name in ("azure-servicebus", "azure-eventhub"):
        print(f"pairbus: {name} {version(name)}", flush=True)


if __name__ == "__main__":
    main()
