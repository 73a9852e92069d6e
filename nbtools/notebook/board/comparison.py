"""`compare`: the board with some runs drawn; and their picture as a PNG file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbtools.notebook.board.board import Board, title_of_runs
from nbtools.notebook.board.overlay import overlay, run_legend
from nbtools.notebook.plots.figure import RunFigure, png_path
from nbtools.notebook.plots.view import Options, X
from nbtools.run.compare import Comparison, compare_runs
from nbtools.run.curves import read_curves


def compare(
    *runs: object,
    x: X = "step",
    log: bool = False,
    smoothing: float = 0.6,
    split: str = "",
    metrics: Sequence[str] = (),
    dark: bool = False,
) -> Board:
    """Show the board with some runs: their curves over each other, what differs, best and last values.

    The runs may be of any script and in any state; active ones are followed. At most 20 are drawn, one colour each.
    The switch *Drawn* above the list shows the other runs of the project, too.
    Runs that differ in the number of processes get a card on how training scales.

    Args:
        runs: runs, ids, names, or patterns such as `"lr_*"` for names and ids; lists of these.
        x: unit of the x axis: step, samples, relative (time since the start) or time (of the clock).
        log: logarithmic y axes.
        smoothing: weight of earlier values in the bold lines of training metrics, 0 to below 1.
        split: a field, such as `"learning_rate"`: each of its values has charts of its own.
        metrics: patterns of the metrics to show first, such as `("eval/*",)`; the usual ones by default.
        dark: light lines on a dark background in the stored picture.

    Raises:
        RunNotFoundError: a reference or pattern fits no run.
        ConfigError: fewer than two runs can be read, or no run has the field of `split`.
    """
    options = Options(x=x, log=log, smoothing=smoothing, split=split, metrics=tuple(metrics))
    return Board.of(compare_runs(*runs), options, dark=dark)


def save_comparison(refs: Sequence[object], path: str | Path, *, dark: bool = False, **options: Any) -> Comparison:
    """Write the picture of a comparison as a PNG file, from all rows; `options` are those of `Options`.

    Raises:
        ValueError: the path does not end in `.png`.
        ConfigError: fewer than two runs can be read.
    """
    path = png_path(path)
    comparison = compare_runs(*refs)
    figure = RunFigure(dark=dark, runs=run_legend(comparison))
    curves = [read_curves(run) for run in comparison.runs]
    charts = overlay(comparison, curves, Options(**options), figure.sizes)
    path.write_bytes(figure.png(charts, title_of_runs(comparison)))
    return comparison
