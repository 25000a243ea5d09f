"""Versions of the SDKs: one that lacks a private name is refused with the version that was tried."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pairbus.sending.sdk.tried_versions import TRIED, private_names_of

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("missing", [ImportError("cannot import name '_x'"), AttributeError("no attribute '_x'")])
@pytest.mark.parametrize("distribution", TRIED)
def test_a_missing_name_is_told_with_the_versions(distribution: str, missing: Exception) -> None:
    """The error names the version that was tried, the one that is installed, and what that lacks."""
    with pytest.raises(ImportError) as raised, private_names_of(distribution):
        raise missing
    text = str(raised.value)
    assert f"pairbus was tried with {distribution} {TRIED[distribution]}" in text
    assert f"this is {version(distribution)}" in text
    assert str(missing) in text
    assert raised.value.__cause__ is missing


def test_a_distribution_that_is_not_installed_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of versions then: the import's own error is raised."""
    monkeypatch.setitem(TRIED, "no-such-distribution", "1.0")
    missing = ModuleNotFoundError("No module named 'no_such'", name="no_such")
    with pytest.raises(ModuleNotFoundError) as raised, private_names_of("no-such-distribution"):
        raise missing
    assert raised.value is missing


def test_without_a_missing_name_nothing_is_raised() -> None:
    """The versions themselves are not compared: one that has all names is used."""
    with private_names_of("azure-servicebus"):
        pass


@pytest.mark.parametrize(
    ("distribution", "module", "owner"),
    [
        (
            "azure-servicebus",
            "pairbus",
            "from azure.servicebus import ServiceBusSender as owner; name = '_create_handler'",
        ),
        (
            "azure-eventhub",
            "pairbus.sending.sdk.event_hub_sender",
            "from azure.eventhub import EventHubProducerClient as owner; name = '_create_producer'",
        ),
    ],
)
def test_an_sdk_without_a_private_method_is_refused_on_import(distribution: str, module: str, owner: str) -> None:
    """In a process whose SDK lacks one method: importing the adapter says which version to install."""
    code = f"{owner}; delattr(owner, name)\nimport {module} as m\nm.pair_namespaces"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    tried = TRIED[distribution]
    assert f"ImportError: pairbus was tried with {distribution} {tried}; this is" in found.stderr
    assert f"Install {distribution}=={tried}" in found.stderr


def test_the_tried_versions_are_those_of_the_clone() -> None:
    """The versions that the tests run with are the tried ones."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {name: pinned[name] for name in TRIED} == TRIED
