"""localbus: an embedded Service Bus for tests, demos and fault injection, that the official SDKs talk to.

`LocalBus` starts it as a process of its own; of pairbus only the command line imports this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import LocalBusError
    from .process import LocalBus

#: Imported when first asked for: the server's own process needs neither, and shall soon listen to signals.
_HOMES = {"LocalBus": "process", "LocalBusError": "errors"}

__all__ = ["LocalBus", "LocalBusError"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
