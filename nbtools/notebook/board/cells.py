"""Columns of the list of runs: what is read for them, values, order, HTML, and groups with mean and range.

A column is one of `USUAL`, the name of a field, that of a metric (its last value), or `best` and that of a metric.
Every text in HTML is escaped.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from sys import intern
from typing import Any, NamedTuple

import numpy as np

from nbtools.errors import NbtoolsError, duration, literal
from nbtools.metrics.direction import direction_of
from nbtools.notebook.html_parts import CUT, MUTED, STATES, sparkline
from nbtools.notebook.plots.decimation import number
from nbtools.run.compare import Facts, facts_of
from nbtools.run.curves import Curves, Ends, quick_curves
from nbtools.run.listing import RunRow
from nbtools.run.records import local_time
from nbtools.run.run import Run

USUAL = "state", "curve", "best", "last", "steps", "took", "age", "recipe"
"""The columns that every run has, after that of its name, `run`."""
_OF_METRIC = "curve", "best", "last"
_SMALL = f"{CUT}{MUTED}font-size:11px;"

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
    is_whole: bool = True
    """False if rows of an ended run are unread."""


NO_VALUES = RunValues()
"""The values of a run that was not read, or cannot be."""
Values = Mapping[str, RunValues]
"""Values by the id of the run; those of runs that were not read yet are missing."""


def run_values(run: Run, row: RunRow) -> RunValues:
    """Read the values of a run in milliseconds: of a long one that is not cached, from its first and last rows."""
    with suppress(OSError, NbtoolsError):
        points: list[float] = []
        curves, missing = quick_curves(run)
        if name := _chosen(curves):
            cuts = np.linspace(0, len(curves[name]), min(_NUM_POINTS, len(curves[name])) + 1).astype(int)
            points = [float(mean) for mean in curves[name].reduced(cuts).mean if np.isfinite(mean)]
        ends = {intern(metric): sketch.ends for metric, sketch in curves.items()}
        # Thousands of runs share most of their fields.
        facts = {intern(key): intern(value) for key, value in facts_of(run).items() if key != "code.script"}
        return RunValues(name, points, ends, facts, is_whole=not (missing and row.is_final))
    return NO_VALUES


def _chosen(curves: Curves) -> str:
    """Return the metric to show: an evaluation's loss, else a loss, else one with a best value."""

    def rank(name: str) -> tuple[bool, ...]:
        is_loss, is_eval = name.endswith("loss"), name.startswith(("eval", "val"))
        return direction_of(name) is None, name != "eval/loss", not (is_loss and is_eval), not is_loss, not is_eval

    return min(curves, key=rank, default="")


def needs_values(column: str) -> bool:
    """Whether the order by a column needs values of all runs that are in no record."""
    return column in _OF_METRIC or column not in ("run", *USUAL)


def value_of(column: str, row: RunRow, found: RunValues) -> Any:
    """Return the value of a run in a column, a number where it is one; None without."""
    if not needs_values(column):
        of_row = {"state": row.state, "steps": row.step, "took": row.duration_s, "age": row.order}
        return of_row.get(column, (row.recipe or row.script) if column == "recipe" else row.name)
    if column in found.fields:
        return _as_number(found.fields[column])
    ends = found.ends.get(metric_in(column, found))
    return None if ends is None else ends.best if column.startswith("best") else ends.last


def metric_in(column: str, found: RunValues) -> str:
    return found.metric if column in _OF_METRIC else column.removeprefix("best ")


def _as_number(text: str) -> float | str:
    with suppress(ValueError):
        return float(text)
    return text


def is_falling(column: str, metric: str = "") -> bool:
    """Whether the usual order by a column has falling values: better and longer ones are first."""
    return column in ("steps", "took") or direction_of(metric or column.removeprefix("best ")) == "higher"


def sorted_rows(rows: Iterable[RunRow], values: Values, column: str, *, is_reversed: bool = False) -> list[RunRow]:
    """Return rows by a column, those without a value last; of different metrics, that of most runs is first."""
    num_runs = Counter(one.metric for one in values.values())
    known: list[tuple[bool, Any, str, RunRow]] = []
    without: list[RunRow] = []
    for row in rows:
        found = values.get(row.id, NO_VALUES)
        value, metric = value_of(column, row, found), metric_in(column, found)
        if value is None or value != value:
            without.append(row)
        elif isinstance(value, str):
            known.append((True, value.lower(), metric, row))
        else:
            known.append((False, -value if is_falling(column, metric) else value, metric, row))
    known.sort(key=lambda one: one[:2], reverse=is_reversed)
    known.sort(key=lambda one: (-num_runs[one[2]], one[2]))
    return [*(row for *_, row in known), *without]


class RunGroup(NamedTuple):
    """Runs with the same value of a field."""

    field: str
    value: str
    rows: Sequence[RunRow]

    @property
    def title(self) -> str:
        return f"{self.field.rpartition('.')[2]} {self.value}"

    def cell(self, column: str, values: Values) -> str:
        """Return the mean and the range of a column of numbers, as HTML; empty for several metrics."""
        every = [values.get(row.id, NO_VALUES) for row in self.rows]
        numbers = [value_of(column, row, found) for row, found in zip(self.rows, every, strict=True)]
        known = [value for value in numbers if isinstance(value, float | int) and math.isfinite(value)]
        if not known or len({metric_in(column, found) for found in every}) > 1:
            return ""
        text = duration if column == "took" else number
        ends = f"{text(min(known))} to {text(max(known))}" if max(known) > min(known) else ""
        return _two_lines(text(sum(known) / len(known)), ends)


def groups_of(rows: Sequence[RunRow], values: Values, field: str) -> list[RunGroup]:
    """Return groups of the runs with each value of a field, the numbers first; runs keep their order."""
    found: dict[str, list[RunRow]] = {}
    for row in rows:
        found.setdefault(values.get(row.id, NO_VALUES).fields.get(field, "–"), []).append(row)
    ordered = sorted(found, key=lambda text: (isinstance(value := _as_number(text), str), value))
    return [RunGroup(field, value, found[value]) for value in ordered]


def cell(column: str, row: RunRow, values: RunValues | None) -> str:
    """Return a cell as HTML."""
    found = values or NO_VALUES
    if column == "run":
        remark = " · ".join(filter(None, (*(f"#{tag}" for tag in row.tags), row.problem, row.note)))
        return f"<b>{_two_lines(row.name)}</b>{_two_lines('', row.id)}{_two_lines('', remark)}"
    if column == "state":
        sign, colour, word, _ = STATES.get(row.state, ("!", "#d13a1f", "Unreadable", ""))
        return f"<span aria-hidden='true' style='color:{colour};font-weight:700'>{sign}</span> {word}"
    if column == "curve":
        points = found.points
        label = f"{found.metric} from {points[0]:.4g} to {points[-1]:.4g}" if len(points) > 1 else ""
        return sparkline(points, (min(points), max(points)), label=label) if label else ""
    if column == "age":
        age = "" if row.started_at is None else _age(time.time() - row.started_at)
        return f"<span title='{literal(local_time(row.started_at))}'>{age}</span>"
    value, below = value_of(column, row, found), found.metric if column == "best" else ""
    if column == "steps":
        value, below = None if value is None else f"{value:,}", f"of {row.total_steps:,}" if row.total_steps else ""
    elif column == "took":
        value = None if value is None else _age(value)
    elif column in found.fields:
        value = found.fields[column]  # as it was written
    value = ("" if values else "…") if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return _two_lines(value, below)


def _two_lines(text: str, below: str = "") -> str:
    first = f"<div style='{CUT}' title='{literal(text)}'>{literal(text)}</div>" if text else ""
    return first + (f"<div style='{_SMALL}' title='{literal(below)}'>{literal(below)}</div>" if below else "")


def _age(seconds: float) -> str:
    return duration(seconds if seconds < 3600 else seconds // 60 * 60)
