"""Values of a run that the list shows beside its records: fields, ends of its metrics, and a small curve."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from sys import intern

import numpy as np

from nbtools.errors import NbtoolsError
from nbtools.metrics.direction import direction_of
from nbtools.run.compare import Ends, Facts, facts_of
from nbtools.run.curves import SMALL_BYTES, Curves, num_bytes, quick_curves, read_curves
from nbtools.run.listing import Rows, RunRow

_NUM_POINTS = 42
"""Number of points in a sparkline."""


@dataclass(frozen=True)
class RunValues:
    """Values of a run that the list of runs lacks, read from its other files."""

    metric: str = ""
    """The metric of the sparkline, of the best and of the last value."""
    points: Sequence[float] = ()
    ends: Mapping[str, Ends] = field(default_factory=dict)
    """Last and best value of each metric."""
    fields: Facts = field(default_factory=dict)


def run_values(rows: Rows, row: RunRow) -> RunValues:
    """Read the values of a run; the curves of an ended one come from the cache, or fill it.

    Of a long active run, which is read every few seconds, only the first and last rows are read.
    """
    with suppress(OSError, NbtoolsError):
        run, points = rows.run(row.id), list[float]()
        curves = read_curves(run) if row.is_final else quick_curves(run)[0]
        if name := _chosen(curves):
            cuts = np.linspace(0, len(curves[name]), min(_NUM_POINTS, len(curves[name])) + 1).astype(int)
            points = [float(mean) for mean in curves[name].reduced(cuts).mean if np.isfinite(mean)]
        ends = {intern(metric): sketch.ends for metric, sketch in curves.items()}
        # Thousands of runs share most of their fields.
        facts = {intern(key): intern(value) for key, value in facts_of(run).items() if key != "code.script"}
        return RunValues(name, points, ends, facts)
    return RunValues()


def takes_long(rows: Rows, row: RunRow) -> bool:
    """Whether the values of a run are not read in milliseconds."""
    with suppress(OSError, NbtoolsError):
        return num_bytes(rows.run(row.id)) > SMALL_BYTES
    return False


def _chosen(curves: Curves) -> str:
    """Return the metric to show: an evaluation's loss, else a loss, else one with a best value."""

    def rank(name: str) -> tuple[bool, ...]:
        is_loss, is_eval = name.endswith("loss"), name.startswith(("eval", "val"))
        return direction_of(name) is None, name != "eval/loss", not (is_loss and is_eval), not is_loss, not is_eval

    return min(curves, key=rank, default="")
