"""The steps of a program's checkpoints on its curve: exact where a name says them, else about those of their times."""

from collections.abc import Sequence
from dataclasses import replace

from nbtools.metrics.history import History
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint


def with_steps(found: Sequence[ForeignCheckpoint], own: History, shift: int) -> list[ForeignCheckpoint]:
    """Return the checkpoints of a run with their steps on the joined curve, in the unit that it counts.

    A name has steps, or epochs where the curve counts epochs. Else the step is that of the last row before the file
    changed, or of the first one, and an estimate.

    Args:
        found: the checkpoints.
        own: the rows of this run alone.
        shift: the number of steps by which its rows are shifted on the joined curve.
    """
    placed = []
    firsts = [int(series.steps[0]) for series in own.values() if series.unit == own.unit] if own.has_steps else []
    for one in found:
        before = own.step_at(one.time)
        about = min(firsts, default=None) if before is None or not firsts else before
        step = one.step if about is None or own.unit == "step" else None
        if about is not None and own.unit == "epoch" and one.epoch is not None and abs(one.epoch - about) <= 1:
            step = one.epoch
        if about is None:
            placed.append(one)
        elif step is None:
            placed.append(replace(one, step=about + shift, is_estimate=True))
        else:  # a program counts from its first run on, or from the resume on
            counts = {abs(each - about - shift): each for each in (step + shift, step)}
            placed.append(replace(one, step=counts[min(counts)]))
    return placed
