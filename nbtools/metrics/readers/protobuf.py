"""Fields of protobuf messages, without their schema."""

import struct
from collections.abc import Iterator
from typing import Final

_FIXED: Final = {1: struct.Struct("<d"), 5: struct.Struct("<f")}
"""Wire type -> a number of fixed size."""


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, float, int]]:
    """Yield number, value and end of each field in a part of `data`.

    The value is the number itself, with the end 0; of bytes, and of messages, it is the offset of the first one.

    Raises:
        IndexError: the bytes are no message.
        struct.error: so, too.
    """
    while at < end:
        key, at = varint(data, at)
        kind, value, stop = key & 7, 0.0, 0
        if kind == 2:
            size, at = varint(data, at)
            value, at = at, (stop := at + size)
        elif kind == 0:
            value, at = varint(data, at)
        elif number := _FIXED.get(kind):
            value, at = number.unpack_from(data, at)[0], at + number.size
        else:
            raise IndexError("wire type")
        yield key >> 3, value, stop


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the offset behind it."""
    value = shift = 0
    while (byte := data[at]) > 127 and shift < 63:
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
    return value | (byte & 127) << shift, at + 1
