"""Batches on the wire: several messages in one transfer, and the message-format that tells a batch from a message."""

from __future__ import annotations

import os

from pairbus.domain.amqp.codec import encode
from pairbus.domain.amqp.sections import GROUP_ID, PROPERTIES, section

#: The field `message-format` of a transfer with a batch, as Service Bus knows it: 0x80013700.
_BATCH_FORMAT = b"\x70\x80\x01\x37\x00"
#: The field as Proton writes it: 0, as a smalluint.
_PROTON_FORMAT = b"\x43"
_RANDOM_BYTES = 8


class BatchFormat:
    """The message-format of the batches on one connection.

    Proton writes message-format 0 into every transfer and does not let an application set another. The tags of batches
    therefore begin with a prefix that can be found in the output. It is padded with as many bytes as the real
    message-format is longer than Proton's, so that the size of the frame stays the same.
    """

    def __init__(self) -> None:
        padding = bytes(len(_BATCH_FORMAT) - len(_PROTON_FORMAT))
        self._prefix = padding + os.urandom(_RANDOM_BYTES)
        self._padding = len(padding)
        #: Proton's encoding of the tag: a binary with the prefix and a number of four bytes.
        self._size = len(self._prefix) + 4
        self._encoded_prefix = bytes((0xA0, self._size)) + self._prefix
        #: True once there was a batch. The session's window may hold some of its frames back for later output.
        self.is_used = False

    def tag(self, number: int) -> bytes:
        self.is_used = True
        return self._prefix + number.to_bytes(4, "big")

    def apply(self, output: bytes | bytearray) -> bytes:
        """Return Proton's output with the message-format of batches, and without the padding of their tags."""
        pieces: list[bytes | memoryview] = []
        view, position = memoryview(output), 0
        shorter = bytes((0xA0, self._size - self._padding))
        while (found := output.find(self._encoded_prefix, position)) >= 0:
            tag_end = found + 2 + self._size
            if output[tag_end : tag_end + 1] == _PROTON_FORMAT:
                tag = view[found + 2 + self._padding : tag_end]
                pieces += (view[position:found], shorter, tag, _BATCH_FORMAT)
                position = tag_end + 1
            else:  # the same bytes inside a message
                pieces.append(view[position : found + 2])
                position = found + 2
        pieces.append(view[position:])
        return b"".join(pieces)


def batch_head(session: str) -> bytes:
    """Return the section in front of the messages of a batch. The service finds the session there, and a partition."""
    fields = b"\x40" * GROUP_ID + encode(session)
    if len(fields) < 255:
        return section(PROPERTIES, bytes((0xC0, len(fields) + 1, GROUP_ID + 1)) + fields)
    return section(PROPERTIES, b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + bytes((0, 0, 0, GROUP_ID + 1)) + fields)


def encode_batch(head: bytes, messages: list[bytes]) -> bytes:
    return head + b"".join([_data_section(each) for each in messages])


def _data_section(message: bytes) -> bytes:
    size = len(message)
    head = b"\x00\x53\x75\xa0" + bytes((size,)) if size < 256 else b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")
    return head + message
