"""The modules of pairbus, for tests about the source itself."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "pairbus"


def layer_of(path: Path, source: Path = SOURCE) -> str:
    """Return the package under `pairbus` that holds the module, or the module's own name if it lies beside them."""
    return path.relative_to(source).parts[0].removesuffix(".py")
