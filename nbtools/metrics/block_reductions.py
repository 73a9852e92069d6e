"""The one reduction of curves: extremes and means between cuts, by blocks that are kept while a series grows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Cuts = npt.NDArray[np.int64]
ROWS = 64
"""Rows per block."""

_JOINS = (np.minimum, np.inf), (np.maximum, -np.inf), (np.add, 0.0), (np.add, 0.0)
"""How least, greatest, sum and number of finite values are joined, and what they are of nothing."""


class Reduction(NamedTuple):
    """Least, greatest and mean of the finite values in each of some columns; NaN where there are none."""

    low: Floats
    high: Floats
    mean: Floats
    counts: Floats
    """Number of rows, with those that are not finite."""


def join_columns(columns: Reduction, cuts: Cuts) -> Reduction:
    """Join the columns between successive ascending `cuts`, which are indices."""
    low, high, mean, counts = (column[cuts[0] : cuts[-1]] for column in columns)
    with np.errstate(over="ignore"):
        parts = _joined(_of_finite(low, high, mean * counts, counts), cuts - cuts[0])
    return _reduction(parts, np.add.reduceat(counts, cuts[:-1] - cuts[0]))


@dataclass(slots=True)
class Blocks:
    """Reductions of a growing series, by blocks of `ROWS` rows, so that no value is reduced again. Thread-safe."""

    _parts: Floats = field(default_factory=lambda: np.empty((4, 0)))

    def of(self, values: Floats) -> Floats:
        """Return least, greatest, sum and number of finite values of each whole block, shape (4, blocks)."""
        known, num_blocks = self._parts, len(values) // ROWS
        if (num_known := known.shape[1]) < num_blocks:
            parts = _of_values(values[num_known * ROWS : num_blocks * ROWS])
            added = [join.reduce(part.reshape(-1, ROWS), axis=1) for part, (join, _) in zip(parts, _JOINS, strict=True)]
            self._parts = known = np.concatenate((known, np.stack(added)), axis=1)
        return known[:, :num_blocks]

    def is_finite(self, values: Floats) -> bool:
        num_finite = self.of(values)[3]
        num_rows = ROWS * len(num_finite)
        return bool(num_finite.sum() == num_rows and np.isfinite(values[num_rows:]).all())

    def reduced(self, values: Floats, cuts: Cuts) -> Reduction:
        """Reduce the values between successive ascending `cuts`, which are indices."""
        counts = np.diff(cuts)
        with np.errstate(over="ignore"):
            if counts.min() >= 2 * ROWS:
                parts = self._between(values, cuts)
            else:
                parts = _joined(_of_values(values[cuts[0] : cuts[-1]]), cuts - cuts[0])
        return _reduction(parts, counts.astype(float))

    def _between(self, values: Floats, cuts: Cuts) -> list[Floats]:
        """Join whole blocks, and the rows at either side of cuts that are at least two blocks apart."""
        reduced, (block, offset), num_cuts = self.of(values), np.divmod(cuts, ROWS), len(cuts)
        rows = values.take((block[:, None] * ROWS + np.arange(ROWS)).ravel(), mode="clip")
        at = np.arange(num_cuts) * ROWS  # each cut divides a block, unless it is between two
        sides = np.stack((at, at + offset), axis=1).ravel()
        inner = np.stack((block[:-1] + (offset[:-1] > 0), block[1:]), axis=1).ravel()[:-1]
        found = []
        for part, whole, (join, nothing) in zip(_of_values(rows), reduced, _JOINS, strict=True):
            before, after = join.reduceat(part, sides).reshape(-1, 2).T
            before[offset == 0] = after[offset == 0] = nothing
            middle = join.reduceat(whole[: block[-1]], inner)[::2]
            found.append(join(join(after[:-1], middle), before[1:]))
        return found


def _of_values(values: Floats) -> Sequence[Floats]:
    return _of_finite(values, values, values, np.ones(len(values)))


def _of_finite(*parts: Floats) -> Sequence[Floats]:
    finite = np.isfinite(parts[0])
    if finite.all():
        return parts
    return [np.where(finite, part, nothing) for part, (_, nothing) in zip(parts, _JOINS, strict=True)]


def _joined(parts: Sequence[Floats], cuts: Cuts) -> list[Floats]:
    return [join.reduceat(part, cuts[:-1]) for part, (join, _) in zip(parts, _JOINS, strict=True)]


def _reduction(parts: Sequence[Floats], counts: Floats) -> Reduction:
    low, high, total, number = parts
    low[number == 0] = high[number == 0] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return Reduction(low, high, total / number, counts)
