"""The end of rank 0's log, with a search; it is read from the file only while it is shown."""

import re
from collections.abc import Callable

import ipywidgets as widgets

from nbtools.errors import literal, plural
from nbtools.notebook.panel.html import FONT, MONO, MUTED, TEXT
from nbtools.notebook.panel.snapshot import file_stamp, log_of
from nbtools.notebook.widgets import html_widget
from nbtools.run.run import Run

NUM_LINES = 300
"""Lines shown at once."""
NUM_SEARCHED = 5000
"""Lines at the end of the file in which a text is searched."""
_LONGEST_LINE = 2000


class LogView:
    """The last lines, wrapped, in a box that stays at its end unless the reader scrolled up.

    `changed` is called after the searched text changes.
    """

    def __init__(self, changed: Callable[[object], None]) -> None:
        self.search = widgets.Text(placeholder="Search the log", layout={"width": "260px"})
        self.search.tooltip = f"Highlight this text in the last {NUM_SEARCHED:,} lines of rank 0's log"
        self.only = widgets.ToggleButton(description="Matching lines only", layout={"width": "150px"}, disabled=True)
        self.only.tooltip = "Hide the lines without the searched text"
        self.count, self.text = html_widget(), html_widget()
        self.count.layout.width = "auto"
        self.text.layout.margin = "0 0 auto"  # a short log begins at the top of the box
        # A reversed column begins at its end, and stays there as it grows, in any page.
        box = widgets.Layout(height="300px", width="100%", overflow="auto", display="flex", flex_flow="column-reverse")
        self.box = widgets.Box([self.text], layout=box).add_class("nbt-log")
        row = widgets.HBox([self.search, self.only, self.count], layout=widgets.Layout(flex_flow="row wrap"))
        self.widget = widgets.VBox([row, self.box], layout=widgets.Layout(width="100%"))
        for control in (self.search, self.only):
            control.observe(changed, "value")
        self._key: object = None
        self._before: list[str] = []
        self._first = 0

    def look(self, run: Run, *, is_stopped: bool) -> None:
        """Show the newest lines if the log or the search changed."""
        wanted, is_only = self.search.value.strip(), self.only.value
        key = run.id, file_stamp(run.files.log), wanted, is_only, is_stopped
        if key == self._key:
            return
        self._key = key
        self.only.disabled = not wanted
        lines = log_of(run, NUM_SEARCHED if wanted else NUM_LINES, is_stopped=is_stopped)
        pattern = re.compile(f"({re.escape(wanted)})", re.IGNORECASE) if wanted else None
        numbered = list(enumerate(lines, self._number(lines)))
        found = [(at, line) for at, line in numbered if pattern is not None and pattern.search(line)]
        self.count.value = _said(len(found), len(lines)) if wanted else ""
        shown = (found if wanted and is_only else numbered)[-NUM_LINES:]
        body = "".join(_line(at, line[:_LONGEST_LINE], pattern) for at, line in shown)
        nothing = "(no matching line)" if lines else "(no output yet)"
        style = f"{MONO}{TEXT}white-space:pre-wrap;overflow-wrap:anywhere"
        label = "end of the log of rank 0"
        self.text.value = f"<div role='log' aria-label='{label}' tabindex='0' style='{style}'>{body or nothing}</div>"

    def _number(self, lines: list[str]) -> int:
        """Return the number of the first line; a line keeps its number, so that the page finds it."""
        newest, kept = lines[-NUM_LINES:], self._before[:-1]  # the last line may have been incomplete
        same = (at for at in range(len(kept)) if kept[at:] == newest[: len(kept) - at])
        self._first += next(same, len(self._before))
        self._before = newest
        return self._first - (len(lines) - len(newest))


def _said(num_found: int, num_lines: int) -> str:
    words = f"{plural(num_found, 'line')} of the last {num_lines:,}"
    return f"<span role='status' style='{FONT}{MUTED}padding-left:8px'>{words}</span>"


def _line(number: int, text: str, pattern: re.Pattern[str] | None) -> str:
    parts = [text] if pattern is None else pattern.split(text)
    marked = [f"<mark>{literal(part)}</mark>" if at % 2 else literal(part) for at, part in enumerate(parts)]
    return f"<div data-line='{number}'>{''.join(marked) or ' '}</div>"
