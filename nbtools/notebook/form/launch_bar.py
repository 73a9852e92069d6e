"""The bar below a form: all mistakes, each with a link to its row, the buttons, and their messages."""

from collections.abc import Callable, Mapping
from html import escape

import ipywidgets as widgets

from nbtools.notebook.form.field_rows import note_widget, row
from nbtools.notebook.kernel import answers_beside_cells


class LaunchBar:
    """Buttons that stay in view, below the mistakes that disable them."""

    def __init__(self, go_to: Callable[[str], None], *buttons: widgets.Button) -> None:
        """Make the bar; a click on a mistake calls `go_to` with the name of its row."""
        self._go_to = go_to
        self._reason, self._said = note_widget(), widgets.HTML()
        self._links: list[widgets.Button] = []
        self._names: list[str] = []
        self._list = widgets.VBox().add_class("nbtools-mistakes")
        self.question = widgets.VBox(layout={"overflow": "visible"})
        self._buttons = row(*buttons, self._reason)
        self.widget = widgets.VBox([self.question, self._said, self._list, self._buttons]).add_class("nbtools-bar")
        self.show("", {})

    def add(self, button: widgets.Button, answer: widgets.DOMWidget) -> None:
        """Put a further button beside the others, and its output above them."""
        self.widget.children = (answer, *self.widget.children)
        self._buttons.children = (*self._buttons.children[:-1], button, self._reason)

    def show(self, reason: str, mistakes: Mapping[str, str]) -> None:
        """Show why buttons are disabled, and a link for each mistake by the name of its row; "" has no row."""
        self._reason.value = f"<b>{escape(reason)}</b>" if reason else ""
        self._names = [*mistakes]
        while len(self._links) < len(mistakes):
            self._links.append(widgets.Button(layout={"width": "auto"}).add_class("nbtools-link"))
            self._links[-1].on_click(lambda link: self._go_to(self._names[self._links.index(link)]))
            answers_beside_cells(self._links[-1])
        for link, (name, why) in zip(self._links, mistakes.items(), strict=False):
            link.description = f"{name}: {why}" if name and not why.startswith((f"{name}=", f"{name} ")) else why
            link.tooltip, link.disabled = f"Go to {name}" if name else "", not name
        self._list.children = self._links[: len(mistakes)]
        self._list.layout.display = "" if mistakes else "none"

    def say(self, text: str, *, wrong: bool = False) -> None:
        """Show what a button did, or why it did not."""
        kind = "nbtools-error" if wrong else "nbtools-said"
        self._said.value = f'<div class="{kind}">{escape(text)}</div>' if text else ""
