"""Draws a run into a matplotlib figure that is kept and updated, and encodes it as a small PNG.

Axes, ticks and legends are lines and texts placed in CSS pixels. matplotlib's own axes read the global rcParams at each
drawing, so that a user's style or `usetex` would change the picture, and they are slower. Without pyplot, layout engine
and mathtext, a metric called `$\\frac` is drawn literally.
"""

import io
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from matplotlib.artist import Artist
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

_A = TypeVar("_A", bound=Artist)

WIDTH, HEIGHT = 900, 540
"""Size of the picture in CSS pixels."""
SCALE = 2
"""Device pixels per CSS pixel: sharp on high-density screens."""
_MAX_BYTES = 100_000
"""A larger PNG is encoded again with fewer pixels."""
_NUM_PANELS = 4
_NUM_ENTRIES = 6
"""Most entries of a legend."""
_HEADER, _FOOTER = 30, 16
UNTITLED_HEIGHT = HEIGHT - _HEADER + 4
"""Height of a picture without the line that names the run."""


def save_plot(run: Run, path: str | Path, *, dark: bool = False, **options: Any) -> Path:
    """Write the picture of a run as a PNG file; `options` are those of `view_of`.

    Raises:
        ValueError: the path does not end in `.png`.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: the picture is a PNG, so the name must end in .png")
    path.write_bytes(png(run, dark=dark, **options))
    return path


def png(run: Run, *, dark: bool = False, **options: Any) -> bytes:
    """Return the picture of a run as the bytes of a PNG."""
    figure = RunFigure(dark=dark)
    figure.update(view_of(run, **options))
    return figure.png()


class RunFigure:
    """A figure that is built once and updated in place.

    Unless `titled`, no line at the top names the run: the panel shows the name in its header. `height` is in CSS
    pixels.
    """

    def __init__(self, height: int | None = None, *, dark: bool = False, titled: bool = True) -> None:
        self.height = height or (HEIGHT if titled else UNTITLED_HEIGHT)
        self._header = _HEADER if titled else 4
        self.is_dark, self.theme = dark, DARK if dark else LIGHT
        # At 72 dpi a point is a pixel: sizes of fonts and lines are then in CSS pixels.
        self.figure = Figure((WIDTH / 72, self.height / 72), dpi=72 * SCALE, facecolor=self.theme["background"])
        self.figure.set_layout_engine("none")
        self.canvas = FigureCanvasAgg(self.figure)
        self.panels: list[Panel] = []

    def update(self, view: View) -> Charts:
        """Update every line, tick and label to the view; return the drawn charts."""
        charts = charts_of(view, self.sizes)
        self.draw(charts, view.title, view.subtitle)
        return charts

    def draw(self, charts: Charts, title: str = "", subtitle: str = "") -> None:
        """Update every line, tick and label to the open charts, at most four of them."""
        shown = charts.shown[:_NUM_PANELS]
        if len(self.panels) != max(1, len(shown)):
            self.lay_out(max(1, len(shown)))
        is_titled = self._header == _HEADER
        self._title.set_text(plain(title, 60) if is_titled else "")
        self._subtitle.set_text(plain(subtitle, 90) if is_titled else "")
        others = [chart for chart in charts.charts if chart not in shown and not chart.key.startswith("system/")]
        is_narrow = self.panels[-1].width < WIDTH / 2
        self._others.set_text(plain(_named(others, 110 if is_narrow else 76), 124 if is_narrow else 86))
        for panel, chart in zip(self.panels, shown, strict=False):
            panel.update(chart, charts)
        if others and is_narrow:
            self.panels[-1].x_label.set_text("")  # the line on the others needs its place
        if not shown:
            self.panels[0].message.set_text(charts.message or NONE_OPEN)

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
        """Draw and encode; a picture of noise gets fewer pixels, to stay at most 100 kB."""
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

    def add(self, artist: _A) -> _A:
        self.figure.add_artist(artist)
        return artist

    def lay_out(self, num_panels: int) -> None:
        """Clear the figure and make empty panels, in two columns."""
        self.figure.clear()
        add, css = self.add, Affine2D().scale(SCALE)
        y = self.height - 17
        self._title = add(text_at(16, y, 12, self.theme["text"], css, va="center", weight="bold"))
        self._subtitle = add(text_at(WIDTH - 16, y, 11, self.theme["muted"], css, "right", "center"))
        self._others = add(text_at(WIDTH - 16, 6, 9.5, self.theme["muted"], css, "right"))
        places = self._places(num_panels)
        self.panels = [Panel(self, *place, is_last_row=place[1] == _FOOTER) for place in places]


class Panel:
    """One pair of axes with its lines, in CSS pixels of its figure."""

    def __init__(
        self, owner: RunFigure, left: float, bottom: float, width: float, height: float, *, is_last_row: bool
    ) -> None:
        self._theme, self._renderer = owner.theme, owner.canvas.get_renderer()  # type: ignore[no-untyped-call]
        self.left, self.bottom = left + MARGIN["left"], bottom + MARGIN["bottom"]
        self.right, self.top = left + width - MARGIN["right"], bottom + height - MARGIN["top"]
        self.width, self.height = self.right - self.left, self.top - self.bottom
        css, theme, muted = Affine2D().scale(SCALE), owner.theme, owner.theme["muted"]
        self.place = Affine2D()
        # Each places a value on one axis; the other coordinate is in CSS pixels.
        x_place, y_place = blended_transform_factory(self.place, css), blended_transform_factory(css, self.place)
        clip = Bbox(np.array([[self.left, self.bottom - 2], [self.right + 2, self.top + 2]]) * SCALE)
        add, title_y = owner.add, self.top + 17
        self._grid = add(LineCollection([], colors=theme["grid"], linewidths=1, transform=y_place, zorder=0))
        self._floor = add(line_of(css, zorder=1, color=theme["axis"], linewidth=1))
        self._floor.set_data([self.left, self.right], [self.bottom, self.bottom])
        self.title = add(text_at(left + 16, title_y, 12.5, theme["text"], css, va="center", weight="bold"))
        self._x_ticks: list[Text] = []
        self._y_ticks: list[Text] = []
        self._new_x_tick: Callable[[], Text] = lambda: add(
            text_at(0, self.bottom - 6, 10.5, muted, x_place, "center", "top")
        )
        self._new_y_tick: Callable[[], Text] = lambda: add(
            text_at(self.left - 7, 0, 10.5, muted, y_place, "right", "center")
        )
        middle = (self.left + self.right) / 2
        self.x_label = add(text_at(middle, self.bottom - 34, 10.5, muted, css, "center"))
        self._has_x_label = is_last_row
        self.message = add(text_at(middle, (self.bottom + self.top) / 2, 12, muted, css, "center", "center"))
        self._add, self._clip = add, clip
        self.raw: list[Line2D] = []
        """The thin line through all extremes of each curve."""
        self.lines: list[Line2D] = []
        self.bands: list[PathPatch] = []
        """The area between the extremes of each curve without a bold line, drawn ten times as fast as their zigzag."""
        texts = [add(text_at(0, title_y, 11, theme["text"], css, va="center")) for _ in range(_NUM_ENTRIES)]
        self._legend = [(add(line_of(css)), text) for text in texts]
        self._veil = add(Rectangle((0, self.bottom + 1), 0, self.height, transform=x_place, zorder=5))
        self._veil.set(facecolor=theme["background"], alpha=0.6, linewidth=0)
        self._resume = add(line_of(x_place, zorder=6, color=muted, linewidth=1, linestyle=(0, (2, 2))))
        beside = x_place + Affine2D().translate(5 * SCALE, 0)
        self._resume_label = add(text_at(0, self.top - 2, 10, muted, beside, va="top", zorder=7))
        edge = {"markeredgecolor": theme["background"], "markeredgewidth": 0.8, "linestyle": "none"}
        self.checkpoint_marks = add(line_of(x_place, zorder=7, marker="^", markersize=7, color=theme["text"], **edge))
        ring = {"markerfacecolor": "none", "markeredgewidth": 1.3, "linestyle": "none", "color": theme["evaluation"]}
        self.checkpoint_rings = add(line_of(self.place, zorder=4, marker="o", markersize=9, **ring))
        self._break_line = add(line_of(x_place, zorder=6, color=theme["alarm"], linewidth=1.2, linestyle=(0, (1, 2))))
        self.break_mark = add(line_of(x_place, zorder=8, marker="X", markersize=8, color=theme["alarm"], **edge))
        self.badge = add(text_at(self.right - 6, self.top - 6, 10.5, "#ffffff", css, "right", "top", "bold", 9))
        self.badge.set_bbox({"boxstyle": "round,pad=0.35", "facecolor": theme["alarm"], "linewidth": 0})

    def make_lines(self, num_lines: int) -> None:
        """Have at least this number of lines."""
        for _ in range(num_lines - len(self.lines)):
            thin = {"zorder": 2, "linewidth": 1, "alpha": 0.38}
            self.raw.append(self._add(line_of(self.place, clip_box=self._clip, **thin)))
            self.bands.append(self._add(band_of(self.place, clip_box=self._clip, zorder=3)))
            self.lines.append(self._add(line_of(self.place, clip_box=self._clip, zorder=3)))

    def update(self, chart: Chart, charts: Charts) -> None:
        """Update the lines of this panel to a chart."""
        self.message.set_text("")
        self.title.set_text(plain(chart.title, 34))
        left, right = charts.limits
        self.set_axes(
            charts.limits, chart.y, chart.x_ticks, chart.y_ticks, "; ".join(filter(None, (charts.x_label, charts.note)))
        )
        scaled = log10 if chart.is_log else np.asarray
        drawn: list[Trace | Level] = [*chart.series, *chart.levels]
        self.make_lines(len(drawn))
        for line, raw, band, item in zip_longest(self.lines, self.raw, self.bands, drawn):
            raw.set_data([], [])
            line.set_data([], [])
            band.set_visible(False)
            if item is None:
                continue
            if isinstance(item, Level):
                line.set_data([left, right], scaled(np.full(2, item.y)))
                line.set(clip_on=True, **self._style(item))
                continue
            low, high = scaled(item.low), scaled(item.high)
            if not (item.is_smoothed or item.is_exact or item.dots) and self._is_high(item, low, high, chart.y):
                band.set(path=_outline(item.x, low, high), color=self._theme[item.colour], linewidth=item.width)
                band.set_visible(True)
                continue
            thin = item.path()
            x, y = (item.x, scaled(item.bold)) if item.is_smoothed else (thin[0], scaled(thin[1]))
            line.set_data(x, y)
            if item.is_smoothed:
                raw.set_data(thin[0], scaled(thin[1]))
            is_dot = is_lone(x, y)
            line.set(**{**self._style(item), "markersize": 5 if is_dot else 4.5})
            line.set_clip_on(not (is_dot and left <= x[np.isfinite(y)][0] <= right))
            raw.set_color(self._theme[item.colour])
        rings = np.array([(mark.x, mark.y) for mark in chart.marks if mark.y is not None], float).reshape(-1, 2)
        self.checkpoint_marks.set_data([mark.x for mark in chart.marks], [self.bottom + 4] * len(chart.marks))
        self.checkpoint_rings.set_data(rings[:, 0], scaled(rings[:, 1]))
        self._show_cuts(chart, left)
        self._show_badge(chart, left, right)
        entries = [(f"{item.label} {item.value}".strip(), self._style(item)) for item in drawn]
        if chart.marks:
            entries.append(("checkpoint", {"color": self._theme["text"], "linestyle": "none", "marker": "^"}))
        self.show_legend(entries)

    # --- parts ---

    def _is_high(self, item: Trace, low: Floats, high: Floats, y: Limits) -> bool:
        """Whether the area between the extremes is higher than dashes are long, which cannot be seen in it then."""
        span = y[1] - y[0]
        heights = self.height * (high / span - low / span)  # the differences themselves may overflow
        return float(np.nansum(heights)) > len(low) * sum(item.dash) * item.width

    def _style(self, item: Trace | Level) -> dict[str, Any]:
        dash: Any = (0, item.dash) if item.dash else "-"
        marker = "o" if isinstance(item, Trace) and item.dots else "none"
        style = {"color": self._theme[item.colour], "linestyle": dash, "linewidth": item.width}
        return {**style, "marker": marker, "markersize": 4.5}

    def set_axes(self, x: Limits, y: Limits, x_ticks: Ticks, y_ticks: Ticks, x_label: str) -> None:
        """Set the limits of both axes, their ticks and grid; only the last row of panels names the x axis."""
        self.place.clear().translate(-x[0], -y[0]).scale(self.width / (x[1] - x[0]), self.height / (y[1] - y[0]))
        self.place.translate(self.left, self.bottom).scale(SCALE)
        self._x_ticks += [self._new_x_tick() for _ in x_ticks[len(self._x_ticks) :]]
        self._y_ticks += [self._new_y_tick() for _ in y_ticks[len(self._y_ticks) :]]
        for text, tick in zip_longest(self._x_ticks, x_ticks):
            text.set(text=tick[1] if tick else "", x=tick[0] if tick else 0)
        for text, tick in zip_longest(self._y_ticks, y_ticks):
            text.set(text=tick[1] if tick else "", y=tick[0] if tick else 0)
        self._grid.set_segments([[(self.left, v), (self.right, v)] for v, _ in y_ticks])
        self.x_label.set_text(x_label if self._has_x_label else "")

    def _show_cuts(self, chart: Chart, left: float) -> None:
        """Dim the parent's part of the curves, and draw a thin line at the resume and at each restart."""
        self._veil.set(x=left, width=0 if chart.veil is None else chart.veil - left)
        cuts = [x for x, _ in chart.cuts]
        self._resume.set_data(np.repeat(cuts, 3), [self.bottom, self.top, np.nan] * len(cuts))
        x, label = next(((x, label) for x, label in chart.cuts if label), (left, ""))
        self._resume_label.set(text=label, x=x)

    def _show_badge(self, chart: Chart, left: float, right: float) -> None:
        """Show a badge, and a mark at the position where values become non-finite."""
        badge = chart.badge
        at = [badge.x] if badge and left <= badge.x <= right else []
        self.badge.set_text(badge.text if badge else "")
        self.break_mark.set_data(at, [self.top - 32] * len(at))
        self._break_line.set_data(at * 2, [self.bottom, self.top - 32] if at else [])

    def show_legend(self, entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Draw the legend in the title's line, flush right; entries without room are left out from the end."""
        for sample, text in self._legend:
            sample.set_data([], [])
            text.set_text("")
        room = self.right - self.title.get_window_extent(self._renderer).x1 / SCALE - 16
        placed: list[tuple[Line2D, Text, dict[str, Any], float, float]] = []
        for (sample, text), (label, style) in zip(self._legend, entries, strict=False):
            text.set_text(plain(label, 36))
            swatch = 0.0 if len(entries) == 1 else 13.0 if style["linestyle"] == "none" else 22.0
            width = text.get_window_extent(self._renderer).width / SCALE
            room -= swatch + width + (13 if placed else 0)
            if room < 0:
                text.set_text("")
                break
            placed.append((sample, text, style, swatch, width))
        right = self.right
        for sample, text, style, swatch, width in reversed(placed):
            text.set_x(right - width)
            left = right - width - swatch
            sample.set(**{"linewidth": 1.8, "marker": "none", "markersize": 5, **style})
            xs = [] if not swatch else [left, left + 16] if swatch > 16 else [left + 4]
            sample.set_data(xs, [text.get_position()[1]] * len(xs))
            right = left - 13


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


# --- artists ------------------------------------------------------------------------------------


def text_at(
    x: float,
    y: float,
    size: float,
    colour: str,
    transform: Transform,
    ha: Literal["left", "center", "right"] = "left",
    va: Literal["baseline", "center", "top"] = "baseline",
    weight: str = "normal",
    zorder: float = 4,
) -> Text:
    """Return an empty text that no rcParams change."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    text = Text(x, y, "", color=colour, fontproperties=font, horizontalalignment=ha, verticalalignment=va)
    text.set(parse_math=False, usetex=False, transform=transform, zorder=zorder, path_effects=[])
    return text


def _outline(x: Floats, low: Floats, high: Floats) -> Outline:
    """Return the closed outline of the area between two curves, in parts where there are gaps."""
    known = np.flatnonzero(np.isfinite(low) & np.isfinite(high))
    parts = [part for part in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if len(part)]
    rounds = [np.concatenate((part, part[::-1], part[:1])) for part in parts]
    ends = [np.concatenate((low[part], high[part[::-1]], low[part[:1]])) for part in parts]
    areas = [Outline(np.stack((x[at], y), axis=1), closed=True) for at, y in zip(rounds, ends, strict=True)]
    return Outline.make_compound_path(*areas) if areas else Outline(np.empty((0, 2)))


def band_of(transform: Transform, **style: Any) -> PathPatch:
    """Return an empty area that no rcParams change."""
    band = PathPatch(Outline(np.empty((0, 2))), visible=False, joinstyle="round", antialiased=True, **style)
    band.set(transform=transform, path_effects=[])
    return band


def line_of(transform: Transform, **style: Any) -> Line2D:
    """Return an empty line that no rcParams change."""
    style = {"linestyle": "-", "marker": "none", "markeredgewidth": 0, "solid_joinstyle": "round", **style}
    line = Line2D([], [], **style)
    line.set(transform=transform, path_effects=[], antialiased=True)
    return line
