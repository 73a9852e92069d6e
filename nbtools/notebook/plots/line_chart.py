"""Draws curves over another axis than steps, such as the return of each episode, into one panel of a figure."""

from collections.abc import Sequence

import numpy as np

from nbtools.notebook.plots.charts import OTHERS
from nbtools.notebook.plots.decimation import Floats, is_lone, ticks
from nbtools.notebook.plots.figure import RunFigure, plain
from nbtools.rundir.media import MediaItem

HEIGHT = 250
"""Height of the picture in CSS pixels; the width is that of the panel's picture."""
_NUM_EARLIER = 6
_LARGEST = 1e300


def draw_series(item: MediaItem, *, dark: bool, earlier: Sequence[MediaItem] = ()) -> bytes:
    """Draw the curves of an item as a PNG, with those of its newest six `earlier` showings, oldest first, behind them.

    The older a showing, the fainter are its curves.
    """
    figure = RunFigure(HEIGHT, dark=dark, titled=False)
    (panel,) = figure.lay_out(1)
    curves = _curves(item)
    behind = [_curves(showing) for showing in earlier[-_NUM_EARLIER:]]
    if not curves:
        panel.say("no values yet")
        return figure.png()
    every = [curve for showing in (curves, *behind) for curve in showing]
    x, y = _limits([x for _, x, _ in every]), _limits([y for _, _, y in every])
    panel.draw_axes(plain(item.y_label, 40), x, y, ticks(*x, 9), ticks(*y, 5), plain(item.x_label, 60))
    colours = ("line", "evaluation", *OTHERS)
    colour_of = dict(zip((name for name, _, _ in curves), colours, strict=False))
    for age, showing in enumerate(reversed(behind)):
        for name, xs, ys in showing:
            if name in colour_of:
                look = {"colour": colour_of[name], "linewidth": 1.2, "alpha": 0.4 * 0.7**age}
                panel.add("raw", xs, ys, zorder=2, clip_box=None, **look)
    for (_, xs, ys), colour in zip(curves, colours, strict=False):
        panel.add("line", xs, ys, colour=colour, linewidth=1.8, marker="o" if is_lone(xs, ys) else "none")
    entries = [(plain(name, 24), {"colour": colour, "linestyle": "-"}) for name, colour in colour_of.items()]
    if (hidden := len(curves) - len(colours)) > 0:
        entries.append((f"and {hidden} more", {"colour": "muted", "linestyle": "none"}))
    panel.draw_legend(entries)
    return figure.png()


def _curves(item: MediaItem) -> list[tuple[str, Floats, Floats]]:
    """Return name, x and y of each curve with both coordinates; non-finite values are gaps."""
    curves = []
    for name, values in (item.lines or {}).items():
        number = min(len(item.x), len(values))
        x, y = np.asarray(item.x[:number], float), np.asarray(values[:number], float)
        y = np.where((np.abs(x) < _LARGEST) & (np.abs(y) < _LARGEST), y, np.nan)
        if np.isfinite(y).any():
            curves.append((name, x, y))
    return curves


def _limits(columns: Sequence[Floats]) -> tuple[float, float]:
    every = np.concatenate(columns)
    every = every[np.abs(every) < _LARGEST]
    low, high = float(every.min()), float(every.max())
    margin = 0.04 * (high - low) or max(abs(high), 1.0) * 0.5
    return low - margin, high + margin
