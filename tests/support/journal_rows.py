"""Rows for journals, and storage to keep them on."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from pairbus.domain.outcome import Head, Rows

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
