"""Imports of test modules: what tests share is in `tests/support`, not in another test module or a conftest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def modules_imported(path: Path, root: Path) -> set[str]:
    """Return the absolute names of the modules, and of the names in them, that a file imports."""
    package = ["tests", *path.relative_to(root).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def imported_test_modules(path: Path, root: Path = TESTS) -> set[str]:
    """Return the test modules and conftests that a file imports."""
    modules = {
        ".".join(["tests", *other.relative_to(root).with_suffix("").parts])
        for other in root.rglob("*.py")
        if other.name == "conftest.py" or other.name.startswith("test_")
    }
    return modules_imported(path, root) & modules


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_no_file_imports_a_test_module_or_a_conftest(path: Path) -> None:
    """A test can be renamed, moved or run alone without another one noticing."""
    assert imported_test_modules(path) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from tests.unit.test_one import helper", {"tests.unit.test_one"}),
        ("from tests.unit import test_one", {"tests.unit.test_one"}),
        ("import tests.unit.conftest", {"tests.unit.conftest"}),
        ("def f():\n    from .test_one import helper", {"tests.unit.test_one"}),
        ("from tests.support.pairing import test_connection", set()),
    ],
)
def test_an_import_of_a_test_module_is_found(tmp_path: Path, text: str, expected: set[str]) -> None:
    """The rule sees absolute and relative imports, and imports inside functions."""
    folder = tmp_path / "unit"
    folder.mkdir()
    for name in ("test_one.py", "conftest.py"):
        (folder / name).touch()
    importer = folder / "test_two.py"
    importer.write_text(text)
    assert imported_test_modules(importer, tmp_path) == expected
