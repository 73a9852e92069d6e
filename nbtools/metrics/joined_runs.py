"""The curves of programs that resumed one another, as one history."""

from collections.abc import Sequence

import numpy as np

from nbtools.metrics.columns import Column
from nbtools.metrics.history import History
from nbtools.rundir.json_files import MAX_STEP


def joined_runs(parts: Sequence[tuple[History, int]]) -> tuple[History, int]:
    """Join the rows of runs, oldest first, each with the step at which the next one resumed.

    Of a program that continues its count the rows after that step follow those of its parent up to it; others may be a
    copy, as in trainer_state.json. One whose count begins again is drawn after the rows of its parent: none of them is
    replaced.

    Returns:
        The history, and the number of steps by which the rows of the last run are shifted.
    """
    rows: dict[str, list[Column]] = {}
    shift, until = 0, MAX_STEP
    before: History | None = None
    for part, resumed_at in parts:
        first = _first_step(part)
        limit = -1
        if before is not None and first is not None:
            if first <= until and _begins_again(part, before):
                shift = last = _last_step(rows, shift + until)
            else:
                limit = until if until < MAX_STEP else first - 1
                last = shift + limit
            rows = {name: _between(columns, 0, last) for name, columns in rows.items()}
        for name, series in part.items():
            new = _between([series.steps, series.values, series.times], limit + 1, MAX_STEP)
            new[0] = new[0] + shift
            old = rows.get(name)
            rows[name] = new if old is None else [np.concatenate(pair) for pair in zip(old, new, strict=True)]
        before, until = part if first is not None else before, resumed_at
    result = History()
    for name, (steps, values, times) in rows.items():
        result.add(name, steps, values, times)
    result.version += sum(part.version for part, _ in parts)
    result.has_steps = all(part.has_steps for part, _ in parts)
    return result, shift


def _first_step(part: History) -> int | None:
    return min((int(series.steps[0]) for series in part.values()), default=None)


def _begins_again(part: History, before: History) -> bool:
    """Whether a run's steps start again from the beginning, and its rows do not contain its parent's."""
    first, first_before = _first_step(part), _first_step(before)
    if first is None or first_before is None or first > first_before:
        return False
    same = [
        np.isclose(
            series.values[0], before[name].values[before[name].steps == series.steps[0]], rtol=1e-3, equal_nan=True
        )
        for name, series in part.items()
        if name in before and series.steps[0] == first
    ]
    return not (same and all(len(found) and found.all() for found in same))


def _last_step(rows: dict[str, list[Column]], limit: int) -> int:
    steps = (steps[steps <= limit] for steps, _, _ in rows.values())
    return max((int(found[-1]) for found in steps if len(found)), default=0)


def _between(columns: list[Column], first: int, last: int) -> list[Column]:
    chosen = (columns[0] >= first) & (columns[0] <= last)
    return [column[chosen] for column in columns]
