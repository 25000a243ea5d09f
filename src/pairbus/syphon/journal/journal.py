"""The write-ahead journal: rows of the ledger, made durable before their messages leave the backlog.

A journal is a row of frames (see `frames`), each to be read alone: its payload is an Arrow stream with one record
batch, and what all rows share is in its schema's metadata. On a disk a journal is one file that grows,
`<name>.journal`, and an end frame closes it. Where files cannot grow it is a folder of that name with one file a write,
`00000001.seg` and on, and a file `end`. What a kill or a full disk leaves behind the last whole frame is recognised and
never read: nobody was told that it is durable.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pairbus.domain.outcome import Head, Rows
from pairbus.runtime import bounded_call as bounds
from pairbus.runtime.bounded_call import call_with_deadline

from .frame_format import DATA, END, Frames, frame
from .storage import LocalPlace, Place, named, place_at, split, write_all

_logger = logging.getLogger("pairbus.syphon.journal")

SUFFIX = ".journal"
_SEGMENT = ".seg"
_END_FILE = "end"
_PROBE_FILE = "probe"
#: As much as a write of some hundred rows takes; no frame begins with it.
_ROOM = bytes(64 * 1024)
#: How an Arrow stream ends.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_TIME = pa.timestamp("us", tz="UTC")
_WRITTEN_TIME = pa.timestamp("ms", tz="UTC")

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
_WRITTEN = pa.schema(
    [
        (field.name, _WRITTEN_TIME if field.type == _TIME else field.type)
        for field in SCHEMA
        if field.name not in _CONSTANT
    ]
)
_COLUMNS = [(field.name, field.type) for field in _WRITTEN]
#: The range of milliseconds that can be told in microseconds.
_TIME_LIMIT = (2**63 - 1) // 1000


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What a journal holds from some point on."""

    #: The rows, with `SCHEMA`.
    table: Any
    #: Behind the last whole frame: a byte offset, or in a folder of segments the number of the last one.
    end: int
    #: Whether it was closed, and so never grows again.
    finished: bool
    #: Whether there are bytes behind the last whole frame.
    torn: bool


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a journal can be read, without reading its rows."""

    #: Behind the last whole frame with rows; see `JournalPart.end`.
    end: int
    #: Whether there are rows between the start and the end.
    rows: bool
    finished: bool
    torn: bool
    #: Whether there are whole frames behind a broken one: no kill does that, something has damaged the file.
    damaged: bool = False


def open_journal(folder: str, head: Head) -> Journal:
    """A new journal in the folder of a run, a path or a URI; nothing is made there before the first write."""
    place = place_at(folder)
    if isinstance(place, LocalPlace) and place.appends:
        return Journal(head, _GrowingFile(place, head))
    return Journal(head, _Segments(place, head))


class Journal:
    """The journal of one try at one queue. Blocking; one call at a time."""

    def __init__(self, head: Head, keep: _GrowingFile | _Segments) -> None:
        constants = {name: str(getattr(head, name)) for name in _CONSTANT}
        self._schema = _WRITTEN.with_metadata(constants)
        self._preface = self._schema.serialize().to_pybytes()
        self._keep = keep
        self._closed = False
        self._called = threading.Lock()

    def write(self, rows: Rows) -> None:
        """Append rows; when this returns they are durable. An OSError names the path; the journal can still be used."""
        if self._closed:
            raise ValueError("the journal is closed")
        if not len(rows):
            return
        with self._called:
            self._keep.append(frame(DATA, b"".join((self._preface, self._serialised(rows), _END_OF_STREAM))))

    def _serialised(self, rows: Rows) -> Any:
        try:
            arrays = [pa.array(getattr(rows, name), kind) for name, kind in _COLUMNS]
        except UnicodeEncodeError:  # half a surrogate pair: no reason to lose the row
            arrays = [pa.array(_encodable(getattr(rows, name)), kind) for name, kind in _COLUMNS]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema).serialize()

    def prepare(self) -> None:
        """Make sure that rows can be made durable; raises OSError if not, before a message was sent for which there
        would be no row."""
        # With the first array that it makes Arrow looks for pandas, and imports it: a second or more, in which no
        # message should be locked.
        self._serialised(Rows())
        with self._called:
            self._keep.prepare()

    def close(self) -> None:
        """Say that the journal never grows again. One that nothing was written to leaves no trace."""
        if self._closed:
            return
        self._closed = True
        if not self._called.acquire(blocking=False):
            raise OSError(errno.EBUSY, "a write to it that nobody waits for any more is still under way")
        try:
            self._keep.close()
        finally:
            self._called.release()


def close_journal(journal: Journal, queue_index: int) -> None:
    """Close it; what keeps it from being closed is told, and changes nothing: its rows are durable. One whose storage
    does not answer is left as it is."""
    try:
        call_with_deadline(journal.close, bounds.JOURNAL_SECONDS, "pairbus-journal-end")
    except Exception as error:  # it is only not marked as finished
        _logger.warning("the journal of queue %d could not be closed: %s", queue_index, error)


def journal_name(head: Head) -> str:
    """A name that no other journal has."""
    return f"{head.queue_index}-{head.batch}-{head.attempt}-{secrets.token_hex(4)}{SUFFIX}"


class _GrowingFile:
    """One file, appended to. After an error it is cut back to its last whole frame, and the next write begins another.

    It is never continued: a folder that reads along may have seen what could not be made durable.
    """

    def __init__(self, place: LocalPlace, head: Head) -> None:
        self._place = place
        self._head = head
        self._file: io.FileIO | None = None
        self._whole = 0

    def prepare(self) -> None:
        file = self._file or self._create()
        if self._whole:
            return
        try:
            with named(str(file.name)):
                write_all(file.fileno(), _ROOM)
                os.fsync(file.fileno())
                os.ftruncate(file.fileno(), 0)
                os.lseek(file.fileno(), 0, os.SEEK_SET)
        except BaseException:
            self._abandon()
            raise

    def append(self, data: bytes) -> None:
        if not self._write(data):
            # Somebody took this journal for dead and removed it. What was written before was folded in; this was not.
            self._abandon()
            self._write(data)

    def _write(self, data: bytes) -> bool:
        file = self._file or self._create()
        try:
            with named(str(file.name)):
                write_all(file.fileno(), data)
                os.fsync(file.fileno())
                self._whole += len(data)
                return os.fstat(file.fileno()).st_nlink > 0
        except BaseException:
            self._abandon()
            raise

    def _create(self) -> io.FileIO:
        path = self._place.where(journal_name(self._head))
        with named(path):
            self._file = self._place.create(path, "xb")
            self._whole = 0
            try:
                self._place.sync_folder(os.path.dirname(path))
            except BaseException:
                self._abandon()
                raise
        return self._file

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # As well as it can be done on a disk in trouble: a torn frame is recognised too.
            with contextlib.suppress(OSError), file:
                if self._whole:
                    os.ftruncate(file.fileno(), self._whole)
                    os.lseek(file.fileno(), self._whole, os.SEEK_SET)
                    write_all(file.fileno(), frame(END, b""))
                else:
                    os.unlink(file.name)

    def close(self) -> None:
        if not self._whole:
            self._abandon()
        if self._file is not None:
            self._write(frame(END, b""))
        if self._file is not None:
            self._file.close()
            self._file = None


class _Segments:
    """A folder, one file a write, never written again. After an error the next write takes the next number."""

    def __init__(self, place: Place, head: Head) -> None:
        self._place = place
        self._name = journal_name(head)
        self._number = 0
        self._written = self._tried = False

    def prepare(self) -> None:
        name = f"{self._name}/{_PROBE_FILE}"
        self._tried = True
        self._place.put(name, _ROOM)
        self._place.delete(name)

    def append(self, data: bytes) -> None:
        self._number += 1
        name = f"{self._name}/{self._number:08d}{_SEGMENT}"
        try:
            self._place.put(name, data)
        except BaseException:
            with contextlib.suppress(OSError):  # half of it is recognised too
                self._place.delete(name)
            raise
        self._written = True

    def close(self) -> None:
        if self._written:
            self._place.put(f"{self._name}/{_END_FILE}", frame(END, b""))
        elif self._tried:
            with contextlib.suppress(OSError):  # nobody was told that anything in it is durable
                self._place.delete_folder(self._name)


def _encodable(values: Sequence[Any]) -> list[Any]:
    return [v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values]


def measure_journal(place: Place, name: str, start: int, segments: Sequence[str]) -> Extent:
    """How far a journal can be read from `start` on; `segments` are the files in it, if it is a folder."""
    if not segments:
        frames = Frames(place.read(name, start))
        rows = sum(1 for _ in frames) > 0
        return Extent(start + frames.rows_end, rows, frames.finished, frames.torn, frames.torn and frames.damaged)
    numbers = sorted(number for each in segments if (number := _segment_number(each)) is not None and number > start)
    finished = _END_FILE in segments
    torn = False
    # Segments are written one after another: only the last can be half.
    if numbers and not finished and not list(Frames(place.read(f"{name}/{numbers[-1]:08d}{_SEGMENT}"))):
        numbers.pop()
        torn = True
    return Extent(numbers[-1] if numbers else start, bool(numbers), finished, torn)


def read_journal(path: str, start: int = 0) -> JournalPart:
    """All rows of a journal from `start` on, which is 0 or the `end` of an earlier part; a torn end is left out."""
    folder, name = split(path)
    place = place_at(folder)
    segments = [each.name for each in place.files(name)] if not place.is_file(name) else []
    if segments:
        extent = measure_journal(place, name, start, segments)
        table = pa.Table.from_batches(read_rows(place, name, start, extent.end), SCHEMA)
        return JournalPart(table, extent.end, extent.finished, extent.torn)
    frames = Frames(place.read(name, start))
    table = pa.Table.from_batches(_decoded(frames), SCHEMA)
    return JournalPart(table, start + frames.end, frames.finished, frames.torn)


def read_rows(place: Place, name: str, start: int, end: int) -> Iterator[Any]:
    """The rows between two points of a journal, as record batches with `SCHEMA`."""
    if place.is_file(name):
        frames = Frames(place.read(name, start, end))
        yield from _decoded(frames)
        if start + frames.end < end:
            _logger.warning("%s was readable to byte %d, now to %d", place.where(name), end, start + frames.end)
        return
    files = place.files(name)
    if not files:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.where(name))
    for each in files:
        number = _segment_number(each.name)
        if number is not None and start < number <= end:
            frames = Frames(place.read(f"{name}/{each.name}"))
            yield from _decoded(frames)
            if not frames.rows_end or frames.torn:
                # What a write has left that failed; what had been durable would have to be damaged.
                _logger.warning("%s is not whole", place.where(f"{name}/{each.name}"))


def _segment_number(name: str) -> int | None:
    number, suffix = name[: -len(_SEGMENT)], name[-len(_SEGMENT) :]
    return int(number) if suffix == _SEGMENT and number.isdecimal() else None


def _decoded(frames: Frames) -> Iterator[Any]:
    for payload in frames:
        # A copy, which is aligned: where a frame lies in a file, is not.
        with pa.ipc.open_stream(bytes(payload)) as reader:
            metadata = reader.schema.metadata
            for batch in reader:
                yield _row_batch(batch, metadata)


def _row_batch(batch: Any, metadata: dict[bytes, bytes]) -> Any:
    arrays = []
    for field in SCHEMA:
        if field.name in _CONSTANT:
            value = metadata[field.name.encode()].decode()
            scalar = pa.scalar(int(value) if pa.types.is_integer(field.type) else value, field.type)
            arrays.append(pa.repeat(scalar, batch.num_rows))
        elif field.type == _TIME:
            arrays.append(_microseconds(batch.column(field.name)))
        else:
            arrays.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _microseconds(values: Any) -> Any:
    try:
        return values.cast(_TIME)
    except pa.ArrowInvalid:  # beyond what a timestamp can say: nothing, rather than something wrong
        plain = values.cast(pa.int64())
        sane = pc.and_(pc.less_equal(plain, _TIME_LIMIT), pc.greater_equal(plain, -_TIME_LIMIT))
        return pc.if_else(sane, plain, None).cast(_WRITTEN_TIME).cast(_TIME)
