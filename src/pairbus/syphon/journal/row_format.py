"""The payload of a frame: rows of the ledger as an Arrow stream with one record batch.

Values that all rows of a journal share are in the metadata of the stream's schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pairbus.domain.outcome import Head, Rows

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_TIME = pa.timestamp("us", tz="UTC")
_STORED_TIME = pa.timestamp("ms", tz="UTC")

#: The columns of a row, as `decode_rows` returns them.
SCHEMA = pa.schema(
    [
        ("namespace", pa.string()),
        ("queue_index", pa.int32()),
        ("sequence_number", pa.int64()),
        ("message_id", pa.string()),
        ("session_id", pa.string()),
        ("destination", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("parked_at", _TIME),
        ("settled_at", _TIME),
        ("size", pa.int64()),
        ("delivery_count", pa.int64()),
        ("attempt", pa.int64()),
        ("batch", pa.int64()),
    ]
)
_CONSTANT = ("namespace", "queue_index", "attempt", "batch")
_STORED_SCHEMA = pa.schema(
    [
        (field.name, _STORED_TIME if field.type == _TIME else field.type)
        for field in SCHEMA
        if field.name not in _CONSTANT
    ]
)
_STORED_COLUMNS = [(field.name, field.type) for field in _STORED_SCHEMA]
#: The most milliseconds that fit a timestamp in microseconds.
_MAX_MILLISECONDS = (2**63 - 1) // 1000


class RowEncoder:
    """Encodes the rows of one journal as payloads."""

    def __init__(self, head: Head) -> None:
        constants = {name: str(getattr(head, name)) for name in _CONSTANT}
        self._schema = _STORED_SCHEMA.with_metadata(constants)
        self._preface = self._schema.serialize().to_pybytes()

    def encode(self, rows: Rows) -> bytes:
        try:
            arrays = [pa.array(getattr(rows, name), kind) for name, kind in _STORED_COLUMNS]
        except UnicodeEncodeError:  # half a surrogate pair in a message's property must not lose the row
            arrays = [pa.array(_without_surrogates(getattr(rows, name)), kind) for name, kind in _STORED_COLUMNS]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema).serialize()
        return b"".join((self._preface, batch, _END_OF_STREAM))


def _without_surrogates(values: Sequence[Any]) -> list[Any]:
    return [v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values]


def decode_rows(payloads: Iterable[bytes | memoryview]) -> Iterator[Any]:
    """Yield one record batch with `SCHEMA` for each payload."""
    for payload in payloads:
        # The copy is aligned in memory; a payload inside a file's bytes is not.
        with pa.ipc.open_stream(bytes(payload)) as reader:
            metadata = reader.schema.metadata
            for batch in reader:
                yield _with_constants(batch, metadata)


def _with_constants(batch: Any, metadata: dict[bytes, bytes]) -> Any:
    arrays = []
    for field in SCHEMA:
        if field.name in _CONSTANT:
            value = metadata[field.name.encode()].decode()
            scalar = pa.scalar(int(value) if pa.types.is_integer(field.type) else value, field.type)
            arrays.append(pa.repeat(scalar, batch.num_rows))
        elif field.type == _TIME:
            arrays.append(_as_microseconds(batch.column(field.name)))
        else:
            arrays.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _as_microseconds(values: Any) -> Any:
    try:
        return values.cast(_TIME)
    except pa.ArrowInvalid:  # a time out of range becomes null rather than a wrong time
        plain = values.cast(pa.int64())
        in_range = pc.and_(pc.less_equal(plain, _MAX_MILLISECONDS), pc.greater_equal(plain, -_MAX_MILLISECONDS))
        return pc.if_else(in_range, plain, None).cast(_STORED_TIME).cast(_TIME)
