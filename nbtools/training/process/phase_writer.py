"""The seconds of this rank in each phase, which it appends to a file once per log interval."""

import contextlib
import itertools
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from nbtools.run.ranks.phases import PASSES, PHASES
from nbtools.steering import append_rows

_MOST_BORDERS = 1024
"""Borders that are kept until they are added up; a GPU has reached those of the first half long ago."""


class PhaseWriter:
    """Adds up the time between the borders of phases.

    On a GPU a border is an event of its stream, which the host runs ahead of: a phase has the time between its events,
    so waiting for data counts where the GPU has nothing to do. The events are read when the rows are written.

    A sharded model communicates within its passes and the optimizer's step, so waiting cannot be told from computing:
    these three phases are one, `compute`.
    """

    def __init__(self, path: Path, attempt: int, *, on_gpu: bool, is_sharded: bool) -> None:
        self.on_gpu, self.current = on_gpu, "other"
        self._path, self._attempt = path, attempt
        merged = dict.fromkeys(PASSES, "compute") if is_sharded else {}
        self._names = {phase: phase for phase in PHASES} | {"collective": "waiting"} | merged
        self._borders: list[tuple[str, Any]] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def now(self) -> Any:
        """Return a time, or an event of the GPU's stream."""
        if not self.on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, since: Any, until: Any) -> float:
        """Return the seconds between two results of `now`, which the GPU has passed."""
        return float(since.elapsed_time(until) / 1000 if self.on_gpu else until - since)

    def enter(self, phase: str) -> Any:
        """Begin a phase, and return its border; one of an unknown name is `other`."""
        border, self.current = self.now(), self._names.get(phase, "other")
        self._borders.append((self.current, border))
        if len(self._borders) >= _MOST_BORDERS:
            self._add_up(_MOST_BORDERS // 2)
        return border

    def restart(self) -> None:
        """Begin to measure."""
        self._borders.clear()
        self._seconds.clear()
        self.enter("other")

    def write(self, step: int, waited_s: float = 0.0) -> None:
        """Append the seconds since the last row; a full disk loses the row, not the training.

        Args:
            waited_s: seconds of backward passes in which this rank waited for the others.
        """
        self.enter(self.current)
        self._add_up(len(self._borders))
        waited_s = min(waited_s, self._seconds["backward"])
        self._seconds["backward"] -= waited_s
        self._seconds["waiting"] += waited_s
        seconds = {phase: round(spent, 6) for phase, spent in self._seconds.items() if spent > 0}
        with contextlib.suppress(OSError):
            row = {"step": step, "time": time.time(), "attempt": self._attempt, "seconds": seconds}
            append_rows(self._path, [row])
        self._seconds.clear()

    def _add_up(self, num_borders: int) -> None:
        """Add up the phases between the first borders, the last of which stays."""
        passed = self._borders[:num_borders]
        if self.on_gpu:
            passed[-1][1].synchronize()
        for (phase, since), (_, until) in itertools.pairwise(passed):
            self._seconds[phase] += self.seconds(since, until)
        del self._borders[: num_borders - 1]
