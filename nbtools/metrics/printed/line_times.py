"""The time and the attempt in which each byte of a log was written."""

import contextlib
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from nbtools.rundir.tail import Tail


class LineTimes:
    """The record of a log's growth, from the sizes that the supervisor saw."""

    def __init__(self, path: str | Path | None) -> None:
        """Store the path; without one, no time is known."""
        self._tail = Tail(path) if path is not None else None
        self._sizes: list[int] = []
        self._times: list[float] = []
        self._attempts: list[int] = []

    def read(self) -> None:
        """Read new lines of the record."""
        with contextlib.suppress(OSError):  # the log has its rows even so
            while self._tail is not None and (block := self._tail.read()):
                for line in block.split(b"\n"):
                    with contextlib.suppress(ValueError, TypeError):
                        size, when, attempt = orjson.loads(line)
                        if not self._sizes or size >= self._sizes[-1]:
                            self._sizes.append(int(size))
                            self._times.append(float(when))
                            self._attempts.append(int(attempt))

    def at(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the Unix times at which the log grew to `offsets` bytes; now for what came last, NaN if unknown."""
        if not self._sizes:
            return np.full(len(offsets), np.nan)
        return np.interp(offsets, self._sizes, self._times, right=max(round(time.time(), 2), self._times[-1]))

    def attempts(self, offsets: npt.NDArray[np.int64]) -> list[int]:
        """Return the attempts that wrote up to `offsets`; 1 if unknown."""
        if not self._attempts or self._attempts[-1] == 1:
            return [1] * len(offsets)
        return [self._attempts[after - 1 if after else 0] for after in np.searchsorted(self._sizes, offsets)]
