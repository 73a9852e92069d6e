"""The model of a chart: limits, ticks, curves, colours, labels and marks, for both the picture and the canvas.

Sizes are in CSS pixels, colours are roles in `PALETTE`, dashes are in widths of their line.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nbtools.metrics.columns import Series
from nbtools.metrics.direction import is_cost
from nbtools.notebook.plots import decimation, metric_names
from nbtools.notebook.plots.decimation import Curve, Floats
from nbtools.notebook.plots.view import KINDS, Axis, Limits, Options, View, X, x_ticks
from nbtools.run.curves import Sketch

Ticks = Sequence[tuple[float, str]]
Size = tuple[float, float]
"""Width and height of a chart's plot area."""
Sizes = Callable[[int], Sequence[Size]]
"""Returns the sizes of the plot areas of a number of open charts; if there are fewer, the rest is closed."""

MARGIN: Final = {"left": 56, "right": 16, "top": 34, "bottom": 24}
"""Between a chart's edge and its plot area; the title and the legend are at the top."""
_FULLY_SMOOTHED = 50
"""Points from which a line is smoothed as asked: of few points, a smoothed line would hide where they are."""
_COLUMNS_FROM = 700, 1200  # pixels of two and of three columns
_NUM_OPEN = 4
_NO_LEVELS = np.array([], float)
NONE_OPEN: Final = "No chart is open"
INK: Final = "#757b86"
"""Texts and marks of a picture: 4.2:1 on white and on GitHub's dark page; no colour has more than 4.35:1 on both."""
# The hues are those of petroff10 (Petroff 2021, arXiv:2107.02270), distinguishable under colour blindness, each with a
# contrast of 3:1 or more on a light and on a dark page, as WCAG asks of graphics.
_RUNS = ["#3f90da", "#e76300", "#9b59d0", "#d03a1c", "#a96b59", "#717581", "#b07a00", "#2e9e8f", "#c9508f", "#8a8a2e"]
PALETTE: Final = {
    "line": "#3f90da",
    "evaluation": "#e76300",
    "alarm": "#d03a1c",
    "other0": "#9b59d0",
    "other1": "#a96b59",
    "other2": "#2e9e8f",
    **{f"run{n}": _RUNS[n % len(_RUNS)] for n in range(20)},
}
"""Colour of each role, on every page."""
OTHERS: Final = ("other0", "other1", "other2")
DASHES: Final[Sequence[tuple[float, ...]]] = ((), (6, 1.5), (4, 1.2, 1, 1.2), (1.5, 1.2))


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace(Curve):
    """One curve, reduced to the pixel columns of its chart."""

    name: str
    label: str
    value: str
    """The last value, formatted."""
    colour: str
    bold: Floats
    """Smoothed means of the columns."""
    dash: tuple[float, ...] = ()
    width: float = 1.9
    dots: bool = False
    is_smoothed: bool = False
    """A thin line goes through all extremes, and a bold one over it; else one line goes through the extremes."""
    is_band: bool = False
    """The area between the extremes is filled in place of the thin line."""
    run: str = ""
    opacity: float = 1.0
    is_limit: bool = False
    """A horizontal line which the y axis need not reach."""


@dataclass(frozen=True)
class Mark:
    """A checkpoint: a triangle on the floor, and a ring on the curve if it was evaluated."""

    x: float
    y: float | None
    step: int
    kind: str = "checkpoint"
    """`best` where the evaluation loss is the lowest."""
    label: str = ""


@dataclass(frozen=True)
class Badge:
    """A label for non-finite values, with a line at the first one."""

    text: str
    x: float


@dataclass(frozen=True)
class Chart:
    """One pair of axes. A closed chart has a title and nothing to draw."""

    key: str
    title: str
    names: Sequence[str] = ()
    """Names of the chart's metrics."""
    is_open: bool = False
    is_log: bool = False
    can_log: bool = False
    is_fixed: bool = False
    """Whether the limits of y were chosen."""
    y: Limits = (0.0, 1.0)
    """Limits of y. On a logarithmic axis, limits and ticks are exponents of 10; the values of curves are not."""
    x_ticks: Ticks = ()
    y_ticks: Ticks = ()
    series: Sequence[Trace] = ()
    marks: Sequence[Mark] = ()
    cuts: Sequence[tuple[float, str]] = ()
    """(position, label) of each resume, restart, and request that was applied."""
    veil: float | None = None
    """Position up to which the curves are the parent's."""
    badge: Badge | None = None
    group: str = ""
    """The group of its metrics, which determines its scale."""


@dataclass(frozen=True)
class Charts:
    """All charts of a picture, and the x axis that they share."""

    x: X = "step"
    limits: Limits = (0.0, 1.0)
    full: Limits = (0.0, 1.0)
    is_zoomed: bool = False
    charts: Sequence[Chart] = field(default_factory=list)
    message: str = ""
    """Text shown instead of charts."""
    kinds: Sequence[X] = KINDS
    """Kinds of x axis that the data allows."""
    unit: str = "step"
    """The count on an axis of steps."""
    note: str = ""
    """Sentence on curves of different units."""

    @property
    def x_label(self) -> str:
        return {"relative": "relative time", "step": self.unit}.get(self.x, self.x)

    @property
    def shown(self) -> list[Chart]:
        return [chart for chart in self.charts if chart.is_open]


def page_sizes(num_open: int, width: float, *, is_whole: bool = False) -> list[Size]:
    """Return the sizes of the plot areas on a page, or of the only one; formats.js has the same rule."""
    columns = min(1 + sum(width >= least for least in _COLUMNS_FROM), max(1, num_open))
    chart = int(width / columns)
    height = min(480 if is_whole else 255, max(180, round(0.55 * chart)))
    return [(chart - MARGIN["left"] - MARGIN["right"], height - MARGIN["top"] - MARGIN["bottom"])] * num_open


def arranged(
    parts: Sequence[Chart],
    runs: Sequence[Mapping[str, Series | Sketch]],
    options: Options,
    sizes: Sizes,
    draw: Callable[[Chart, Axis, Size], Chart],
    resumes: Sequence[Sequence[int]],
    reaches: Iterable[int] = (),
) -> Charts:
    """Draw the open ones of some charts on one x axis, which is that of their metrics.

    Args:
        parts: all charts, at least one, without their content; which are to be open.
        runs: the curves of each run.
        sizes: see `Sizes`.
        draw: returns an open chart.
        resumes: see `Axis`, and so `reaches`.
    """
    shown = [part for part in parts if part.is_open]
    areas = {part.key: size for part, size in zip(shown, sizes(len(shown)), strict=False)}
    names = {name for part in parts if part.key in areas or not areas for name in part.names}
    charts = []
    with np.errstate(over="ignore", invalid="ignore"):  # sums of values near the largest float
        axis = Axis([{name: run[name] for name in run if name in names} for run in runs], options, resumes, reaches)
        for part in parts:
            drawn = [name for name in part.names if part.key in areas and any(name in run for run in axis.runs)]
            is_drawn = part.names[0] in drawn
            own = replace(part, names=drawn if is_drawn else part.names, is_open=is_drawn)
            charts.append(draw(own, axis, areas[part.key]) if is_drawn else own)
    shared: dict[str, Any] = {"kinds": axis.kinds, "unit": axis.unit, "note": axis.note}
    return Charts(axis.kind, axis.limits, axis.full, axis.is_zoomed, charts, **shared)


# --- a run's charts -----------------------------------------------------------------------------


def charts_of(view: View, sizes: Sizes) -> Charts:
    """Return the charts of each group of metrics; every metric is in one."""
    groups = metric_names.grouped(view.history)
    known = {name for _, names in groups for name in names}
    groups += [(name, [name]) for name in view.history if name not in known and len(view.history[name])]
    if not groups:
        missing = "No metrics were recorded" if view.has_ended else "Waiting for the first metrics"
        return Charts(message=view.reading.capitalize() or missing)
    first = [group for group, names in groups[:_NUM_OPEN] if names[0] in known]
    first = [group for group in first if not is_cost(group)] or first
    usual = {*metric_names.TITLES, *first}
    parts = [part for group, names in groups for part in _parts(view, group, names, group in usual)]
    # Taken once: the history may grow in another thread while this picture is made.
    curves = {name: view.history[name] for part in parts for name in part.names}
    resumes = [[] if view.resumed_at is None else [view.resumed_at]]
    reaches = [step for step, _ in view.checkpoints]
    return arranged(parts, [curves], view, sizes, lambda *part: _chart(view, *part), resumes, reaches)


def _parts(view: View, group: str, names: Sequence[str], is_default: bool) -> list[Chart]:
    title, parts = metric_names.TITLES.get(group, group), metric_names.divided(group, names)
    found = []
    for index, part in enumerate(parts, 1):
        key = f"{group}\0{index}" if index > 1 else group
        is_open = view.opens(key, (group, *part), is_default and index == 1)
        numbered = f"{title}, {index} of {len(parts)}" if len(parts) > 1 else title
        found.append(Chart(key, numbered, part, is_open, group=group))
    return found


def _chart(view: View, part: Chart, axis: Axis, size: Size) -> Chart:
    traces = _legible(_curves(part, view, axis, size), metric_names.legend_room(part.title, size[0]))
    shown: dict[str, Any] = {"series": traces, "badge": _badge(part.names, axis)}
    shown |= {"marks": _marks(view, axis)} if part.key == "loss" else {}
    shown |= _resumes(view, axis, is_labelled=part.key == "loss")
    return scaled(replace(part, **shown), view, axis, size)


def scaled(chart: Chart, options: Options, axis: Axis, size: Size) -> Chart:
    """Return an open chart with the scale that fits its metrics and the options."""
    can_log = chart.group not in ("learning_rate", "throughput")
    is_log = can_log and options.log != (chart.key in options.switched)
    traces = chart.series
    if is_log:  # a dot, if only one point has a logarithm
        traces = [replace(item, dots=item.dots or decimation.is_lone(item.x, log10(item.bold))) for item in traces]
    chart = replace(chart, is_log=is_log, can_log=can_log, series=traces)
    from_zero = chart.group in ("return", "learning_rate", "throughput", "grad_norm")
    return chart_of(chart, axis.limits, axis.kind, size, from_zero=from_zero, chosen=options.y.get(chart.key))


def chart_of(
    chart: Chart, limits: Limits, kind: X, size: Size, *, from_zero: bool = False, chosen: Limits | None = None
) -> Chart:
    """Return an open chart with the limits of its y axis, which may be `chosen`, and the ticks of both axes.

    With `from_zero`, the y axis of values that are not negative begins at 0, unless it is logarithmic.
    """
    values = [values for trace in chart.series if not trace.is_limit for values in (trace.low, trace.high)]
    values.append(np.array([mark.y for mark in chart.marks if mark.y is not None], float))
    levels = np.array([trace.low[0] for trace in chart.series if trace.is_limit], float)
    low, high = limits_of(np.concatenate(values), levels, is_log=chart.is_log, from_zero=from_zero)
    if is_fixed := chosen is not None and (chosen[0] > 0 or not chart.is_log):
        low, high = log10(np.array(chosen)).tolist() if chart.is_log else chosen
    num_x, num_y = max(4, int(size[0] / 75)), max(4, int(size[1] / 30))
    y_ticks = (decimation.log_ticks if chart.is_log else decimation.ticks)(low, high, num_y)
    chart = replace(chart, is_open=True, is_fixed=is_fixed)
    return replace(chart, y=(low, high), x_ticks=x_ticks(kind, *limits, num_x), y_ticks=y_ticks)


def limits_of(shown: Floats, levels: Floats = _NO_LEVELS, *, is_log: bool, from_zero: bool = False) -> Limits:
    """Return limits that contain what is shown, and those levels with which it keeps half of the height."""
    if is_log:
        shown, levels = log10(shown), log10(levels)
    largest = 300.0 if is_log else 1e300  # so that limits and margins are finite
    shown = np.clip(shown[np.isfinite(shown)], -largest, largest)
    low, high = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
    near = levels[(levels >= 2 * low - high) & (levels <= 2 * high - low)].tolist()
    low, high = min([low, *near]), max([high, *near])
    if not is_log and from_zero and low >= 0:
        low = 0.0
    margin = 0.06 * (high - low)
    if margin <= 1e-9 * max(abs(low), abs(high)):
        margin = 0.5 if is_log or low == high == 0 else max(0.1 * abs(high), 1e-12)
    return (low if low == 0 and high > 0 and not is_log else low - margin), high + margin


# --- parts --------------------------------------------------------------------------------------


def trace_of(
    series: Series | Sketch, x: NDArray[Any], axis: Axis, columns: int, smoothing: float, is_dotted: bool, **looks: Any
) -> Trace:
    """Reduce a metric to the pixel columns of a chart.

    Args:
        x: the position of each value on the axis, ascending.
        smoothing: weight of earlier values in the bold line; 0 for a line through all extremes.
        is_dotted: draw the points of a short series.
        looks: further fields of `Trace`.
    """
    curve = decimation.decimate(series, x, axis.limits, columns)
    bold = curve.mean
    if smoothing > 0:
        # The columns of all points are smoothed, so that a part has the same bold line.
        whole = decimation.decimate(series, x, axis.full, columns) if axis.is_zoomed else curve
        num_points = int(np.isfinite(whole.mean).sum())
        bold = decimation.smooth(whole.mean, smoothing * min(1.0, num_points / _FULLY_SMOOTHED))
        if whole is not curve:
            there = np.isfinite(bold)
            bold = np.interp(curve.x, whole.x[there], bold[there]) if there.any() else curve.mean
            bold = np.where(np.isnan(curve.mean), np.nan, bold)
    dots = (is_dotted and len(curve.x) <= 80) or decimation.is_lone(curve.x, bold)
    is_band = isinstance(series, Sketch) and series.num_runs > 1
    looks |= {"value": _last(series), "is_band": is_band, "is_smoothed": smoothing > 0 or is_band}
    return Trace(**vars(curve), **looks, bold=bold, dots=dots)


def _last(series: Series | Sketch) -> str:
    return decimation.number(series.last).replace("nan", "NaN")


def _curves(part: Chart, view: View, axis: Axis, size: Size) -> list[Trace]:
    """Return the curves and baselines of a chart, in order of importance."""
    drawn: list[Trace] = []
    names, group, curves = part.names, part.group, axis.runs[0]
    labels = dict(zip(names, metric_names.labels_of(names, group), strict=True))
    for index, (name, label) in enumerate(labels.items()):
        kind, series = metric_names.kind_of(name), curves[name]
        if kind == "baseline":
            look: dict[str, Any] = {"colour": "muted", "dash": (5.0, 3.0), "width": 1.4, "value": _last(series)}
            drawn.append(_level(series.last, drawn, axis, name=name, label=label, **look))
            continue
        hue = sum(metric_names.kind_of(earlier) == kind for earlier in names[:index])
        # Outside the scores panel the first hue belongs to training.
        colours: tuple[str, ...] = ("line", *OTHERS)
        if kind == "eval":
            colours = ("evaluation", *(colours if group == "scores" else OTHERS))
        # A schedule has no noise: smoothing only delays it.
        is_smoothed = kind == "train" and group != "learning_rate"
        looks: dict[str, Any] = {"name": name, "label": label, "width": 1.9 if kind == "train" else 1.4}
        looks |= {"smoothing": view.smoothing if is_smoothed else 0.0, "is_dotted": kind == "eval"}
        looks |= {"colour": colours[hue % len(colours)], "dash": DASHES[(hue + hue // len(colours)) % len(DASHES)]}
        drawn.append(trace_of(series, axis.positions[0][name], axis, round(size[0]), **looks))
    for name, sign, number in view.limits:
        if name in labels:
            look = {"name": f"{name} {sign} {number}", "label": f"{labels[name]} {sign} {number}", "value": ""}
            look |= {"colour": "alarm", "dash": (4.0, 4.0), "width": 1.0, "is_limit": True}
            drawn.append(_level(float(number), drawn, axis, **look))
    return drawn


def _level(y: float, drawn: Sequence[Trace], axis: Axis, **look: Any) -> Trace:
    """Return a horizontal line, read at the positions of another curve."""
    x = next((one.x for one in drawn if len(one.x) > 1), np.array(axis.limits))
    ys = np.full(len(x), y)
    return Trace(x=x, low=ys, high=ys, mean=ys, bold=ys, **look)


def _legible(drawn: Sequence[Trace], room: float) -> list[Trace]:
    """Leave out values, last ones first, until the legend's line, of `room` pixels, holds all."""
    shown = list(drawn)
    for index in reversed(range(len(shown))):
        if metric_names.legend_width(f"{item.label} {item.value}".strip() for item in shown) > room:
            shown[index] = replace(shown[index], value="")
    return shown


def _marks(view: View, axis: Axis) -> list[Mark]:
    best = min((loss for _, loss in view.checkpoints if loss is not None and np.isfinite(loss)), default=np.nan)
    kinds = ((step, loss, "best" if loss == best else "checkpoint") for step, loss in view.checkpoints)
    marks = [Mark(axis.of_step(step), loss, step, kind, f"step {step:,}") for step, loss, kind in kinds]
    return [mark for mark in marks if axis.limits[0] <= mark.x <= axis.limits[1]]


def _resumes(view: View, axis: Axis, *, is_labelled: bool) -> dict[str, Any]:
    """Return the resume, the restarts and the flags as `cuts`, and where the parent's part ends as `veil`."""
    at = None if view.resumed_at is None else axis.of_step(view.resumed_at)
    about = "about " if view.is_resume_estimated else ""
    text = f"resumed at {about}{view.resumed_at:,}" if is_labelled and view.resumed_at is not None else ""
    cuts = [*([(at, text)] if at is not None else []), *((axis.of_step(step), "") for step in view.restarted_at)]
    cuts += [(axis.of_step(step), numbers) for step, numbers in view.flags]
    left, right = axis.limits
    veil = min(at, right) if at is not None and at > left else None
    return {"cuts": [(x, label) for x, label in cuts if left < x < right], "veil": veil}


def _badge(names: Sequence[str], axis: Axis) -> Badge | None:
    """Return the badge of the curve that diverged first, else of the first value that is not finite."""
    measured = [name for name in names if metric_names.kind_of(name) != "baseline"]
    found = [(one, name) for name in measured if (one := decimation.break_of(axis.runs[0][name]))]
    if not found:
        return None
    first, name = min(found, key=lambda each: (not each[0].is_end, each[0].step))
    at = f"step {first.step:,}"
    text = f"diverged at {at}" if first.is_end else f"{first.count:,} not finite, first at {at}"
    return Badge(text, float(axis.positions[0][name][first.index]))


def log10(values: Floats) -> Floats:
    """Return log10, NaN for values that have none."""
    return np.log10(np.where(values > 0, values, np.nan))
