"""`compare`: runs side by side in a notebook, live while they train; and their picture as a PNG file."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.core.interactiveshell import InteractiveShell

from nbtools.errors import NbtoolsError, plural
from nbtools.notebook.comparison.curve_reader import CurveReader
from nbtools.notebook.comparison.overlay import coarse_parts, overlay, run_legend
from nbtools.notebook.comparison.tables_html import tables_html
from nbtools.notebook.html_parts import LIVE, PICTURE, note
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.panel.tab_html import uncommitted
from nbtools.notebook.plots.figure import WIDTH, RunFigure, png_path
from nbtools.notebook.plots.live import LiveCharts
from nbtools.notebook.plots.view import KINDS, Options, X
from nbtools.notebook.theme import THEME
from nbtools.notebook.widgets import Output, close_tree, view_bundle
from nbtools.run.compare import Comparison, compare_runs
from nbtools.run.curves import read_curves

_REFRESH_S = 2.0
_READING_S = 0.3
_STORE_EVERY_S, _TABLES_EVERY_S = 60.0, 10.0
"""Least intervals of the static picture beside a canvas, and of the tables."""
_DRAW_EVERY_S, _DRAW_SHARE = 5.0, 20
"""Least interval of drawings while long runs are read: in seconds, and as a multiple of a drawing's duration."""
_CSS = Path(__file__).with_name("comparison.css").read_text(encoding="utf-8")
_STYLE = f"<style>{_CSS}{THEME}</style><div class='nbtools-comparison-cover'></div>"


def compare(
    *runs: object,
    x: X = "step",
    log: bool = False,
    smoothing: float = 0.6,
    split: str = "",
    metrics: Sequence[str] = (),
    dark: bool = False,
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
        dark: light lines on a dark background in the stored picture.

    Raises:
        RunNotFoundError: a reference or pattern fits no run.
        ConfigError: fewer than two runs can be read, or no run has the field of `split`.
    """
    options = Options(x=x, log=log, smoothing=smoothing, split=split, metrics=tuple(metrics))
    return ComparisonPanel(compare_runs(*runs), options, dark=dark)


def save_comparison(refs: Sequence[object], path: str | Path, *, dark: bool = False, **options: Any) -> Comparison:
    """Write the picture of a comparison as a PNG file, from all rows; `options` are those of `Options`.

    Raises:
        ValueError: the path does not end in `.png`.
        ConfigError: fewer than two runs can be read.
    """
    path = png_path(path)
    comparison = compare_runs(*refs)
    figure = RunFigure(dark=dark, runs=run_legend(comparison.labels))
    curves = [read_curves(run) for run in comparison.runs]
    charts = overlay(comparison, curves, Options(**options), figure.sizes)
    path.write_bytes(figure.png(charts, _title(comparison)))
    return comparison


def _title(comparison: Comparison) -> str:
    names = list(dict.fromkeys(run.name for run in comparison.runs))
    shown = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other name')}" if len(names) > 3 else "")
    return f"{plural(len(comparison.runs), 'run')}: {shown}"


class ComparisonPanel(LiveView):
    """Runs side by side as widgets, with a static picture and tables that a saved notebook keeps.

    Attributes:
        comparison: What is compared and what differs.
        widget: The widgets, to place into others; without the tables if the panel itself is displayed.
    """

    def __init__(self, comparison: Comparison, options: Options, *, dark: bool = False) -> None:
        super().__init__("comparison")
        self.comparison = comparison
        self._given, self._figure = options, RunFigure(dark=dark, runs=run_legend(comparison.labels))
        self._reader = CurveReader(comparison.runs)
        self._png, self._tables, self._pictured_at, self._stored_at = b"", "", 0.0, 0.0
        self._is_changed, self._draw_after = True, 0.0
        self._charts = LiveCharts(self._lock, self._hear, options.x, self._figure.height)
        self._charts.image.add_class(PICTURE)
        names = {difference.name for difference in comparison.differences}
        fields = sorted((names - {"code.script"} | {options.split}) - {""})
        self._x = widgets.Dropdown(description="x axis", options=KINDS, value=options.x, layout={"width": "auto"})
        self._split = widgets.Dropdown(
            options=[("nothing", ""), *zip(fields, fields, strict=True)], value=options.split, layout={"width": "auto"}
        )
        self._split.description = "Split by"
        self._log = widgets.ToggleButton(description="Log scale", value=options.log, layout={"width": "auto"})
        self._smoothing = widgets.FloatSlider(
            description="Smoothing", value=options.smoothing, max=0.99, step=0.01, continuous_update=False
        )
        self._note, self._words, self._code = widgets.HTML(), widgets.HTML(), widgets.HTML()
        if "code.uncommitted" in names:  # in a widget, since a saved notebook is not for the user alone
            runs = zip(comparison.runs, comparison.labels, strict=True)
            self._code.value = "".join(uncommitted(run, f" of {label}") for run, label in runs)
        row = widgets.HBox([self._x, self._split, self._log, self._smoothing], layout={"flex_flow": "row wrap"})
        self._drawn = widgets.VBox([self._charts.image, self._charts.box, row, self._note, self._code]).add_class(LIVE)
        self.widget = widgets.VBox([self._drawn, self._words])
        self.refresh()  # raises ConfigError for a wrong split
        self._x.observe(lambda change: self._charts.choices.take({"x": change.new}), "value")
        for each in (self._x, self._split, self._log, self._smoothing):
            each.observe(self._changed, "value")
        answers_beside_cells(self.widget)
        self._start()

    def __repr__(self) -> str:
        return f"<comparison of {plural(len(self.comparison.runs), 'run')}>"

    # --- display ---

    def _outputs(self) -> list[Output]:
        """Return a mark, the static picture, the widgets and the tables."""
        size = {"width": WIDTH, "height": self._figure.height}
        return [
            ({"text/html": _STYLE, "text/plain": repr(self)}, {}),
            ({"image/png": self._png, "text/plain": ""}, {"image/png": size}),
            (view_bundle(self._drawn, ""), {}),
            ({"text/html": self._tables, "text/plain": ""}, {}),
        ]

    # --- keeping it up to date ---

    def refresh(self) -> None:
        """Read new rows and draw them."""
        with self._lock:
            self._is_changed |= not self._is_closed and self._reader.look()
            if self._is_changed and not self._is_closed:
                self._draw_all()

    def wait(self, timeout_s: float | None = None) -> "ComparisonPanel":
        """Wait until all runs have ended and their curves are read, then draw them; returns this panel.

        Raises:
            TimeoutError: a run has not ended after `timeout_s`; it continues.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for run in self.comparison.runs:
            run.wait(None if deadline is None else max(0.0, deadline - time.monotonic()), check=False)
        while not self._is_closed:
            with self._lock:
                self._reader.look()
                if not self._reader.is_reading or not self._reader.num_unread:
                    self._compare_again()
                    self._draw_all()
                    self._store()
                    break
            time.sleep(_READING_S)
        return self

    def close(self) -> None:
        """End the thread and remove the widgets; the runs continue."""
        self._end()
        self._reader.close()
        close_tree(self.widget)

    def _work(self) -> None:
        is_last = False
        while not self._is_closed:
            is_done = is_last
            try:
                with self._lock:
                    if self._is_closed:
                        return
                    ended = all(run.state.is_final for run in self.comparison.runs)
                    is_last = ended and not (self._reader.num_unread and self._reader.is_reading)
                    again = self._compare_again() if not ended or is_last else False
                    self._is_changed |= self._reader.look() or again
                    if self._is_changed and (not self._reader.is_reading or time.monotonic() > self._draw_after):
                        self._draw_all()
                        self._store()
                    if is_done and is_last:
                        self._thread = None
                        return
            except (NbtoolsError, OSError) as error:  # a run was removed, or its disk is away
                self._note.value = note(str(error), is_warning=True)
            self._wake.wait(_READING_S if self._reader.is_reading else _REFRESH_S)
            self._wake.clear()

    def _compare_again(self) -> bool:
        """Read the records again, which an active run adds to; returns whether a difference changed."""
        before = self.comparison
        now = compare_runs(before.runs)
        if len(now.runs) != len(before.runs) or (now.differences, now.nproc) == (before.differences, before.nproc):
            return False
        self.comparison = replace(now, runs=before.runs, labels=before.labels, notes=before.notes)
        return True

    def _hear(self) -> None:
        """Draw after a message of the page, whose canvas chooses the x axis itself."""
        self._x.layout.display = "none" if self._charts.choices.is_ready else ""
        self._changed()

    def _changed(self, *_: object) -> None:
        with self._lock:
            if not self._is_closed:
                self._draw()

    @property
    def _options(self) -> Options:
        own = {"log": self._log.value, "smoothing": self._smoothing.value, "split": self._split.value}
        return Options(**self._charts.choices.options(self._given.metrics), **own)

    def _draw_all(self) -> None:
        began = time.monotonic()
        self._draw()
        self._tables = self._words.value = tables_html(self.comparison, self._reader.curves)
        now = time.monotonic()
        self._is_changed, self._draw_after = False, now + max(_DRAW_EVERY_S, _DRAW_SHARE * (now - began))

    def _draw(self) -> None:
        """Draw the canvas where a page shows it, else a picture."""
        curves, choices, unread = self._reader.curves, self._charts.choices, self._reader.num_unread
        reading = f"{plural(unread, 'run')} with first and last rows only: the rest is being read" if unread else ""
        if choices.is_ready and not choices.is_hidden:
            options, sizes = self._options, self._charts.sizes
            charts = overlay(self.comparison, curves, options, sizes)
            width = sizes(len(charts.shown))[0][0] if charts.shown and charts.is_zoomed else 0.0
            if parts := coarse_parts(self.comparison, curves, charts, width):
                charts = overlay(self.comparison, self._reader.closer(parts), options, sizes)
            self._charts.show(charts, f"curves of {_title(self.comparison)}")
        if not choices.is_ready:
            self._draw_picture(reading)
        self._note.value = note(reading)

    def _draw_picture(self, subtitle: str = "") -> None:
        options = replace(self._options, span=None)
        charts = overlay(self.comparison, self._reader.curves, options, self._figure.sizes)
        self._png, self._pictured_at = self._figure.png(charts, _title(self.comparison), subtitle), time.monotonic()
        self._charts.show_picture(self._png)

    def _store(self) -> None:
        """Renew the static outputs, which a saved notebook keeps."""
        if not InteractiveShell.initialized():
            return
        is_last = not self._reader.num_unread and all(run.state.is_final for run in self.comparison.runs)
        stored, now = [1, 3], time.monotonic()
        if self._charts.choices.is_ready:  # the picture is for the saved notebook alone
            if is_last or now - self._pictured_at >= _STORE_EVERY_S:
                self._draw_picture()
            elif now - self._stored_at < _TABLES_EVERY_S:
                return
            else:
                stored = [3]
        self._stored_at = now
        self._displays.replace(self._outputs(), which=stored)
