"""The modules of pairbus and their imports, for tests about the source itself."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "pairbus"


def layer_of(path: Path, source: Path = SOURCE) -> str:
    """Return the package under `pairbus` that holds the module, or the module's own name if it lies beside them."""
    return path.relative_to(source).parts[0].removesuffix(".py")


def imported(path: Path, root: Path, package: str) -> set[str]:
    """Return the absolute names that a module imports, inside functions too; `root` is the folder of `package`."""
    parents = [package, *path.relative_to(root).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return found
