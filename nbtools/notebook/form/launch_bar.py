"""The bar below a form: all mistakes, each with a link to its row, the buttons, and their messages."""

from collections.abc import Callable, Mapping
from html import escape

import ipywidgets as widgets

from nbtools.notebook.background import Guarded
from nbtools.notebook.form.trial_view import TrialView
from nbtools.notebook.widgets import answers_beside_cells, button, note_widget, row


class LaunchBar:
    """Buttons that stay in view, below the mistakes that disable them."""

    def __init__(self, go_to: Callable[[str], None], guarded: Guarded, trial: TrialView | None) -> None:
        """Make the bar; a click on a mistake calls `go_to` with the name of its row.

        `guarded` is the form's error boundary, and `trial` is for a recipe.
        """
        self._go_to = go_to
        self.write = button("Write script", "pencil", "Write scripts/NAME.py")
        self.launch = button("Launch", "play", "Write the script if its values differ, then launch it", style="primary")
        self.load = button("Load from script", "upload", "Load the values of scripts/NAME.py into the form")
        self._asked = widgets.HTML()
        self._on_overwrite: Callable[[], object] = self.close_question
        overwrite = button("Overwrite", "check", "Replace the script", guarded(self._overwrite), style="warning")
        keep = button("Keep", "times", "Leave the script unchanged", guarded(self.close_question))
        self._question = widgets.VBox([self._asked, widgets.HBox([overwrite, keep])]).add_class("nbtools-question")
        self._reason, self._said = note_widget(), widgets.HTML()
        self._links: list[widgets.Button] = []
        self._names: list[str] = []
        self._list = widgets.VBox().add_class("nbtools-mistakes")
        more, figures = ((trial.button,), (trial.widget,)) if trial else ((), ())
        buttons = row(self.write, self.launch, self.load, *more, self._reason)
        self.widget = widgets.VBox([*figures, self._question, self._said, self._list, buttons]).add_class("nbtools-bar")
        self.close_question()

    def show(self, wrong: Mapping[str, str], *, can_write: bool, can_load: bool) -> None:
        """Enable the buttons, or show why they are disabled; whatever is wrong forbids a launch.

        Each text of `wrong` has the name of its row, with a link to it; "" has no row.
        """
        self.write.disabled, self.launch.disabled = not can_write, bool(wrong)
        self.load.disabled = not can_load
        what = "launch" if can_write else "write or launch"
        self._reason.value = f"<b>Cannot {what}</b>" if wrong else ""
        self._names = [*wrong]
        while len(self._links) < len(wrong):
            self._links.append(widgets.Button(layout={"width": "auto"}).add_class("nbtools-link"))
            self._links[-1].on_click(lambda link: self._go_to(self._names[self._links.index(link)]))
            answers_beside_cells(self._links[-1])
        for link, (name, why) in zip(self._links, wrong.items(), strict=False):
            link.description = f"{name}: {why}" if name and not why.startswith((f"{name}=", f"{name} ")) else why
            link.tooltip, link.disabled = f"Go to {name}" if name else "", not name
        self._list.children = self._links[: len(wrong)]
        self._list.layout.display = "" if wrong else "none"

    def ask(self, what: str, words: str, on_overwrite: Callable[[], object]) -> None:
        """Ask before the user's text is replaced; Load from script takes it over into the form instead."""
        self._on_overwrite = on_overwrite
        self._asked.value = f"<p><b>{escape(what)}.</b> {escape(words)} Load from script takes them over.</p>"
        self._question.layout.display = ""

    def close_question(self) -> None:
        """Hide the question, unanswered or answered."""
        self._question.layout.display = "none"

    def _overwrite(self) -> None:
        self.close_question()
        self._on_overwrite()

    def say(self, text: str, *, wrong: bool = False) -> None:
        """Show what a button did, or why it did not."""
        kind = "nbtools-error" if wrong else "nbtools-said"
        self._said.value = f'<div class="{kind}">{escape(text)}</div>' if text else ""
