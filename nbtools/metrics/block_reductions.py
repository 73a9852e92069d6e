"""Extremes and sums of blocks of successive values, kept while a series grows, so that no value is reduced again."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ROWS = 64
"""Rows per block."""


@dataclass(slots=True)
class Blocks:
    """Reductions of a growing series, by blocks of `ROWS` rows. Thread-safe."""

    _reduced: Floats = field(default_factory=lambda: np.empty((4, 0)))
    """Least, greatest, sum and number of the finite values; the first two are infinite where there are none."""

    def of(self, values: Floats) -> Floats:
        """Return least, greatest, sum and number of finite values of each whole block, shape (4, blocks)."""
        known, num_blocks = self._reduced, len(values) // ROWS
        if (num_known := known.shape[1]) < num_blocks:
            parts = _of_finite(values[num_known * ROWS : num_blocks * ROWS])
            added = [join.reduce(part.reshape(-1, ROWS), axis=1) for part, (join, _) in zip(parts, _JOINS, strict=True)]
            self._reduced = known = np.concatenate((known, np.stack(added)), axis=1)
        return known[:, :num_blocks]

    def is_finite(self, values: Floats) -> bool:
        num_finite = self.of(values)[3]
        num_rows = ROWS * len(num_finite)
        return bool(num_finite.sum() == num_rows and np.isfinite(values[num_rows:]).all())

    def between(self, values: Floats, cuts: npt.NDArray[np.int64]) -> list[Floats]:
        """Return the same of the values between successive `cuts`, which are at least two blocks apart."""
        reduced, (block, offset), num_cuts = self.of(values), np.divmod(cuts, ROWS), len(cuts)
        rows = values.take((block[:, None] * ROWS + np.arange(ROWS)).ravel(), mode="clip")
        at = np.arange(num_cuts) * ROWS  # each cut divides a block, unless it is between two
        sides = np.stack((at, at + offset), axis=1).ravel()
        inner = np.stack((block[:-1] + (offset[:-1] > 0), block[1:]), axis=1).ravel()[:-1]
        found = []
        for part, whole, (join, nothing) in zip(_of_finite(rows), reduced, _JOINS, strict=True):
            before, after = join.reduceat(part, sides).reshape(-1, 2).T
            before[offset == 0] = after[offset == 0] = nothing
            middle = join.reduceat(whole[: block[-1]], inner)[::2]
            found.append(join(join(after[:-1], middle), before[1:]))
        return found


_JOINS = (np.minimum, np.inf), (np.maximum, -np.inf), (np.add, 0.0), (np.add, 0.0)


def _of_finite(values: Floats) -> tuple[Floats, ...]:
    finite = np.isfinite(values)
    if finite.all():
        return values, values, values, np.ones(len(values))
    low, high, total = (np.where(finite, values, filled) for filled in (np.inf, -np.inf, 0.0))
    return low, high, total, finite.astype(float)
