"""The charts of several runs: one chart per metric, one colour per run, for both the picture and the canvas."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, cast

import numpy as np

from nbtools.errors import plural
from nbtools.notebook.plots import charts
from nbtools.notebook.plots.decimation import break_of, number, smooth
from nbtools.notebook.plots.metric_names import grouped, kind_of
from nbtools.notebook.plots.view import Axis, Options, places
from nbtools.run.compare import Comparison
from nbtools.run.curves import Curves, Sketch

_NUM_HUES: Final = 10
"""Runs after these have the same hues, dashed."""
_NUM_OPEN: Final = 4
_FROM_ZERO: Final = ("learning_rate", "throughput", "grad_norm", "return")
_ANY_STEP: Final = 2**53


def role(index: int) -> tuple[str, tuple[float, ...]]:
    """Return the colour's role and the dash of a run: ten hues, then the same ten dashed."""
    return f"run{index}", charts.DASHES[1] if index >= _NUM_HUES else ()


def run_legend(comparison: Comparison, group: str = "") -> list[tuple[str, str, tuple[float, ...]]]:
    """Return label, colour and dash of each run, or of each group, for the legend of a `RunFigure`."""
    return [(label, *role(slot)) for label, slot in dict.fromkeys(_curves_of(comparison, group))]


def _curves_of(comparison: Comparison, group: str) -> list[tuple[str, int]]:
    """Return the name and the number of the colour of the curve that each run is in."""
    if not group:
        return [*zip(comparison.labels, comparison.slots, strict=True)]
    values, name = comparison.values(group), group.rpartition(".")[2]
    known = [*dict.fromkeys(values)]
    return [(f"{name} {value} ({plural(values.count(value), 'run')})", known.index(value)) for value in values]


def overlay(
    comparison: Comparison, curves: Sequence[Curves], options: Options, sizes: Callable[[int], Sequence[charts.Size]]
) -> charts.Charts:
    """Return one chart per metric with the curves of all runs; with `split`, one per metric and value of that field.

    With `group`, a curve is the mean of the runs with one value of that field, and a band their range.

    Args:
        sizes: returns the sizes of the plot areas of a number of open charts; if there are fewer, the rest is closed.

    Raises:
        ConfigError: no run has the field of `split`.
    """
    split = comparison.values(options.split) if options.split else [""] * len(comparison.runs)
    parts = _parts(curves, options, split)
    if not parts:
        none = "These runs have recorded no metrics yet" if comparison.runs else "No run is drawn: show one in the list"
        return charts.Charts(message=none)
    first = next((part.names[0] for part in parts if part.is_open), "")
    sections = {_section(part.names[0]): part.key for part in reversed(parts) if part.is_open}
    num_open = sum(part.is_open for part in parts)
    heads = {*sections.values()} if 1 < len(sections) < num_open else set()  # not above each chart
    looks_of = _curves_of(comparison, options.group)

    @cache
    def traces(name: str, axis: Axis, columns: int) -> dict[tuple[str, str], charts.Trace]:
        """Return the curves by name and value of the split: the charts of one metric have the same y axis."""
        is_smoothed = options.smoothing > 0 and kind_of(name) == "train" and not name.endswith("learning_rate")
        looks: dict[str, Any] = {"smoothing": options.smoothing * is_smoothed, "name": name, "label": "", "width": 1.6}
        members: dict[tuple[str, str], list[int]] = {}
        for i, run in enumerate(axis.runs):
            if name in run:
                members.setdefault((looks_of[i][0], split[i]), []).append(i)
        found = {}
        for key, (i, *others) in members.items():
            colour, dash = role(looks_of[i][1])
            look = {**looks, "colour": colour, "dash": dash, "run": key[0]}
            if others:
                every = [(axis.positions[n][name], axis.runs[n][name]) for n in (i, *others)]
                found[key] = _mean_of(every, axis, columns, **look)
            else:
                look["is_dotted"] = not is_smoothed and kind_of(name) == "eval"
                found[key] = charts.trace_of(axis.runs[i][name], axis.positions[i][name], axis, columns, **look)
        return found

    def draw(part: charts.ChartPart, axis: Axis, size: charts.Size) -> charts.Chart:
        (name,) = part.names
        can_log = not name.endswith(("learning_rate", "_per_s"))
        is_log = can_log and options.log != (part.key in options.switched)
        members = {i for i, run in enumerate(axis.runs) if name in run and split[i] == part.group}
        badge = _badge(comparison, axis, name, members) if name == first else None
        every = traces(name, axis, round(size[0]))
        section = _section(name) if part.key in heads else ""
        drawn: dict[str, Any] = {"series": [*every.values()], "badge": badge, "section": section}
        chart = charts.Chart(part.key, part.title, (name,), True, is_log, can_log, **drawn)
        from_zero = name.rpartition("/")[2].startswith(_FROM_ZERO) or name.endswith("_per_s")
        chart = charts.chart_of(chart, axis.limits, axis.kind, size, from_zero=from_zero)
        return replace(chart, series=[trace for (_, value), trace in every.items() if value == part.group])

    return charts.arranged(parts, curves, options, sizes, draw, _resumes(comparison))


def coarse_parts(
    comparison: Comparison, curves: Sequence[Curves], drawn: charts.Charts, width: float
) -> dict[int, tuple[int, int]]:
    """Return the first and last step of the part of each run, by index, whose columns are wider than a pixel.

    `width` is that of a plot area in pixels.
    """
    found: dict[int, tuple[int, int]] = {}
    for index, (label, one, resumed) in enumerate(zip(comparison.labels, curves, _resumes(comparison), strict=True)):
        names = {trace.name for chart in drawn.shown for trace in chart.series if trace.run == label}
        for name, x in places({n: one[n] for n in names if n in one}, drawn.x, resumed).items():
            steps, counts = one[name].steps, one[name].counts
            start, stop = int(np.searchsorted(x, drawn.limits[0])), int(np.searchsorted(x, drawn.limits[1], "right"))
            shown = counts[max(0, start - 1) : stop + 1]
            if stop - start >= width or not len(shown) or shown.max() <= 1:
                continue
            first = int(steps[start - 1]) if start else -_ANY_STEP
            last = int(steps[stop]) if stop < len(steps) else _ANY_STEP
            known = found.get(index, (first, last))
            found[index] = min(first, known[0]), max(last, known[1])
    return found


def _parts(curves: Sequence[Curves], options: Options, split: Sequence[str]) -> list[charts.ChartPart]:
    """Return the charts, the usual metrics first; each is of a metric and of the runs with one value of the split."""
    steps = {name: one[name].steps for one in curves for name in one}  # of any run: only their presence matters
    names = [name for _, names in grouped(cast(Any, steps)) for name in names if kind_of(name) != "baseline"]
    num_usual = max(_NUM_OPEN, len(set(split))) if options.split else _NUM_OPEN
    found: list[charts.ChartPart] = []
    for name in names:
        for value in dict.fromkeys(value for one, value in zip(curves, split, strict=True) if name in one):
            key = f"{name}\0{options.split.rpartition('.')[2]} {value}" if options.split else name
            is_open = options.opens(key, (name,), sum(part.is_open for part in found) < num_usual)
            found.append(charts.ChartPart(key, key.replace("\0", " · "), (name,), is_open, value))
    sections = [*dict.fromkeys(_section(part.names[0]) for part in found)]
    return sorted(found, key=lambda part: sections.index(section) + 1 if (section := _section(part.names[0])) else 0)


def _section(name: str) -> str:
    """Return the part of a metric's name before the slash, the heading of its charts; empty without."""
    return name.rpartition("/")[0]


def _mean_of(
    curves: Sequence[tuple[Any, Any]], axis: Axis, columns: int, *, smoothing: float, **looks: Any
) -> charts.Trace:
    """Return the mean of several curves, as far as each goes, and their least and greatest value as its band."""
    x, rows = np.linspace(*axis.limits, columns), []
    for places_, curve in curves:
        values = curve.mean if isinstance(curve, Sketch) else curve.values
        known = np.isfinite(values)  # of no value, a place before the axis is drawn nowhere
        at, values = np.append(places_[known], np.inf), np.append(values[known], np.nan)
        rows.append(np.interp(x, at, values, left=np.nan))
    every = np.stack(rows)
    used = np.isfinite(every).any(axis=0)
    x, every = x[used], every[:, used]
    mean = np.nanmean(every, axis=0)
    bold = smooth(mean, smoothing) if smoothing else mean
    low, high = np.nanmin(every, axis=0), np.nanmax(every, axis=0)
    value = number(float(mean[-1])) if len(mean) else ""
    return charts.Trace(x=x, low=low, high=high, mean=mean, bold=bold, value=value, is_smoothed=True, **looks)


def _resumes(comparison: Comparison) -> list[list[int]]:
    return [sorted(step for _, step in sources) for sources in comparison.sources]


def _badge(comparison: Comparison, axis: Axis, name: str, members: set[int]) -> charts.Badge | None:
    """Return the badge of the run that diverged first."""
    broken = [(one.step, i, one.index) for i in members if (one := break_of(axis.runs[i][name])) and one.is_end]
    if not broken:
        return None
    step, first, index = min(broken)
    more = f" and {plural(len(broken) - 1, 'more run')}" if len(broken) > 1 else ""
    text = f"{comparison.labels[first][:24]}{more} diverged at step {step:,}"
    return charts.Badge(text, float(axis.positions[first][name][index]))
