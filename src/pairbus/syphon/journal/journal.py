"""The write-ahead journal: rows of the ledger, made durable before their messages leave the backlog.

A journal is a sequence of frames (see `frame_format`). Each can be read alone: its payload holds rows and all that they
share (see `row_format`). The storage decides between one file that grows (`growing_file`) and a folder of files
(`segments`). A killed process or a full disk may leave a torn frame at the end. It is recognised and never read: the
write of it was not reported as durable.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pairbus.domain.outcome import Head, Rows
from pairbus.runtime import bounded_call
from pairbus.runtime.bounded_call import call_with_deadline

from .frame_format import DATA, encode_frame
from .growing_file import GrowingFile
from .row_format import SCHEMA, RowEncoder, decode_rows
from .segments import SegmentFolder
from .storage import split, storage_at
from .storage_port import FrameWriter, Storage, StoredJournal

log = logging.getLogger("pairbus.syphon.journal")

SUFFIX = ".journal"


def open_journal(folder: str, head: Head) -> Journal:
    """Return a new journal in the folder of a run.

    Parameters
    ----------
    folder
        A path or a URI. Nothing is created there before the first write.
    head
        The values that all rows of the journal share.

    Raises
    ------
    OptionError
        If the URI names no storage that can keep a journal.
    """
    return Journal(head, storage_at(folder).new_journal(lambda: journal_name(head)))


class Journal:
    """The journal of one attempt to drain one queue. Its methods block, and are called one at a time."""

    def __init__(self, head: Head, writer: FrameWriter) -> None:
        self._encoder = RowEncoder(head)
        self._writer = writer
        self._closed = False
        self._writing = threading.Lock()

    def write(self, rows: Rows) -> None:
        """Append rows; they are durable when this returns.

        Raises OSError with the path of the file. The journal can be used again after that.
        """
        if self._closed:
            raise ValueError("the journal is closed")
        if not len(rows):
            return
        with self._writing:
            self._writer.append(encode_frame(DATA, self._encoder.encode(rows)))

    def prepare(self) -> None:
        """Check that the storage takes rows, before a message is sent that needs one.

        Raises OSError with the path of the file.
        """
        # Arrow imports pandas with the first array, which takes a second. No message should be locked during that.
        self._encoder.encode(Rows())
        with self._writing:
            self._writer.prepare()

    def close(self) -> None:
        """Mark the journal as finished. A journal without rows leaves no file behind.

        Raises OSError if a write that nothing waits for any more is still running.
        """
        if self._closed:
            return
        self._closed = True
        if not self._writing.acquire(blocking=False):
            raise OSError(errno.EBUSY, "an abandoned write to the journal is still under way")
        try:
            self._writer.close()
        finally:
            self._writing.release()


def close_journal(journal: Journal, queue_index: int) -> None:
    """Close a journal, within a deadline. A failure is logged and changes nothing: the rows are durable."""
    try:
        call_with_deadline(journal.close, bounded_call.JOURNAL_SECONDS, "pairbus-journal-end")
    except Exception as error:
        log.warning(
            "the journal of queue %d could not be closed: %s; its rows are durable, and a later fold removes it",
            queue_index,
            error,
        )


def journal_name(head: Head) -> str:
    """Return a unique name for a journal."""
    return f"{head.queue_index}-{head.batch}-{head.attempt}-{secrets.token_hex(4)}{SUFFIX}"


def stored_journal(storage: Storage, name: str, segments: Sequence[str]) -> StoredJournal:
    """Return a journal for reading: a folder of `segments`, or one file if there are none.

    The layout depends on the files alone, so any storage can read what another wrote.
    """
    return SegmentFolder(storage, name, segments) if segments else GrowingFile(storage, name)


def find_journal(storage: Storage, name: str) -> StoredJournal:
    """Return a journal for reading, or raise FileNotFoundError."""
    if storage.is_file(name):
        return GrowingFile(storage, name)
    segments = [each.name for each in storage.files(name)]
    if not segments:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), storage.location(name))
    return SegmentFolder(storage, name, segments)


@dataclass(frozen=True, slots=True)
class JournalPart:
    """The rows of a journal from some position on."""

    #: An Arrow table with `SCHEMA`.
    table: Any
    #: The position behind the rows, see `Extent.end`.
    end: int
    #: True if the journal was closed, so it never grows again.
    finished: bool
    #: True if bytes follow the last whole frame.
    torn: bool


def read_journal(path: str, start: int = 0) -> JournalPart:
    """Return the rows of a journal behind `start`, which is 0 or the `end` of an earlier part.

    A torn frame at the end is left out. Raises FileNotFoundError if there is no journal.
    """
    folder, name = split(path)
    journal = find_journal(storage_at(folder), name)
    extent = journal.measure(start)
    table = pa.Table.from_batches(decode_rows(journal.payloads(start, extent.end)), SCHEMA)
    return JournalPart(table, extent.end, extent.finished, extent.torn)


def read_rows(storage: Storage, name: str, start: int, end: int) -> Iterator[Any]:
    """Yield the rows between two positions of a journal, as record batches with `SCHEMA`."""
    yield from decode_rows(find_journal(storage, name).payloads(start, end))
