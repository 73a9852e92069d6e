"""`compare`: runs side by side in a notebook, live while they train; and their picture as a PNG file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.errors import NbtoolsError, plural
from nbtools.notebook.comparison.curve_reader import CurveReader
from nbtools.notebook.comparison.overlay import coarse_parts, overlay, run_legend
from nbtools.notebook.comparison.tables_html import tables_html
from nbtools.notebook.html_parts import LIVE, note
from nbtools.notebook.plots.chart_view import ChartView
from nbtools.notebook.plots.charts import Charts, Size
from nbtools.notebook.plots.figure import RunFigure, png_path
from nbtools.notebook.plots.view import Options, X
from nbtools.notebook.run_html import uncommitted
from nbtools.notebook.widgets import answers_beside_cells, html_widget, in_row
from nbtools.run.compare import Comparison, compare_runs
from nbtools.run.curves import read_curves

_REFRESH_S, _READING_S = 2.0, 0.3
"""Between two looks at the runs, and while the rows of long ones are read."""


def compare(
    *runs: object,
    x: X = "step",
    log: bool = False,
    smoothing: float = 0.6,
    split: str = "",
    metrics: Sequence[str] = (),
) -> "ComparisonPanel":
    """Show runs side by side: their curves over each other, what differs, best and last values.

    The runs may be of any script and in any state; active ones are followed. At most 20 are drawn, one colour each.
    Runs that differ in the number of processes get a card on how training scales.

    Args:
        runs: runs, ids, names, or patterns such as `"lr_*"` for names and ids; lists of these.
        x: unit of the x axis: step, samples, relative (time since the start) or time (of the clock).
        log: logarithmic y axes.
        smoothing: weight of earlier values in the bold lines of training metrics, 0 to below 1.
        split: a field, such as `"learning_rate"`: each of its values has charts of its own.
        metrics: patterns of the metrics to show first, such as `("eval/*",)`; the usual ones by default.

    Raises:
        RunNotFoundError: a reference or pattern fits no run.
        ConfigError: fewer than two runs can be read, or no run has the field of `split`.
    """
    options = Options(x=x, log=log, smoothing=smoothing, split=split, metrics=tuple(metrics))
    return ComparisonPanel(compare_runs(*runs), options)


def save_comparison(refs: Sequence[object], path: str | Path, **options: Any) -> Comparison:
    """Write the picture of a comparison as a PNG file, from all rows; `options` are those of `Options`.

    Raises:
        ValueError: the path does not end in `.png`.
        ConfigError: fewer than two runs can be read.
    """
    path = png_path(path)
    comparison = compare_runs(*refs)
    figure = RunFigure(runs=run_legend(comparison.labels))
    curves = [read_curves(run) for run in comparison.runs]
    charts = overlay(comparison, curves, Options(**options), figure.sizes)
    path.write_bytes(figure.png(charts, _title(comparison)))
    return comparison


def _title(comparison: Comparison) -> str:
    names = list(dict.fromkeys(run.name for run in comparison.runs))
    shown = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other name')}" if len(names) > 3 else "")
    return f"{plural(len(comparison.runs), 'run')}: {shown}"


class ComparisonPanel(ChartView):
    """Runs side by side as widgets, with a static picture and tables that a saved notebook keeps.

    Attributes:
        comparison: What is compared and what differs.
        widget: The widgets, to place into others.
    """

    def __init__(self, comparison: Comparison, options: Options) -> None:
        self.comparison = comparison
        super().__init__("comparison", repr(self), options, runs=run_legend(comparison.labels))
        self._reader = CurveReader(comparison.runs)
        names = {difference.name for difference in comparison.differences}
        fields = sorted((names - {"code.script"} | {options.split}) - {""})
        choices = [("nothing", ""), *zip(fields, fields, strict=True)]
        self._split = widgets.Dropdown(description="Split by", options=choices, value=options.split)
        self._note, self._tables, code = html_widget(), html_widget(), html_widget()
        if "code.uncommitted" in names:  # in a widget, since a saved notebook is not for the user alone
            runs = zip(comparison.runs, comparison.labels, strict=True)
            code.value = "".join(uncommitted(run, f" of {label}") for run, label in runs)
        row = in_row(self._split, self._smoothing)
        parts = [self._image, self._box, row, self._note, code, self._tables]
        self.widget = widgets.VBox(parts).add_class(LIVE)
        self.refresh()  # raises ConfigError for a wrong split
        self._split.observe(self._changed, "value")
        answers_beside_cells(self.widget)
        self._start()

    def __repr__(self) -> str:
        return f"<comparison of {plural(len(self.comparison.runs), 'run')}>"

    # --- keeping it up to date ---

    def refresh(self) -> None:
        """Read new rows and draw them."""
        with self._lock:
            if not self._is_closed and self._reader.look():
                self._draw_all()

    def wait(self, timeout_s: float | None = None) -> "ComparisonPanel":
        """Wait until all runs have ended and their curves are read and drawn; returns this panel.

        Raises:
            TimeoutError: a run has not ended after `timeout_s`; it continues.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for run in self.comparison.runs:
            run.wait(None if deadline is None else max(0.0, deadline - time.monotonic()), check=False)
        while (thread := self._thread) is not None:
            self.refresh()  # raises what the thread shows: a run was removed
            self._wake.set()
            thread.join(_READING_S)
        return self

    def close(self) -> None:
        """End the thread and remove the widgets; the runs continue."""
        super().close()
        self._reader.close()

    def _work(self) -> None:
        while True:
            try:
                with self._lock:
                    # In this order: what was written or read before an end is seen by the look after it.
                    ended = all(run.state.is_final for run in self.comparison.runs)
                    was_reading = self._reader.is_reading
                    is_changed = not self._is_closed and self._reader.look()
                    is_last = ended and not (was_reading or self._reader.is_reading)
                    if (is_changed or is_last) and not self._is_closed:
                        self._draw_all()
                        self._store(at_once=is_last)
                    if is_last or self._is_closed:
                        self._thread = None
                        return
            except (NbtoolsError, OSError) as error:  # a run was removed, or its disk is away
                self._note.value = note(str(error), is_warning=True)
            self._wake.wait(_READING_S if self._reader.is_reading else _REFRESH_S)
            self._wake.clear()

    def _changed(self, *_: object) -> None:
        with self._lock:
            if not self._is_closed:
                self._draw()
                self._is_stored = False
                self._store()

    def _draw_all(self) -> None:
        before = self.comparison
        now = compare_runs(before.runs)  # an active run adds to its records
        if len(now.runs) == len(before.runs):
            self.comparison = replace(now, runs=before.runs, labels=before.labels, notes=before.notes)
        self._draw()
        self._tables.value = tables_html(self.comparison, self._reader.curves)
        unread = self._reader.num_unread
        remark = f"{plural(unread, 'run')} with first and last rows only: the rest is being read"
        self._note.value = note(remark if unread else "")
        self._is_stored = False

    # --- what is drawn ---

    @property
    def _alt(self) -> str:
        return f"curves of {_title(self.comparison)}"

    def _static(self) -> tuple[str, str, str]:
        return "", "", self._tables.value

    def _made(self, sizes: Callable[[int], Sequence[Size]]) -> Charts:
        """Return the charts, in a zoom with the rows of the part that is shown."""
        options, curves = Options(**self._options(), split=self._split.value), self._reader.curves
        charts = overlay(self.comparison, curves, options, sizes)
        width = sizes(len(charts.shown))[0][0] if charts.shown and charts.is_zoomed else 0.0
        if parts := coarse_parts(self.comparison, curves, charts, width):
            return overlay(self.comparison, self._reader.closer(parts), options, sizes)
        return charts
