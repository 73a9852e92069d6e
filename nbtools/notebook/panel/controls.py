"""The widgets of a panel and their layout; `panel` connects them to the run."""

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from nbtools.notebook.html_parts import FONT, LIVE, MUTED, PICTURE, copy_button
from nbtools.notebook.panel.checkpoints.checkpoint_list import START
from nbtools.notebook.panel.curve_editor import CounterChoice
from nbtools.notebook.panel.page import Page
from nbtools.notebook.panel.tabs import Tabs
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.live import LiveCharts
from nbtools.notebook.widgets import close_tree, html_widget, in_row, make_control
from nbtools.run.run import Run

STOP = ("Stop", "End every process of this run; a recipe saves a checkpoint first")
CANCEL = ("Cancel", "Remove the run from its queue; no later attempt starts")
"""Text and tooltip of the button that ends a run."""
_CONTROLS = {
    "Smoothing": ("Weight of earlier values in the bold lines; the thin lines are the raw values", 260, 76),
    STOP[0]: (STOP[1], 84, 0),
    "Launch again": ("Start the current version of the script from the beginning, and show the new run here", 128, 0),
    "Resume": ("Continue from the latest verified checkpoint in a new run, and show it here", 96, 0),
    "Menu": ("Stacks of the ranks, commands to copy, and the smoothing of the curves", 80, 0),
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
        self, smoothing: float, charts: LiveCharts, changed: Callable[..., None], typed: Callable[..., None]
    ) -> None:
        self.header, self.progress, self.since_look, self.failure, self.ranks, self.waiting = (
            html_widget() for _ in range(6)
        )
        self.sources, self.losses, self.trouble, self.note, self.taken, self._commands = (
            html_widget() for _ in range(6)
        )
        self.counters = CounterChoice()
        charts.image.add_class(PICTURE)
        self.smoothing = _control(widgets.FloatSlider, "Smoothing", value=smoothing, max=0.99, step=0.01)
        self.smoothing.continuous_update = False
        self.stop = _control(widgets.Button, "Stop", icon="stop").add_class("nbt-stop")
        self.again = _control(widgets.Button, "Launch again", icon="repeat")
        self.onward = _control(widgets.Button, "Resume", icon="play")
        menu = _control(widgets.ToggleButton, "Menu", icon="bars")
        self.stacks = _control(widgets.Button, "Stacks", icon="list")
        self.tabs = Tabs(changed, typed)
        self._why_not = ""
        self._commands.layout.width = "auto"
        self._menu_row = in_row(self.stacks, self._commands, self.smoothing)
        self._menu_row.layout.display = "none"
        menu.observe(self._unfold, "value")
        self.page = Page()
        self.page.layout.display = "none"  # also hides the error of a page that cannot load it
        self.words = (self.header, self.progress, self.since_look, self.ranks, self.failure, self.waiting)
        """Widgets of text, in their order on a page without widgets."""
        buttons = in_row(self.stop, self.again, self.onward, menu)
        buttons.layout.width, buttons.layout.margin = "auto", "0 0 0 12px"
        state = _column(self.header, self.progress)
        state.layout.width, state.layout.flex = "0", "1 1 340px"
        top = in_row(state, buttons)
        top.layout.align_items = "flex-start"
        upper = _column(top, self._menu_row, *self.words[2:], self.note, self.taken)
        below = (self.sources, self.counters.widget, self.losses, self.trouble, self.tabs.widget, self.page)
        self.whole = _column(upper, charts.image, charts.box, *below).add_class(LIVE)

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
        for button, usual, why in (
            (self.onward, _CONTROLS["Resume"][0], self._why_not),
            (self.tabs.checkpoints.start, START, why_not),
        ):
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

    def _unfold(self, change: Any) -> None:
        self._menu_row.layout.display = "" if change.new else "none"


def _control(kind: type[widgets.DOMWidget], description: str, **traits: Any) -> Any:
    """Make a control with the tooltip and the widths in `_CONTROLS`."""
    tooltip, width, label = _CONTROLS[description]
    return make_control(kind, description, width=width, label=label, tooltip=tooltip, **traits)


def _column(*children: widgets.Widget) -> widgets.Box:
    return widgets.VBox(children, layout=widgets.Layout(width="100%", max_width=f"{WIDTH}px"))
