"""The layers: which package may import which, at any depth of folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.source_tree import SOURCE, imported, layer_of

#: I/O, threads, clocks, SDKs and engines.
WORLD = frozenset(
    {"asyncio", "socket", "ssl", "sqlite3", "threading", "time", "azure", "proton", "cproton_ffi", "pyspark", "h11"}
)
ENGINES = frozenset({"pyspark", "proton", "cproton_ffi", "pyarrow"})
#: Modules that every package but the domain and localbus may import.
SHARED = frozenset({"domain", "errors", "options", "runtime"})


@dataclass(frozen=True)
class Layer:
    """The rule for one package, or one module beside the packages: what it may import."""

    #: Packages and top-level modules of pairbus, besides its own.
    may_import: frozenset[str] = frozenset()
    #: Top-level packages of others that it must not import.
    refuses: frozenset[str] = frozenset()


LAYERS = {
    "domain": Layer(refuses=WORLD),
    "localbus": Layer(frozenset({"domain"})),
    "sending": Layer(SHARED, refuses=ENGINES | {"lark"}),
    "syphon": Layer(SHARED | {"config"}, refuses=frozenset({"pyspark"})),
    "spark": Layer(SHARED | {"config", "syphon"}),
    "config": Layer(frozenset({"domain", "errors", "options", "runtime"}), refuses=ENGINES),
    "runtime": Layer(frozenset({"domain", "errors", "options"}), refuses=ENGINES),
    # The command line starts every part, and imports a part when it is asked for.
    "cli": Layer(SHARED | {"config", "syphon", "localbus"}),
}
#: The modules beside the packages: options, errors, costs. `pairbus` itself offers the sender.
BESIDE = Layer(SHARED | {"config", "sending", "cost"}, refuses=ENGINES)
#: The package of localbus that decides and does no I/O.
PURE = "localbus/entities"


def violations(path: Path, source: Path = SOURCE) -> set[str]:
    """Return the imports that a module's layer does not allow."""
    here = layer_of(path, source)
    layer = LAYERS.get(here, BESIDE)
    is_pure = path.relative_to(source).as_posix().startswith(f"{PURE}/")
    refused = layer.refuses | (WORLD if is_pure else frozenset())
    allowed = layer.may_import | {here}
    found = set()
    for name in imported(path, source, "pairbus"):
        first, _, rest = name.partition(".")
        if first in refused or (
            first == "pairbus" and rest and rest.partition(".")[0] not in allowed and not rest.startswith("_")
        ):
            found.add(name)
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    """Each layer keeps to the packages named for it, and the domain and localbus's entity logic do no I/O."""
    assert violations(path) == set()


@pytest.mark.parametrize(
    ("place", "text", "wrong"),
    [
        ("domain/amqp/deep/clock.py", "import time", {"time"}),
        ("domain/amqp/deep/reader.py", "from ...health import x", set()),  # three dots end inside the domain
        ("domain/one.py", "from ..options import Namespace", {"pairbus.options", "pairbus.options.Namespace"}),
        ("domain/a/two.py", "from ...options import Namespace", {"pairbus.options", "pairbus.options.Namespace"}),
        ("localbus/rest/deep/page.py", "import pairbus.syphon.drain", {"pairbus.syphon.drain"}),
        ("localbus/entities/deep/queues.py", "import sqlite3", {"sqlite3"}),
        ("sending/sdk/deep/fast.py", "def f():\n    import proton", {"proton"}),
        ("sending/sdk/home.py", "from pairbus.syphon import x", {"pairbus.syphon", "pairbus.syphon.x"}),
        ("syphon/drain/deep/table.py", "from pyspark.sql import Row", {"pyspark.sql", "pyspark.sql.Row"}),
        ("syphon/drain/bus.py", "import pairbus.localbus.broker.store", {"pairbus.localbus.broker.store"}),
        ("spark/deep/sender.py", "import pairbus.sending.sender", {"pairbus.sending.sender"}),
        ("options/deep/ledger.py", "import pyarrow", {"pyarrow"}),
    ],
)  # fmt: skip
def test_a_nested_module_in_the_wrong_place_is_found(place: str, text: str, wrong: set[str], tmp_path: Path) -> None:
    """Depth is no way out: a module belongs to the first folder under `pairbus`, however deep it lies."""
    module = tmp_path / place
    module.parent.mkdir(parents=True)
    module.write_text(text)
    assert violations(module, tmp_path) == wrong
