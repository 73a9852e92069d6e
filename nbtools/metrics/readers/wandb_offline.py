"""Rows from the `run-*.wandb` files of Weights & Biases, which it writes offline and online, without wandb.

The file is a LevelDB log: a header of 7 bytes, then blocks of 32 KiB with records of CRC (4 bytes), length (2), type
(1: whole, 2: first, 3: middle, 4: last) and data. The data is a protobuf `Record`; history = 2 has items = 1 of key =
1, nested_key = 2 and value_json = 16. It is not a promised format, so only the known version is read.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nbtools.metrics.curve_names import curve_of
from nbtools.metrics.readers.points import Points, add_point
from nbtools.metrics.readers.protobuf import fields
from nbtools.metrics.readers.reader import RecordReader
from nbtools.rundir.json_files import MAX_STEP

_BLOCK_BYTES: Final = 32 << 10
_MAX_RECORD_BYTES: Final = 64 << 20
_HEADER: Final = b":W&B\xe1\xbe\x00"
_NON_FINITE: Final = {f'"{name}"'.encode(): float(name) for name in ("NaN", "Infinity", "-Infinity")}


class WandbFile(RecordReader):
    """One file."""

    _started: bytearray | None = None
    """The parts of a record that does not end in its block."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._names: dict[str, str] = {}

    def read_records(self, descriptor: int, points: Points, deadline: float) -> None:
        """Read records from `_offset` on."""
        if not self._offset:
            header = os.pread(descriptor, len(_HEADER), 0)
            if len(header) == len(_HEADER) and header != _HEADER:
                self.note = f"its version is not known: {header!r}"
            if header != _HEADER:
                return
            self._offset, self._started = len(_HEADER), None
        for record in self._records(descriptor, deadline):
            with contextlib.suppress(IndexError, ValueError, struct.error):
                for _, history in (field for field in _parts(record) if field[0] == 2):
                    _add_row([[*_parts(item)] for number, item in _parts(history) if number == 1], points, self._names)

    def _records(self, descriptor: int, deadline: float) -> Iterator[bytes]:
        while True:
            left = _BLOCK_BYTES - self._offset % _BLOCK_BYTES
            block, at = os.pread(descriptor, left, self._offset), 0
            while at + 7 <= len(block):
                size, kind = struct.unpack_from("<HB", block, at + 4)
                if at + 7 + size > len(block) or kind == 0:
                    break
                self._started = bytearray() if kind in (1, 2) else self._started
                if self._started is not None:
                    self._started += block[at + 7 : at + 7 + size]
                    if len(self._started) > _MAX_RECORD_BYTES:
                        self._skipped, self._started = f"a record of more than {_MAX_RECORD_BYTES >> 20} MB", None
                    elif kind in (1, 4):
                        yield bytes(self._started)
                at += 7 + size
            is_end = len(block) < left or left - at >= 7  # the rest is not written yet
            self._offset += at if is_end else left
            if is_end or self.is_late(descriptor, deadline):
                return


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message that hold bytes."""
    for number, value, stop in fields(data, 0, len(data)):
        if stop:
            yield number, data[int(value) : stop]


def _add_row(items: list[list[tuple[int, bytes]]], points: Points, names: dict[str, str]) -> None:
    keys = (b"/".join(part for number, part in item if number in (1, 2)).decode(errors="replace") for item in items)
    row = dict(zip(keys, (dict(item).get(16, b"") for item in items), strict=True))
    step, time = _number(row.pop("_step", b"")), _number(row.pop("_timestamp", b""))
    if step is None or not 0 <= step <= MAX_STEP:
        return
    for key, text in row.items():
        if key[:1] != "_" and len(key) <= 200 and (value := _number(text)) is not None:
            when = float("nan") if time is None else time
            add_point(points, curve_of(key, names), int(step), value, when)


def _number(text: bytes) -> float | None:
    with contextlib.suppress(ValueError):
        return _NON_FINITE.get(text) or (float(text) if len(text) <= 40 else None)
    return None
