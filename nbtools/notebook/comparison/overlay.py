"""The charts of several runs: one chart per metric, one colour per run, for the canvas, the picture and a file."""

from collections.abc import Iterable, Sequence
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
from nbtools.run.compare import ComparedRun, Comparison, compare_runs
from nbtools.run.curves import read_curves
from nbtools.run.run import Run

_NUM_HUES: Final = 10
"""Runs after these have the same hues, dashed."""
_NUM_OPEN: Final = 4


def role(index: int) -> tuple[str, tuple[float, ...]]:
    """Return the colour's role and the dash of a run: ten hues, then the same ten dashed."""
    return f"run{index}", charts.DASHES[1] if index >= _NUM_HUES else ()


def run_legend(runs: Iterable[ComparedRun]) -> list[tuple[str, str, tuple[float, ...]]]:
    """Return label, colour and dash of each run, for the legend of a `RunFigure`."""
    return [(run.label, *role(run.slot)) for run in runs]


def overlay(runs: Sequence[ComparedRun], options: Options, sizes: charts.Sizes) -> charts.Charts:
    """Return one chart per metric with the curves of all runs; with `split`, one per metric and value of that field.

    Args:
        runs: the runs with their values of that field; see `Comparison.split_by`.
        sizes: see `charts.Sizes`.
    """
    parts = _parts(runs, options)
    if not parts:
        none = "These runs have recorded no metrics yet" if runs else "No run is drawn: show one in the list"
        return charts.Charts(message=none)
    first = next((part.names[0] for part in parts if part.is_open), "")

    @cache
    def traces(name: str, axis: Axis, columns: int) -> list[charts.Trace]:
        """Return the curves of all runs: the charts of one metric have the same y axis."""
        is_smoothed = options.smoothing > 0 and kind_of(name) == "train" and not name.endswith("learning_rate")
        looks: dict[str, Any] = {"smoothing": options.smoothing * is_smoothed, "name": name, "label": "", "width": 1.6}
        looks["is_dotted"] = not is_smoothed and kind_of(name) == "eval"
        found = []
        for look, curves, places in zip(run_legend(runs), axis.runs, axis.positions, strict=True):
            if name in curves:
                looks["run"], looks["colour"], looks["dash"] = look
                found.append(charts.trace_of(curves[name], places[name], axis, columns, **looks))
        return found

    def draw(part: charts.Chart, axis: Axis, size: charts.Size) -> charts.Chart:
        (name,) = part.names
        members = [i for i, run in enumerate(runs) if name in axis.runs[i] and _key(name, options, run) == part.key]
        badge = _badge(runs, axis, name, members) if name == first else None
        every = traces(name, axis, round(size[0]))
        chart = charts.scaled(replace(part, series=every, badge=badge), options, axis, size)
        labels = {runs[i].label for i in members}
        return replace(chart, series=[trace for trace in chart.series if trace.run in labels])

    resumes = [sorted(step for _, step in run.sources) for run in runs]
    return charts.arranged(parts, [run.curves for run in runs], options, sizes, draw, resumes)


def _key(name: str, options: Options, run: ComparedRun) -> str:
    """Return the key of the chart of a metric and of the runs with a value of the field by which runs are split."""
    return f"{name}\0{options.split.rpartition('.')[2]} {run.part}" if options.split else name


def _parts(runs: Sequence[ComparedRun], options: Options) -> list[charts.Chart]:
    """Return the charts, without their content, the usual metrics first."""
    steps = {name: sketch.steps for run in runs for name, sketch in run.curves.items()}  # only their presence matters
    found: list[charts.Chart] = []
    num_usual = max(_NUM_OPEN, len({run.part for run in runs}))
    for group, names in grouped(cast(Any, steps)):
        for name in (name for name in names if kind_of(name) != "baseline"):
            for key in dict.fromkeys(_key(name, options, run) for run in runs if name in run.curves):
                is_open = options.opens(key, (name,), sum(part.is_open for part in found) < num_usual)
                found.append(charts.Chart(key, key.replace("\0", " · "), (name,), is_open, group=group))
    return found


def _badge(runs: Sequence[ComparedRun], axis: Axis, name: str, members: Iterable[int]) -> charts.Badge | None:
    """Return the badge of the run that diverged first."""
    broken = [(one.step, i, one.index) for i in members if (one := break_of(axis.runs[i][name])) and one.is_end]
    if not broken:
        return None
    step, first, index = min(broken)
    more = f" and {plural(len(broken) - 1, 'more run')}" if len(broken) > 1 else ""
    text = f"{runs[first].label[:24]}{more} diverged at step {step:,}"
    return charts.Badge(text, float(axis.positions[first][name][index]))


def title_of_runs(runs: Sequence[Run]) -> str:
    """Return how many runs are compared, and the first of their names."""
    names = list(dict.fromkeys(run.name for run in runs))
    shown = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other name')}" if len(names) > 3 else "")
    return f"{plural(len(runs), 'run')}: {shown}"


def save_comparison(refs: Sequence[object], path: str | Path, **options: Any) -> Comparison:
    """Write the picture of a comparison as a PNG file, from all rows; `options` are those of `Options`.

    Raises:
        ValueError: the path does not end in `.png`.
        ConfigError: fewer than two runs can be read, or no run has the field of `split`.
    """
    path, chosen = png_path(path), Options(**options)
    comparison = compare_runs(*refs)
    runs = comparison.with_curves(read_curves).split_by(chosen.split)
    figure = RunFigure(runs=run_legend(runs))
    path.write_bytes(figure.png(overlay(runs, chosen, figure.sizes), title_of_runs(comparison.runs)))
    return comparison
