"""The ports of the journal: the storage that keeps its files, the writer of a journal, and a journal to read."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

#: Suffix of a file that is written under another name first. A kill may leave one behind.
TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file in a listing."""

    #: The path below the listed folder, with slashes.
    name: str
    #: The time of the last change in nanoseconds since 1970 (UTC); None if the storage does not keep it.
    changed_at: int | None


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a journal that can be read, measured without decoding its rows."""

    #: Behind the last whole frame with rows: a byte offset in a file, or the number of a segment.
    end: int
    #: True if there are rows between the start of the measurement and `end`.
    has_rows: bool
    #: True if the journal was closed, so it never grows again.
    finished: bool
    #: True if bytes follow the last whole frame, as a killed write leaves them.
    torn: bool
    #: True if whole frames follow a broken one. A killed write cannot cause that: the file was damaged.
    damaged: bool = False


class FrameWriter(Protocol):
    """The frames of one journal on their way to storage. Blocking; errors are OSErrors that name the path."""

    def prepare(self) -> None:
        """Raise OSError if the storage takes no data now."""

    def append(self, frame: bytes) -> None:
        """Store a frame; it is durable when this returns. After an error the next call may succeed."""

    def close(self) -> None:
        """Mark the journal as finished. A journal without frames leaves no file behind."""


class StoredJournal(Protocol):
    """A journal on storage, open for reading; FileNotFoundError if it was removed meanwhile."""

    def measure(self, start: int) -> Extent:
        """Return the extent behind `start`, which is 0 or the `end` of an earlier extent."""

    def payloads(self, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the payloads of the frames between two positions."""

    def delete(self, *, finished: bool) -> None:
        """Remove the journal. Unless it is `finished`, data that is written meanwhile stays."""


class Storage(Protocol):
    """A folder, and the files below it: `LocalStorage`, `MountStorage` or `ArrowStorage`.

    Names are relative to it, with slashes; errors are OSErrors that name the path.
    """

    #: True if exactly one of several concurrent `publish` calls for a name takes effect.
    publishes_exclusively: bool

    def location(self, name: str) -> str:
        """Return the path of a file for log lines and errors, without the query of a URI."""

    def folders(self) -> list[str]:
        """Return the names of the folders directly below; empty if the folder does not exist."""

    def files(self, name: str) -> list[FileEntry]:
        """Return all files below a folder, sorted by name; empty if the folder does not exist."""

    def is_file(self, name: str) -> bool:
        """Return True if a file of that name exists."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` to `end`, or to the end of the file; FileNotFoundError if there is none."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file durably, with the folders above it. Readers may see a part of it before it is whole."""

    def publish(self, name: str, data: bytes) -> bytes:
        """Create a file that readers see as a whole, unless it exists. Return the content of the file."""

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""

    def delete_folder(self, name: str) -> None:
        """Remove a folder and everything in it, if it exists."""

    def delete_empty_folder(self, name: str, *, unused: bool = False) -> None:
        """Remove a folder if it is empty; storage that cannot do that in one step does it only if `unused`."""

    def new_journal(self, new_name: Callable[[], str]) -> FrameWriter:
        """Return a writer for a new journal. It calls `new_name` for each file or folder that it starts."""


@contextlib.contextmanager
def errors_naming(path: str) -> Iterator[None]:
    """Turn errors of the operating system and of Arrow into OSErrors that name the path."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        number = error.errno or (errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO)
        raise OSError(number, error.strerror or str(error), path) from error
    except pa.ArrowException as error:
        raise OSError(errno.EIO, str(error), path) from error
