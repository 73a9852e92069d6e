"""The tabs below the curves; only the open tab reads and draws."""

from collections.abc import Callable

import ipywidgets as widgets

from nbtools.notebook import run_html
from nbtools.notebook.panel.checkpoint_list import CheckpointList
from nbtools.notebook.panel.log_view import LogView
from nbtools.notebook.panel.media_view import MediaView
from nbtools.notebook.panel.snapshot import ShownRun
from nbtools.notebook.plots.phase_bars import phase_bars
from nbtools.notebook.plots.view import Limits
from nbtools.notebook.widgets import html_widget
from nbtools.rundir.json_files import file_stamp

SAMPLES, LOG, CHECKPOINTS, CONFIG, SYSTEM = range(5)
TITLES = ("Samples", "Log", "Checkpoints", "Config", "System")


class Tabs:
    """The five tabs of a panel.

    Args:
        changed: called after another tab was chosen, or the search of the log.
        typed: called after the typed changes of a fork differ.
    """

    def __init__(self, changed: Callable[[object], None], typed: Callable[[object], None]) -> None:
        self.samples, self.log, self.checkpoints = MediaView(), LogView(changed), CheckpointList(typed)
        self.config, self.system = html_widget(), html_widget()
        shown = (self.samples.widget, self.log.widget, self.checkpoints.widget, self.config, self.system)
        self.widget = widgets.Tab(shown, titles=TITLES, selected_index=LOG).add_class("nbt-tabs")
        self.widget.observe(self._choose, "selected_index")
        self._changed = changed
        self._is_chosen = False
        self._keys: dict[int, object] = {}
        self._parts: list[Limits] = []
        self._is_whole = True

    @property
    def index(self) -> int:
        return int(self.widget.selected_index or 0)

    def show_samples(self) -> None:
        """Show the samples, unless the user has chosen a tab."""
        if not self._is_chosen and self.index != SAMPLES:
            self.widget.selected_index = SAMPLES
            self._is_chosen = False

    def choose(self, step: int) -> None:
        """Show the checkpoint of a step in its tab."""
        self.checkpoints.choose(step)
        self.widget.selected_index = CHECKPOINTS

    def look(self, shown: ShownRun, *, is_stopped: bool, steps: Limits | None) -> None:
        """Bring the shown tab up to date; the samples are drawn by the panel, which also stores them.

        Args:
            steps: the part of the run that the charts show; None for all.
        """
        self._keep(steps)
        index, run = self.index, shown.run
        if index == LOG:
            self.log.look(run, is_stopped=is_stopped)
        elif index == CHECKPOINTS:
            self.checkpoints.look()
        elif index == CONFIG and self._is_new(index, (run.id, file_stamp(run.files.config))):
            self.config.value = run_html.config(run)
        elif index == SYSTEM:
            bars = phase_bars(shown.phases, self._parts)
            if shown.system.read() or self._is_new(index, (run.id, bars)):
                self.system.value = bars + run_html.machine(shown.system.values)

    def _keep(self, steps: Limits | None) -> None:
        """Keep the part that is shown and the one before it, to compare: charts showed the whole run between them."""
        if steps is not None:
            self._parts = [*(self._parts if self._is_whole else self._parts[:-1])[-1:], steps]
        self._is_whole = steps is None

    def _choose(self, change: object) -> None:
        self._is_chosen = True
        self._keys.clear()
        self._changed(change)

    def _is_new(self, index: int, key: object) -> bool:
        is_new, self._keys[index] = self._keys.get(index) != key, key
        return is_new
