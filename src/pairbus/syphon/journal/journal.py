"""The write-ahead journal: rows of the ledger, made durable before their messages leave the backlog.

A journal is a sequence of frames (`frame_format`) of rows (`row_format`), in one file that grows (`growing_file`) or a
folder of files (`segments`). A killed process or a full disk may leave a torn frame at the end, which is never read.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections.abc import Sequence

from pairbus.domain.outcome import Head, Rows
from pairbus.runtime import bounded_call
from pairbus.runtime.bounded_call import call_with_deadline

from .frame_format import DATA, encode_frame
from .growing_file import GrowingFile
from .row_format import RowEncoder
from .segments import SegmentFolder
from .storage import storage_at
from .storage_port import FrameWriter, Storage, StoredJournal

log = logging.getLogger("pairbus.syphon.journal")

SUFFIX = ".journal"


def open_journal(folder: str, head: Head) -> Journal:
    """Return a new journal in the folder or URI of a run, which the first write creates."""

    def new_name() -> str:
        return f"{head.queue_index}-{head.batch}-{head.attempt}-{secrets.token_hex(4)}{SUFFIX}"

    return Journal(head, storage_at(folder).new_journal(new_name))


class Journal:
    """The journal of one attempt to drain one queue. Its methods block, and are called one at a time."""

    def __init__(self, head: Head, writer: FrameWriter) -> None:
        self._encoder = RowEncoder(head)
        self._writer = writer
        self._closed = False
        self._writing = threading.Lock()

    def write(self, rows: Rows) -> None:
        """Append rows; they are durable when this returns. After an OSError the journal can be used again."""
        if self._closed:
            raise ValueError("the journal is closed")
        if not len(rows):
            return
        with self._writing:
            self._writer.append(encode_frame(DATA, self._encoder.encode(rows)))

    def prepare(self) -> None:
        """Check that the storage takes rows, before a message is sent that needs one; raises OSError."""
        # Arrow imports pandas with the first array, which takes a second. No message should be locked during that.
        self._encoder.encode(Rows())
        with self._writing:
            self._writer.prepare()

    def close(self) -> None:
        """Mark the journal as finished; OSError if an abandoned write is still under way."""
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


def stored_journal(storage: Storage, name: str, segments: Sequence[str]) -> StoredJournal:
    """Return a journal for reading: a folder of `segments`, or one file if there are none, on any storage."""
    return SegmentFolder(storage, name, segments) if segments else GrowingFile(storage, name)


def find_journal(storage: Storage, name: str) -> StoredJournal:
    if storage.is_file(name):
        return GrowingFile(storage, name)
    segments = [each.name for each in storage.files(name)]
    if not segments:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), storage.location(name))
    return SegmentFolder(storage, name, segments)
