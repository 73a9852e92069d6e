"""Draws charts with matplotlib, as the transparent PNG that a notebook stores, for light and dark pages.

The rcParams, which are the user's, would change the picture: what they stand for is set here. Without pyplot, layout
engine and mathtext, a metric called `$\\frac` is drawn literally.
"""

import io
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image  # matplotlib's own PNG writer

from nbtools.errors import plural
from nbtools.notebook.plots.charts import INK, MARGIN, NONE_OPEN, PALETTE, Chart, Charts, Size, Trace, charts_of, log10
from nbtools.notebook.plots.decimation import is_lone
from nbtools.notebook.plots.metric_names import legend_room, legend_width
from nbtools.notebook.plots.view import Limits, View, view_of
from nbtools.run.run import Run

WIDTH, HEIGHT = 900, 540
"""Size of the picture in CSS pixels."""
SCALE = 2
"""Device pixels per CSS pixel: sharp on high-density screens."""
RunLegend = Sequence[tuple[str, str, Sequence[float]]]
"""Label, colour and dash of each compared run."""
_NUM_PANELS = 4
_HEADER, _FOOTER, _LEGEND_ROW = 30, 20, 18
UNTITLED_HEIGHT = HEIGHT - _HEADER + 4
"""Height of a picture without the line that names the run."""
_MOST_RAW = 6
"""Most runs whose raw values are drawn as thin lines beside the smoothed ones."""
_LONGEST_RUN, _LONGEST_FOOTER = 46, 140
_SIGNS: Any = {"linestyle": "none", "clip_on": False}


def save_plot(run: Run, path: str | Path, **options: Any) -> Path:
    """Write the picture of a run as a PNG file; `options` are those of `view_of`.

    Raises:
        ValueError: the path does not end in `.png`.
    """
    path = png_path(path)
    path.write_bytes(picture_of(view_of(run, **options)))
    return path


def png_path(path: str | Path) -> Path:
    """Return the path of a picture to write; ValueError if it does not end in `.png`."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: the picture is a PNG, so the name must end in .png")
    return path


def picture_of(view: View) -> bytes:
    """Draw a view of a run; returns the bytes of a PNG."""
    figure = RunFigure()
    return figure.png(charts_of(view, figure.sizes), view.title, view.subtitle)


class RunFigure:
    """A picture of charts, at most four of them.

    Unless `titled`, no line at the top names the run: the panel shows the name in its header. `height` is in CSS
    pixels. `runs` are label, colour and dash of compared runs: one legend of them is for all charts.
    """

    def __init__(self, height: int = 0, *, titled: bool = True, runs: RunLegend = ()) -> None:
        longest = min(_LONGEST_RUN, max((len(label) for label, *_ in runs), default=0))
        self._runs, self._per_row = runs, max(1, int((WIDTH - 32) / (44 + 6.4 * longest)))
        legend = _LEGEND_ROW * -(-len(runs) // self._per_row)
        self.height = (height or (HEIGHT if titled else UNTITLED_HEIGHT)) + legend
        self._top = self.height - (_HEADER if titled else 4)
        self._header = self.height - self._top + legend + 4 * bool(runs)

    def sizes(self, num_charts: int) -> list[Size]:
        """Return the sizes of the plot areas; of more charts than four, those of the first."""
        return [(width, height) for _, _, width, height in self._places(min(num_charts, _NUM_PANELS))]

    def _places(self, num_panels: int) -> list[tuple[float, float, float, float]]:
        """Return left, bottom, width and height of each plot area, in two columns."""
        num_rows = max(1, -(-num_panels // 2))
        height, places = (self.height - self._header - _FOOTER) / num_rows, []
        across, along = MARGIN["left"] + MARGIN["right"], MARGIN["top"] + MARGIN["bottom"]
        for index in range(num_panels):
            row, column = divmod(index, 2)
            width = WIDTH / min(2, num_panels - 2 * row)
            left, bottom = column * width, _FOOTER + (num_rows - 1 - row) * height
            places.append((left + MARGIN["left"], bottom + MARGIN["bottom"], width - across, height - along))
        return places

    def png(self, charts: Charts, title: str = "", subtitle: str = "") -> bytes:
        """Draw charts; returns the bytes of a PNG with a palette, a third of one without."""
        canvas = FigureCanvasAgg(self.draw(charts, title, subtitle))
        canvas.draw()  # type: ignore[no-untyped-call]
        image = Image.fromarray(np.array(canvas.buffer_rgba()))  # type: ignore[no-untyped-call]
        del canvas.renderer  # cycles of references would keep its pixels for a while
        image = image.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=3)  # as fast as level 1, and smaller
        return buffer.getvalue()

    def draw(self, charts: Charts, title: str = "", subtitle: str = "") -> Figure:
        """Return a figure of the open charts; its last line names the axis, and counts the other charts."""
        # At 72 dpi a point is a pixel: sizes of fonts and lines are then in CSS pixels.
        figure = Figure((WIDTH / 72, self.height / 72), dpi=72 * SCALE, facecolor="none")
        figure.set_layout_engine("none")
        shown = charts.shown[:_NUM_PANELS]
        self._text(figure, 16, self.height - 17, 12, plain(title, 60), weight="bold")
        self._text(figure, WIDTH - 16, self.height - 17, 11, plain(subtitle, 90), ha="right")
        if self._runs:
            lines = [_line((), (), PALETTE[colour], dash, linewidth=2) for _, colour, dash in self._runs]
            labels = [plain(label, _LONGEST_RUN) for label, *_ in self._runs]
            place = {"loc": "upper left", "bbox_to_anchor": (16 / WIDTH, self._top / self.height)}
            self._legend(figure, lines, labels, ncols=self._per_row, **place)
        for chart, (left, bottom, width, height) in zip(shown, self._places(len(shown)), strict=True):
            axes = figure.add_axes((left / WIDTH, bottom / self.height, width / WIDTH, height / self.height))
            axes.set(xlim=charts.limits, ylim=chart.y)
            self._draw_axes(axes, chart)
            lines = [self._draw_trace(axes, trace, chart, charts.limits) for trace in chart.series]
            lines += self._draw_marks(axes, chart, 4 / height)
            name = plain(chart.title, 34)
            self._text(figure, left - MARGIN["left"] + 16, bottom + height + 17, 12.5, name, weight="bold")
            labels = [plain(f"{trace.label} {trace.value}".strip(), 36) for trace in chart.series]
            labels += ["checkpoint"] * bool(chart.marks)
            room = legend_room(name, width) + 16 * bool(chart.marks)  # a triangle is narrower than a line
            while len(labels) > 1 and legend_width(labels) > room:
                labels.pop()
            if not self._runs and any(labels):
                place = {"loc": "center right", "bbox_to_anchor": (1, 1 + 17 / height)}
                self._legend(axes, lines[: len(labels)], labels, ncols=len(labels), **place)
        if not shown:
            self._text(figure, WIDTH / 2, self.height / 2, 12, charts.message or NONE_OPEN, ha="center")
        else:
            axis = plain("; ".join(filter(None, (charts.x_label, charts.note))), _LONGEST_FOOTER)
            others = plain(_left_out(charts, shown), max(30, _LONGEST_FOOTER - len(axis)))
            self._text(figure, MARGIN["left"], 9, 10.5, axis)
            self._text(figure, WIDTH - 16, 9, 9.5, others, ha="right")
        for artist in figure.findobj():
            artist.set_path_effects([])
            artist.set_sketch_params(None)
            if isinstance(artist, Text):
                artist.set(family="DejaVu Sans", style="normal", parse_math=False, usetex=False)
        return figure

    def _text(self, figure: Figure, x: float, y: float, size: float, content: str, **style: Any) -> None:
        """Add a text at a place in CSS pixels."""
        style = {"va": "center", "weight": "normal", **style}
        figure.text(x / WIDTH, y / self.height, content, size=size, color=INK, **style)

    def _legend(self, owner: Figure | Axes, lines: Sequence[Line2D], labels: Sequence[str], **style: Any) -> None:
        """Add a legend without a frame."""
        style |= {"frameon": False, "borderaxespad": 0, "borderpad": 0, "numpoints": 1, "markerscale": 1}
        style |= {"handlelength": 1.5, "handletextpad": 0.6, "columnspacing": 1.2, "labelspacing": 0.6}
        style |= {"prop": FontProperties(size=11, weight="normal"), "labelcolor": INK}
        owner.legend(lines, labels, **style)

    def _draw_axes(self, axes: Axes, chart: Chart) -> None:
        """Draw the ticks, a grid of the values, and the floor."""
        axes.set(facecolor="none", axisbelow=True)
        axes.spines[:].set_visible(False)
        axes.spines["bottom"].set(visible=True, color=INK, alpha=0.5, linewidth=1)
        axes.minorticks_off()
        for axis, ticks in ((axes.xaxis, chart.x_ticks), (axes.yaxis, chart.y_ticks)):
            axis.set_ticks([value for value, _ in ticks], [label for _, label in ticks], weight="normal")
        axes.tick_params(length=0, pad=6, labelsize=10.5, labelcolor=INK)
        axes.grid(visible=False)
        axes.grid(axis="y", color=INK, linewidth=1, linestyle="-", alpha=0.2)

    def _draw_marks(self, axes: Axes, chart: Chart, floor: float) -> list[Line2D]:
        """Draw checkpoints and their evaluations, resumes, restarts and divergence; returns the line of checkpoints.

        The triangles of checkpoints are at the height `floor`, a share of that of the axes.
        """
        upright = axes.get_xaxis_transform()
        for x, label in chart.cuts:
            axes.add_line(_line([x, x], [0, 1], INK, (2, 2), label="cut", transform=upright, zorder=6))
            at: Any = {"xycoords": upright, "xytext": (5, -2), "textcoords": "offset points", "va": "top"}
            axes.annotate(label, (x, 1), **at, color=INK, size=10, weight="normal", zorder=7)
        if chart.badge:
            x, style = chart.badge.x, {"label": "break", "transform": upright, "zorder": 6}
            axes.add_line(_line([x, x], [0, 1], PALETTE["alarm"], (1, 2), **style))
            box = {"boxstyle": "round,pad=0.35", "facecolor": PALETTE["alarm"], "linewidth": 0}
            at = {"transform": axes.transAxes, "ha": "right", "va": "top", "weight": "bold", "bbox": box}
            axes.text(1, 1, chart.badge.text, **at, color="#ffffff", size=10.5, zorder=9)
        if rings := [mark for mark in chart.marks if mark.y is not None]:
            xs, y = [mark.x for mark in rings], np.array([mark.y for mark in rings], float)
            look: Any = {**_SIGNS, "marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.3}
            look |= {"label": "ring", "zorder": 4}
            axes.add_line(_line(xs, log10(y) if chart.is_log else y, PALETTE["evaluation"], **look))
        if not chart.marks:
            return []
        look = {**_SIGNS, "marker": "^", "markersize": 7, "label": "mark", "transform": upright, "zorder": 8}
        line = _line([mark.x for mark in chart.marks], [floor] * len(chart.marks), INK, **look)
        return [axes.add_line(line)]

    def _draw_trace(self, axes: Axes, trace: Trace, chart: Chart, limits: Limits) -> Line2D:
        """Draw a curve, over a thin line through all extremes if it is smoothed; returns the line."""
        (x, y), colour = trace.path(), PALETTE.get(trace.colour, INK)
        scaled: Any = log10 if chart.is_log else np.asarray
        if trace.is_band:
            ends = scaled(trace.low), scaled(trace.high)
            axes.fill_between(trace.x, *ends, color=colour, alpha=0.2, linewidth=0, label=f"band {trace.name}")
        if trace.is_smoothed:
            if not trace.is_band and len(self._runs) <= _MOST_RAW:
                raw = {"label": f"raw {trace.name}", "alpha": 0.38, "zorder": 2}
                _draw_curve(axes, chart.veil, x, scaled(y), colour, **raw)
            x, y = trace.x, trace.bold
        y = scaled(y)
        # A dot at the edge is whole.
        is_cut = not (is_lone(x, y) and limits[0] <= x[np.isfinite(y)][0] <= limits[1])
        look: Any = {"label": trace.name, "alpha": trace.opacity, "zorder": 3 if trace.opacity == 1 else 2}
        look |= {"marker": "o" if trace.dots else "none", "markersize": 4.5, "clip_on": is_cut}
        return _draw_curve(axes, chart.veil, x, y, colour, trace.dash, linewidth=trace.width, **look)


def _draw_curve(axes: Axes, veil: float | None, x: Any, y: Any, *look: Any, **style: Any) -> Line2D:
    """Draw a curve, whose part up to `veil` is faint; returns the line."""
    at = 0 if veil is None else int(np.searchsorted(x, veil, "right"))
    if at:
        faint = {"label": "parent", "alpha": 0.4 * style["alpha"]}
        axes.add_line(_line(x[:at], y[:at], *look, **{**style, **faint}))
    return axes.add_line(_line(x[max(0, at - 1) :], y[max(0, at - 1) :], *look, **style))


def _line(x: Any, y: Any, colour: str, dash: Sequence[float] = (), **style: Any) -> Line2D:
    look: Any = {"linewidth": 1, "linestyle": (0, dash) if dash else "-", "marker": "none", "markeredgewidth": 0}
    look |= {"solid_joinstyle": "round", "antialiased": True}
    return Line2D(x, y, color=colour, **{**look, **style})


def _left_out(charts: Charts, shown: Sequence[Chart]) -> str:
    """Return the number and the names of the charts that are not drawn."""
    others = [chart for chart in charts.charts if chart not in shown]
    named = (f"{one.title} ({', '.join(one.names)})" if len(one.names) > 1 else one.title for one in others)
    return f"{plural(len(others), 'more chart')}: {', '.join(named)}" if others else ""


@lru_cache(maxsize=1)
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def plain(text: str, max_length: int) -> str:
    """Return one line of text: characters that the font lacks become boxes, a long text ends in an ellipsis."""
    hidden, start = ("Cc", "Cf", "Zl", "Zp"), text[: max_length + 1]
    line = "".join(c if ord(c) in _drawable() and unicodedata.category(c) not in hidden else "□" for c in start)
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
