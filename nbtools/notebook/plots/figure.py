"""Draws a run into a matplotlib figure, and encodes it as a small PNG.

Axes, ticks and legends are lines and texts placed in CSS pixels. matplotlib's own axes read the global rcParams at each
drawing, so that a user's style or `usetex` would change the picture, and they are slower. Without pyplot, layout engine
and mathtext, a metric called `$\\frac` is drawn literally.
"""

import io
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox, Transform, blended_transform_factory
from PIL import Image, ImageColor  # matplotlib's own PNG writer

from nbtools.errors import plural
from nbtools.notebook.plots.charts import (
    DARK,
    LIGHT,
    MARGIN,
    NONE_OPEN,
    Badge,
    Chart,
    Charts,
    Size,
    Trace,
    charts_of,
    log10,
)
from nbtools.notebook.plots.decimation import is_lone
from nbtools.notebook.plots.view import Limits, View, view_of
from nbtools.run.run import Run

WIDTH, HEIGHT = 900, 540
"""Size of the picture in CSS pixels."""
SCALE = 2
"""Device pixels per CSS pixel: sharp on high-density screens."""
_CSS = Affine2D().scale(SCALE)
_MAX_BYTES = 100_000
"""A larger PNG is encoded again with fewer pixels."""
_NUM_PANELS = 4
_NUM_ENTRIES = 6
"""Most entries of a legend."""
_HEADER, _FOOTER, _LEGEND_ROW = 30, 16, 18
UNTITLED_HEIGHT = HEIGHT - _HEADER + 4
"""Height of a picture without the line that names the run."""
_MOST_RAW = 6
"""Most runs whose raw values are drawn as thin lines beside the smoothed ones."""


def save_plot(run: Run, path: str | Path, *, dark: bool = False, **options: Any) -> Path:
    """Write the picture of a run as a PNG file; `options` are those of `view_of`.

    Raises:
        ValueError: the path does not end in `.png`.
    """
    path = png_path(path)
    path.write_bytes(picture_of(view_of(run, **options), dark=dark)[0])
    return path


def png_path(path: str | Path) -> Path:
    """Return the path of a picture to write; ValueError if it does not end in `.png`."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: the picture is a PNG, so the name must end in .png")
    return path


def picture_of(view: View, *, dark: bool = False, titled: bool = True) -> tuple[bytes, Charts]:
    """Draw a view of a run; returns the bytes of a PNG, and the charts."""
    figure = RunFigure(dark=dark, titled=titled)
    try:
        charts = figure.update(view)
        return figure.png(), charts
    finally:
        figure.close()


class RunFigure:
    """A picture of charts.

    Unless `titled`, no line at the top names the run: the panel shows the name in its header. `height` is in CSS
    pixels. `runs` are label, colour and dash of compared runs: one legend of them is for all charts.
    """

    def __init__(
        self,
        height: int = 0,
        *,
        dark: bool = False,
        titled: bool = True,
        runs: Sequence[tuple[str, str, Sequence[float]]] = (),
    ) -> None:
        self.runs, longest = runs, min(46, max((len(label) for label, *_ in runs), default=0))
        self._per_row = max(1, int((WIDTH - 32) / (44 + 6.4 * longest)))
        legend = _LEGEND_ROW * -(-len(runs) // self._per_row)
        self.height = (height or (HEIGHT if titled else UNTITLED_HEIGHT)) + legend
        self._is_titled, self._header = titled, (_HEADER if titled else 4) + legend + 4 * bool(runs)
        self.theme = DARK if dark else LIGHT
        # At 72 dpi a point is a pixel: sizes of fonts and lines are then in CSS pixels.
        self.figure = Figure((WIDTH / 72, self.height / 72), dpi=72 * SCALE, facecolor=self.theme["background"])
        self.figure.set_layout_engine("none")
        self.canvas = FigureCanvasAgg(self.figure)
        self.panels: list[Panel] = []

    def update(self, view: View) -> Charts:
        """Draw the charts of a view; returns them."""
        charts = charts_of(view, self.sizes)
        self.draw(charts, view.title, view.subtitle)
        return charts

    def draw(self, charts: Charts, title: str = "", subtitle: str = "") -> None:
        """Draw the open charts, at most four of them, in the place of what was drawn before."""
        shown = charts.shown[:_NUM_PANELS]
        self.figure.clear()
        self.panels = [Panel(self, *place) for place in self._places(max(1, len(shown)))]
        if self._is_titled:
            self.text(16, self.height - 17, 12, plain(title, 60), va="center", weight="bold")
            self.text(WIDTH - 16, self.height - 17, 11, plain(subtitle, 90), "muted", ha="right", va="center")
        for index, (label, colour, dash) in enumerate(self.runs):
            row, column = divmod(index, self._per_row)
            x, y = 16 + column * (WIDTH - 32) / self._per_row, self.height - 40 - _LEGEND_ROW * row
            self.line([x, x + 24], [y, y], colour, linewidth=2, linestyle=_dashed(dash))
            self.text(x + 31, y, 11, plain(label, 46), va="center")
        others = [chart for chart in charts.charts if chart not in shown and not chart.key.startswith("system/")]
        named = ", ".join(
            f"{chart.title} ({', '.join(chart.names)})" if len(chart.names) > 1 else chart.title for chart in others
        )
        is_narrow = self.panels[-1].width < WIDTH / 2
        if others:
            text = f"{plural(len(others), 'more chart')}: {named}"
            self.text(WIDTH - 16, 6, 9.5, plain(text, 124 if is_narrow else 86), "muted", ha="right")
        x_label = "; ".join(filter(None, (charts.x_label, charts.note)))
        for panel, chart in zip(self.panels, shown, strict=False):
            # The line on the others needs the place of the last label.
            has_room = not (others and is_narrow and panel is self.panels[-1])
            panel.draw(chart, charts.limits, x_label if has_room else "")
        if not shown:
            message, (panel,) = charts.message or NONE_OPEN, self.panels
            middle = (panel.left + panel.right) / 2, (panel.bottom + panel.top) / 2
            self.text(*middle, 12, message, "muted", ha="center", va="center")

    def sizes(self, num_charts: int) -> list[Size]:
        """Return the sizes of the plot areas; of more charts than four, those of the first."""
        places = self._places(min(num_charts, _NUM_PANELS))
        across, along = MARGIN["left"] + MARGIN["right"], MARGIN["top"] + MARGIN["bottom"]
        return [(width - across, height - along) for _, _, width, height in places]

    def _places(self, num_panels: int) -> list[tuple[float, float, float, float]]:
        """Return left, bottom, width and height of each panel, in two columns."""
        num_rows = max(1, -(-num_panels // 2))
        height, places = (self.height - self._header - _FOOTER) / num_rows, []
        for index in range(num_panels):
            row, column = divmod(index, 2)
            width = WIDTH / min(2, num_panels - 2 * row)
            places.append((column * width, _FOOTER + (num_rows - 1 - row) * height, width, height))
        return places

    def png(self) -> bytes:
        """Encode what is drawn; a picture of noise gets fewer pixels, to stay at most 100 kB."""
        self.canvas.draw()  # type: ignore[no-untyped-call]
        image = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
        encoded = self._encoded(image, 3)  # with a palette as fast as level 1, and smaller
        if len(encoded) > _MAX_BYTES:
            size = round(image.width * 0.75), round(image.height * 0.75)
            encoded = self._encoded(image.resize(size, Image.Resampling.BOX), 6)
        return encoded

    def _encoded(self, image: Image.Image, compress_level: int) -> bytes:
        """Return a PNG with a palette, a third of the size of one without."""
        image = image.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        palette, first = image.getpalette() or [], 3 * int(np.asarray(image)[0, 0])
        palette[first : first + 3] = ImageColor.getrgb(self.theme["background"])  # an average otherwise
        image.putpalette(palette)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=compress_level)
        return buffer.getvalue()

    def close(self) -> None:
        """Release the artists and the pixels, which cycles of references would keep for a while."""
        self.figure.clear()
        self.panels.clear()
        self.canvas.__dict__.pop("renderer", None)

    # --- artists that no rcParams change ---

    def text(
        self, x: float, y: float, size: float, content: str, colour: str = "text", place: Transform = _CSS, **style: Any
    ) -> Text:
        """Add a text; `place` transforms its position."""
        font = FontProperties(family="DejaVu Sans", size=size, weight=style.pop("weight", "normal"))
        style = {"parse_math": False, "usetex": False, "zorder": 4, "path_effects": [], **style}
        text = Text(x, y, content, color=self.theme.get(colour, colour), fontproperties=font, transform=place, **style)
        self.figure.add_artist(text)
        return text

    def line(self, x: Any, y: Any, colour: str, place: Transform = _CSS, **style: Any) -> Line2D:
        """Add a line; `place` transforms its points."""
        style = {"linestyle": "-", "marker": "none", "markeredgewidth": 0, "solid_joinstyle": "round", **style}
        style = {"color": self.theme.get(colour, colour), "path_effects": [], "antialiased": True, **style}
        line = Line2D(x, y, transform=place, **style)
        self.figure.add_artist(line)
        return line


class Panel:
    """One pair of axes with its lines, in CSS pixels of its figure."""

    def __init__(self, owner: RunFigure, left: float, bottom: float, width: float, height: float) -> None:
        self._owner, self._is_last_row = owner, bottom == _FOOTER
        self.left, self.bottom = left + MARGIN["left"], bottom + MARGIN["bottom"]
        self.right, self.top = left + width - MARGIN["right"], bottom + height - MARGIN["top"]
        self.width, self.height = self.right - self.left, self.top - self.bottom
        self.place = Affine2D()
        """Transforms values of both axes."""
        # Values of one axis; the other coordinate is in CSS pixels.
        self._x_place = blended_transform_factory(self.place, _CSS)
        self._y_place = blended_transform_factory(_CSS, self.place)
        self.drawn: dict[str, list[Line2D]] = defaultdict(list)
        """Lines by kind: line, raw (a thin line through all extremes), cut, mark, ring, break."""
        self.title = owner.text(left + 16, self.top + 17, 12.5, "", va="center", weight="bold")
        self._clip = Bbox(np.array([[self.left, self.bottom - 2], [self.right + 2, self.top + 2]]) * SCALE)
        owner.line([self.left, self.right], [self.bottom] * 2, "axis", zorder=1, linewidth=1)

    def draw(self, chart: Chart, limits: Limits, x_label: str) -> None:
        """Draw a chart; only the last row of panels names the x axis."""
        owner, (low, high) = self._owner, chart.y
        self.place.translate(-limits[0], -low).scale(self.width / (limits[1] - limits[0]), self.height / (high - low))
        self.place.translate(self.left, self.bottom).scale(SCALE)
        self.title.set_text(plain(chart.title, 34))
        for value, label in chart.x_ticks:
            owner.text(value, self.bottom - 6, 10.5, label, "muted", self._x_place, ha="center", va="top")
        for value, label in chart.y_ticks:
            owner.line([self.left, self.right], [value] * 2, "grid", self._y_place, linewidth=1, zorder=0)
            owner.text(self.left - 7, value, 10.5, label, "muted", self._y_place, ha="right", va="center")
        if self._is_last_row:
            owner.text((self.left + self.right) / 2, self.bottom - 34, 10.5, x_label, "muted", ha="center")
        scaled: Any = log10 if chart.is_log else np.asarray
        for trace in chart.series:
            self._draw_trace(trace, scaled, limits)
        self._draw_cuts(chart, limits[0])
        self._draw_marks(chart, scaled)
        if chart.badge:
            self._draw_badge(chart.badge, limits)
        if not owner.runs:
            self._draw_legend(chart)

    def _add(self, kind: str, x: Any, y: Any, **style: Any) -> None:
        """Add a line between values."""
        style = {"place": self.place, "zorder": 3, "clip_box": self._clip, **style}
        self.drawn[kind].append(self._owner.line(x, y, **style))

    def _add_upright(self, kind: str, x: float, top: float, colour: str, **style: Any) -> None:
        """Add a vertical line from the floor to `top`."""
        look: dict[str, Any] = {"place": self._x_place, "clip_box": None, "zorder": 6, **style}
        self._add(kind, [x, x], [self.bottom, top], colour=colour, **look)

    def _add_signs(self, kind: str, xs: Sequence[float], y: float, colour: str, **style: Any) -> None:
        """Add signs at one height, each with an edge in the colour of the background."""
        look = {
            "markeredgecolor": self._owner.theme["background"],
            "markeredgewidth": 0.8,
            "linestyle": "none",
            **style,
        }
        self._add(kind, xs, [y] * len(xs), colour=colour, place=self._x_place, clip_box=None, zorder=8, **look)

    def _draw_trace(self, item: Trace, scaled: Any, limits: Limits) -> None:
        x, y = item.path()
        y = scaled(y)
        if item.is_smoothed:
            if len(self._owner.runs) <= _MOST_RAW:
                self._add("raw", x, y, colour=item.colour, zorder=2, linewidth=1, alpha=0.38)
            x, y = item.x, scaled(item.bold)
        is_dot = is_lone(x, y)
        is_inside = is_dot and limits[0] <= x[np.isfinite(y)][0] <= limits[1]  # a dot at the edge is whole
        style = {**_style(item), "alpha": item.opacity, "zorder": 3 if item.opacity == 1 else 2}
        self._add("line", x, y, **{**style, "markersize": 5 if is_dot else 4.5}, clip_on=not is_inside)

    def _draw_cuts(self, chart: Chart, left: float) -> None:
        """Dim the parent's part of the curves, and draw a thin line at the resume and at each restart."""
        owner = self._owner
        if chart.veil is not None:
            veil = Rectangle((left, self.bottom + 1), chart.veil - left, self.height, transform=self._x_place, zorder=5)
            veil.set(facecolor=owner.theme["background"], alpha=0.6, linewidth=0)
            owner.figure.add_artist(veil)
        beside = self._x_place + Affine2D().translate(5 * SCALE, 0)
        for x, label in chart.cuts:
            self._add_upright("cut", x, self.top, "muted", linewidth=1, linestyle=(0, (2, 2)))
            owner.text(x, self.top - 2, 10, label, "muted", beside, va="top", zorder=7)

    def _draw_marks(self, chart: Chart, scaled: Any) -> None:
        """Mark the checkpoints on the floor, and their evaluations."""
        if chart.marks:
            self._add_signs("mark", [mark.x for mark in chart.marks], self.bottom + 4, "text", marker="^", markersize=7)
        if rings := [mark for mark in chart.marks if mark.y is not None]:
            look: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.3}
            look |= {"linestyle": "none", "colour": "evaluation", "clip_box": None, "zorder": 4}
            self._add("ring", [mark.x for mark in rings], scaled(np.array([mark.y for mark in rings], float)), **look)

    def _draw_badge(self, badge: Badge, limits: Limits) -> None:
        """Mark the position where values become non-finite."""
        if limits[0] <= badge.x <= limits[1]:
            self._add_upright("alarm", badge.x, self.top - 32, "alarm", linewidth=1.2, linestyle=(0, (1, 2)))
            self._add_signs("break", [badge.x], self.top - 32, "alarm", marker="X", markersize=8)
        style: dict[str, Any] = {"ha": "right", "va": "top", "weight": "bold", "zorder": 9}
        text = self._owner.text(self.right - 6, self.top - 6, 10.5, badge.text, "#ffffff", **style)
        text.set_bbox({"boxstyle": "round,pad=0.35", "facecolor": self._owner.theme["alarm"], "linewidth": 0})

    def _draw_legend(self, chart: Chart) -> None:
        """Draw a legend in the title's line, flush right; entries without room are left out from the end."""
        owner, y = self._owner, self.top + 17
        labelled = [trace for trace in chart.series if trace.label or trace.value]
        entries = [(f"{trace.label} {trace.value}".strip(), 22.0, _style(trace)) for trace in labelled]
        if chart.marks:
            look = {"colour": "text", "linestyle": "none", "marker": "^", "markersize": 5}
            entries.append(("checkpoint", 13.0, look))
        renderer = owner.canvas.get_renderer()  # type: ignore[no-untyped-call]
        room = self.right - self.title.get_window_extent(renderer).x1 / SCALE - 16
        placed: list[tuple[Text, float, dict[str, Any], float]] = []
        for label, swatch, style in entries[:_NUM_ENTRIES]:
            text = owner.text(0, y, 11, plain(label, 36), va="center")
            swatch *= len(entries) > 1
            width = swatch + text.get_window_extent(renderer).width / SCALE + 13
            if (room := room - width) < -13:
                text.remove()
                break
            placed.append((text, swatch, style, width))
        left = self.right + 13 - sum(width for *_, width in placed)
        for text, swatch, style, width in placed:
            text.set_x(left + swatch)
            if swatch:
                xs = [left, left + 16] if swatch > 16 else [left + 4]
                owner.line(xs, [y] * len(xs), **style)
            left += width


def _style(item: Trace) -> dict[str, Any]:
    style = {"colour": item.colour, "linestyle": _dashed(item.dash), "linewidth": item.width}
    return {**style, "marker": "o" if item.dots else "none", "markersize": 4.5}


def _dashed(dash: Sequence[float]) -> Any:
    return (0, dash) if dash else "-"


@lru_cache(maxsize=1)
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def plain(text: str, max_length: int) -> str:
    """Return one line of text: characters that the font lacks become boxes, a long text ends in an ellipsis."""
    visible = (
        c if ord(c) in _drawable() and unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp") else "□"
        for c in text[: max_length + 1]
    )
    line = "".join(visible)
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
