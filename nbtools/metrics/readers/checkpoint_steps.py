"""The steps of a program's checkpoints, from the counts in their names and the rows around their times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint

_LOG_TIMES_DIFFER_S: Final = 1.0
"""Largest difference between a printed line's time and the recorded one."""


class _Around(NamedTuple):
    first: int
    last: int
    estimate: int


def with_steps(
    found: Sequence[ForeignCheckpoint], own: History, printed: LogMetrics, shift: int
) -> list[ForeignCheckpoint]:
    """Return the checkpoints of a run with their steps on the joined curve.

    The numbers in their names count epochs or steps if that fits the times of all files. Else a step is that of the
    last row before the file changed, and an estimate; without rows it is the number.

    Args:
        found: the checkpoints.
        own: the rows of this run alone.
        printed: the metrics in its log.
        shift: the number of steps by which its rows are shifted on the joined curve.
    """
    around = {i: limits for i, one in enumerate(found) if (limits := _steps_around(own, printed, one.time))}
    numbers = {i: one.number for i, one in enumerate(found) if one.step is None and one.number is not None}
    fitting: Mapping[int, int] = (
        {} if around else {i: number for i, number in numbers.items() if not found[i].is_of_epoch}
    )
    if numbers.keys() <= around.keys():
        are_epochs = any(found[i].is_of_epoch for i in numbers)
        for steps in _readings(numbers, around, printed, shift, are_epochs=are_epochs):
            if all(around[i].first <= step <= around[i].last for i, step in steps.items()):
                fitting = steps
                break
    placed = []
    for i, one in enumerate(found):
        step, is_estimate = one.step, False
        if step is not None and i in around:  # a program counts from its first run on, or from the resume on
            own_step = step + shift + printed.begins_at
            step = min(step, own_step, key=lambda each: abs(each - shift - around[i].estimate))
        elif step is None and i in fitting:
            step = fitting[i] + shift
        elif step is None and i in around:
            step, is_estimate = around[i].estimate + shift, True
        placed.append(replace(one, step=step, is_estimate=is_estimate))
    return placed


def _readings(
    numbers: Mapping[int, int], around: Mapping[int, _Around], printed: LogMetrics, shift: int, *, are_epochs: bool
) -> Iterator[dict[int, int]]:
    """Yield the steps of numbers that count epochs which have ended or not begun, or steps, the most likely first."""
    if (loop := printed.epoch_steps) is not None:
        first, length = loop
        for offset in (1, 0):
            yield {i: (number + offset - first) * length for i, number in numbers.items()}
    is_narrow = all(2 * (around[i].last - around[i].first) <= number for i, number in numbers.items())
    if printed.counts == "epoch" or (is_narrow and not are_epochs):
        yield {i: number - shift for i, number in numbers.items()}
        yield dict(numbers)


def _steps_around(own: History, printed: LogMetrics, when: float) -> _Around | None:
    """Return which steps a file of this time may be of: those up to the next row, or to one beyond the last."""
    before, after = printed.times_around(when)
    estimate = own.step_at(when + _LOG_TIMES_DIFFER_S) if own.has_steps else None
    if estimate is None:
        return None
    every = own.values()
    later = [int(steps[0]) for series in every if len(steps := series.steps[series.times > after])]
    steps = np.unique(np.concatenate([series.steps for series in every]))
    beyond = int(2 * steps[-1] - steps[-2]) if len(steps) > 1 else estimate
    return _Around(own.step_at(before) or 0, min(later, default=beyond), estimate)
