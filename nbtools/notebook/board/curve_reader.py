"""Keeps the curves of compared runs up to date: short runs are read here, long ones by a process of its own."""

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from nbtools.run.curves import Curves, cached, curve_files, quick_curves
from nbtools.run.run import Run

_EVERY_S = 60.0
"""Between two readings of long runs that are active."""


class CurveReader:
    """Reads the curves of runs; `look` costs milliseconds where nothing changed.

    A long run first shows what the cache has, else its first and last rows; a process of its own then reads the rest
    into the cache, so that neither the kernel's time nor its memory is used.
    """

    def __init__(self) -> None:
        self.curves: dict[str, Curves] = {}
        """The curves of the runs of the last look, by id."""
        self.unread: list[Run] = []
        """The runs of the last look with unread rows."""
        self._seen: dict[str, Any] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._tried: dict[str, Any] = {}
        self._left: Sequence[Run] = ()
        self._started_at = -_EVERY_S

    def look(self, runs: Sequence[Run]) -> bool:
        """Read new rows; return whether any curve changed."""
        before, seen, unread = self.curves, self._seen, {run.id for run in self.unread}
        self.curves, self._seen, self.unread = {}, {run.id: curve_files(run) for run in runs}, []
        for run in runs:
            is_unread = run.id in unread
            if self._seen[run.id] == seen.get(run.id) and (not is_unread or cached(run) is None):
                self.curves[run.id] = before[run.id]
            else:
                self.curves[run.id], missing = quick_curves(run)
                is_unread = bool(missing)
            self.unread += [run] if is_unread else []
        self.read()
        return any(one is not before.get(name) for name, one in self.curves.items())

    def read(self, others: Iterable[Run] = ()) -> None:
        """Start the process for unread runs, of others too, unless it runs, has just read them, or could not."""
        self._left = [run for run in (*self.unread, *others) if self._tried.get(run.id) != curve_files(run)]
        is_running = self._child is not None and self._child.poll() is None
        is_due = any(run.id not in self._tried for run in self._left) or time.monotonic() - self._started_at > _EVERY_S
        if is_running or not self._left or not is_due:
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
