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
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, Bbox, Transform, blended_transform_factory
from PIL import Image, ImageColor  # matplotlib's own PNG writer

from nbtools.errors import plural
from nbtools.notebook.plots.charts import (
    DARK,
    LIGHT,
    MARGIN,
    NONE_OPEN,
    Chart,
    Charts,
    Level,
    Size,
    Ticks,
    Trace,
    charts_of,
    log10,
)
from nbtools.notebook.plots.decimation import Floats, is_lone
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
        panels = self.lay_out(max(1, len(shown)))
        if self._is_titled:
            self.text(16, self.height - 17, 12, plain(title, 60), va="center", weight="bold")
            self.text(WIDTH - 16, self.height - 17, 11, plain(subtitle, 90), "muted", ha="right", va="center")
        for index, (label, colour, dash) in enumerate(self.runs):
            row, column = divmod(index, self._per_row)
            x, y = 16 + column * (WIDTH - 32) / self._per_row, self.height - 40 - _LEGEND_ROW * row
            self.line([x, x + 24], [y, y], colour, linewidth=2, linestyle=_dashed(dash))
            self.text(x + 31, y, 11, plain(label, 46), va="center")
        others = [chart for chart in charts.charts if chart not in shown and not chart.key.startswith("system/")]
        is_narrow = panels[-1].width < WIDTH / 2
        named = plain(_named(others, 110 if is_narrow else 76), 124 if is_narrow else 86)
        self.text(WIDTH - 16, 6, 9.5, named, "muted", ha="right")
        x_label = "; ".join(filter(None, (charts.x_label, charts.note)))
        for panel, chart in zip(panels, shown, strict=False):
            # The line on the others needs the place of the last label.
            has_room = not (others and is_narrow and panel is panels[-1])
            panel.draw(chart, charts.limits, x_label if has_room else "")
        if not shown:
            panels[0].say(charts.message or NONE_OPEN)

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

    def lay_out(self, num_panels: int) -> "list[Panel]":
        """Clear the figure and make empty panels, in two columns."""
        self.figure.clear()
        self.panels = [Panel(self, *place) for place in self._places(num_panels)]
        return self.panels

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
        self.drawn: dict[str, list[Any]] = defaultdict(list)
        """Artists by kind: line, raw (a thin line through all extremes), band (their area), cut, mark, ring, break."""
        self.title = owner.text(left + 16, self.top + 17, 12.5, "", va="center", weight="bold")
        self._clip = Bbox(np.array([[self.left, self.bottom - 2], [self.right + 2, self.top + 2]]) * SCALE)
        owner.line([self.left, self.right], [self.bottom] * 2, "axis", zorder=1, linewidth=1)

    def say(self, message: str) -> None:
        """Show a message in the middle."""
        x, y = (self.left + self.right) / 2, (self.bottom + self.top) / 2
        self._owner.text(x, y, 12, message, "muted", ha="center", va="center")

    def draw_axes(self, title: str, x: Limits, y: Limits, x_ticks: Ticks, y_ticks: Ticks, x_label: str) -> None:
        """Draw title, ticks and grid; only the last row of panels names the x axis."""
        owner = self._owner
        self.place.translate(-x[0], -y[0]).scale(self.width / (x[1] - x[0]), self.height / (y[1] - y[0]))
        self.place.translate(self.left, self.bottom).scale(SCALE)
        y_place = blended_transform_factory(_CSS, self.place)
        rows = [[(self.left, value), (self.right, value)] for value, _ in y_ticks]
        owner.figure.add_artist(
            LineCollection(rows, colors=owner.theme["grid"], linewidths=1, transform=y_place, zorder=0)
        )
        self.title.set_text(title)
        for value, label in x_ticks:
            owner.text(value, self.bottom - 6, 10.5, label, "muted", self._x_place, ha="center", va="top")
        for value, label in y_ticks:
            owner.text(self.left - 7, value, 10.5, label, "muted", y_place, ha="right", va="center")
        if self._is_last_row:
            owner.text((self.left + self.right) / 2, self.bottom - 34, 10.5, x_label, "muted", ha="center")

    @property
    def _x_place(self) -> Transform:
        """Transforms a value of the x axis; the other coordinate is in CSS pixels."""
        return blended_transform_factory(self.place, _CSS)

    def draw(self, chart: Chart, limits: Limits, x_label: str) -> None:
        """Draw a chart."""
        self.draw_axes(plain(chart.title, 34), limits, chart.y, chart.x_ticks, chart.y_ticks, x_label)
        scaled: Any = log10 if chart.is_log else np.asarray
        items: list[Trace | Level] = [*chart.series, *chart.levels]
        for item in items:
            if isinstance(item, Level):
                self.add("line", limits, scaled(np.full(2, item.y)), **_style(item))
            else:
                self._draw_trace(item, scaled, limits, chart.y)
        self._draw_cuts(chart, limits[0])
        self._draw_marks(chart, scaled, limits)
        if not self._owner.runs:
            entries = [(f"{item.label} {item.value}".strip(), _style(item)) for item in items]
            checkpoint = ("checkpoint", {"colour": "text", "linestyle": "none", "marker": "^"})
            self.draw_legend([*entries, *([checkpoint] if chart.marks else [])])

    def add(self, kind: str, x: Any, y: Any, **style: Any) -> None:
        """Add a line between values."""
        style = {"place": self.place, "zorder": 3, "clip_box": self._clip, **style}
        self.drawn[kind].append(self._owner.line(x, y, **style))

    def _draw_trace(self, item: Trace, scaled: Any, limits: Limits, y_limits: Limits) -> None:
        low, high = scaled(item.low), scaled(item.high)
        if not (item.is_smoothed or item.is_exact or item.dots) and self._is_high(item, low, high, y_limits):
            # Drawn ten times as fast as the zigzag between the extremes.
            style: dict[str, Any] = {"color": self._owner.theme[item.colour], "linewidth": item.width, "zorder": 3}
            style |= {"transform": self.place, "joinstyle": "round", "clip_box": self._clip, "path_effects": []}
            self.drawn["band"].append(self._owner.figure.add_artist(PathPatch(_outline(item.x, low, high), **style)))
            return
        thin = item.path()
        x, y = (item.x, scaled(item.bold)) if item.is_smoothed else (thin[0], scaled(thin[1]))
        if item.is_smoothed and len(self._owner.runs) <= _MOST_RAW:
            self.add("raw", thin[0], scaled(thin[1]), colour=item.colour, zorder=2, linewidth=1, alpha=0.38)
        is_dot = is_lone(x, y)
        is_inside = is_dot and limits[0] <= x[np.isfinite(y)][0] <= limits[1]  # a dot at the edge is whole
        self.add("line", x, y, **{**_style(item), "markersize": 5 if is_dot else 4.5}, clip_on=not is_inside)

    def _is_high(self, item: Trace, low: Floats, high: Floats, y: Limits) -> bool:
        """Whether the area between the extremes is higher than dashes are long, which cannot be seen in it then."""
        span = y[1] - y[0]
        heights = self.height * (high / span - low / span)  # the differences themselves may overflow
        return float(np.nansum(heights)) > len(low) * sum(item.dash) * item.width

    def _draw_cuts(self, chart: Chart, left: float) -> None:
        """Dim the parent's part of the curves, and draw a thin line at the resume and at each restart."""
        owner = self._owner
        if chart.veil is not None:
            veil = Rectangle((left, self.bottom + 1), chart.veil - left, self.height, transform=self._x_place, zorder=5)
            veil.set(facecolor=owner.theme["background"], alpha=0.6, linewidth=0)
            owner.figure.add_artist(veil)
        beside = self._x_place + Affine2D().translate(5 * SCALE, 0)
        for x, label in chart.cuts:
            style: dict[str, Any] = {"zorder": 6, "linewidth": 1, "linestyle": (0, (2, 2)), "clip_box": None}
            self.add("cut", [x, x], [self.bottom, self.top], colour="muted", place=self._x_place, **style)
            owner.text(x, self.top - 2, 10, label, "muted", beside, va="top", zorder=7)

    def _draw_marks(self, chart: Chart, scaled: Any, limits: Limits) -> None:
        """Mark the checkpoints and their evaluations, and the position where values become non-finite."""
        owner, badge = self._owner, chart.badge
        edge = {"markeredgecolor": owner.theme["background"], "markeredgewidth": 0.8, "linestyle": "none"}
        on_floor: dict[str, Any] = {"place": self._x_place, "clip_box": None}
        if chart.marks:
            floor = [self.bottom + 4] * len(chart.marks)
            look: dict[str, Any] = {"colour": "text", "marker": "^", "markersize": 7, "zorder": 7, **edge}
            self.add("mark", [mark.x for mark in chart.marks], floor, **look, **on_floor)
        if rings := [mark for mark in chart.marks if mark.y is not None]:
            look = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.3, "zorder": 4}
            look |= {"linestyle": "none", "colour": "evaluation", "clip_box": None}
            self.add("ring", [mark.x for mark in rings], scaled(np.array([mark.y for mark in rings], float)), **look)
        if badge and limits[0] <= badge.x <= limits[1]:
            look = {"zorder": 6, "linewidth": 1.2, "linestyle": (0, (1, 2))}
            owner.line([badge.x] * 2, [self.bottom, self.top - 32], "alarm", self._x_place, **look)
            look = {"colour": "alarm", "marker": "X", "markersize": 8, "zorder": 8, **edge}
            self.add("break", [badge.x], [self.top - 32], **look, **on_floor)
        if badge:
            style: dict[str, Any] = {"ha": "right", "va": "top", "weight": "bold", "zorder": 9}
            text = owner.text(self.right - 6, self.top - 6, 10.5, badge.text, "#ffffff", **style)
            text.set_bbox({"boxstyle": "round,pad=0.35", "facecolor": owner.theme["alarm"], "linewidth": 0})

    def draw_legend(self, entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Draw a legend in the title's line, flush right; entries without room are left out from the end."""
        owner, y = self._owner, self.top + 17
        placed: list[tuple[Text, dict[str, Any], float, float]] = []
        renderer = owner.canvas.get_renderer()  # type: ignore[no-untyped-call]
        room = self.right - self.title.get_window_extent(renderer).x1 / SCALE - 16
        for label, style in entries[:_NUM_ENTRIES]:
            text = owner.text(0, y, 11, plain(label, 36), va="center")
            swatch = 0.0 if len(entries) == 1 else 13.0 if style["linestyle"] == "none" else 22.0
            width = text.get_window_extent(renderer).width / SCALE
            room -= swatch + width + (13 if placed else 0)
            if room < 0:
                text.remove()
                break
            placed.append((text, style, swatch, width))
        right = self.right
        for text, style, swatch, width in reversed(placed):
            text.set_x(right - width)
            left = right - width - swatch
            xs = [] if not swatch else [left, left + 16] if swatch > 16 else [left + 4]
            owner.line(xs, [y] * len(xs), **{"linewidth": 1.8, "markersize": 5, **style})
            right = left - 13


def _style(item: Trace | Level) -> dict[str, Any]:
    marker = "o" if isinstance(item, Trace) and item.dots else "none"
    style = {"colour": item.colour, "linestyle": _dashed(item.dash), "linewidth": item.width}
    return {**style, "marker": marker, "markersize": 4.5}


def _dashed(dash: Sequence[float]) -> Any:
    return (0, dash) if dash else "-"


def _outline(x: Floats, low: Floats, high: Floats) -> Outline:
    """Return the closed outline of the area between two curves, in parts where there are gaps."""
    known = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    parts = [part for part in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if len(part)]
    rounds = [np.concatenate((part, part[::-1], part[:1])) for part in parts]
    ends = [np.concatenate((low[part], high[part[::-1]], low[part[:1]])) for part in parts]
    areas = [Outline(np.stack((x[at], y), axis=1), closed=True) for at, y in zip(rounds, ends, strict=True)]
    return Outline.make_compound_path(*areas) if areas else Outline(np.empty((0, 2)))


def _named(charts: Sequence[Chart], room: int) -> str:
    """Return the titles of charts that a picture leaves out, and their metrics, in about `room` characters."""
    text, num_named = f"{plural(len(charts), 'more chart')}: " if charts else "", 0
    for chart in charts:
        names = f" ({', '.join(chart.names)})" if len(chart.names) > 1 else ""
        words = f"{', ' if num_named else ''}{chart.title}{names}"
        if num_named and len(text) + len(words) > room:
            return f"{text} and {len(charts) - num_named} more"
        text, num_named = text + words, num_named + 1
    return text


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
