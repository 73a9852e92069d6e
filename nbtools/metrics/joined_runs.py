"""The curves of programs that resumed one another, as one history."""

from collections.abc import Mapping, Sequence

import numpy as np

from nbtools.metrics.columns import Column, Series, Unit
from nbtools.metrics.history import History
from nbtools.rundir.json_files import MAX_STEP

_Curves = Mapping[str, Series]


def joined_runs(parts: Sequence[tuple[History, int]]) -> tuple[History, int]:
    """Join the rows of runs, oldest first, each with the step of the joined curve at which the next one resumed.

    A run's own rows always replace those of its parent. Of a program that continues its count they follow the parent's
    rows up to the resume; one whose count begins again is drawn from that step on. Only where its rows begin with those
    of its parent, as in trainer_state.json, they are a copy up to the resume, and the parent's stay.

    Returns:
        The history, and the number of steps by which the rows of the last run are shifted.
    """
    main: Unit = next((part.unit for part, _ in reversed(parts) if part), "step")
    units = dict.fromkeys([*(series.unit for part, _ in parts for series in part.values()), main])
    result, shifts = History(), dict[Unit, int]()
    for unit in units:
        chosen = [{name: series for name, series in part.items() if series.unit == unit} for part, _ in parts]
        # The steps of the resumes count in the unit of the run.
        resumes = [at if unit == main else MAX_STEP for _, at in parts]
        rows, shifts[unit] = _joined([*zip(chosen, resumes, strict=True)])
        for name, (steps, values, times) in rows.items():
            result.add(name, steps, values, times, unit=unit)
    result.version += sum(part.version for part, _ in parts)
    result.num_unread_bytes = sum(part.num_unread_bytes for part, _ in parts)
    return result, shifts[main]


def _joined(parts: Sequence[tuple[_Curves, int]]) -> tuple[dict[str, list[Column]], int]:
    """Return the joined rows of curves of one unit, and the shift of the last part."""
    rows: dict[str, list[Column]] = {}
    shift, until = 0, MAX_STEP
    drawn: list[tuple[_Curves, int, int]] = []
    for part, resumed_at in parts:
        first, limit, last = _first_step(part), -1, 0
        while len(drawn) > 1 and until <= drawn[-1][2]:  # the checkpoint is of an earlier run
            drawn.pop()
        if drawn and first <= MAX_STEP:
            before, shift, _ = drawn[-1]
            if first > _first_step(before) or first + shift > until:
                last = min(until, first + shift - 1)
            elif _begins_like(part, before):
                last, limit = until, until - shift
            else:
                end = max((int(steps[-1]) for steps, _, _ in rows.values() if len(steps)), default=0)
                shift = last = until if until < MAX_STEP else end + (first == 0)
            rows = {name: _between(columns, 0, last) for name, columns in rows.items()}
        for name, series in part.items():
            new = _between([series.steps, series.values, series.times], limit + 1, MAX_STEP)
            new[0] = new[0] + shift
            old = rows.get(name)
            rows[name] = new if old is None else [np.concatenate(pair) for pair in zip(old, new, strict=True)]
        if part:
            drawn.append((part, shift, last))
        until = resumed_at
    return rows, shift


def _first_step(part: _Curves) -> int:
    return min((int(series.steps[0]) for series in part.values()), default=MAX_STEP + 1)


def _begins_like(part: _Curves, before: _Curves) -> bool:
    """Whether the first rows of a run are those of its parent."""
    first, same = _first_step(part), []
    for name, series in part.items():
        if name in before and series.steps[0] == first:
            parents = before[name].values[before[name].steps == first]
            same.append(np.isclose(series.values[0], parents, rtol=1e-3, equal_nan=True))
    return bool(same) and all(len(found) and found.all() for found in same)


def _between(columns: list[Column], first: int, last: int) -> list[Column]:
    chosen = (columns[0] >= first) & (columns[0] <= last)
    return [column[chosen] for column in columns]
