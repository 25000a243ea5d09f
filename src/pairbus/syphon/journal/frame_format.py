"""The frames of a journal: bytes that tell by themselves whether they are whole.

::

    magic (4) | length of the payload (u32) | crc32 of magic, length and payload (u32) | payload
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

#: A frame with rows, and the one that says that nothing follows.
DATA = b"PBJ1"
END = b"PBJE"
_HEADER = struct.Struct("<4sII")
_CHECKED = struct.Struct("<4sI")


def frame(magic: bytes, payload: bytes) -> bytes:
    """A payload, framed."""
    return b"".join((_HEADER.pack(magic, len(payload), _checksum(magic, payload)), payload))


def _checksum(magic: bytes, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(magic, len(payload))))


def _frame_at(data: memoryview, at: int) -> tuple[bytes, int, int] | None:
    """The magic of the whole frame that begins there, where its payload begins, and where it ends."""
    if len(data) - at < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack_from(data, at)
    first, last = at + _HEADER.size, at + _HEADER.size + length
    if magic not in (DATA, END) or last > len(data) or _checksum(magic, data[first:last]) != checksum:
        return None
    return magic, first, last


@dataclass(slots=True)
class Frames:
    """Goes through the frames of some bytes; afterwards it knows how far it came."""

    data: bytes
    #: Behind the last whole frame of any kind, and behind the last one with rows.
    end: int = 0
    rows_end: int = 0
    finished: bool = False

    def __iter__(self) -> Iterator[memoryview]:
        view = memoryview(self.data)
        while not self.finished and (found := _frame_at(view, self.end)):
            magic, first, self.end = found
            if magic == END:
                self.finished = True
            else:
                self.rows_end = self.end
                yield view[first : self.end]

    @property
    def torn(self) -> bool:
        return self.end < len(self.data)

    @property
    def damaged(self) -> bool:
        """Only asked for where there is a break: whether a whole frame follows it."""
        view, at = memoryview(self.data), self.end
        while not self.finished and (at := self.data.find(DATA[:3], at + 1)) >= 0:
            if _frame_at(view, at):
                return True
        return False
