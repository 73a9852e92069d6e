"""The JavaScript side of a panel: scrolling, position in a log, copying, saves, and the browser's notifications."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtools.errors import LaunchError
from nbtools.failures.evidence import last_rows
from nbtools.machine.on_end import sentence_on_end
from nbtools.notebook.widgets import button
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import finite

_HERE = Path(__file__).parent
STYLE = (_HERE / "page.css").read_text(encoding="utf-8")
_NOTIFY = "Have this browser tell the end of the run, alarms and what notify_on names (see Change), while it is open"
_WHY_NOT = {
    "missing": "the browser has none for this page; they need https or localhost, and a computer's browser",
    "denied": "the browser does not allow this page to show notifications; change that in its settings of the site",
    "default": "the browser's question was not answered; click again",
}
"""Why a page shows no notifications, by the browser's answer."""


class Page(anywidget.AnyWidget):
    """A widget whose script acts on the panel or the board around it, and shows a board's list."""

    # As text: anywidget keeps a widget alive for each path, to reload it when the file changes.
    _esm = (_HERE / "page.js").read_text(encoding="utf-8")
    _css = STYLE
    is_sought = traitlets.Bool(False).tag(sync=True)
    """Whether the page scrolls to the panel once the panel is visible."""
    list = traitlets.Unicode("").tag(sync=True)
    """HTML whose elements with `data-act` send their data when they are pressed."""


class Notices:
    """Has the browser show what a run needs its user for, while a page is open.

    The page asks the browser for permission within a click, and shows one of a kind per run and hour, for all panels.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self.begin = button("Notify", "bell", _NOTIFY).add_class("nbt-notify")
        self._since: float | None = None
        self._running: Run | None = None
        self._kinds: list[str] = []

    def answer(self, said: Mapping[str, Any]) -> str:
        """Return what the browser's answer to a click means, and begin to notify if it was a yes.

        Raises:
            LaunchError: the browser shows no notifications.
        """
        if why := _WHY_NOT.get(str(said.get("permission"))):
            raise LaunchError(f"no notification: {why}")
        self._since = time.time()
        return "The browser tells the end of the run, its alarms, and what notify_on names: one of a kind per hour"

    def look(self, run: Run, state: RunState, alarms: Sequence[str]) -> None:
        """Send what the supervisor has recorded for `notify_on` since the click, the alarms, and the end."""
        if self._since is None:
            return
        rows = (row for row in last_rows(run.files.notices) if (finite(row.get("time")) or 0.0) > self._since)
        told = [(str(row.get("kind")), str(row.get("sentence"))) for row in rows if "request" not in row]
        told += [(alarm.partition(" for ")[0], alarm) for alarm in alarms]
        if not state.is_final:
            self._running = run
        elif run == self._running:
            kind, ended = "failed" if state is RunState.FAILED else "ended", run.records.exit or {}
            told.append((kind, sentence_on_end(run.files, run.name, str(state), ended)))
            self._running = None
        before, self._kinds = self._kinds, [kind for kind, _ in told]
        for kind, sentence in told if self._kinds != before else ():
            self._page.send({"run": run.id, "kind": kind, "title": run.name, "text": sentence})
