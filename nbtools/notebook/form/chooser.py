"""The choices of a form: a card of one line per recipe, and a list of the project's files."""

from collections.abc import Callable, Mapping
from html import escape

import ipywidgets as widgets

from nbtools.data import project_files
from nbtools.notebook.background import Filling
from nbtools.notebook.widgets import button

_MOST_LISTED = 8


class Chooser:
    """Cards of which one is chosen."""

    def __init__(self, cards: Mapping[str, tuple[str, str]], on_choice: Callable[[str], None]) -> None:
        """Show `cards`, a title and a sentence by key; a click calls `on_choice` with the key."""
        self._buttons: dict[str, widgets.Button] = {}
        for key, (title, summary) in cards.items():
            card = widgets.Button(description=f"{title}: {summary}", tooltip=summary, layout={"width": "auto"})
            card.add_class("nbtools-card")
            card.on_click(lambda _, key=key: on_choice(key))
            self._buttons[key] = card
        self.widget = widgets.VBox([*self._buttons.values()]).add_class("nbtools-cards")

    def mark(self, chosen: str) -> None:
        """Show which card is chosen."""
        for key, card in self._buttons.items():
            (card.add_class if key == chosen else card.remove_class)("nbtools-chosen")


class FileList:
    """Files of the project to choose from, with a button that looks for them again."""

    def __init__(
        self,
        first: str,
        find: Callable[[], project_files.ProjectFiles],
        on_choice: Callable[[str], None],
        *,
        hint: Callable[[bool], str],
        label: Callable[[str], str] = str,
    ) -> None:
        """List the names that `find` returns with their `label` below a `first` entry, whose value is empty.

        `on_choice` is called with the chosen name; `hint` returns a sentence, told whether there is any file.
        """
        self._first, self._find, self._hint, self._label = first, find, hint, label
        self._filling = Filling()
        self.names: tuple[str, ...] = ()
        self._list = widgets.Select(description="file", style={"description_width": "40px"}, layout={"width": "auto"})
        again = button("Look again", "refresh", "Look for files of the project", self.look)
        self._note = widgets.HTML()
        self.widget = widgets.VBox([self._list, widgets.HBox([again, self._note])])
        self._list.observe(lambda change: None if self._filling.is_on else on_choice(change.new), names="value")
        self.look()

    @property
    def value(self) -> str:
        """The chosen name; empty for the first entry."""
        return self._list.value or ""

    def look(self) -> None:
        """List the files of the project."""
        found = self._find()
        self.names = tuple(found.names)
        ends = "" if found.is_complete else " The search ended early: type the path of a file that is not listed."
        self._note.value = f"<small>{escape(self._hint(bool(found.names)) + ends)}</small>"
        self.show(self.value)

    def show(self, name: str) -> None:
        """Mark a name as chosen, without a call; one that is not listed is added."""
        known = [(self._first, ""), *((self._label(each), each) for each in self.names)]
        if name and name not in self.names:
            known.append((f"… {name}", name))
        with self._filling:
            self._list.options = known
            self._list.value = name
            self._list.rows = min(max(len(known), 2), _MOST_LISTED)
