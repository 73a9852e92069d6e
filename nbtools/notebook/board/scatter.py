"""The scatter of a board: a point per run at its values of two columns, which shows or hides the curves of the run."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbtools.errors import literal, plural
from nbtools.notebook.board.cells import Values, metric_in, value_of
from nbtools.notebook.comparison.overlay import role
from nbtools.notebook.html_parts import NO_FORMULAS, eye
from nbtools.notebook.plots.charts import INK, PALETTE, Ticks, limits_of
from nbtools.notebook.plots.decimation import Floats, log_ticks, number, ticks
from nbtools.run.listing import RunRow

_MOST_POINTS = 1000
_NUM_TICKS = 6
_LOG_FROM = 30
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def scatter_html(rows: Sequence[RunRow], values: Values, slots: Mapping[str, int], columns: tuple[str, str]) -> str:
    """Return runs as HTML, in their colours where they are drawn.

    Args:
        rows: the runs, of which those that have both values are shown.
        values: what was read of them.
        slots: the number of the colour of each run that is drawn.
        columns: those of the x axis and of the y axis; see `cells`.
    """
    every = [(row, values[row.id]) for row in rows if row.id in values]
    metrics = [tuple(metric_in(column, found) for column in columns) for _, found in every]
    usual = Counter(metrics).most_common(1)[0][0] if metrics else columns
    told = zip(columns, usual, strict=True)
    names = [column if metric == column.removeprefix("best ") else f"{column} {metric}" for column, metric in told]
    alike = (one for one, metric in zip(every, metrics, strict=True) if metric == usual)
    placed = ((row, [value_of(column, row, found) for column in columns]) for row, found in alike)
    points = [(row, at) for row, at in placed if all(map(_is_known, at))][:_MOST_POINTS]
    title = f"{names[1]} over {names[0]}, {len(points):,} of {plural(len(rows), 'run')}"
    parts = []
    if points:
        (xs, across), (ys, up) = (_axis([at[i] for _, at in points]) for i in (0, 1))
        parts += [f"<i style='bottom:{place:.2%}'><span>{literal(label)}</span></i>" for place, label in up]
        parts += [f"<b style='left:{place:.2%}'>{literal(label)}</b>" for place, label in across]
        for (row, at), left, bottom in zip(points, xs, ys, strict=True):
            colour = PALETTE[role(slots[row.id])[0]] if row.id in slots else INK
            look = f"style='left:{left:.2%};bottom:{bottom:.2%};background:{colour}'"
            label = ", ".join(f"{name} {_text(value)}" for name, value in zip(names, at, strict=True))
            parts.append(eye("draw", row.id, f"{row.name} {row.id}: {label}", look, is_drawn=row.id in slots))
    box = f"<div class='nbt-scatter' role='group' aria-label='{literal(title)}'>{''.join(parts)}</div>"
    return f"<div class='nbt-board {NO_FORMULAS}'><p role='status'>{literal(title)}</p>{box}</div>"


def _is_known(value: Any) -> bool:
    return isinstance(value, str) or (value is not None and math.isfinite(value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def _axis(values: Sequence[Any]) -> tuple[Floats, Ticks]:
    """Return the places of values on an axis from 0 to 1, and its ticks: of texts, each is one."""
    if any(isinstance(value, str) for value in values):
        texts = sorted({*map(_text, values)})
        found, low, high = np.array([texts.index(_text(value)) for value in values], float), -0.5, len(texts) - 0.5
        shown: Ticks = [(float(i), text) for i, text in enumerate(texts)]
    else:
        found = np.array(values, float)
        is_log = bool(found.min() > 0 and found.max() >= _LOG_FROM * found.min())
        low, high = limits_of(found, is_log=is_log)
        shown = (log_ticks if is_log else ticks)(low, high, _NUM_TICKS)
        found = np.log10(found) if is_log else found
    return (found - low) / (high - low), [((at - low) / (high - low), label) for at, label in shown]
