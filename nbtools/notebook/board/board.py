"""The board: the list of runs, the charts of those that are drawn, what differs between these, and actions on runs.

Its thread reads the runs on the page of the list, then the curves, and looks at active runs every two seconds.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from nbtools.errors import NbtoolsError, plural
from nbtools.launcher.resume import resume
from nbtools.notebook.board.actions import BoardControls, Removal
from nbtools.notebook.board.curve_reader import CurveReader
from nbtools.notebook.board.overlay import coarse_parts, overlay, run_legend
from nbtools.notebook.board.row_values import takes_long
from nbtools.notebook.board.run_lines import RunLines
from nbtools.notebook.board.saved_layout import read_layout, save_layout
from nbtools.notebook.board.tables_html import tables_html
from nbtools.notebook.html_parts import note
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.panel.tab_html import uncommitted
from nbtools.notebook.plots.chart_view import ChartView
from nbtools.notebook.plots.charts import Charts, Size
from nbtools.notebook.plots.figure import RunFigure
from nbtools.notebook.plots.view import Options
from nbtools.notebook.widgets import answers_beside_cells
from nbtools.run.compare import MOST_RUNS, Comparison, compared
from nbtools.run.listing import Rows, RunList, RunRow
from nbtools.rundir.names import label
from nbtools.rundir.rundir import RunDir

REFRESH_S, _READING_S = 2.0, 0.3
"""Between two looks at the runs, and while the rows of long ones are read."""
NUM_DRAWN = 10
"""Newest runs that are drawn at first: each has a hue of its own."""


def title_of_runs(comparison: Comparison) -> str:
    """Return how many runs are compared, and the first of their names."""
    names = list(dict.fromkeys(run.name for run in comparison.runs))
    shown = ", ".join(names[:3]) + (f" and {plural(len(names) - 3, 'other name')}" if len(names) > 3 else "")
    return f"{plural(len(comparison.runs), 'run')}: {shown}"


class Board(ChartView):
    """The runs of a project, side by side.

    Args:
        lists: The runs to list, of one folder or of several.
        drawn: The runs that are drawn, and alone listed at first; by default, the newest are drawn and all are listed.
        options: What the charts show until the page chooses otherwise.
        dark: Dark picture.

    Attributes:
        comparison: What is drawn and what differs.
        widget: The widgets, to place into others.
    """

    def __init__(
        self,
        lists: Sequence[RunList],
        drawn: Comparison | None = None,
        options: Options | None = None,
        *,
        dark: bool = False,
    ) -> None:
        text = "a board of runs" if drawn is None else f"<comparison of {plural(len(drawn.runs), 'run')}>"
        super().__init__("board", text, options or Options(), dark=dark)
        self._runs, self.comparison = lists[0].rows.runs, drawn or compared(())
        layout, wrong = read_layout(self._runs)
        if not self._given.metrics:
            self._choices.opened |= layout.charts
        self._lines, self._reader = RunLines(lists, layout), CurveReader(self.comparison.runs)
        names = list(self._lines.rows)[:NUM_DRAWN] if drawn is None else [run.id for run in drawn.runs]
        self._lines.slots = {name: slot for slot, name in enumerate(names)}
        self._followed: list[str] = [] if drawn is None else names
        choices = self._search_changed, layout.group, drawn is not None
        self._removal = Removal(lambda: [self._run_of(row).dir for row in self._lines.chosen], self._act, self._tell)
        acts = {"open": self._open_run, "compare": self._compare, "stop": self._stop_runs, "resume": self._resume_run}
        curves = self._image, self._box, self._smoothing
        self._controls = BoardControls(acts, *choices, self._removal, self._save_labels, self._hear, curves)
        self.widget = self._controls.whole
        self._controls.plain.value = self._lines.plain()
        self._removal.forget(wrong)
        self._fill()
        if drawn is not None:
            self._offer_fields()
            self._controls.split.value = self._given.split
            self.refresh()  # raises ConfigError for a wrong split
        self._controls.split.observe(self._changed, "value")
        answers_beside_cells(self.widget)
        self._start()

    @classmethod
    def of(cls, comparison: Comparison, options: Options, *, dark: bool = False) -> Self:
        """Make the board of the folders of compared runs, which alone are drawn, and listed at first."""
        folders = dict.fromkeys(run.dir.parent.resolve() for run in comparison.runs)
        return cls([RunList(Rows(folder)) for folder in folders], comparison, options, dark=dark)

    def __repr__(self) -> str:
        return self._text

    # --- the list ---

    def _fill(self) -> None:
        """Filter and sort the runs, and show the current page."""
        self._lines.fill(self._controls.text.value, only_drawn=self._controls.drawn.value)
        self._show_lines()
        self._offer()

    def _show_lines(self) -> None:
        grid = self._controls.grid
        grid.list, grid.menu = self._lines.html(), self._lines.menu()

    def _offer(self) -> None:
        """Enable the buttons that apply to the ticked runs."""
        chosen, is_idle = self._lines.chosen, not self._is_acting
        one = chosen[0] if len(chosen) == 1 else None
        has_ended = one is not None and one.is_final
        fits = {"open": one is not None, "compare": 0 < len(chosen) <= MOST_RUNS, "resume": is_idle and has_ended}
        fits |= {"stop": is_idle and any(not row.is_final for row in chosen), "delete": is_idle and bool(chosen)}
        for name, each in self._controls.buttons.items():
            each.disabled = not fits[name]
        name = "" if one is None else one.id
        self._controls.labels.show(name, lambda: self._lines.run(name).records.labels)

    def _search_changed(self) -> None:
        with self._lock:
            self._lines.page = 0
            if self._lines.layout.group != (group := self._controls.group.value):
                self._lines.layout.group = group
                self._keep_layout()
                self._changed()
            self._fill()
        self._start()

    def _hear(self, message: Mapping[str, Any]) -> None:
        """Act on a message of the list in the page, perhaps on another thread."""
        lines = self._lines
        with self._lock:
            if self._is_closed:
                return
            is_on = message.get("is_on")
            if message.get("ready") is True:
                self._controls.show_grid()
            lines.sort_by(message.get("sort"))
            lines.use_column(message.get("column"), is_on)
            if "sort" in message or "column" in message:
                self._keep_layout()
            if "fold" in message:
                lines.fold(message["fold"])
            if (name := message.get("tick")) in lines.rows:
                (lines.ticked.add if is_on is True else lines.ticked.discard)(str(name))
                self._removal.forget()
            if "draw" in message and not lines.draw(message["draw"], is_on):
                self._tell(f"{MOST_RUNS} runs are drawn at most: hide one first", is_wrong=True)
            if (turn := message.get("turn")) == "0":
                lines.look_again()
            elif turn in ("1", "-1"):
                lines.page += int(turn)
            self._fill()
        self._start()

    def _keep_layout(self) -> None:
        self._lines.layout.charts = {} if self._given.metrics else dict(self._choices.opened)
        if wrong := save_layout(self._runs, self._lines.layout):
            self._tell(wrong, is_wrong=True)

    def _look_again(self) -> None:
        self._hear({"turn": "0"})

    # --- what the thread reads ---

    def _start(self) -> None:
        with self._lock:
            self._wake.set()
            super()._start()

    def refresh(self) -> None:
        """Read new rows of the drawn runs and draw them."""
        with self._lock:
            if not self._is_closed:
                self._follow_drawn()
                if self._reader.look() or not self._controls.tables.value:
                    self._draw_all()

    def wait(self, timeout_s: float | None = None) -> "Board":
        """Wait until all drawn runs have ended and their curves are read and drawn; returns this board.

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
        with self._lock:
            self._controls.below.close()
            self._reader.close()

    def _work(self) -> None:
        """Read the runs on the page, the curves, and what the order needs; repeat while a shown run is active."""
        while True:
            self._wake.clear()
            long = self._read_each(self._lines.on_page)
            was_reading, is_ended = self._reader.is_reading, self._look_at_curves()
            long += self._read_each(self._lines.unread)
            if not self._reader.is_reading:  # which may be what reads a long one
                self._read_each(long, may_be_long=True)
            self._lines.save()
            with self._lock:
                is_idle = all(row.is_final for row in self._lines.on_page) and not self._lines.unread
                is_idle &= is_ended and not (was_reading or self._reader.is_reading) and not self._wake.is_set()
                if not self._is_closed:
                    self._store(at_once=is_idle)
                if self._is_closed or is_idle:
                    self._thread = None
                    return
            self._wake.wait(_READING_S if self._reader.is_reading else REFRESH_S)

    def _read_each(self, rows: Sequence[RunRow], *, may_be_long: bool = False) -> list[RunRow]:
        """Read rows until there is something else to do; returns those that would delay the others."""
        long, due = list[RunRow](), time.monotonic() + REFRESH_S
        for number, row in enumerate(rows, 1):
            if self._wake.is_set():
                break
            if not may_be_long and takes_long(self._lines.home(row.id), row):
                long.append(row)
            else:
                with contextlib.suppress(OSError):  # removed
                    self._lines.read(row)
            if number in (1, len(rows)) or time.monotonic() > due:
                due = time.monotonic() + REFRESH_S
                with self._lock:
                    self._fill()
        return long

    def _look_at_curves(self) -> bool:
        """Draw what is new of the drawn runs; returns whether all of them have ended, as seen before the look."""
        try:
            with self._lock:
                self._follow_drawn()
                ended = all(run.state.is_final for run in self.comparison.runs)
                self.refresh()
                return ended
        except (NbtoolsError, OSError) as error:  # a run was removed, or its disk is away
            self._controls.note.value = note(str(error), is_warning=True)
            return False

    def _follow_drawn(self) -> None:
        """Compare the runs that are drawn now, each in its colour."""
        known, slots = {run.id: run for run in self.comparison.runs}, self._lines.slots
        names = sorted(slots, key=lambda name: slots[name])
        if names != self._followed:
            self._followed = names
            self._reader.close()
            runs = [known.get(name) or self._lines.run(name) for name in names]
            self._compare_again(runs)
            self._reader = CurveReader(self.comparison.runs)
            self._controls.tables.value = ""

    def _compare_again(self, runs: Sequence[Any]) -> None:
        before, now = self.comparison, compared(runs)
        if list(now.runs) == list(before.runs):
            now = replace(now, labels=before.labels, notes=before.notes)
        slots = [self._lines.slots.get(run.id, 0) for run in now.runs]
        self.comparison = replace(now, slots=slots)

    def _draw_all(self) -> None:
        self._compare_again(self.comparison.runs)  # an active run adds to its records
        self._offer_fields()
        self._draw()
        self._controls.tables.value = tables_html(self.comparison, self._reader.curves)
        unread = self._reader.num_unread
        remark = f"{plural(unread, 'run')} with first and last rows only: the rest is being read"
        self._controls.note.value = note(remark if unread else "")
        self._is_stored = False

    def _offer_fields(self) -> None:
        comparison = self.comparison
        names = {difference.name for difference in comparison.differences}
        self._controls.offer_fields(self._lines.fields, [*(names - {"code.script"})], self._given.split)
        if "code.uncommitted" in names:  # in a widget, since a saved notebook is not for the user alone
            runs = zip(comparison.runs, comparison.labels, strict=True)
            self._controls.code.value = "".join(uncommitted(run, f" of {told}") for run, told in runs)

    # --- what is drawn ---

    def _receive(self, message: Mapping[str, Any]) -> None:
        before = dict(self._choices.opened)
        super()._receive(message)
        if before != self._choices.opened:
            self._keep_layout()

    def _changed(self, *_: object) -> None:
        with self._lock:
            if not self._is_closed:
                self._draw()
                self._is_stored = False
                self._store()

    @property
    def _group(self) -> str:
        group = self._lines.layout.group
        return group if any(group in facts for facts in self.comparison.facts) else ""

    def _draw(self) -> None:
        legend = run_legend(self.comparison, self._group)
        self._new_figure = partial(RunFigure, dark=self._dark, titled=False, runs=legend)
        super()._draw()

    @property
    def _alt(self) -> str:
        return f"curves of {title_of_runs(self.comparison)}"

    def _static(self) -> tuple[str, str, str]:
        listed = "" if self._controls.drawn.value else self._lines.plain()
        return "", "", listed + self._controls.tables.value

    def _made(self, sizes: Callable[[int], Sequence[Size]]) -> Charts:
        """Return the charts, in a zoom with the rows of the part that is shown."""
        options = Options(**self._options(), split=self._controls.split.value, group=self._group)
        curves, comparison = self._reader.curves, self.comparison
        charts = overlay(comparison, curves, options, sizes)
        width = sizes(len(charts.shown))[0][0] if charts.shown and charts.is_zoomed else 0.0
        if parts := coarse_parts(comparison, curves, charts, width):
            return overlay(comparison, self._reader.closer(parts), options, sizes)
        return charts

    # --- actions ---

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        self._controls.said.value = note(text, is_warning=is_wrong)

    def _run_of(self, row: RunRow) -> Any:
        return self._lines.run(row.id)

    def _show_below(self, opened: LivePlot) -> None:
        if self._is_closed:  # while an action ran
            opened.close()
        else:
            self._controls.below.show(opened)
            opened.scroll_to()

    def _open_run(self) -> None:
        self._show_below(LivePlot(self._run_of(self._lines.chosen[0])))

    def _compare(self) -> None:
        with self._lock:
            self._lines.slots = {row.id: slot for slot, row in enumerate(reversed(self._lines.chosen))}
            self._fill()
        self._start()

    def _stop_runs(self) -> None:
        chosen = [row for row in self._lines.chosen if not row.is_final]
        self._act("Stopping…", lambda: "\n".join(f"{row.name}: {self._run_of(row).stop()}" for row in chosen))

    def _resume_run(self) -> None:
        parent = self._run_of(self._lines.chosen[0])

        def start() -> str:
            child = resume(parent)
            with self._lock:
                self._show_below(LivePlot(child))
            return f"Resumed {parent.id} as {child.id}"

        self._act("Resuming…", start)

    def _save_labels(self) -> None:
        labels = self._controls.labels
        row, typed, changes = self._lines.chosen[0], labels.typed, labels.changes

        def save() -> str:
            label(RunDir(self._run_of(row).dir), **changes)
            labels.known = typed
            return f"Saved: {row.id}"

        self._act("Saving…", save)
