"""Scalars from TensorBoard's event files, without tensorboard.

A file is a sequence of records: length (8 bytes), its CRC (4), data, CRC (4). The data is a protobuf `Event`: wall_time
= 1, step = 2, summary = 5 with values = 1 of tag = 1, simple_value = 2 or tensor = 8 (dtype = 1, tensor_content = 4,
float_val = 5, double_val = 6).
"""

import contextlib
import os
import struct
import time
from pathlib import Path
from typing import Final

from nbtools.metrics.readers.points import Points
from nbtools.metrics.readers.printed.metric_words import metric_of, split_of
from nbtools.rundir.json_files import MAX_STEP
from nbtools.rundir.tail import open_regular

_BLOCK_BYTES: Final = 8 << 20
_MAX_RECORD_BYTES: Final = 1 << 30
LOOK_S: Final = 5.0
"""CPU time of one look at a file; the next one reads on."""
_DAMAGE: Final = "its records are damaged"
_LENGTH: Final = struct.Struct("<Q").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from
_FLOAT: Final = struct.Struct("<f").unpack_from


class EventFile:
    """One event file; a torn last record is held back until the rest of it is written."""

    def __init__(self, path: str | Path, folder: str = "") -> None:
        """Store the path; `folder` is its folder within the log directory, which may name a split (`validation`)."""
        self.path = Path(path)
        self.note = self._damage = ""
        self._split = split_of(folder.replace("_", "/").split("/"), None)
        self.generation = self._offset = self._inode = 0
        self._names: dict[bytes, str] = {}

    def poll(self) -> Points:
        """Return the scalars that were added since the last call; after an error, those before it."""
        points: Points = {}
        with contextlib.suppress(OSError), open_regular(self.path) as file:
            descriptor = file.fileno()
            status = os.fstat(descriptor)
            if self._offset and (status.st_ino != self._inode or status.st_size < self._offset):
                self.generation, self._offset, self._damage = self.generation + 1, 0, ""
            self._inode, self.note = status.st_ino, ""
            deadline = time.thread_time() + LOOK_S
            while not self._damage and not self.note:
                data = os.pread(descriptor, _BLOCK_BYTES, self._offset)
                num_read = self._records(data, points)
                if not num_read and not self._damage:
                    size = _LENGTH(data)[0] + 16 if len(data) >= 12 else 0
                    if size == 16:
                        self.note = f"zeros from byte {self._offset:,} on, where a record should begin"
                    elif size > _MAX_RECORD_BYTES:
                        self._damage = _DAMAGE
                    if size <= _BLOCK_BYTES or os.fstat(descriptor).st_size < self._offset + size:
                        break
                    num_read = size  # a record longer than a block holds no scalars
                self._offset += num_read
                if time.thread_time() > deadline:
                    self.note = unread(status.st_size - self._offset)
            self.note = self._damage or self.note
        return points

    def _records(self, data: bytes, points: Points) -> int:
        """Take the scalars of the whole records in `data`; return the number of their bytes."""
        at, end = 0, len(data)
        while at + 12 <= end:
            stop = at + 12 + _LENGTH(data, at)[0]
            if stop + 4 > end or stop == at + 12:  # a record has at least a time
                break
            try:
                self._event(data, at + 12, stop, points)
            except (IndexError, struct.error):
                self._damage = _DAMAGE
                break
            at = stop + 4
        return at

    def _event(self, data: bytes, at: int, end: int, points: Points) -> None:
        time, step = 0.0, 0
        while at < end:
            key = data[at]
            at += 1
            if key == 9:  # wall_time
                time = _DOUBLE(data, at)[0]
                at += 8
            elif key == 16:
                step, at = varint(data, at)
            elif key == 42:  # summary
                size, at = varint(data, at)
                stop = at + size
                while at < stop:
                    field = data[at]
                    size, at = varint(data, at + 1)
                    if field == 10:
                        self._value(data, at, at + size, step, time, points)
                    at += size
            else:
                at = skip_field(data, at, key)

    def _value(self, data: bytes, at: int, end: int, step: int, time: float, points: Points) -> None:
        tag, value = b"", None
        while at < end:
            key = data[at]
            at += 1
            if key == 10:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = varint(data, at - 1)
                tag = data[at : at + size]
                at += size
            elif key == 21:
                value = _FLOAT(data, at)[0]
                at += 4
            elif key == 66:
                size, at = varint(data, at)
                value = _scalar(data, at, at + size)
                at += size
            else:
                at = skip_field(data, at, key)
        if value is None or not 0 <= step <= MAX_STEP:
            return
        if (name := self._names.get(tag)) is None:
            name = self._names[tag] = metric_of(tag.decode(errors="replace")[:200], self._split)
        column = points.get(name)
        if column is None:
            column = points[name] = ([], [], [])
        column[0].append(step)
        column[1].append(value)
        column[2].append(time)


def unread(num_bytes: int) -> str:
    """Return the note on a file of which one look reads only a part."""
    return f"{num_bytes / 1e6:,.0f} MB of it are not read yet: there are too many records for one look"


def _scalar(data: bytes, at: int, end: int) -> float | None:
    """Return the value of a tensor of one float or double; None for every other."""
    dtype, value = 0, None
    while at < end:
        key = data[at]
        at += 1
        if key == 8:
            dtype, at = varint(data, at)
        elif key in (34, 42, 50):  # tensor_content, packed float_val and double_val
            size, at = varint(data, at)
            if size == 4 and (dtype == 1 or key == 42):
                value = _FLOAT(data, at)[0]
            elif size == 8 and (dtype == 2 or key == 50):
                value = _DOUBLE(data, at)[0]
            at += size
        elif key == 45:
            value = _FLOAT(data, at)[0]
            at += 4
        else:
            at = skip_field(data, at, key)
    return value


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the offset behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("varint")


def skip_field(data: bytes, at: int, key: int) -> int:
    """Return the offset behind a field of which the first byte of the key has been read."""
    while data[at - 1] > 127:
        at += 1
    kind = key & 7
    if kind == 0:
        return varint(data, at)[1]
    if kind == 2:
        size, at = varint(data, at)
        return at + size
    if kind in (1, 5):
        return at + (8 if kind == 1 else 4)
    raise IndexError("wire type")
