"""Rows of a form in sections that fold, in columns, with a box to find a setting.

A toggle shows and hides boxes: Accordion and Tab do not work everywhere (Colab).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.notebook.form.field_rows import INPUT_SHAPE, FormRow, note_widget, row
from nbtools.script.field import Field


class Section:
    """Rows under a heading, which unfolds those that rarely change."""

    def __init__(self, title: str, rows: Sequence[FormRow], *above: widgets.DOMWidget) -> None:
        """Make a section; widgets `above` the rows are shown unless a search hides the section."""
        self.title, self.rows = title, rows
        self.changed, self.wrong = set[str](), set[str]()
        self.fold = widgets.ToggleButton(layout={"width": "auto"}).add_class("nbtools-fold")
        self._rows = widgets.VBox([each.widget for each in rows], layout={"overflow": "visible"})
        self._rows.add_class("nbtools-rows")
        self.widget = widgets.VBox([self.fold, *above, self._rows], layout={"overflow": "visible"})
        self.widget.add_class("nbtools-section")

    def show(self, usual: Collection[str], unused: Collection[str], words: Sequence[str]) -> bool:
        """Show the rows that have all `words`, or else the `usual` ones and what is unfolded; whether there is any."""
        names = {each.field.name for each in self.rows}.difference(unused)
        found = {each.field.name for each in self.rows if each.field.name in names and self._has(each.field, words)}
        shown = found if words or self.fold.value else found.intersection(usual)
        for each in self.rows:
            each.widget.layout.display = "" if each.field.name in shown else "none"
        self._rows.layout.display = "" if shown else "none"
        self.widget.layout.display = "" if found else "none"
        rare = names.difference(usual)
        counts = [f"{len(rare)} more"] if rare and not self.fold.value and not words else []
        for number, word in ((len(names & self.changed - self.wrong), "changed"), (len(names & self.wrong), "wrong")):
            counts += [f"{number} {word}"] if number else []
        self.fold.description = " · ".join([self.title, *counts])
        self.fold.icon = ("chevron-down" if self.fold.value else "chevron-right") if rare else ""
        self.fold.disabled = not rare
        self.fold.tooltip = f"{plural(len(rare), 'setting')} that rarely change" if rare else ""
        return bool(found)

    def _has(self, field: Field, words: Sequence[str]) -> bool:
        text = f"{field.name} {field.name.replace('_', ' ')} {field.help} {field.unit} {self.title}".lower()
        return all(word in text for word in words)


class Sections:
    """Columns of sections, with a box to find a setting and a toggle that unfolds everything."""

    def __init__(self, first: Sequence[Section], columns: Sequence[Sequence[Section]], usual: Collection[str]) -> None:
        """Lay out sections: `first` over the whole width, then `columns` of them, fewer on a narrow page.

        Rows with the names in `usual` are shown without unfolding.
        """
        self._sections = [*first, *(section for column in columns for section in column)]
        self._usual, self._unused = set(usual), set[str]()
        self._joined: Sections | None = None
        self.has_found = True
        """Whether any row matches the search."""
        self.find = widgets.Text(description="find", placeholder="a setting, by name or help", **INPUT_SHAPE)
        self.more = widgets.ToggleButton(tooltip="Settings that rarely change", layout={"width": "auto"})
        self._none = note_widget()
        boxes = [widgets.VBox([section.widget for section in column]) for column in columns]
        self.first = widgets.VBox([section.widget for section in first], layout={"overflow": "visible"})
        self.columns = widgets.GridBox(boxes, layout={"overflow": "visible"}).add_class("nbtools-columns")
        self.bar = row(self.find, self._none, self.more).add_class("nbtools-find")
        self.find.observe(lambda change: self._show(), names="value")
        self.more.observe(lambda change: self._fold_all(), names="value")
        for section in self._sections:
            section.fold.observe(lambda change: self._show(), names="value")
        self._fold_all()

    @property
    def rows(self) -> Iterator[FormRow]:
        """All rows."""
        return (each for section in self._sections for each in section.rows)

    def use(self, usual: Collection[str], unused: Collection[str]) -> None:
        """Set which rows are shown without unfolding, and which are hidden since their values do not count."""
        self._usual, self._unused = set(usual), set(unused)
        self._show()

    def join(self, other: "Sections | None") -> None:
        """Let the box and the toggle serve further sections too; None for these alone."""
        if other is not self._joined:
            self._joined = other
            if other is not None:
                other.find, other.more.value = self.find, self.more.value
            self._show()

    def mark(self, mistakes: Mapping[str, str], changed: Mapping[str, str]) -> None:
        """Show in each row its error, or else its change; headings count both."""
        for each in self.rows:
            each.mark(mistakes.get(each.field.name, ""), changed.get(each.field.name, ""))
        for section in self._sections:
            section.changed, section.wrong = {*changed}, {*mistakes}
        self._show()

    def go_to(self, name: str) -> None:
        """Unfold the section of a row and scroll to its input."""
        section = next(each for each in self._sections if any(line.field.name == name for line in each.rows))
        if name not in self._usual:
            section.fold.value = True
        found = next(line for line in section.rows if line.field.name == name)
        if found.widget.layout.display == "none":
            self.find.value = ""
        found.focus()

    def _fold_all(self) -> None:
        self.more.icon = "chevron-up" if self.more.value else "chevron-down"
        self.more.description = "Fewer settings" if self.more.value else "More settings"
        for section in self._sections:
            section.fold.value = self.more.value
        if self._joined is not None:
            self._joined.more.value = self.more.value
        self._show()

    def _show(self) -> None:
        words = self.find.value.lower().split()
        found = [section.show(self._usual, self._unused, words) for section in self._sections]
        if self._joined is not None:
            self._joined._show()
            found.append(self._joined.has_found)
        self.has_found = any(found)
        self._none.value = "" if self.has_found else "<b>no setting matches</b>"
