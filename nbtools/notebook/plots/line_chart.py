"""Draws curves over something else than steps, such as the return of each episode, for the panel and for a page."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.transforms import Affine2D

from nbtools.notebook.plots.decimation import Floats, is_lone, ticks
from nbtools.notebook.plots.figure import WIDTH, RunFigure, line_of, plain, text_at
from nbtools.rundir.media import MediaItem

HEIGHT = 250
"""Of the picture, in CSS pixels; it is as wide as the panel's."""
_NUM_EARLIER = 6


def draw_series(item: MediaItem, *, dark: bool, earlier: Sequence[MediaItem] = ()) -> bytes:
    """Draw the curves of an item as a PNG in the manner of the panel's others; earlier showings lie faintly behind.

    Args:
        item: the newest showing.
        dark: for a dark page.
        earlier: showings before it, oldest first, of which the newest few are drawn: the older, the fainter.
    """
    figure = RunFigure(WIDTH, HEIGHT, dark=dark, titled=False)
    theme, css = figure.theme, Affine2D().scale(figure.scale)
    figure.figure.clear()
    write = partial(_write, figure, css)
    left, bottom, right, top = 56.0, 44.0, WIDTH - 16.0, HEIGHT - 34.0
    curves = _curves(item)
    behind = [_curves(showing) for showing in earlier[-_NUM_EARLIER:]]
    if not curves:
        write(WIDTH / 2, HEIGHT / 2, 12, theme.muted, "no values yet", "center")
        return figure.png()
    every = [curve for showing in (curves, *behind) for curve in showing]
    x_low, x_high = _limits([x for _, x, _ in every])
    y_low, y_high = _limits([y for _, _, y in every])
    width, height = (right - left) / (x_high - x_low), (top - bottom) / (y_high - y_low)
    place = Affine2D().translate(-x_low, -y_low).scale(width, height).translate(left, bottom).scale(figure.scale)
    y_ticks, x_ticks = ticks(y_low, y_high, 5), ticks(x_low, x_high, 9)
    rows = [[(x_low, value), (x_high, value)] for value, _ in y_ticks]
    figure.add(LineCollection(rows, colors=theme.grid, linewidths=1, transform=place, zorder=0))
    for value, label in y_ticks:
        write(left - 7, _at(value, y_low, y_high, bottom, top), 10.5, theme.muted, label, "right")
    for value, label in x_ticks:
        write(_at(value, x_low, x_high, left, right), bottom - 12, 10.5, theme.muted, label, "center")
    write((left + right) / 2, bottom - 32, 10.5, theme.muted, plain(item.x_label, 60), "center")
    write(16, top + 18, 12, theme.text, plain(item.y_label, 40), "left", "bold")
    at = left + 9 * len(plain(item.y_label, 40))
    colours = (theme.line, theme.evaluation, *theme.others)
    of_name = dict(zip((name for name, _, _ in curves), colours, strict=False))
    for age, showing in enumerate(reversed(behind)):
        for name, x, y in showing:
            if name in of_name:
                faint = figure.add(line_of(place, color=of_name[name], linewidth=1.2, zorder=2, alpha=0.4 * 0.7**age))
                faint.set_data(x, y)
    for (name, x, y), colour in zip(curves, colours, strict=False):
        curve = figure.add(
            line_of(place, color=colour, linewidth=1.8, zorder=3, marker="o" if is_lone(x, y) else "none")
        )
        curve.set_data(x, y)
        key = figure.add(line_of(css, color=colour, linewidth=2.2))
        key.set_data([at, at + 16], [top + 18, top + 18])
        label = plain(name, 24)
        write(at + 21, top + 18, 11, theme.text, label, "left")
        at += 38 + 7.2 * len(label)
    if (hidden := len(curves) - len(colours)) > 0:
        write(at, top + 18, 11, theme.muted, f"and {hidden} more", "left")
    return figure.png()


def _write(
    figure: RunFigure,
    css: Affine2D,
    x: float,
    y: float,
    size: float,
    colour: str,
    content: str,
    ha: Any,
    weight: str = "normal",
) -> None:
    figure.add(text_at(x, y, size, colour, css, ha, "center", weight)).set_text(content)


def _curves(item: MediaItem) -> list[tuple[str, Floats, Floats]]:
    found = [(name, *_points(item.x, values)) for name, values in (item.lines or {}).items()]
    return [(name, x, y) for name, x, y in found if np.isfinite(y).any()]


def _points(x: Sequence[float], y: Sequence[float]) -> tuple[Floats, Floats]:
    """The points of a curve as far as both coordinates are given; what is not finite is a gap."""
    number = min(len(x), len(y))
    xs, ys = np.asarray(x[:number], float), np.asarray(y[:number], float)
    is_sound = np.isfinite(xs) & (np.abs(xs) < 1e300) & np.isfinite(ys) & (np.abs(ys) < 1e300)
    return xs, np.where(is_sound, ys, np.nan)


def _limits(columns: Sequence[Floats]) -> tuple[float, float]:
    every = np.concatenate(columns)
    every = every[np.isfinite(every) & (np.abs(every) < 1e300)]
    low, high = float(every.min()), float(every.max())
    margin = 0.04 * (high - low) or max(abs(high), 1.0) * 0.5
    return low - margin, high + margin


def _at(value: float, low: float, high: float, start: float, end: float) -> float:
    return start + (value - low) / (high - low) * (end - start)
