"""Rows in sections that fold, in columns, with a box to find a setting.

A toggle shows and hides boxes: Accordion and Tab do not work everywhere (Colab).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.notebook.rows.field_rows import INPUT_SHAPE, FormRow
from nbtools.notebook.widgets import note_widget, row
from nbtools.script.field import Field

Names = Collection[str]


class Section:
    """Rows under a heading, which unfolds those that rarely change."""

    def __init__(self, title: str, rows: Sequence[FormRow], *above: widgets.DOMWidget) -> None:
        """Make a section; widgets `above` the rows are shown unless a search hides the section."""
        self.title, self.rows = title, rows
        self.fold = widgets.ToggleButton(layout={"width": "auto"}).add_class("nbtools-fold")
        self._rows = widgets.VBox([each.widget for each in rows], layout={"overflow": "visible"})
        self._rows.add_class("nbtools-rows")
        self.widget = widgets.VBox([self.fold, *above, self._rows], layout={"overflow": "visible"})
        self.widget.add_class("nbtools-section")

    def show(self, usual: Names, unused: Names, words: Sequence[str], counts: Mapping[str, Names]) -> bool:
        """Show the rows that have all `words`, or else the `usual` ones and what is unfolded; whether there is any.

        The heading has the number of rows among the names of each of `counts`.
        """
        names = {each.field.name for each in self.rows}.difference(unused)
        found = {each.field.name for each in self.rows if each.field.name in names and self._has(each.field, words)}
        shown = found if words or self.fold.value else found.intersection(usual)
        for each in self.rows:
            each.widget.layout.display = "" if each.field.name in shown else "none"
        self._rows.layout.display = "" if shown else "none"
        self.widget.layout.display = "" if found else "none"
        rare = names.difference(usual)
        heading = [self.title, *([f"{len(rare)} more"] if rare and not self.fold.value and not words else [])]
        heading += [f"{number} {word}" for word, those in counts.items() if (number := len(names.intersection(those)))]
        self.fold.description = " · ".join(heading)
        self.fold.icon = ("chevron-down" if self.fold.value else "chevron-right") if rare else ""
        self.fold.disabled = not rare
        self.fold.tooltip = f"{plural(len(rare), 'setting')} that rarely change" if rare else ""
        return bool(found)

    def _has(self, field: Field, words: Sequence[str]) -> bool:
        text = f"{field.name} {field.name.replace('_', ' ')} {field.help} {field.unit} {self.title}".lower()
        return all(word in text for word in words)


class Sections:
    """Columns of sections: which rows are shown, and what is marked in them."""

    def __init__(self, columns: Sequence[Sequence[Section]], first: Sequence[Section] = ()) -> None:
        """Lay out sections: `first` over the whole width, then `columns` of them, fewer on a narrow page."""
        self._sections = [*first, *(section for column in columns for section in column)]
        self._usual, self._unused = set[str](), set[str]()
        self._words: Sequence[str] = ()
        self._counts: Mapping[str, Names] = {}
        boxes = [widgets.VBox([section.widget for section in column]) for column in columns]
        self.first = widgets.VBox([section.widget for section in first], layout={"overflow": "visible"})
        self.columns = widgets.GridBox(boxes, layout={"overflow": "visible"}).add_class("nbtools-columns")
        for section in self._sections:
            section.fold.observe(lambda change: self._show(), names="value")

    @property
    def rows(self) -> Iterator[FormRow]:
        """All rows."""
        return (each for section in self._sections for each in section.rows)

    def mark(self, mistakes: Mapping[str, str], changed: Mapping[str, str], usual: Names, unused: Names = ()) -> None:
        """Show in each row its error, or else its change; headings count both.

        Rows with the names in `usual` are shown without unfolding, those in `unused` never: their values do not count.
        """
        for each in self.rows:
            each.mark(mistakes.get(each.field.name, ""), changed.get(each.field.name, ""))
        self._usual, self._unused = set(usual), set(unused)
        self._counts = {"changed": {*changed}.difference(mistakes), "wrong": {*mistakes}}
        self._show()

    def find(self, words: Sequence[str]) -> bool:
        """Show the rows that have all words, or else the usual ones; whether there is any."""
        self._words = words
        return self._show()

    def unfold(self, is_unfolded: bool) -> None:
        """Unfold or fold all sections."""
        for section in self._sections:
            section.fold.value = is_unfolded

    def go_to(self, name: str) -> None:
        """Unfold the section of a row and scroll to its input."""
        section, found = next((each, line) for each in self._sections for line in each.rows if line.field.name == name)
        if name not in self._usual:
            section.fold.value = True
        found.focus()

    def _show(self) -> bool:
        shown = [section.show(self._usual, self._unused, self._words, self._counts) for section in self._sections]
        return any(shown)


class SettingFinder:
    """A box to find a setting in all sections, and a toggle that unfolds everything."""

    def __init__(self) -> None:
        self.text = widgets.Text(description="find", placeholder="a setting, by name or help", **INPUT_SHAPE)
        self._more = widgets.ToggleButton(tooltip="Settings that rarely change", layout={"width": "auto"})
        self._note = note_widget()
        self._sections: tuple[Sections, ...] = ()
        self.widget = row(self.text, self._note, self._more).add_class("nbtools-find")
        self.text.observe(lambda change: self._find(), names="value")
        self._more.observe(lambda change: self._unfold(), names="value")
        self._unfold()

    def use(self, *sections: Sections) -> None:
        """Serve these sections."""
        if sections != self._sections:
            new = {*sections} - {*self._sections}
            self._sections = sections
            for each in new:
                each.unfold(self._more.value)
            self._find()

    def _unfold(self) -> None:
        self._more.icon = "chevron-up" if self._more.value else "chevron-down"
        self._more.description = "Fewer settings" if self._more.value else "More settings"
        for each in self._sections:
            each.unfold(self._more.value)

    def _find(self) -> None:
        words = self.text.value.lower().split()
        found = [each.find(words) for each in self._sections]
        self._note.value = "" if any(found) or not found else "<b>no setting matches</b>"
