"""Scalars from TensorBoard's event files, without tensorboard.

A file is a sequence of records: length (8 bytes), its CRC (4), data, CRC (4). The data is a protobuf `Event`: wall_time
= 1, step = 2, summary = 5 with values = 1 of tag = 1, simple_value = 2 or tensor = 8 (dtype = 1, tensor_content = 4,
float_val = 5, double_val = 6).
"""

import os
import struct
from pathlib import Path
from typing import Final

from nbtools.metrics.curve_names import curve_of, split_of
from nbtools.metrics.readers.points import Points, add_point
from nbtools.metrics.readers.protobuf import fields
from nbtools.metrics.readers.reader import RecordReader
from nbtools.rundir.json_files import MAX_STEP

_BLOCK_BYTES: Final = 8 << 20
_MAX_RECORD_BYTES: Final = 1 << 30
_DAMAGE: Final = "its records are damaged"
_LENGTH: Final = struct.Struct("<Q").unpack_from
_NUMBERS: Final = {1: struct.Struct("<f").unpack_from, 2: struct.Struct("<d").unpack_from}
"""dtype of a tensor -> its one value."""


class EventFile(RecordReader):
    """One event file."""

    def __init__(self, path: str | Path, folder: str = "") -> None:
        """Store the path; `folder` is its folder within the log directory, which may name a split (`validation`)."""
        super().__init__(path)
        self._split = split_of(folder.replace("_", "/").split("/"), None)
        self._names: dict[str, str] = {}

    def read_records(self, descriptor: int, points: Points, deadline: float) -> None:
        """Read records from `_offset` on."""
        while not self._damage:
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
            if self.is_late(descriptor, deadline):
                break

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
        when, step = 0.0, 0.0
        for number, value, stop in fields(data, at, end):
            if number == 1:
                when = value
            elif number == 2:
                step = value
            elif number == 5 and 0 <= step <= MAX_STEP:
                for _, start, behind in fields(data, int(value), stop):
                    self._value(data, int(start), behind, int(step), when, points)

    def _value(self, data: bytes, at: int, end: int, step: int, when: float, points: Points) -> None:
        tag, scalar = b"", None
        for number, value, stop in fields(data, at, end):
            if number == 1:
                tag = data[int(value) : stop]
            elif number == 2:
                scalar = value
            elif number == 8:
                scalar = _scalar(data, int(value), stop)
        if scalar is not None:
            name = tag.decode(errors="replace")[:200]
            add_point(points, curve_of(name, self._names, self._split), step, scalar, when)


def _scalar(data: bytes, at: int, end: int) -> float | None:
    """Return the value of a tensor of one float or double; None for every other."""
    dtype, found = 0.0, None
    for number, value, stop in fields(data, at, end):
        if number == 1:
            dtype = value
        elif number in (4, 5, 6) and not stop:
            found = value
        elif number in (4, 5, 6) and (unpack := _NUMBERS.get(int(dtype))) and stop - value == 4 * dtype:
            found = unpack(data, int(value))[0]
    return found
