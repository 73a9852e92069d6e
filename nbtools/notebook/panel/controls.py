"""The widgets of a panel and their layout; `panel` connects them to the run."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import ipywidgets as widgets

from nbtools.notebook.html_parts import FONT, LIVE, MUTED, PICTURE, copy_button
from nbtools.notebook.panel.checkpoints.checkpoint_list import START
from nbtools.notebook.panel.curve_editor import CounterChoice
from nbtools.notebook.panel.tabs import Tabs
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.live import LiveCharts
from nbtools.notebook.plots.view import KINDS
from nbtools.notebook.widgets import close_tree, html_widget, in_row, make_control
from nbtools.run.run import Run

STOP = ("Stop", "End every process of this run; a recipe saves a checkpoint first")
CANCEL = ("Cancel", "Remove the run from its queue; no later attempt starts")
"""Text and tooltip of the button that ends a run."""
_CONTROLS = {
    "Log scale": ("Logarithmic y axes for loss and gradient norm", 90, 0),
    "Smoothing": ("Weight of earlier values in the bold lines; the thin lines are the raw values", 260, 76),
    "x axis": ("Unit of the x axis", 145, 45),
    "Range %": ("Share of the x axis to show", 275, 60),
    "Dark": ("Dark background for a dark notebook", 64, 0),
    STOP[0]: (STOP[1], 84, 0),
    "Launch again": ("Start the current version of the script from the beginning, and show the new run here", 128, 0),
    "Resume": ("Continue from the latest verified checkpoint in a new run, and show it here", 96, 0),
    "Menu": ("Stacks of the ranks, commands to copy, and options of the curves", 80, 0),
    "Stacks": ("Show the Python stack of every rank; the training continues", 92, 0),
}
"""Tooltip of each control, its width, and the width of its label if that is in front, in pixels."""


class Controls:
    """Core widgets only, each with a description and a tooltip, styled by the notebook's theme.

    Args:
        changed: called after a choice that is drawn differs.
        typed: called after the typed changes of a fork differ.
    """

    def __init__(
        self,
        dark: bool,
        log: bool,
        smoothing: float,
        charts: LiveCharts,
        changed: Callable[..., None],
        typed: Callable[..., None],
    ) -> None:
        self.header, self.progress, self.since_look, self.failure, self.ranks, self.waiting = (
            html_widget() for _ in range(6)
        )
        self.sources, self.losses, self.trouble, self.note, self.taken, self._commands = (
            html_widget() for _ in range(6)
        )
        self.counters = CounterChoice()
        self.image, self.canvas = charts.image, charts.box
        self.image.add_class(PICTURE)
        self.log = _control(widgets.ToggleButton, "Log scale", value=log)
        self.smoothing = _control(widgets.FloatSlider, "Smoothing", value=smoothing, max=0.99, step=0.01)
        self.x = _control(widgets.Dropdown, "x axis", options=KINDS, value=charts.choices.x)
        self.span = _control(widgets.FloatRangeSlider, "Range %", value=(0, 100), step=0.5, readout_format=".0f")
        self.smoothing.continuous_update = self.span.continuous_update = False
        self.dark = _control(widgets.ToggleButton, "Dark", value=dark)
        self.stop = _control(widgets.Button, "Stop", icon="stop").add_class("nbt-stop")
        self.again = _control(widgets.Button, "Launch again", icon="repeat")
        self.onward = _control(widgets.Button, "Resume", icon="play")
        self.menu = _control(widgets.ToggleButton, "Menu", icon="bars")
        self.stacks = _control(widgets.Button, "Stacks", icon="list")
        self.tabs = Tabs(changed, typed)
        self.shown, self.tail = self.tabs.samples, self.tabs.log.text
        found = self.tabs.checkpoints
        self.checkpoint, self.changes = found.choice, found.changes
        self.changing, self.resume = found.changing, found.start
        self.options = (self.log, self.smoothing, self.x, self.span, self.dark)
        acts = (self.stop, self.again, self.onward, self.menu, self.stacks)
        self.actions = (*acts, found.verify, self.checkpoint, self.changes, self.resume)
        self._why_not = ""
        self._commands.layout.width = "auto"
        self._menu_row = in_row(self.stacks, self._commands, *self.options)
        self._menu_row.layout.display = "none"
        self.menu.observe(self._unfold, "value")
        self.page = _page()
        self.words = (self.header, self.progress, self.since_look, self.ranks, self.failure, self.waiting)
        """Widgets of text, in their order on a page without widgets."""
        buttons = in_row(self.stop, self.again, self.onward, self.menu)
        buttons.layout.width, buttons.layout.margin = "auto", "0 0 0 12px"
        state = _column(self.header, self.progress)
        state.layout.width, state.layout.flex = "0", "1 1 340px"
        top = in_row(state, buttons)
        top.layout.align_items = "flex-start"
        acting = (self._menu_row, self.note, self.taken)
        self.lower = _column(
            *(self.sources, self.counters.widget, self.losses, self.trouble, self.tabs.widget),
            *([] if self.page is None else [self.page]),
        )
        upper = _column(top, self._menu_row, *self.words[2:], self.note, self.taken)
        self.whole = _column(upper, self.image, self.canvas, self.lower)
        self.below = _column(buttons, *acting, self.canvas, self.lower)
        """Widgets below the static outputs of an ended run, until the canvas answers."""
        for box in (self.lower, self.whole):
            box.add_class(LIVE)

    def hide_own(self) -> None:
        """Hide the controls that the canvas has itself."""
        for control in (self.log, self.x, self.span, self.dark):
            control.layout.display = "none"

    def offer(self, *, is_final: bool, is_running: bool, may_launch: bool, may_resume: bool) -> None:
        """Show the buttons that apply to a run in this state."""
        useful = {self.stop: not is_final, self.again: is_final and may_launch, self.onward: is_final and may_resume}
        for button, is_useful in useful.items():
            button.layout.display = "" if is_useful else "none"
            button.disabled = not is_useful or (button is self.onward and bool(self._why_not))
        self.stacks.disabled = not is_running

    def explain_resume(self, why_not: str, nothing_left: str = "") -> None:
        """Say on the buttons that resume why they cannot; empty texts if they can.

        If nothing is left to do, a run resumes with changes alone.
        """
        self._why_not = why_not or nothing_left
        for button, usual, why in ((self.onward, _CONTROLS["Resume"][0], self._why_not), (self.resume, START, why_not)):
            button.tooltip = f"Cannot resume: {why}" if why else usual

    def name_run(self, run: Run) -> None:
        """Offer the commands of this run for copying."""
        commands = {
            "id": run.id,
            "nbtools watch": f"nbtools watch {run.id}",
            "nbtools stop": f"nbtools stop {run.id}",
            "nt.LivePlot": f'nt.LivePlot("{run.id}")',
        }
        buttons = "".join(copy_button(text, content) for text, content in commands.items())
        self._commands.value = f"<div style='{FONT}{MUTED}padding:0 12px'>Copy: {buttons}</div>"

    def close(self) -> None:
        """Remove every widget from the page."""
        close_tree(self.whole)
        close_tree(self.below)

    def _unfold(self, change: Any) -> None:
        self._menu_row.layout.display = "" if change.new else "none"


def _page() -> Any:
    """Return the widget that acts on the page; None where anywidget is not installed."""
    try:
        page = import_module("nbtools.notebook.panel.page").Page()
    except ModuleNotFoundError:
        return None
    page.layout.display = "none"  # also hides the error of a page that cannot load it
    return page


def _control(kind: type[widgets.DOMWidget], description: str, **traits: Any) -> Any:
    """Make a control with the tooltip and the widths in `_CONTROLS`."""
    tooltip, width, label = _CONTROLS[description]
    return make_control(kind, description, width=width, label=label, tooltip=tooltip, **traits)


def _column(*children: widgets.Widget) -> widgets.Box:
    return widgets.VBox(children, layout=widgets.Layout(width="100%", max_width=f"{WIDTH}px"))
