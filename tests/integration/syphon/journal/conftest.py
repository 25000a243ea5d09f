"""The kinds of storage that journals are folded on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pairbus.syphon.journal import storage as storage_module
from tests.support.journal_rows import mock_root


@pytest.fixture(params=["disk", "mount", "store", "object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root on a disk, a mount without append and links, a store without append, and one without renames too."""
    if request.param == "object store":
        monkeypatch.setattr(storage_module, "_ATOMIC_SCHEMES", {"mock"})
    if "store" in request.param:
        return mock_root()
    if request.param == "mount":
        monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
        monkeypatch.setattr(os, "link", no_links)
    return str(tmp_path / "ledger" / "_journal")


def no_links(*_: Any) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
