"""The payload of a frame: rows come back with every column, and odd values lose no row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pairbus.domain.outcome import Rows
from pairbus.syphon.journal.row_format import SCHEMA, RowEncoder, decode_rows
from tests.support.journal_rows import HEAD, numbers, rows


def round_trip(*each: Rows) -> Any:
    """Return the rows of some payloads as one table."""
    encoder = RowEncoder(HEAD)
    return pa.Table.from_batches(decode_rows(encoder.encode(more) for more in each), SCHEMA)


def test_rows_come_back_as_they_were() -> None:
    """Every column, with the constants of the head added; times as UTC timestamps."""
    table = round_trip(rows(4, 5), rows(6))
    assert table.schema == SCHEMA
    assert numbers(table) == [4, 5, 6]
    first = table.slice(0, 1).to_pylist()[0]
    parked = first.pop("parked_at")
    assert (parked.timestamp(), parked.utcoffset().total_seconds()) == (1_700_000_000.004, 0)
    assert first.pop("settled_at").timestamp() == 1_700_000_060.004
    assert first == {
        "namespace": "contoso",
        "queue_index": 3,
        "sequence_number": 4,
        "message_id": "id-4",
        "session_id": "s4",
        "destination": "orders",
        "outcome": "delivered",
        "reason": None,
        "size": 104,
        "delivery_count": 1,
        "attempt": 2,
        "batch": 7,
    }


def test_a_payload_is_an_arrow_stream_of_the_stored_columns() -> None:
    """Other versions of pairbus read it: names, types and the constants in the metadata do not change."""
    with pa.ipc.open_stream(RowEncoder(HEAD).encode(rows(1))) as reader:
        schema = reader.schema
    time = pa.timestamp("ms", tz="UTC")
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "sequence_number": pa.int64(),
        "message_id": pa.string(),
        "session_id": pa.string(),
        "destination": pa.string(),
        "outcome": pa.string(),
        "reason": pa.string(),
        "parked_at": time,
        "settled_at": time,
        "size": pa.int64(),
        "delivery_count": pa.int64(),
    }
    assert schema.metadata == {b"namespace": b"contoso", b"queue_index": b"3", b"attempt": b"2", b"batch": b"7"}


def test_odd_values_keep_their_rows() -> None:
    """Half a surrogate pair is escaped, no value stays none, and a time that no timestamp can hold becomes null."""
    odd = rows(1, 2, 3)
    odd.message_id = ["\ud800", None, "naïve \0 ✓"]
    odd.parked_at = [2**62, None, -(2**62)]
    odd.reason = ["x" * 100_000, "", None]
    table = round_trip(odd)
    assert table.column("message_id").to_pylist() == ["\\ud800", None, "naïve \0 ✓"]
    assert table.column("parked_at").null_count == 3
    assert table.column("settled_at").null_count == 0
    assert table.column("reason").to_pylist() == odd.reason


def test_a_time_out_of_range_leaves_the_times_beside_it() -> None:
    """The largest and smallest time that a timestamp holds come back; only those beyond are null."""
    most = (2**63 - 1) // 1000
    odd = rows(1, 2, 3)
    odd.parked_at = [most, most + 1, -most]
    assert round_trip(odd).column("parked_at").cast(pa.int64()).to_pylist() == [most * 1000, None, -most * 1000]
