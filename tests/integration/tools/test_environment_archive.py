"""make environment: what goes into the archive for executors, and what stays behind. Nothing is built or fetched."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.from_file import module_from

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tool() -> ModuleType:
    return module_from("tools/environment_archive.py")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel of a pairbus that needs as much as the real one, and holds one module."""
    made = tmp_path / "pairbus-1-py3-none-any.whl"
    requires = ["h11", "pairbus[syphon]; extra == 'spark'", "pyspark; extra == 'spark'", "pytest; extra == 'dev'"]
    requires += ["delta-spark; extra == 'spark'", "python-qpid-proton; extra == 'syphon'"]
    head = ["Metadata-Version: 2.4", "Name: pairbus", *(f"Requires-Dist: {each}" for each in requires)]
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pairbus/__init__.py", "packed = True\n")
        archive.writestr("pairbus-1.dist-info/METADATA", "\n".join(head) + "\n\nRequires-Dist: in the text\n")
    return made


def test_what_is_needed(tool: ModuleType, wheel: Path) -> None:
    """All of the extra for Spark and of those it names, down to the last; neither Spark nor what only tests need."""
    found = {package.name.lower().replace("_", "-") for package in tool.needed(wheel)}
    assert {"h11", "python-qpid-proton", "cffi", "pycparser", "delta-spark", "azure-identity", "msal"} <= found
    assert not {"pyspark", "py4j", "pytest", "pairbus"} & found


def test_the_archive_is_an_environment(tool: ModuleType, wheel: Path, tmp_path: Path) -> None:
    """Unpacked anywhere it runs by itself, with the packed modules and no others; and it says which Python it needs."""
    archive = tmp_path / "environment.tar.gz"
    python = str(Path(sys.executable).resolve())
    tool.pack(archive, python, wheel, [distribution("h11")])
    with tarfile.open(archive) as tar:
        assert tar.getmember("bin/python").linkname == python
    (tmp_path / "here").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path / "here"], check=True)
    code = "import importlib.util as u, sys, h11, pairbus; print(h11.__file__, pairbus.packed, u.find_spec('pytest'))"
    run = subprocess.run(
        ["./here/bin/python", "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(str(tmp_path / "here" / "lib"))
    assert run.stdout.split()[1:] == ["True", "None"]
    assert [file.name for file in tmp_path.glob("environment*")] == ["environment.tar.gz"]
