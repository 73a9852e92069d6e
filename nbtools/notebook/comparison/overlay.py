"""The charts of several runs: one chart per metric, one colour per run, for the canvas, the picture and a file."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from nbtools.errors import plural
from nbtools.notebook.plots import charts
from nbtools.notebook.plots.decimation import break_of
from nbtools.notebook.plots.figure import RunFigure, png_path
from nbtools.notebook.plots.metric_names import grouped, kind_of
from nbtools.notebook.plots.view import Axis, Options
from nbtools.run.compare import Comparison, compare_runs
from nbtools.run.curves import Curves, read_curves

_NUM_HUES: Final = 10
"""Runs after these have the same hues, dashed."""
_NUM_OPEN: Final = 4


def role(index: int) -> tuple[str, tuple[float, ...]]:
    """Return the colour's role and the dash of a run: ten hues, then the same ten dashed."""
    return f"run{index}", charts.DASHES[1] if index >= _NUM_HUES else ()


def run_legend(comparison: Comparison) -> list[tuple[str, str, tuple[float, ...]]]:
    """Return label, colour and dash of each run, for the legend of a `RunFigure`."""
    return [(label, *role(slot)) for label, slot in zip(comparison.labels, comparison.slots, strict=True)]


def overlay(comparison: Comparison, curves: Sequence[Curves], options: Options, sizes: charts.Sizes) -> charts.Charts:
    """Return one chart per metric with the curves of all runs; with `split`, one per metric and value of that field.

    Args:
        sizes: see `charts.Sizes`.

    Raises:
        ConfigError: no run has the field of `split`.
    """
    split = comparison.values(options.split) if options.split else [""] * len(comparison.runs)
    parts = _parts(curves, options, split)
    if not parts:
        none = "These runs have recorded no metrics yet" if comparison.runs else "No run is drawn: show one in the list"
        return charts.Charts(message=none)
    first = next((part.names[0] for part in parts if part.is_open), "")

    @cache
    def traces(name: str, axis: Axis, columns: int) -> list[charts.Trace]:
        """Return the curves of all runs: the charts of one metric have the same y axis."""
        is_smoothed = options.smoothing > 0 and kind_of(name) == "train" and not name.endswith("learning_rate")
        looks: dict[str, Any] = {"smoothing": options.smoothing * is_smoothed, "name": name, "label": "", "width": 1.6}
        looks["is_dotted"] = not is_smoothed and kind_of(name) == "eval"
        found = []
        for i, run in enumerate(axis.runs):
            if name in run:
                looks["run"], looks["colour"], looks["dash"] = run_legend(comparison)[i]
                found.append(charts.trace_of(run[name], axis.positions[i][name], axis, columns, **looks))
        return found

    def draw(part: charts.Chart, axis: Axis, size: charts.Size) -> charts.Chart:
        (name,) = part.names
        members = {i for i, run in enumerate(axis.runs) if name in run and _key(name, options, split[i]) == part.key}
        badge = _badge(comparison, axis, name, members) if name == first else None
        every = traces(name, axis, round(size[0]))
        chart = charts.scaled(replace(part, series=every, badge=badge), options, axis, size)
        labels = {comparison.labels[i] for i in members}
        return replace(chart, series=[trace for trace in chart.series if trace.run in labels])

    return charts.arranged(parts, curves, options, sizes, draw, _resumes(comparison))


def _key(name: str, options: Options, value: str) -> str:
    """Return the key of the chart of a metric and of the runs with a value of the field by which runs are split."""
    return f"{name}\0{options.split.rpartition('.')[2]} {value}" if options.split else name


def _parts(curves: Sequence[Curves], options: Options, split: Sequence[str]) -> list[charts.Chart]:
    """Return the charts, without their content, the usual metrics first."""
    steps = {name: one[name].steps for one in curves for name in one}  # of any run: only their presence matters
    found: list[charts.Chart] = []
    num_usual = max(_NUM_OPEN, len(set(split)))
    for group, names in grouped(cast(Any, steps)):
        for name in (name for name in names if kind_of(name) != "baseline"):
            for key in dict.fromkeys(_key(name, options, split[i]) for i, one in enumerate(curves) if name in one):
                is_open = options.opens(key, (name,), sum(part.is_open for part in found) < num_usual)
                found.append(charts.Chart(key, key.replace("\0", " · "), (name,), is_open, group=group))
    return found


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


def title_of_runs(comparison: Comparison) -> str:
    """Return how many runs are compared, and the first of their names."""
    names = list(dict.fromkeys(run.name for run in comparison.runs))
    shown = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other name')}" if len(names) > 3 else "")
    return f"{plural(len(comparison.runs), 'run')}: {shown}"


def save_comparison(refs: Sequence[object], path: str | Path, **options: Any) -> Comparison:
    """Write the picture of a comparison as a PNG file, from all rows; `options` are those of `Options`.

    Raises:
        ValueError: the path does not end in `.png`.
        ConfigError: fewer than two runs can be read.
    """
    path = png_path(path)
    comparison = compare_runs(*refs)
    figure = RunFigure(runs=run_legend(comparison))
    curves = [read_curves(run) for run in comparison.runs]
    charts = overlay(comparison, curves, Options(**options), figure.sizes)
    path.write_bytes(figure.png(charts, title_of_runs(comparison)))
    return comparison
