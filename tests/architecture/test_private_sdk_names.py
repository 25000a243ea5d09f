"""Private names of Microsoft's SDKs: only `sending/sdk` imports or touches them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_tree import SOURCE, layer_of

ADAPTERS = SOURCE / "sending" / "sdk"
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if ADAPTERS not in path.parents]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_private_import(name: str) -> bool:
    """Return True for a dotted name of an SDK with a private part in it."""
    first, *rest = name.split(".")
    return first == "azure" and any(map(is_private, rest))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of everything that a module imports absolutely."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def touched(tree: ast.AST) -> Iterator[str]:
    """Yield the private attributes that a module reads or sets on other objects than `self` and `cls`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
        ):
            yield str(node.args[1].value)


def defined(trees: list[ast.AST]) -> set[str]:
    """Return the private names that these modules define themselves."""
    found: set[str] = set()
    for node in (each for tree in trees for each in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def private_uses(path: Path, package: list[Path]) -> set[str]:
    """Return the private names of SDKs that a module uses: imports, and attributes that its package does not define."""
    tree = ast.parse(path.read_text())
    names = set(imports(tree))
    found = {name for name in names if is_private_import(name)}
    if SOURCE / "sending" in path.parents or any(name.split(".")[0] == "azure" for name in names):
        found |= set(touched(tree)) - defined([ast.parse(each.read_text()) for each in package])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_private_name_of_an_sdk_is_used_outside_the_adapters(path: Path) -> None:
    """Neither imported nor touched as an attribute: what a new version may take away is in one folder."""
    package = [each for each in MODULES if layer_of(each) == layer_of(path)]
    assert private_uses(path, package) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from azure.servicebus._pyamqp.client import SendClient", {"azure.servicebus._pyamqp.client.SendClient"}),
        ("from azure.servicebus import _base_handler", {"azure.servicebus._base_handler"}),
        ("import azure.eventhub._utils", {"azure.eventhub._utils"}),
        ("def f():\n    from azure.eventhub._x import y", {"azure.eventhub._x.y"}),
        ("import azure.servicebus\ndef f(sender):\n    sender._handler.close()", {"_handler"}),
        ("import azure.servicebus\ndef f(queue):\n    return getattr(queue, '_internal_qr', None)", {"_internal_qr"}),
        ("import azure.servicebus\nclass A:\n    def f(self, other):\n        self._own = other._own", set()),
        ("from azure.servicebus import ServiceBusClient", set()),
    ],
)
def test_a_private_use_is_found(tmp_path: Path, text: str, expected: set[str]) -> None:
    """The rule finds each way to reach a private name, and lets own ones be."""
    path = tmp_path / "runtime.py"
    path.write_text(text)
    assert private_uses(path, [path]) == expected
