"""The scaling card of a comparison: throughput and parallel efficiency of runs with different numbers of processes."""

from collections.abc import Sequence

import numpy as np

from nbtools.errors import plural
from nbtools.notebook.plots.decimation import number
from nbtools.run.curves import Curves

_HEAD = ["run", "processes", "throughput", "efficiency", "waiting for data", "for other processes"]
_WAITS = "data_wait", "peer_wait"


def scaling_rows(
    names: Sequence[str], nproc: Sequence[int | None], curves: Sequence[Curves]
) -> tuple[list[list[str]], str]:
    """Return the rows of the card as HTML, the heading first, and a note; no rows unless two runs can be compared.

    Throughput is that of all processes; efficiency, the throughput per process against that of the fewest processes.

    Args:
        names: HTML of each run's name.
        nproc: processes of each run; None if not recorded.
        curves: the metrics of each run.
    """
    known = [(count, index) for index, count in enumerate(nproc) if count]
    if len({count for count, _ in known}) < 2:
        return [], ""
    has_samples = all(_pace(curves[index], "samples") is not None for _, index in known if curves[index])
    unit = "samples" if has_samples else "steps"
    rates = {index: _pace(curves[index], unit) for _, index in known}
    _, least = min(((count, rate / count) for count, index in known if (rate := rates[index])), default=(0, 0.0))
    rows = [_HEAD]
    for count, index in known:
        rate, own = rates[index], curves[index]
        efficiency = rate / count / least if rate else None
        # The slowest process's wait for data, and the mean wait of all for the last one.
        waits = ["not recorded" if (wait := _mean(own, name)) is None else f"{wait:.0%}" for name in _WAITS]
        waits[1] = "–" if count == 1 else waits[1]
        told = f"{number(rate)} {unit}/s" if rate else "not yet known"
        share = "not yet known" if efficiency is None else f"{efficiency:.0%}"
        rows.append([names[index], str(count), told, share, *waits])
    fewest = plural(min(count for count, _ in known), "process")
    return rows, f"efficiency: throughput per process against the run on {fewest}; 100% is linear scaling"


def _pace(curves: Curves, unit: str) -> float | None:
    """Return the median pace between successive rows of the longest metric, so that pauses do not count."""
    if not curves:
        return None
    sketch = max(curves.values(), key=lambda one: one.counts.sum())
    work = np.diff(sketch.samples if unit == "samples" else sketch.steps)
    taken = np.diff(sketch.times)
    used = np.isfinite(work) & (taken > 0) & (work > 0)
    return float(np.median(work[used] / taken[used])) if used.any() else None


def _mean(curves: Curves, ending: str) -> float | None:
    for name, sketch in curves.items():
        known = np.isfinite(sketch.mean)
        if name.endswith(ending) and known.any():
            return float(np.average(sketch.mean[known], weights=sketch.counts[known]))
    return None
