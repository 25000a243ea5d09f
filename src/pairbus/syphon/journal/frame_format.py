"""Frames, the unit that a journal file is made of. A frame shows by itself if it is whole.

::

    magic (4) | length of the payload (u32) | crc32 of magic, length and payload (u32) | payload
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

#: The magic of a frame that holds rows.
DATA = b"PBJ1"
#: The magic of the frame that closes a journal.
END = b"PBJE"
_HEADER = struct.Struct("<4sII")
_CHECKED = struct.Struct("<4sI")


def encode_frame(magic: bytes, payload: bytes) -> bytes:
    return b"".join((_HEADER.pack(magic, len(payload), _checksum(magic, payload)), payload))


def _checksum(magic: bytes, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(magic, len(payload))))


END_FRAME = encode_frame(END, b"")


def _frame_at(data: memoryview, offset: int) -> tuple[bytes, int, int] | None:
    """Return the magic, the payload's offset and the end of the frame at `offset`; None if no whole frame is there."""
    if len(data) - offset < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack_from(data, offset)
    first, last = offset + _HEADER.size, offset + _HEADER.size + length
    if magic not in (DATA, END) or last > len(data) or _checksum(magic, data[first:last]) != checksum:
        return None
    return magic, first, last


@dataclass(slots=True)
class FrameReader:
    """An iterator over the payloads of the whole data frames in some bytes; its attributes are final after it."""

    data: bytes
    #: Offset behind the last whole frame of any kind.
    end: int = 0
    #: Offset behind the last whole data frame.
    data_end: int = 0
    finished: bool = False

    def __iter__(self) -> Iterator[memoryview]:
        view = memoryview(self.data)
        while not self.finished and (found := _frame_at(view, self.end)):
            magic, first, self.end = found
            if magic == END:
                self.finished = True
            else:
                self.data_end = self.end
                yield view[first : self.end]

    @property
    def torn(self) -> bool:
        return self.end < len(self.data)

    @property
    def damaged(self) -> bool:
        """True if a whole frame follows a broken one. A killed write cannot cause that. Reads all remaining bytes."""
        view, offset = memoryview(self.data), self.end
        while not self.finished and (offset := self.data.find(DATA[:3], offset + 1)) >= 0:
            if _frame_at(view, offset):
                return True
        return False
