"""The widgets of a board: labels of a run, the removal of runs, filters, buttons, and their layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from nbtools.errors import ConfigError, plural
from nbtools.launcher.checks.findings import size
from nbtools.notebook import html_parts
from nbtools.notebook.widgets import Below, button, html_widget, in_row, make_control, offer
from nbtools.run.removal.clean import RemovalPlan, plan_removal
from nbtools.rundir.names import Labels

_NOTHING = ("nothing", "")
_HERE = Path(__file__).parent


def _grows(text: widgets.Text) -> None:
    text.layout.flex, text.layout.max_width, text.layout.width = "1 1 170px", text.layout.width, "0"


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
        chosen: returns the folders of the runs.
        act: does something in a thread, and says what it returns.
        tell: says something.
    """

    def __init__(
        self,
        chosen: Callable[[], Sequence[Path]],
        act: Callable[[str, Callable[[], str]], None],
        tell: Callable[[str], None],
    ) -> None:
        self._chosen, self._act, self._tell = chosen, act, tell
        tooltip = "List what would be removed; then it is asked twice"
        self.delete = button("Delete…", "trash", tooltip, self._ask)
        self.keep = button("Keep", "", "Remove nothing", lambda: self.forget("Nothing was removed."))
        self._plan: RemovalPlan | None = None
        self._planned_for: Sequence[Path] = ()
        self._is_sure = False

    def forget(self, said: str = "") -> None:
        """Remove nothing, as after another choice of runs."""
        self._plan, self._is_sure = None, False
        self.delete.description, self.delete.button_style = "Delete…", ""
        self.keep.layout.display = "none"
        self._tell(said)

    def _ask(self) -> None:
        plan, paths = self._plan, self._chosen()
        if plan is None or paths != self._planned_for:  # others may have been ticked while it looked at these
            self._act("Looking at what can be removed…", lambda: self._planned(paths))
        elif not self._is_sure:
            self._is_sure = True
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
        self._plan, self._planned_for, self._is_sure, self.keep.layout.display = plan, paths, False, ""
        self.delete.description, self.delete.button_style = f"Delete {plural(num_runs, 'run')}", "warning"
        return "\n".join([*listed, *kept, f"{size(plan.num_bytes)} in all; what is deleted cannot be restored."])

    def _removed(self, plan: RemovalPlan) -> str:
        said = plan.remove()
        self.forget()
        return said[0].upper() + said[1:]


class RunGrid(anywidget.AnyWidget):
    """Shows HTML of `RunLines`; `receive` is called with each message, perhaps on another thread."""

    # As text: anywidget keeps a widget alive for each path, to reload it when the file changes.
    _esm = (_HERE / "board.js").read_text(encoding="utf-8")
    _css = (_HERE / "board.css").read_text(encoding="utf-8")
    list = traitlets.Unicode("").tag(sync=True)
    menu = traitlets.Unicode("").tag(sync=True)

    def __init__(self, receive: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self.on_msg(lambda _, content, buffers: receive(content) if isinstance(content, dict) else None)


class BoardControls:
    """The widgets of a board and their layout.

    Args:
        acts: What each button calls: open, compare, stop and resume.
        changed: Called after a change of the filter or the group.
        group: The field by which the runs are grouped at first.
        only_drawn: Whether at first only the runs that are drawn are listed.
        removal: The removal of runs.
        save: Called to save the labels.
        hear: Called with each message of the list in the page.
        curves: The picture, the canvas, and the slider of the curves.
    """

    def __init__(
        self,
        acts: Mapping[str, Callable[[], None]],
        changed: Callable[[], None],
        group: str,
        only_drawn: bool,
        removal: Removal,
        save: Callable[[], None],
        hear: Callable[[Mapping[str, Any]], None],
        curves: Sequence[widgets.Widget],
    ) -> None:
        self.labels, self.grid = LabelForm(save), RunGrid(hear)
        self.text = make_control(
            widgets.Text, "Filter", placeholder="name, tag, state, recipe, note", width=330, label=38
        )
        tip = "List only the runs whose curves are drawn"
        self.drawn = make_control(widgets.ToggleButton, "Drawn", value=only_drawn, icon="eye", tooltip=tip, width=84)
        options = [_NOTHING, *([(group, group)] if group else [])]
        self.group = make_control(widgets.Dropdown, "Group by", options=options, value=group, width=220, label=62)
        _grows(self.text)
        for control in (self.text, self.drawn, self.group):
            control.observe(lambda _: changed(), "value")
        self.buttons = {
            "open": button("Open", "line-chart", "Show the panel of the ticked run below", acts["open"]),
            "compare": button("Compare", "clone", "Draw the ticked runs, and no others", acts["compare"]),
            "stop": button("Stop", "stop", "End each ticked run; a recipe saves a checkpoint first", acts["stop"]),
            "resume": button("Resume", "play", "Start a new run from the latest checkpoint", acts["resume"]),
            "delete": removal.delete,
        }
        self.split = make_control(widgets.Dropdown, "Split by", options=[_NOTHING], width=210, label=52)
        self.plain, self.said, self.note, self.code, self.tables = (html_widget() for _ in range(5))
        self.below = Below()
        # A page that cannot load the list shows the stored one in its place.
        self._box = widgets.Box([self.grid], layout={"display": "none", "width": "100%"})
        buttons = in_row(*self.buttons.values(), removal.keep)
        left = [in_row(self.text, self.drawn), self.plain, self._box, buttons, self.labels.row, self.said]
        right = [in_row(self.group, self.split, curves[2]), *curves[:2], self.note]
        halves = widgets.Box([widgets.VBox(part).add_class("nbt-half") for part in (left, right)])
        parts = [halves.add_class("nbt-halves"), self.code, self.tables, self.below.widget]
        self.whole = widgets.VBox(parts).add_class(html_parts.LIVE)

    def show_grid(self) -> None:
        """Show the list that the page draws, in place of the stored one."""
        self._box.layout.display, self.plain.layout.display = "block", "none"

    def offer_fields(self, every: Sequence[str], drawn: Sequence[str], split: str) -> None:
        """Offer fields to group by, and those that differ between the drawn runs to split by."""
        names = dict.fromkeys([*every, *([self.group.value] if self.group.value else [])])
        offer(self.group, [_NOTHING, *((name, name) for name in names)], "")
        names = dict.fromkeys([*sorted(drawn), *([split] if split else [])])
        offer(self.split, [_NOTHING, *((name, name) for name in names)], "")
