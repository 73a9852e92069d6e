"""The curves of programs that resumed one another, as one history."""

from collections.abc import Sequence

import numpy as np

from nbtools.metrics.columns import Column
from nbtools.metrics.history import History


def joined(parts: Sequence[tuple[History, int]]) -> tuple[History, int]:
    """Join the rows of runs, oldest first, each with the step at which the next one resumed.

    A program that continues its count replaces the rows after that step, as a recipe does. One whose count begins again
    is drawn after the rows of its parent: none of them is replaced.

    Returns:
        The history, and the number of steps by which the rows of the last run are shifted.
    """
    rows: dict[str, list[Column]] = {}
    shift, until = 0, 0
    first_before: int | None = None
    for part, resumed_at in parts:
        first = min((int(series.steps[0]) for series in part.values()), default=None)
        if first is not None:
            if first_before is not None:
                begins_again = first <= until and first <= first_before
                kept = _last_step(rows, shift + until)
                shift = kept if begins_again else shift
                limit = kept if begins_again else min(shift + until, shift + first - 1)
                rows = {name: _up_to(columns, limit) for name, columns in rows.items()}
            for name, series in part.items():
                new = [series.steps + shift, series.values, series.times]
                old = rows.get(name)
                rows[name] = new if old is None else [np.concatenate(pair) for pair in zip(old, new, strict=True)]
            first_before = first
        until = resumed_at
    result = History()
    for name, (steps, values, times) in rows.items():
        result.add(name, steps, values, times)
    result.version += sum(part.version for part, _ in parts)
    result.has_steps = all(part.has_steps for part, _ in parts)
    return result, shift


def _last_step(rows: dict[str, list[Column]], limit: int) -> int:
    steps = (steps[steps <= limit] for steps, _, _ in rows.values())
    return max((int(found[-1]) for found in steps if len(found)), default=0)


def _up_to(columns: list[Column], limit: int) -> list[Column]:
    chosen = columns[0] <= limit
    return [column[chosen] for column in columns]
