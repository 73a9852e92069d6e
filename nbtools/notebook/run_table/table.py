"""The table of runs with its controls: sorts, filters, labels; opens, compares, stops, resumes and deletes runs.

Its thread reads the curves of the rows on screen and looks at active runs every two seconds.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.launcher.resume import resume
from nbtools.metrics.direction import direction_of
from nbtools.notebook import html_parts
from nbtools.notebook.comparison.comparison import compare
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.run_table import row_html
from nbtools.notebook.run_table.row_html import Details, details_of, takes_long
from nbtools.notebook.run_table.table_parts import BY_VALUE, ORDERS, LabelForm, Removal, RowsPage, Search
from nbtools.notebook.widgets import Below, Output, answers_beside_cells, button, html_widget, in_row, view_bundle
from nbtools.run.listing import NUM_STORED, RunList, RunRow, selected
from nbtools.rundir.names import label
from nbtools.rundir.rundir import RunDir

REFRESH_S = 2.0
_STYLE = f"<style>{Path(__file__).with_name('table.css').read_text(encoding='utf-8')}{html_parts.THEME}</style>"


class RunTable(LiveView):
    """A table of runs, one page at a time."""

    def __init__(self, runs: RunList) -> None:
        super().__init__("table of runs")
        self.runs = runs
        self._rows = {row.id: row for row in runs.listed}
        self._details: dict[str, Details] = {}
        self._read_rows: dict[str, RunRow] = {}  # as they were when their details were read
        self._ticked: set[str] = set()
        self._unread: list[RunRow] = []  # rows on other pages whose values the order needs
        self._search = Search(lambda: self._turn_to(0))
        self._page = RowsPage(self._on_tick, self._turn_to, self._look_again)
        self._labels = LabelForm(self._save_labels)
        self._removal = Removal(runs.rows.runs, lambda: [row.id for row in self._chosen()], self._act, self._tell)
        self._buttons = {
            "open": button("Open", "line-chart", "Show the panel of the ticked run below", self._open_run),
            "compare": button("Compare", "clone", "Draw the ticked runs over each other, below", self._compare),
            "stop": button("Stop", "stop", "End each ticked run; a recipe saves a checkpoint first", self._stop_runs),
            "resume": button("Resume", "play", "Start a new run from the latest checkpoint", self._resume_run),
            "delete": self._removal.delete,
        }
        self._said, self._below = html_widget(), Below()
        tools = in_row(*self._search.controls, self._page.turning)
        actions = in_row(*self._buttons.values(), self._removal.keep)
        parts = [tools, self._page.head, self._page.box, actions, self._labels.row, self._said, self._below.widget]
        self.widget = widgets.VBox(parts, layout={"width": "100%", "max_width": "1100px"})
        for name in (html_parts.LIVE, "nbtools-runs-page"):
            self.widget.add_class(name)
        answers_beside_cells(self.widget)
        self._removal.forget()
        self._fill()
        self._start()

    def __repr__(self) -> str:
        return "a table of runs"

    # --- showing it ---

    def _outputs(self) -> list[Output]:
        """Return the table as it is stored, and the widgets."""
        stored = [(row, self._details.get(row.id)) for row in islice(self._rows.values(), NUM_STORED)]
        text = _STYLE + row_html.stored_table(stored, len(self._rows) - len(stored))
        return [({"text/html": text, "text/plain": repr(self)}, {}), (view_bundle(self.widget, ""), {})]

    def close(self) -> None:
        """End the thread and remove the widgets."""
        super().close()
        with self._lock:
            self._below.close()

    def _turn_to(self, page: int) -> None:
        with self._lock:
            self._page.number = page
            self._fill()
        self._start()

    def _look_again(self) -> None:
        """Add new runs that the filters choose; a run that was renamed or stopped here stays."""
        with self._lock:
            self._rows = {row.id: row for row in self.runs.chosen_now(self._rows)}
            self.runs.rows.save()
            self._ticked &= self._rows.keys()
            self._turn_to(0)

    def _fill(self) -> None:
        """Filter and sort the runs, and show the current page."""
        fitting = [row for row in selected(self._rows.values(), states=self._search.states) if self._search.fits(row)]
        by, remark = self._search.order.value, ""
        self._unread = [row for row in fitting if row.id not in self._details] if by in BY_VALUE else []
        if self._unread:
            remark = f", {by} of {len(fitting) - len(self._unread):,} read"
        fitting = self._by_value(fitting, by) if by in BY_VALUE else sorted(fitting, key=ORDERS[by])
        self._page.show(fitting, self._details, self._ticked, remark)
        self._offer()

    def _by_value(self, rows: Sequence[RunRow], by: str) -> list[RunRow]:
        """Return rows with the better value of a metric first; the metric of most runs first, rows without one last."""
        num_runs = Counter(details.metric for details in self._details.values())

        def key(row: RunRow) -> tuple[Any, ...]:
            details = self._details.get(row.id, Details())
            value, metric = getattr(details, by), details.metric
            if value is None or value != value:
                return (True,)
            return False, -num_runs[metric], metric, -value if direction_of(metric) == "higher" else value

        return sorted(rows, key=key)

    def _on_tick(self, name: str, is_ticked: bool) -> None:
        with self._lock:
            (self._ticked.add if is_ticked else self._ticked.discard)(name)
            self._removal.forget()
            self._fill()

    def _chosen(self) -> list[RunRow]:
        return [row for row in self._rows.values() if row.id in self._ticked]

    def _offer(self) -> None:
        """Enable the buttons that apply to the ticked runs."""
        chosen, is_idle = self._chosen(), not self._is_acting
        one = chosen[0] if len(chosen) == 1 else None
        has_ended = one is not None and one.is_final
        fits = {"open": one is not None, "compare": len(chosen) > 1, "resume": is_idle and has_ended}
        fits |= {"stop": is_idle and any(not row.is_final for row in chosen), "delete": is_idle and bool(chosen)}
        for name, each in self._buttons.items():
            each.disabled = not fits[name]
        name = "" if one is None else one.id
        self._labels.show(name, lambda: self.runs.rows.run(name).records.labels)

    # --- what is read behind the page ---

    def _start(self) -> None:
        with self._lock:
            self._wake.set()
            super()._start()

    def _work(self) -> None:
        """Read the rows on screen, then those that the order needs; repeat while one on screen is active."""
        while True:
            self._wake.clear()
            due = time.monotonic() + REFRESH_S
            waiting, long = deque((*self._page.shown, *self._unread)), set[str]()
            while waiting and not self._wake.is_set():  # else another page
                row = waiting.popleft()
                if row.id not in long and takes_long(self.runs.rows, row):
                    long.add(row.id)
                    waiting.append(row)  # it delays no other
                    continue
                self._read(row)
                if self._unread and time.monotonic() > due:
                    with self._lock:
                        self._fill()
                    due = time.monotonic() + REFRESH_S
            self.runs.rows.save()
            with self._lock:
                if self._unread and not self._wake.is_set():
                    self._fill()
                is_idle = all(row.is_final for row in self._page.shown) and not self._wake.is_set()
                if self._is_closed or is_idle:
                    self._thread = None
                    if not self._is_closed:
                        self._displays.replace(self._outputs(), which=[0])
                    return
            self._wake.wait(REFRESH_S)

    def _read(self, row: RunRow) -> None:
        """Read the records of a run, and its details if they were not read yet, and show both."""
        now, details = row, self._details.get(row.id)
        with contextlib.suppress(OSError):  # removed
            now = self.runs.rows.completed(self.runs.rows.row(row.id))
        if details is None or self._read_rows[row.id] != now or not now.is_final:
            details = details_of(self.runs.rows, now)
        with self._lock:
            self._details[row.id], self._read_rows[row.id] = details, now
            if row.id in self._rows:
                self._rows[row.id] = now
            self._page.update(now, details, is_ticked=row.id in self._ticked)

    # --- actions ---

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        self._said.value = html_parts.note(text, is_warning=is_wrong)

    def _show_below(self, opened: Any) -> None:
        if self._is_closed:  # while an action ran
            opened.close()
        else:
            self._below.show(opened)

    def _open_run(self) -> None:
        self._show_below(LivePlot(self.runs.rows.run(self._chosen()[0].id)))

    def _compare(self) -> None:
        def show() -> str:
            compared = compare(*(self.runs.rows.run(row.id) for row in self._chosen()))
            with self._lock:
                self._show_below(compared)
            return ""

        self._act("Comparing…", show)

    def _stop_runs(self) -> None:
        chosen = [row for row in self._chosen() if not row.is_final]
        self._act("Stopping…", lambda: "\n".join(f"{row.name}: {self.runs.rows.run(row.id).stop()}" for row in chosen))

    def _resume_run(self) -> None:
        parent = self.runs.rows.run(self._chosen()[0].id)

        def start() -> str:
            child = resume(parent)
            with self._lock:
                self._show_below(LivePlot(child))
            return f"Resumed {parent.id} as {child.id}"

        self._act("Resuming…", start)

    def _save_labels(self) -> None:
        row, typed, changes = self._chosen()[0], self._labels.typed, self._labels.changes

        def save() -> str:
            label(RunDir(self.runs.rows.runs / row.id), **changes)
            self._labels.known = typed
            return f"Saved: {row.id}"

        self._act("Saving…", save)
