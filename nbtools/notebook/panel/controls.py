"""The widgets of a panel and their layout; `panel` connects them to the run."""

from collections.abc import Callable, Sequence
from functools import partial

import ipywidgets as widgets

from nbtools.notebook.html_parts import FONT, LIVE, MUTED, copy_button
from nbtools.notebook.panel.checkpoint_list import START, ResumeOffer
from nbtools.notebook.panel.curve_editor import FileChoices
from nbtools.notebook.panel.page import Notices, Page
from nbtools.notebook.panel.run_texts import RunTexts
from nbtools.notebook.panel.tabs import Tabs
from nbtools.notebook.widgets import button, html_widget, in_column, in_row, make_control
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.requests.steer import Steerable

Act = Callable[..., None]
"""Acts on a click or an edit."""
_STOP = ("Stop", "End every process of this run; a recipe saves a checkpoint first")
_CANCEL = ("Cancel", "Remove the run from its queue; no later attempt starts")
"""Text and tooltip of the button that ends a run."""
_RESUME = "Continue from the latest verified checkpoint in a new run, and show it here"
_AGAIN = "Start the current version of the script from the beginning, and show the new run here"
_REPORT = "Save this run as one HTML file to send: curves, samples, values; without paths and names of hosts"
_MENU = "Stacks of the ranks, a report, commands to copy, the smoothing of the curves, notices and their conditions"
_ACTIONS = {
    "save": ("Save", "save", "Save a checkpoint after the current step; it is kept"),
    "evaluate": ("Evaluate", "check-square-o", "Evaluate after the current step"),
    "profile": ("Profile", "bar-chart", "Profile the next five steps: a trace and a table in the run's folder"),
    "pause": ("Pause", "pause", "Save a checkpoint, and hold all ranks with their memory"),
    "continue": ("Continue", "play", "Continue the paused training"),
}


class SteerRow:
    """A button for each action, and a text with new values; for a program that takes conditions of notices alone, the
    text is in the menu, and there is no row.

    Args:
        act: Called with the name of an action, or with a `text` such as `learning_rate=5e-4 max_steps=2000`.
    """

    def __init__(self, act: Act) -> None:
        self.buttons = {name: button(*look, partial(act, name)) for name, look in _ACTIONS.items()}
        self.changes = make_control(widgets.Text, "Change", width=330, label=56)
        self.apply = button("Apply", "check", "From the next step on", lambda: act(text=self.changes.value))
        self.widget = in_row(*self.buttons.values(), self.changes, self.apply)
        self.in_menu = in_row(self.changes, self.apply)
        self.widget.layout.display = self.in_menu.layout.display = "none"

    def show(self, controls: Steerable | None, *, is_acting: bool) -> None:
        """Offer what a training takes now; None for one that takes nothing."""
        has_row = controls is not None and bool(controls.actions)
        self.widget.layout.display = "" if has_row else "none"
        self.in_menu.layout.display = "none" if controls is None or has_row else ""
        if controls is None:
            return
        for name, each in self.buttons.items():
            is_useful = controls.is_paused == (name == "continue")
            each.layout.display = "" if is_useful and name in controls.actions else "none"
            each.disabled = is_acting
        values = [f"{name}={value}" for name, value in controls.values.items()]
        self.changes.placeholder, self.changes.tooltip = " ".join(values[:2]), "Now: " + ", ".join(values)
        self.changes.disabled = self.apply.disabled = is_acting or not values


class RunButtons:
    """The buttons that act on a run: those that apply to its state are shown and enabled."""

    def __init__(self, fork: widgets.Button) -> None:
        """Make the buttons but for `fork`, which resumes with changes, below the checkpoints."""
        self.stop = button(_STOP[0], "stop", _STOP[1]).add_class("nbt-stop")
        self.again = button("Launch again", "repeat", _AGAIN)
        self.onward = button("Resume", "play", _RESUME)
        self.stacks = button("Stacks", "list", "Show the Python stack of every rank; the training continues")
        self.report = button("Report", "file-text-o", _REPORT)
        self.fork = fork

    def show(self, state: RunState, offer: ResumeOffer, *, may_launch: bool) -> None:
        """Show what applies to a run in this state, and why one that resumes cannot."""
        self.stop.description, self.stop.tooltip = _CANCEL if state is RunState.QUEUED else _STOP
        is_final = state.is_final
        useful = {self.stop: not is_final, self.again: is_final and may_launch}
        useful[self.onward] = is_final and offer.has_checkpoint
        for each, is_useful in useful.items():
            each.layout.display, each.disabled = "" if is_useful else "none", not is_useful
        # If nothing is left to do, a run resumes with changes alone.
        why = offer.why_not or offer.nothing_left
        self.onward.disabled |= bool(why)
        self.fork.disabled = not offer.may_start(state)
        self.stacks.disabled = state is not RunState.RUNNING
        for each, usual, why_not in ((self.onward, _RESUME, why), (self.fork, START, offer.why_not)):
            each.tooltip = f"Cannot resume: {why_not}" if why_not else usual

    def disable(self) -> None:
        """Disable all while an action runs."""
        for each in (self.stop, self.stacks, self.fork, self.again, self.onward):
            each.disabled = True


class Controls:
    """Core widgets only, each with a description and a tooltip, styled by the notebook's theme.

    Args:
        curves: the picture and the canvas.
        smoothing: the slider of the curves.
        steer: the row that steers the training.
        changed: called after a choice that is drawn differs.
        typed: called after the typed changes of a fork differ.
    """

    def __init__(
        self, curves: Sequence[widgets.Widget], smoothing: widgets.Widget, steer: SteerRow, changed: Act, typed: Act
    ) -> None:
        self.words, self.tabs, self.files, self.page = RunTexts(), Tabs(changed, typed), FileChoices(), Page()
        self.buttons, self.steer, self.notices = RunButtons(self.tabs.checkpoints.start), steer, Notices(self.page)
        self.trouble, self.note, self.taken, self._commands = (html_widget() for _ in range(4))
        self._commands.layout.width = "auto"
        self.page.layout.display = "none"  # also hides the error of a page that cannot load it
        menu = make_control(widgets.ToggleButton, "Menu", width=80, tooltip=_MENU, icon="bars")
        shown = self.buttons.stacks, self.buttons.report, self._commands, smoothing, self.notices.begin, steer.in_menu
        unfolded = in_row(*shown)
        unfolded.layout.display = "none"
        menu.observe(lambda change: setattr(unfolded.layout, "display", "" if change.new else "none"), "value")
        buttons = in_row(self.buttons.stop, self.buttons.again, self.buttons.onward, menu)
        buttons.layout.width, buttons.layout.margin = "auto", "0 0 0 12px"
        state = in_column(*self.words.above[:2])
        state.layout.width, state.layout.flex = "0", "1 1 340px"
        top = in_row(state, buttons)
        top.layout.align_items = "flex-start"
        upper = in_column(top, self.steer.widget, unfolded, *self.words.above[2:], self.note, self.taken)
        below = (self.words.sources, self.files.widget, self.words.losses, self.trouble, self.tabs.widget, self.page)
        self.whole = in_column(upper, *curves, *below).add_class(LIVE)

    def name_run(self, run: Run) -> None:
        """Offer the commands of this run for copying."""
        commands = {
            "id": run.id,
            "folder": str(run.dir),
            "nbtools watch": f"nbtools watch {run.id}",
            "nbtools stop": f"nbtools stop {run.id}",
            "nt.LivePlot": f'nt.LivePlot("{run.id}")',
        }
        buttons = "".join(copy_button(text, content) for text, content in commands.items())
        self._commands.value = f"<div style='{FONT}{MUTED}padding:0 12px'>Copy: {buttons}</div>"
