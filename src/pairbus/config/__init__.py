"""The syphon's configuration: the TOML file, references to secrets, and the checks that all options share."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .references import NamespaceReference
    from .syphon_config import LedgerPlaces, Namespaces, SyphonConfig

#: Public name -> the module that holds it, imported on first use: a check of an option needs none of them.
_HOMES = {
    "LedgerPlaces": "syphon_config",
    "NamespaceReference": "references",
    "Namespaces": "syphon_config",
    "SyphonConfig": "syphon_config",
}

__all__ = ["LedgerPlaces", "NamespaceReference", "Namespaces", "SyphonConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
