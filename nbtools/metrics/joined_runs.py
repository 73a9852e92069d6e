"""The curves of programs that resumed one another, as one history."""

from collections.abc import Mapping, Sequence

import numpy as np

from nbtools.metrics.columns import Column
from nbtools.metrics.history import History
from nbtools.rundir.json_files import MAX_STEP


def joined_runs(parts: Sequence[tuple[History, int]]) -> tuple[History, int]:
    """Join the rows of runs, oldest first, each with the step of the joined curve at which the next one resumed.

    Of a program that continues its count the rows after that step follow those of its parent up to it; others may be a
    copy, as in trainer_state.json. One whose count begins again is drawn from that step on.

    Returns:
        The history, and the number of steps by which the rows of the last run are shifted.
    """
    rows: dict[str, list[Column]] = {}
    shift, until = 0, MAX_STEP
    drawn: list[tuple[History, int, int]] = []
    root = next((step for part, _ in parts if (step := _first_step(part)) is not None), 0)
    for part, resumed_at in parts:
        first, limit, last = _first_step(part), -1, 0
        while len(drawn) > 1 and until <= drawn[-1][2]:  # the checkpoint is of an earlier run
            drawn.pop()
        if drawn and first is not None:
            before, shift, _ = drawn[-1]
            if first + shift <= until and _begins_again(part, before):
                shift = last = _end_of(rows, until, first)
            else:
                if until < MAX_STEP and first + shift - until > max(_distance(rows), root):
                    shift = until + root - first  # it took its first epoch, `Epoch 4 [1/626]`, for the fourth after 0
                last = until - (first + shift == until) if until < MAX_STEP else first + shift - 1
                limit = last - shift
            rows = {name: _between(columns, 0, last) for name, columns in rows.items()}
        for name, series in part.items():
            new = _between([series.steps, series.values, series.times], limit + 1, MAX_STEP)
            new[0] = new[0] + shift
            old = rows.get(name)
            rows[name] = new if old is None else [np.concatenate(pair) for pair in zip(old, new, strict=True)]
        if first is not None:
            drawn.append((part, shift, last))
        until = resumed_at
    result, units = History(), {name: series.unit for part, _ in parts for name, series in part.items()}
    for name, (steps, values, times) in rows.items():
        result.add(name, steps, values, times, unit=units[name])
    result.version += sum(part.version for part, _ in parts)
    result.has_steps = all(part.has_steps for part, _ in parts if part)
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


def _end_of(rows: dict[str, list[Column]], until: int, first: int) -> int:
    """Return the step at which a run resumed whose count begins again at `first`: `until`, if rows reach up to it.

    They may end before it by less than the distance of two rows: lines that are printed every few steps.
    """
    last = max((int(steps[-1]) for steps, _, _ in rows.values() if len(steps)), default=0)
    return until if until <= last + _distance(rows) else last + (first == 0)


def _distance(rows: Mapping[str, list[Column]]) -> int:
    """Return the distance of the last two rows; 0 if there are none."""
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(steps for steps, _, _ in rows.values())]))
    return int(steps[-1] - steps[-2]) if len(steps) > 1 else 0


def _between(columns: list[Column], first: int, last: int) -> list[Column]:
    chosen = (columns[0] >= first) & (columns[0] <= last)
    return [column[chosen] for column in columns]
