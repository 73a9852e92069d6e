"""The question whether forms may run the programs of a project up to their parser."""

from collections.abc import Callable
from html import escape
from pathlib import Path

import ipywidgets as widgets

from nbtools.notebook.background import Guarded
from nbtools.notebook.widgets import button
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import TIME_LIMIT_S
from nbtools.script.arguments.consent import remember_consent, repository_of, why_never

_WHY_ASK = (
    "A program knows its arguments best: it runs up to its parser, which then answers instead of parsing, in a process "
    f"of its own, with its Python, without GPUs, offline, and for at most {TIME_LIMIT_S:.0f} s. The code above the "
    "parser is executed as you, with your environment; files of the project cannot be changed. Until then the rows are "
    "preliminary: what its source tells at a glance."
)


class ConsentQuestion:
    """Asks the user until it is allowed; once refused, in a sentence."""

    def __init__(self, guarded: Guarded, on_answer: Callable[[], None]) -> None:
        """Show nothing; `on_answer` is called after the user's answer was remembered."""
        self._on_answer = on_answer
        self._script: Path | None = None
        allow, refuse = guarded(lambda: self._decide(True)), guarded(lambda: self._decide(False))
        self.allow = button("Allow", "check", "Let forms run the programs of this project up to their parser", allow)
        self.refuse = button("Not now", "times", "Run nothing; the rows stay preliminary", refuse)
        self.why = widgets.HTML(layout={"flex": "1 1 0"})
        layout = {"align_items": "center", "display": "none"}
        self.widget = widgets.HBox([self.why, self.allow, self.refuse], layout=layout)

    def show(self, script: Path, found: ScriptArguments, consent: bool | None) -> str:
        """Ask about a script, unless it has told its arguments; return why it may never be run, or an empty string."""
        self._script = script
        wants = found.can_ask and not found.is_complete and not consent
        never = why_never(script) if wants else ""
        what = f"Forms may run the programs of {repository_of(script)} up to their parser, as you?"
        self.why.value = f"<b>{escape(what)}</b> <small>{escape(_WHY_ASK) if consent is None else ''}</small>"
        self.refuse.layout.display = "" if consent is None else "none"
        self.widget.layout.display = "" if wants and not never else "none"
        return never

    def _decide(self, is_allowed: bool) -> None:
        if self._script is not None:
            remember_consent(self._script, is_allowed)
            self._on_answer()
