"""The shape of every reader of a metrics file: `poll()` reads the rows that are new, and returns the file's history."""

import contextlib
import math
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from nbtools.metrics.columns import Unit
from nbtools.metrics.history import History
from nbtools.metrics.readers.counted_rows import CountedRows
from nbtools.metrics.readers.points import Points
from nbtools.rundir.tail import open_regular

_LOOK_S: Final = 5.0
"""CPU time of one look at a file that grows; the next one reads on."""


class Reader(ABC):
    """Reads one growing file; no row of it is skipped, or read twice."""

    rows: CountedRows | None = None
    """The rows of a table; None where the format says what counts."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.history = Path(path), History()
        self.note = ""
        """Why the file is not understood, or not read to its end; "" if it is."""

    def poll(self, *, is_complete: bool = False) -> History:
        """Read new rows: for some seconds, or all of a file that `is_complete`."""
        points: Points = {}
        with contextlib.suppress(OSError):  # the next look reads it
            self.read(points, math.inf if is_complete else time.thread_time() + _LOOK_S)
        self.extend(points)
        return self.history

    @abstractmethod
    def read(self, points: Points, deadline: float) -> None:
        """Add new rows to the points, or to the history itself, until a thread's CPU time."""

    def extend(self, points: Points, generation: int = 0, unit: Unit = "step") -> None:
        """Add points to the history; those of a later generation replace earlier ones from their first step on."""
        for name, (steps, values, times) in points.items():
            self.history.add(name, steps, values, times, generation, unit=unit)

    def leave(self, num_bytes: int) -> None:
        """Say how many bytes are left for the next look."""
        self.history.num_unread_bytes = num_bytes
        self.note = f"{num_bytes / 1e6:,.1f} MB of it are not read yet" if num_bytes else ""


class RecordReader(Reader):
    """Reads a file of records; one that was cut or replaced is read from its beginning.

    A torn last record is held back until the rest of it is written.
    """

    _offset = _inode = 0
    _damage = _skipped = ""

    def read(self, points: Points, deadline: float) -> None:
        """Read new records until a thread's CPU time; after an error, those before it."""
        with open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if self._inode not in (0, status.st_ino) or status.st_size < self._offset:
                self.history, self._offset, self._damage = History(), 0, ""
            self._inode = status.st_ino
            self.leave(0)
            if not self._damage:
                self.read_records(file.fileno(), points, deadline)
            self.note = self._damage or self.note or self._skipped

    @abstractmethod
    def read_records(self, descriptor: int, points: Points, deadline: float) -> None:
        """Read records from `_offset` on."""

    def is_late(self, descriptor: int, deadline: float) -> bool:
        """Whether the look has taken its time; the rest of the file is then left."""
        if is_late := time.thread_time() > deadline:
            self.leave(os.fstat(descriptor).st_size - self._offset)
        return is_late
