"""Draws curves over another axis than steps, such as the return of each episode, as a picture with one chart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbtools.errors import plural
from nbtools.notebook.plots.charts import OTHERS, Chart, Charts, Trace, chart_of
from nbtools.notebook.plots.decimation import Floats, is_lone, ticks
from nbtools.notebook.plots.figure import RunFigure, plain
from nbtools.rundir.media import MediaItem

HEIGHT = 250
"""Height of the picture in CSS pixels; the width is that of the panel's picture."""
_NUM_EARLIER = 6
_LARGEST = 1e300
_COLOURS = ("line", "evaluation", *OTHERS)


def draw_series(item: MediaItem, *, earlier: Sequence[MediaItem] = ()) -> bytes:
    """Draw the curves of an item as a PNG, with those of its newest six `earlier` showings, oldest first, behind them.

    The older a showing, the fainter are its curves.
    """
    figure, (now, hidden) = RunFigure(HEIGHT, titled=False), _traces(item)
    if not now:
        return figure.png(Charts(message="no values yet"))
    colours = {trace.name: trace.colour for trace in now}
    behind = []
    for age, showing in enumerate(reversed(earlier[-_NUM_EARLIER:])):
        for one in _traces(showing)[0]:
            if colour := colours.get(one.name):
                behind.append(replace(one, label="", width=1.2, opacity=0.4 * 0.7**age, colour=colour))
    every = np.concatenate([trace.x for trace in (*now, *behind)])
    every = every[np.abs(every) < _LARGEST]
    low, high = float(every.min()), float(every.max())
    margin = 0.04 * (high - low) or max(abs(high), 1.0) * 0.5
    limits = low - margin, high + margin
    (size,) = figure.sizes(1)
    chart = chart_of(Chart("", item.y_label, series=[*behind, *now]), limits, "step", size)
    chart = replace(chart, x_ticks=ticks(*limits, 9))
    note = f"{plural(hidden, 'more curve')} not drawn" if hidden else ""
    return figure.png(Charts(limits=limits, charts=[chart], unit=plain(item.x_label, 60), note=note))


def _traces(item: MediaItem) -> tuple[list[Trace], int]:
    """Return the first five curves with values, whose non-finite values are gaps, and the number of the others."""
    curves: list[tuple[str, Floats, Floats]] = []
    for name, values in (item.lines or {}).items():
        number = min(len(item.x), len(values))
        x, y = np.asarray(item.x[:number], float), np.asarray(values[:number], float)
        y = np.where((np.abs(x) < _LARGEST) & (np.abs(y) < _LARGEST), y, np.nan)
        if np.isfinite(y).any():
            curves.append((name, x, y))
    traces = []
    for (name, x, y), colour in zip(curves, _COLOURS, strict=False):
        look: dict[str, Any] = {"name": name, "label": name, "value": "", "colour": colour, "width": 1.8}
        traces.append(Trace(x=x, low=y, high=y, mean=y, bold=y, dots=is_lone(x, y), **look))
    return traces, len(curves) - len(traces)
