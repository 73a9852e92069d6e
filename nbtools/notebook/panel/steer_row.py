"""The row with which the owner steers a running training: actions, and new values of what may change."""

from collections.abc import Callable

import ipywidgets as widgets

from nbtools.notebook.widgets import in_row, make_control
from nbtools.rundir.requests.steer import Steerable

_ACTIONS = {
    "save": ("Save", "save", "Save a checkpoint after the current step; it is kept"),
    "evaluate": ("Evaluate", "check-square-o", "Evaluate after the current step"),
    "profile": ("Profile", "bar-chart", "Profile the next five steps: a trace and a table in the run's folder"),
    "pause": ("Pause", "pause", "Save a checkpoint, and hold all ranks with their memory"),
    "continue": ("Continue", "play", "Continue the paused training"),
}


class SteerRow:
    """A button for each action, and a text with new values; hidden for a training that takes no requests.

    Args:
        act: Called with the name of an action.
        change: Called with a text such as `learning_rate=5e-4 max_steps=2000`.
    """

    def __init__(self, act: Callable[[str], None], change: Callable[[str], None]) -> None:
        self.buttons: dict[str, widgets.Button] = {}
        for name, (text, icon, tooltip) in _ACTIONS.items():
            self.buttons[name] = make_control(widgets.Button, text, width=100, icon=icon, tooltip=tooltip)
            self.buttons[name].on_click(lambda _, name=name: act(name))
        self.changes = make_control(widgets.Text, "Change", width=330, label=56)
        self.apply = make_control(widgets.Button, "Apply", width=84, icon="check", tooltip="From the next step on")
        self.apply.on_click(lambda _: change(self.changes.value))
        self.widget = in_row(*self.buttons.values(), self.changes, self.apply)
        self.widget.layout.display = "none"

    def show(self, controls: Steerable | None, *, is_acting: bool) -> None:
        """Offer what a training takes now; None for one that takes nothing."""
        self.widget.layout.display = "none" if controls is None else ""
        if controls is None:
            return
        for name, button in self.buttons.items():
            is_useful = name != "continue" if not controls.is_paused else name == "continue"
            button.layout.display = "" if is_useful and name in controls.actions else "none"
            button.disabled = is_acting
        values = [f"{name}={value}" for name, value in controls.values.items()]
        self.changes.placeholder, self.changes.tooltip = " ".join(values[:2]), "Now: " + ", ".join(values)
        self.changes.disabled = self.apply.disabled = is_acting or not values
