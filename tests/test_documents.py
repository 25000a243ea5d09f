"""The documents: their examples run, and their tables name what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.localbus.broker import Broker
from pairbus.localbus.entities_file import load_entities
from pairbus.localbus.fault_client import FaultClient

ROOT = Path(__file__).resolve().parent.parent


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def test_the_readmes_python_example_runs() -> None:
    """What a newcomer copies from the README prints the message it sent."""
    example = next(block for block in blocks("README.md", "python") if "LocalBus(" in block)
    run = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "one order"


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


@pytest.mark.parametrize(
    "document", [p.relative_to(ROOT) for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")]], ids=str
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """No document points to a file that is not there."""
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text()):
        if "://" not in target:
            assert (ROOT / document.parent / target).exists(), target
