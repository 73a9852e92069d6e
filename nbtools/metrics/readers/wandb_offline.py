"""Rows from the `run-*.wandb` files of Weights & Biases, which it writes offline and online, without wandb.

The file is a LevelDB log: a header of 7 bytes, then blocks of 32 KiB with records of CRC (4 bytes), length (2), type
(1: whole, 2: first, 3: middle, 4: last) and data. The data is a protobuf `Record`; history = 2 has items = 1 of key =
1, nested_key = 2 and value_json = 16. It is not a promised format, so only the known version is read.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from nbtools.metrics.curve_names import metric_of
from nbtools.metrics.history import History
from nbtools.metrics.readers.points import Points, Reader, add_point
from nbtools.metrics.readers.protobuf import fields
from nbtools.rundir.json_files import MAX_STEP
from nbtools.rundir.tail import open_regular

_BLOCK_BYTES: Final = 32 << 10
_MAX_RECORD_BYTES: Final = 64 << 20
_HEADER: Final = b":W&B\xe1\xbe\x00"
_NON_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class WandbFile(Reader):
    """One file; a torn last record is held back until the rest of it is written."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._offset, self._inode = len(_HEADER), 0
        self._started: bytearray | None = None
        self._damage = ""

    def read(self, points: Points, deadline: float) -> None:
        """Read the rows that were logged since the last call, until a thread's CPU time."""
        with open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if self._inode not in (0, status.st_ino) or status.st_size < self._offset > len(_HEADER):
                self.history, self._offset, self._started, self._damage = History(), len(_HEADER), None, ""
            self._inode = status.st_ino
            header = os.pread(file.fileno(), len(_HEADER), 0)
            if header == _HEADER:
                self.leave(0)
                for record in self._records(file.fileno(), deadline):
                    _take(record, points)
                self.note = self._damage or self.note
            elif len(header) == len(_HEADER):
                self.note = f"its version is not known: {header!r}"

    def _records(self, descriptor: int, deadline: float) -> Iterator[bytes]:
        while True:
            left = _BLOCK_BYTES - self._offset % _BLOCK_BYTES
            if left < 7:
                self._offset += left
                continue
            block = os.pread(descriptor, left, self._offset)
            at = 0
            while at + 7 <= len(block):
                size, kind = int.from_bytes(block[at + 4 : at + 6], "little"), block[at + 6]
                end = at + 7 + size
                if end > len(block) or kind == 0:
                    break
                data = block[at + 7 : end]
                at = end
                if kind == 1:
                    yield data
                elif kind == 2:
                    self._started = bytearray(data)
                elif kind in (3, 4) and self._started is not None:
                    self._started += data
                    if len(self._started) > _MAX_RECORD_BYTES:
                        self._damage = f"a record of more than {_MAX_RECORD_BYTES >> 20} MB"
                        self._started = None
                    elif kind == 4:
                        yield bytes(self._started)
                        self._started = None
            self._offset += at
            if left - at >= 7 or not at:
                return  # the rest is not written yet
            if time.thread_time() > deadline:
                self.leave(os.fstat(descriptor).st_size - self._offset)
                return


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message that hold bytes."""
    for number, value, stop in fields(data, 0, len(data)):
        if stop:
            yield number, data[int(value) : stop]


def _take(record: bytes, points: Points) -> None:
    with contextlib.suppress(IndexError, ValueError):
        for number, history in _parts(record):
            if number == 2:
                row: dict[str, Any] = {}
                for kind, item in _parts(history):
                    if kind == 1:
                        parts = list(_parts(item))
                        key = "/".join(part.decode(errors="replace") for n, part in parts if n in (1, 2))
                        row[key] = next((part for n, part in parts if n == 16), b"null")
                _add_row(row, points)


def _add_row(row: dict[str, bytes], points: Points) -> None:
    step, time = _number(row.pop("_step", b"")), _number(row.pop("_timestamp", b""))
    if step is None or not 0 <= step <= MAX_STEP:
        return
    for key, text in row.items():
        if key[:1] != "_" and len(key) <= 200 and (value := _number(text)) is not None:
            add_point(points, metric_of(key, None), int(step), value, float("nan") if time is None else time)


def _number(text: bytes) -> float | None:
    if len(text) > 40:
        return None
    try:
        value = orjson.loads(text)
    except ValueError:
        value = text.decode(errors="replace")
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return float(value) if type(value) in (int, float) else None
