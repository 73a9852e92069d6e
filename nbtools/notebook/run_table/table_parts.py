"""The parts of the table of runs: filters, one page of lines, the labels of a run, and the removal of runs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.launcher.checks.findings import size
from nbtools.notebook import html_parts
from nbtools.notebook.run_table import row_html
from nbtools.notebook.run_table.row_html import Details
from nbtools.notebook.widgets import button, html_widget, in_row, make_control
from nbtools.run.listing import RunRow
from nbtools.run.removal.clean import RemovalPlan, plan_removal
from nbtools.rundir.names import Labels

NUM_ROWS = 12
"""Rows of a page."""
ANY = "any state"
_STATES = [ANY, *(state.capitalize() for state in html_parts.STATES)]
BY_VALUE = ("best", "last")
"""Orders for which the curves of all runs are read; the better value of a metric is first."""
ORDERS: dict[str, Callable[[RunRow], Any]] = {
    "newest": lambda row: row.order,
    "oldest": lambda row: (-row.order[0], -row.order[2]),
    "name": lambda row: row.name.lower(),
    "steps": lambda row: -(row.step or 0),
    "duration": lambda row: -(row.duration_s or 0.0),
}
_TICK = {"width": "28px", "flex": "0 0 28px"}


def _grows(text: widgets.Text) -> None:
    text.layout.flex, text.layout.max_width, text.layout.width = "1 1 170px", text.layout.width, "0"


class Search:
    """The filters and the order of the rows; `changed` is called after a change of either."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.text = make_control(widgets.Text, "Filter", placeholder="name, tag, recipe, note", width=250, label=38)
        self.state = make_control(widgets.Dropdown, "State", options=_STATES, value=ANY, width=165, label=34)
        orders = [*ORDERS, *BY_VALUE]
        self.order = make_control(widgets.Dropdown, "Sort by", options=orders, value="newest", width=170, label=48)
        self.controls = self.text, self.state, self.order
        _grows(self.text)
        for control in self.controls:
            control.observe(lambda _: changed(), "value")

    @property
    def states(self) -> tuple[str, ...]:
        return () if self.state.value == ANY else (self.state.value.upper(),)

    def fits(self, row: RunRow) -> bool:
        """Whether every word is somewhere in a row."""
        text = " ".join((row.name, row.id, row.recipe, row.script, row.note, *row.tags)).lower()
        return all(word in text for word in self.text.value.lower().split())


class RowsPage:
    """Some lines of a list at a time; `turn` is called for another page, and `reload` for new runs."""

    def __init__(
        self, on_tick: Callable[[str, bool], None], turn: Callable[[int], None], reload: Callable[[], None]
    ) -> None:
        self.number = 0
        self.shown: list[RunRow] = []
        self.lines = [_Line(on_tick) for _ in range(NUM_ROWS)]
        self._back = button("", "chevron-left", "Earlier page", lambda: turn(self.number - 1))
        self._next = button("", "chevron-right", "Next page", lambda: turn(self.number + 1))
        self._place, head = html_widget(), html_widget()
        self._place.layout.width, head.value = "auto", row_html.head()
        again = button("", "refresh", "Look for new runs", reload)
        self.turning = in_row(self._back, self._place, self._next, again, wraps=False)
        self.turning.layout.width = "auto"
        # As wide as the column of tick boxes, so that the titles stand above their columns.
        self.head = in_row(widgets.Box(layout={"width": _TICK["width"]}), head, wraps=False)
        self.box = widgets.VBox([line.box for line in self.lines], layout={"width": "100%", "overflow": "hidden"})

    def show(
        self, rows: Sequence[RunRow], details: Mapping[str, Details], ticked: Collection[str], remark: str
    ) -> None:
        """Show the page of the current number, or the last one."""
        self.number = max(0, min(self.number, (len(rows) - 1) // NUM_ROWS))
        first = self.number * NUM_ROWS
        self.shown = list(rows[first : first + NUM_ROWS])
        last = first + len(self.shown)
        text = f"{first + 1:,} to {last:,} of {plural(len(rows), 'run')}{remark}" if rows else "no runs"
        self._place.value = f"<span style='{html_parts.FONT}{html_parts.MUTED}white-space:nowrap'>{text}</span>"
        self._back.disabled, self._next.disabled = first == 0, last == len(rows)
        for number, line in enumerate(self.lines):
            row = self.shown[number] if number < len(self.shown) else None
            line.show(row, None if row is None else details.get(row.id), row is not None and row.id in ticked)

    def update(self, row: RunRow, details: Details, *, is_ticked: bool) -> None:
        """Show a run as it is now, if it is on the page."""
        for number, line in enumerate(self.lines[: len(self.shown)]):
            if self.shown[number].id == row.id:
                self.shown[number] = row
                line.show(row, details, is_ticked)


class _Line:
    """A tick box and one run."""

    def __init__(self, on_tick: Callable[[str, bool], None]) -> None:
        self._name, self._is_ticked, self._on_tick = "", False, on_tick
        self._tick, self._text = widgets.Checkbox(indent=False, layout=_TICK).add_class("nbt-tick"), html_widget()
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
        self._tick.value, self._tick.tooltip, self._tick.description = is_ticked, self._name, self._name
        self.box.layout.display = "none" if row is None else ""
        self._text.value = "" if row is None else row_html.line(row, details)


class LabelForm:
    """Name, tags and note of one run."""

    def __init__(self, save: Callable[[], None]) -> None:
        self.name = make_control(widgets.Text, "Name", placeholder="the script's", width=210, label=40)
        self.tags = make_control(widgets.Text, "Tags", placeholder="a, b", width=190, label=32)
        self.note = make_control(widgets.Text, "Note", width=300, label=32)
        _grows(self.note)
        save_button = button("Save", "check", "Write name, tags and note", save)
        self.row = in_row(self.name, self.tags, self.note, save_button)
        self._run, self.known = "", Labels()

    def show(self, name: str, read: Callable[[], Labels]) -> None:
        """Fill the fields for another run; they are hidden if the name of the run is empty."""
        self.row.layout.display = "" if name else "none"
        if name and name != self._run:
            self._run, self.known = name, read()
            self.name.value, self.note.value = self.known.name, self.known.note
            self.tags.value = ", ".join(self.known.tags)

    @property
    def typed(self) -> Labels:
        tags = tuple(tag.strip() for tag in self.tags.value.split(",") if tag.strip())
        return Labels(self.name.value.strip(), tags, self.note.value)

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that differ from what was read; the others may have changed elsewhere."""
        before = asdict(self.known)
        return {name: value for name, value in asdict(self.typed).items() if value != before[name]}


class Removal:
    """The button that lists what would be removed, and is asked twice before it is.

    Args:
        runs: the folder of the runs.
        chosen: returns the names of the runs.
        act: does something in a thread, and says what it returns.
        tell: says something.
    """

    def __init__(
        self,
        runs: Path,
        chosen: Callable[[], Sequence[str]],
        act: Callable[[str, Callable[[], str]], None],
        tell: Callable[[str], None],
    ) -> None:
        self._runs, self._chosen, self._act, self._tell = runs, chosen, act, tell
        tooltip = "List what would be removed; then it is asked twice"
        self.delete = button("Delete…", "trash", tooltip, self._ask)
        self.keep = button("Keep", "", "Remove nothing", lambda: self.forget("Nothing was removed."))
        self._plan: RemovalPlan | None = None
        self._planned_for: Sequence[str] = ()
        self._is_sure = False

    def forget(self, said: str = "") -> None:
        """Remove nothing, as after another choice of runs."""
        self._plan, self._is_sure = None, False
        self.delete.description, self.delete.button_style = "Delete…", ""
        self.keep.layout.display = "none"
        self._tell(said)

    def _ask(self) -> None:
        plan, names = self._plan, self._chosen()
        if plan is None or names != self._planned_for:  # others may have been ticked while it looked at these
            self._act("Looking at what can be removed…", lambda: self._planned(names))
        elif not self._is_sure:
            self._is_sure = True
            self.delete.description, self.delete.button_style = "Yes, delete for ever", "danger"
        else:
            self._plan = None
            self._act("Deleting…", lambda: self._removed(plan))

    def _planned(self, names: Sequence[str]) -> str:
        plan = plan_removal(self._runs, [self._runs / name for name in names])
        kept = [f"{name} is kept: {why}" for name, why in plan.kept]
        if not (num_runs := sum(item.is_run for item in plan.items)):
            return "\n".join(["Nothing can be removed.", *kept])
        listed = [f"{item.path.name}: {item.what}, {size(item.num_bytes)}" for item in plan.items]
        self._plan, self._planned_for, self._is_sure, self.keep.layout.display = plan, names, False, ""
        self.delete.description, self.delete.button_style = f"Delete {plural(num_runs, 'run')}", "warning"
        return "\n".join([*listed, *kept, f"{size(plan.num_bytes)} in all; what is deleted cannot be restored."])

    def _removed(self, plan: RemovalPlan) -> str:
        said = plan.remove()
        self.forget()
        return said[0].upper() + said[1:]
