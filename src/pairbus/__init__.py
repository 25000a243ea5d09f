"""Paired namespaces for Azure Service Bus, and localbus, an embedded Service Bus for development and tests."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .domain.health import State
    from .errors import (
        BacklogUnavailableError,
        ConfigError,
        NotParkableError,
        NotSupportedError,
        OptionError,
        PairbusError,
        PairedNamespaceClosedError,
        PairingError,
        ProvisioningError,
    )
    from .options import Namespace, PairingOptions
    from .sending.event_hubs import PairedEventHubProducer
    from .sending.events import Event
    from .sending.pairing import PairedNamespace, pair_namespaces
    from .sending.sender import PairedSender

__version__ = "0.1.0"

#: Public name -> the module that defines it, imported on first use: localbus needs no part of the SDK.
_HOMES = {
    "BacklogUnavailableError": "errors",
    "ConfigError": "errors",
    "Event": "sending.events",
    "Namespace": "options",
    "NotParkableError": "errors",
    "NotSupportedError": "errors",
    "OptionError": "errors",
    "PairbusError": "errors",
    "PairedEventHubProducer": "sending.event_hubs",
    "PairedNamespace": "sending.pairing",
    "PairedNamespaceClosedError": "errors",
    "PairedSender": "sending.sender",
    "PairingError": "errors",
    "PairingOptions": "options",
    "ProvisioningError": "errors",
    "State": "domain.health",
    "pair_namespaces": "sending.pairing",
}
#: Modules that are reached as attributes of the package.
_MODULES = ("cost",)

__all__ = [
    "BacklogUnavailableError", "ConfigError", "Event", "Namespace", "NotParkableError", "NotSupportedError",
    "OptionError", "PairbusError", "PairedEventHubProducer", "PairedNamespace", "PairedNamespaceClosedError",
    "PairedSender", "PairingError", "PairingOptions", "ProvisioningError", "State", "pair_namespaces",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
