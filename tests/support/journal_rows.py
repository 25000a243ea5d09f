"""Rows for journals, and storage to keep them on."""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pairbus.domain.outcome import Head, Rows
from pairbus.syphon.journal import storage as storage_module
from pairbus.syphon.journal.journal import find_journal
from pairbus.syphon.journal.row_format import SCHEMA, decode_rows
from pairbus.syphon.journal.storage import split, storage_at

HEAD = Head("contoso", 3, batch=7, attempt=2)


def rows(*numbers: int) -> Rows:
    """Return one row for each sequence number, with a different value in each column."""
    return Rows(
        sequence_number=list(numbers),
        message_id=[f"id-{number}" for number in numbers],
        session_id=[None if number % 2 else f"s{number}" for number in numbers],
        destination=["orders" for _ in numbers],
        outcome=["delivered" for _ in numbers],
        reason=[None for _ in numbers],
        parked_at=[1_700_000_000_000 + number for number in numbers],
        settled_at=[1_700_000_060_000 + number for number in numbers],
        size=[100 + number for number in numbers],
        delivery_count=[number % 3 for number in numbers],
    )


@dataclass(frozen=True, slots=True)
class JournalPart:
    """The rows of a journal from some position on, and its `Extent` there."""

    #: An Arrow table with `SCHEMA`.
    table: Any
    end: int
    finished: bool
    torn: bool


def read_journal(path: str, start: int = 0) -> JournalPart:
    """Return the rows of a journal behind `start`; FileNotFoundError if there is no journal."""
    folder, name = split(path)
    journal = find_journal(storage_at(folder), name)
    extent = journal.measure(start)
    table = pa.Table.from_batches(decode_rows(journal.payloads(start, extent.end)), SCHEMA)
    return JournalPart(table, extent.end, extent.finished, extent.torn)


def numbers(table: Any) -> list[int]:
    """Return the sequence numbers of a table."""
    found: list[int] = table.column("sequence_number").to_pylist()
    return found


def only_file(folder: Path) -> Path:
    """Return the only file in a folder."""
    (found,) = folder.iterdir()
    return found


def mock_root() -> str:
    """Return a root of its own in a store in memory, which cannot append."""
    return f"mock:///{secrets.token_hex(4)}/_journal"


@pytest.fixture(params=["disk", "mount", "store", "object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root on a disk, a mount without append and links, a store without append, and one without renames too."""
    if request.param == "object store":
        monkeypatch.setattr(storage_module, "_ATOMIC_SCHEMES", {"mock"})
    if "store" in request.param:
        return mock_root()
    if request.param == "mount":
        monkeypatch.setattr(storage_module, "WHOLE_FILE_MOUNTS", (f"{tmp_path}/",))
        monkeypatch.setattr(os, "link", _no_links)
    return str(tmp_path / "ledger" / "_journal")


def _no_links(*_: Any) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
