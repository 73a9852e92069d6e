"""Columns of the list of runs: the value of each for a run, its order, its HTML, and groups with mean and range.

See `saved_layout.COLUMN` for their names. Every text in HTML is escaped.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nbtools.errors import literal, plural
from nbtools.metrics.direction import direction_of
from nbtools.notebook.board.row_values import RunValues
from nbtools.notebook.html_parts import BORDER, CUT, MUTED, STATES, sparkline
from nbtools.notebook.plots.decimation import duration, number
from nbtools.run.listing import RunRow
from nbtools.run.records import local_time

_SMALL = f"{CUT}{MUTED}font-size:11px;"
_NONE = RunValues()
Values = Mapping[str, RunValues]
"""Values by the id of the run; those of runs that were not read yet are missing."""


def title_of(column: str) -> str:
    """Return the title of a column."""
    kind, _, name = column.partition(":")
    return f"best {name}" if kind == "best" and name else name or kind.capitalize()


def is_number(column: str) -> bool:
    """Whether a column is one of numbers, which are aligned at their right."""
    return column.startswith(("best", "last", "steps", "took", "age", "metric"))


def needs_values(column: str) -> bool:
    """Whether the order by a column needs values of all runs that are in no record."""
    return ":" in column or column in ("best", "last", "curve")


def value_of(column: str, row: RunRow, values: RunValues | None) -> float | str | None:
    """Return the value of a run in a column, a number where it is one; None without."""
    kind, _, name = column.partition(":")
    found = values or _NONE
    if kind == "field":
        return _as_number(found.fields.get(name))
    name = name or found.metric
    if kind in ("best", "last", "curve", "metric"):
        ends = found.ends.get(name)
        return None if ends is None else ends.best if kind == "best" else ends.last
    of_row = {"state": row.state, "steps": row.step, "took": row.duration_s, "recipe": row.recipe or row.script}
    return of_row.get(kind, row.name)


def _as_number(text: str | None) -> float | str | None:
    try:
        return text if text is None else float(text)
    except ValueError:
        return text


def is_falling(column: str, *, is_reversed: bool) -> bool:
    """Whether the values of a column fall in an order: better, longer and later ones are first."""
    return (column in ("steps", "took") or direction_of(column.partition(":")[2]) == "higher") != is_reversed


def sorted_rows(rows: Iterable[RunRow], values: Values, column: str, *, is_reversed: bool = False) -> list[RunRow]:
    """Return rows by a column, those without a value last; of different metrics, that of most runs is first."""
    if column == "age":
        return sorted(rows, key=lambda row: row.order, reverse=is_reversed)
    num_runs = Counter(one.metric for one in values.values())
    found: list[tuple[RunRow, float | str, str]] = []
    without: list[RunRow] = []
    for row in rows:
        value, metric = value_of(column, row, values.get(row.id)), values.get(row.id, _NONE).metric
        if value is None or value != value:
            without.append(row)
        else:
            found.append((row, value, metric if column in ("best", "last", "curve") else column.partition(":")[2]))

    def size(one: tuple[RunRow, float | str, str]) -> tuple[bool, float, str]:
        _, value, metric = one
        if isinstance(value, str):
            return True, 0.0, value.lower()
        falls = column in ("steps", "took") or direction_of(metric) == "higher"
        return False, -value if falls else value, ""

    found.sort(key=size, reverse=is_reversed)
    found.sort(key=lambda one: (-num_runs[one[2]], one[2]))
    return [*(row for row, *_ in found), *without]


class RunGroup(NamedTuple):
    """Runs with the same value of a field."""

    field: str
    value: str
    rows: Sequence[RunRow]

    def cell(self, column: str, values: Values) -> str:
        """Return the mean and the range of a column of numbers, as HTML; empty for several metrics."""
        metrics = {values.get(row.id, _NONE).metric for row in self.rows}
        found = [value_of(column, row, values.get(row.id)) for row in self.rows]
        known = [value for value in found if isinstance(value, float | int) and math.isfinite(value)]
        if not known or (column in ("best", "last", "curve") and len(metrics) > 1):
            return ""
        text = duration if column == "took" else number
        ends = f"{text(min(known))} to {text(max(known))}" if max(known) > min(known) else ""
        return _two_lines(text(sum(known) / len(known)), ends)

    @property
    def title(self) -> str:
        return f"{self.field.rpartition('.')[2]} {self.value} · {plural(len(self.rows), 'run')}"


def groups_of(rows: Sequence[RunRow], values: Values, field: str) -> list[RunGroup]:
    """Return groups of the runs with each value of a field, the numbers first; runs keep their order."""
    found: dict[str, list[RunRow]] = {}
    for row in rows:
        found.setdefault(values.get(row.id, _NONE).fields.get(field, "–"), []).append(row)

    def key(value: str) -> tuple[bool, object]:
        size = _as_number(value)
        return isinstance(size, str), size

    return [RunGroup(field, value, found[value]) for value in sorted(found, key=key)]


def cell(column: str, row: RunRow, values: RunValues | None, differing: Sequence[str] = ()) -> str:
    """Return a cell as HTML; `differing` are fields to show beside the recipe."""
    found, kind = values or _NONE, column.partition(":")[0]
    if column == "run":
        tags = "".join(
            f" <span style='border:{BORDER};border-radius:8px;padding:0 6px'>{literal(tag)}</span>" for tag in row.tags
        )
        remark = " · ".join(part for part in (row.problem, row.note) if part)
        more = f"<div style='{_SMALL}' title='{literal(remark)}'>{tags} {literal(remark[:300])}</div>"
        return f"<b>{_two_lines(row.name)}</b>{_two_lines('', row.id)}{more if remark or tags else ''}"
    if column == "state":
        sign, colour, word, _ = STATES.get(row.state, ("!", "#d13a1f", "Unreadable", ""))
        return f"<span aria-hidden='true' style='color:{colour};font-weight:700'>{sign}</span> {word}"
    if column == "curve":
        points = found.points
        label = f"{found.metric} from {points[0]:.4g} to {points[-1]:.4g}" if len(points) > 1 else ""
        return sparkline(points, (min(points), max(points)), label=label) if label else ""
    if column == "recipe":
        pairs = [f"{name} {found.fields[name]}" for name in differing if name in found.fields]
        return _two_lines(row.recipe or row.script, ", ".join(pairs))
    if column == "steps":
        text = "" if row.step is None else f"{row.step:,}"
        return _two_lines(text, f"of {row.total_steps:,}" if row.total_steps else "")
    if column == "took":
        return "" if row.duration_s is None else _age(row.duration_s)
    if column == "age":
        age = "" if row.started_at is None else _age(time.time() - row.started_at)
        return f"<span title='{literal(local_time(row.started_at))}'>{age}</span>"
    value = value_of(column, row, values)
    text = "…" if values is None else found.fields.get(column.partition(":")[2], "") if kind == "field" else ""
    return _two_lines(
        f"{value:.4g}" if isinstance(value, float) and not text else text, found.metric * (column == "best")
    )


def _two_lines(text: str, below: str = "") -> str:
    first = f"<div style='{CUT}' title='{literal(text)}'>{literal(text)}</div>" if text else ""
    return first + (f"<div style='{_SMALL}' title='{literal(below)}'>{literal(below)}</div>" if below else "")


def _age(seconds: float) -> str:
    return duration(max(0.0, seconds) if seconds < 3600 else seconds // 60 * 60)
