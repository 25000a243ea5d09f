"""The source distribution: who unpacks it can run make and the tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in it, as the clone names them."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "--target=sdist", f"--directory={folder}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    (file,) = folder.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def test_what_make_runs_is_in_it(packed: set[str]) -> None:
    """Every folder that a target of the Makefile, pytest, mypy or CI is given."""
    folders = {name.partition("/")[0] for name in packed}
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\b(?:jobs|bench|tools|tests|notebooks|conf|docs|src)\b", makefile))
    assert {"jobs", "bench", "tools", "notebooks"} <= named <= folders
    assert {"src", "tests", "docs", "conf", ".ci"} <= folders


def test_every_file_of_the_clone_is_in_it(packed: set[str]) -> None:
    """Nothing that is under version control is left out but what only git reads."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in run.stdout.splitlines() if (ROOT / name).is_file()}
    assert tracked - packed == {".gitattributes"}
