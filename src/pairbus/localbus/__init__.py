"""localbus: an embedded Service Bus for tests, demos and fault injection, used through the official SDKs.

`LocalBus` starts it as a process of its own. In pairbus only the command line imports this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import LocalBusError
    from .process import LocalBus

#: Name -> module, imported on first use: the server process needs neither and should start quickly.
_MODULES = {"LocalBus": "process", "LocalBusError": "errors"}

__all__ = ["LocalBus", "LocalBusError"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
