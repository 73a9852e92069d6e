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

from nbtools.errors import duration
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
    per_column: float = 1.0
    """Mean number of points in a column."""

    @property
    def is_exact(self) -> bool:
        """Whether every point is kept: `low`, `high` and `mean` are the values."""
        return self.per_column <= 1

    def path(self) -> tuple[Floats, Floats]:
        """Return the points of the line through the lowest and the highest value of each column, the nearer first."""
        if self.is_exact:
            return self.x, self.mean
        ends = np.stack((self.low, self.high), axis=1)
        falls = np.diff(self.mean, prepend=np.nan) < 0
        ends[falls] = ends[falls, ::-1]
        return np.repeat(self.x, 2), ends.ravel()


def decimate(series: Series | Sketch, x: NDArray[Any], limits: tuple[float, float], num_columns: int) -> Curve:
    """Reduce the points within `limits` to the minimum, maximum and mean of each pixel column.

    Every extreme is kept, because all points of a column count, not a sample. A column without a finite value becomes
    NaN, which draws as a gap. The positions `x` of the points ascend; up to two points per column are kept as they are.
    """
    edges: NDArray[Any] = np.linspace(*limits, num_columns + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    if np.issubdtype(x.dtype, np.integer):
        edges = np.ceil(edges).astype(x.dtype)  # the same columns without a float copy of all steps
    start, stop = int(np.searchsorted(x, edges[0], "left")), int(np.searchsorted(x, edges[-1], "right"))
    if stop - start <= 2 * num_columns:
        start, stop = max(start - 1, 0), min(stop + 1, len(x))  # a neighbour on each side: lines reach the edge
        cuts, places = np.arange(start, stop + 1), x[start:stop].astype(float)
    else:
        cuts = np.append(start + np.searchsorted(x[start:stop], edges[:-1], "left"), stop)
        is_used = np.diff(cuts) > 0
        cuts, places = np.append(cuts[:-1][is_used], stop), centres[is_used]
    low, high, mean, counts = series.reduced(cuts)
    return Curve(places, low, high, mean, float(counts.mean()))


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
    step: int
    is_end: bool
    """The series is not finite from `index` to its end."""
    count: int


def break_of(series: Series | Sketch) -> Break | None:
    """Return the start of the non-finite end, else the first non-finite value; of a `Sketch` only the former."""
    if isinstance(series, Sketch):
        if (step := series.diverged_at) is None:
            return None
        index = min(int(np.searchsorted(series.steps, step)), len(series) - 1)
        return Break(index, step, True, int(series.counts[index:].sum()))
    if series.blocks.is_finite(series.values):
        return None
    finite = np.isfinite(series.values)
    is_end = not finite[-1]
    index = int(np.argmin(finite)) if not is_end else len(finite) - int(np.argmax(finite[::-1])) if finite.any() else 0
    return Break(index, int(series.steps[index]), is_end, int(np.count_nonzero(~finite)))


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
    days = math.ceil((high - low) / 86400 / num_max)
    spacing = next((s for s in _SECONDS if (high - low) / s <= num_max), 86400 * days)
    places = range(math.ceil(low / spacing) * spacing, math.floor(high) + 1, spacing)
    return [(float(place), duration(place) if place else "0") for place in places]


def clock_ticks(low: float, high: float, num_max: int) -> list[tuple[float, str]]:
    """Return ticks of an axis in Unix seconds at round times of this machine's clock; a day begins with its date."""
    ahead = time.localtime(high).tm_gmtoff  # of UTC, also for times before a change to summer time
    positions = [position - ahead for position, _ in time_ticks(low + ahead, high + ahead, num_max)]
    spacing = positions[1] - positions[0] if len(positions) > 1 else 0.0
    usual = "%H:%M:%S" if spacing < 60 else "%H:%M"
    shapes = ("%b %d" if (position + ahead) % 86400 == 0 else usual for position in positions)
    return [(at, time.strftime(shape, time.gmtime(at + ahead))) for at, shape in zip(positions, shapes, strict=True)]


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
