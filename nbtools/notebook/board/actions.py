"""The widgets of a board: labels of a run, the removal of runs, filters, buttons, and their layout."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.errors import ConfigError, plural
from nbtools.launcher.checks.findings import size
from nbtools.notebook import html_parts
from nbtools.notebook.background import Filling
from nbtools.notebook.board.run_lines import BoardLayout
from nbtools.notebook.panel.page import Page
from nbtools.notebook.widgets import Below, button, html_widget, in_row, make_control, offer
from nbtools.run.removal.clean import RemovalPlan, plan_removal
from nbtools.rundir.names import Labels

_NOTHING = ("nothing", "")
Act = Callable[[str, Callable[[], str]], None]


class LabelForm:
    """Name, tags and note of one run, each of which is saved after Enter, or once another control has the focus.

    `save` is called with the id of the run (empty while the fields are filled), the name of the label, and its text.
    """

    def __init__(self, save: Callable[[str, str, str], None]) -> None:
        self._texts = {
            "name": make_control(widgets.Text, "Name", placeholder="the script's", width=210, label=40),
            "tags": make_control(widgets.Text, "Tags", placeholder="a, b", width=190, label=32),
            "note": make_control(widgets.Text, "Note", width=300, label=32).add_class("nbt-grows"),
        }
        self.row = in_row(*self._texts.values())
        self._run = ""
        for name, text in self._texts.items():
            text.continuous_update = False
            text.observe(lambda change, name=name: save(self._run, name, change.new), "value")

    def show(self, name: str, read: Callable[[], Labels]) -> None:
        """Fill the fields for another run; they are hidden if the name of the run is empty."""
        self.row.layout.display = "" if name else "none"
        if name != self._run:
            self._run = ""
            for field, value in asdict(read() if name else Labels()).items():
                self._texts[field].value = value if isinstance(value, str) else ", ".join(value)
            self._run = name


class Removal:
    """The button that lists what would be removed, and is asked twice before it is.

    Args:
        chosen: returns the folders of the runs.
        act: does something in a thread, and says what it returns.
        tell: says something.
    """

    def __init__(self, chosen: Callable[[], Sequence[Path]], act: Act, tell: Callable[[str], None]) -> None:
        self._chosen, self._act, self._tell = chosen, act, tell
        tooltip = "List what would be removed; then it is asked twice"
        self.delete = button("Delete…", "trash", tooltip, self._ask)
        self.keep = button("Keep", "", "Remove nothing", lambda: self.forget("Nothing was removed."))
        self._plan: RemovalPlan | None = None
        self._planned_for: Sequence[Path] = ()

    def forget(self, said: str = "") -> None:
        """Remove nothing, as after another choice of runs."""
        self._plan = None
        self.delete.description, self.delete.button_style = "Delete…", ""
        self.keep.layout.display = "none"
        self._tell(said)

    def _ask(self) -> None:
        plan, paths = self._plan, self._chosen()
        if plan is None or paths != self._planned_for:  # others may have been ticked while it looked at these
            self._act("Looking at what can be removed…", lambda: self._planned(paths))
        elif self.delete.button_style != "danger":
            self.delete.description, self.delete.button_style = "Yes, delete for ever", "danger"
        else:
            self._plan = None
            self._act("Deleting…", lambda: self._removed(plan))

    def _planned(self, paths: Sequence[Path]) -> str:
        if len({path.parent for path in paths}) > 1:
            raise ConfigError("The ticked runs are in several folders: delete those of one folder at a time")
        plan = plan_removal(paths[0].parent, paths)
        kept = [f"{name} is kept: {why}" for name, why in plan.kept]
        if not (num_runs := sum(item.is_run for item in plan.items)):
            return "\n".join(["Nothing can be removed.", *kept])
        listed = [f"{item.path.name}: {item.what}, {size(item.num_bytes)}" for item in plan.items]
        self._plan, self._planned_for, self.keep.layout.display = plan, paths, ""
        self.delete.description, self.delete.button_style = f"Delete {plural(num_runs, 'run')}", "warning"
        return "\n".join([*listed, *kept, f"{size(plan.num_bytes)} in all; what is deleted cannot be restored."])

    def _removed(self, plan: RemovalPlan) -> str:
        said = plan.remove()
        self.forget()
        return said[0].upper() + said[1:]


def _choice(name: str, value: str, **look: int) -> Any:
    return make_control(widgets.Dropdown, name, options=[_NOTHING, (value, value)], value=value, **look)


class BoardControls:
    """The widgets of a board and their layout.

    Args:
        acts: What is called for each button (open, compare, stop and resume), `save` for a label, see `LabelForm`, and
            `fill`, after a change of the filter, the columns or the group.
        layout: The columns and the group at first.
        words: What is filtered for at first.
        removal: The removal of runs.
        curves: The picture, the canvas, and the slider of the curves.
    """

    def __init__(
        self, acts: Mapping[str, Callable[..., None]], layout: BoardLayout, words: str, removal: Removal, curves: Any
    ) -> None:
        self.labels, self.filling, own = LabelForm(acts["save"]), Filling(), layout.columns
        self.page, self.scatter = (Page(layout={"display": "none", "width": "100%"}) for _ in range(2))
        hint = "name, tag, state, drawn, recipe, note"
        self.text = make_control(widgets.Text, "Filter", value=words, placeholder=hint, width=420, label=38)
        self.columns = widgets.TagsInput(value=own, allowed_tags=own, placeholder="add column", allow_duplicates=False)
        self.text.add_class("nbt-grows")
        self.choices = {
            "group": _choice("Group by", layout.group, width=220, label=62),
            "split": _choice("Split by", "", width=210, label=52),
            "of": _choice("Scatter of", layout.of, width=300, label=66),
            "over": _choice("over", layout.over, width=270, label=34),
        }
        for control in (self.text, self.columns, *self.choices.values()):
            control.observe(lambda _: self.filling.is_on or acts["fill"](), "value")
        self.buttons = {
            "open": button("Open", "line-chart", "Show the panel of the ticked run below", acts["open"]),
            "compare": button("Compare", "clone", "Draw the ticked runs, and no others", acts["compare"]),
            "stop": button("Stop", "stop", "End each ticked run; a recipe saves a checkpoint first", acts["stop"]),
            "resume": button("Resume", "play", "Start a new run from the latest checkpoint", acts["resume"]),
            "delete": removal.delete,
        }
        self.plain, self.said, self.note, self.code, self.tables = (html_widget() for _ in range(5))
        self.below = Below()
        buttons = in_row(*self.buttons.values(), removal.keep)
        left = [in_row(self.text), self.plain, self.page, self.columns, buttons, self.labels.row, self.said]
        group, split, of, over = self.choices.values()
        right = [in_row(group, split, curves[2]), *curves[:2], self.note, in_row(of, over), self.scatter]
        halves = widgets.Box([widgets.VBox(part).add_class("nbt-half") for part in (left, right)])
        whole = [halves.add_class("nbt-halves"), self.code, self.tables, self.below.widget]
        self.whole = widgets.VBox(whole, _dom_classes=(html_parts.LIVE, *html_parts.NO_FORMULAS.split()))

    def show(self, html: str, scatter: str, *, is_ready: bool) -> None:
        """Show the list and the scatter; a page that cannot load the script shows the list as plain HTML."""
        self.page.list, self.plain.value, self.scatter.list = html, "" if is_ready else html, scatter
        for page in (self.page, self.scatter):
            page.layout.display = "block" if is_ready else "none"

    def offer(self, columns: Sequence[str], fields: Sequence[str], differing: Iterable[str]) -> None:
        """Offer columns, fields to group by, and those that differ between the drawn runs to split by."""
        self.columns.allowed_tags = [*columns]
        for control, names in zip(self.choices.values(), (fields, sorted(differing), columns, columns), strict=True):
            used = dict.fromkeys([*names, *([control.value] if control.value else [])])
            with self.filling:  # which has the first option for a moment
                offer(control, [_NOTHING, *((name, name) for name in used)], "")
