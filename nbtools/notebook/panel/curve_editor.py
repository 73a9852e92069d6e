"""The editor of a program's curves: a number of a printed line becomes a metric, the step, or nothing."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ipywidgets as widgets
import numpy as np

from nbtools.errors import ConfigError, literal
from nbtools.metrics.printed.choice import COUNTERS, Found, find, names_in, propose
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.run_patterns import curve_patterns
from nbtools.metrics.printed.shapes import folded, numbers_in, shape_of
from nbtools.notebook.background import Filling
from nbtools.notebook.panel.html import FONT, MONO, MUTED, TEXT, WARN, sparkline
from nbtools.notebook.widgets import button, html_widget, in_row, make_control
from nbtools.run.run import Run, line_kinds

_HELP = (
    "Click a number of the log, say what it is, look at the preview, and keep it. The pattern stands in the launcher "
    "script if there is one, else in your configuration, and counts for earlier and later runs of the script."
)
_METRIC, _NOTHING = "Curve", "Nothing"
_MEANINGS = {
    _METRIC: "This number is a metric: it is drawn",
    "Step": "This number counts the steps: the values of the line are drawn there",
    "Epoch": "This number counts the epochs",
    _NOTHING: "This number differs from line to line and means nothing here",
}
_MOST_KINDS, _LONGEST, _MOST_POINTS, _MOST_DRAWN = 200, 110, 300, 4


class CurveEditor:
    """Kinds of lines, the numbers of one of them, a name for each, a preview, and the patterns that are kept.

    `keep` is called with all patterns, and whether a launcher script that was edited by hand may be replaced.
    """

    def __init__(self, keep: Callable[[Sequence[str], bool], None]) -> None:
        self._keep, self._filling = keep, Filling()
        self._line, self._names, self._selected = "", dict[int, str](), 0
        self._kept: tuple[str, ...] = ()
        self._lines: list[str] = []
        self._refused: Sequence[str] = ()
        tooltip = "Kinds of printed lines that differ in more than their numbers, the most frequent first"
        self.kind = make_control(widgets.Dropdown, "Line", width=690, label=60, tooltip=tooltip, options=[("–", "")])
        tooltip = "The numbers of this line"
        self.number = make_control(widgets.Dropdown, "Number", width=250, label=60, tooltip=tooltip, options=[("–", 0)])
        self.meaning = widgets.ToggleButtons(options=[*_MEANINGS], tooltips=[*_MEANINGS.values()])
        self.meaning.style.button_width = "72px"
        tooltip = "Name of the curve, such as train/loss or eval/accuracy: curves of one kind share a chart"
        self.name = make_control(widgets.Text, "Name", width=210, label=50, tooltip=tooltip, continuous_update=False)
        tooltip = "The line as text: {name} is a number, {_} any text. Edit it to match more or fewer lines"
        self.text = make_control(widgets.Text, "Pattern", width=530, label=60, tooltip=tooltip, continuous_update=False)
        self.keep = button("Keep", "check", "Draw these curves, and keep the pattern", style="primary")
        self.replace = button("Replace the script", "warning", "Write it without the edits by hand")
        self.replace.layout.display = "none"
        self.example, self.preview, self._help = html_widget(), html_widget(), html_widget()
        self._help.value = f"<div style='{FONT}{MUTED}margin:2px 0 6px'>{_HELP}</div>"
        self._rows = widgets.VBox(layout=widgets.Layout(width="100%"))
        chosen = in_row(self.number, self.meaning, self.name)
        written = in_row(self.text, self.keep, self.replace)
        self.widget = widgets.VBox([self._help, self.kind, self.example, chosen, written, self.preview, self._rows])
        self.widget.layout.width, self.widget.layout.display = "100%", "none"
        self.widget.add_class("nbt-curves")
        self.kind.observe(self._on(lambda line: self._open(line)), "value")
        self.number.observe(self._on(self._select), "value")
        self.meaning.observe(self._on(self._mean), "value")
        self.name.observe(self._on(lambda name: self._call(name.strip())), "value")
        self.text.observe(self._on(self._write), "value")
        self.keep.on_click(lambda _: self._keep(self._with(self.text.value), False))
        self.replace.on_click(lambda _: self._keep(self._refused, True))

    def look(self, run: Run, lines: Sequence[str]) -> None:
        """Show the kinds of lines of a run, and what the pattern finds in the end of its log."""
        self._lines, self._kept = [folded(line) for line in lines], curve_patterns(run.info)
        with self._filling:
            kinds = {
                kind.example: f"{kind.count:,} × {kind.example}"[:_LONGEST] for kind in line_kinds(run)[:_MOST_KINDS]
            }
            if self._line and self._line not in kinds:
                kinds = {self._line: self._line[:_LONGEST], **kinds}
            self.kind.options = [(text, line) for line, text in kinds.items()] or [("no line yet", "")]
            self.kind.value = self._line or next(iter(kinds), "")
        if self._line != self.kind.value:
            self._open(self.kind.value)
        self._list()
        self._preview()

    def pick(self, line: str, index: int) -> None:
        """Choose a number of a line, as by a click; the same line as before keeps what was chosen in it."""
        line = folded(line) if line else self._line
        if shape_of(line) != shape_of(self._line):
            self._open(line)
        if not 0 <= index < len(numbers_in(line)):
            return
        if index not in self._names:
            proposed = propose(self._line, index, self._lines)
            taken = {*self._names.values()}
            self._names |= {i: name for i, name in proposed.items() if i not in self._names and name not in taken}
        self._select(index)

    def ask(self, curves: Sequence[str]) -> None:
        """Offer to replace a launcher script that was edited by hand; without curves, do not."""
        self._refused = curves
        self.replace.layout.display = "" if curves else "none"

    def _on(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda change: None if self._filling.is_on else act(change.new)

    def _open(self, line: str) -> None:
        """Show a line with the names that a kept pattern gives to its numbers."""
        self._line = line
        kept = next((pattern for text in self._kept if (pattern := Pattern(text)).values(line)), None)
        self._names = names_in(kept, line) if kept else {}
        self._select(min(self._names, default=0))

    def _select(self, index: int) -> None:
        self._selected = index
        self._show()

    def _mean(self, meaning: str) -> None:
        self._names.pop(self._selected, None)
        if meaning != _NOTHING:
            counter = meaning.lower()
            others = {i: name for i, name in self._names.items() if name != counter}
            proposed = propose(self._line, self._selected, self._lines)[self._selected]
            proposed = f"train/{proposed}" if proposed in COUNTERS else proposed
            self._names = {**others, self._selected: proposed if meaning == _METRIC else counter}
        self._show()

    def _call(self, name: str) -> None:
        self._names |= {self._selected: name}
        self._show()

    def _write(self, text: str) -> None:
        with suppress(ConfigError):  # which the preview shows
            self._names = names_in(Pattern(text), self._line)
        self._show(text)

    def _show(self, text: str | None = None) -> None:
        numbers = numbers_in(self._line)
        with self._filling:
            labels = [self._line[start:end] for start, end, _ in numbers]
            names = [f" · {self._names[i]}" if i in self._names else "" for i in range(len(labels))]
            self.number.options = [(label + names[i], i) for i, label in enumerate(labels)] or [("–", 0)]
            self.number.value = self._selected if self._selected < len(labels) else 0
            name = self._names.get(self._selected)
            self.meaning.value = _NOTHING if name is None else name.title() if name in COUNTERS else _METRIC
            self.name.value, self.name.disabled = name or "", self.meaning.value != _METRIC
            if text is None:
                text = self._pattern_text()
            self.text.value = text
        self.example.value = _example(self._line, numbers, self._names, self._selected)
        self._preview()

    def _pattern_text(self) -> str:
        if not self._names:
            return ""
        try:
            return Pattern.of(self._line, self._names).text
        except ConfigError as error:
            return str(error)

    def _preview(self) -> None:
        try:
            found = find(Pattern(self.text.value), self._lines)
        except ConfigError as error:
            said = f"<span style='{WARN}'>{literal(str(error))}</span>" if self.text.value else "Click a number above."
            self.keep.disabled, self.preview.value = True, f"<div role='status' style='{FONT}{TEXT}'>{said}</div>"
            return
        self.keep.disabled = self.text.value in self._kept
        self.preview.value = _drawn(found)

    def _with(self, text: str) -> list[str]:
        """Return the patterns with a new one, which replaces those that read the same line."""
        return [*(kept for kept in self._kept if Pattern(kept).values(self._line) is None), text]

    def _list(self) -> None:
        if [row.name for row in self._rows.children] != [*self._kept]:
            for row in self._rows.children:
                row.close()
            self._rows.children = [self._row(text) for text in self._kept]

    def _row(self, text: str) -> widgets.Box:
        remove = button("Remove", "trash", f"Forget the pattern {text}")
        remove.on_click(lambda _: self._keep([kept for kept in self._kept if kept != text], False))
        shown = html_widget()
        shown.value = f"<code style='{MONO}{TEXT}'>{literal(text)}</code>"
        row = in_row(remove, shown, wraps=False)
        row.name = text
        return row


def _example(line: str, numbers: Sequence[tuple[int, int, float]], names: dict[int, str], selected: int) -> str:
    """Return a line in which each number is a button, with its name behind it."""
    parts, at = [], 0
    for index, (start, end, _) in enumerate(numbers):
        name = literal(names.get(index, ""))
        kind = " ".join(["nbt-named"] * bool(name) + ["nbt-chosen"] * (index == selected))
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
        finite = [value for value in values if np.isfinite(value)]
        if finite:
            some = [finite[i] for i in np.linspace(0, len(finite) - 1, min(len(finite), _MOST_POINTS)).astype(int)]
            curve = sparkline(some, (min(some), max(some)), (240, 44), name)
            ends = f"{finite[0]:.4g} → {finite[-1]:.4g}"
            pictures.append(f"<span style='margin-right:18px'>{curve} <b>{literal(name)}</b> {ends}</span>")
    more = len(found.curves) - _MOST_DRAWN
    pictures += [f"and {more} more"] if more > 0 else []
    return f"<div role='status' style='{FONT}{TEXT}'><div>{''.join(pictures)}</div>{literal(str(found))}</div>"
