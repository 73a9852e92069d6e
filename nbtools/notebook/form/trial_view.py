"""The button that tries a few steps of a form's values, and the figures that it measures."""

import threading
from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.config import Launch, TrainConfig
from nbtools.launcher.trial.trial import Trial, start_trial
from nbtools.notebook.background import Guarded
from nbtools.notebook.widgets import button
from nbtools.script.program import Program

_EVERY_S = 0.5
_TRY, _CANCEL = "Try a few steps", "Cancel the trial"


class TrialView:
    """Tries the training on one device; a second click cancels. What was measured is shown until a value changes."""

    def __init__(self, root: Path, guarded: Guarded) -> None:
        """Run the click under the form's error boundary `guarded`; relative paths start from `root`."""
        self._root, self._guarded = root, guarded
        self._trial: Trial | None = None
        self._values: tuple[TrainConfig | Program, Launch] | None = None
        self._tried: tuple[TrainConfig | Program, Launch] | None = None
        tooltip = "Measure time and memory of a few steps on one device; no files are kept"
        self.button = button(_TRY, "flask", tooltip, guarded(self._click))
        self.widget = widgets.HTML(layout={"display": "none"}).add_class("nbtools-trial")

    def show(self, values: tuple[TrainConfig | Program, Launch] | None) -> None:
        """Take the values of the form, None if they cannot be launched; figures of other values disappear."""
        self._values = values
        self.button.disabled = self._trial is None and values is None
        if self._trial is None and values not in (None, self._tried):
            self._say("")

    def _click(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
        elif self._values is not None and not isinstance(content := self._values[0], Program):
            self._tried, self._trial = self._values, start_trial(content, self._values[1], root=self._root)
            self.button.description = _CANCEL
            threading.Thread(target=self._follow, args=(self._trial,), name="nbtools-trial-view", daemon=True).start()

    def _follow(self, trial: Trial) -> None:
        while (result := trial.wait(_EVERY_S)) is None:
            self._say(f"<small>trying a few steps: {escape(trial.phase)}</small>")
        self._guarded(lambda: self._end(result.findings._repr_html_()))()

    def _end(self, figures: str) -> None:
        self._trial = None
        self.button.description = _TRY
        self._say(figures)
        self.show(self._values)

    def _say(self, markup: str) -> None:
        self.widget.value, self.widget.layout.display = markup, "" if markup else "none"
