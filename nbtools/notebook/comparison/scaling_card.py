"""The scaling card of a comparison: throughput and parallel efficiency of runs with different numbers of processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nbtools.errors import plural
from nbtools.notebook.comparison.overlay import role
from nbtools.notebook.plots.decimation import number
from nbtools.run.curves import Curves


@dataclass(frozen=True)
class Scaling:
    """Throughput of a run, and its parallel efficiency."""

    nproc: int
    rate: float | None
    """Throughput of all processes in `unit`; None if the run has not recorded enough rows."""
    unit: str
    efficiency: float | None
    """Rate per process against that of the run with the fewest processes."""
    data_wait: float | None
    """Share of the time in which the slowest process waits for data."""
    peer_wait: float | None
    """Share of the time in which a process waits for the last one, mean of all; None for a single process."""


def scaling_of(nproc: Sequence[int | None], curves: Sequence[Curves]) -> list[Scaling | None]:
    """Return the scaling of runs, None for one whose processes are not recorded; empty unless the numbers differ."""
    if len({count for count in nproc if count}) < 2:
        return []
    has_samples = all(
        _pace(one, "samples") is not None for one, count in zip(curves, nproc, strict=True) if count and one
    )
    unit = "samples" if has_samples else "steps"
    rates = [_pace(one, unit) if count else None for one, count in zip(curves, nproc, strict=True)]
    known = [(count, rate / count) for count, rate in zip(nproc, rates, strict=True) if count and rate]
    smallest = min(known, default=(0, 0.0))[1]
    found: list[Scaling | None] = []
    for one, count, rate in zip(curves, nproc, rates, strict=True):
        if count is None:
            found.append(None)
            continue
        efficiency = rate / count / smallest if rate and smallest else None
        found.append(Scaling(count, rate, f"{unit}/s", efficiency, _mean(one, "data_wait"), _mean(one, "peer_wait")))
    return found


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


def scaling_rows(
    names: Sequence[str], nproc: Sequence[int | None], curves: Sequence[Curves]
) -> tuple[list[list[str]], str]:
    """Return the rows of the card as HTML, the heading first, and a note; no rows unless two runs can be compared.

    Args:
        names: HTML of each run's name.
        nproc: processes of each run; None if not recorded.
        curves: the metrics of each run.
    """
    found = scaling_of(nproc, curves)
    rows = [["run", "processes", "throughput", "efficiency", "waiting for data", "for other processes"]]
    for index, (cell, one) in enumerate(zip(names, found, strict=False)):
        if one is None:
            continue
        rate = "not yet known" if one.rate is None else f"{number(one.rate)} {one.unit}"
        waits = ["not recorded" if wait is None else f"{wait:.0%}" for wait in (one.data_wait, one.peer_wait)]
        waits[1] = "–" if one.nproc == 1 else waits[1]
        rows.append([cell, str(one.nproc), rate, _bar(one.efficiency, index), *waits])
    if len(rows) < 3:
        return [], ""
    least = min(one.nproc for one in found if one)
    return rows, (
        f"efficiency: throughput per process against the run on {plural(least, 'process')}; 100% is linear scaling"
    )


def _bar(share: float | None, index: int) -> str:
    if share is None:
        return "not yet known"
    return (
        "<span style='display:inline-block;width:80px;height:7px;border-radius:3px;background:rgba(127,127,127,.18);"
        f"margin-right:8px'><span class='nbtools-{role(index)[0]}' style='display:block;height:7px;border-radius:3px;"
        f"background:currentColor;width:{min(100, 100 * share):.0f}%'></span></span>{share:.0%}"
    )
