"""The house: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "pairbus"
MODULES = sorted(SOURCE.rglob("*.py"))
#: What the domain must not know of: I/O, threads, clocks of its own, SDKs, engines.
WORLD = {"asyncio", "socket", "ssl", "sqlite3", "threading", "time", "azure", "proton", "cproton_ffi", "pyspark", "h11"}
#: Modules of localbus that decide and do nothing else.
PURE = {
    "queues",
    "holding",
    "sessions",
    "topics",
    "deadlines",
    "locks",
    "message",
    "payload",
    "hubs",
    "faults",
    "effects",
}


def imported(path: Path) -> set[str]:
    """Absolute names of everything a module imports, wherever in it."""
    package = ["pairbus", *path.relative_to(SOURCE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    return found


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name == "domain"], ids=lambda p: p.stem)
def test_the_domain_knows_nothing_of_the_world(path: Path) -> None:
    """No I/O, no SDK, no clock, and no other folder of pairbus."""
    names = imported(path)
    assert not {name.partition(".")[0] for name in names} & WORLD
    assert all(name.startswith("pairbus.domain") for name in names if name.startswith("pairbus"))


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name == "localbus"], ids=lambda p: p.stem)
def test_localbus_stands_alone(path: Path) -> None:
    """It shares the domain and nothing else; its entity logic does no I/O."""
    names = imported(path)
    ours = {name for name in names if name.startswith("pairbus.")}
    assert all(name.startswith(("pairbus.domain", "pairbus.localbus")) for name in ours)
    if path.stem in PURE:
        assert not {name.partition(".")[0] for name in names} & WORLD


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name == "sending"], ids=lambda p: p.stem)
def test_sending_knows_the_domain_and_no_engine(path: Path) -> None:
    """A service that only sends needs the SDK and nothing else: no Spark, no Proton, nothing of the syphon."""
    names = imported(path)
    assert not {name.partition(".")[0] for name in names} & {"pyspark", "proton", "cproton_ffi", "pyarrow", "lark"}
    ours = {name for name in names if name.startswith("pairbus.")}
    homes = ("domain", "sending", "errors", "options", "administration", "bounded_credential", "telling")
    homes = tuple(f"pairbus.{home}" for home in homes)
    assert all(name.startswith(homes) for name in ours)


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name == "syphon"], ids=lambda p: p.stem)
def test_the_syphon_knows_neither_spark_nor_the_sender(path: Path) -> None:
    """It moves messages in any process: no Spark, no localbus, nothing of the paired sender."""
    names = imported(path)
    assert "pyspark" not in {name.partition(".")[0] for name in names}
    ours = {name for name in names if name.startswith("pairbus.")}
    homes = ("domain", "syphon", "errors", "options", "administration", "config", "bounded_credential", "telling")
    homes = tuple(f"pairbus.{home}" for home in homes)
    assert all(name.startswith(homes) for name in ours)


@pytest.mark.parametrize("path", [p for p in MODULES if p.parent.name == "spark"], ids=lambda p: p.stem)
def test_spark_runs_the_syphon_and_knows_no_broker(path: Path) -> None:
    """The adapter to Spark: it knows the syphon and its configuration, nothing of the sender or of localbus."""
    ours = {name for name in imported(path) if name.startswith("pairbus.")}
    homes = (
        "pairbus.domain",
        "pairbus.syphon",
        "pairbus.spark",
        "pairbus.config",
        "pairbus.errors",
        "pairbus.options",
        "pairbus.administration",
        "pairbus.telling",
    )
    assert all(name.startswith(homes) for name in ours)


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.parent == SOURCE and p.name != "cli.py"], ids=lambda p: p.stem
)
def test_what_all_share_knows_none_of_them(path: Path) -> None:
    """Options, errors and the like do not import Spark or the syphon; the package itself offers the sender."""
    names = imported(path)
    assert not {name.partition(".")[0] for name in names} & {"pyspark", "proton", "cproton_ffi", "pyarrow"}
    others = ("pairbus.syphon", "pairbus.spark", "pairbus.localbus")
    assert not any(name.startswith(others) for name in names)


def test_nothing_else_imports_localbus() -> None:
    """Only the command line may, and it does so when it is asked for it."""
    others = [p for p in MODULES if p.parent.name != "localbus" and p.name != "cli.py"]
    assert [p for p in others if any(name.startswith("pairbus.localbus") for name in imported(p))] == []
