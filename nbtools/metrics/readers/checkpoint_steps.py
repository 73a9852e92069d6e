"""The steps of a program's checkpoints on its curve: exact where a name says them, else about those of their times."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nbtools.metrics.history import History
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint


def with_steps(found: Sequence[ForeignCheckpoint], own: History, shift: int) -> list[ForeignCheckpoint]:
    """Return the checkpoints of a run with their steps on the joined curve, in the unit that it counts.

    A name has steps, or epochs where the curve counts epochs. Else the step is that of the row nearest to the time of
    the file, and an estimate: the time of a printed line is known to a second.

    Args:
        found: the checkpoints.
        own: the rows of this run alone.
        shift: the number of steps by which its rows are shifted on the joined curve.
    """
    counted = [series for series in own.values() if series.unit == own.unit and len(series.steps)]
    if not own.has_steps or not counted:
        return [*found]
    longest = max(counted, key=lambda series: len(series.steps))
    placed = []
    for one in found:
        gaps = np.nan_to_num(np.abs(longest.times - one.time), nan=np.inf)
        about = int(longest.steps[gaps.argmin()])
        step = one.step if own.unit == "step" else None
        if own.unit == "epoch" and one.epoch is not None and abs(one.epoch - about) <= 1:
            step = one.epoch
        if step is None:
            placed.append(replace(one, step=about + shift, is_estimate=True))
        else:  # a program counts from its first run on, or from the resume on
            is_of_resume = abs(step - about) < abs(step - about - shift)
            placed.append(replace(one, step=step + shift * is_of_resume))
    return placed
