"""Keeps the curves of compared runs up to date: short runs are read here, long ones by a process of its own."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nbtools.errors import NbtoolsError
from nbtools.run.curves import Curves, cached, curve_files, part_of, quick_curves, refined
from nbtools.run.run import Run

_EVERY_S = 60.0
"""Between two readings of long runs that are active."""


class CurveReader:
    """Reads the curves of runs; `look` costs milliseconds where nothing changed.

    A long run first shows what the cache has, else its first and last rows; a process of its own then reads the rest
    into the cache, so that neither the kernel's time nor its memory is used. Where a zoom shows less than the cache's
    columns, the rows of that part are read, which costs milliseconds where steps ascend in one file.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.curves: list[Curves] = [{} for _ in runs]
        self._seen: list[Any] = [None] * len(runs)
        self._current = [False] * len(runs)
        self._child: subprocess.Popen[bytes] | None = None
        self._tried: dict[str, Any] = {}
        self._left: Sequence[Run] = ()
        self._started_at = -_EVERY_S
        self._parts: dict[tuple[int, int, int], Curves] = {}

    def closer(self, wanted: Mapping[int, tuple[int, int]]) -> list[Curves]:
        """Return the curves, with the rows of parts that are given as first and last step by the index of the run."""
        found, parts = list(self.curves), self._parts
        self._parts = {}
        for index, steps in wanted.items():
            with contextlib.suppress(NbtoolsError, OSError):  # removed, or its disk is away
                finer = parts.get((index, *steps)) or part_of(self.runs[index], *steps)
                self._parts[index, *steps] = finer
                found[index] = {n: refined(one, finer[n]) if n in finer else one for n, one in found[index].items()}
        return found

    @property
    def num_unread(self) -> int:
        """Number of runs with unread rows."""
        return len(self.runs) - sum(self._current)

    def look(self) -> bool:
        """Read new rows; return whether any curve changed."""
        changed, waiting = False, list[Run]()
        for index, run in enumerate(self.runs):
            files = curve_files(run)
            if files == self._seen[index] and (self._current[index] or cached(run) is None):
                waiting += [] if self._current[index] else [run]
                continue
            self.curves[index], missing = quick_curves(run)
            self._current[index] = not missing
            waiting += [run] if missing else []
            self._seen[index] = files
            changed = True
        self._read(waiting)
        return changed

    def _read(self, waiting: Sequence[Run]) -> None:
        """Start the process for the runs that wait, unless it runs, has just run, or could not read them."""
        self._left = [run for run in waiting if self._tried.get(run.id) != curve_files(run)]
        is_running = self._child is not None and self._child.poll() is None
        if is_running or not self._left or time.monotonic() - self._started_at < (_EVERY_S if self._tried else 0):
            return
        self._tried |= {run.id: curve_files(run) for run in self._left}
        self._started_at = time.monotonic()
        command = [sys.executable, "-P", "-m", "nbtools.run.curves", *(str(run.dir) for run in self._left)]
        nothing = subprocess.DEVNULL
        self._child = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)

    @property
    def is_reading(self) -> bool:
        """Whether the process reads, or will."""
        return bool(self._left) or (self._child is not None and self._child.poll() is None)

    def close(self) -> None:
        """End the process; what was read of whole runs stays in the cache."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
