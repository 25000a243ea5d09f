"""A configuration that has no default value, and what it is expected to lead to."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from pairbus import Namespace
from pairbus.config.syphon_config import SyphonConfig
from pairbus.syphon.drain.drain import DrainOptions


def unusual_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SyphonConfig:
    """Return a configuration in which every value differs from its default."""
    mapping: dict[str, dict[str, Any]] = {}
    for name in ("primary", "secondary", "event_hubs"):
        reference = f"PAIRBUS_UNUSUAL_{name.upper()}"
        host = name.replace("_", "-")
        monkeypatch.setenv(
            reference, f"Endpoint=sb://{host}.example/;SharedAccessKeyName=key-of-{host};SharedAccessKey=c2VjcmV0"
        )
        mapping[name] = {"connection": f"env:{reference}", "name": f"name-of-{host}"}
    mapping["syphon"] = {
        "queues": "1,3,8",
        "late": "dead-letter",
        "retry_interval": 3,
        "idle_poll_interval": 45,
        "task_budget": 77,
        "window_messages": 123,
        "window_bytes": 5 * 1024 * 1024,
        "max_rate": 60,
    }
    mapping["ledger"] = {name: str(folder / name) for name in ("path", "checkpoint", "journal")}
    config = SyphonConfig.from_mapping(mapping)
    usual = [each.name for each in fields(config) if each.default is not MISSING]
    assert [name for name in usual if getattr(config, name) == getattr(SyphonConfig, name)] == []
    return config


def options_in(config: SyphonConfig) -> dict[str, Any]:
    """Return the options that a drain and a configuration have by the same name."""
    names = {each.name for each in fields(DrainOptions)} & {each.name for each in fields(SyphonConfig)}
    assert names >= {"window_messages", "window_bytes", "retry_interval", "late", "max_rate"}
    return {name: getattr(config, name) for name in names}


def identity(namespace: Namespace | None) -> tuple[str, str, str] | None:
    """Return a namespace's host and name, and its key's name."""
    return None if namespace is None else (namespace.host, namespace.name, namespace.credential.named_key.name)


def identity_of(name: str) -> tuple[str, str, str]:
    """Return the same for a namespace of `unusual_config`."""
    return f"{name}.example", f"name-of-{name}", f"key-of-{name}"
