"""The arithmetic of a plot: decimation, smoothing and ticks, in plain numpy."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from nbtools.metrics.block_reductions import ROWS, Blocks
from nbtools.metrics.columns import Series
from nbtools.run.curves import Sketch

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """A series reduced to the pixel columns of a plot, with its extremes in each column."""

    x: Floats
    low: Floats
    high: Floats
    mean: Floats
    is_exact: bool
    """Every point is kept: `low`, `high` and `mean` are the values."""
    per_column: float = 1.0
    """Mean number of points in a column."""

    def path(self) -> tuple[Floats, Floats]:
        """Return the points of the line: each column goes from its lowest to its highest value."""
        if self.is_exact:
            return self.x, self.mean
        return np.repeat(self.x, 2), np.stack((self.low, self.high), axis=1).ravel()


def decimate(
    x: NDArray[Any], y: Floats, left: float, right: float, num_columns: int, blocks: Blocks | None = None
) -> Curve:
    """Reduce the points between `left` and `right` to the minimum, maximum and mean of each pixel column.

    Every extreme is kept, because all points of a column count, not a sample. A column without a finite value becomes
    NaN, which draws as a gap. Positions `x` ascend; values `y` may be NaN and infinite. With their `blocks`, many are
    reduced in little time.
    """
    return _reduced(x, (y, y, y), None, (left, right), num_columns, blocks)


def columns_of(sketch: Sketch, x: NDArray[Any], limits: tuple[float, float], num_columns: int) -> Curve:
    """Reduce a sketch to pixel columns; no extreme is lost.

    Args:
        x: position of each of the sketch's columns, ascending.
        num_columns: number of pixel columns; up to twice as many of the sketch's columns are kept as they are.
    """
    return _reduced(x, (sketch.low, sketch.high, sketch.mean), sketch.counts, limits, num_columns)


def _reduced(
    x: NDArray[Any],
    values: tuple[Floats, Floats, Floats],
    counts: Floats | None,
    limits: tuple[float, float],
    num_columns: int,
    blocks: Blocks | None = None,
) -> Curve:
    """Reduce low, high and mean of rows, or of columns with `counts` rows each, to pixel columns."""
    edges: NDArray[Any] = np.linspace(*limits, num_columns + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    if np.issubdtype(x.dtype, np.integer):
        edges = np.ceil(edges).astype(x.dtype)  # the same columns without a float copy of all steps
    start, stop = int(np.searchsorted(x, edges[0], "left")), int(np.searchsorted(x, edges[-1], "right"))
    if stop - start <= 2 * num_columns:
        inside = slice(max(start - 1, 0), stop + 1)  # one neighbour on each side, so that lines reach the edge
        low, high, mean = (np.where(np.isfinite(column[inside]), column[inside], np.nan) for column in values)
        within = np.ones(1) if counts is None else counts[inside]
        per_column = float(within.mean()) if len(within) else 1.0
        return Curve(x[inside].astype(float), low, high, mean, bool((within <= 1).all()), per_column)
    first = start + np.searchsorted(x[start:stop], edges[:-1], "left")
    num_parts = np.diff(first, append=stop)
    used = num_parts > 0
    first, num_parts = first[used], num_parts[used]
    if blocks is not None and num_parts.min() >= 2 * ROWS:
        low, high, total, weights = blocks.between(values[0], np.append(first, stop))
        low[weights == 0] = high[weights == 0] = np.nan
    else:
        finite = [np.isfinite(column[start:stop]) for column in values]
        low, high, mean = (
            np.where(is_known, column[start:stop], np.nan) for is_known, column in zip(finite, values, strict=True)
        )
        low, high = np.fmin.reduceat(low, first - start), np.fmax.reduceat(high, first - start)
        rows = np.where(finite[2], 1.0 if counts is None else counts[start:stop], 0.0)
        weights = np.add.reduceat(rows, first - start)
        with np.errstate(over="ignore"):
            total = np.add.reduceat(np.where(finite[2], mean * rows, 0.0), first - start)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / weights
    num_rows = float(stop - start if counts is None else counts[start:stop].sum())
    return Curve(centres[used], low, high, mean, False, num_rows / len(first))


def all_finite(values: Floats) -> bool:
    """Whether all values are finite; a finite sum shows it without a second array."""
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(values.sum()) or bool(np.isfinite(values).all())


def smooth(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average, debiased as Adam's moments, so that the start is not drawn towards zero.

    NaN stays NaN and does not enter the average; `weight`, the share of earlier values, is 0 to below 1.
    """
    smoothed, finite = np.full(len(values), np.nan), np.isfinite(values)
    added = ((1 - weight) * values[finite]).tolist()
    averages = list(accumulate(added, lambda average, value: weight * average + value, initial=0.0))[1:]
    smoothed[finite] = np.array(averages) / (1 - np.multiply.accumulate(np.full(len(added), weight)))
    return smoothed


def is_lone(x: Floats, y: Floats) -> bool:
    """Whether all finite values are at one position, so that a line would be invisible."""
    at = x[np.isfinite(y)]
    return bool(len(at)) and float(at.min()) == float(at.max())


@dataclass(frozen=True)
class Break:
    """The start of the non-finite values of a series."""

    index: int
    is_end: bool
    """The series is not finite from `index` to its end."""
    count: int


def break_of(series: Series | Sketch) -> tuple[Break, int] | None:
    """Return the break of a series and its step; a `Sketch` contains only a break that lasts to its end."""
    if isinstance(series, Sketch):
        if (step := series.diverged_at) is None:
            return None
        index = min(int(np.searchsorted(series.steps, step)), len(series) - 1)
        return Break(index, True, int(series.counts[index:].sum())), step
    if series.blocks.is_finite(series.values) or (found := find_break(series.values)) is None:
        return None
    return found, int(series.steps[found.index])


def find_break(values: Floats) -> Break | None:
    """Return the start of the non-finite tail, else the first non-finite value, else None."""
    if all_finite(values):
        return None
    finite = np.isfinite(values)
    count = len(values) - int(np.count_nonzero(finite))
    if finite[-1]:
        return Break(int(np.argmin(finite)), False, count)
    return Break(len(values) - int(np.argmax(finite[::-1])) if finite.any() else 0, True, count)


# --- ticks --------------------------------------------------------------------------------------

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@lru_cache(maxsize=256)  # charts share an axis, and the others seldom change
def ticks(low: float, high: float, num_max: int, *, whole: bool = False) -> Sequence[tuple[float, str]]:
    """Return positions and labels of about `num_max` round numbers from `low` to `high`."""
    locator = MaxNLocator(num_max, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10], integer=whole)
    values = [float(v) for v in locator.tick_values(low, high) if low - 1e-12 <= v <= high + 1e-12]
    spacing = values[1] - values[0] if len(values) > 1 else 0.0
    size = max(map(abs, values), default=0.0)
    return tuple((value, number(value, spacing, size)) for value in values)


def log_ticks(low: float, high: float, num_max: int) -> list[tuple[float, str]]:
    """Return ticks of an axis in log10: `low`, `high` and the positions are exponents."""
    decades = range(math.ceil(low), math.floor(high) + 1)
    if len(decades) >= 3:
        return [(float(e), number(10.0**e)) for e in decades[:: math.ceil(len(decades) / num_max)]]
    for factors in ((1, 3), (1, 2, 5)):
        values = [f * 10.0**e for e in range(math.floor(low), math.ceil(high)) for f in factors]
        found = [(math.log10(v), number(v)) for v in values if low <= math.log10(v) <= high]
        if len(found) >= 3:
            return found
    return [(math.log10(v), label) for v, label in ticks(10**low, 10**high, num_max) if v > 0]


def time_ticks(low: float, high: float, num_max: int) -> list[tuple[float, str]]:
    """Return ticks of an axis in seconds, at whole seconds, minutes, hours or days."""
    spacing = next((s for s in _SECONDS if (high - low) / s <= num_max), None)
    if spacing is None:
        spacing = 86400 * math.ceil((high - low) / 86400 / num_max)
    return [(float(s), duration(s)) for s in range(math.ceil(low / spacing) * spacing, math.floor(high) + 1, spacing)]


def clock_ticks(low: float, high: float, num_max: int) -> list[tuple[float, str]]:
    """Return ticks of an axis in Unix seconds at round times of this machine's clock; a day begins with its date."""
    ahead = time.localtime(high).tm_gmtoff  # of UTC, also for times before a change to summer time
    positions = [position - ahead for position, _ in time_ticks(low + ahead, high + ahead, num_max)]
    spacing = positions[1] - positions[0] if len(positions) > 1 else 0.0
    labels = []
    for position in positions:
        is_midnight = (position + ahead) % 86400 == 0
        shape = "%b %d" if is_midnight else "%H:%M:%S" if spacing < 60 else "%H:%M"
        labels.append(time.strftime(shape, time.gmtime(position + ahead)))
    return list(zip(positions, labels, strict=True))


def number(value: float, spacing: float = 0.0, size: float = 0.0) -> str:
    """Return a number in few characters: 0.25, 2.5k, 3e-4.

    On an axis, `spacing` is the distance of neighbouring ticks and decides the decimals; `size` is the largest number
    and decides the suffix. Without them the number has four digits and its own suffix.
    """
    size = size or abs(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if size < 1e-3 or size >= 1e15:
        mantissa, exponent = f"{value:.{2 if spacing else 1}e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    suffixes = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"), (0.0, 1.0, ""))
    scale, suffix = next((scale, suffix) for least, scale, suffix in suffixes if size >= least)
    if spacing:
        decimals = max(0, 2 - math.floor(math.log10(spacing / scale)))
        return f"{round(value / scale, decimals):.12g}{suffix}"
    return f"{value / scale:.4g}{suffix}"


def duration(seconds: float) -> str:
    """Return a duration in at most two units: 45s, 2m30s, 1h05m, 3d4h."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s" if seconds else "0"
    if seconds < 3600:
        minutes, rest = divmod(seconds, 60)
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    if seconds < 86400:
        hours, rest = divmod(seconds // 60, 60)
        return f"{hours}h{rest:02d}m" if rest else f"{hours}h"
    days, rest = divmod(seconds // 3600, 24)
    return f"{days}d{rest}h" if rest else f"{days}d"
