"""The editor of a program's curves: a number of a printed line becomes a metric, the step, or nothing."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import numpy as np

from nbtools.errors import ConfigError, literal
from nbtools.metrics.curve_names import COUNTERS
from nbtools.metrics.printed.choice import Found, counters_in, find, metric_at, names_in
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.run_patterns import curve_patterns
from nbtools.metrics.printed.shapes import folded, numbers_in, shape_of
from nbtools.metrics.readers.sources import MetricSource
from nbtools.notebook.background import Filling
from nbtools.notebook.html_parts import FONT, MONO, MUTED, TEXT, WARN, sparkline
from nbtools.notebook.widgets import button, html_widget, in_column, in_row, make_control
from nbtools.run.run import Run

_HELP = (
    "Click a number of the log, say what it is, look at the preview, and keep it. The pattern stands in the launcher "
    "script if there is one, else in your configuration, and counts for earlier and later runs of the script."
)
_CURVE, _NOTHING = "Curve", "Nothing"
_MEANINGS = {
    _CURVE: "This number is a metric: it is drawn",
    "Step": "This number counts the steps: the values of the line are drawn there",
    "Epoch": "This number counts the epochs",
    _NOTHING: "This number is not drawn",
}
_UNREAD = "time"
"""Name of a number that is neither drawn nor counts: a pattern with it alone keeps a line from being drawn."""
_MOST_FILES, _MOST = 5, 60
_MOST_KINDS, _LONGEST, _MOST_POINTS, _MOST_DRAWN = 200, 110, 300, 4


class EditedLine:
    """A printed line, the names of its numbers, and the chosen one of them; `text` is the pattern that they make.

    Attributes:
        line: The line.
        names: The names of its numbers that have one, by their index.
        at: Index of the chosen number.
        lines: The last lines of the log, which the pattern is tried on.
        kept: The patterns of the script.
        drawn: The shapes of lines that are drawn now.
    """

    def __init__(self) -> None:
        self.line, self.names, self.at = "", dict[int, str](), 0
        self.lines, self.kept, self.drawn = list[str](), tuple[str, ...](), set[str]()

    @property
    def name(self) -> str:
        return self.names.get(self.at, "")

    @property
    def text(self) -> str:
        """The pattern; empty if no number has a name, or one that cannot be."""
        unread = {self.at: _UNREAD} if shape_of(self.line) in self.drawn else {}
        with suppress(ConfigError):
            return Pattern.of(self.line, self.names or unread).text
        return ""

    def open(self, line: str) -> None:
        """Take a line, with the names of its numbers that are drawn now, and of the one that may count."""
        patterns, self.line = [Pattern(text) for text in self.kept if _reads(text, line)], line
        self.names = names_in(line, patterns) if patterns or shape_of(line) in self.drawn else {}
        if not any(name in COUNTERS for name in self.names.values()):
            self.names |= counters_in(line, self.lines)
        self.at = min(self.names, default=0)

    def pick(self, line: str, index: int) -> bool:
        """Choose a number of a line, without a line of the same, and name it; returns whether there is one."""
        line = folded(line) if line else self.line
        if shape_of(line) != shape_of(self.line):
            self.open(line)
        if not 0 <= index < len(numbers_in(line)):
            return False
        self.line, self.at = line, index
        self.call(self.name or metric_at(line, index))
        return True

    def mean(self, meaning: str) -> None:
        """Say what the chosen number is."""
        named = {_NOTHING: "", _CURVE: metric_at(self.line, self.at)}
        self.call(named.get(meaning, meaning.lower()))

    def call(self, name: str) -> None:
        """Name the chosen number; another one of this name loses it."""
        others = {index: other for index, other in self.names.items() if index != self.at and other != name.strip()}
        self.names = {**others, **({self.at: name.strip()} if name.strip() else {})}

    def read(self, text: str) -> None:
        """Take the names of a pattern, if it reads the line; else `found` says what it finds, or what is wrong."""
        if _reads(text, self.line):
            self.names = names_in(self.line, [Pattern(text)])

    def found(self, text: str) -> Found:
        """Return what a pattern finds in the last lines; ConfigError if it is none."""
        return find(Pattern(text) if text else Pattern.of(self.line, self.names), self.lines)

    def others(self) -> list[str]:
        """Return the kept patterns that do not read the line: a new one replaces the others."""
        return [text for text in self.kept if not _reads(text, self.line)]


class CurveEditor:
    """Kinds of lines, the numbers of one of them with their names, a preview, and the patterns that are kept."""

    def __init__(self) -> None:
        self.keep: Callable[[Sequence[str]], None] = lambda curves: None
        """Called with all patterns of the script."""
        self._filling, self._edited = Filling(), EditedLine()
        tip = "Lines that differ in more than their numbers; the most frequent come first"
        self.kind = make_control(widgets.Dropdown, "Line", width=690, label=60, tooltip=tip, options=[("", "")])
        tip = "The numbers of this line"
        self.number = make_control(widgets.Dropdown, "Number", width=250, label=60, tooltip=tip, options=[("", 0)])
        self.meaning = widgets.ToggleButtons(options=[*_MEANINGS], tooltips=[*_MEANINGS.values()])
        self.meaning.style.button_width = "72px"
        tip = "Name of the curve, such as train/loss or eval/accuracy; empty: this number is not drawn"
        self.name = make_control(widgets.Text, "Name", width=210, label=50, tooltip=tip, continuous_update=False)
        tip = "The line as text: {name} is a number, {_} any text. Edit it to match more or fewer lines"
        self.text = make_control(widgets.Text, "Pattern", width=530, label=60, tooltip=tip, continuous_update=False)
        tip = "The patterns of this script"
        self.kept = make_control(widgets.Dropdown, "Kept", width=530, label=60, tooltip=tip, options=[""])
        self._save = button("Keep", "check", "Draw these curves, and keep the pattern", style="primary")
        self._remove = button("Remove", "trash", "Forget this pattern")
        self._example, self._preview, told = html_widget(), html_widget(), html_widget()
        told.value = f"<div style='{FONT}{MUTED}margin:2px 0 6px'>{_HELP}</div>"
        self._row = in_row(self.kept, self._remove)
        parts = in_row(self.number, self.meaning, self.name), in_row(self.text, self._save)
        self.widget = in_column(told, self.kind, self._example, *parts, self._preview, self._row)
        self.widget.add_class("nbt-curves")
        edited, controls = self._edited, (self.kind, self.number, self.meaning, self.name, self.text)
        select = partial(setattr, edited, "at")
        edits: Sequence[Callable[[Any], None]] = (edited.open, select, edited.mean, edited.call, edited.read)
        for control, edit in zip(controls, edits, strict=True):
            control.observe(partial(self._edit, edit), "value")
        self._save.on_click(lambda _: self.keep([*self._edited.others(), self.text.value]))
        self._remove.on_click(lambda _: self.keep([kept for kept in self._edited.kept if kept != self.kept.value]))

    def look(self, run: Run, lines: Sequence[str]) -> None:
        """Show the kinds of lines of a run, and what the pattern finds in the end of its log."""
        edited, found = self._edited, run.rows.kinds[:_MOST_KINDS]
        edited.lines, edited.kept = [folded(line) for line in lines], curve_patterns(run.info)
        edited.drawn = {kind.shape for kind in found if kind.curves}
        options = {kind.shape: (f"{kind.count:,} × {kind.example}"[:_LONGEST], kind.example) for kind in found}
        line = edited.line or next((example for _, example in options.values()), "")
        options[shape_of(line)] = options.get(shape_of(line), (line[:_LONGEST], ""))[0], line
        with self._filling:
            if {shape_of(shown) for _, shown in self.kind.options} != {*options}:  # else a list that is open closes
                self.kind.options = [*options.values()]
            self.kept.options, self._row.layout.display = edited.kept or [""], "" if edited.kept else "none"
            self.kept.value = self.kept.options[-1]
        is_shown = line == edited.line
        if not is_shown:
            edited.open(line)
        self._show(self.text.value if is_shown else "")

    def pick(self, line: str, index: int) -> None:
        """Choose a number of a line, as by a click; without a line, of the one that is shown."""
        if self._edited.pick(line, index):
            self._show()

    def _edit(self, edit: Callable[[Any], None], change: Any) -> None:
        if not self._filling.is_on:
            edit(change.new)
            self._show(change.new if change.owner is self.text else "")

    def _show(self, text: str = "") -> None:
        edited, name = self._edited, self._edited.name
        text = text or edited.text
        with self._filling:
            places = enumerate(numbers_in(edited.line))
            told = [f"{edited.line[start:end]} {edited.names.get(i, '')}" for i, (start, end, _) in places]
            lines = (other for _, other in self.kind.options if shape_of(other) == shape_of(edited.line))
            self.kind.value = next(lines, self.kind.value)
            self.number.options = [(words, index) for index, words in enumerate(told)] or [("", 0)]
            self.number.value = edited.at
            meaning = _NOTHING if name in ("", _UNREAD) or name.startswith("total_") else _CURVE
            self.meaning.value = name.title() if name.title() in _MEANINGS else meaning
            self.name.value, self.text.value = name, text
        self._example.value = _example(edited)
        try:
            said, self._save.disabled = _drawn(edited.found(text)), text in edited.kept
        except ConfigError as error:
            said = f"<span style='{WARN}'>{literal(str(error))}</span>" if edited.names or text else "Click a number."
            self._save.disabled = True
        self._preview.value = f"<div role='status' style='{FONT}{TEXT}'>{said}</div>"


def _reads(text: str, line: str) -> bool:
    with suppress(ConfigError):  # of a file that was edited by hand
        return Pattern(text).values(line) is not None
    return False


class FileChoices:
    """Lets the user choose what counts the rows of each file of a program, and which of its metrics are drawn."""

    def __init__(self) -> None:
        self.choose: Callable[[str, Mapping[str, str | bool]], None] = lambda name, choice: None
        """Called with the name of the file and the choice, as of `choose` of the panel."""
        self.widget = widgets.VBox()
        self._shown: list[tuple[str, str | None, list[str] | None, list[str], list[str]]] = []

    def look(self, sources: Sequence[MetricSource]) -> None:
        """Show the files with rows, also those that are not drawn since nothing counts them."""
        found = []
        for one in sources:
            if one.history or one.rows:
                counter, columns = (one.rows.counter, one.rows.counters) if one.rows else (None, None)
                drawn = [*filter(one.draws, one.history)]
                found.append((Path(one.name).name, counter, columns, drawn, [*one.history]))
        if found != self._shown:
            self._shown, before = found, self.widget.children
            self.widget.children = [in_column(*self._controls(*shown)) for shown in found[:_MOST_FILES]]
            for control in before:
                control.close()

    def _controls(
        self, name: str, counter: str | None, columns: list[str] | None, drawn: list[str], every: list[str]
    ) -> Iterator[widgets.Widget]:
        if columns is not None:
            options = [(column, column) for column in dict.fromkeys((*filter(None, (counter,)), *columns))]
            tip = f"The column that counts the rows of {name}, in all runs of this project"
            control = make_control(widgets.Dropdown, f"Counter of {name}", width=420, label=220, tooltip=tip)
            control.options = [*options[:_MOST_KINDS], ("the order of its rows", "")]
            control.value = counter  # None: nothing counts them yet
            control.observe(lambda change: self.choose(name, {"": change.new}), "value")
            yield control
        if every:
            place = {"width": "220px", "display": "flex", "justify_content": "flex-end", "margin": "0 8px 0 0"}
            label = widgets.Label(f"Drawn of {name}", layout=place)
            yield in_row(label, *(self._button(name, metric, drawn) for metric in every[:_MOST]))

    def _button(self, name: str, metric: str, drawn: Collection[str]) -> widgets.ToggleButton:
        tip = f"Whether {metric} of {name} is drawn, in all runs of this project"
        is_drawn, layout = metric in drawn, {"width": "auto"}
        icon = "check" if is_drawn else ""  # no meaning by colour alone
        made = widgets.ToggleButton(is_drawn, description=metric, icon=icon, tooltip=tip, layout=layout)
        made.observe(lambda change: self.choose(name, {metric: change.new}), "value")
        return made


def _example(edited: EditedLine) -> str:
    """Return the line, in which each number is a button, with its name behind it."""
    parts, at, line = [], 0, edited.line
    for index, (start, end, _) in enumerate(numbers_in(line)):
        name, is_chosen = literal(edited.names.get(index, "")), index == edited.at
        kind = "nbt-named " * bool(name) + "nbt-chosen" * is_chosen
        parts += [literal(line[at:start]), f"<button data-n={index} class='{kind}'>{literal(line[start:end])}</button>"]
        parts += [f"<sub>{name}</sub>"] if name else []
        at = end
    body = "".join([*parts, literal(line[at:])])
    style = f"{MONO}{TEXT}white-space:pre-wrap;overflow-wrap:anywhere;padding:4px 0 4px 68px"
    return f"<div role='group' aria-label='numbers of the line' style='{style}'>{body}</div>"


def _drawn(found: Found) -> str:
    """Return the curves of a pattern as small pictures, above what it finds."""
    pictures = []
    for name, values in [*found.curves.items()][:_MOST_DRAWN]:
        if finite := [value for value in values if np.isfinite(value)]:
            some = [finite[i] for i in np.linspace(0, len(finite) - 1, min(len(finite), _MOST_POINTS)).astype(int)]
            curve = sparkline(some, (min(some), max(some)), (240, 44), name)
            ends = f"<b>{literal(name)}</b> {finite[0]:.4g} → {finite[-1]:.4g}"
            pictures.append(f"<span style='display:inline-block;margin-right:18px'>{curve} {ends}</span>")
    return f"<div>{''.join(pictures)}</div>{literal(str(found))}"
