"""A journal as one file that grows, on a disk: `<name>.journal`, with an end frame once it is closed."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .frame_format import END_FRAME, FrameReader
from .storage_port import Extent, Storage, errors_naming

if TYPE_CHECKING:
    from .local_storage import LocalStorage

log = logging.getLogger("pairbus.syphon.journal")

#: Test data as large as a write of some hundred rows. No frame begins with zeros.
TEST_DATA = bytes(64 * 1024)


class GrowingFileWriter:
    """A `FrameWriter` that appends to a file and syncs it.

    After an error it cuts the file back to its last whole frame, and the next frame goes to a new file. It never
    continues the old one: a reader may have seen the frame that could not be made durable.
    """

    def __init__(self, storage: LocalStorage, new_name: Callable[[], str]) -> None:
        self._storage = storage
        self._new_name = new_name
        self._file: io.FileIO | None = None
        #: The size of the file in whole frames.
        self._size = 0

    def prepare(self) -> None:
        file = self._file or self._create()
        if self._size:
            return
        try:
            with errors_naming(str(file.name)):
                write_all(file.fileno(), TEST_DATA)
                os.fsync(file.fileno())
                os.ftruncate(file.fileno(), 0)
                os.lseek(file.fileno(), 0, os.SEEK_SET)
        except BaseException:
            self._abandon()
            raise

    def append(self, frame: bytes) -> None:
        if not self._write(frame):
            # Another syphon took this run for dead. It folded the earlier frames and removed the file with this one.
            self._abandon()
            self._write(frame)

    def _write(self, frame: bytes) -> bool:
        """Append a frame durably; False if the file was removed meanwhile."""
        file = self._file or self._create()
        try:
            with errors_naming(str(file.name)):
                write_all(file.fileno(), frame)
                os.fsync(file.fileno())
                self._size += len(frame)
                return os.fstat(file.fileno()).st_nlink > 0
        except BaseException:
            self._abandon()
            raise

    def _create(self) -> io.FileIO:
        path = self._storage.location(self._new_name())
        with errors_naming(path):
            self._file = self._storage.create(path, "xb")
            self._size = 0
            try:
                self._storage.sync_folder(os.path.dirname(path))
            except BaseException:
                self._abandon()
                raise
        return self._file

    def _abandon(self) -> None:
        """Close the file behind its last whole frame, as far as a failing disk allows; remove it if it has none."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError), file:  # readers recognise a torn frame too
                if self._size:
                    os.ftruncate(file.fileno(), self._size)
                    os.lseek(file.fileno(), self._size, os.SEEK_SET)
                    write_all(file.fileno(), END_FRAME)
                else:
                    os.unlink(file.name)

    def close(self) -> None:
        if not self._size:
            self._abandon()
        if self._file is not None:
            self._write(END_FRAME)
        if self._file is not None:
            self._file.close()
            self._file = None


class GrowingFile:
    """A `StoredJournal` in one file. Positions are byte offsets."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name

    def measure(self, start: int) -> Extent:
        frames = FrameReader(self._storage.read(self._name, start))
        for _ in frames:
            pass
        damaged = frames.torn and frames.damaged
        return Extent(start + frames.data_end, frames.data_end > 0, frames.finished, frames.torn, damaged)

    def payloads(self, start: int, end: int) -> Iterator[bytes | memoryview]:
        frames = FrameReader(self._storage.read(self._name, start, end))
        yield from frames
        if start + frames.end < end:
            path = self._storage.location(self._name)
            whole = start + frames.end
            log.warning("%s was readable to byte %d, now to byte %d; the rows behind are skipped", path, end, whole)

    def delete(self, *, finished: bool) -> None:
        # A writer that goes on notices that its file was removed.
        self._storage.delete(self._name)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data. A disk that is nearly full takes a part, and raises at the next attempt."""
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, memoryview(data)[done:])
