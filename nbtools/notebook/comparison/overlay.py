"""The charts of several runs: one chart per metric, one colour per run, for both the picture and the canvas."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np

from nbtools.errors import plural
from nbtools.notebook.plots.charts import DASHES, Badge, Chart, Charts, Size, chart_of, trace_of
from nbtools.notebook.plots.decimation import Floats
from nbtools.notebook.plots.metric_names import grouped, kind_of, matches
from nbtools.notebook.plots.view import KINDS, Limits, X, common_unit, full_limits, pause_at, places_of_all
from nbtools.run.compare import Comparison
from nbtools.run.curves import Curves

_NUM_HUES: Final = 10
"""Runs after these have the same hues, dashed."""
_NUM_OPEN: Final = 4
_FROM_ZERO: Final = ("learning_rate", "throughput", "grad_norm", "return")
_ANY_STEP: Final = 2**53


@dataclass(frozen=True)
class Options:
    """Metrics and axes of a comparison."""

    x: X = "step"
    log: bool = False
    smoothing: float = 0.6
    split: str = ""
    """Name of a field: each of its values has a chart of its own."""
    span: Limits | None = None
    """Limits of the x axis in its unit; None for all."""
    metrics: Sequence[str] = ()
    """Patterns of the metrics whose charts are open; empty for the usual ones."""
    opened: Mapping[str, bool] = field(default_factory=dict)
    """Charts that were opened or closed by hand, by key."""
    switched: frozenset[str] = frozenset()
    """Charts whose y axis is linear if `log`, else logarithmic."""


def role(index: int) -> tuple[str, tuple[float, ...]]:
    """Return the colour's role and the dash of a run: ten hues, then the same ten dashed."""
    return f"run{index}", DASHES[1] if index >= _NUM_HUES else ()


def run_legend(labels: Sequence[str]) -> list[tuple[str, str, tuple[float, ...]]]:
    """Return label, colour and dash of each run, for the legend of a `RunFigure`."""
    return [(label, *role(index)) for index, label in enumerate(labels)]


def overlay(
    comparison: Comparison, curves: Sequence[Curves], options: Options, sizes: Callable[[int], Sequence[Size]]
) -> Charts:
    """Return one chart per metric with the curves of all runs; with `split`, one per metric and value of that field.

    Args:
        sizes: returns the sizes of the plot areas of a number of open charts; if there are fewer, the rest is closed.

    Raises:
        ConfigError: no run has the field of `split`.
    """
    charts = _charts(comparison, curves, options)
    if not charts:
        return Charts(message="These runs have recorded no metrics yet")
    areas = sizes(sum(is_open for _, _, _, is_open in charts))
    is_shown = {key: area for (key, *_), area in zip([c for c in charts if c[3]], areas, strict=False)}
    drawn = {name for key, name, _, _ in charts if key in is_shown} or {charts[0][1]}
    shown_first = next((name for key, name, _, _ in charts if key in is_shown), "")
    sketches = {f"{name} of {n}": one[name] for n, one in enumerate(curves, 1) for name in drawn & set(one)}
    unit, note, left_out = common_unit(sketches, has := places_of_all(sketches))
    curves = [
        {name: sketch for name, sketch in one.items() if f"{name} of {n}" not in left_out}
        for n, one in enumerate(curves, 1)
    ]
    charts = [(key, name, [i for i in members if name in curves[i]], is_open) for key, name, members, is_open in charts]
    kinds = [kind for kind in KINDS if has["time" if kind == "relative" else kind]]
    kind = options.x if options.x in kinds else "step" if has["step"] else "relative"
    places = [_places(one, drawn, kind, steps) for one, steps in zip(curves, _resumes(comparison), strict=True)]
    columns_x = [x for one in places for x in one.values()]
    full = full_limits(min(float(x[0]) for x in columns_x), max(float(x[-1]) for x in columns_x))
    limits = full if options.span is None else options.span
    limits = limits[0], max(limits[1], limits[0] + 1e-6 * (full[1] - full[0]))
    found: dict[str, Chart] = {}
    for key, name, members, _ in charts:
        title = key.replace("\0", " · ")
        if key not in is_shown:
            found[key] = Chart(key, title, (name,))
            continue
        can_log = not name.endswith(("learning_rate", "_per_s"))
        is_log = can_log and options.log != (key in options.switched)
        is_smoothed = options.smoothing > 0 and kind_of(name) == "train" and not name.endswith("learning_rate")
        columns, smoothing = round(is_shown[key][0]), options.smoothing if is_smoothed else 0.0
        given: dict[str, Any] = {"smoothing": smoothing, "is_dotted": smoothing == 0 and kind_of(name) == "eval"}
        given |= {"name": name, "label": "", "width": 1.6}
        traces = []
        for i in members:
            looks = given | {"colour": role(i)[0], "dash": role(i)[1], "run": comparison.labels[i]}
            traces.append(trace_of(curves[i][name], places[i][name], limits, full, columns, **looks))
        badge = _badge(comparison, curves, places, name, members) if name == shown_first else None
        found[key] = Chart(key, title, (name,), True, is_log, can_log, series=traces, badge=badge)
    for key, name, _, _ in charts:
        if key in is_shown:  # the charts of one metric have the same y axis
            chart = found[key]
            alike = [
                found[k] for k, n, _, _ in charts if n == name and k in is_shown and found[k].is_log == chart.is_log
            ]
            every = replace(chart, series=[trace for each in alike for trace in each.series])
            from_zero = name.rpartition("/")[2].startswith(_FROM_ZERO) or name.endswith("_per_s")
            placed = chart_of(every, limits, kind, is_shown[key], from_zero=from_zero)
            found[key] = replace(placed, series=chart.series)
    shared: dict[str, Any] = {"kinds": kinds, "unit": unit, "note": note}
    return Charts(kind, limits, full, options.span is not None, list(found.values()), **shared)


def coarse_parts(
    comparison: Comparison, curves: Sequence[Curves], charts: Charts, width: float
) -> dict[int, tuple[int, int]]:
    """Return the first and last step of the part of each run, by index, whose columns are wider than a pixel.

    `width` is that of a plot area in pixels.
    """
    found: dict[int, tuple[int, int]] = {}
    for index, (label, one, resumed) in enumerate(zip(comparison.labels, curves, _resumes(comparison), strict=True)):
        names = {trace.name for chart in charts.shown for trace in chart.series if trace.run == label}
        for name, x in _places(one, names, charts.x, resumed).items():
            steps, counts = one[name].steps, one[name].counts
            start, stop = int(np.searchsorted(x, charts.limits[0])), int(np.searchsorted(x, charts.limits[1], "right"))
            shown = counts[max(0, start - 1) : stop + 1]
            if stop - start >= width or not len(shown) or shown.max() <= 1:
                continue
            first = int(steps[start - 1]) if start else -_ANY_STEP
            last = int(steps[stop]) if stop < len(steps) else _ANY_STEP
            known = found.get(index, (first, last))
            found[index] = min(first, known[0]), max(last, known[1])
    return found


def _charts(
    comparison: Comparison, curves: Sequence[Curves], options: Options
) -> list[tuple[str, str, list[int], bool]]:
    """Return key, metric, runs and openness of each chart, the usual metrics first."""
    steps = {name: one[name].steps for one in curves for name in one}  # of any run: only their presence matters
    names = [name for _, names in grouped(cast(Any, steps)) for name in names if kind_of(name) != "baseline"]
    split = comparison.values(options.split) if options.split else [""] * len(comparison.runs)
    found: list[tuple[str, str, list[int], bool]] = []
    num_open = 0
    for name in names:
        for value in dict.fromkeys(split):
            members = [i for i, one in enumerate(curves) if name in one and split[i] == value]
            if not members:
                continue
            key = f"{name}\0{options.split.rpartition('.')[2]} {value}" if options.split else name
            usual = num_open < (_NUM_OPEN if not options.split else max(_NUM_OPEN, len(set(split))))
            is_open = options.opened.get(key, matches(name, options.metrics) if options.metrics else usual)
            num_open += is_open
            found.append((key, name, members, is_open))
    return found


# --- the x axis -------------------------------------------------------------------------------------


def _resumes(comparison: Comparison) -> list[list[int]]:
    return [[step for _, step in sources] for sources in comparison.sources]


def _places(curves: Curves, names: set[str], kind: X, resumed_at: Sequence[int]) -> dict[str, Floats]:
    """Return the positions of each metric's columns; the relative time leaves out the pauses before resumes."""
    found = {}
    shown = {name: curves[name] for name in names if name in curves}
    start = min((float(sketch.times[0]) for sketch in shown.values()), default=0.0) if kind == "relative" else 0.0
    for name, sketch in shown.items():
        if kind == "step":
            found[name] = sketch.steps
            continue
        x = sketch.samples if kind == "samples" else sketch.times - start
        if kind == "relative":
            for step in sorted(resumed_at):
                at = int(np.searchsorted(sketch.steps, step, "right"))
                x = np.concatenate((x[:at], x[at:] - pause_at(x, at)))
        found[name] = np.maximum.accumulate(x)
    return found


# --- curves -----------------------------------------------------------------------------------------


def _badge(
    comparison: Comparison,
    curves: Sequence[Curves],
    places: Sequence[Mapping[str, Floats]],
    name: str,
    members: Sequence[int],
) -> Badge | None:
    """Return the badge of the run that diverged first."""
    diverged = [(at, index) for index in members if (at := curves[index][name].diverged_at) is not None]
    if not diverged:
        return None
    at, index = min(diverged)
    column = min(int(np.searchsorted(curves[index][name].steps, at)), len(places[index][name]) - 1)
    more = f" and {plural(len(diverged) - 1, 'more run')}" if len(diverged) > 1 else ""
    return Badge(f"{comparison.labels[index][:24]}{more} diverged at step {at:,}", float(places[index][name][column]))
