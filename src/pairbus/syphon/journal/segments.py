"""A journal as a folder of segments, where files cannot grow.

The folder `<name>.journal` holds one file for each write, `00000001.seg` and on, and a file `end` once it is closed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from .frame_format import END_FRAME, FrameReader
from .growing_file import TEST_DATA
from .storage_port import Extent, Storage

log = logging.getLogger("pairbus.syphon.journal")

_SEGMENT = ".seg"
_END_FILE = "end"
_TEST_FILE = "probe"


class SegmentWriter:
    """A `FrameWriter` that writes each frame as a file of its own. After an error it skips the number that failed."""

    def __init__(self, storage: Storage, new_name: Callable[[], str]) -> None:
        self._storage = storage
        self._name = new_name()
        self._number = 0
        self._has_frames = self._was_prepared = False

    def prepare(self) -> None:
        name = f"{self._name}/{_TEST_FILE}"
        self._was_prepared = True
        self._storage.put(name, TEST_DATA)
        self._storage.delete(name)

    def append(self, frame: bytes) -> None:
        self._number += 1
        name = _segment_name(self._name, self._number)
        try:
            self._storage.put(name, frame)
        except BaseException:
            with contextlib.suppress(OSError):  # readers recognise a half segment too
                self._storage.delete(name)
            raise
        self._has_frames = True

    def close(self) -> None:
        if self._has_frames:
            self._storage.put(f"{self._name}/{_END_FILE}", END_FRAME)
        elif self._was_prepared:
            with contextlib.suppress(OSError):  # the folder holds nothing that was reported as durable
                self._storage.delete_folder(self._name)


class SegmentFolder:
    """A `StoredJournal` in a folder of segments. Positions are numbers of segments."""

    def __init__(self, storage: Storage, name: str, files: Sequence[str]) -> None:
        self._storage = storage
        self._name = name
        self._files = files

    def measure(self, start: int) -> Extent:
        numbers = [number for number in self._numbers() if number > start]
        finished = _END_FILE in self._files
        torn = False
        # Segments are written one after another: only the last can be incomplete.
        if numbers and not finished and not list(FrameReader(self._read(numbers[-1]))):
            numbers.pop()
            torn = True
        return Extent(numbers[-1] if numbers else start, bool(numbers), finished, torn)

    def payloads(self, start: int, end: int) -> Iterator[bytes | memoryview]:
        for number in self._numbers():
            if start < number <= end:
                frames = FrameReader(self._read(number))
                yield from frames
                if not frames.data_end or frames.torn:
                    # A write that failed leaves such a file. One that succeeded does not, unless it was damaged.
                    path = self._storage.location(_segment_name(self._name, number))
                    log.warning("%s is incomplete: its rows are skipped", path)

    def delete(self, *, finished: bool) -> None:
        if finished:
            self._storage.delete_folder(self._name)
            return
        # File by file: a segment that is written meanwhile stays.
        for each in self._files:
            self._storage.delete(f"{self._name}/{each}")
        self._storage.delete_empty_folder(self._name)

    def _numbers(self) -> list[int]:
        return sorted(number for each in self._files if (number := _segment_number(each)) is not None)

    def _read(self, number: int) -> bytes:
        return self._storage.read(_segment_name(self._name, number))


def _segment_name(journal: str, number: int) -> str:
    return f"{journal}/{number:08d}{_SEGMENT}"


def _segment_number(name: str) -> int | None:
    number, suffix = name[: -len(_SEGMENT)], name[-len(_SEGMENT) :]
    return int(number) if suffix == _SEGMENT and number.isdecimal() else None
