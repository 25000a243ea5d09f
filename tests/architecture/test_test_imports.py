"""Imports of test modules: what tests share is in `tests/support`, not in another test module or a conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.source_tree import imported

TESTS = Path(__file__).resolve().parents[1]


def imported_test_modules(path: Path, root: Path = TESTS) -> set[str]:
    """Return the test modules and conftests that a file imports."""
    modules = {
        ".".join(["tests", *other.relative_to(root).with_suffix("").parts])
        for other in root.rglob("*.py")
        if other.name == "conftest.py" or other.name.startswith("test_")
    }
    return imported(path, root, "tests") & modules


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
