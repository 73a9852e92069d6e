"""Rows of a file as points: which of its columns count steps, batches or epochs, and which are metrics."""

import functools
import math
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from nbtools.metrics.readers.points import Points, add_point
from nbtools.metrics.readers.printed.metric_words import COUNTERS, EPOCHS, is_measured, is_setting, metric_of
from nbtools.rundir.json_files import MAX_STEP

_EPOCH_RANK: Final = 9
_STEPS: Final = ("step", "steps", "timestep", "timesteps")
_TIMES: Final = ("time", "timestamp", "wall_time", "_timestamp")
_THOUSANDS: Final = re.compile(r"\s*[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?\s*")


def _plain_name(name: str) -> str:
    """Return the last part of a path, with its words joined: `time/total_timesteps`, `_step`, `global step`."""
    return "_".join(name.lower().rpartition("/")[2].replace("_", " ").split())


def _rank_of(name: str) -> int | None:
    """Return how well a column of this name counts the steps of a run, 0 at best; None if it counts nothing."""
    plain = _plain_name(name)
    if plain in EPOCHS:
        return _EPOCH_RANK
    first, _, last = plain.rpartition("_")  # env_steps, but not max_steps
    return COUNTERS.get(plain, COUNTERS[last] if last in _STEPS and not is_setting(first) else None)


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The meaning of the columns of a table, or of the keys of a row."""

    counters: tuple[tuple[int, str], ...]
    """Rank and name of those that count, the best first."""
    metrics: tuple[tuple[str, str], ...]
    """Name and metric of those that do not count best, and hold no time."""
    times: tuple[str, ...]
    are_metrics: bool
    """Whether something is counted, and a name is that of a metric, or the counter is a `step`."""


@functools.lru_cache(1024)
def table_columns(names: tuple[str, ...]) -> TableColumns:
    """Return what columns of these names are."""
    ranked = [(rank, name) for name in names if (rank := _rank_of(name)) is not None]
    ranked.sort(key=lambda one: (one[0], "/" in one[1]))
    counter = ranked[0][1] if ranked else ""
    metrics = tuple(
        (name, "train/epoch" if _rank_of(name) == _EPOCH_RANK else metric_of(name, None))
        for name in names
        if name not in (counter, *_TIMES) and len(name) <= 200
    )
    is_step = _plain_name(counter) in ("step", "global_step")
    times = tuple(name for name in _TIMES if name in names)
    return TableColumns(tuple(ranked), metrics, times, bool(ranked) and (is_step or any(map(is_measured, names))))


class _RowSteps:
    """Finds the steps of the rows of one file, in their order.

    The best counter of a row counts. One that starts over in each epoch continues from the end of the epoch before. A
    row with an epoch alone, in a file that counts steps, belongs to the last step of that epoch.
    """

    def __init__(self) -> None:
        self._rank, self._count, self._first, self._base = _EPOCH_RANK + 1, -1, -1, 0
        self._outer, self._step = -1, 0
        self._metrics: Set[str] = frozenset()
        self._epochs: dict[int, tuple[int, int]] = {}
        """Epoch -> the steps before it, and its last step."""

    def place(self, counts: list[tuple[int, float]], metrics: Set[str]) -> int | None:
        """Return the step of a row; None if its counter is not a whole number.

        Args:
            counts: its numbers that count, from 0 to `MAX_STEP`, each with its rank, the best first; at least one.
            metrics: names of its other numbers.
        """
        rank, count = counts[0]
        if rank > self._rank:
            return self._epochs.get(math.floor(count), (0, self._step))[1]
        if count != int(count):
            return None
        if rank < self._rank:
            self._rank, self._count, self._base, self._epochs = rank, -1, 0, {}
        outer_rank, outer = counts[-1][0], math.floor(counts[-1][1]) if len(counts) > 1 else self._outer
        if outer != self._outer and outer in self._epochs:
            self._base = self._epochs[outer][0]  # a restart repeats the epoch
        elif outer > self._outer >= 0:
            is_again = count == self._count == self._first and not self._metrics.isdisjoint(metrics)
            if count < self._count or (is_again and outer_rank == _EPOCH_RANK):
                self._base = self._step + (count == 0)
        elif len(counts) == 1 and rank == COUNTERS["batch"] and count < self._count:
            self._base = self._step + (count == 0)
        self._first = self._first if outer == self._outer else int(count)
        step = min(self._base + int(count), MAX_STEP)
        self._metrics = self._metrics | metrics if step == self._step else metrics
        self._count, self._outer, self._step = int(count), outer, step
        self._epochs[outer] = self._base, step
        return step


class RowPoints:
    """Turns the rows of one file into points; empty cells, text, and rows without a counter are passed over."""

    def __init__(self) -> None:
        self.has_steps = False
        """Whether a row had a counter."""
        self.num_back = self.num_same = 0
        """Number of rows with a lower step than the row before, or with its step and its metrics."""
        self._steps = _RowSteps()
        self._before: tuple[int, Set[str]] = -1, frozenset()

    def add(self, row: Mapping[str, Any], points: Points) -> bool:
        """Add the numbers of a row; whether it has a counter and metrics."""
        columns = table_columns(tuple(row))
        if not columns.are_metrics:
            return False
        counted = ((rank, _number(row[name])) for rank, name in columns.counters)
        counts = [(rank, count) for rank, count in counted if count is not None and 0 <= count <= MAX_STEP]
        values = {metric: value for name, metric in columns.metrics if (value := _number(row[name])) is not None}
        if not counts or (step := self._steps.place(counts, values.keys() - {"train/epoch"})) is None:
            return False
        self.has_steps = True
        self.num_back += step < self._before[0]
        self.num_same += (step, values.keys()) == self._before
        self._before = step, values.keys()
        time = next(
            (found for name in columns.times if (found := _number(row[name])) is not None and found > 1e9), None
        )
        for metric, value in values.items():
            add_point(points, metric, step, value, float("nan") if time is None else time)
        return True


def _number(cell: object) -> float | None:
    try:
        if type(cell) in (int, float):
            return float(cell)  # type: ignore[arg-type]
        if isinstance(cell, str) and 0 < len(cell) <= 40:
            return float(cell.replace(",", "") if "," in cell and _THOUSANDS.fullmatch(cell) else cell)
    except (ValueError, OverflowError):
        pass
    return None
