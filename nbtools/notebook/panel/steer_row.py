"""The row with which the owner steers a running training: actions, and new values of what may change."""

from collections.abc import Callable

import ipywidgets as widgets

from nbtools.errors import shown
from nbtools.notebook.background import Filling
from nbtools.notebook.widgets import in_row, make_control
from nbtools.run.control.steer import Controls

_ACTIONS = {
    "save": ("Save", "save", "Save a checkpoint after the current step; it is kept"),
    "evaluate": ("Evaluate", "check-square-o", "Evaluate after the current step"),
    "profile": ("Profile", "bar-chart", "Profile the next five steps: a trace and a table in the run's folder"),
    "pause": ("Pause", "pause", "Save a checkpoint and hold all ranks, with their memory, after the current step"),
}
_CONTINUE = ("Continue", "play", "Continue the paused training")


class SteerRow:
    """Buttons for the actions, and a field with its new value; hidden for a training that takes no requests.

    Attributes:
        act: Called with an action.
        change: Called with a text such as `learning_rate=5e-4`.
    """

    act: Callable[[str], None]
    change: Callable[[str], None]

    def __init__(self) -> None:
        self.buttons = {
            name: make_control(widgets.Button, text, width=100, icon=icon, tooltip=tooltip)
            for name, (text, icon, tooltip) in _ACTIONS.items()
        }
        self.field = make_control(
            widgets.Dropdown, "Change", width=240, label=56, tooltip="Field to change", options=[]
        )
        self.value = make_control(widgets.Text, "to", width=150, label=22, tooltip="Its value from the next step on")
        self.apply = make_control(widgets.Button, "Apply", width=84, icon="check", tooltip="Apply on all ranks")
        self.widget = in_row(*self.buttons.values(), self.field, self.value, self.apply)
        self.widget.layout.display = "none"
        self._controls: Controls | None = None
        self._filling = Filling()
        for name, button in self.buttons.items():
            button.on_click(lambda _, name=name: self.act("continue" if name == "pause" and self._is_paused else name))
        self.apply.on_click(lambda _: self.change(f"{self.field.value}={self.value.value.strip()}"))
        self.field.observe(self._show_value, "value")

    def show(self, controls: Controls | None, *, is_acting: bool) -> None:
        """Offer what a training takes now; None for one that takes nothing."""
        self.widget.layout.display = "none" if controls is None else ""
        if controls is None:
            return
        before, self._controls = self._controls, controls
        for name, button in self.buttons.items():
            button.layout.display = "" if name in controls.actions else "none"
            button.disabled = is_acting or (controls.is_paused and name != "pause")
        self.buttons["pause"].description, self.buttons["pause"].icon, self.buttons["pause"].tooltip = (
            _CONTINUE if controls.is_paused else _ACTIONS["pause"]
        )
        self.apply.disabled = is_acting
        if before is None or before.values != controls.values:
            with self._filling:
                chosen = self.field.value
                self.field.options = list(controls.values)
                self.field.value = chosen if chosen in controls.values else next(iter(controls.values), None)
            self._show_value()

    @property
    def _is_paused(self) -> bool:
        return self._controls is not None and self._controls.is_paused

    def _show_value(self, *_: object) -> None:
        if self._controls is not None and self.field.value is not None and not self._filling.is_on:
            self.value.value = shown(self._controls.values[self.field.value])
