"""The choice of what a new form edits: a card of one line per recipe, and a list of the project's programs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import ipywidgets as widgets

from nbtools.data import project_files
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


def program_list(root: Path, on_choice: Callable[[str], None]) -> widgets.Box:
    """List the Python files below `root` that look like programs; a choice calls `on_choice` with the path."""
    files = widgets.Select(description="file", style={"description_width": "40px"}, layout={"width": "auto"})
    again = button("Look again", "refresh", "Look for programs of the project")
    note = widgets.HTML()

    def scan(*_: object) -> None:
        found = project_files.find_programs(root)
        files.options = [("the path below", ""), *((name, name) for name in found.names)]
        files.rows = min(max(len(found.names) + 1, 2), _MOST_LISTED)
        ends = "" if found.is_complete else " The search ended early: type the path of a file that is not listed."
        note.value = f"<small>Files with a main part or a parser.{ends}</small>"

    def choose(change: object) -> None:
        if files.value:
            on_choice(files.value)

    scan()
    files.observe(choose, names="value")
    again.on_click(scan)
    return widgets.VBox([files, widgets.HBox([again, note])], layout={"max_width": "620px"}).add_class("nbtools-data")
