"""The table of runs with its controls: sorts, filters, labels; opens, compares, stops, resumes and deletes runs.

Its thread reads the curves of the rows on screen and looks at active runs every two seconds.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.launcher.checks.findings import size
from nbtools.launcher.resume import resume
from nbtools.metrics.direction import direction_of
from nbtools.notebook import html_parts
from nbtools.notebook.comparison.comparison import compare
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.run_table import row_html
from nbtools.notebook.run_table.details import details_of, takes_long
from nbtools.notebook.run_table.row_html import Details
from nbtools.notebook.theme import THEME
from nbtools.notebook.widgets import Output, close_tree, html_widget, in_row, make_control, view_bundle
from nbtools.run.listing import NUM_STORED, RunList, RunRow, selected
from nbtools.run.removal.clean import RemovalPlan, plan_removal, remove
from nbtools.rundir.names import Labels, label
from nbtools.rundir.rundir import RunDir

NUM_ROWS = 12
"""Rows of a page."""
REFRESH_S = 2.0
ANY = "any state"
_STATES = [ANY, *(state.capitalize() for state in html_parts.STATES)]
_ORDERS: dict[str, Callable[[RunRow], Any]] = {
    "newest": lambda row: row.order,
    "oldest": lambda row: (-row.order[0], -row.order[2]),
    "name": lambda row: row.name.lower(),
    "steps": lambda row: -(row.step or 0),
    "duration": lambda row: -(row.duration_s or 0.0),
}
_BY_VALUE = ("best", "last")
"""Orders for which the curves of all runs are read; the better value of a metric is first."""
_STYLE = f"<style>{Path(__file__).with_name('table.css').read_text(encoding='utf-8')}{THEME}</style>"


class RunTable(LiveView):
    """A table of runs, one page at a time."""

    def __init__(self, runs: RunList) -> None:
        super().__init__("table of runs")
        self.runs = runs
        self._rows = {row.id: row for row in runs.listed}
        self._details: dict[str, tuple[RunRow, Details]] = {}
        self._ticked: set[str] = set()
        self._page = 0
        self._shown: list[RunRow] = []
        self._plan: RemovalPlan | None = None
        self._num_asked = 0
        self._labelled, self._filled = "", Labels()
        self._unread: list[RunRow] = []  # rows on other pages whose values the order needs
        self._opened: Any = None
        self._make()
        self._fill()
        self._start()

    def __repr__(self) -> str:
        return "a table of runs"

    # --- showing it ---

    def display(self) -> None:
        """Display the table."""
        self._ipython_display_()

    def _outputs(self) -> list[Output]:
        """Return the table as it is stored, and the widgets."""
        stored = [(row, self._known(row)) for row in islice(self._rows.values(), NUM_STORED)]
        text = _STYLE + row_html.stored_table(stored, len(self._rows) - len(stored))
        return [({"text/html": text, "text/plain": repr(self)}, {}), (view_bundle(self.widget, ""), {})]

    def close(self) -> None:
        """End the thread and remove the widgets."""
        self._end()
        with self._lock:
            self._close_opened()
            close_tree(self.widget)

    # --- widgets ---

    def _make(self) -> None:
        self._text = make_control(widgets.Text, "Filter", placeholder="name, tag, recipe, note", width=250, label=38)
        self._state = make_control(widgets.Dropdown, "", options=_STATES, value=ANY, tooltip="State", width=130)
        self._order = make_control(
            widgets.Dropdown, "Sort by", options=[*_ORDERS, *_BY_VALUE], value="newest", width=170, label=48
        )
        self._back = _button("", "chevron-left", "Earlier page", lambda: self._turn_to(self._page - 1), width=36)
        self._next = _button("", "chevron-right", "Next page", lambda: self._turn_to(self._page + 1), width=36)
        self._reload = _button("", "refresh", "Look for new runs", self._look_again, width=36)
        self._place = html_widget()
        self._place.layout.width = "auto"
        for control in (self._text, self._state, self._order):
            control.observe(lambda _: self._turn_to(0), "value")
        self._lines = [_Line(self._on_tick) for _ in range(NUM_ROWS)]
        self._open = _button("Open", "line-chart", "Show the panel of the ticked run below", self._open_run)
        compare_all = "Draw the ticked runs over each other, below"
        self._compare = _button("Compare", "clone", compare_all, lambda: self._act("Comparing…", self._compared))
        self._stop = _button("Stop", "stop", "End each ticked run; a recipe saves a checkpoint first", self._stop_runs)
        self._resume = _button("Resume", "play", "Start a new run from the latest checkpoint", self._resume_run)
        self._delete = _button("Delete…", "trash", "List what would be removed; then it is asked twice", self._ask)
        self._keep = _button("Keep", "", "Remove nothing", lambda: self._forget_plan("Nothing was removed."))
        self._name = make_control(widgets.Text, "Name", placeholder="the script's", width=210, label=40)
        self._tags = make_control(widgets.Text, "Tags", placeholder="a, b", width=190, label=32)
        self._note = make_control(widgets.Text, "Note", width=300, label=32)
        self._save = _button("Save", "check", "Write name, tags and note", self._save_labels, width=80)
        for text in (self._text, self._note):
            text.layout.flex, text.layout.max_width, text.layout.width = "1 1 170px", text.layout.width, "0"
        self._labels = in_row(self._name, self._tags, self._note, self._save)
        self._said, self._below, self._head = html_widget(), widgets.VBox(), html_widget()
        self._head.value = row_html.head()
        # As wide as the column of tick boxes, so that the titles stand above their columns.
        head = in_row(widgets.Box(layout={"width": "28px"}), self._head, wraps=False)
        turning = in_row(self._back, self._place, self._next, self._reload, wraps=False)
        turning.layout.width = "auto"
        tools = in_row(self._text, self._state, self._order, turning)
        self._actions = (self._open, self._compare, self._stop, self._resume, self._delete, self._keep)
        lines = widgets.VBox([line.box for line in self._lines], layout={"width": "100%", "overflow": "hidden"})
        parts = [tools, head, lines, in_row(*self._actions), self._labels, self._said, self._below]
        self.widget = widgets.VBox(parts, layout={"width": "100%", "max_width": "1100px"})
        for name in (html_parts.LIVE, "nbtools-runs-page"):
            self.widget.add_class(name)
        answers_beside_cells(self.widget)

    def _turn_to(self, page: int) -> None:
        with self._lock:
            self._page = page
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
        words, state = self._text.value.lower().split(), self._state.value
        states = () if state == ANY else (state.upper(),)
        fitting = [row for row in selected(self._rows.values(), states=states) if _fits(row, words)]
        self._unread, by = [], self._order.value
        if by in _BY_VALUE:
            self._unread = [row for row in fitting if row.id not in self._details]
            fitting = self._by_value(fitting, by)
        else:
            fitting.sort(key=_ORDERS[by])
        self._page = max(0, min(self._page, (len(fitting) - 1) // NUM_ROWS))
        first = self._page * NUM_ROWS
        self._shown = fitting[first : first + NUM_ROWS]
        last = first + len(self._shown)
        text = f"{first + 1:,} to {last:,} of {plural(len(fitting), 'run')}" if fitting else "no runs"
        if self._unread:
            text += f", {by} of {len(fitting) - len(self._unread):,} read"
        self._place.value = f"<span style='{html_parts.FONT}{html_parts.MUTED}white-space:nowrap'>{text}</span>"
        self._back.disabled, self._next.disabled = first == 0, last == len(fitting)
        for number, line in enumerate(self._lines):
            row = self._shown[number] if number < len(self._shown) else None
            line.show(row, None if row is None else self._known(row), row is not None and row.id in self._ticked)
        self._offer()

    def _by_value(self, rows: Sequence[RunRow], by: str) -> list[RunRow]:
        """Return rows with the better value of a metric first; the metric of most runs first, rows without one last."""
        num_runs = Counter(details.metric for _, details in self._details.values())

        def key(row: RunRow) -> tuple[Any, ...]:
            details = self._known(row) or Details()
            value, metric = getattr(details, by), details.metric
            if value is None or value != value:
                return (True,)
            return False, -num_runs[metric], metric, -value if direction_of(metric) == "higher" else value

        return sorted(rows, key=key)

    def _known(self, row: RunRow) -> Details | None:
        """Return the last details that were read of a run."""
        known = self._details.get(row.id)
        return None if known is None else known[1]

    def _on_tick(self, name: str, is_ticked: bool) -> None:
        with self._lock:
            (self._ticked.add if is_ticked else self._ticked.discard)(name)
            self._forget_plan("")
            self._fill()

    def _chosen(self) -> list[RunRow]:
        return [row for row in self._rows.values() if row.id in self._ticked]

    def _offer(self) -> None:
        """Enable the buttons that apply to the ticked runs."""
        chosen, idle = self._chosen(), not self._is_acting
        one = chosen[0] if len(chosen) == 1 else None
        self._open.disabled = one is None
        self._compare.disabled = len(chosen) < 2
        self._stop.disabled = not (idle and any(not row.is_final for row in chosen))
        self._resume.disabled = not (idle and one is not None and one.is_final)
        self._delete.disabled = not (idle and chosen)
        self._keep.layout.display = "none" if self._plan is None else ""
        self._labels.layout.display = "none" if one is None else ""
        if one is not None and self._labelled != one.id:
            self._labelled = one.id
            given = self._filled = self.runs.rows.run(one.id).records.labels
            self._name.value, self._tags.value, self._note.value = given.name, ", ".join(given.tags), given.note

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
            waiting, long = deque((*self._shown, *self._unread)), set[str]()
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
                is_idle = all(row.is_final for row in self._shown) and not self._wake.is_set()
                if self._is_closed:
                    self._thread = None
                    return
                if is_idle:
                    self._thread = None
                    self._displays.replace(self._outputs(), which=[0])
                    return
            self._wake.wait(REFRESH_S)

    def _read(self, row: RunRow) -> None:
        """Read the records of a run, and its details if they were not read yet, and show both."""
        now, (read, details) = row, self._details.get(row.id, (None, None))
        with contextlib.suppress(OSError):  # removed
            now = self.runs.rows.completed(self.runs.rows.row(row.id))
        if details is None or read != now or not now.is_final:
            details = details_of(self.runs.rows, now)
        with self._lock:
            self._details[row.id] = now, details
            if row.id in self._rows:
                self._rows[row.id] = now
            for number, line in enumerate(self._lines[: len(self._shown)]):
                if self._shown[number].id == row.id:
                    self._shown[number] = now
                    line.show(now, details, row.id in self._ticked)

    # --- actions ---

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        self._said.value = html_parts.note(text, is_warning=is_wrong)

    def _show_below(self, opened: Any) -> None:
        if self._is_closed:  # while an action ran
            opened.close()
            return
        self._close_opened()
        self._opened, self._below.children = opened, (opened.widget,)
        answers_beside_cells(opened.widget)

    def _close_opened(self) -> None:
        if self._opened is not None:
            self._below.children = ()
            self._opened.close()
            self._opened = None

    def _open_run(self) -> None:
        self._show_below(LivePlot(self.runs.rows.run(self._chosen()[0].id)))

    def _compared(self) -> str:
        compared = compare(*(self.runs.rows.run(row.id) for row in self._chosen()))
        with self._lock:
            self._show_below(compared)
        return ""

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
        row, before = self._chosen()[0], asdict(self._filled)
        tags = tuple(tag.strip() for tag in self._tags.value.split(",") if tag.strip())
        typed = Labels(self._name.value.strip(), tags, self._note.value)
        changed = {name: value for name, value in asdict(typed).items() if value != before[name]}

        def save() -> str:
            label(RunDir(self.runs.rows.runs / row.id), **changed)  # the others may have changed elsewhere
            self._filled = typed
            return f"Saved: {row.id}"

        self._act("Saving…", save)

    def _ask(self) -> None:
        """List what Delete would remove, ask once more, and remove it."""
        if self._plan is None:
            names = [row.id for row in self._chosen()]
            self._act("Looking at what can be removed…", lambda: self._planned(names))
        elif self._num_asked == 1:
            self._num_asked = 2
            self._delete.description, self._delete.button_style = "Yes, delete for ever", "danger"
        else:
            plan = self._plan
            self._plan = None
            self._act("Deleting…", lambda: self._removed(plan))

    def _planned(self, names: Sequence[str]) -> str:
        plan = plan_removal(self.runs.rows.runs, [self.runs.rows.runs / name for name in names])
        kept = [f"{name} is kept: {why}" for name, why in plan.kept]
        runs = [item for item in plan.items if item.is_run]
        if not runs:
            return "\n".join(["Nothing can be removed.", *kept])
        listed = [f"{item.path.name}: {item.what}, {size(item.num_bytes)}" for item in plan.items]
        with self._lock:
            self._plan, self._num_asked = plan, 1
            self._delete.description = f"Delete {plural(len(runs), 'run')}"
            self._delete.layout.width, self._delete.button_style = "180px", "warning"
        return "\n".join([*listed, *kept, f"{size(plan.num_bytes)} in all; what is deleted cannot be restored."])

    def _removed(self, plan: RemovalPlan) -> str:
        gone, kept = remove(plan)
        with self._lock:
            self._forget_plan("")
        freed = sum(item.num_bytes for item in gone)
        kept_for = [f"{name} is kept: {why}" for name, why in kept]
        return "\n".join([f"Removed {plural(len(gone), 'item')}, {size(freed)}", *kept_for])

    def _forget_plan(self, text: str) -> None:
        self._plan, self._num_asked = None, 0
        self._delete.description, self._delete.button_style = "Delete…", ""
        self._delete.layout.width = "110px"
        self._tell(text)
        self._keep.layout.display = "none"


class _Line:
    """A tick box and one run."""

    def __init__(self, on_tick: Callable[[str, bool], None]) -> None:
        self._name, self._is_ticked, self._on_tick = "", False, on_tick
        self._tick = widgets.Checkbox(indent=False, layout={"width": "28px", "flex": "0 0 28px"})
        self._text = html_widget()
        self._text.layout.min_width = "0"
        self._tick.observe(self._ticked, "value")
        self.box = in_row(self._tick, self._text, wraps=False)

    def _ticked(self, change: Any) -> None:
        if self._name and change["new"] is not self._is_ticked:  # else `show` has changed the box
            self._is_ticked = change["new"]
            self._on_tick(self._name, self._is_ticked)

    def show(self, row: RunRow | None, details: Details | None, is_ticked: bool) -> None:
        """Show a run; None shows an empty line."""
        self._is_ticked, self._name = is_ticked, "" if row is None else row.id
        self._tick.value = is_ticked
        self._tick.tooltip = self._name
        self.box.layout.display = "none" if row is None else ""
        self._text.value = "" if row is None else row_html.line(row, details)


def _fits(row: RunRow, words: Sequence[str]) -> bool:
    text = " ".join((row.name, row.id, row.recipe, row.script, row.note, *row.tags)).lower()
    return all(word in text for word in words)


def _button(text: str, icon: str, tooltip: str, act: Callable[[], None], *, width: int = 110) -> widgets.Button:
    button = widgets.Button(description=text, icon=icon, tooltip=tooltip, layout={"width": f"{width}px"})
    button.on_click(lambda _: act())
    return button
