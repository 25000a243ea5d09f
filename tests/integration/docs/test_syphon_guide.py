"""docs/syphon.md: its configuration, its options and the names in its examples are those of the code.

Tests that need a SparkSession are in tests/spark/test_syphon_guide.py.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

from jobs import drain
from pairbus import cli
from pairbus.config.syphon_config import SyphonConfig
from pairbus.spark import Syphon
from tests.support.code_blocks import blocks

GUIDE = "docs/syphon.md"
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = blocks(GUIDE, "python")


def test_the_configuration_loads_and_has_the_defaults(tmp_path: Path) -> None:
    """The TOML in the guide is valid, and names every key of [syphon] with its default."""
    (example,) = blocks(GUIDE, "toml")
    (tmp_path / "pairbus.toml").write_text(example)
    config = SyphonConfig.load(tmp_path / "pairbus.toml")
    assert config == SyphonConfig(
        primary=config.primary, secondary=config.secondary, ledger=config.ledger, checkpoint=config.checkpoint
    )
    named = set(re.findall(r"^(\w+) = ", example.partition("[syphon]")[2].partition("[ledger]")[0], re.MULTILINE))
    assert named == set(config.to_mapping()["syphon"])


@pytest.mark.parametrize(
    "other",
    [
        'connection = "file:/run/secrets/primary"',
        'host = "contoso.servicebus.windows.net"\ncredential = "managed-identity"',
    ],
    ids=["file", "identity"],
)
def test_the_other_ways_to_name_a_namespace_are_valid_too(tmp_path: Path, other: str) -> None:
    """The lines that the guide has as comments can replace the environment variable."""
    (example,) = blocks(GUIDE, "toml")
    for line in other.splitlines():
        assert re.search(rf"^# {re.escape(line)} ", example, re.MULTILINE), line
    (tmp_path / "pairbus.toml").write_text(example.replace('connection = "env:PAIRBUS_PRIMARY"', f"{other}\n"))
    SyphonConfig.load(tmp_path / "pairbus.toml")


def test_the_table_has_the_options_of_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option of jobs/drain.py is in the guide, with a value if it takes one, and no other."""
    monkeypatch.setattr(sys, "argv", ["drain.py", "--help"])
    with pytest.raises(SystemExit):
        drain.arguments()
    assert options(capsys.readouterr().out) == documented()


def test_the_command_has_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    """The guide's table is for `pairbus drain` too."""
    with pytest.raises(SystemExit):
        cli.main(["drain", "--help"])
    assert options(capsys.readouterr().out) == documented()


def options(help_text: str) -> dict[str, bool]:
    """Return option -> True if it takes a value, from the output of `--help`."""
    found = dict(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)( [A-Z]+)?", help_text, re.MULTILINE))
    del found["--help"]
    return {name: bool(value) for name, value in found.items()}


def documented() -> dict[str, bool]:
    """Return the same from the guide's table."""
    found = re.findall(r"^\| `(--[a-z-]+)( [^`]+)?` \|", (ROOT / GUIDE).read_text(), re.MULTILINE)
    return {name: bool(value) for name, value in found}


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_use_names_that_exist(example: str) -> None:
    """Each compiles, and the names that it imports exist."""
    tree = ast.parse(example)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = importlib.import_module(str(node.module))
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_example_of_a_job_calls_methods_that_exist() -> None:
    """`start`, `stop` and `run_once`, in code and in comments."""
    (example,) = [each for each in EXAMPLES if "job = syphon(" in each]
    named = set(re.findall(r"\bjob\.(\w+)\(", example))
    assert named == {"start", "stop", "run_once"}
    assert {name for name in named if not hasattr(Syphon, name)} == set()
