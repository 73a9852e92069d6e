"""Metric rows as columns: lines parsed in bulk, and growing tables sorted by step."""

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import orjson

from nbtools.metrics.block_reductions import Blocks, Cuts, Reduction
from nbtools.rundir.json_files import MAX_STEP

RESERVED: Final = frozenset({"step", "time", "samples", "attempt", "dropped"})
"""Keys of a row that are coordinates or bookkeeping; every other key with a number is a metric."""

EPOCH_SHIFT: Final = 40
GENERATION_SHIFT: Final = 12
"""A row's priority: generation of the file << 52 | attempt << 40 | number of the line. The first two are its epoch."""

_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBERS: Final = frozenset({float, int})
_MAX_ATTEMPT: Final = 2**GENERATION_SHIFT - 1
_MAX_NAME_CHARACTERS: Final = 256

Unit = Literal["step", "sample", "epoch", "row"]
"""The count that places the points of a curve; rows are those of a file without a counter, which have only an order."""
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
"""All units, the finest that all programs count first."""

Column = npt.NDArray[Any]
Batch = tuple[tuple[str, ...], list[Column], int]
"""Names of the metrics, columns as in `MetricTable`, and the number of rows that the writer reports as dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The values of one metric, sorted by unique steps. The arrays are read-only and never change."""

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]
    """Unix seconds; NaN where a row had none."""
    samples: npt.NDArray[np.float64]
    """Training samples so far; NaN where a row had none."""
    blocks: Blocks = field(default_factory=Blocks, repr=False)
    """Reductions of `values`, shared with later series of the metric that have more rows."""
    unit: Unit = "step"
    """The count in `steps`. Curves of different units have no common axis but time."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float:
        """Value of the last row."""
        return float(self.values[-1])

    def reduced(self, cuts: Cuts) -> Reduction:
        """Reduce the values between successive ascending `cuts`, which are indices."""
        return self.blocks.reduced(self.values, cuts)


class MetricTable:
    """Rows with the same metrics, sorted by step; of several rows of a step the newest.

    Columns are steps, priorities, times, samples, then one per name. Appended rows go behind those that readers hold
    views of; any other change makes new arrays (`num_rewrites` counts them).
    """

    def __init__(self, names: tuple[str, ...], unit: Unit = "step") -> None:
        self.names, self.unit = names, unit
        self.num_rows = 0
        self.num_rewrites = 0
        self._columns: list[Column] = [np.empty(0, np.int64 if i < 2 else np.float64) for i in range(4 + len(names))]

    def add(self, rows: list[Column]) -> None:
        """Add at least one row, given as columns."""
        if (np.diff(rows[0]) <= 0).any():
            rows = _newest_per_step(rows)
        n, first = self.num_rows, rows[0][0]
        if n and first <= self._columns[0][n - 1]:
            start = int(np.searchsorted(self._columns[0][:n], first))
            pairs = zip(self._columns, rows, strict=True)
            rows = _newest_per_step([np.concatenate((old[start:n], new)) for old, new in pairs])
            self._replace([np.concatenate((old[:start], new)) for old, new in zip(self._columns, rows, strict=True)])
            return
        total = n + len(rows[0])
        for i, new in enumerate(rows):
            if total > len(self._columns[i]):
                grown = np.empty(max(total, n + n // 2, 64), new.dtype)
                grown[:n] = self._columns[i][:n]
                self._columns[i] = grown
            self._columns[i][n:total] = new
        self.num_rows = total

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the rows for which `mask` is False."""
        if not mask.all():
            self._replace([column[: self.num_rows][mask] for column in self._columns])

    def newest(self, column: int) -> tuple[int, int, float]:
        """Return step, priority and the value in `column` of the last row; there must be one."""
        steps, priorities, values = self._columns[0], self._columns[1], self._columns[column]
        row = self.num_rows - 1
        return int(steps[row]), int(priorities[row]), float(values[row])

    def rows(self, start: int = 0) -> list[Column]:
        """Return the columns from row `start` on, as read-only views."""
        views = [column[start : self.num_rows] for column in self._columns]
        for view in views:
            view.setflags(write=False)
        return views

    def _replace(self, columns: list[Column]) -> None:
        self._columns = columns
        self.num_rows = len(columns[0])
        self.num_rewrites += 1


class Attempts:
    """The attempts whose rows a curve may have, in one unit: each replaces earlier ones from its first step on."""

    def __init__(self) -> None:
        self._first_steps: dict[int, int] = {}
        self._cutoffs: tuple[Column, Column] | None = None

    def add(self, rows: list[Column]) -> bool:
        """Take new rows into account; whether rows from before may be replaced by them."""
        epochs, index = np.unique(rows[1] >> EPOCH_SHIFT, return_inverse=True)
        firsts = np.full(len(epochs), MAX_STEP)
        np.minimum.at(firsts, index, rows[0])
        new = dict(zip(epochs.tolist(), firsts.tolist(), strict=True))
        earlier = {epoch: step for epoch, step in new.items() if step < self._first_steps.get(epoch, MAX_STEP + 1)}
        self._first_steps |= earlier
        if not earlier or len(self._first_steps) < 2:
            return False
        known = sorted(self._first_steps)
        steps = np.array([self._first_steps[epoch] for epoch in known])
        later = np.append(np.minimum.accumulate(steps[::-1])[::-1][1:], MAX_STEP)
        self._cutoffs = np.array(known), later
        return True

    def current(self, rows: list[Column]) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that no later attempt replaces; at its first step, only a new row replaces one."""
        if self._cutoffs is None:
            return np.ones(len(rows[0]), bool)
        epochs, cutoffs = self._cutoffs
        current: npt.NDArray[np.bool_] = rows[0] <= cutoffs[np.searchsorted(epochs, rows[1] >> EPOCH_SHIFT)]
        return current


def _newest_per_step(rows: list[Column]) -> list[Column]:
    order = np.lexsort((rows[1], rows[0]))
    steps = rows[0][order]
    order = order[np.append(steps[1:] != steps[:-1], True)]
    return [column[order] for column in rows]


class _Irregular(Exception):
    """The lines are not only rows of numbers."""


def parse_rows(piece: bytes, first: int, epoch: int) -> tuple[list[Batch], int, int]:
    """Turn lines (without the last newline) into columns.

    Args:
        piece: The lines.
        first: Number of the first line, for the rows' priorities.
        epoch: The rows' epoch without their attempt.

    Returns:
        One batch per set of keys, the number of lines, and the number of damaged lines.
    """
    lines = piece.split(b"\n")
    try:
        rows = [*map(orjson.loads, lines)]
        if set(map(type, rows)) != {dict}:
            raise _Irregular
        return _to_batches(np.arange(first, first + len(lines)), rows, epoch), len(lines), 0
    except (_Irregular, orjson.JSONDecodeError):  # each on its own, and of each what is a number
        parsed = [(number, _parse(line)) for number, line in enumerate(lines, first) if line.strip()]
        order = np.array([number for number, row in parsed if row], np.int64)
        batches = _to_batches(order, [row for _, row in parsed if row], epoch)
        return batches, len(lines), sum(row is None for _, row in parsed)


def _to_batches(order: npt.NDArray[np.int64], rows: list[dict[str, Any]], epoch: int) -> list[Batch]:
    """Return rows as columns, one batch per set of keys."""
    groups: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, keys in enumerate(map(tuple, rows)):
        groups[keys].append(index)
    batches = (
        _to_columns(keys, order[members], [rows[index] for index in members], epoch) for keys, members in groups.items()
    )
    return [batch for batch in batches if batch is not None]


def _to_columns(
    keys: tuple[str, ...], order: npt.NDArray[np.int64], rows: list[dict[str, Any]], epoch: int
) -> Batch | None:
    values = list(chain.from_iterable(map(dict.values, rows)))
    if str in (types := set(map(type, values))):
        values = [_NON_FINITE.get(value, value) if type(value) is str else value for value in values]
        types = set(map(type, values))
    if not types <= _NUMBERS:
        raise _Irregular
    if "step" not in keys:
        return None
    steps = values[keys.index("step") :: len(keys)]
    if set(map(type, steps)) != {int} or max(steps) > MAX_STEP or min(steps) < -MAX_STEP:
        raise _Irregular
    columns = dict(zip(keys, np.fromiter(values, np.float64, len(values)).reshape(-1, len(keys)).T, strict=True))
    unknown = np.full(len(rows), np.nan)
    attempts = np.nan_to_num(columns.get("attempt", unknown), nan=1).clip(1, _MAX_ATTEMPT).astype(np.int64)
    priorities = ((epoch + attempts) << EPOCH_SHIFT) + order
    dropped = columns.get("dropped", np.zeros(0))
    num_dropped = int(np.nan_to_num(dropped).clip(0, MAX_STEP).astype(np.int64).sum())
    names = tuple(key for key in keys if key not in RESERVED and len(key) <= _MAX_NAME_CHARACTERS)
    coordinates = [np.array(steps, np.int64), priorities, columns.get("time", unknown), columns.get("samples", unknown)]
    return names, [*coordinates, *(columns[name] for name in names)], num_dropped


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the numbers of a row; {} for an object that is not a row; None for a damaged line."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        if not (line.startswith(b"{") and line.rstrip().endswith(b"}")):
            return None
        try:  # Python's json writes NaN, and numbers of any length
            row = json.loads(line.decode(), parse_int=lambda digits: int(digits) if len(digits) < 19 else float(digits))
        except (ValueError, RecursionError):
            return None
    if not isinstance(row, dict):
        return None
    step = row.get("step")
    if type(step) is float and step.is_integer():
        step = int(step)
    if type(step) is not int or abs(step) > MAX_STEP:
        return {}
    values = {key: _NON_FINITE.get(value) if type(value) is str else value for key, value in row.items()}
    return {key: value for key, value in values.items() if type(value) in _NUMBERS} | {"step": step}
