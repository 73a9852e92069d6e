"""The end of rank 0's log, with a search; it is read from the file only while it is shown."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import ipywidgets as widgets

from nbtools.errors import literal, plural
from nbtools.metrics.printed.run_patterns import curve_patterns
from nbtools.metrics.printed.shapes import folded, numbers_in
from nbtools.notebook.html_parts import FONT, MONO, MUTED, TEXT
from nbtools.notebook.panel.curve_editor import CurveEditor
from nbtools.notebook.panel.snapshot import log_of
from nbtools.notebook.widgets import html_widget, in_column, in_row, make_control
from nbtools.run.run import Run
from nbtools.rundir.json_files import file_stamp
from nbtools.rundir.rundir import has_recipe

NUM_LINES = 300
"""Lines shown at once."""
NUM_SEARCHED = 5000
"""Lines at the end of the file in which a text is searched."""
_LONGEST_LINE = 2000


class LogView:
    """The last lines, wrapped, in a box that stays at its end unless the reader scrolled up.

    Each number in the lines of a program is a button, which the page reports; `editor` makes it a curve. `changed` is
    called after the searched text changes.
    """

    def __init__(self, changed: Callable[[object], None]) -> None:
        self.search = make_control(widgets.Text, "Search", placeholder="Search the log", width=310, label=48)
        self.search.tooltip = f"Show the lines with this text among the last {NUM_SEARCHED:,} lines of rank 0's log"
        self.curves = widgets.ToggleButton(description="Choose curves", icon="line-chart", layout={"width": "150px"})
        self.curves.tooltip = "Which numbers of the printed lines are drawn, and what counts the steps"
        self.editor = CurveEditor()
        self.count, self.text = html_widget(), html_widget()
        self.count.layout.width = "auto"
        self.text.layout.margin = "0 0 auto"  # a short log begins at the top of the box
        # A reversed column begins at its end, and stays there as it grows, in any page.
        box = widgets.Layout(height="300px", width="100%", overflow="auto", display="flex", flex_flow="column-reverse")
        self.box = widgets.Box([self.text], layout=box).add_class("nbt-log")
        self.widget = in_column(in_row(self.search, self.curves, self.count), self.box, self.editor.widget)
        for control in (self.search, self.curves):
            control.observe(changed, "value")
        self._key: object = None
        self._before: list[str] = []
        self._first = 0

    def look(self, run: Run, *, is_stopped: bool) -> None:
        """Show the newest lines if the log or the search changed."""
        wanted, is_open = self.search.value.strip(), self.curves.value
        has_buttons = not has_recipe(run.files)
        key = run.id, file_stamp(run.files.log), wanted, is_stopped, is_open, curve_patterns(run.info)
        if key == self._key:
            return
        self._key = key
        self.curves.layout.display = "" if has_buttons else "none"
        self.editor.widget.layout.display = "" if has_buttons and is_open else "none"
        if has_buttons and is_open:
            self.editor.look(run, log_of(run, NUM_SEARCHED, is_stopped=is_stopped))
        lines = log_of(run, NUM_SEARCHED if wanted else NUM_LINES, is_stopped=is_stopped)
        pattern = re.compile(f"({re.escape(wanted)})", re.IGNORECASE) if wanted else None
        numbered = list(enumerate(lines, self._number(lines)))
        found = [(at, line) for at, line in numbered if pattern is not None and pattern.search(line)]
        told = f"{plural(len(found), 'line')} of the last {len(lines):,}" if wanted else ""
        self.count.value = f"<span role='status' style='{FONT}{MUTED}padding-left:8px'>{told}</span>"
        shown = (found if wanted else numbered)[-NUM_LINES:]
        body = "".join(_line(at, line[:_LONGEST_LINE], pattern, has_buttons) for at, line in shown)
        nothing = "(no matching line)" if lines else "(no output yet)"
        style = f"{MONO}{TEXT}white-space:pre-wrap;overflow-wrap:anywhere"
        label = "aria-label='end of the log of rank 0'"
        label += " title='Click a number: it becomes a curve, or counts the steps'" * has_buttons
        self.text.value = f"<div role='log' {label} tabindex='0' style='{style}'>{body or nothing}</div>"

    def pick(self, line: str, index: int) -> None:
        """Open the editor at a number that was clicked, of a shown line or, without one, of the editor's own."""
        self.curves.value = True
        self.editor.pick(line, index)

    def _number(self, lines: list[str]) -> int:
        """Return the number of the first line; a line keeps its number, so that the page finds it."""
        newest, kept = lines[-NUM_LINES:], self._before[:-1]  # the last line may have been incomplete
        same = (at for at in range(len(kept)) if kept[at:] == newest[: len(kept) - at])
        self._first += next(same, len(self._before))
        self._before = newest
        return self._first - (len(lines) - len(newest))


def _line(number: int, text: str, pattern: re.Pattern[str] | None, has_buttons: bool) -> str:
    marks = [] if pattern is None else [found.span() for found in pattern.finditer(text)]
    parts, at = [], 0
    for index, (start, end) in enumerate(_numbers_of(text) if has_buttons else ()):
        # Not in the order of the Tab key, as are the editor's: a log has thousands.
        parts += [_marked(text, at, start, marks), f"<button data-n={index} tabindex=-1>"]
        parts += [_marked(text, start, end, marks), "</button>"]
        at = end
    return f"<div data-line='{number}'>{''.join([*parts, _marked(text, at, len(text), marks)]) or ' '}</div>"


def _marked(text: str, at: int, end: int, marks: Sequence[tuple[int, int]]) -> str:
    """Return a part of a line, with the found texts in it marked."""
    parts = []
    for first, last in ((max(first, at), min(last, end)) for first, last in marks):
        if first < last:
            parts.append(f"{literal(text[at:first])}<mark>{literal(text[first:last])}</mark>")
            at = last
    return "".join([*parts, literal(text[at:end])])


@lru_cache(maxsize=NUM_LINES)
def _numbers_of(text: str) -> list[tuple[int, int]]:
    """Return where the numbers of the folded line stand in the line itself, which has more blanks and a prefix."""
    line, places = folded(text), [at for at, character in enumerate(text) if not character.isspace()]
    before = "".join(text.split()).rfind("".join(line.split()))
    numbers = numbers_in(line) if before >= 0 else []
    firsts = (places[before + len("".join(line[:start].split()))] for start, _, _ in numbers)
    return [(first, first + end - start) for first, (start, end, _) in zip(firsts, numbers, strict=True)]
