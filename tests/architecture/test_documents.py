"""The documents: their examples run, and their tables name what there is."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import PairingOptions
from pairbus.localbus import LocalBus
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.entities_file import load_entities
from pairbus.localbus.faults.client import FaultClient
from pairbus.sending import events
from tests.support.code_blocks import ROOT, blocks

OUTAGES = ("README.md", "docs/sender.md")
DOCUMENTS = [path.relative_to(ROOT) for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))]


def test_the_readmes_python_example_runs() -> None:
    """What a newcomer copies from the README prints the message it sent."""
    example = next(block for block in blocks("README.md", "python") if "client.get_queue_receiver(" in block)
    assert printed(example) == "one order"


def test_the_readmes_outage_runs() -> None:
    """The example with two localbus processes prints what its last line says."""
    example = next(block for block in blocks("README.md", "python") if "first.kill()" in block)
    said = re.search(r"# (failed over: .*)$", example, re.MULTILINE)
    assert said is not None
    assert printed(example).endswith(said.group(1))


@pytest.mark.parametrize("document", ["README.md", "docs/sender.md"])
def test_the_quick_start_runs(document: str) -> None:
    """The quick start works as it stands, but for what an address and a private CA must be told."""
    example = next(block for block in blocks(document, "python") if 'os.environ["PRIMARY"]' in block)
    for name in ("PRIMARY", "SECONDARY"):
        told = f'os.environ["{name}"], name="{name.lower()}", ca_file=os.environ["{name}_CA"]'
        example = example.replace(f'os.environ["{name}"]', told)
    with (
        LocalBus(name="primary") as primary,
        LocalBus(name="secondary") as secondary,
        ServiceBusAdministrationClient.from_connection_string(
            primary.connection_string, connection_verify=primary.ca_file
        ) as admin,
    ):
        admin.create_queue("orders")
        variables = {
            f"{bus.name.upper()}{suffix}": value
            for bus in (primary, secondary)
            for suffix, value in (("", bus.connection_string), ("_CA", bus.ca_file))
        }
        printed(example, **variables)
        assert admin.get_queue_runtime_properties("orders").active_message_count == 1


def test_the_guides_forecasts_run() -> None:
    """The examples of costs print what Microsoft's page says."""
    example = next(block for block in blocks("docs/sender.md", "python") if "forecast(" in block)
    told = printed(example)
    assert told.splitlines()[-1] == "28800"
    assert "6,000,000" in told


def test_the_documents_tables_of_outages_are_one() -> None:
    """README and guide say the same about what counts."""
    tables = [re.findall(r"^\| .*\| (?:yes|no) \| .*$", (ROOT / name).read_text(), re.MULTILINE) for name in OUTAGES]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 3


def test_the_guide_lists_every_option_and_event() -> None:
    """What can be set and what can happen is in the guide."""
    guide = (ROOT / "docs/sender.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE))
    assert {field.name for field in dataclasses.fields(PairingOptions)} <= listed
    kinds = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
    assert {kind for kind in kinds if f"`{kind}`" not in guide} == set()


def printed(example: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    run = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_guides_entities_file_loads(tmp_path: Path) -> None:
    """The TOML in the guide makes the entities that it shows."""
    (example,) = blocks("docs/localbus.md", "toml")
    file = tmp_path / "entities.toml"
    file.write_text(example)
    broker = Broker("contoso")
    load_entities(file, broker)
    assert [queue.path for queue in broker.queues()] == ["carts", "orders"]
    assert sorted(broker.topics()[0].subscriptions) == ["big", "gold"]
    assert broker.hubs()[0].partition_ids == ["0", "1", "2", "3"]


def test_the_guide_lists_every_fault() -> None:
    """A fault that can be set is in the guide's table, and one that is there can be set."""
    listed = set(re.findall(r"^\| `(\w+)\(", (ROOT / "docs/localbus.md").read_text(), re.MULTILINE))
    listed -= {"kill", "restart", "pause", "stop"}
    calls = {name for name in vars(FaultClient) if not name.startswith("_")} - {"clear", "list", "during"}
    assert listed == calls


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_faults_that_are_named_can_be_set(document: Path) -> None:
    """Who copies `….faults.busy("orders")` out of a sentence finds that call."""
    named = set(re.findall(r"\bfaults\.(\w+)", (ROOT / document).read_text()))
    assert {name for name in named if not hasattr(FaultClient, name)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """No document points to a file, or to a heading, that is not there."""
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", (ROOT / document).read_text()):
        if "://" not in target:
            file = ROOT / document.parent / target if target else ROOT / document
            assert file.exists(), target
            assert not heading or heading in headings(file), f"{target}#{heading}"


def headings(file: Path) -> set[str]:
    """The headings of a document, as links name them."""
    found = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in found}


def test_the_designs_tree_names_every_module() -> None:
    """The tree in docs/design.md names each package and module of `src/pairbus`, and none that is gone."""
    tree = re.search(r"```\nsrc/pairbus/\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), re.DOTALL)
    assert tree is not None
    source = ROOT / "src" / "pairbus"
    modules = {path.stem for path in source.rglob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in source.rglob("__init__.py")} - {"pairbus"}
    words = set(re.findall(r"[a-z_]+", tree.group(1)))
    assert (modules | packages) - words == set()
    # A name with an underscore is a module's; other words may be prose.
    assert {word for word in words if "_" in word} - modules == set()
    assert set(re.findall(r"^ +([a-z_]+)/", tree.group(1), re.MULTILINE)) == packages
