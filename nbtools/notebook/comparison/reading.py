"""Keeps the curves of compared runs up to date: short runs are read here, long ones by a process of its own."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nbtools.run.curves import (
    SMALL_BYTES,
    Curves,
    cached,
    curve_files,
    curves_of,
    glimpse,
    num_bytes,
    read_parts,
    refined,
)
from nbtools.run.run import Run

_EVERY_S = 60.0
"""Between two readings of long runs that are active."""


class CurveReader:
    """Reads the curves of runs; `look` costs milliseconds where nothing changed.

    A long run first shows what the cache has, else its first and last rows; a process of its own then reads the rest
    into the cache, so that neither the kernel's time nor its memory is used. Where a zoom shows less than the cache's
    columns, another process reads the rows of that part.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.curves: list[Curves] = [{} for _ in runs]
        self._seen: list[Any] = [None] * len(runs)
        self._current = [False] * len(runs)
        self._child: subprocess.Popen[bytes] | None = None
        self._tried: dict[str, Any] = {}
        self._started_at = -_EVERY_S
        self._parts: dict[tuple[str, int, int], Curves] = {}
        self._asked: dict[int, tuple[str, int, int]] = {}
        self._closer: subprocess.Popen[bytes] | None = None
        self._written = tempfile.TemporaryFile()  # noqa: SIM115

    def ask(self, wanted: Mapping[int, tuple[int, int]]) -> None:
        """Let a process read the rows of parts, given as first and last step by the index of the run.

        What was asked before and is not wanted any more is given up.
        """
        asked = {index: (str(self.runs[index].dir), *steps) for index, steps in wanted.items()}
        if asked == self._asked:
            return
        self._end_closer()
        self._asked = asked
        self._parts = {part: self._parts[part] for part in asked.values() if part in self._parts}
        left = [str(word) for part in asked.values() if part not in self._parts for word in part]
        if left:
            self._written.seek(0)
            self._written.truncate()
            self._closer = _start("--part", *left, output=self._written)

    @property
    def is_asked(self) -> bool:
        """Whether the process still reads what was asked for."""
        return self._closer is not None

    def closer(self) -> list[Curves]:
        """Return the curves with the parts that were asked for and read."""
        found = list(self.curves)
        for index, part in self._asked.items():
            finer, whole = self._parts.get(part, {}), found[index]
            found[index] = {n: refined(one, finer[n]) if n in finer else one for n, one in whole.items()}
        return found

    def _end_closer(self) -> None:
        if self._closer is not None:
            self._closer.kill()
            self._closer.wait()
            self._closer = None

    @property
    def num_unread(self) -> int:
        """Number of runs of which not all rows have been read."""
        return len(self.runs) - sum(self._current)

    def look(self) -> bool:
        """Read what is new; returns whether any curve changed."""
        changed, waiting = self._take_parts(), []
        for index, run in enumerate(self.runs):
            files = curve_files(run)
            if files == self._seen[index] and self._current[index]:
                continue
            if num_bytes(run) <= SMALL_BYTES:
                self.curves[index], self._current[index] = curves_of(run.history), True
            elif (found := cached(run)) is not None:
                self.curves[index], self._current[index] = found, True
            else:
                waiting.append(run)
                self._current[index] = False
                if files == self._seen[index]:
                    continue
                self.curves[index] = cached(run, may_lag=True) or self.curves[index] or glimpse(run)
            self._seen[index] = files
            changed = True
        self._read(waiting)
        return changed

    def _take_parts(self) -> bool:
        """Take what the process for parts wrote, once it has ended."""
        if self._closer is None or self._closer.poll() is None:
            return False
        self._closer = None
        self._written.seek(0)
        self._parts |= read_parts(self._written.read())
        return True

    def _read(self, waiting: Sequence[Run]) -> None:
        """Start the process for the runs that wait, unless it runs, has just run, or could not read them."""
        if self._child is not None and self._child.poll() is None:
            return
        left = [run for run in waiting if self._tried.get(run.id) != curve_files(run)]
        if not left or time.monotonic() - self._started_at < (_EVERY_S if self._tried else 0):
            return
        self._tried |= {run.id: curve_files(run) for run in left}
        self._started_at = time.monotonic()
        self._child = _start(*(str(run.dir) for run in left))

    @property
    def is_reading(self) -> bool:
        """Whether the process reads."""
        return self._child is not None and self._child.poll() is None

    def close(self) -> None:
        """End the processes; what was read of whole runs stays in the cache."""
        self._end_closer()
        self._written.close()
        if self._child is not None:
            self._child.kill()
            self._child.wait()


def _start(*words: str, output: Any = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", "-m", "nbtools.run.curves", *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
